"""Small layers that the model is built with."""

from __future__ import annotations

from torch import Tensor, nn


class DropPath(nn.Module):
    """Stochastic depth (arXiv 1603.09382): drops a residual branch for whole samples, keeping the expectation."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate  # a Python float, so that a model can be built on the meta device

    def forward(self, x: Tensor) -> Tensor:
        if self.rate == 0.0 or not self.training:
            return x
        keep = 1.0 - self.rate
        mask = x.new_empty(x.shape[0], *[1] * (x.ndim - 1)).bernoulli_(keep)  # (B, 1, 1)
        return x * mask / keep

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3f}"
