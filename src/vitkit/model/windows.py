"""Local attention: within the rows and columns of the patch grid, or within windows of it.

"axial" is the attention of appendix D.6 (Axial-ViT; Ho et al., arXiv 1912.12180, sec. 3; Wang et al., arXiv 2003.07853,
sec. 3.2). In the paper, each block becomes attention within rows and an MLP, followed by attention within columns and
an MLP. Here these are two layers: the first, third, ... layer attends within rows, and the second, fourth, ... layer
within columns. Axial-ViT-B with its 12 blocks therefore has `layers=24`.

"window" is attention within windows that do not overlap (Swin, arXiv 2103.14030, sec. 3.2, without its shift). As in
ViTDet (arXiv 2203.16527, sec. 3), some layers may attend to all patches instead: `global_layers`.

The class token and other prefix tokens belong to no row, column or window. They are global tokens (Longformer, arXiv
2004.05150, sec. 3.1): they attend to all tokens, and all tokens attend to them. A class token can therefore read the
whole image in the last layer. The model of appendix D.6 has no prefix tokens; it is obtained by `pool="gap"` and
`class_token=False`.

If the grid is not divisible by the window, it is padded at the bottom and at the right. Nothing attends to the padding.

Shapes: B batch, H heads, D_h head size, N tokens, n leading tokens whose output is computed, P prefix tokens (which
precede the patches), h x w patch grid, W windows, S patches of a window, including padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.model.config import Pair, ViTConfig

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Windows:
    """The division of one layer's patch grid into windows, within which patches attend to each other.

    Attributes:
        grid: the rows and columns of patches.
        size: the rows and columns of a window, which may be a whole row or column of the grid.
        prefix: the number of tokens that precede the patches.
    """

    grid: Pair
    size: Pair
    prefix: int

    @property
    def windows(self) -> Pair:
        """The numbers of rows and columns of windows that cover the grid."""
        return -(-self.grid[0] // self.size[0]), -(-self.grid[1] // self.size[1])

    @property
    def padding(self) -> Pair:
        """The numbers of rows and columns that are added to the grid, so that windows cover it exactly."""
        (rows, columns), (height, width) = self.windows, self.size
        return rows * height - self.grid[0], columns * width - self.grid[1]

    def __call__(self, attend: Attend, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute eqs. 6-7 within the windows: (B, H, n, D_h).

        Args:
            attend: a function that computes eqs. 6-7 of q (..., n, D_h), k (..., N, D_h), v (..., N, D_h) and a bias of
                the logits, which broadcasts to (..., n, N) or is None.
            q: (B, H, n, D_h), of the first n tokens.
            k: (B, H, N, D_h).
            v: (B, H, N, D_h).
            bias: the bias of the logits, (1, H, n, N); None for no bias.
        """
        P, n = self.prefix, q.shape[2]
        if P < n < k.shape[2]:  # only some of the patches are queries, so the windows of queries are not complete
            return attend(q, k, v, self.masked_bias(bias, q))
        outputs = []
        if P:  # prefix tokens attend to all tokens
            prefix_bias = None if bias is None else bias[..., :P, :]
            outputs.append(attend(q[:, :, :P], k, v, prefix_bias))
        if n > P:
            windows = self.split(q[:, :, P:])
            patches = attend(windows, self._keys(k), self._keys(v), self.window_bias(bias, q))  # (B, W, H, S, D_h)
            outputs.append(self.join(patches))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)

    def split(self, x: Tensor, fill: float = 0) -> Tensor:
        """Divide the patches into windows, after padding them with `fill`: (B, H, h*w, C) -> (B, W, H, S, C)."""
        (B, H, _, C), (rows, columns), (height, width) = x.shape, self.windows, self.size
        x = x.reshape(B, H, *self.grid, C)
        if any(self.padding):
            x = F.pad(x, (0, 0, 0, self.padding[1], 0, self.padding[0]), value=fill)
        # Columns and features stay one axis, because XNNPACK permutes at most six axes.
        x = x.reshape(B, H, rows, height, columns, width * C).permute(0, 2, 4, 1, 3, 5)
        return x.reshape(B, rows * columns, H, height * width, C)

    def join(self, x: Tensor) -> Tensor:
        """Undo `split`, without the padding: (B, W, H, S, C) -> (B, H, h*w, C)."""
        (B, _, H, _, C), (rows, columns), (height, width) = x.shape, self.windows, self.size
        x = x.reshape(B, rows, columns, H, height, width * C).permute(0, 3, 1, 4, 2, 5)
        x = x.reshape(B, H, rows * height, columns * width, C)
        return x[:, :, : self.grid[0], : self.grid[1]].flatten(2, 3)

    def _keys(self, x: Tensor) -> Tensor:
        """Return the keys or values of each window, prefix tokens first: (B, H, N, D_h) -> (B, W, H, P + S, D_h)."""
        patches = self.split(x[:, :, self.prefix :])
        if not self.prefix:
            return patches
        prefix = x[:, None, :, : self.prefix].expand(-1, patches.shape[1], -1, -1, -1)
        return torch.cat([prefix, patches], dim=3)

    def window_bias(self, bias: Tensor | None, like: Tensor) -> Tensor | None:
        """Return the bias of the logits within the windows: (1, W, 1 or H, 1 or S, P + S), in the dtype of `like`.

        The bias of padded keys is the lowest number of the dtype, so that their attention is exactly 0. The result is
        None if there is neither a bias nor padding.
        """
        if bias is None and not any(self.padding):
            return None
        P, patches = self.prefix, math.prod(self.grid)
        lowest = torch.finfo(like.dtype).min
        of_patches = self.split(like.new_zeros(1, 1, patches, 1), lowest)[..., 0]  # (1, W, 1, S); 0 or lowest
        mask = F.pad(of_patches, (P, 0))  # (1, W, 1, P + S)
        if bias is None:
            return mask[:, :, :, None]
        tokens = torch.arange(P + patches, device=like.device)  # the number of each token
        queries = self.split(tokens[P:].view(1, 1, -1, 1))[0, :, 0, :, 0]  # (W, S); padding is masked
        keys = torch.cat([tokens[:P].expand(len(queries), -1), queries], dim=1)  # (W, P + S)
        by_window = bias[0].permute(1, 2, 0)[queries[:, :, None], keys[:, None]]  # (W, S, P + S, H)
        return by_window.permute(0, 3, 1, 2)[None].to(like.dtype) + mask[:, :, :, None]

    def masked_bias(self, bias: Tensor | None, like: Tensor) -> Tensor:
        """Return a bias that makes attention to all tokens equal to attention within windows.

        The shape is (n, N) without `bias`, and (1, H, n, N) with it.

        Args:
            bias: a bias of the logits that is included in the result, (1, H, n, N); None for no such bias.
            like: a tensor (B, H, n, D_h), which determines n, and the device and dtype of the result.
        """
        rows, columns = (
            torch.arange(side, device=like.device) // size for side, size in zip(self.grid, self.size, strict=True)
        )
        window = (rows[:, None] * self.windows[1] + columns).flatten()  # (h*w,)
        allowed = F.pad(window[:, None] == window, (self.prefix, 0, self.prefix, 0), value=True)[: like.shape[2]]
        mask = torch.zeros(allowed.shape, dtype=like.dtype, device=like.device).masked_fill(~allowed, -math.inf)
        return mask if bias is None else bias.to(like.dtype) + mask


def windows_of(config: ViTConfig, layer: int) -> Windows | None:
    """Return the windows of a layer, whose number counts from 0; None if its tokens attend to all tokens."""
    (h, w), size = config.grid, config.grid
    if config.attention == "axial":
        size = (h, 1) if layer % 2 else (1, w)
    elif config.window_size is not None and layer not in config.global_layers:
        size = min(config.window_size[0], h), min(config.window_size[1], w)
    return None if size == (h, w) else Windows((h, w), size, config.prefix_tokens)
