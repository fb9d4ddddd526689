"""A batch in pieces: what does not fit into memory at once gives the same gradient piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError, is_memory_short
from vitkit.system.progress import Say


def add_gradients(parameters: Iterable[nn.Parameter], loss: Tensor) -> None:
    """Add the gradient of a loss to that of the parameters: all of it, or nothing where memory runs out."""
    trained = list(parameters)
    with torch.autocast(loss.device.type, enabled=False):
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
    for parameter, gradient in zip(trained, gradients, strict=True):
        if gradient is not None:
            parameter.grad = _laid_as(parameter, gradient) if parameter.grad is None else parameter.grad.add_(gradient)


def _laid_as(parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    """The gradient with the strides of its parameter, as `backward` leaves it and the optimiser's kernel wants it.

    Convolutions answer images in channels-last order with gradients in that order.
    """
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


class Pieces:
    """How many images are computed at a time; half as many once memory has run out.

    Attributes:
        size: the most images at a time; None while a batch fits as a whole.
    """

    def __init__(self, say: Say) -> None:
        self.size: int | None = None
        self._say = say

    def each(self, images: int, compute: Callable[[slice], None]) -> None:
        """Compute all images of a batch, and whatever memory was too small for again in smaller pieces.

        Args:
            images: in the batch.
            compute: of a slice of the batch. Where it runs out of memory it must leave nothing behind.

        Raises:
            VitkitError: memory is too small for a single image.
        """
        done = 0
        while done < images:
            size = min(self.size or images, images - done)
            if self._fits(compute, slice(done, done + size)):
                done += size
            else:
                self._halve(size, images)

    def _fits(self, compute: Callable[[slice], None], piece: slice) -> bool:
        try:
            compute(piece)
        except (RuntimeError, MemoryError) as error:
            if not is_memory_short(error):
                raise
            return False  # not here: the error holds on to what was computed
        return True

    def _halve(self, size: int, images: int) -> None:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if size == 1:
            raise VitkitError(
                "memory is too small to train on one image at a time: take a smaller --model or --image-size"
            )
        self.size = (size + 1) // 2
        self._say(
            f"out of memory: computing {self.size} images at a time from here on; steps still learn from all {images}"
        )
