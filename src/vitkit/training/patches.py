"""Patch dropout: training on a random part of every image's patches costs as much less (arXiv 2208.07220)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.layers import draw_keys, random_bits
from vitkit.model.vit import VisionTransformer


class PatchDropout(nn.Module):
    """(B, N, D) tokens -> in training, those ahead of the patches and a random part of the patches, in their order.

    Each image loses others. In evaluation nothing is lost.

    Args:
        rate: the part that is dropped; one patch stays at least.
        ahead: tokens ahead of the patches.

    Attributes:
        keys: (B,) int32, random: what an image loses depends on its own alone; None takes torch's generator.
    """

    def __init__(self, rate: float, ahead: int) -> None:
        super().__init__()
        self.rate, self.ahead = rate, ahead
        self.keys: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        B, N, D = x.shape
        patches = N - self.ahead
        kept = max(1, round(patches * (1 - self.rate)))
        if not self.training or kept == patches:
            return x
        keys = draw_keys(x) if self.keys is None else self.keys
        drawn = random_bits(keys, patches).argsort(dim=1, stable=True)[:, :kept]
        rows = self.ahead + drawn.sort(dim=1).values  # (B, kept)
        return torch.cat([x[:, : self.ahead], x.gather(1, rows.unsqueeze(2).expand(B, kept, D))], dim=1)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3f}"


def drop_patches(model: VisionTransformer, rate: float) -> None:
    """Let the model lose this part of its patches in training, once they have their positions (sec. 3.1)."""
    dropping = nn.Sequential(model.pos_drop, PatchDropout(rate, model.config.prefix_tokens))
    model.add_module("pos_drop", dropping.train(model.training))


def check_patch_dropout(config: ViTConfig) -> None:
    """Refuse a model that needs every patch in its place.

    Raises:
        VitkitError: positions act in every layer, or layers convolve.
    """
    if (why := needs_every_patch(config)) is not None:
        raise VitkitError(f"--patch-dropout: {why}")


def needs_every_patch(config: ViTConfig) -> str | None:
    """Why a model cannot do without some of the patches; None where it can."""
    if config.positions_in_layers:
        return "positions act in every layer of this model, which needs all patches"
    if config.conv_layers or config.projection == "conv" or config.mlp_kind == "conv":
        return "layers of this model convolve, which needs all patches"
    return None
