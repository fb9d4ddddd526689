"""Rotary positions of a model's double: turning two features is one product of complex numbers, a third of the time."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitkit.model.rotary import Rotary, Turn


class PairTurn(NamedTuple):
    """As `rotary.Turn` of features that turn with the next.

    Attributes:
        by: (N, D_h / 2) complex64, or (H, N, D_h / 2) where heads turn differently.
    """

    by: Tensor

    def __call__(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor, None]:  # noqa: ARG002
        """q (B, H, n, D_h) of the first n tokens and k (B, H, N, D_h), both turned; nothing is added to the logits."""
        return self.turned(q), self.turned(k), None

    def turned(self, x: Tensor) -> Tensor:
        """(B, H, n, D_h), of the first n tokens -> the same shape and type."""
        pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))  # (B, H, n, D_h / 2)
        return torch.view_as_real(pairs * self.by[..., : x.shape[-2], :]).flatten(-2).to(x.dtype)


class PreparedRotary(nn.Module):
    """How each layer turns q and k, computed once.

    Args:
        rope: of the model; stays as it is.
        layers: of the model.
    """

    def __init__(self, rope: Rotary, layers: int) -> None:
        super().__init__()
        shared: dict[int, Turn | PairTurn] = {}  # by the table, which most have for all layers
        turns = [rope(layer) for layer in range(layers)]
        self.turns = [shared.setdefault(id(turn.cos), _of_pairs(turn)) for turn in turns]

    def forward(self, layer: int) -> Turn | PairTurn:
        """How a layer turns q and k."""
        return self.turns[layer]


def _of_pairs(turn: Turn) -> Turn | PairTurn:
    return turn if turn.by_halves else PairTurn(torch.complex(turn.cos[..., ::2].float(), turn.sin[..., 1::2].float()))
