"""The network of a pre-training and its objectives: predict the contents of hidden or corrupted patches.

`SelfSupervised` consists of the encoder and a task. There are two tasks:

- `MaskedAutoencoding` (arXiv 2111.06377): the encoder sees only some patches, and a light decoder predicts the others.
- `MaskedPatchPrediction` (arXiv 2010.11929, sec. 4.6 and app. B.1.2): a fraction of the patch embeddings (by default
  half) is corrupted, and the outputs of the last layer predict the colours or pixels of these patches.

Every image has a key, a random number. The key alone determines which patches are hidden (`shuffle_patches`,
`corrupt`), so they do not depend on the device or on the batch.

Shapes: B images with C channels, N patches in the order of the grid's rows, P prefix tokens, n visible patches, D
features of the encoder; W is the decoder's width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data.preprocess import Preprocess
from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.layers import random_bits
from vitkit.model.position import sincos_2d
from vitkit.model.vit import Block, VisionTransformer
from vitkit.training.pretraining import Pretraining


class SelfSupervised(nn.Module):
    """An encoder, which is a model without a head, and its task, whose weights are not part of the encoder."""

    def __init__(self, encoder: VisionTransformer, task: MaskedAutoencoding | MaskedPatchPrediction) -> None:
        super().__init__()
        self.encoder, self.task = encoder, task

    def forward_heads(self, images: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        """Return the loss of each image, (B,), and if colours are predicted, the fraction of correct ones, (B,).

        The keys (B,) determine which patches of the images (B, C, height, width) are hidden.
        """
        return self.task.figures(self.encoder, images, keys)

    def forward(self, images: Tensor, keys: Tensor) -> Tensor:
        """Return the figures of `forward_heads` as the columns of one tensor, (B, 1) or (B, 2)."""
        return torch.stack(self.forward_heads(images, keys), dim=1)

    @torch.no_grad()
    def fill(self, images: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images with their hidden patches replaced by the predictions, and which were hidden, (B, N)."""
        patch, size = self.encoder.config.patch_size, self.encoder.config.image_size
        predicted, hidden = self.task.reconstruct(self.encoder, images, keys)
        patches = torch.where(hidden[:, :, None], predicted, patchify(images.float(), patch))
        return unpatchify(patches, patch, size), hidden


_MASKED, _REPLACED = 0.8, 0.1  # of the corrupted patches; the rest stay as they are (app. B.1.2)


def shuffle_patches(keys: Tensor, patches: int) -> Tensor:
    """Return a random order of the patches of each image: (B,) keys -> (B, N) indices."""
    return random_bits(keys.to(torch.int32), patches).argsort(dim=1, stable=True)


class Corruption(NamedTuple):
    """The corruption of patch embeddings."""

    corrupted: Tensor  # (B, N) bool, the patches whose content is predicted
    masked: Tensor  # (B, N) bool, those of them whose embedding is replaced by the [mask] embedding
    source: Tensor  # (B, N), the index of the patch whose embedding is used: another one if the patch is replaced


def corrupt(keys: Tensor, patches: int, count: int) -> Corruption:
    """Choose the patches to corrupt as in app. B.1.2: of these, 80 % are masked, 10 % replaced, and 10 % stay.

    For each key (B,), `count` of N patches are corrupted.
    """
    bits = random_bits(keys.to(torch.int32), 3 * patches)  # (B, 3N)
    order = bits[:, :patches].argsort(dim=1, stable=True)
    corrupted = torch.zeros_like(order, dtype=torch.bool).scatter(1, order[:, :count], value=True)  # (B, N)
    fractions = bits[:, patches:].double() / 2**32 + 0.5  # (B, 2N) in [0, 1), since the bits are signed numbers
    kind, offset = fractions.chunk(2, dim=1)  # (B, N) each: what is done to a patch, and which one could replace it
    positions = torch.arange(patches, device=keys.device).expand_as(order)
    another = (positions + 1 + (offset * (patches - 1)).long()) % patches  # any but the patch itself
    masked = corrupted & (kind < _MASKED)
    replaced = corrupted & ~masked & (kind < _MASKED + _REPLACED)
    return Corruption(corrupted, masked, torch.where(replaced, another, positions))


_COLOUR_LEVELS = 8  # of each channel: 3 bits


def patchify(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """Split images into patches of `patch` = (p, q) pixels: (B, C, height, width) -> (B, N, p * q * C).

    The pixels of a patch are in row-major order, and the channels of each pixel are adjacent.
    """
    B, C, height, width = images.shape
    p, q = patch
    x = images.reshape(B, C, height // p, p, width // q, q).permute(0, 2, 4, 3, 5, 1)  # (B, h, w, p, q, C)
    return x.reshape(B, (height // p) * (width // q), p * q * C)


def unpatchify(patches: Tensor, patch: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Invert `patchify`, for images of `size` = (height, width): (B, N, p * q * C) -> (B, C, height, width)."""
    (B, _, numbers), (p, q), (height, width) = patches.shape, patch, size
    x = patches.reshape(B, height // p, width // q, p, q, numbers // (p * q)).permute(0, 5, 1, 3, 2, 4)
    return x.reshape(B, -1, height, width)


def quantised_colours(pixels: Tensor, patch: tuple[int, int], side: int) -> Tensor:
    """Divide each patch into side x side cells, and return the mean colour of each cell as a number below 8^C.

    The mean of each of the C channels is reduced to one of 8 levels (3 bits): pixels (B, C, height, width) from 0 to 1
    -> numbers (B, N, side * side). The sides of a patch must be divisible by `side`.
    """
    C = pixels.shape[1]
    cells = F.avg_pool2d(pixels, (patch[0] // side, patch[1] // side))  # (B, C, side * h, side * w)
    levels = (cells * _COLOUR_LEVELS).floor().clamp(0, _COLOUR_LEVELS - 1).long()
    # The levels are the digits of a number, of which the first channel has the highest one.
    weights = _COLOUR_LEVELS ** torch.arange(C - 1, -1, -1, device=pixels.device)
    numbers = (levels * weights.view(1, C, 1, 1)).sum(dim=1, keepdim=True)  # (B, 1, side * h, side * w)
    return patchify(numbers, (side, side))


def dequantised_colours(
    numbers: Tensor, channels: int, patch: tuple[int, int], side: int, size: tuple[int, int]
) -> Tensor:
    """Invert `quantised_colours` up to rounding: numbers (B, N, side * side) -> pixels (B, C, height, width)."""
    weights = _COLOUR_LEVELS ** torch.arange(channels - 1, -1, -1, device=numbers.device)
    levels = numbers.unsqueeze(-1) // weights % _COLOUR_LEVELS  # (B, N, side * side, C)
    cells = (levels.flatten(2) + 0.5) / _COLOUR_LEVELS
    cells = unpatchify(cells, (side, side), (size[0] // patch[0] * side, size[1] // patch[1] * side))
    return F.interpolate(cells, size=size, mode="nearest")


# --- The objectives -------------------------------------------------------------------------------------------

_HEAD_SIZE = 32  # of the decoder, as in the paper: 512 features in 16 heads
_EPS = 1e-6  # added to the variance of a patch


class MaskedAutoencoding(nn.Module):
    """The task of MAE: its decoder, and the token that represents hidden patches (sec. 3).

    `options` are the options of the objective, as returned by `Pretraining.resolved`.

    Raises:
        VitkitError: the fraction `mask` leaves no visible or no hidden patch.
    """

    positions: Tensor

    def __init__(self, config: ViTConfig, options: Pretraining) -> None:
        super().__init__()
        assert options.mask is not None
        self.config, self.is_normalised = config, options.target == "normalised"
        self.visible = int(config.patches * (1 - options.mask))
        if not 0 < self.visible < config.patches:
            raise VitkitError(
                "training.mask-share",
                f"--mask {options.mask:g} leaves {self.visible} of {config.patches} patches to see: at least one must "
                "be seen and one hidden",
            )
        decoder = decoder_config(config)
        self.embed = nn.Linear(config.hidden_size, decoder.hidden_size)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, decoder.hidden_size))
        self.blocks = nn.ModuleList(Block(decoder, layer) for layer in range(decoder.layers))
        self.norm = nn.LayerNorm(decoder.hidden_size, decoder.norm_eps)
        self.head = nn.Linear(decoder.hidden_size, config.patch_size[0] * config.patch_size[1] * config.in_channels)
        positions = F.pad(sincos_2d(config.grid, decoder.hidden_size), (0, 0, config.prefix_tokens, 0))  # (P + N, W)
        self.register_buffer("positions", positions, persistent=False)
        nn.init.normal_(self.mask_token, std=0.02)
        for module in self.modules():  # as the authors initialise
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def predict(self, encoder: VisionTransformer, images: Tensor, order: Tensor) -> Tensor:
        """Predict every patch, (B, N, p * q * C), from the first n patches in `order` (B, N), which are visible."""
        P, (B, N) = self.config.prefix_tokens, order.shape
        x = encoder.embed(images)  # (B, P + N, D), with positions
        visible = order[:, : self.visible, None].expand(-1, -1, x.shape[2]) + P
        x = torch.cat([x[:, :P], x.gather(1, visible)], dim=1)  # (B, P + n, D)
        x = self.embed(encoder.norm(encoder.encode(x)))  # (B, P + n, W)
        hidden = self.mask_token.to(x.dtype).expand(B, N - self.visible, -1)
        patches = torch.cat([x[:, P:], hidden], dim=1)  # in the random order
        inverse = order.argsort(dim=1)[:, :, None].expand(-1, -1, x.shape[2])
        x = torch.cat([x[:, :P], patches.gather(1, inverse)], dim=1) + self.positions  # (B, P + N, W)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))[:, P:].float()

    def figures(self, encoder: VisionTransformer, images: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        """Return the mean squared error over the hidden patches of each image, (B,)."""
        order = shuffle_patches(keys, self.config.patches)
        predicted = self.predict(encoder, images, order)
        patches = patchify(images.float(), self.config.patch_size)
        if self.is_normalised:
            variance, mean = torch.var_mean(patches, dim=2, keepdim=True)
            patches = (patches - mean) / (variance + _EPS).sqrt()
        error = (predicted - patches).square().mean(dim=2)  # (B, N)
        return (error.gather(1, order[:, self.visible :]).mean(dim=1),)

    def reconstruct(self, encoder: VisionTransformer, images: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the pixels of all patches, (B, N, p * q * C); also return which patches were hidden, (B, N).

        The pixels are normalised as the model reads them. Only the predictions for hidden patches are meaningful.
        """
        order = shuffle_patches(keys, self.config.patches)
        predicted = self.predict(encoder, images, order)
        if self.is_normalised:  # the predictions get the true mean and deviation of each patch
            patches = patchify(images.float(), self.config.patch_size)
            variance, mean = torch.var_mean(patches, dim=2, keepdim=True)
            predicted = predicted * (variance + _EPS).sqrt() + mean
        return predicted, torch.ones_like(order, dtype=torch.bool).scatter(1, order[:, : self.visible], value=False)


def decoder_config(config: ViTConfig) -> ViTConfig:
    """Return the configuration of the blocks of MAE's decoder.

    It has two thirds of the encoder's depth and width, at most 8 blocks and 512 features. For B/16 this is the decoder
    of the paper: 8 blocks with 512 features and 16 heads.
    """
    width = min(512, _HEAD_SIZE * max(1, round(2 * config.hidden_size / 3 / _HEAD_SIZE)))
    return ViTConfig(
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=0,
        layers=min(8, math.ceil(2 * config.layers / 3)),
        hidden_size=width,
        heads=width // _HEAD_SIZE,
        mlp_size=4 * width,
        norm_eps=config.norm_eps,
        activation=config.activation,
        gelu=config.gelu,
        pool="gap",
    )


class MaskedPatchPrediction(nn.Module):
    """The task of predicting corrupted patches: the [mask] embedding and a layer that predicts colours or pixels.

    `options` are the options of the objective, as returned by `Pretraining.resolved`. The normalisation of `preprocess`
    is undone to compute the colours of images.

    Raises:
        VitkitError: the fraction `mask` corrupts no patch or all patches, or a patch cannot be divided into cells.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: ViTConfig, options: Pretraining, preprocess: Preprocess) -> None:
        super().__init__()
        assert options.mask is not None
        self.config = config
        self.side = {"colour": 1, "colour-4x4": 4}.get(options.target)  # colours along a patch; None predicts pixels
        self.corrupted_count = round(config.patches * options.mask)
        if not 0 < self.corrupted_count < config.patches:
            raise VitkitError(
                "training.mask-share",
                f"--mask {options.mask:g} corrupts {self.corrupted_count} of {config.patches} patches: at least one "
                "must be corrupted and one not",
            )
        p, q = config.patch_size
        outputs = p * q * config.in_channels  # the pixels of a patch
        if self.side is not None:
            if p % self.side or q % self.side:
                raise VitkitError(
                    "training.patch-indivisible",
                    f"--target {options.target} divides patches by 4, so their size must be a multiple of 4, not "
                    f"{p}x{q}; use --target colour",
                )
            outputs = self.side**2 * _COLOUR_LEVELS**config.in_channels  # a logit of each colour for each cell
        self.mask_token = nn.Parameter(torch.zeros(1, 1, config.hidden_size))
        self.head = nn.Linear(config.hidden_size, outputs)
        nn.init.normal_(self.mask_token, std=0.02)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)
        for name in ("mean", "std"):
            values = torch.tensor(getattr(preprocess, name), dtype=torch.float32).view(1, -1, 1, 1)
            self.register_buffer(name, values, persistent=False)

    def predict(self, encoder: VisionTransformer, images: Tensor, corruption: Corruption) -> Tensor:
        """Return the outputs of the prediction layer for every patch: (B, N, outputs)."""
        x = encoder.embed_patches(images)  # (B, N, D)
        x = x.gather(1, corruption.source[:, :, None].expand_as(x))
        x = torch.where(corruption.masked[:, :, None], self.mask_token.to(x.dtype), x)
        x = encoder.norm(encoder.encode(encoder.add_tokens_and_positions(x)))[:, self.config.prefix_tokens :]
        return self.head(x).float()

    def figures(self, encoder: VisionTransformer, images: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        """Return each image's mean loss over its corrupted patches, (B,), and the accuracy of its colours, (B,)."""
        corruption = corrupt(keys, self.config.patches, self.corrupted_count)
        predicted = self.predict(encoder, images, corruption)
        indices = corruption.corrupted.nonzero()[:, 1].view(len(images), self.corrupted_count)  # (B, count)

        def select_corrupted(values: Tensor) -> Tensor:  # (B, N, ...) -> (B, count, ...)
            index = indices.view(*indices.shape, *[1] * (values.ndim - 2))
            return values.gather(1, index.expand(-1, -1, *values.shape[2:]))

        if self.side is None:
            error = predicted - patchify(images.float(), self.config.patch_size)
            return (select_corrupted(error).square().mean(dim=(1, 2)),)
        pixels = images.float() * self.std + self.mean
        colours = quantised_colours(pixels, self.config.patch_size, self.side)  # (B, N, side * side)
        colours = select_corrupted(colours)
        shape = (len(images), self.corrupted_count, self.side**2, -1)
        logits = select_corrupted(predicted).reshape(shape)  # (B, count, side * side, colours)
        losses = F.cross_entropy(logits.permute(0, 3, 1, 2), colours, reduction="none")  # (B, count, side * side)
        is_correct = logits.argmax(dim=3) == colours
        return losses.mean(dim=(1, 2)), is_correct.float().mean(dim=(1, 2))

    def reconstruct(self, encoder: VisionTransformer, images: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Do the same as `MaskedAutoencoding.reconstruct`."""
        config = self.config
        corruption = corrupt(keys, config.patches, self.corrupted_count)
        predicted = self.predict(encoder, images, corruption)  # (B, N, outputs)
        if self.side is not None:  # the outputs are logits of quantised colours, otherwise they are pixels
            numbers = predicted.reshape(*predicted.shape[:2], self.side**2, -1).argmax(dim=3)  # (B, N, side * side)
            pixels = dequantised_colours(numbers, config.in_channels, config.patch_size, self.side, config.image_size)
            predicted = patchify((pixels - self.mean) / self.std, config.patch_size)
        return predicted, corruption.corrupted
