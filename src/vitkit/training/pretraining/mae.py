"""Masked autoencoding (arXiv 2111.06377): the encoder sees only some patches, and a light decoder predicts the others.

Shapes: B images, N patches, P prefix tokens, n visible patches; D and W are the widths of encoder and decoder.
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

_HEAD_SIZE = 32  # of the decoder, as in the paper: 512 features in 16 heads
_EPS = 1e-6  # added to the variance of a patch


class MaskedAutoencoding(nn.Module):
    """The decoder of MAE and the token that represents hidden patches (sec. 3).

    Args:
        config: the configuration of the encoder.
        choices: the options, after `resolved`.

    Raises:
        VitkitError: there are too few patches to hide some and to show some.
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
        """Initialise as the authors do: Xavier uniform for matrices, zeros for biases."""
        nn.init.normal_(self.mask_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def encode(self, encoder: VisionTransformer, images: Tensor, order: Tensor) -> Tensor:
        """Encode the prefix tokens and the first n patches of each order: (B, P + n, D)."""
        x, P = encoder.embed(images), self.config.prefix_tokens  # (B, P + N, D), with positions
        visible = order[:, : self.visible, None].expand(-1, -1, x.shape[2]) + P
        x = torch.cat([x[:, :P], x.gather(1, visible)], dim=1)  # (B, P + n, D)
        return encoder.norm(encoder.encode(x))

    def decode(self, encoded: Tensor, order: Tensor) -> Tensor:
        """Predict the content of every patch: (B, N, p * q * C)."""
        P, (B, N) = self.config.prefix_tokens, order.shape
        x = self.embed(encoded)  # (B, P + n, W)
        hidden = self.mask_token.to(x.dtype).expand(B, N - self.visible, -1)
        patches = torch.cat([x[:, P:], hidden], dim=1)  # in the random order
        inverse = order.argsort(dim=1)[:, :, None].expand(-1, -1, x.shape[2])
        x = torch.cat([x[:, :P], patches.gather(1, inverse)], dim=1) + self.positions  # (B, P + N, W)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))[:, P:].float()

    def figures(self, encoder: VisionTransformer, images: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        """Return the mean squared error over the hidden patches of each image, (B,)."""
        return (self.losses(encoder, images, shuffled(keys, self.config.patches)),)

    def losses(self, encoder: VisionTransformer, images: Tensor, order: Tensor) -> Tensor:
        """Return the mean squared errors for an order of the patches, (B, N), in which the visible ones come first."""
        predicted = self.decode(self.encode(encoder, images, order), order)  # (B, N, p * q * C)
        error = (predicted - self._targets(images)).square().mean(dim=2)  # (B, N)
        return error.gather(1, order[:, self.visible :]).mean(dim=1)

    def _targets(self, images: Tensor) -> Tensor:
        patches = patchify(images.float(), self.config.patch_size)
        if not self.is_normalised:
            return patches
        variance, mean = torch.var_mean(patches, dim=2, keepdim=True)
        return (patches - mean) / (variance + _EPS).sqrt()

    def fill(self, encoder: VisionTransformer, images: Tensor, keys: Tensor) -> Filled:
        """Return the images with their hidden patches replaced by the predictions.

        If the targets are normalised, the true mean and deviation of each hidden patch are added back.
        """
        order = shuffled(keys, self.config.patches)
        predicted = self.decode(self.encode(encoder, images, order), order)
        patches = patchify(images.float(), self.config.patch_size)
        if self.is_normalised:
            variance, mean = torch.var_mean(patches, dim=2, keepdim=True)
            predicted = predicted * (variance + _EPS).sqrt() + mean
        hidden = torch.ones_like(order, dtype=torch.bool).scatter(1, order[:, : self.visible], value=False)
        whole = torch.where(hidden[:, :, None], predicted, patches)
        return Filled(unpatchify(whole, self.config.patch_size, self.config.image_size), hidden)


def decoder_config(config: ViTConfig, choices: Pretraining) -> ViTConfig:
    """Return the configuration of the decoder's blocks.

    The defaults are two thirds of the encoder's depth and width, at most 8 blocks and 512 features. For B/16 this is
    the decoder of the paper: 8 blocks with 512 features and 16 heads.
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
        activation=config.activation,
        gelu=config.gelu,
        pool="gap",
    )
