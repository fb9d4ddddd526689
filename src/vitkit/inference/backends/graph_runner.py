"""A runner whose graph takes any number of images, or one number alone."""

from __future__ import annotations

import torch
from torch import Tensor

from vitkit.errors import VitkitError, first_line


class GraphRunner:
    """A runner whose graph takes any number of images, or one number alone.

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
        if self.batch is None:
            return self._answer(images.contiguous())
        missing = images.new_zeros(-len(images) % self.batch, *images.shape[1:])
        whole = torch.split(torch.cat([images, missing]), self.batch)
        return torch.cat([self._answer(piece) for piece in whole])[: len(images)]

    def _answer(self, images: Tensor) -> Tensor:
        """As `_run`, with whatever the runtime raises in a line."""
        try:
            logits = self._run(images)
        except VitkitError:
            raise
        except Exception as error:  # each runtime has its own kinds
            shape = tuple(images.shape)
            raise VitkitError(f"the backend {self.backend} cannot compute {shape}: {first_line(error)}") from error
        if logits.shape != (len(images), self.outputs or logits.shape[-1]):
            raise VitkitError(f"the backend {self.backend} answers {tuple(logits.shape)} for {len(images)} images")
        return logits

    def _run(self, images: Tensor) -> Tensor:
        """(batch, C, height, width), contiguous -> (batch, K)."""
        raise NotImplementedError
