"""The base of runners whose graph is computed outside PyTorch, and the import of OpenVINO. Does not import PyTorch."""

from __future__ import annotations

import sys
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
    """A `Runner` that can also take and return numpy arrays.

    Attributes:
        batch: the only number of images that the graph takes; None for any.
        outputs: number of logits; None where the graph does not say.
    """

    backend: str
    precision: str
    is_concurrent = False
    merged = 0
    plan = ""
    batch: int | None
    outputs: int | None

    def __call__(self, images: Tensor) -> Tensor:
        import torch

        return torch.from_numpy(self.answer(images.numpy()))

    def answer(self, images: Array) -> Array:
        """(B, C, height, width) float32 -> (B, K) float32 logits, for any B.

        Raises:
            VitkitError: the runtime cannot compute it, or answers something else.
        """
        if self.batch is None:
            return self._answer(np.ascontiguousarray(images))
        missing = np.zeros((-len(images) % self.batch, *images.shape[1:]), np.float32)
        whole = np.concatenate([images, missing])
        pieces = (whole[start : start + self.batch] for start in range(0, len(whole), self.batch))
        return np.concatenate(list(map(self._answer, pieces)))[: len(images)]

    def _answer(self, images: Array) -> Array:
        """Call `_run`, and turn an error of the runtime into one line."""
        try:
            logits = self._run(images)
        except VitkitError:
            raise
        except Exception as error:  # each runtime has its own kinds
            raise VitkitError(
                f"the backend {self.backend} cannot compute {images.shape}: {first_line(error)}"
            ) from error
        if logits.shape != (len(images), self.outputs or logits.shape[-1]):
            raise VitkitError(f"the backend {self.backend} answers {logits.shape} for {len(images)} images")
        return logits

    def _run(self, images: Array) -> Array:
        """(batch, C, height, width), contiguous -> (batch, K)."""
        raise NotImplementedError


def import_openvino() -> Any:
    """Import the package without the telemetry that its import would send.

    Raises:
        VitkitError: it is not installed.
    """
    if sys.modules.get("openvino") is None:
        there = sys.modules.get(_TELEMETRY, _ABSENT)
        sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # as if it were not installed
        try:
            # The first conversion to numpy's types initialises a static: two threads that do so at once wait for one
            # another without end, one holding Python's lock and one the static's.
            import_module("openvino").Type.f32.to_dtype()
        except ImportError as error:
            raise VitkitError("OpenVINO is not installed: pip install 'vitkit[export]'") from error
        finally:
            del sys.modules[_TELEMETRY]
            if there is not _ABSENT:
                sys.modules[_TELEMETRY] = there  # type: ignore[assignment]
    return import_module("openvino")
