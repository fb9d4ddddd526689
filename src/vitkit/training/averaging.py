"""The average of the weights that becomes the model: an exponential one of all steps (EMA), or one of epochs (SWA).

The average begins with the weights of its first update, never with those of before the training, and its decay warms
up, so that a short run is not mostly its beginning. What batch norms remember is averaged as the weights are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from vitkit.model.network import Network
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

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        self._limit = recipe.ema
        has_statistics = any(True for _ in model.buffers()) and isinstance(model, Network)
        approach = self._approach if recipe.ema else self._mean if has_statistics else None
        self.averaged = AveragedModel(model, multi_avg_fn=approach, use_buffers=has_statistics)
        for parameter in self.averaged.parameters():
            parameter.requires_grad = False

    @property
    def has_begun(self) -> bool:
        return bool(self.averaged.n_averaged > 0)

    @property
    def model(self) -> nn.Module:
        """The model with the averaged weights."""
        return self.averaged.module

    def update(self, model: nn.Module) -> None:
        """Take in the model's weights as they are now."""
        self.averaged.update_parameters(model)

    @torch.no_grad()
    def _approach(self, averages: Sequence[Tensor], weights: Sequence[Tensor], updates: Tensor | int) -> None:
        _approach(averages, weights, 1 - ema_decay(int(updates), self._limit))

    @torch.no_grad()
    def _mean(self, averages: Sequence[Tensor], weights: Sequence[Tensor], updates: Tensor | int) -> None:
        _approach(averages, weights, 1 / (int(updates) + 1))


def _approach(averages: Sequence[Tensor], values: Sequence[Tensor], part: float) -> None:
    """Bring averages nearer to the values; counters become the latest ones."""
    if averages[0].is_floating_point():
        torch._foreach_lerp_(list(averages), list(values), part)
        return
    for average, value in zip(averages, values, strict=True):
        average.copy_(value)
