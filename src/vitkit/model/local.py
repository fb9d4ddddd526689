"""Attention of patches to a part of the patches: rows and columns in turn, or windows.

`axial` is the attention of the paper's Axial-ViT (app. D.6): a layer attends along rows, the next one along columns
(arXiv 1912.12180; arXiv 2003.07853). `window` attends within squares of patches (arXiv 2103.14030, sec. 3.1), which
here do not shift; layers named in `global_layers` attend to everything, as in arXiv 2203.16527, sec. 3.

The paper does not say what the class token of an Axial-ViT attends to. Here the tokens ahead of the patches attend to
all tokens and every patch attends to them, so that they can be read, and so that they connect the windows.

Shapes: B batch, N tokens, p of them ahead of the patches, D hidden size, H heads, D_h head size, h x w patch grid,
G groups of S patches.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.config import ViTConfig
from vitkit.model.layers import Dropout, norm_layer

_APART = -3e4  # added to the logits of tokens that do not see each other: also a number in float16


class LocalAttention(nn.Module):
    """Multi-head attention in which a patch attends to the patches of its group and to the tokens ahead of the patches.

    Args:
        config: the configuration of the model.
        layer: the number of the layer, from 0. In axial attention even layers attend along rows, odd ones along
            columns.
    """

    PARTS: ClassVar = frozenset({"qkv", "norm", "proj", "attn_drop", "proj_drop"})
    groups: Tensor  # (G, S) the patches of each group; 0 where a group reaches beyond the grid
    place: Tensor  # (h*w,) where each patch is among the G*S
    is_seen: Tensor | None  # (G, p+S), if some groups reach beyond the grid

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.prefix_tokens, self.grid = config.heads, config.prefix_tokens, config.grid
        self.scale = config.head_size**-0.5 if config.qk_scale is None else config.qk_scale
        self.fused = True  # compute eqs. 6-7 by one kernel; False: step by step, with the same result
        h, w = config.grid
        along = (1, w) if layer % 2 == 0 else (h, 1)
        self.group_size = along if config.attention == "axial" else (min(config.window, h), min(config.window, w))
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.qkv_bias)
        self.norm = norm_layer(config) if config.attention_norm else nn.Identity()
        self.proj = nn.Linear(config.hidden_size, config.hidden_size, bias=config.proj_bias)
        self.attn_drop, self.proj_drop = Dropout(config.attention_dropout), Dropout(config.dropout)
        self.rebuild_tables(self.qkv.weight)

    def rebuild_tables(self, like: Tensor) -> None:
        """Compute the fixed tables again, on this tensor's device, after the model left the meta device."""
        groups = group_patches(self.grid, self.group_size)  # (G, S)
        is_there = groups >= 0
        place = is_there.flatten().nonzero()[:, 0][groups[is_there].argsort()]
        is_seen = None if is_there.all() else F.pad(is_there, (self.prefix_tokens, 0), value=True)
        for name, table in {"groups": groups.clamp(min=0), "place": place, "is_seen": is_seen}.items():
            self.register_buffer(name, None if table is None else table.to(like.device), persistent=False)

    def project(self, x: Tensor, queries: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute eq. 5: (B, N, D) -> q (B, H, n, D_h) of the first n = `queries` tokens, k and v (B, H, N, D_h)."""
        if queries is None:
            parts = self.qkv(x).chunk(3, dim=-1)
        else:
            D = x.shape[2]
            bias_q, bias_kv = (None, None) if self.qkv.bias is None else (self.qkv.bias[:D], self.qkv.bias[D:])
            q = F.linear(x[:, :queries], self.qkv.weight[:D], bias_q)
            parts = (q, *F.linear(x, self.qkv.weight[D:], bias_kv).chunk(2, dim=-1))
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        return q, k, v

    def forward(self, x: Tensor, queries: int | None = None, relative: None = None) -> Tensor:  # noqa: ARG002
        """Compute the branch's output (B, n, D) for the first n = `queries` of the tokens (B, N, D)."""
        p = self.prefix_tokens
        only_prefix = queries is not None and queries <= p
        q, k, v = self.project(x, queries if only_prefix else None)
        parts = [self._attend(q[:, :, :p], k, v)] if p else []  # (B, H, p, D_h)
        if not only_prefix:
            parts.append(self._attend_in_groups(q, k, v))
        x = torch.cat(parts, dim=2)[:, :, :queries].transpose(1, 2).flatten(2)  # (B, n, D)
        return self.proj_drop(self.proj(self.norm(x)))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, is_seen: Tensor | None = None) -> Tensor:
        """Compute eqs. 6-7: (B, ?, n, D_h)."""
        if self.fused and not (self.training and self.attn_drop.rate):  # the kernel would draw other dropout masks
            return F.scaled_dot_product_attention(q, k, v, attn_mask=is_seen, scale=self.scale)
        logits = (q * self.scale) @ k.transpose(-2, -1)
        if is_seen is not None:
            logits = logits.masked_fill(~is_seen, float("-inf"))
        return self.attn_drop(logits.softmax(dim=-1)) @ v

    def _attend_in_groups(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute eqs. 6-7 for the patches: (B, H, h*w, D_h)."""
        p, H, G = self.prefix_tokens, self.heads, len(self.groups)
        order, size = self.groups.flatten(), self.groups.shape  # (G, S)
        grouped = [part[:, :, p:].index_select(2, order) for part in (q, k, v)]
        grouped = [part.reshape(*part.shape[:2], *size, part.shape[3]) for part in grouped]  # (B, H, G, S, D_h)
        if p:
            for i, part in enumerate((k, v), start=1):
                ahead = part[:, :, None, :p].expand(-1, -1, G, -1, -1)
                grouped[i] = torch.cat([ahead, grouped[i]], dim=3)  # (B, H, G, p+S, D_h)
        q, k, v = (part.flatten(1, 2) for part in grouped)  # (B, H*G, ...)
        x = self._attend(q, k, v, None if self.is_seen is None else self.is_seen.repeat(H, 1)[None, :, None])
        return x.reshape(x.shape[0], H, len(order), x.shape[-1]).index_select(2, self.place)


def group_patches(grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Return the numbers of the patches in each rectangle of a grid (h, w), row by row: (G, S).

    Where the rectangles reach beyond the grid, the number is -1.
    """
    (h, w), (rows, columns) = grid, size
    patches = torch.arange(h * w, device="cpu").view(h, w)  # also where the model is created on the meta device
    patches = F.pad(patches, (0, -w % columns, 0, -h % rows), value=-1)
    return patches.unfold(0, rows, rows).unfold(1, columns, columns).reshape(-1, rows * columns).contiguous()


def visible(attention: LocalAttention) -> Tensor:
    """Return which tokens attend to which, as a mask: (N, N)."""
    group = attention.place.cpu() // attention.groups.shape[1]  # of each patch
    p = attention.prefix_tokens
    return F.pad(group[:, None] == group, (p, 0, p, 0), value=True)


def emit(graph: Any, attention: LocalAttention, x: Any, queries: int | None, scale: nn.Module) -> Any:
    """Write the operations of `LocalAttention` and of the LayerScale after it into a graph, as attention with a mask.

    Args:
        graph: the graph builder, whose `writer` writes operations.
        attention: the layer, whose weights are copied.
        x: the normalised tokens, (B, N, D).
        queries: the number of first tokens to compute; None for all.
        scale: the LayerScale, or an identity.
    """
    writer, H = graph.writer, attention.heads
    weight = attention.qkv.weight.double()
    bias = weight.new_zeros(len(weight)) if attention.qkv.bias is None else attention.qkv.bias.double()
    scaling = torch.ones_like(bias)
    scaling[: weight.shape[1]] = attention.scale
    parts = zip((weight * scaling[:, None]).chunk(3), (bias * scaling).chunk(3), strict=True)
    q, k, v = (
        writer.reshape(graph.linear(each, *part), 0, 0, H, weight.shape[1] // H)
        for each, part in zip((graph.first(x, queries), x, x), parts, strict=True)
    )
    logits = writer.matmul(writer.transpose(q, 0, 2, 1, 3), writer.transpose(k, 0, 2, 3, 1))  # (B, H, n, N)
    mask = torch.where(visible(attention)[:queries], 0.0, _APART)
    logits = writer.add(logits, writer.constant(mask[None, None].to(torch.float32)))
    x = writer.matmul(writer.softmax(logits), writer.transpose(v, 0, 2, 1, 3))  # (B, H, n, D_h)
    x = writer.reshape(writer.transpose(x, 0, 2, 1, 3), 0, 0, weight.shape[1])  # (B, n, D)
    if not isinstance(attention.norm, nn.Identity):
        x = graph.affine(graph.norm(x, attention.norm), attention.norm)
    return graph.scaled_linear(x, attention.proj, scale)
