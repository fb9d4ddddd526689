"""A model, its class names and its preprocessing: what every command after `train` takes, and all that is saved.

A model folder holds `model.safetensors`, `model.json`, and `pictures.npz`, the record of what the weights were trained
on. The JSON names the hashes of both, so that damage and mismatched files are noticed; it is journalled, so that a
crash while saving leaves the old model or the new one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

import vitkit
from vitkit.data.decode import UnreadableImageError, picture_of, warn_of_doubt
from vitkit.data.preprocess import Preprocess
from vitkit.data.source import JOINT
from vitkit.engine.flow import BATCH, BATCH_ALONE, flow
from vitkit.errors import ShortageError, VitkitError, is_memory_short
from vitkit.files import from_json, replacing, write_bytes, write_json
from vitkit.model import VisionTransformer
from vitkit.ranking import Ranking

if TYPE_CHECKING:
    from PIL import Image

    from vitkit.engine import Runner
    from vitkit.explain.explanation import Explanation
    from vitkit.weights.report import LoadReport

Features = Literal["head", "class", "mean", "patches"]
T = TypeVar("T")
FORMAT_VERSION = 1
WEIGHTS, DESCRIPTION, RECORD = "model.safetensors", "model.json", "pictures.npz"
_NEXT = "model.json.next"  # the description of weights that are about to take their place
_NEXT_RECORD = "pictures.npz.next"  # and the record that goes with it


@dataclass(frozen=True)
class Prediction:
    """What the model says of one image.

    Attributes:
        path: as it was given.
        label: the most probable class; None when there is no answer. Of a multi-label model the classes that
            reach their thresholds, in the order of the classes, joined by `;`; "" when none does.
        confidence: its probability; the lowest of those named, or when none is, 1 - the highest of all.
        ranking: every class with its probability, the most probable first, sorted as far as it is read (`Ranking`).
        error: why there is no answer: the image could not be read, or the model's numbers are not finite.
    """

    path: str
    label: str | None = None
    confidence: float | None = None
    ranking: Sequence[tuple[str, float]] = ()
    error: str | None = None


@dataclass
class Classifier:
    """A trained model that can be asked about images.

    Attributes:
        model: the plain float32 model, in eval mode.
        classes: names, in the order of the logits.
        preprocess: from a picture to the model's input.
        temperature: logits are divided by it before the softmax, or the sigmoid.
        provenance: where the weights came from: data and its hash, recipe, seed, versions, metrics.
        report: what became of every tensor, where the weights were loaded.
        thresholds: of a multi-label model, the probability from which on an image has a class, one a class; else None.
        pictures: the record of what the weights were trained on, in bytes (`data.pictures`); None: there is none.
        runner: what computes logits in the model's place, see `use`; features and explanations are the model's own.
    """

    model: VisionTransformer
    classes: tuple[str, ...]
    preprocess: Preprocess
    temperature: float = 1.0
    provenance: dict[str, Any] = field(default_factory=dict)
    report: LoadReport | None = None
    thresholds: tuple[float, ...] | None = None
    pictures: bytes | None = field(default=None, repr=False)
    runner: Runner | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.classes) != self.model.config.num_classes:
            raise VitkitError(f"{len(self.classes)} class names for {self.model.config.num_classes} logits")
        check_names(self.classes)
        if len(set(self.classes)) != len(self.classes):
            raise VitkitError("class names must differ from one another")
        if type(self.temperature) not in (int, float) or not 0 < self.temperature < math.inf:
            raise VitkitError(f"temperature must be above 0 and finite, not {self.temperature!r:.80}")
        if self.thresholds is not None and len(self.thresholds) != len(self.classes):
            raise VitkitError(f"{len(self.thresholds)} thresholds for {len(self.classes)} classes")
        if not all(0 <= threshold <= 1 for threshold in self.thresholds or ()):
            raise VitkitError(f"thresholds must be from 0 to 1, not {self.thresholds}")
        self.model.eval()

    @property
    def task(self) -> Literal["single", "multi"]:
        """Whether an image has one class, or may have several or none."""
        return "single" if self.thresholds is None else "multi"

    @torch.inference_mode()
    def logits(self, images: Tensor) -> Tensor:
        """(B, C, height, width), preprocessed -> (B, K) logits, in float32."""
        return self.model(images) if self.runner is None else self.runner(images)

    def use(
        self,
        engine: str = "auto",
        precision: str = "auto",
        images: int | None = None,
        merge: int = 0,
        plan: str = "auto",
        say: Callable[[str], None] = lambda _: None,
    ) -> Classifier:
        """This classifier, with logits by an engine of `vitkit.engine` from the weights that the model has now.

        Args:
            engine: `eager`, `compile`, `openvino` or `onnx`; `auto` takes the fastest that is there.
            precision: `float32` or `bfloat16`; `auto` takes bfloat16 where the hardware multiplies such numbers.
            images: how many will be asked, for `auto`; None for many.
            merge: patches that are merged with others in every layer, by engine eager.
            plan: how engine eager computes in bfloat16 on a CPU; `auto` takes the fastest, as measured here.
            say: is told what was measured.

        Raises:
            VitkitError: there is no such engine, precision or plan, it does not work here, or the model cannot be
                merged.
        """
        from vitkit.engine import open_runner

        return replace(self, runner=open_runner(self.model, engine, precision, images, merge, plan, say))

    @property
    def engine(self) -> str:
        """What computes logits."""
        return "eager" if self.runner is None else self.runner.engine

    @property
    def precision(self) -> str:
        """In what precision logits are computed."""
        return "float32" if self.runner is None else self.runner.precision

    @property
    def computed(self) -> str:
        """What computes logits and in what precision, in words."""
        merged, plan = (0, "") if self.runner is None else (self.runner.merged, self.runner.plan)
        words = [self.engine, self.precision, *([f"plan {plan}"] if plan not in ("", "plain") else [])]
        return ", ".join([*words, *([f"merging {merged} patches a layer"] if merged else [])])

    def probabilities(self, images: Tensor) -> Tensor:
        """(B, C, height, width), preprocessed -> (B, K) calibrated probabilities.

        Each row sums to 1; of a multi-label model each class has a probability of its own. A row of which a logit is
        not finite is NaN throughout: a sigmoid would make a certainty of an overflow.
        """
        logits = self.logits(images) / self.temperature
        found = logits.softmax(dim=-1) if self.thresholds is None else logits.sigmoid()
        return found.masked_fill(~logits.isfinite().all(dim=-1, keepdim=True), math.nan)

    def read(self, path: str | Path) -> Tensor:
        """An image file -> (C, height, width) float32, as the model reads it.

        Raises:
            UnreadableImageError: the file does not hold a picture.
        """
        with picture_of(path, self.preprocess.short_side) as picture:
            warn_of_doubt(path, picture)
            return torch.from_numpy(self.preprocess(picture.image))

    @torch.inference_mode()
    def features(self, images: Tensor, what: Features = "head") -> Tensor:
        """(B, C, height, width), preprocessed -> features, in float32, which keep no other tokens in memory.

        Args:
            images: what the model sees.
            what: `head`, what the head reads (B, D); `class`, the class token (B, D); `mean`, the mean of the patches
                (B, D); `patches`, every patch (B, h * w, D), row by row.

        Raises:
            VitkitError: the model has no class token.
        """
        if what == "class" and not self.model.config.class_token:
            raise VitkitError("the model has no class token: take mean, patches or head")
        tokens = self.model.forward_features(images)  # (B, N, D)
        if what == "head":
            return self.model.forward_head(tokens, pre_logits=True).clone()  # of tokens it may be a view
        patches = tokens[:, self.model.config.prefix_tokens :]
        if what == "mean":
            return patches.mean(dim=1)
        return patches if what == "patches" else tokens[:, 0].clone()

    def stream(
        self, paths: Iterable[str | Path], batch_size: int | None = None
    ) -> Iterator[tuple[str, npt.NDArray[np.float32] | str]]:
        """Each path with its (K,) probabilities, or with the reason why there are none; in order, as they come.

        Memory does not grow with the number of paths.

        Raises:
            VitkitError: batch_size is not at least 1, or the model has no head.
        """
        if not self.classes:
            raise VitkitError("the model has no head, so there are no classes: train one, or load with num_classes")
        return self._map(self.probabilities, paths, batch_size)

    def embed(
        self, paths: Iterable[str | Path], what: Features = "head", batch_size: int | None = None
    ) -> Iterator[tuple[str, npt.NDArray[np.float32] | str]]:
        """As `stream`, with `features` in the place of probabilities."""
        return replace(self, runner=None)._map(lambda images: self.features(images, what), paths, batch_size)

    def _map(
        self, compute: Callable[[Tensor], Tensor], paths: Iterable[str | Path], batch_size: int | None
    ) -> Iterator[tuple[str, npt.NDArray[np.float32] | str]]:
        if batch_size is not None and batch_size < 1:
            raise VitkitError(f"batch_size must be at least 1, not {batch_size}")
        is_concurrent = self.runner is None or self.runner.is_concurrent
        batch_size = batch_size or (BATCH if is_concurrent else BATCH_ALONE)
        rows = flow(map(str, paths), self._try_read, compute, batch_size, is_concurrent=is_concurrent)
        return _unless_short(rows, batch_size)

    def predict(self, paths: str | Path | Iterable[str | Path], batch_size: int | None = None) -> Iterator[Prediction]:
        """A prediction for each image file, in the order of the paths, as they come.

        An image that cannot be read, or answered with finite numbers, gives a `Prediction` with its `error`.
        """
        paths = [paths] if isinstance(paths, (str, Path)) else paths
        thresholds = None if self.thresholds is None else np.array(self.thresholds)
        for path, outcome in self.stream(paths, batch_size):
            if isinstance(outcome, str):
                yield Prediction(path, error=outcome)
            else:
                yield _rank(path, Ranking(self.classes, outcome), thresholds)

    def explain(
        self,
        image: str | Path | Image.Image,
        method: str = "gradient",
        target: str | int = "top",
        layer: int | None = None,
    ) -> Explanation:
        """Where in an image a class comes from, by the very pixels that predictions are made of.

        Args:
            image: a file, or a picture in memory.
            method: a name in `vitkit.explain.METHODS`, or `all`.
            target: the class: `top`, the most probable; its name; or its number.
            layer: for the methods that look at one layer, and for `heads`; None is the last, and for `heads` every one.

        Raises:
            UnreadableImageError: the file does not hold a picture.
            UnansweredError: the model's numbers for it are not finite.
            VitkitError: the model has no head; there is no such method, class or layer.
        """
        from vitkit.explain.explanation import explain

        return explain(self, image, method, target, layer)

    def _try_read(self, path: str) -> Tensor | str:
        try:
            return self.read(path)
        except UnreadableImageError as error:
            return str(error)

    def save(self, folder: str | Path) -> None:
        """Write the model folder. What was there stays whole until the new files are.

        Raises:
            OSError: the disk is full or not writable; the folder then holds what it held before.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        _settle(folder)
        try:
            with replacing(folder / WEIGHTS) as temporary:
                self._write_weights(temporary)
                if self.pictures is not None and not _holds(folder / RECORD, self.pictures):
                    write_bytes(folder / _NEXT_RECORD, self.pictures)
                write_json(folder / _NEXT, self._description(_sha256(temporary)))
        finally:
            _settle(folder)

    def _write_weights(self, path: Path) -> None:
        path.touch()
        mode = path.stat().st_mode  # safetensors makes files that only their owner can read
        try:
            save_file(
                {name: tensor.contiguous() for name, tensor in self.model.state_dict().items()},
                path,
                {"vitkit_version": vitkit.__version__},
            )
            path.chmod(mode)
        except SafetensorError as error:  # how safetensors reports a full disk
            raise OSError(f"cannot write {path.with_name(WEIGHTS)}: {error}") from error

    def _description(self, weights_hash: str) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "vitkit_version": vitkit.__version__,
            "task": self.task,
            "classes": list(self.classes),
            "config": self.model.config.to_dict(),
            "preprocess": self.preprocess.to_dict(),
            "temperature": self.temperature,
            **({} if self.thresholds is None else {"thresholds": list(self.thresholds)}),
            "weights_sha256": weights_hash,
            **({} if self.pictures is None else {"pictures_sha256": hashlib.sha256(self.pictures).hexdigest()}),
            "provenance": self.provenance,
        }


def _unless_short(rows: Iterator[tuple[str, T]], batch_size: int) -> Iterator[tuple[str, T]]:
    """The same, and an error of the user's kind where memory runs out in between."""
    try:
        yield from rows
    except (MemoryError, RuntimeError) as error:
        if not is_memory_short(error):
            raise
        raise ShortageError(
            f"there is too little memory for {batch_size} images at a time: free some, or compute fewer at a time"
        ) from error


def _rank(path: str, ranking: Ranking, thresholds: npt.NDArray[np.float64] | None) -> Prediction:
    if thresholds is None:
        return Prediction(path, *ranking[0], ranking)
    p = ranking.probabilities
    named = np.flatnonzero(p >= thresholds)
    confidence = p[named].min() if len(named) else 1 - p.max()
    return Prediction(path, JOINT.join(ranking.classes[i] for i in named.tolist()), float(confidence), ranking)


def check_names(classes: Iterable[object]) -> None:
    """Refuse names that are no text, or that no file can hold.

    Raises:
        VitkitError: one is neither.
    """
    for name in classes:
        try:
            is_text = isinstance(name, str) and name.encode("utf-8", "surrogateescape") is not None
        except UnicodeEncodeError:  # JSON can have half of a character
            is_text = False
        if not is_text:
            raise VitkitError(f"class names must be text, not {name!r:.80}")


def is_model_folder(path: Path) -> bool:
    """Whether the folder is one of vitkit's own, damaged or not."""
    return any((path / name).is_file() for name in (DESCRIPTION, _NEXT))


def read_description(folder: Path) -> dict[str, Any]:
    """The description that belongs to the weights; a save cut short after its first step is completed here."""
    weights = folder / WEIGHTS
    found = [name for name in (DESCRIPTION, _NEXT) if (folder / name).is_file()]
    if not found or not weights.is_file():
        missing = DESCRIPTION if not found else WEIGHTS
        raise VitkitError(f"{folder} is not a model folder: it has no {missing}")
    weights_hash = _sha256(weights)
    for name in found:
        description = _parse(folder / name)
        if description.get("weights_sha256") == weights_hash:
            return _with_known_task(folder, description)
    raise VitkitError(f"{weights} is damaged: its content is not what {DESCRIPTION} says; restore it or train again")


def read_record(folder: Path, description: Mapping[str, Any]) -> bytes | None:
    """The record of pictures that belongs to the weights; None where there was none.

    Raises:
        VitkitError: it is gone, or its content is not what the description says.
    """
    expected = description.get("pictures_sha256")
    if expected is None:
        return None
    for name in (RECORD, _NEXT_RECORD):
        with suppress(FileNotFoundError):
            data = (folder / name).read_bytes()
            if hashlib.sha256(data).hexdigest() == expected:
                return data
    state = "is damaged" if (folder / RECORD).is_file() else "is gone"
    raise VitkitError(
        f"{folder / RECORD} {state}: it says what the weights were trained on; restore it, or take pictures_sha256 out "
        f"of {DESCRIPTION} to go on without it"
    )


def _with_known_task(folder: Path, description: dict[str, Any]) -> dict[str, Any]:
    task, thresholds = description.get("task", "single"), description.get("thresholds")
    is_list = isinstance(thresholds, list) and all(isinstance(own, (int, float)) for own in thresholds)
    if (task, is_list) not in (("single", False), ("multi", True)):
        raise VitkitError(f"{folder / DESCRIPTION} is damaged: task {task!r} with thresholds {thresholds!r}")
    return description


def _parse(path: Path) -> dict[str, Any]:
    try:
        description = from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise VitkitError(f"{path} is damaged: {error}") from error
    version = description.get("format_version") if isinstance(description, dict) else None
    if not isinstance(version, int):
        raise VitkitError(f"{path} is not a vitkit model description: it has no format_version")
    if version > FORMAT_VERSION:
        raise VitkitError(
            f"{path} has format version {version}, this vitkit reads up to {FORMAT_VERSION}: upgrade vitkit"
        )
    return description


def _settle(folder: Path) -> None:
    """Bring a save to its end: the next description takes its name if its weights are in place, else it goes."""
    pending, weights = folder / _NEXT, folder / WEIGHTS
    if not pending.is_file():
        (folder / _NEXT_RECORD).unlink(missing_ok=True)
        return
    try:
        description = from_json(pending.read_text(encoding="utf-8"))
        expected = description["weights_sha256"]
    except (ValueError, KeyError, TypeError):
        expected = None
    if weights.is_file() and expected == _sha256(weights):
        if "pictures_sha256" not in description:
            (folder / RECORD).unlink(missing_ok=True)  # of a model that was here before
        with suppress(FileNotFoundError):
            (folder / _NEXT_RECORD).replace(folder / RECORD)
        pending.replace(folder / DESCRIPTION)
    else:
        pending.unlink()
        (folder / _NEXT_RECORD).unlink(missing_ok=True)


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
