"""Answer requests about pictures: choose a model, wait for a batch and build the answer.

This module does not depend on HTTP. It defines the options of each route with their OpenAPI description, the class
`Service`, and the Prometheus metrics of a service.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from vitkit.data import UnreadableImageError
from vitkit.errors import ShortageError, UnansweredError, VitkitError
from vitkit.explanation import method_names
from vitkit.inference import Columns, cores, set_threads, threads
from vitkit.serving.batching import ClosedError, Computation, FullError, Workers
from vitkit.serving.models import ExplanationRequest, ServedModel
from vitkit.serving.questions import BadRequestError, Upload, fraction_option, integer_option
from vitkit.text import plural

if TYPE_CHECKING:
    from vitkit.explanation import Explanation

_QUEUE_FULL = "too many pictures are waiting: try again later"
_CLOSING = "the server is closing"
_MAX_RANKED = 200_000  # maximum number of class names, each with its probability, in an answer

_TOP = 5  # the default number of classes in an answer
_MODEL_OPTIONS = {"model": "the model's name; the first by default"}
OPTIONS = {  # the options of each route that takes pictures, with their descriptions
    "/predict": {
        **_MODEL_OPTIONS,
        "top": f"classes to name for each picture, the most probable first; {_TOP} by default",
        "reject": "withhold the label below this confidence, 0 to 1",
        "coverage": "add a set of classes that contains the true one in this part of pictures, such as 0.95",
        "accuracy": "withhold labels so that this part of the others is right, such as 0.99",
        "unknown": "label pictures ? that look less familiar than all but this part of known ones, such as 0.01",
    },
    "/explain": {
        **_MODEL_OPTIONS,
        "method": f"one of {', '.join(method_names())}; gradient by default",
        "target": "the class that is explained: its name or number; top, the most probable, by default",
        "layer": "for the methods that look at one layer, -1 the last",
    },
    "/embed": {
        **_MODEL_OPTIONS,
        "what": "head (what the head reads, by default), class (the class token), mean (the patches' mean) or patches",
    },
}
_TEXT = {"type": "string"}
_BINARY = {"type": "string", "format": "binary"}
_JSON_IMAGE = {  # base64, alone or with a name
    "oneOf": [
        {"type": "string", "format": "byte"},
        {
            "type": "object",
            "properties": {"path": {"type": "string"}, "data": {"type": "string", "format": "byte"}},
            "required": ["data"],
        },
    ]
}


def openapi_request(path: str, example: Mapping[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI description of the request to a route that takes pictures, such as `/predict`.

    `example` is the JSON body of a request.
    """
    fields = dict.fromkeys(OPTIONS[path], _TEXT)
    files = {"image": {"type": "array", "items": _BINARY}}
    images = {"image": _JSON_IMAGE, "images": {"type": "array", "items": _JSON_IMAGE}}
    body = {
        "required": True,
        "description": "Pictures; the options may be sent with them instead of in the address.",
        "content": {
            "multipart/form-data": {"schema": {"type": "object", "properties": files | fields}},
            "application/json": {"schema": {"type": "object", "properties": images | fields}, "example": example},
            "image/*": {"schema": _BINARY},
        },
    }
    parameters = [
        {"name": name, "in": "query", "description": help_text, "schema": _TEXT}
        for name, help_text in OPTIONS[path].items()
    ]
    return {"requestBody": body, "parameters": parameters}


class Service:
    """The models of a server and the threads that use them.

    Explanations take a long time. Therefore separate threads compute them.

    The first of the models answers requests that name no model. `max_wait` is the longest time in seconds that a
    picture waits for others to form a batch with them. At most `max_waiting` pictures wait for a prediction or
    features, and `max_explanations` for an explanation. An answer with features has at most `max_values` values.

    Attributes:
        is_closing: whether the server accepts no more requests.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        *,
        max_wait: float,
        max_waiting: int,
        max_explanations: int,
        max_values: int,
    ) -> None:
        self.models = models
        self.max_values = max_values
        self.is_closing = False
        self._threads_before = threads()
        is_concurrent = all(model.is_concurrent for model in models.values())

        def prepare_explaining() -> None:
            set_threads(1 if is_concurrent else threads())

        def prepare_predicting() -> None:
            prepare_explaining()
            for model in models.values():
                model.warm_up()

        # One thread per core. If a model can be used by only one thread at a time, there is one thread more: while one
        # thread computes, the others can read pictures, so that every core is busy.
        count = cores() if is_concurrent else cores() + 1
        self.workers = Workers(count, max_wait=max_wait, max_waiting=max_waiting, on_start=prepare_predicting)
        count = max(1, cores() // 4) if is_concurrent else 1  # fewer than cores, so that predictions need not wait
        self.explainers = Workers(count, max_wait=0, max_waiting=max_explanations, on_start=prepare_explaining)
        self.metrics = _Metrics(lambda: self.workers.waiting + self.explainers.waiting)

    def check_open(self, path: str) -> None:
        """Check that a route can accept a request at present, before its pictures are read."""
        if self.is_closing:
            raise BadRequestError("serving.server-closing", 503, _CLOSING)
        workers = self.explainers if path == "/explain" else self.workers
        if workers.waiting >= workers.max_waiting:
            raise BadRequestError("serving.queue-full", 503, _QUEUE_FULL)

    async def predict(self, uploads: Sequence[Upload], options: Mapping[str, str]) -> dict[str, Any]:
        """Classify pictures; return a row for each of them, with the fields that `vitkit predict` writes."""
        model = self._find_model(options)
        top = min(integer_option(options, "top", 1, _TOP), len(model.classifier.classes))
        coverage = fraction_option(options, "coverage")
        accuracy = fraction_option(options, "accuracy")
        unknown = fraction_option(options, "unknown")
        reject = fraction_option(options, "reject")
        try:
            rules = model.classifier.rules(coverage=coverage, accuracy=accuracy, unknown=unknown)
        except VitkitError as error:
            raise BadRequestError(error.code, 400, str(error)) from error
        is_multi = model.classifier.task == "multi"
        has_familiar = model.classifier.unknown is not None
        columns = Columns(top=top, reject=reject, multi=is_multi, rules=rules, has_familiar=has_familiar)
        _check_size(len(uploads), top, _MAX_RANKED, "classes", "ask for fewer classes (top)")
        rows = await self._compute(self.workers, model.prediction, [(upload, columns) for upload in uploads])
        self.metrics.record_images(model.name, rows)
        if not is_multi:
            self.metrics.record_predictions(model.name, rows)
        return {**_model_fields(model), "predictions": rows}

    async def embed(self, uploads: Sequence[Upload], options: Mapping[str, str]) -> dict[str, Any]:
        """Compute the features of pictures; return a row for each of them."""
        model = self._find_unexported(options)
        requested = options.get("what", "head")
        if requested not in model.embeddings:
            reason = f"what must be one of {', '.join(model.embeddings)}, not {requested!r:.80}"
            raise BadRequestError("serving.option-invalid", 400, reason)
        size = model.feature_size(requested)
        _check_size(len(uploads), size, self.max_values, "numbers", "ask for their mean (what=mean)")
        rows = await self._compute(self.workers, model.embeddings[requested], uploads)
        self.metrics.record_images(model.name, rows)
        return {**_model_fields(model), "what": requested, "embeddings": rows}

    async def explain(self, uploads: Sequence[Upload], options: Mapping[str, str]) -> dict[str, Any]:
        """Explain which regions of one picture speak for a class; return the maps as numbers."""
        model = self._find_unexported(options)
        if len(uploads) > 1:
            reason = f"one picture at a time is explained, not {len(uploads)}"
            raise BadRequestError("serving.images-too-many", 400, reason)
        layer = options.get("layer")
        if layer is not None and not re.fullmatch("-?[0-9]{1,4}", layer):
            raise BadRequestError("serving.option-invalid", 400, f"layer must be a whole number, not {layer!r:.80}")
        request = ExplanationRequest(
            upload=uploads[0],
            method=options.get("method", "gradient"),
            target=options.get("target", "top"),
            layer=None if layer is None else int(layer),
        )
        explanation: Explanation
        (explanation,) = await self._compute(self.explainers, model.explanation, [request])
        self.metrics.images.labels(model.name, "answered").inc()
        return {
            **_model_fields(model),
            "target": explanation.target,
            "probability": explanation.probability,
            "top": [{"label": label, "confidence": p} for label, p in explanation.ranking[:_TOP]],
            "size": list(explanation.photograph.size),
            "box": list(explanation.box),
            "maps": {name: values.tolist() for name, values in explanation.maps.items()},
            "layers": list(explanation.layers),
            "heads": None if explanation.heads is None else explanation.heads.tolist(),
        }

    def close(self) -> None:
        """Accept no more requests, answer the accepted ones, and end the threads."""
        self.is_closing = True
        self.explainers.close()
        self.workers.close()
        set_threads(self._threads_before)  # because the setting of a thread is also the default of later threads

    async def _compute(self, workers: Workers, computation: Computation, items: Sequence[Any]) -> list[Any]:
        """Return the answers to the items of a request; exceptions become `BadRequestError`."""
        if len(items) > workers.max_waiting:
            reason = f"a request may have {workers.max_waiting} pictures at most, not {len(items)}"
            raise BadRequestError("serving.images-too-many", 413, reason)
        try:
            return await workers.submit(computation, items)
        except FullError:
            raise BadRequestError("serving.queue-full", 503, _QUEUE_FULL) from None
        except ClosedError:
            raise BadRequestError("serving.server-closing", 503, _CLOSING) from None
        except ShortageError as error:
            raise BadRequestError(error.code, 503, str(error)) from error
        except (UnansweredError, UnreadableImageError) as error:
            raise BadRequestError(error.code, 422, str(error)) from error
        except VitkitError as error:
            raise BadRequestError(error.code, 400, str(error)) from error

    def _find_model(self, options: Mapping[str, str]) -> ServedModel:
        name = options.get("model", next(iter(self.models)))
        if name not in self.models:
            known = ", ".join(f"{model.name} ({model.version})" for model in self.models.values())
            raise BadRequestError("serving.model-unknown", 404, f"there is no model {name!r:.80}: expected {known}")
        return self.models[name]

    def _find_unexported(self, options: Mapping[str, str]) -> ServedModel:
        model = self._find_model(options)
        if model.is_exported:
            reason = f"{model.name} is an exported file, which can only predict"
            raise BadRequestError("serving.model-exported", 400, reason)
        return model


def _check_size(pictures: int, values_each: int, max_values: int, word: str, advice: str) -> None:
    """Check that an answer has at most `max_values` values, which the error message calls `word`.

    `advice` tells in the message what else to do if the answer is too large.
    """
    count = pictures * values_each
    if count > max_values:
        max_pictures = max_values // values_each
        fewer = f"send at most {plural(max_pictures, 'picture', 'pictures')} at a time, or " if max_pictures else ""
        size = f"{count:,} {word}, and may have {max_values:,}"
        raise BadRequestError("serving.answer-large", 413, f"the answer would have {size}: {fewer}{advice}")


def _model_fields(model: ServedModel) -> dict[str, Any]:
    return {"model": model.name, "version": model.version}


_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)  # buckets of histograms
_FRACTIONS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_MAX_CLASSES = 1_000  # maximum number of classes of a model that have metrics


class _Metrics:
    """The Prometheus metrics of one server; `waiting` returns the number of pictures that wait for a batch."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self.requests = counter("vitkit_requests", "Requests by route and status.", ("route", "status"))
        about = "Seconds from the head of a request to its answer."
        self.seconds = histogram("vitkit_request_seconds", about, ("route",), buckets=_SECONDS)
        self.images = counter("vitkit_images", "Images by model and outcome.", ("model", "outcome"))
        self._classes: defaultdict[str, set[str]] = defaultdict(set)
        self._predicted = counter("vitkit_predicted", "Images by predicted class.", ("model", "label"))
        about = "Probability of the predicted class."
        self._confidence = histogram("vitkit_confidence", about, ("model",), buckets=_FRACTIONS)
        about = "Fraction of known images that look no more familiar. Without drift, it is uniformly distributed."
        self._familiar = histogram("vitkit_familiar", about, ("model",), buckets=_FRACTIONS)
        Gauge("vitkit_images_waiting", "Images that wait for a batch.", registry=registry).set_function(waiting)

    def record_images(self, model: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Count the pictures of an answer by their outcome."""
        for row in rows:
            outcome = "unreadable" if "error" in row else "answered"
            self.images.labels(model, outcome).inc()

    def record_predictions(self, model: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record the predicted class, the confidence and the familiarity of each row.

        Monitoring compares their distributions with those of the validation and test images. Unreadable images are
        left out. The label of a withheld prediction counts, and only the first `_MAX_CLASSES` classes are counted.
        """
        for row in rows:
            if row.get("error") is not None:
                continue
            predicted = str(row.get("rejected") or row["label"])
            if predicted in self._classes[model] or len(self._classes[model]) < _MAX_CLASSES:
                self._classes[model].add(predicted)
                self._predicted.labels(model, predicted).inc()
            self._confidence.labels(model).observe(row["confidence"])
            if row.get("familiar") is not None:
                self._familiar.labels(model).observe(row["familiar"])
