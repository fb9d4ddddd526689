"""A model, its class names and its preprocessing: what every command after `train` takes, and all that is saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from vitkit import model_folder
from vitkit.data.decode import UnreadableImageError, picture_of, warn_of_doubt
from vitkit.data.preprocess import Preprocess
from vitkit.errors import ShortageError, VitkitError, is_memory_short
from vitkit.inference.pipeline import BATCH, BATCH_ALONE, Images, flow
from vitkit.inference.prediction import Prediction, Ranking, rank
from vitkit.system.progress import Say, unsaid

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from vitkit.explanation.explanation import Explanation
    from vitkit.inference.backends.base import Runner
    from vitkit.model.load_report import LoadReport
    from vitkit.model.vit import VisionTransformer

Features = Literal["head", "class", "mean", "patches"]
T = TypeVar("T")


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
        model_folder.check_names(self.classes)
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

    def logits(self, images: Tensor) -> Tensor:
        """(B, C, height, width), preprocessed -> (B, K) logits, in float32."""
        import torch

        with torch.inference_mode():
            logits: Tensor = self.model(images) if self.runner is None else self.runner(images)
        return logits

    def use(
        self,
        backend: str = "auto",
        precision: str = "auto",
        images: int | None = None,
        merge: int = 0,
        plan: str = "auto",
        say: Say = unsaid,
    ) -> Classifier:
        """This classifier, with logits by one of `inference.backends` from the weights that the model has now.

        Args:
            backend: `eager`, `compile`, `openvino` or `onnx`; `auto` takes the fastest that is there.
            precision: `float32` or `bfloat16`; `auto` takes bfloat16 where the hardware multiplies such numbers.
            images: how many will be asked, for `auto`; None for many.
            merge: patches that are merged with others in every layer, by backend eager.
            plan: how backend eager computes in bfloat16 on a CPU; `auto` takes the fastest, as measured here.
            say: is told what was measured.

        Raises:
            VitkitError: there is no such backend, precision or plan, it does not work here, or the model cannot be
                merged.
        """
        from vitkit.inference.backends import open_runner

        return replace(self, runner=open_runner(self.model, backend, precision, images, merge, plan, say))

    @property
    def backend(self) -> str:
        """What computes logits."""
        return "eager" if self.runner is None else self.runner.backend

    @property
    def precision(self) -> str:
        """In what precision logits are computed."""
        return "float32" if self.runner is None else self.runner.precision

    @property
    def computed(self) -> str:
        """What computes logits and in what precision, in words."""
        merged, plan = (0, "") if self.runner is None else (self.runner.merged, self.runner.plan)
        words = [self.backend, self.precision, *([f"plan {plan}"] if plan not in ("", "plain") else [])]
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
        import torch

        return torch.from_numpy(self._pixels(path))

    def _pixels(self, path: str | Path) -> npt.NDArray[np.float32]:
        with picture_of(path, self.preprocess.short_side) as picture:
            warn_of_doubt(path, picture)
            return self.preprocess(picture.image)

    def features(self, images: Tensor, what: Features = "head") -> Tensor:
        """(B, C, height, width), preprocessed -> features, in float32, which keep no other tokens in memory.

        Args:
            images: what the model sees.
            what: `head`, what the head reads (B, D); `class`, the class token (B, D); `mean`, the mean of the patches
                (B, D); `patches`, every patch (B, h * w, D), row by row.

        Raises:
            VitkitError: the model has no class token.
        """
        import torch

        if what == "class" and not self.model.config.class_token:
            raise VitkitError("the model has no class token: take mean, patches or head")
        with torch.inference_mode():
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
            ShortageError: memory runs out, for a picture or for a batch: what came before can be kept.
        """
        if not self.classes:
            raise VitkitError("the model has no head, so there are no classes: train one, or load with num_classes")
        return self._answers(paths, batch_size)

    def _answers(
        self, paths: Iterable[str | Path], batch_size: int | None
    ) -> Iterator[tuple[str, npt.NDArray[np.float32] | str]]:
        return self._map(self.read, self.probabilities, paths, batch_size)

    def embed(
        self, paths: Iterable[str | Path], what: Features = "head", batch_size: int | None = None
    ) -> Iterator[tuple[str, npt.NDArray[np.float32] | str]]:
        """As `stream`, with `features` in the place of probabilities."""
        own = replace(self, runner=None)
        return own._map(own.read, lambda images: self.features(images, what), paths, batch_size)

    def _map(
        self,
        read: Callable[[str], Images],
        compute: Callable[[Images], Images],
        paths: Iterable[str | Path],
        batch_size: int | None,
    ) -> Iterator[tuple[str, npt.NDArray[np.float32] | str]]:
        if batch_size is not None and batch_size < 1:
            raise VitkitError(f"batch_size must be at least 1, not {batch_size}")
        is_concurrent = self.runner is None or self.runner.is_concurrent
        batch_size = batch_size or (BATCH if is_concurrent else BATCH_ALONE)
        rows = flow(map(str, paths), partial(_try_read, read), compute, batch_size, is_concurrent=is_concurrent)
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
                yield rank(path, Ranking(self.classes, outcome), thresholds)

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
            method: a name in `vitkit.explanation.METHODS`, or `all`.
            target: the class: `top`, the most probable; its name; or its number.
            layer: for the methods that look at one layer, and for `heads`; None is the last, and for `heads` every one.

        Raises:
            UnreadableImageError: the file does not hold a picture.
            UnansweredError: the model's numbers for it are not finite.
            VitkitError: the model has no head; there is no such method, class or layer.
        """
        from vitkit.explanation.explanation import explain

        return explain(self, image, method, target, layer)

    def save(self, folder: str | Path) -> None:
        """Write the model folder. What was there stays whole until the new files are.

        Raises:
            OSError: the disk is full or not writable; the folder then holds what it held before.
        """
        model_folder.write(Path(folder), self.model.state_dict(), self._description(), self.pictures)

    def _description(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "classes": list(self.classes),
            "config": self.model.config.to_dict(),
            "preprocess": self.preprocess.to_dict(),
            "temperature": self.temperature,
            **({} if self.thresholds is None else {"thresholds": list(self.thresholds)}),
            "provenance": self.provenance,
        }


def _try_read(read: Callable[[str], Images], path: str) -> Images | str:
    try:
        return read(path)
    except UnreadableImageError as error:
        return str(error)


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
