"""The text encoder of CLIP (arXiv 2103.00020, sec. 2.4) and of SigLIP (arXiv 2303.15343).

A Transformer whose blocks are those of `model.vit`: tokens in, one vector of a text out.

Shapes: B texts, L tokens of each, D hidden size, P the size of the space that texts share with images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.config import ViTConfig
from vitkit.model.layers import norm_layer
from vitkit.model.vit import Block


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """What a text encoder is made of.

    Attributes:
        vocabulary: how many tokens there are.
        context: L, tokens of a text.
        is_causal: whether a token attends to those before it alone (CLIP), or to all (SigLIP).
        pool: which token stands for the text: `largest`, that of the largest id; `end`, the first of id `end`; `last`;
            `first`.
        end: the id of the token that ends a text, for `end`.
        projection_size: P.
        projection_bias: whether the projection has one.
    """

    vocabulary: int
    context: int
    layers: int
    hidden_size: int
    heads: int
    mlp_size: int
    norm_eps: float
    gelu: Literal["erf", "tanh", "quick"]
    is_causal: bool
    pool: Literal["largest", "end", "last", "first"]
    end: int | None = None
    projection_size: int
    projection_bias: bool

    @property
    def of_blocks(self) -> ViTConfig:
        """The fields that the blocks read."""
        return ViTConfig(
            layers=self.layers,
            hidden_size=self.hidden_size,
            heads=self.heads,
            mlp_size=self.mlp_size,
            norm_eps=self.norm_eps,
            gelu=self.gelu,
        )


class TextTower(nn.Module):
    """Tokens (B, L) to one vector of each text (B, P), of no particular length."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config, blocks = config, config.of_blocks
        self.token_embed = nn.Embedding(config.vocabulary, config.hidden_size)
        self.pos_embed = nn.Parameter(torch.zeros(config.context, config.hidden_size))
        self.blocks = nn.ModuleList(Block(blocks, layer) for layer in range(config.layers))
        self.norm = norm_layer(blocks)
        self.head = nn.Linear(config.hidden_size, config.projection_size, bias=config.projection_bias)

    def forward(self, tokens: Tensor) -> Tensor:
        L = tokens.shape[1]
        x = self.token_embed(tokens) + self.pos_embed[:L]  # (B, L, D)
        mask = _causal if self.config.is_causal else None
        for block in self.blocks:
            x = block(x, None, mask)
        read = self._reads(tokens)  # (B,)
        x = self.norm(x[torch.arange(len(x), device=x.device), read])  # (B, D)
        return self.head(x)  # (B, P)

    def _reads(self, tokens: Tensor) -> Tensor:
        """The place of the token that stands for each text: (B,)."""
        if self.config.pool == "largest":
            return tokens.argmax(dim=1)
        if self.config.pool == "end":
            return torch.eq(tokens, self.config.end or 0).int().argmax(dim=1)
        return tokens.new_full((len(tokens),), 0 if self.config.pool == "first" else tokens.shape[1] - 1)


def _causal(q: Tensor, k: Tensor, _scale: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """What lets no token see those after it: minus infinity, beside the logits of attention (L, L)."""
    L = q.shape[2]
    return q, k, torch.full((L, L), -torch.inf, dtype=q.dtype, device=q.device).triu(1)


def unit(vectors: Tensor) -> Tensor:
    """(..., P) of length 1."""
    return F.normalize(vectors, dim=-1)


def with_weights(config: TextConfig, weights: dict[str, Any]) -> TextTower:
    """A text encoder of these weights, in eval mode."""
    with torch.device("meta"):
        tower = TextTower(config)
    tower.load_state_dict(weights, assign=True)
    return tower.eval()
