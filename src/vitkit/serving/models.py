"""The classifiers that a server asks, each with its name and version, and how they answer many questions at a time."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from vitkit.data.decode import UnreadableImageError, picture_of
from vitkit.errors import VitkitError
from vitkit.exporting.loading import Exported
from vitkit.inference.features import Features
from vitkit.inference.pipeline import BATCH, BATCH_ALONE, cores, join, set_threads, threads
from vitkit.inference.prediction_files import Columns
from vitkit.serving.batching import ClosedError, Work
from vitkit.serving.questions import Upload
from vitkit.system.files import to_json
from vitkit.system.progress import Progress, Say
from vitkit.text.cells import plural
from vitkit.verbs.inputs import open_model

if TYPE_CHECKING:
    from torch import Tensor

    from vitkit.classifier import Classifier
    from vitkit.data.preprocess import Preprocess
    from vitkit.explanation.explanation import Explainable, Explanation
    from vitkit.model.build import Model

Array = npt.NDArray[np.float32]
_NAMED = re.compile(r"([\w.-]+)=(.+)", re.DOTALL)
_DIGITS = 12  # of a version
_CORES_PER_EXPLAINER = 4


@dataclass(frozen=True)
class ToExplain:
    """A picture, and what is to be found out about it; the arguments are those of `Classifier.explain`."""

    upload: Upload
    method: str
    target: str
    layer: int | None


class ServedModel:
    """One classifier, as it is asked by many at a time.

    Attributes:
        name: by which it is asked for.
        version: the beginning of a SHA-256 over all that decides its answers.
        classifier: with its backend.
        is_concurrent: several threads may ask it at once.
    """

    def __init__(self, name: str, classifier: Classifier, batch: int | None = None) -> None:
        self.name, self.classifier, self.version = name, classifier, version_of(classifier)
        runner = classifier.runner
        self.is_concurrent = runner is not None and runner.is_concurrent
        self.batch = batch or (BATCH if self.is_concurrent else BATCH_ALONE)
        self._turn: AbstractContextManager[Any] = nullcontext() if self.is_concurrent else Lock()
        self._is_given_up = Event()
        self.predicting = Work(name, self.batch, self._predict)

    @property
    def is_whole(self) -> bool:
        """Whether it is a model, which can be looked into, and no exported file."""
        return not isinstance(self.classifier, Exported)

    @cached_property
    def embedding(self) -> dict[Features, Work]:
        """By what the features are of."""
        return {what: Work(self.name, self.batch, partial(self._embed, what=what)) for what in _WHAT}

    @cached_property
    def explaining(self) -> Work:
        """Each question is a `ToExplain`, each answer an `Explanation`."""
        return Work(self.name, 1, lambda asked: [self._explain(own) for own in asked])

    def numbers_of(self, what: Features) -> int:
        """How many numbers the features of a picture have."""
        from vitkit.model.network import Network

        model = self.classifier.model
        if isinstance(model, Network):
            return model.anatomy.feature_size
        return model.config.hidden_size * (model.config.patches if what == "patches" else 1)

    def give_up(self) -> None:
        """End the explanations that are being made, within the time that a layer takes."""
        self._is_given_up.set()

    def begin(self) -> None:
        """Have the backend ready in this thread, before anybody waits for it."""
        means, (height, width) = self.classifier.preprocess.mean, self.classifier.preprocess.size
        with self._turn:
            self.classifier.answer(np.zeros((self.batch, len(means), height, width), np.float32))

    def to_dict(self) -> dict[str, Any]:
        """What /models says of it."""
        own = self.classifier
        able = ["predict", "explain", "embed"] if self.is_whole else ["predict"]
        return {
            "name": self.name,
            "version": self.version,
            "classes": list(own.classes),
            "task": own.task,
            "backend": own.backend,
            "precision": own.precision,
            "image_size": list(own.preprocess.size),
            "batch": self.batch,
            "answers": able,
        }

    def told(self) -> str:
        """It in a line."""
        own = self.classifier
        return f"{self.name} ({self.version}): {plural(len(own.classes), 'class', 'classes')}, {own.computed}"

    # --- In threads ---------------------------------------------------------------------------------------

    def _predict(self, asked: Sequence[tuple[Upload, Columns]]) -> list[dict[str, Any]]:
        doubts, rows = self._rows([upload for upload, _ in asked], self.classifier.answer)
        answers = []
        for (_, columns), doubt, (path, row) in zip(asked, doubts, rows, strict=True):
            prediction = self.classifier.prediction(path, row)
            answer = columns.row(prediction).to_dict(may_reject=columns.reject is not None)
            answers.append(answer if doubt is None else {**answer, "note": f"perhaps darker or lighter: {doubt}"})
        return answers

    def _embed(self, asked: Sequence[Upload], what: Features) -> list[dict[str, Any]]:
        def features(pixels: Array) -> Array:
            import torch

            found: Array = self.classifier.features(torch.from_numpy(pixels), what).numpy()
            return found

        return [
            {"path": path, "features": None, "error": row} if isinstance(row, str) else {"path": path, "features": row}
            for path, row in self._rows(asked, features)[1]
        ]

    def _rows(self, uploads: Sequence[Upload], compute: Any) -> tuple[list[str | None], list[tuple[str, Array | str]]]:
        """What is doubtful about each picture, and what is computed of it, or why it cannot be."""
        doubts, images = list[str | None](), list[Array | str]()
        for upload in uploads:
            try:
                with picture_of(upload.path, self.classifier.preprocess.short_side, upload.content) as picture:
                    images.append(self.classifier.preprocess(picture.image))
                    doubts.append(picture.doubt)
            except UnreadableImageError as error:
                images.append(str(error))
                doubts.append(None)
        with self._turn:
            return doubts, join([upload.path for upload in uploads], images, compute)

    def _explain(self, asked: ToExplain) -> Explanation:
        from vitkit.explanation.explanation import explain

        return explain(self._explained, asked.upload.content, asked.method, asked.target, asked.layer)

    @cached_property
    def _explained(self) -> Explainable:
        return _Explained(self.classifier, _watched(self.classifier.model, self._is_given_up), self._turn)


@dataclass(frozen=True)
class _Explained:
    """A classifier as explanations ask it, which may take long: only for its answer it waits for its turn.

    Attributes:
        classifier: whose answers are explained.
        model: shares its weights.
        turn: of those who ask for answers.
    """

    classifier: Classifier
    model: Model
    turn: AbstractContextManager[Any]

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
        with self.turn:
            return self.classifier.probabilities(images)


def _watched(model: Model, is_given_up: Event) -> Model:
    """A model of the same weights whose every layer first looks whether anybody still waits for its results."""
    from vitkit.explanation.attention import twin
    from vitkit.model.vit import Attention

    def look(*_: object) -> None:
        if is_given_up.is_set():
            raise ClosedError

    copied = twin(model, Attention)
    for module in copied.modules():
        module._forward_pre_hooks = OrderedDict(module._forward_pre_hooks)  # which the twin has in common
        module.register_forward_pre_hook(look)
    return copied


_WHAT: tuple[Features, ...] = get_args(Features)


@dataclass(frozen=True)
class Shelf:
    """The models of a server, in the order in which they were named; the first is asked where none is named."""

    models: tuple[ServedModel, ...]

    def find(self, name: str | None, version: str | None = None) -> ServedModel | None:
        """The model of that name, the last of several; or the one whose version begins so."""
        for own in reversed(self.models):
            if name in (None, own.name) and own.version.startswith(version or ""):
                if name is None and version is None:
                    return self.models[0]
                return own
        return None

    @property
    def threads(self) -> int:
        """That keep the cores busy: one each, and where computations have a turn one that reads meanwhile."""
        return cores() if self._is_concurrent else cores() + 1

    @property
    def _is_concurrent(self) -> bool:
        return all(own.is_concurrent for own in self.models)

    @property
    def explainers(self) -> int:
        """Threads that explain: a few of those that there are cores for, so that predictions do not wait."""
        return max(1, cores() // _CORES_PER_EXPLAINER) if self._is_concurrent else 1

    def begin_to_explain(self) -> None:
        """Prepare a thread that explains."""
        set_threads(1 if self._is_concurrent else threads())

    def begin(self) -> None:
        """Prepare a thread that answers."""
        set_threads(1 if self._is_concurrent else threads())
        for own in self.models:
            own.begin()


def open_models(
    named: Sequence[str | Path | Classifier],
    *,
    backend: str,
    precision: str,
    device: str,
    batch: int | None,
    note: Say,
    progress: Progress,
) -> Shelf:
    """Models by their sources, or by NAME=SOURCE.

    Raises:
        VitkitError: one cannot be loaded or computed, has no classes, or is there twice.
    """
    models = list[ServedModel]()
    for given in named:
        name, source = split_name(given)
        classifier = open_model(source, note, progress, device)
        if not classifier.classes:
            raise VitkitError(f"{source} has no head, so there are no classes to answer with: train one")
        classifier = classifier.use(backend, precision, None, say=note, device=device)
        model = ServedModel(name, classifier, batch)
        if any((own.name, own.version) == (name, model.version) for own in models):
            raise VitkitError(f"{name} is given twice with the same weights and classes: leave one out")
        models.append(model)
    return Shelf(tuple(models))


def split_name(given: str | Path | Classifier) -> tuple[str, str | Path | Classifier]:
    """A model's name and its source. One that was given none is called as its file or folder."""
    if not isinstance(given, (str, Path)):
        return "model", given
    found = _NAMED.fullmatch(str(given))
    if found is not None and not Path(given).exists():
        return found[1], found[2]
    return Path(given).resolve().stem if Path(given).is_file() else Path(given).resolve().name, given


def version_of(classifier: Classifier) -> str:
    """The same for every copy of a model, wherever it lies; another as soon as an answer could be another."""
    if isinstance(classifier, Exported):
        from vitkit.exporting.formats import format_of

        parts = [path.read_bytes() for path in format_of(classifier.path).files(classifier.path)]
    else:
        parts = _content_of(classifier)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()[:_DIGITS]


def _content_of(classifier: Classifier) -> list[bytes]:
    from vitkit.model.build import stored_weights

    told = {
        "classes": list(classifier.classes),
        "config": classifier.model.config.to_dict(),
        "preprocess": classifier.preprocess.to_dict(),
        "temperature": classifier.temperature,
        "thresholds": classifier.thresholds,
    }
    weights = sorted(stored_weights(classifier.model).items())
    own = [to_json(told).encode("utf-8", "surrogateescape")]
    for name, tensor in weights:
        values = tensor.detach().cpu().contiguous()
        own += [f"{name} {values.dtype}".encode(), values.view(-1).numpy().tobytes()]
    return own
