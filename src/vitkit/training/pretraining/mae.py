"""Masked autoencoders (arXiv 2111.06377): the encoder sees the visible patches alone, a light decoder draws the rest.

Shapes: B images, N patches, P tokens ahead of them, n visible patches, D and W the widths of encoder and decoder.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.position import sincos_2d
from vitkit.model.vit import Block, VisionTransformer
from vitkit.training.pretraining.network import Filled, patchify, shuffled, unpatchify
from vitkit.training.pretraining.options import Pretraining

_HEAD_SIZE = 32  # of the decoder, as in the paper: 512 features, 16 heads
_EPS = 1e-6  # added to a patch's variance


class MaskedAutoencoding(nn.Module):
    """What MAE adds to an encoder: the decoder, and the token that stands for a hidden patch (sec. 3).

    Args:
        config: of the encoder.
        choices: settled.

    Raises:
        VitkitError: there are too few patches to hide some and show some.
    """

    positions: Tensor
    has_hits = False

    def __init__(self, config: ViTConfig, choices: Pretraining) -> None:
        super().__init__()
        assert choices.mask is not None
        self.config, self.is_normalised = config, choices.target == "normalised"
        self.visible = int(config.patches * (1 - choices.mask))
        if not 0 < self.visible < config.patches:
            raise VitkitError(
                f"--mask {choices.mask:g} leaves {self.visible} of {config.patches} patches to see: at least one must "
                "be seen and one hidden"
            )
        inner = decoder_config(config, choices)
        self.embed = nn.Linear(config.hidden_size, inner.hidden_size)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, inner.hidden_size))
        self.blocks = nn.ModuleList(Block(inner, layer) for layer in range(inner.layers))
        self.norm = nn.LayerNorm(inner.hidden_size, inner.norm_eps)
        self.head = nn.Linear(inner.hidden_size, config.patch_size[0] * config.patch_size[1] * config.in_channels)
        positions = F.pad(sincos_2d(config.grid, inner.hidden_size), (0, 0, config.prefix_tokens, 0))  # (P + N, W)
        self.register_buffer("positions", positions, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """As the authors' code: Xavier's for matrices, 0 for biases."""
        nn.init.normal_(self.mask_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def encode(self, encoder: VisionTransformer, images: Tensor, order: Tensor) -> Tensor:
        """The tokens ahead of the patches and the first n patches of each order, encoded: (B, P + n, D)."""
        x, ahead = encoder.embed(images), self.config.prefix_tokens  # (B, P + N, D), with positions
        seen = order[:, : self.visible, None].expand(-1, -1, x.shape[2]) + ahead
        x = torch.cat([x[:, :ahead], x.gather(1, seen)], dim=1)  # (B, P + n, D)
        return encoder.norm(encoder.encode(x))

    def decode(self, encoded: Tensor, order: Tensor) -> Tensor:
        """What stands in every patch, (B, N, p * q * C)."""
        ahead, (B, N) = self.config.prefix_tokens, order.shape
        x = self.embed(encoded)  # (B, P + n, W)
        hidden = self.mask_token.to(x.dtype).expand(B, N - self.visible, -1)
        patches = torch.cat([x[:, ahead:], hidden], dim=1)  # in the order
        back = order.argsort(dim=1)[:, :, None].expand(-1, -1, x.shape[2])
        x = torch.cat([x[:, :ahead], patches.gather(1, back)], dim=1) + self.positions  # (B, P + N, W)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))[:, ahead:].float()

    def figures(self, encoder: VisionTransformer, images: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        """The mean squared error over the hidden patches of each image, (B,)."""
        return (self.losses(encoder, images, shuffled(keys, self.config.patches)),)

    def losses(self, encoder: VisionTransformer, images: Tensor, order: Tensor) -> Tensor:
        """The same with the patches in a given order (B, N), of which the first are seen."""
        drawn = self.decode(self.encode(encoder, images, order), order)  # (B, N, p * q * C)
        error = (drawn - self._targets(images)).square().mean(dim=2)  # (B, N)
        return error.gather(1, order[:, self.visible :]).mean(dim=1)

    def _targets(self, images: Tensor) -> Tensor:
        patches = patchify(images.float(), self.config.patch_size)
        if not self.is_normalised:
            return patches
        variance, mean = torch.var_mean(patches, dim=2, keepdim=True)
        return (patches - mean) / (variance + _EPS).sqrt()

    def fill(self, encoder: VisionTransformer, images: Tensor, keys: Tensor) -> Filled:
        """Visible patches as they are; hidden ones as drawn, with their own mean and deviation where those were not
        to be told."""
        order = shuffled(keys, self.config.patches)
        drawn = self.decode(self.encode(encoder, images, order), order)
        patches = patchify(images.float(), self.config.patch_size)
        if self.is_normalised:
            variance, mean = torch.var_mean(patches, dim=2, keepdim=True)
            drawn = drawn * (variance + _EPS).sqrt() + mean
        hidden = torch.ones_like(order, dtype=torch.bool).scatter(1, order[:, : self.visible], value=False)
        whole = torch.where(hidden[:, :, None], drawn, patches)
        return Filled(unpatchify(whole, self.config.patch_size, self.config.image_size), hidden)


def decoder_config(config: ViTConfig, choices: Pretraining) -> ViTConfig:
    """The decoder's blocks: by default two thirds of the encoder's depth and width, 8 and 512 at most.

    For B/16 that is the paper's decoder: 8 blocks of 512 features and 16 heads.
    """
    layers = choices.decoder_layers or min(8, -(-2 * config.layers // 3))
    width = choices.decoder_width or min(512, _HEAD_SIZE * max(1, round(2 * config.hidden_size / 3 / _HEAD_SIZE)))
    return ViTConfig(
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=0,
        layers=layers,
        hidden_size=width,
        heads=width // _HEAD_SIZE,
        mlp_size=4 * width,
        norm_eps=config.norm_eps,
        gelu=config.gelu,
        pool="gap",
    )
