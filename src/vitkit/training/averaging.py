"""The average of the weights that becomes the model: an exponential one of all steps (EMA), or one of epochs (SWA).

The average begins with the weights of its first update, never with those of before the training, and its decay warms
up, so that a short run is not mostly its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from vitkit.model.vit import VisionTransformer
from vitkit.training.recipe import Recipe


def ema_decay(updates: int, limit: float) -> float:
    """How much of the average stays after so many earlier updates: (1 + n) / (10 + n) while that is below the limit."""
    return min(limit, (1 + updates) / (10 + updates))


class Average(nn.Module):
    """A running average of a model's weights, on the model's device; its state is in the checkpoint.

    Args:
        model: whose weights are averaged; it is copied.
        recipe: `ema`, else the equal mean that stochastic weight averaging takes.
    """

    def __init__(self, model: VisionTransformer, recipe: Recipe) -> None:
        super().__init__()
        self._limit = recipe.ema
        self.averaged = AveragedModel(model, multi_avg_fn=self._approach if recipe.ema else None)
        for parameter in self.averaged.parameters():
            parameter.requires_grad = False

    @property
    def has_begun(self) -> bool:
        return bool(self.averaged.n_averaged > 0)

    @property
    def model(self) -> VisionTransformer:
        """The model with the averaged weights."""
        return cast(VisionTransformer, self.averaged.module)

    def update(self, model: VisionTransformer) -> None:
        """Take in the model's weights as they are now."""
        self.averaged.update_parameters(model)

    @torch.no_grad()
    def _approach(self, averages: Sequence[Tensor], weights: Sequence[Tensor], updates: Tensor | int) -> None:
        torch._foreach_lerp_(list(averages), list(weights), 1 - ema_decay(int(updates), self._limit))
