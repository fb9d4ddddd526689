"""Biases of the attention's logits by how far apart two patches are: a table of them, or an MLP of the offset.

Shapes: H heads, N tokens, P patches of a grid (h, w), n of the tokens asked for, O offsets: (2h - 1) (2w - 1).
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.config import ViTConfig
from vitkit.model.config_checks import Pair

_OF_TOKEN = 3  # from the class token to a patch, from a patch to it, and its own


class OffsetBias(nn.Module):
    """What is added to the logits depends on the offset alone, not on the tokens."""

    def bias(self, n: int) -> Tensor:
        """What is added to the logits of the first n tokens' queries: (H, n, N)."""
        raise NotImplementedError

    def forward(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG002
        """q and k as they are, and the bias (1, H, n, N)."""
        return q, k, self.bias(q.shape[-2]).to(q.dtype).unsqueeze(0)


class BiasTable(OffsetBias):
    """A learned number for each offset and head (BEiT, arXiv 2106.08254; Swin, arXiv 2103.14030, sec. 3.2).

    Key: table (O, H), with three more rows where there is a class token.
    """

    index: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.grid, self.prefix_tokens = config.grid, config.prefix_tokens
        self.table = nn.Parameter(torch.zeros(_offsets(self.grid) + _OF_TOKEN * self.prefix_tokens, config.heads))
        self.rebuild_tables(self.table)

    def rebuild_tables(self, like: Tensor) -> None:
        """Compute the fixed index anew, on this tensor's device, after the model left the meta device."""
        index = offset_index(self.grid)  # (P, P)
        if self.prefix_tokens:
            to, back, own = (_offsets(self.grid) + i for i in range(_OF_TOKEN))
            index = F.pad(F.pad(index, (0, 0, 1, 0), value=to), (1, 0, 0, 0), value=back)  # (N, N)
            index[0, 0] = own
        self.register_buffer("index", index.to(like.device), persistent=False)

    def bias(self, n: int) -> Tensor:
        return self.table[self.index[:n]].permute(2, 0, 1)


class BiasMLP(OffsetBias):
    """The bias as a small MLP of the offset's logarithm, for any grid (Swin V2, arXiv 2111.09883, sec. 3.3).

    A class token has none. Keys: mlp.fc1 (R, 2), mlp.fc2 (H, R).
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
        """Compute offsets and index anew, on this tensor's device, after the model left the meta device."""
        h, w = (torch.arange(1 - side, side, dtype=torch.float64) for side in self.grid)
        offsets = torch.cartesian_prod(h, w).view(-1, 2)  # (O, 2)
        offsets = offsets.sign() * (1 + offsets.abs()).log()
        self.register_buffer("offsets", offsets.to(like.device, like.dtype), persistent=False)
        self.register_buffer("index", offset_index(self.grid).to(like.device), persistent=False)

    def bias(self, n: int) -> Tensor:
        ahead = self.prefix_tokens
        by_offset = self.mlp(self.offsets)  # (O, H)
        rows = max(n - ahead, 0)
        return F.pad(by_offset[self.index[:rows]].permute(2, 0, 1), (ahead, 0, min(ahead, n), 0))


def _offsets(grid: Pair) -> int:
    return (2 * grid[0] - 1) * (2 * grid[1] - 1)


def offset_index(grid: Pair) -> Tensor:
    """(P, P): which of the offsets, row by row, lies between two patches."""
    h, w = grid
    places = torch.cartesian_prod(torch.arange(h), torch.arange(w)).view(-1, 2)  # (P, 2)
    apart = places[:, None] - places[None, :] + torch.tensor([h - 1, w - 1])  # (P, P, 2), from 0
    return apart[..., 0] * (2 * w - 1) + apart[..., 1]
