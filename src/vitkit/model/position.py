"""Position embeddings beyond the learned table: 2-D, sinusoids and relative attention (paper, app. D.4).

Shapes: N tokens, D hidden size, h x w patch grid.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.config import ViTConfig
from vitkit.model.relative import BiasMLP, BiasTable

# Positions that act inside attention: q (B, H, n, D_h), k (B, H, N, D_h) and the scale of their products -> q and k
# as they are to be multiplied, and what is added to the scaled products, broadcast to (B, H, n, N).
Relative = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor, Tensor | None]]


def sincos_1d(positions: int, dim: int) -> Tensor:
    """Fixed sinusoids over a sequence, sines first, then cosines ("Attention is All You Need", sec. 3.5).

    Returns:
        (positions, dim) float32; dim is even.
    """
    return _sincos(torch.arange(positions, dtype=torch.float64), dim)


def sincos_2d(grid: tuple[int, int], dim: int) -> Tensor:
    """Fixed sinusoids over a grid: the first half of the features encodes the column, the second the row.

    The order is that of MoCo v3 and MAE (arXiv 2111.06377), whose checkpoints hold this very table.

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
    """Learned halves for row and column, concatenated (app. D.4). Prefix tokens have no place in the grid: zeros.

    Keys: y (tables, h, D/2), x (tables, w, D/2).
    """

    def __init__(self, config: ViTConfig, tables: int) -> None:
        super().__init__()
        self.prefix_tokens = config.prefix_tokens
        self.y = nn.Parameter(torch.zeros(tables, config.grid[0], config.hidden_size // 2))
        self.x = nn.Parameter(torch.zeros(tables, config.grid[1], config.hidden_size // 2))

    def forward(self, table: int) -> Tensor:
        """The positions of one table, (N, D)."""
        y, x = self.y[table], self.x[table]  # (h, D/2), (w, D/2)
        grid = torch.cat([y[:, None].expand(-1, len(x), -1), x[None, :].expand(len(y), -1, -1)], dim=-1)  # (h, w, D)
        return F.pad(grid.flatten(0, 1), (0, 0, self.prefix_tokens, 0))


class Sinusoids(nn.Module):
    """The fixed table: `sincos_1d` over the sequence, or `sincos_2d` over the grid and zeros for prefix tokens."""

    table: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.rebuild_tables(torch.empty(0))

    def rebuild_tables(self, like: Tensor) -> None:
        """Compute the fixed table anew, of this tensor's device and dtype, after the model left the meta device."""
        config = self.config
        if config.position == "sincos_1d":
            table = sincos_1d(config.tokens, config.hidden_size)
        else:
            table = F.pad(sincos_2d(config.grid, config.hidden_size), (0, 0, config.prefix_tokens, 0))
        self.register_buffer("table", table.to(like), persistent=False)

    def forward(self, table: int) -> Tensor:  # noqa: ARG002  # every layer has the same
        """The positions, (N, D)."""
        return self.table


class RelativePosition(nn.Module):
    """Relative attention's extra logits: query times the embedding of the offset between query and key (app. D.4).

    The offsets run over the 1-D sequence, class token included; the embeddings are shared by the heads.
    """

    index: Tensor

    def __init__(self, tokens: int, head_size: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.table = nn.Parameter(torch.zeros(2 * tokens - 1, head_size))
        self.rebuild_tables(self.table)

    def rebuild_tables(self, like: Tensor) -> None:
        """Compute the fixed index anew, on this tensor's device, after the model left the meta device."""
        sequence = torch.arange(self.tokens, device=like.device)
        offsets = sequence[:, None] - sequence[None, :] + self.tokens - 1  # p_q - p_k, made a row of the table: (N, N)
        self.register_buffer("index", offsets, persistent=False)

    def forward(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        """q and k as they are, and the logits (B, H, n, N) of q (B, H, n, D_h), the first n tokens' queries."""
        return q, k, scale * self.logits(q)

    def logits(self, q: Tensor) -> Tensor:
        """(B, H, n, D_h) -> (B, H, n, N), not yet scaled."""
        B, H, n, _ = q.shape
        by_offset = q @ self.table.to(q.dtype).t()  # (B, H, n, 2N-1)
        return by_offset.gather(-1, self.index[:n].expand(B, H, n, self.tokens))


def build_positions(config: ViTConfig) -> tuple[nn.Parameter | Learned2D | Sinusoids | None, nn.ModuleList | None]:
    """What is added to the tokens, and what is added to the attention logits (app. D.4)."""
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
