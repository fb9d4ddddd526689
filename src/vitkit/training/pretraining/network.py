"""The network of a pre-training: the encoder, and a task that hides patches and predicts them.

Every image has a key, which alone determines the hidden patches. The hidden patches are therefore the same on every
device and in every batch. `shuffled` and `corrupt` derive the patches from the key. `patchify`, `unpatchify`, `colours`
and `painted` convert between images, patches and colours.

Shapes: B images with C channels, N patches in the order of the grid's rows.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.layers import random_bits
from vitkit.model.vit import VisionTransformer


class Filled(NamedTuple):
    """Images in which the hidden patches are replaced by the predictions.

    Attributes:
        images: (B, C, height, width), normalised as the model reads them.
        hidden: (B, N) bool, the patches that were hidden.
    """

    images: Tensor
    hidden: Tensor


class PretrainingTask(Protocol):
    """The interface of a task that hides patches and predicts them.

    A task is a module. Its weights are not part of the encoder.

    Attributes:
        has_hits: whether a prediction is right or wrong, as for classes of colours. Predictions of pixels only have an
            error.
    """

    has_hits: bool

    def figures(self, encoder: VisionTransformer, images: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        """Return the loss of each image, (B,), and with `has_hits` the fraction of right predictions, (B,)."""

    def fill(self, encoder: VisionTransformer, images: Tensor, keys: Tensor) -> Filled:
        """Return the images with their hidden patches replaced by the predictions."""


class SelfSupervised(nn.Module):
    """An encoder and its task.

    Args:
        encoder: a model without a head.
        task: a module with the methods of `PretrainingTask`.
    """

    encoder: VisionTransformer
    task: nn.Module

    def __init__(self, encoder: VisionTransformer, task: nn.Module) -> None:
        super().__init__()
        self.encoder, self.task = encoder, task

    def forward_heads(self, images: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        """Return the figures of each image, (B,) each, the loss first.

        Args:
            images: (B, C, height, width).
            keys: (B,), the keys that determine the hidden patches.
        """
        figures: tuple[Tensor, ...] = self.task.figures(self.encoder, images, keys)  # type: ignore[operator]
        return figures

    def forward(self, images: Tensor, keys: Tensor) -> Tensor:
        """Return the figures of `forward_heads` as columns: (B, 1) or (B, 2)."""
        return torch.stack(self.forward_heads(images, keys), dim=1)

    @torch.no_grad()
    def fill(self, images: Tensor, keys: Tensor) -> Filled:
        """Return the images with their hidden patches replaced by the predictions."""
        filled: Filled = self.task.fill(self.encoder, images, keys)  # type: ignore[operator]
        return filled


_MASKED, _REPLACED = 0.8, 0.1  # of the corrupted patches; the rest stay as they are (app. B.1.2)


def shuffled(keys: Tensor, patches: int) -> Tensor:
    """Return a random order of the patches of each image: (B,) keys -> (B, N) indices."""
    return random_bits(keys.to(torch.int32), patches).argsort(dim=1, stable=True)


class Corruption(NamedTuple):
    """The corruption of patch embeddings.

    Attributes:
        corrupted: (B, N) bool, the patches whose content is predicted.
        masked: (B, N) bool, the corrupted patches whose embedding is replaced by the [mask] embedding.
        source: (B, N), the index of the patch whose embedding is used: another patch if the patch is replaced, else the
            patch itself.
    """

    corrupted: Tensor
    masked: Tensor
    source: Tensor


def corrupt(keys: Tensor, patches: int, number: int) -> Corruption:
    """Corrupt patches as in app. B.1.2: 80 % are masked, 10 % are replaced by another patch, 10 % stay.

    Args:
        keys: (B,), the keys of the images.
        patches: N, the number of patches of an image.
        number: the number of patches to corrupt in each image.
    """
    bits = random_bits(keys.to(torch.int32), 3 * patches)  # (B, 3N)
    order = bits[:, :patches].argsort(dim=1, stable=True)
    corrupted = torch.zeros_like(order, dtype=torch.bool).scatter(1, order[:, :number], value=True)  # (B, N)
    kind, other = (bits[:, patches:].double() / 2**32 + 0.5).chunk(2, dim=1)  # (B, N) each, in [0, 1)
    positions = torch.arange(patches, device=keys.device).expand_as(order)
    another = (positions + 1 + (other * (patches - 1)).long()) % patches  # any but the patch itself
    masked = corrupted & (kind < _MASKED)
    replaced = corrupted & ~masked & (kind < _MASKED + _REPLACED)
    return Corruption(corrupted, masked, torch.where(replaced, another, positions))


_LEVELS = 8  # of each channel: 3 bits


def patchify(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """Split images into patches: (B, C, height, width) -> (B, N, p * q * C).

    The pixels of a patch are in row order, and the channels of a pixel are adjacent.
    """
    B, C, height, width = images.shape
    p, q = patch
    x = images.reshape(B, C, height // p, p, width // q, q).permute(0, 2, 4, 3, 5, 1)  # (B, h, w, p, q, C)
    return x.reshape(B, (height // p) * (width // q), p * q * C)


def unpatchify(patches: Tensor, patch: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Join patches to images, the inverse of `patchify`: (B, N, p * q * C) -> (B, C, height, width)."""
    (B, _, numbers), (p, q), (height, width) = patches.shape, patch, size
    x = patches.reshape(B, height // p, width // q, p, q, numbers // (p * q)).permute(0, 5, 1, 3, 2, 4)
    return x.reshape(B, -1, height, width)


def colours(pixels: Tensor, patch: tuple[int, int], side: int) -> Tensor:
    """Return the mean colour of each cell of each patch, with 3 bits per channel, as a number below 8^C.

    Args:
        pixels: (B, C, height, width), from 0 to 1.
        patch: the sides of a patch in pixels, divisible by `side`.
        side: the number of cells along a side of a patch.

    Returns:
        (B, N, side * side).
    """
    C = pixels.shape[1]
    cells = F.avg_pool2d(pixels, (patch[0] // side, patch[1] // side))  # (B, C, side * h, side * w)
    levels = (cells * _LEVELS).floor().clamp(0, _LEVELS - 1).long()
    weights = _LEVELS ** torch.arange(C - 1, -1, -1, device=pixels.device)  # the first channel has the highest digit
    numbers = (levels * weights.view(1, C, 1, 1)).sum(dim=1, keepdim=True)  # (B, 1, side * h, side * w)
    return patchify(numbers, (side, side))


def colour_count(channels: int) -> int:
    """Return the number of different colours: 512 for RGB."""
    return int(_LEVELS**channels)


def painted(numbers: Tensor, channels: int, patch: tuple[int, int], side: int, size: tuple[int, int]) -> Tensor:
    """Convert colour numbers to images, the inverse of `colours` up to rounding.

    (B, N, side * side) -> pixels (B, C, height, width) from 0 to 1.
    """
    weights = _LEVELS ** torch.arange(channels - 1, -1, -1, device=numbers.device)
    levels = numbers.unsqueeze(-1) // weights % _LEVELS  # (B, N, side * side, C)
    cells = (levels.flatten(2) + 0.5) / _LEVELS
    cells = unpatchify(cells, (side, side), (size[0] // patch[0] * side, size[1] // patch[1] * side))
    return F.interpolate(cells, size=size, mode="nearest")
