"""The base of runners whose graph takes any number of images, or one number only. Nothing here imports PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from vitkit.errors import VitkitError, first_line

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = npt.NDArray[np.float32]


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
