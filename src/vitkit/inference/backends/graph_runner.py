"""The base class of runners that compute a graph, and the import of OpenVINO.

Importing this module imports neither PyTorch nor a runtime.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
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
    """

    backend: str
    precision: str
    is_concurrent = False
    plan = ""
    batch: int | None
    outputs: int | None

    def __call__(self, images: Tensor) -> Tensor:
        import torch

        return torch.from_numpy(self.answer(images.numpy()))

    def answer(self, images: Array) -> Array:
        """Compute float32 logits (B, K) of images (B, C, height, width) in float32, for any B.

        If the graph has a second output, the features, the result is (B, K + D).

        Raises:
            VitkitError: the runtime fails, or returns a result of another shape.
        """
        if self.batch is None:
            return self._answer(np.ascontiguousarray(images))
        missing = np.zeros((-len(images) % self.batch, *images.shape[1:]), np.float32)
        whole = np.concatenate([images, missing])
        pieces = (whole[start : start + self.batch] for start in range(0, len(whole), self.batch))
        return np.concatenate(list(map(self._answer, pieces)))[: len(images)]

    def _answer(self, images: Array) -> Array:
        """Call `_run`, and convert an error of the runtime to a `VitkitError` of one line."""
        try:
            logits = self._run(images)
        except VitkitError:
            raise
        except Exception as error:  # the types of errors depend on the runtime
            raise VitkitError(
                f"the backend {self.backend} cannot compute images of shape {images.shape}: {first_line(error)}"
            ) from error
        if logits.shape != (len(images), self.outputs or logits.shape[-1]):
            raise VitkitError(
                f"the backend {self.backend} must return logits of shape ({len(images)}, {self.outputs or 'classes'}), "
                f"not {logits.shape}"
            )
        return logits

    def _run(self, images: Array) -> Array:
        """Compute one contiguous batch (batch, C, height, width) -> (batch, K)."""
        raise NotImplementedError


def side_by_side(results: Sequence[Array]) -> Array:
    """Join logits (B, K) and features (B, D), if there are any, to (B, K + D)."""
    return results[0] if len(results) == 1 else np.concatenate(results, axis=1)


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
            raise VitkitError("OpenVINO is not installed: pip install 'vitkit[export]'") from error
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
