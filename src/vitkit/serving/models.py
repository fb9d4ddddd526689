"""The classifiers of a server, each with a name and a version.

`open_models` loads them. Each `ServedModel` computes batches of predictions, features and explanations in several
threads.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from vitkit.data import UnreadableImageError, picture_of
from vitkit.errors import VitkitError
from vitkit.exporting import Exported
from vitkit.inference import BATCH, BATCH_ALONE, Columns, compute_batch
from vitkit.model import Features
from vitkit.serving.batching import Computation
from vitkit.serving.questions import Upload
from vitkit.system import to_json
from vitkit.verbs import Compute, Notes, open_model

if TYPE_CHECKING:
    from torch import Tensor

    from vitkit.classifier import Classifier
    from vitkit.explanation import Explanation

Array = npt.NDArray[np.float32]
_NAMED_SOURCE = re.compile(r"([\w.-]+)=(.+)", re.DOTALL)


def open_models(sources: Sequence[str | Path | Classifier], compute: Compute) -> dict[str, ServedModel]:
    """Open models by their sources, each optionally prefixed with a name (NAME=SOURCE), and return them by name.

    Without NAME, a model is named after its file or folder; a classifier in memory is named `model`.
    """
    models: dict[str, ServedModel] = {}
    for source in sources:
        name = "model"
        if isinstance(source, (str, Path)):
            match = _NAMED_SOURCE.fullmatch(str(source))
            if match is not None and not Path(source).exists():  # the path of a file may contain = too
                name, source = match[1], match[2]
            else:
                path = Path(source).resolve()
                name = path.stem if path.is_file() else path.name
        if name in models:
            reason = f"two models are called {name}: give each a name of its own, such as {name}-2=MODEL"
            raise VitkitError("serving.model-repeated", reason)
        classifier = open_model(source, Notes(), compute.device)
        classifier.preprocess.check_known()
        if not classifier.classes:
            reason = f"{source} has no head, so there are no classes to answer with: train one"
            raise VitkitError("serving.head-missing", reason)
        classifier = classifier.use(compute.backend, compute.precision, None, device=compute.device)
        models[name] = ServedModel(name, classifier, compute.batch_size)
    return models


class ServedModel:
    """A classifier that answers many requests at a time.

    Attributes:
        name: the name that requests use.
        version: a short hash of the weights and settings of the model (`version_of`).
        classifier: the classifier with its backend.
        is_concurrent: whether several threads may use the classifier at the same time.
        is_exported: whether the model is an exported file, which can compute neither features nor explanations.
    """

    def __init__(self, name: str, classifier: Classifier, batch: int | None = None) -> None:
        self.name = name
        self.version = version_of(classifier)
        self.classifier = classifier
        runner = classifier.runner
        self.is_concurrent = runner is not None and runner.is_concurrent
        self.batch = batch or (BATCH if self.is_concurrent else BATCH_ALONE)
        self._lock: AbstractContextManager[Any] = nullcontext() if self.is_concurrent else Lock()
        self._assess = classifier.assessing()
        self.is_exported = isinstance(classifier, Exported)
        self.prediction = Computation(name, self.batch, self._predict)
        kinds: tuple[Features, ...] = get_args(Features)
        self.embeddings = {kind: Computation(name, self.batch, partial(self._embed, what=kind)) for kind in kinds}
        self.explanation = Computation(name, 1, self._explain)

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

    # --- In threads ---------------------------------------------------------------------------------------

    def _predict(self, requests: Sequence[tuple[Upload, Columns]]) -> list[dict[str, Any]]:
        notes, rows = self._rows([upload for upload, _ in requests], self._assess)
        answers = []
        for (_, columns), note, (path, row) in zip(requests, notes, rows, strict=True):
            prediction = self.classifier.prediction(path, row)
            answer = columns.row(prediction).to_dict(may_reject=columns.may_reject)
            if note is not None:
                answer["note"] = f"perhaps darker or lighter: {note}"
            answers.append(answer)
        return answers

    def _embed(self, uploads: Sequence[Upload], what: Features) -> list[dict[str, Any]]:
        def features(pixels: Array) -> Array:
            import torch

            vectors: Array = self.classifier.features(torch.from_numpy(pixels), what).numpy()
            return vectors

        _, rows = self._rows(uploads, features)
        answers: list[dict[str, Any]] = []
        for path, row in rows:
            if isinstance(row, str):
                answers.append({"path": path, "features": None, "error": row})
            else:
                answers.append({"path": path, "features": row.tolist()})
        return answers

    def _rows(self, uploads: Sequence[Upload], compute: Any) -> tuple[list[str | None], list[tuple[str, Array | str]]]:
        """Read pictures, and compute a result for each of them.

        Returns two lists with an entry for each picture: a warning about the brightness, or None; and the path with
        the result or an error message.
        """
        notes = list[str | None]()
        images = list[Array | str]()
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

    def _explain(self, requests: Sequence[ExplanationRequest]) -> list[Explanation]:
        from vitkit.explanation import explain

        classifier = _LockedClassifier(self.classifier, self._lock)
        return [
            explain(classifier, request.upload.content, request.method, request.target, request.layer)
            for request in requests
        ]


@dataclass(frozen=True)
class ExplanationRequest:
    """A picture with the arguments of `Classifier.explain`."""

    upload: Upload
    method: str
    target: str
    layer: int | None


class _LockedClassifier:
    """A classifier to be explained, which holds a lock only while probabilities are computed.

    Therefore predictions need not wait for the whole explanation.
    """

    def __init__(self, classifier: Classifier, lock: AbstractContextManager[Any]) -> None:
        self.model = classifier.model
        self.classes = classifier.classes
        self.preprocess = classifier.preprocess
        self.task = classifier.task
        self._classifier = classifier
        self._lock = lock

    def probabilities(self, images: Tensor) -> Tensor:
        with self._lock:
            return self._classifier.probabilities(images)


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
        if classifier.trust is not None:
            parts.append(classifier.trust)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))  # so that other divisions into parts give another hash
        digest.update(part)
    return digest.hexdigest()[:12]
