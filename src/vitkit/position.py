"""Position embeddings beyond the learned table: sinusoids and relative attention (paper, app. D.4).

Shapes: N tokens, D hidden size, h x w patch grid.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


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


class RelativePosition(nn.Module):
    """Relative attention's extra logits: query times the embedding of the offset between query and key (app. D.4).

    The offsets run over the 1-D sequence, class token included; the embeddings are shared by the heads.
    """

    index: Tensor

    def __init__(self, tokens: int, head_size: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.table = nn.Parameter(torch.zeros(2 * tokens - 1, head_size))
        self.rebuild_tables()

    def rebuild_tables(self) -> None:
        """Compute the fixed index anew on the parameters' device, after the module left the meta device."""
        sequence = torch.arange(self.tokens, device=self.table.device)
        offsets = sequence[:, None] - sequence[None, :] + self.tokens - 1  # p_q - p_k, made a row of the table: (N, N)
        self.register_buffer("index", offsets, persistent=False)

    def forward(self, q: Tensor) -> Tensor:
        """(B, H, n, D_h) queries of the first n tokens -> (B, H, n, N) logits, not yet scaled."""
        B, H, n, _ = q.shape
        by_offset = q @ self.table.to(q.dtype).t()  # (B, H, n, 2N-1)
        return by_offset.gather(-1, self.index[:n].expand(B, H, n, self.tokens))
