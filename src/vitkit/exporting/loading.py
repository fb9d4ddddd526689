"""Open an exported file as a classifier. Prediction with an ONNX or OpenVINO file does not import PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vitkit.classifier import Classifier, Outputs
from vitkit.errors import VitkitError
from vitkit.exporting.card import Card
from vitkit.exporting.formats import FORMATS, format_of, is_exported, wrong_suffix
from vitkit.inference.backends.graph_runner import Array, GraphRunner
from vitkit.text.cells import one_of

if TYPE_CHECKING:
    from torch import Tensor

    from vitkit.model.build import Model


class Exported(Classifier):
    """A classifier that has a runner but no model, so that it can only predict.

    Attributes:
        path: the exported file.
        card: the card of the file.
    """

    def __init__(self, path: Path, runner: GraphRunner, card: str) -> None:
        self.path = path
        self._form = format_of(path)
        self.card = Card.from_json(card, path)
        K, D = len(self.card.classes), self.card.features
        if runner.outputs != K + D:
            expected = f"{K} classes and {D} features" if D else f"{K} classes"
            reason = f"{path} is damaged: it has {runner.outputs} logits for {expected}; export it again"
            raise VitkitError("exporting.file-damaged", reason)
        self.runner: GraphRunner = runner
        self.runner.to_pixels = self.card.preprocess.levels_of
        self.runner_has_features = D > 0
        self.classes = self.card.classes
        self.preprocess = self.card.preprocess
        self.temperature = self.card.temperature
        self.thresholds = self.card.thresholds
        self.pictures = self.card.pictures
        self.trust = self.card.trust
        self.provenance = {"exported": str(path), "dtype": self.card.dtype, "vitkit_version": self.card.vitkit_version}
        self.report = None

    @property
    def model(self) -> Model:  # type: ignore[override]
        """Raise an error, because an exported file has no model.

        Raises:
            VitkitError: always.
        """
        raise VitkitError(
            "exporting.model-missing",
            f"{self.path} is an exported file, which can only predict: for this, use the model folder that it "
            "was made from",
        )

    def to(self, device: str = "auto") -> Exported:
        """Do nothing, because the runtime always computes on the CPU.

        Raises:
            VitkitError: `device` is neither `auto` nor `cpu`.
        """
        if device not in ("auto", "cpu"):
            reason = f"{self.path} runs on the CPU, by {self._form.backend}: leave out --device {device}"
            raise VitkitError("exporting.device-unsupported", reason)
        return self

    def probabilities(self, images: Tensor) -> Tensor:
        """Compute class probabilities; see `Classifier.probabilities`."""
        import torch

        return torch.from_numpy(self.answer(images.numpy()))

    def answer(self, pixels: Array) -> Array:
        """Compute the probabilities (B, K) of preprocessed images (B, C, height, width), with numpy arrays."""
        logits = self.runner.compute(pixels)
        if self.runner_has_features:
            logits = logits[:, : len(self.classes)]
        return self.calibrated(logits)

    def seeing(self) -> Callable[[Array], Outputs]:
        """Return a function that takes preprocessed images (B, C, height, width), and computes logits and features."""
        K = len(self.classes)

        def see(pixels: Array) -> Outputs:
            rows = self.runner.compute(pixels)
            return Outputs(rows[:, :K], rows[:, K:])

        return see

    def calibrated(self, logits: npt.NDArray[np.floating[Any]]) -> Array:
        """Convert logits (B, K) to calibrated probabilities (B, K)."""
        with np.errstate(all="ignore"):  # logits that are not finite give probabilities of NaN
            logits = logits / np.float32(self.temperature)
        is_finite = np.isfinite(logits).all(axis=-1, keepdims=True)
        logits = np.where(is_finite, logits, 0).astype(np.float64)
        if self.thresholds is None:
            powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
            probabilities = powers / powers.sum(axis=-1, keepdims=True)
        else:
            probabilities = np.exp(-np.logaddexp(0, -logits))  # a sigmoid that cannot overflow
        return np.where(is_finite, probabilities, math.nan).astype(np.float32)

    def use(
        self,
        backend: str = "auto",
        precision: str = "auto",
        images: int | None = None,  # noqa: ARG002
        plan: str = "auto",
        device: str = "auto",
        features: bool | None = None,  # noqa: ARG002
    ) -> Exported:
        """Return this classifier, or one with the same file in another precision. The format determines the backend.

        Raises:
            VitkitError: another backend, another device or a plan is requested, or the backend does not support the
                precision.
        """
        self.to(device)
        if plan != "auto":
            reason = f"plan {plan!r} is for the model itself, not for the exported file {self.path}"
            raise VitkitError("exporting.plan-unsupported", reason)
        if backend not in ("auto", self._form.backend):
            raise VitkitError(
                "exporting.backend-unsupported",
                f"{self.path} runs by the backend {self._form.backend}, not {backend}: leave out --backend {backend}",
            )
        if precision in ("auto", self.runner.precision):
            return self
        other = load_exported(self.path, precision)
        other.preprocess, other.views = self.preprocess, self.views
        return other

    def __repr__(self) -> str:
        return f"Exported({str(self.path)!r}, {len(self.classes)} classes)"


def load_exported(path: str | Path, precision: str = "auto") -> Exported:
    """Load a classifier from a file that `vitkit export` wrote.

    Args:
        path: an .onnx or .xml file; for an .xml file, the .bin file must be in the same folder.
        precision: `float32` or `bfloat16`, if the runtime supports both; `auto` is the one that is faster on this
            machine.

    Raises:
        VitkitError: the file does not exist, is damaged or was not written by vitkit, vitkit cannot open its format,
            or the runtime of the format is not installed.
    """
    path = Path(path)
    inputs = tuple(form.suffix for form in FORMATS.values() if form.is_input)
    if not is_exported(path):
        raise VitkitError("exporting.suffix-unknown", wrong_suffix(path, inputs))
    form = format_of(path)
    if not form.is_input:
        raise VitkitError(
            "exporting.format-unreadable",
            f"{path} is a file for {form.runtime}, which vitkit writes but does not open: name the model folder that "
            f"it was made from, or export that to {one_of(inputs)}",
        )
    if not path.is_file():
        raise VitkitError("exporting.file-missing", f"no such file: {path}")
    return Exported(path, *form.open(path, precision))
