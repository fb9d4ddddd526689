"""Attention pooling: what the head reads is asked of all tokens by one learned query (MAP; SigLIP's head)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.config import ViTConfig
from vitkit.model.layers import norm_layer


def pooling_mlp(config: ViTConfig) -> ViTConfig:
    """The configuration that attention pooling's own MLP is of."""
    return config.replace(mlp_size=config.pool_mlp_size or config.mlp_size, mlp_norm=False, proj_bias=True)


class AttentionPool(nn.Module):
    """One learned query attends to all tokens, and an MLP with a residual follows (arXiv 2106.04560, sec. 2.2).

    Its parameters are named as timm's `AttentionPoolLatent`.

    Args:
        config: whose heads it has.
        mlp: as in the blocks.
    """

    def __init__(self, config: ViTConfig, mlp: nn.Module) -> None:
        super().__init__()
        D = config.hidden_size
        self.heads = config.pool_heads or config.heads
        self.scale = (D // self.heads) ** -0.5
        self.latent = nn.Parameter(torch.zeros(1, 1, D))
        self.q, self.kv, self.proj = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)
        self.norm, self.mlp = norm_layer(config), mlp

    def query(self) -> Tensor:
        """What is asked, the same of every image: (1, H, 1, D_h)."""
        return self.q(self.latent).unflatten(2, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) tokens -> (B, D)."""
        k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.kv(x).chunk(2, dim=-1))
        q = self.query().to(k.dtype).expand(x.shape[0], -1, -1, -1)
        x = F.scaled_dot_product_attention(q, k, v, scale=self.scale)  # (B, H, 1, D_h)
        x = self.proj(x.transpose(1, 2).flatten(2))  # (B, 1, D)
        return (x + self.mlp(self.norm(x)))[:, 0]
