"""Differential attention: the difference of two softmax maps, in which noise cancels (arXiv 2410.05258, sec. 2.1).

    (softmax(Q_1 K_1^T / sqrt(d)) - lambda softmax(Q_2 K_2^T / sqrt(d))) V

Shapes: B batch, N tokens, n leading tokens whose output is computed, D hidden size, H heads, D_h head size, d half of
D_h. The names of parameters are timm's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.config import ViTConfig
from vitkit.model.layers import Dropout, RMSNorm, norm_layer

_EPS = 1e-5  # of the norm of each head; `norm_eps` does not apply to it


class DifferentialAttention(nn.Module):
    """Attention in which each head is the difference of two attention maps, one from each half of q and k.

    Args:
        config: the configuration of the model.
        layer: the number of the layer, from 0; the initial lambda depends on it (below eq. 2).
    """

    PARTS: ClassVar = frozenset({"qkv", "norm", "proj", "sub_norm", "attn_drop", "proj_drop"})

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.heads, half = config.heads, config.head_size // 2
        self.scale = half**-0.5 if config.qk_scale is None else config.qk_scale
        self.fused = True  # compute both maps by one kernel; False: step by step, with the same result
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.qkv_bias)
        self.norm = norm_layer(config) if config.attention_norm else nn.Identity()
        self.proj = nn.Linear(config.hidden_size, config.hidden_size, bias=config.proj_bias)
        self.attn_drop, self.proj_drop = Dropout(config.attention_dropout), Dropout(config.dropout)
        self.lambda_q1, self.lambda_k1 = nn.Parameter(torch.zeros(half)), nn.Parameter(torch.zeros(half))
        self.lambda_q2, self.lambda_k2 = nn.Parameter(torch.zeros(half)), nn.Parameter(torch.zeros(half))
        self.sub_norm = RMSNorm(config.head_size, _EPS)
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer)

    def initialise(self) -> None:
        """Draw initial values of the vectors that determine lambda."""
        for vector in (self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2):
            nn.init.normal_(vector, std=0.1)

    def weight(self) -> Tensor:
        """Compute lambda of eq. 2, a float32 scalar."""
        first, second = self.lambda_q1.float() @ self.lambda_k1.float(), self.lambda_q2.float() @ self.lambda_k2.float()
        return first.exp() - second.exp() + self.lambda_init

    def project(self, x: Tensor, queries: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project tokens (B, N, D) to q (B, 2H, n, d), k (B, 2H, N, d) and v (B, H, N, D_h).

        q contains only the first n = `queries` tokens; None for all.
        """
        D = x.shape[2]
        bias_q, bias_kv = (None, None) if self.qkv.bias is None else (self.qkv.bias[:D], self.qkv.bias[D:])
        if queries is None:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
        else:
            q = F.linear(x[:, :queries], self.qkv.weight[:D], bias_q)
            k, v = F.linear(x, self.qkv.weight[D:], bias_kv).chunk(2, dim=-1)
        q, k = (part.unflatten(2, (2 * self.heads, -1)).transpose(1, 2) for part in (q, k))
        return q, k, v.reshape(*v.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, queries: int | None = None, relative: None = None) -> Tensor:  # noqa: ARG002
        """Compute the output (B, n, D) of the first n = `queries` tokens, which attend to all tokens (B, N, D)."""
        q, k, v = self.project(x, queries)
        if self.fused and not (self.training and self.attn_drop.rate):  # the kernel would draw other dropout masks
            x = F.scaled_dot_product_attention(q, k, v.repeat_interleave(2, dim=1), scale=self.scale)
        else:
            maps = self.attn_drop(((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1))  # (B, 2H, n, N)
            x = maps @ v.repeat_interleave(2, dim=1)
        first, second = x[:, ::2], x[:, 1::2]  # (B, H, n, D_h) each
        x = self.sub_norm(first - self.weight().to(x.dtype) * second) * (1 - self.lambda_init)
        x = x.transpose(1, 2).flatten(2)  # (B, n, D)
        return self.proj_drop(self.proj(self.norm(x.to(first.dtype))))


def emit(graph: Any, attention: DifferentialAttention, x: Any, queries: int | None, scale: nn.Module) -> Any:
    """Add the operations of `DifferentialAttention`, and of the LayerScale after it, to a graph for another runtime.

    Args:
        graph: the graph builder; its `writer` writes the operations.
        attention: the layer, whose weights are copied.
        x: the normalised tokens, (B, N, D).
        queries: the number of leading tokens to compute; None for all.
        scale: the LayerScale, or an identity.
    """
    writer, H, config = graph.writer, attention.heads, graph.config
    D_h, half = config.head_size, config.head_size // 2
    weight = attention.qkv.weight.double()
    bias = weight.new_zeros(len(weight)) if attention.qkv.bias is None else attention.qkv.bias.double()
    scaling = torch.ones_like(bias)
    scaling[: config.hidden_size] = attention.scale
    parts = zip((weight * scaling[:, None]).chunk(3), (bias * scaling).chunk(3), strict=True)
    q, k, v = (graph.linear(each, *part) for each, part in zip((graph.first(x, queries), x, x), parts, strict=True))
    v = writer.transpose(writer.reshape(v, 0, 0, H, D_h), 0, 2, 1, 3)  # (B, H, N, D_h)

    def attended(which: int) -> Any:
        """Compute attention with the first (`which` = 0) or second (1) half of each head's q and k: (B, H, n, D_h)."""
        half_q, half_k = (
            writer.reshape(writer.slice(writer.reshape(part, 0, 0, H, 2, half), 3, which, which + 1), 0, 0, H, half)
            for part in (q, k)
        )
        logits = writer.matmul(writer.transpose(half_q, 0, 2, 1, 3), writer.transpose(half_k, 0, 2, 3, 1))
        return writer.matmul(writer.softmax(logits), v)

    negative = writer.constant(-attention.weight().reshape(1, 1, 1, 1))
    x = writer.add(attended(0), writer.multiply(attended(1), negative))
    x = graph.rms(x, 3, D_h, attention.sub_norm.eps)
    x = writer.multiply(x, writer.constant(attention.sub_norm.weight * (1 - attention.lambda_init)))
    x = writer.reshape(writer.transpose(x, 0, 2, 1, 3), 0, 0, config.hidden_size)  # (B, n, D)
    if not isinstance(attention.norm, nn.Identity):
        x = graph.affine(graph.norm(x, attention.norm), attention.norm)
    return graph.scaled_linear(x, attention.proj, scale)


class DifferentialTimm:
    """The conversion of differential attention to and from timm's tensors, which have the same names."""

    @staticmethod
    def read(_names: Collection[str]) -> dict[str, tuple[tuple[str, ...], Callable[..., Tensor]]]:
        """Return an empty mapping, because no tensor has another name in timm."""
        return {}

    @staticmethod
    def write(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors unchanged."""
        return tensors

    @staticmethod
    def describe(_config: ViTConfig) -> tuple[None, dict[str, Any]]:
        """Return None and the argument that selects this attention in timm.

        None stands for the name of a timm model. No name is needed, because every ViT of timm accepts the argument.
        """
        return None, {"attn_layer": "diff"}
