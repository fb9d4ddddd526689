"""The base class of runners that compute a graph, and the import of OpenVINO.

Importing this module imports neither PyTorch nor a runtime.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vitkit.errors import VitkitError, first_line

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = npt.NDArray[np.float32]
_TELEMETRY = "openvino_telemetry"
_ABSENT = object()  # marks a module that was not loaded


class GraphRunner:
    """A `Runner` that computes a graph. Its method `compute` computes with numpy arrays instead of tensors.

    Attributes:
        batch: the only batch size that the graph accepts; None for any.
        outputs: the number of logits and features; None if the graph does not record it.
        takes_pixels: whether the graph takes pixels (B, height, width, C) in uint8 instead of normalised images.
        to_pixels: a function that converts normalised images (B, C, height, width) to such pixels. It must be set if
            the graph takes pixels.
    """

    backend: str
    precision: str
    is_concurrent = False
    plan = ""
    batch: int | None
    outputs: int | None
    takes_pixels = False
    to_pixels: Callable[[Array], npt.NDArray[np.uint8]]

    def __call__(self, images: Tensor) -> Tensor:
        import torch

        return torch.from_numpy(self.compute(images.numpy()))

    def compute(self, images: Array) -> Array:
        """Compute float32 logits (B, K) of images (B, C, height, width) in float32, for any B.

        If the graph has a second output, the features, the result is (B, K + D).

        Raises:
            VitkitError: the runtime fails.
        """
        outputs = self._outputs_of(images)
        if "features" not in outputs:
            return outputs["logits"]
        return np.concatenate([outputs["logits"], outputs["features"]], axis=1)

    def probabilities(self, images: Array) -> Array:
        """Compute probabilities (B, K) of images (B, C, height, width) by a graph that takes pixels; see `compute`."""
        return self._outputs_of(images)["probabilities"]

    def _outputs_of(self, images: Array) -> dict[str, Array]:
        """Compute all outputs, by name, in batches of the size that the graph accepts."""
        if self.batch is None:
            return self._run_checked(np.ascontiguousarray(images))
        padding = np.zeros((-len(images) % self.batch, *images.shape[1:]), np.float32)
        padded = np.concatenate([images, padding])
        parts = [self._run_checked(padded[i : i + self.batch]) for i in range(0, len(padded), self.batch)]
        outputs = {}
        for name in parts[0]:
            outputs[name] = np.concatenate([part[name] for part in parts])[: len(images)]
        return outputs

    def _run_checked(self, images: Array) -> dict[str, Array]:
        """Call `_run`, and convert an error of the runtime to a `VitkitError`."""
        try:
            return self._run(self.to_pixels(images) if self.takes_pixels else images)
        except VitkitError:
            raise
        except Exception as error:  # the types of errors depend on the runtime
            reason = f"the backend {self.backend} cannot compute images of shape {images.shape}: {first_line(error)}"
            raise VitkitError("inference.runtime-failed", reason) from error

    def _run(self, images: npt.NDArray[Any]) -> dict[str, Array]:
        """Compute the outputs of one contiguous batch (batch, C, height, width), or of pixels, by name."""
        raise NotImplementedError


def output_width(widths: Mapping[str, int]) -> int:
    """Return the number of logits and features (K + D), given the width of each output of a graph, by name."""
    return sum(width for name, width in widths.items() if name != "probabilities")


def output_names(count: int, *, takes_pixels: bool) -> list[str]:
    """Return the names of the outputs of a graph in their order; only graphs that take pixels have probabilities."""
    names = ["logits", "features"][: count - takes_pixels]
    return [*names, "probabilities"] if takes_pixels else names


def import_runtime(module: str, runtime: str, extra: str = "export") -> Any:
    """Import a module of a runtime that an extra of vitkit installs.

    Raises:
        VitkitError: the runtime is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise not_installed(runtime, extra) from error


def not_installed(package: str, extra: str) -> VitkitError:
    return VitkitError("inference.package-missing", f"{package} is not installed: pip install 'vitkit[{extra}]'")


def check_float32(runtime: str, precision: str) -> None:
    """Raise a `VitkitError` if another precision is requested from a runtime that computes only in float32 here."""
    if precision not in ("auto", "float32"):
        reason = f"{runtime} computes in float32 here, not {precision}: use --precision float32"
        raise VitkitError("inference.precision-unsupported", reason)


def unreadable(path: Path, kind: str, reason: str) -> VitkitError:
    """Return the error for a file that a runtime cannot read as a model of this kind."""
    return VitkitError("inference.graph-unreadable", f"{path} cannot be read as {kind}: {reason}; export it again")


@contextmanager
def without_stderr() -> Iterator[None]:
    """Discard what a runtime writes to the standard error of the process, such as facts about the processor."""
    sys.stderr.flush()
    original = os.dup(2)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    try:
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
        os.close(devnull)


def import_openvino() -> Any:
    """Import OpenVINO, and prevent it from sending telemetry.

    Raises:
        VitkitError: OpenVINO is not installed.
    """
    if sys.modules.get("openvino") is None:
        try:
            # The first conversion to numpy's types initialises a static variable. If two threads did so at once, they
            # would deadlock: one holds Python's lock, and the other the lock of the variable.
            import_without_telemetry("openvino").Type.f32.to_dtype()
        except ImportError as error:
            raise not_installed("OpenVINO", "export") from error
    return import_module("openvino")


def import_without_telemetry(package: str) -> Any:
    """Import a package of OpenVINO as if the package that sends telemetry were not installed."""
    loaded = sys.modules.get(_TELEMETRY, _ABSENT)
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # importing it raises ImportError
    try:
        return import_module(package)
    finally:
        del sys.modules[_TELEMETRY]
        if loaded is not _ABSENT:
            sys.modules[_TELEMETRY] = loaded  # type: ignore[assignment]
