"""The classifiers of a server, each with a name and a version.

`open_models` loads them and returns a `ServedModels`. Each `ServedModel` computes batches of predictions, features and
explanations in several threads.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from vitkit.data import UnreadableImageError, picture_of
from vitkit.errors import VitkitError
from vitkit.exporting import Exported
from vitkit.inference import BATCH, BATCH_ALONE, Columns, compute_batch, cores, set_threads, threads
from vitkit.model import Features
from vitkit.serving.batching import Computation
from vitkit.serving.questions import Upload
from vitkit.system import to_json
from vitkit.text import plural
from vitkit.verbs import Compute, Notes, open_model

if TYPE_CHECKING:
    from torch import Tensor

    from vitkit.classifier import Classifier
    from vitkit.data import Preprocess
    from vitkit.explanation import Explanation
    from vitkit.model import Model

Array = npt.NDArray[np.float32]
_NAMED_SOURCE = re.compile(r"([\w.-]+)=(.+)", re.DOTALL)
_VERSION_DIGITS = 12


def open_models(sources: Sequence[str | Path | Classifier], compute: Compute) -> ServedModels:
    """Open models by their sources, each optionally prefixed with a name: NAME=SOURCE."""
    models = list[ServedModel]()
    for named_source in sources:
        name, source = split_name(named_source)
        classifier = open_model(source, Notes(), compute.device)
        classifier.preprocess.check_known()
        if not classifier.classes:
            reason = f"{source} has no head, so there are no classes to answer with: train one"
            raise VitkitError("serving.head-missing", reason)
        classifier = classifier.use(compute.backend, compute.precision, None, device=compute.device)
        model = ServedModel(name, classifier, compute.batch_size)
        if any((other.name, other.version) == (name, model.version) for other in models):
            reason = f"{name} is given twice with the same weights and classes: leave one out"
            raise VitkitError("serving.model-repeated", reason)
        models.append(model)
    return ServedModels(tuple(models))


def split_name(entry: str | Path | Classifier) -> tuple[str, str | Path | Classifier]:
    """Split NAME=SOURCE into name and source.

    Without NAME, the model is named after its file or folder; a classifier in memory is named `model`.
    """
    if not isinstance(entry, (str, Path)):
        return "model", entry
    match = _NAMED_SOURCE.fullmatch(str(entry))
    if match is not None and not Path(entry).exists():  # the path of a file may contain = too
        return match[1], match[2]
    path = Path(entry).resolve()
    return path.stem if path.is_file() else path.name, entry


@dataclass(frozen=True)
class ServedModels:
    """The models of a server, in the order of the command line. The first answers requests that name no model."""

    models: tuple[ServedModel, ...]

    def find(self, name: str | None, version: str | None = None) -> ServedModel | None:
        """Return the last model that has this name and a version that begins with `version`; None if there is none.

        If `name` is None, all names match. If both arguments are None, the first model is returned.
        """
        if name is None and version is None:
            return next(iter(self.models), None)
        for model in reversed(self.models):
            if name in (None, model.name) and model.version.startswith(version or ""):
                return model
        return None

    @property
    def threads(self) -> int:
        """The number of threads that compute predictions and features.

        There is one thread per core. If a model can be used by only one thread at a time, there is one thread more:
        while one thread computes, the others can read pictures, so that every core is busy.
        """
        return cores() if self._is_concurrent else cores() + 1

    @property
    def _is_concurrent(self) -> bool:
        return all(model.is_concurrent for model in self.models)

    @property
    def explainers(self) -> int:
        """The number of threads that compute explanations: fewer than cores, so that predictions need not wait."""
        return max(1, cores() // 4) if self._is_concurrent else 1

    def prepare_explaining(self) -> None:
        """Prepare the current thread for computing explanations: set its number of torch threads."""
        set_threads(1 if self._is_concurrent else threads())

    def prepare_predicting(self) -> None:
        """Prepare the current thread for predicting: set its number of torch threads, and warm up all models."""
        set_threads(1 if self._is_concurrent else threads())
        for model in self.models:
            model.warm_up()


class ServedModel:
    """A classifier that answers many requests at a time.

    Attributes:
        name: the name that requests use.
        version: a short hash of the weights and settings of the model (`version_of`).
        classifier: the classifier with its backend.
        is_concurrent: whether several threads may use the classifier at the same time.
    """

    def __init__(self, name: str, classifier: Classifier, batch: int | None = None) -> None:
        self.name, self.classifier, self.version = name, classifier, version_of(classifier)
        runner = classifier.runner
        self.is_concurrent = runner is not None and runner.is_concurrent
        self.batch = batch or (BATCH if self.is_concurrent else BATCH_ALONE)
        self._lock: AbstractContextManager[Any] = nullcontext() if self.is_concurrent else Lock()
        self._assess = classifier.assessing()
        self.prediction = Computation(name, self.batch, self._predict)

    @property
    def expected_shares(self) -> dict[str, float]:
        """The fraction of validation and test images for which each class was predicted; empty without a record."""
        from vitkit.evaluation import Sample, class_shares

        trust = self.classifier.held_out
        return {} if trust is None else class_shares(Sample.recorded(trust), self.classifier.classes)

    @property
    def is_exported(self) -> bool:
        """Whether the model is an exported file, which can compute neither features nor explanations."""
        return isinstance(self.classifier, Exported)

    @cached_property
    def embeddings(self) -> dict[Features, Computation]:
        """The computation of each kind of features."""
        kinds: tuple[Features, ...] = get_args(Features)
        return {kind: Computation(self.name, self.batch, partial(self._embed, what=kind)) for kind in kinds}

    @cached_property
    def explanation(self) -> Computation:
        """The computation that turns an `ExplanationRequest` into an `Explanation`."""
        return Computation(self.name, 1, lambda requests: [self._explain(request) for request in requests])

    def feature_size(self, what: Features) -> int:
        """Return the number of values in the features of one picture."""
        from vitkit.model import Network

        model = self.classifier.model
        if isinstance(model, Network):
            return model.anatomy.feature_size
        return model.config.hidden_size * (model.config.patches if what == "patches" else 1)

    def warm_up(self) -> None:
        """Compute an empty batch in this thread, because the first batch of a backend takes longer."""
        preprocess = self.classifier.preprocess
        with self._lock:
            self._assess(np.zeros((self.batch, len(preprocess.mean), *preprocess.size), np.float32))

    def to_dict(self) -> dict[str, Any]:
        """Return the model's entry in the answer of /models."""
        classifier = self.classifier
        return {
            "name": self.name,
            "version": self.version,
            "classes": list(classifier.classes),
            "task": classifier.task,
            "backend": classifier.backend,
            "precision": classifier.precision,
            "image_size": list(classifier.preprocess.size),
            "batch": self.batch,
            "answers": ["predict"] if self.is_exported else ["predict", "explain", "embed"],
        }

    def description(self) -> str:
        """Describe the model in one line."""
        classes = plural(len(self.classifier.classes), "class", "classes")
        return f"{self.name} ({self.version}): {classes}, {self.classifier.computed}"

    # --- In threads ---------------------------------------------------------------------------------------

    def _predict(self, requests: Sequence[tuple[Upload, Columns]]) -> list[dict[str, Any]]:
        notes, rows = self._rows([upload for upload, _ in requests], self._assess)
        answers = []
        for (_, columns), note, (path, row) in zip(requests, notes, rows, strict=True):
            prediction = self.classifier.prediction(path, row)
            answer = columns.row(prediction).to_dict(may_reject=columns.may_reject)
            answers.append(answer if note is None else {**answer, "note": f"perhaps darker or lighter: {note}"})
        return answers

    def _embed(self, uploads: Sequence[Upload], what: Features) -> list[dict[str, Any]]:
        def features(pixels: Array) -> Array:
            import torch

            vectors: Array = self.classifier.features(torch.from_numpy(pixels), what).numpy()
            return vectors

        _, rows = self._rows(uploads, features)
        return [
            {"path": path, "features": None, "error": row} if isinstance(row, str) else {"path": path, "features": row}
            for path, row in rows
        ]

    def _rows(self, uploads: Sequence[Upload], compute: Any) -> tuple[list[str | None], list[tuple[str, Array | str]]]:
        """Read pictures, and compute a result for each of them.

        Returns two lists with an entry for each picture: a warning about the brightness, or None; and the path with
        the result or an error message.
        """
        notes, images = list[str | None](), list[Array | str]()
        for upload in uploads:
            try:
                with picture_of(upload.path, self.classifier.preprocess.short_side, upload.content) as picture:
                    images.append(self.classifier.preprocess(picture.image))
                    notes.append(picture.doubt)
            except UnreadableImageError as error:
                images.append(str(error))
                notes.append(None)
        with self._lock:
            return notes, compute_batch([upload.path for upload in uploads], images, compute)

    def _explain(self, request: ExplanationRequest) -> Explanation:
        from vitkit.explanation import explain

        classifier = _LockedClassifier(self.classifier, self._lock)
        return explain(classifier, request.upload.content, request.method, request.target, request.layer)


@dataclass(frozen=True)
class ExplanationRequest:
    """A picture to explain, with the arguments of `Classifier.explain`."""

    upload: Upload
    method: str
    target: str
    layer: int | None


@dataclass(frozen=True)
class _LockedClassifier:
    classifier: Classifier
    lock: AbstractContextManager[Any]  # held only while probabilities are computed, so that predictions need not wait

    @property
    def model(self) -> Model:
        return self.classifier.model

    @property
    def classes(self) -> tuple[str, ...]:
        return self.classifier.classes

    @property
    def preprocess(self) -> Preprocess:
        return self.classifier.preprocess

    @property
    def task(self) -> str:
        return self.classifier.task

    def probabilities(self, images: Tensor) -> Tensor:
        with self.lock:
            return self.classifier.probabilities(images)


def version_of(classifier: Classifier) -> str:
    """Return the first digits of a SHA-256 over a model. Copies of a model have the same hash.

    The hash covers weights, configuration, classes, preprocessing, temperature, thresholds and the record of held-out
    predictions. For an exported file, the hash covers the whole content of the file.
    """
    if isinstance(classifier, Exported):
        from vitkit.exporting import format_of

        parts = [path.read_bytes() for path in format_of(classifier.path).files(classifier.path)]
    else:
        from vitkit.model import stored_weights

        description = {
            "classes": list(classifier.classes),
            "config": classifier.model.config.to_dict(),
            "preprocess": classifier.preprocess.to_dict(),
            "temperature": classifier.temperature,
            "thresholds": classifier.thresholds,
        }
        parts = [to_json(description).encode("utf-8", "surrogateescape")]
        for name, tensor in sorted(stored_weights(classifier.model).items()):
            values = tensor.detach().cpu().contiguous()
            parts += [f"{name} {values.dtype}".encode(), values.view(-1).numpy().tobytes()]
        parts += [] if classifier.trust is None else [classifier.trust]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))  # so that other divisions into parts give another hash
        digest.update(part)
    return digest.hexdigest()[:_VERSION_DIGITS]
