"""Convolution inside the Transformer: layers that convolve instead of attending, and convolutional q, k, v.

The third mixture, a depthwise convolution between the linear layers of the MLP, is `model.MLP`'s own
(`mlp_kind="conv"`). All three keep the sequence of tokens, so class token, heads and pictures work as ever. None uses
batch normalisation, unlike the papers named here: a prediction must not depend on the images beside it.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.config import ViTConfig
from vitkit.model.layers import Dropout, TokenConvolution, gelu


class ConvProjection(nn.Module):
    """What q, k and v are projected from: a depthwise convolution each (CvT, arXiv 2103.15808, sec. 3.2)."""

    def __init__(self, config: ViTConfig, patches_read: bool) -> None:
        super().__init__()
        self.k, self.v = (TokenConvolution(config.hidden_size, config.grid, config.prefix_tokens) for _ in range(2))
        self.q: nn.Module = nn.Identity()  # what the patches ask in the last layer may be read by nobody
        if patches_read:
            self.q = TokenConvolution(config.hidden_size, config.grid, config.prefix_tokens)

    def forward(self, x: Tensor, qkv: nn.Linear, queries: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, D) tokens -> q (B, n, D) of the first n = `queries` tokens, k and v (B, N, D), projected by `qkv`."""
        sources = self.q(x)[:, :queries], self.k(x), self.v(x)
        biases = (None, None, None) if qkv.bias is None else qkv.bias.chunk(3)
        q, k, v = (F.linear(*part) for part in zip(sources, qkv.weight.chunk(3), biases, strict=True))
        return q, k, v


class ConvMixer(nn.Module):
    """In the place of attention: patches mix with their neighbours by a depthwise and a pointwise convolution.

    Interleaving such layers with attention is CoAtNet's finding (arXiv 2106.04803); that anything which mixes tokens
    may stand in attention's place is MetaFormer's (arXiv 2111.11418). The class token waits for the next attention.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.depthwise = TokenConvolution(config.hidden_size, config.grid, config.prefix_tokens)
        self.act = gelu(config)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size, bias=config.proj_bias)
        self.proj_drop = Dropout(config.dropout)

    def forward(self, x: Tensor, queries: int | None = None, relative: None = None) -> Tensor:  # noqa: ARG002
        """(B, N, D) tokens -> what is added to the first n = `queries` of them, (B, n, D)."""
        x = self.act(self.depthwise(x)[:, :queries])
        return self.proj_drop(self.proj(x))
