"""The base class of runners that compute a graph, and the import of OpenVINO.

Importing this module imports neither PyTorch nor a runtime.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vitkit.errors import VitkitError, first_line

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = npt.NDArray[np.float32]
_TELEMETRY, _ABSENT = "openvino_telemetry", object()


class GraphRunner:
    """A `Runner` that computes a graph. Its method `answer` computes with numpy arrays instead of tensors.

    Attributes:
        batch: the only batch size that the graph accepts; None for any.
        outputs: the number of logits and features; None if the graph does not record it.
        takes_pixels: whether the graph takes pixels (B, height, width, C) in uint8 instead of normalised images.
        to_pixels: a function that converts normalised images (B, C, height, width) to such pixels, which must be set if
            the graph takes them.
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

        return torch.from_numpy(self.answer(images.numpy()))

    def answer(self, images: Array) -> Array:
        """Compute float32 logits (B, K) of images (B, C, height, width) in float32, for any B.

        If the graph has a second output, the features, the result is (B, K + D).

        Raises:
            VitkitError: the runtime fails, or returns a result of another shape.
        """
        found = self._outputs_of(images)
        if "features" not in found:
            return found["logits"]
        return np.concatenate([found["logits"], found["features"]], axis=1)

    def probabilities(self, images: Array) -> Array:
        """Compute probabilities (B, K) of images (B, C, height, width) by a graph that `takes_pixels`; see `answer`."""
        return self._outputs_of(images)["probabilities"]

    def _outputs_of(self, images: Array) -> dict[str, Array]:
        """Compute all outputs, by name, in batches of the size that the graph accepts."""
        if self.batch is None:
            return self._checked(np.ascontiguousarray(images))
        missing = np.zeros((-len(images) % self.batch, *images.shape[1:]), np.float32)
        whole = np.concatenate([images, missing])
        pieces = [self._checked(whole[i : i + self.batch]) for i in range(0, len(whole), self.batch)]
        return {name: np.concatenate([piece[name] for piece in pieces])[: len(images)] for name in pieces[0]}

    def _checked(self, images: Array) -> dict[str, Array]:
        """Call `_run`, and convert an error of the runtime to a `VitkitError` of one line."""
        try:
            found = self._run(self.to_pixels(images) if self.takes_pixels else images)
        except VitkitError:
            raise
        except Exception as error:  # the types of errors depend on the runtime
            raise VitkitError(
                "inference.runtime-failed",
                f"the backend {self.backend} cannot compute images of shape {images.shape}: {first_line(error)}",
            ) from error
        width = answer_width({name: values.shape[-1] for name, values in found.items()})
        is_complete = "logits" in found and all(len(values) == len(images) for values in found.values())
        if not is_complete or width != (self.outputs or width):
            raise VitkitError(
                "inference.graph-outputs",
                f"the backend {self.backend} must return logits of shape ({len(images)}, {self.outputs or 'classes'}), "
                f"not {', '.join(f'{name} {values.shape}' for name, values in found.items())}",
            )
        return found

    def _run(self, images: npt.NDArray[Any]) -> dict[str, Array]:
        """Compute the outputs of one contiguous batch (batch, C, height, width), or of pixels, by name."""
        raise NotImplementedError


def answer_width(widths: Mapping[str, int]) -> int:
    """Return the number of logits and features, given the width of each output of a graph."""
    return sum(width for name, width in widths.items() if name != "probabilities")


def output_names(count: int, *, takes_pixels: bool) -> list[str]:
    """Return the names of the outputs of a graph, in their order; probabilities belong to one that takes pixels."""
    names = ["logits", "features"][: count - takes_pixels]
    return [*names, "probabilities"] if takes_pixels else names


@contextmanager
def without_stderr() -> Iterator[None]:
    """Discard what a runtime writes to the standard error of the process, such as facts about the processor."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


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
            raise VitkitError(
                "inference.package-missing", "OpenVINO is not installed: pip install 'vitkit[export]'"
            ) from error
    return import_module("openvino")


def import_without_telemetry(package: str) -> Any:
    """Import a package of OpenVINO as if the package that sends telemetry were not installed."""
    there = sys.modules.get(_TELEMETRY, _ABSENT)
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
    try:
        return import_module(package)
    finally:
        del sys.modules[_TELEMETRY]
        if there is not _ABSENT:
            sys.modules[_TELEMETRY] = there  # type: ignore[assignment]
