"""Open an exported file as a classifier. Prediction with an ONNX or OpenVINO file does not import PyTorch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitkit.classifier import Classifier
from vitkit.errors import VitkitError
from vitkit.exporting.card import Card
from vitkit.exporting.formats import format_of
from vitkit.inference.backends.graph_runner import Array, GraphRunner
from vitkit.system.progress import Say

if TYPE_CHECKING:
    from torch import Tensor

    from vitkit.model.build import Model


class Exported(Classifier):
    """A classifier that has a runner but no model: it can predict and nothing else.

    Attributes:
        path: the file.
        card: what it says of itself.
    """

    def __init__(self, path: Path, precision: str) -> None:
        self.path, self._form = path, format_of(path)
        runner, card = self._form.open(path, precision)
        self.card = Card.from_json(card, path)
        if runner.outputs != len(self.card.classes):
            raise VitkitError(f"{path} is damaged: it has {runner.outputs} logits for {len(self.card.classes)} classes")
        if runner.batch is not None and runner.batch < 1:
            raise VitkitError(f"{path} is damaged: it takes {runner.batch} images at a time")
        self.runner: GraphRunner = runner
        self.classes, self.preprocess = self.card.classes, self.card.preprocess
        self.temperature, self.thresholds = self.card.temperature, self.card.thresholds
        self.pictures = self.card.pictures
        self.provenance = {"exported": str(path), "dtype": self.card.dtype, "vitkit_version": self.card.vitkit_version}
        self.report = None

    @property
    def model(self) -> Model:  # type: ignore[override]
        """Never there.

        Raises:
            VitkitError: always.
        """
        raise VitkitError(
            f"{self.path} is an exported file, which gives predictions alone: for this, take the model folder that it "
            "was made from"
        )

    def to(self, device: str = "auto") -> Exported:
        """Accept only the CPU, on which the file's runtime computes.

        Raises:
            VitkitError: another device is asked for.
        """
        if device not in ("auto", "cpu"):
            raise VitkitError(f"{self.path} runs on the CPU, by {self._form.backend}: leave out --device {device}")
        return self

    def probabilities(self, images: Tensor) -> Tensor:
        """Return the probabilities of images, as any classifier does."""
        import torch

        return torch.from_numpy(self.answer(images.numpy()))

    def answer(self, pixels: Array) -> Array:
        """(B, C, height, width) -> (B, K), as `Classifier.probabilities` computes them."""
        with np.errstate(all="ignore"):
            logits = self.runner.answer(pixels) / np.float32(self.temperature)
        is_finite = np.isfinite(logits).all(axis=-1, keepdims=True)
        exact = np.where(is_finite, logits, 0).astype(np.float64)
        if self.thresholds is None:
            powers = np.exp(exact - exact.max(axis=-1, keepdims=True))
            probabilities = powers / powers.sum(axis=-1, keepdims=True)
        else:
            probabilities = np.exp(-np.logaddexp(0, -exact))
        return np.where(is_finite, probabilities, math.nan).astype(np.float32)

    def use(
        self,
        backend: str = "auto",
        precision: str = "auto",
        images: int | None = None,  # noqa: ARG002
        merge: int = 0,
        plan: str = "auto",
        say: Say | None = None,  # noqa: ARG002
        device: str = "auto",
    ) -> Exported:
        """Open the same file in another precision. The backend is that of the file's format.

        Raises:
            VitkitError: another backend or device is asked for, the backend has no such precision, tokens are to be
                merged, or a plan is asked for.
        """
        self.to(device)
        if merge:
            _ = self.model  # says that there is none
        if plan != "auto":
            raise VitkitError(f"--plan is for the model itself, not for the exported file {self.path}: leave it out")
        if backend not in ("auto", self._form.backend):
            raise VitkitError(f"{self.path} runs by the backend {self._form.backend}, not {backend}")
        if precision in ("auto", self.runner.precision):
            return self
        other = Exported(self.path, precision)
        other.preprocess = self.preprocess
        return other

    def __repr__(self) -> str:
        return f"Exported({str(self.path)!r}, {len(self.classes)} classes)"


def load_exported(path: str | Path, precision: str = "auto") -> Exported:
    """Load a classifier from a file that `vitkit export` wrote.

    Args:
        path: one of the `FORMATS`; the .bin of an .xml lies beside it.
        precision: `float32` or `bfloat16`, where the runtime has a choice; `auto` is what is fastest here.

    Raises:
        VitkitError: there is no such file, it is damaged or not by vitkit, or its runtime is not installed.
    """
    path = Path(path)
    format_of(path)
    if not path.is_file():
        raise VitkitError(f"no such file: {path}")
    return Exported(path, precision)
