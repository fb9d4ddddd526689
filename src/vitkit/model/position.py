"""Position embeddings beyond the learned table: 2-D, sinusoids, relative and rotary (paper, app. D.4, and later work).

Relative positions are biases of the attention logits that depend on the offset between two patches: a table of biases,
or an MLP of the offset.

Rotary positions rotate q and k by angles that grow with the position of the patch (RoFormer, arXiv 2104.09864). The
product of a rotated q and a rotated k depends only on their offset, so positions are relative and need no table. On a
grid, there are two ways. With "axial", half of the angles depend on the row and half on the column. With "mixed" (arXiv
2403.13298), each angle depends on both, in learned proportions. Prefix tokens are not rotated.

Shapes: B batch, H heads, N tokens, n leading tokens that are queries, P patches of a grid (h, w), D hidden size, D_h
head size, L layers, O offsets: (2h - 1) (2w - 1).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.config import Pair, ViTConfig

_CLASS_TOKEN_BIASES = 3  # biases of the class token: to a patch, from a patch, and to itself


class OffsetBias(nn.Module):
    """The base class of biases of the attention logits that depend only on the offset between two patches."""

    def bias(self, n: int) -> Tensor:
        """Return the bias of the logits for the queries of the first n tokens: (H, n, N)."""
        raise NotImplementedError

    def forward(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG002
        """Return q and k unchanged, and the bias (1, H, n, N)."""
        return q, k, self.bias(q.shape[-2]).to(q.dtype).unsqueeze(0)


class BiasTable(OffsetBias):
    """A learned bias for each offset and head (BEiT, arXiv 2106.08254; Swin, arXiv 2103.14030, sec. 3.2).

    Parameter: table (O, H), with three more rows if there is a class token.
    """

    index: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.grid, self.prefix_tokens = config.grid, config.prefix_tokens
        rows = _count_offsets(self.grid) + _CLASS_TOKEN_BIASES * self.prefix_tokens
        self.table = nn.Parameter(torch.zeros(rows, config.heads))
        self.rebuild_tables(self.table)

    def rebuild_tables(self, like: Tensor) -> None:
        """Recompute the fixed index on the device of `like`, after the model left the meta device."""
        index = offset_index(self.grid)  # (P, P)
        if self.prefix_tokens:
            to_patch, from_patch, to_itself = (_count_offsets(self.grid) + i for i in range(_CLASS_TOKEN_BIASES))
            index = F.pad(F.pad(index, (0, 0, 1, 0), value=to_patch), (1, 0, 0, 0), value=from_patch)  # (N, N)
            index[0, 0] = to_itself
        self.register_buffer("index", index.to(like.device), persistent=False)

    def bias(self, n: int) -> Tensor:
        return self.table[self.index[:n]].permute(2, 0, 1)


class BiasMLP(OffsetBias):
    """A bias that a small MLP computes from the log of the offset, for any grid (Swin V2, arXiv 2111.09883, sec. 3.3).

    A class token has no bias. Parameters: mlp.fc1 (R, 2), mlp.fc2 (H, R), where R is `ViTConfig.relative_size`.
    """

    index: Tensor
    offsets: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.grid, self.prefix_tokens = config.grid, config.prefix_tokens
        fc1, fc2 = nn.Linear(2, config.relative_size), nn.Linear(config.relative_size, config.heads)
        self.mlp = nn.Sequential(OrderedDict[str, nn.Module](fc1=fc1, act=nn.ReLU(), fc2=fc2))
        self.rebuild_tables(fc1.weight)

    def rebuild_tables(self, like: Tensor) -> None:
        """Recompute the fixed offsets and index on the device of `like`, after the model left the meta device."""
        h, w = (torch.arange(1 - side, side, dtype=torch.float64) for side in self.grid)
        offsets = torch.cartesian_prod(h, w).view(-1, 2)  # (O, 2)
        offsets = offsets.sign() * (1 + offsets.abs()).log()
        self.register_buffer("offsets", offsets.to(like.device, like.dtype), persistent=False)
        self.register_buffer("index", offset_index(self.grid).to(like.device), persistent=False)

    def bias(self, n: int) -> Tensor:
        P = self.prefix_tokens
        by_offset = self.mlp(self.offsets)  # (O, H)
        of_patches = by_offset[self.index[: max(n - P, 0)]].permute(2, 0, 1)
        return F.pad(of_patches, (P, 0, min(P, n), 0))  # zeros for the prefix tokens, as keys and as queries


def _count_offsets(grid: Pair) -> int:
    return (2 * grid[0] - 1) * (2 * grid[1] - 1)


def offset_index(grid: Pair) -> Tensor:
    """Return, for each pair of patches, the index of their offset in the row-major list of all offsets: (P, P)."""
    h, w = grid
    coordinates = torch.cartesian_prod(torch.arange(h), torch.arange(w)).view(-1, 2)  # (P, 2)
    offsets = coordinates[:, None] - coordinates[None, :] + torch.tensor([h - 1, w - 1])  # (P, P, 2), from 0
    return offsets[..., 0] * (2 * w - 1) + offsets[..., 1]


# Positions that act inside attention: a function of q (B, H, n, D_h), k (B, H, N, D_h) and the scale of their products.
# It returns q, k, and what is added to the scaled products, with a shape that broadcasts to (B, H, n, N).
Relative = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor, Tensor | None]]


def sincos_1d(positions: int, dim: int) -> Tensor:
    """Return fixed sinusoids over a sequence ("Attention is All You Need", sec. 3.5).

    The first half of the features are sines, the second half cosines.

    Returns:
        (positions, dim) float32; dim is even.
    """
    return _sincos(torch.arange(positions, dtype=torch.float64), dim)


def sincos_2d(grid: tuple[int, int], dim: int) -> Tensor:
    """Return fixed sinusoids over a grid: the first half of the features encodes the column, the second the row.

    The order of the features is that of MoCo v3 and MAE (arXiv 2111.06377), whose checkpoints contain this table.

    Returns:
        (h * w, dim) float32, row by row; dim is divisible by 4.
    """
    h, w = grid
    rows, columns = torch.meshgrid(
        torch.arange(h, dtype=torch.float64), torch.arange(w, dtype=torch.float64), indexing="ij"
    )
    return torch.cat([_sincos(columns.flatten(), dim // 2), _sincos(rows.flatten(), dim // 2)], dim=1)


def _sincos(positions: Tensor, dim: int) -> Tensor:
    frequencies = 10000.0 ** -(torch.arange(dim // 2, dtype=torch.float64) / (dim // 2))
    angles = torch.outer(positions, frequencies)  # (N, D/2)
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


class Learned2D(nn.Module):
    """Learned embeddings of row and column, D/2 features each, which are concatenated (app. D.4).

    The position embeddings of prefix tokens are zeros. Parameters: y (tables, h, D/2), x (tables, w, D/2). `tables` is
    the number of layers if each layer adds its own positions, and otherwise 1.
    """

    def __init__(self, config: ViTConfig, tables: int) -> None:
        super().__init__()
        self.prefix_tokens = config.prefix_tokens
        self.y = nn.Parameter(torch.zeros(tables, config.grid[0], config.hidden_size // 2))
        self.x = nn.Parameter(torch.zeros(tables, config.grid[1], config.hidden_size // 2))

    def forward(self, table: int) -> Tensor:
        """Return the position embeddings of the table with this index: (N, D)."""
        y, x = self.y[table], self.x[table]  # (h, D/2), (w, D/2)
        rows = y[:, None].expand(-1, len(x), -1)  # (h, w, D/2)
        columns = x[None, :].expand(len(y), -1, -1)
        grid = torch.cat([rows, columns], dim=-1)  # (h, w, D)
        return F.pad(grid.flatten(0, 1), (0, 0, self.prefix_tokens, 0))


class Sinusoids(nn.Module):
    """Fixed sinusoids: `sincos_1d` of the sequence, or `sincos_2d` of the patch grid and zeros for prefix tokens."""

    table: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.rebuild_tables(torch.empty(0))

    def rebuild_tables(self, like: Tensor) -> None:
        """Recompute the fixed table on the device and in the dtype of `like`, after the model left the meta device."""
        config = self.config
        if config.position == "sincos_1d":
            table = sincos_1d(config.tokens, config.hidden_size)
        else:
            table = F.pad(sincos_2d(config.grid, config.hidden_size), (0, 0, config.prefix_tokens, 0))
        self.register_buffer("table", table.to(like), persistent=False)

    def forward(self, table: int) -> Tensor:  # noqa: ARG002  # all layers have the same
        """Return the position embeddings, which are the same for all layers: (N, D)."""
        return self.table


class RelativePosition(nn.Module):
    """Relative attention: adds the product of the query and a learned embedding of the offset to each logit (app. D.4).

    An offset is the position of the query minus that of the key in the 1-D sequence, which includes the class token.
    All heads share the embeddings.
    """

    index: Tensor

    def __init__(self, tokens: int, head_size: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.table = nn.Parameter(torch.zeros(2 * tokens - 1, head_size))
        self.rebuild_tables(self.table)

    def rebuild_tables(self, like: Tensor) -> None:
        """Recompute the fixed index on the device of `like`, after the model left the meta device."""
        sequence = torch.arange(self.tokens, device=like.device)
        index = sequence[:, None] - sequence[None, :] + self.tokens - 1  # offset -> row of the table: (N, N)
        self.register_buffer("index", index, persistent=False)

    def forward(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (B, H, n, D_h) and k unchanged, and the values to add to the logits, (B, H, n, N)."""
        B, H, n, _ = q.shape
        by_offset = q @ self.table.to(q.dtype).t()  # (B, H, n, 2N-1)
        return q, k, scale * by_offset.gather(-1, self.index[:n].expand(B, H, n, self.tokens))


def build_positions(config: ViTConfig) -> tuple[nn.Parameter | Learned2D | Sinusoids | None, nn.ModuleList | None]:
    """Create the positions that are added to tokens, and the positions that are added to attention logits (app. D.4).

    Either is None if the configuration has none. Rotary positions are not included; see `Rotary`.
    """
    tables = config.layers if config.position_at == "every_layer" else 1
    if config.position == "relative":
        return None, nn.ModuleList(RelativePosition(config.tokens, config.head_size) for _ in range(tables))
    if config.position in ("relative_bias", "relative_mlp"):
        kind = BiasTable if config.position == "relative_bias" else BiasMLP
        return None, nn.ModuleList(kind(config) for _ in range(tables))
    if config.position == "learned_1d":
        return nn.Parameter(torch.zeros(tables, config.positioned_prefix + config.patches, config.hidden_size)), None
    if config.position == "learned_2d":
        return Learned2D(config, tables), None
    return (None if config.position == "none" else Sinusoids(config)), None


class Rotation(NamedTuple):
    """The rotation of q and k in one layer.

    Attributes:
        cos, sin: cosine and sine of each feature's angle, (N, D_h), or (H, N, D_h) if heads differ. The sine of the
            first feature of a pair is negative.
        by_halves: whether feature i is paired with i + D_h / 2; otherwise feature 2i is paired with 2i + 1.
    """

    cos: Tensor
    sin: Tensor
    by_halves: bool

    def __call__(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor, None]:  # noqa: ARG002
        """Rotate q (B, H, n, D_h) of the first n tokens, and k (B, H, N, D_h) of all tokens.

        Returns:
            The rotated q, the rotated k, and None, because there is no bias of the attention logits.
        """
        return self.rotate(q), self.rotate(k), None

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate x (B, H, n, D_h) of the first n tokens; shape and dtype stay the same."""
        n = x.shape[-2]
        if self.by_halves:
            first, second = torch.split(x, int(x.shape[-1]) // 2, dim=-1)  # (B, H, n, D_h / 2)
            swapped = torch.cat([second, first], dim=-1)
        else:
            swapped = x.view(*x.shape[:-1], -1, 2).flip(-1).flatten(-2)
        return (x * self.cos[..., :n, :] + swapped * self.sin[..., :n, :]).to(x.dtype)


class Rotary(nn.Module):
    """The rotary positions of all layers.

    With "mixed", the frequencies are learned: parameter freqs (2, L, H, D_h / 2). The column of a patch is multiplied
    by freqs[0], and the row by freqs[1].
    """

    cos: Tensor
    sin: Tensor
    coordinates: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.freqs: nn.Parameter | None = None
        if config.rotary == "mixed":
            self.freqs = nn.Parameter(torch.zeros(2, config.layers, config.heads, config.head_size // 2))
        self.rebuild_tables(torch.empty(0))

    def rebuild_tables(self, like: Tensor) -> None:
        """Recompute the fixed tables on the device of `like`, after the model left the meta device."""
        dtype = torch.promote_types(like.dtype, torch.float32)  # large angles would be wrong after rounding

        # The row and column of each patch, (P, 2) float64. The first ones have the number `rotary_offset`. If
        # `rotary_grid` is set, the numbers are stretched to that grid, so that images of every size cover the range
        # that was used in training (EVA-02, arXiv 2303.11331). For DINOv3 (arXiv 2508.10104), the values are the
        # centres of the patches, with image borders at -1 and 1.
        axes = []
        for axis, side in enumerate(self.config.grid):
            numbers = torch.arange(side, dtype=torch.float64)
            if self.config.rotary == "dinov3":
                axes.append(2 * (numbers + 0.5) / side - 1)
            else:
                stretched_side = side if self.config.rotary_grid is None else self.config.rotary_grid[axis]
                axes.append((numbers + self.config.rotary_offset) / side * stretched_side)
        coordinates = torch.cartesian_prod(*axes).view(-1, 2)

        if self.freqs is None:
            frequencies = _frequencies(self.config.head_size // 4, self.config.rotary_base)  # (D_h / 4)
            if self.config.rotary == "dinov3":
                frequencies = 2 * math.pi * frequencies
            if self.config.rotary == "axial":  # the first half of the angles depends on the column, not on the row
                coordinates = coordinates.flip(-1)
            angles = (coordinates[:, :, None] * frequencies).flatten(1)  # (P, D_h / 2) float64
            angles = F.pad(angles, (0, 0, self.config.prefix_tokens, 0))  # (N, D_h / 2)
            cos, sin, _ = self._rotation(angles)
            self.register_buffer("cos", cos.to(like.device, dtype), persistent=False)
            self.register_buffer("sin", sin.to(like.device, dtype), persistent=False)
        else:
            self.register_buffer("coordinates", coordinates.to(like.device, dtype), persistent=False)

    def forward(self, layer: int) -> Rotation:
        """Return the rotation of a layer."""
        if self.freqs is None:
            return Rotation(self.cos, self.sin, self.config.rotary == "dinov3")
        x, y = self.freqs[:, layer, :, None].to(self.coordinates.dtype)  # (H, 1, D_h / 2)
        angles = self.coordinates[:, 1, None] * x + self.coordinates[:, 0, None] * y  # (H, P, D_h / 2)
        angles = F.pad(angles, (0, 0, self.config.prefix_tokens, 0))
        return self._rotation(angles)

    def _rotation(self, angles: Tensor) -> Rotation:
        """Return the rotation by angles (..., D_h / 2), one for each pair of features."""
        cos, sin = angles.cos(), angles.sin()
        if self.config.rotary == "dinov3":
            return Rotation(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1), by_halves=True)
        return Rotation(cos.repeat_interleave(2, dim=-1), torch.stack([-sin, sin], dim=-1).flatten(-2), by_halves=False)

    @torch.no_grad()
    def initialise(self) -> None:
        """Initialise learned frequencies as two perpendicular axes, rotated at random per head (arXiv 2403.13298)."""
        if self.freqs is None:
            return
        _, L, H, pairs = self.freqs.shape
        magnitudes = _frequencies(pairs // 2, self.config.rotary_base).to(self.freqs)  # (D_h / 4)
        direction = 2 * math.pi * torch.rand(L, H, 1, device=self.freqs.device)
        directions = torch.stack([direction, direction + math.pi / 2])  # of both axes: (2, L, H, 1)
        self.freqs[0] = torch.cat([*(magnitudes * directions.cos())], dim=-1)
        self.freqs[1] = torch.cat([*(magnitudes * directions.sin())], dim=-1)


def _frequencies(number: int, base: float) -> Tensor:
    return base ** -(torch.arange(number, dtype=torch.float64) / number)
