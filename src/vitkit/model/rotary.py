"""Rotary positions: q and k are turned by angles that grow with their patch's place (RoFormer, arXiv 2104.09864).

The product of a turned q and a turned k depends on how far apart the two are, so that positions are relative and need
no table. On a grid half of the angles go by the row and half by the column ("axial"), or by both in proportions that
are learned ("mixed", arXiv 2403.13298). Tokens ahead of the patches are not turned.

Shapes: B batch, H heads, N tokens, P patches, n of the tokens asked for, D_h head size, L layers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.config import ViTConfig


class Turn(NamedTuple):
    """How one layer turns its q and k.

    Attributes:
        cos, sin: of the angle of each feature, (N, D_h), or (H, N, D_h) where heads turn differently; the sine of the
            first of two that turn together is negative.
        by_halves: whether feature i turns with i + D_h / 2; else the even ones with the next.
    """

    cos: Tensor
    sin: Tensor
    by_halves: bool

    def __call__(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor, None]:  # noqa: ARG002
        """q (B, H, n, D_h) of the first n tokens and k (B, H, N, D_h), both turned; nothing is added to the logits."""
        return self.turned(q), self.turned(k), None

    def turned(self, x: Tensor) -> Tensor:
        """(B, H, n, D_h), of the first n tokens -> the same shape and type."""
        n = x.shape[-2]
        if x.is_cpu and not (torch.is_grad_enabled() or torch.compiler.is_compiling()):
            return self._as_complex(x)
        if self.by_halves:
            first, second = x.chunk(2, dim=-1)  # (B, H, n, D_h / 2)
            across = torch.cat([second, first], dim=-1)
        else:
            across = x.view(*x.shape[:-1], -1, 2).flip(-1).flatten(-2)
        return (x * self.cos[..., :n, :] + across * self.sin[..., :n, :]).to(x.dtype)

    def _as_complex(self, x: Tensor) -> Tensor:
        """The same by products of complex numbers, in a third of the time; always with pairs side by side.

        Where halves turn, the features come in another order, in q and k alike, which changes none of their products.
        """
        n, D_h = x.shape[-2:]
        a, b = (slice(D_h // 2), slice(D_h // 2, D_h)) if self.by_halves else (slice(0, D_h, 2), slice(1, D_h, 2))
        dtype = torch.promote_types(self.cos.dtype, torch.float32)  # there are no complex numbers of bfloat16
        by = torch.complex(self.cos[..., :n, a].to(dtype), self.sin[..., :n, b].to(dtype))  # (n, D_h / 2)
        if self.by_halves:
            pairs = torch.complex(x[..., a].to(dtype), x[..., b].to(dtype))
        else:
            pairs = torch.view_as_complex(x.to(dtype).view(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * by).flatten(-2).to(x.dtype)


class Rotary(nn.Module):
    """The angles of every layer. Key, where they are learned: freqs (2, L, H, D_h / 2), by column and by row."""

    cos: Tensor
    sin: Tensor
    places: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.freqs: nn.Parameter | None = None
        if config.rotary == "mixed":
            self.freqs = nn.Parameter(torch.zeros(2, config.layers, config.heads, config.head_size // 2))
        self.rebuild_tables(torch.empty(0))

    def rebuild_tables(self, like: Tensor) -> None:
        """Compute the fixed tables anew, on this tensor's device, after the model left the meta device."""
        dtype = torch.promote_types(like.dtype, torch.float32)  # angles of many turns, rounded, would be others
        places = places_of(self.config)
        if self.freqs is None:
            angles = F.pad(axial_angles(self.config, places), (0, 0, self.config.prefix_tokens, 0))  # (N, D_h / 2)
            turn = self._turn(angles)
            self.register_buffer("cos", turn.cos.to(like.device, dtype), persistent=False)
            self.register_buffer("sin", turn.sin.to(like.device, dtype), persistent=False)
        else:
            self.register_buffer("places", places.to(like.device, dtype), persistent=False)

    def forward(self, layer: int) -> Turn:
        """How a layer turns q and k."""
        if self.freqs is None:
            return Turn(self.cos, self.sin, self.config.rotary == "dinov3")
        x, y = self.freqs[:, layer, :, None].to(self.places.dtype)  # (H, 1, D_h / 2)
        angles = self.places[:, 1, None] * x + self.places[:, 0, None] * y  # (H, P, D_h / 2)
        angles = F.pad(angles, (0, 0, self.config.prefix_tokens, 0))
        return self._turn(angles)

    def _turn(self, angles: Tensor) -> Turn:
        """(..., D_h / 2) the angle of each two features that turn together."""
        cos, sin = angles.cos(), angles.sin()
        if self.config.rotary == "dinov3":
            return Turn(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1), by_halves=True)
        return Turn(cos.repeat_interleave(2, dim=-1), torch.stack([-sin, sin], dim=-1).flatten(-2), by_halves=False)

    @torch.no_grad()
    def initialise(self) -> None:
        """Learned frequencies begin as two axes at right angles, turned at random in each head (arXiv 2403.13298)."""
        if self.freqs is None:
            return
        _, L, H, pairs = self.freqs.shape
        falling = _frequencies(pairs // 2, self.config.rotary_base).to(self.freqs)  # (D_h / 4)
        turn = 2 * math.pi * torch.rand(L, H, 1, device=self.freqs.device)
        turn = torch.stack([turn, turn + math.pi / 2])  # of either axis: (2, L, H, 1)
        self.freqs[0] = torch.cat([*(falling * turn.cos())], dim=-1)
        self.freqs[1] = torch.cat([*(falling * turn.sin())], dim=-1)


def places_of(config: ViTConfig) -> Tensor:
    """(P, 2) float64: row and column of each patch, in the units that angles are proportional to.

    Patches are counted; `rotary_grid` stretches the count to that grid, so that images of every size span what the
    model was trained on (EVA-02, arXiv 2303.11331). DINOv3 has the centres of patches between -1 and 1 instead
    (arXiv 2508.10104).
    """
    axes = []
    for axis, side in enumerate(config.grid):
        count = torch.arange(side, dtype=torch.float64)
        if config.rotary == "dinov3":
            axes.append(2 * (count + 0.5) / side - 1)
        else:
            wanted = side if config.rotary_grid is None else config.rotary_grid[axis]
            axes.append((count + config.rotary_offset) / side * wanted)
    return torch.cartesian_prod(*axes).view(-1, 2)


def axial_angles(config: ViTConfig, places: Tensor) -> Tensor:
    """(P, 2) places -> (P, D_h / 2) float64: of one axis with falling frequencies, then of the other."""
    frequencies = _frequencies(config.head_size // 4, config.rotary_base)  # (D_h / 4)
    if config.rotary == "dinov3":
        frequencies = 2 * math.pi * frequencies
    order = places.flip(-1) if config.rotary == "axial" else places  # the column first, or the row
    return (order[:, :, None] * frequencies).flatten(1)


def _frequencies(number: int, base: float) -> Tensor:
    return base ** -(torch.arange(number, dtype=torch.float64) / number)
