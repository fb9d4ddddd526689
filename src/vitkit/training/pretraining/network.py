"""What is trained: an encoder, which is kept, and a task, which makes it fill in what is hidden of a picture.

What is hidden of each image: a function of its key alone, the same on every device and in every batch. Shapes: B
images, N patches.

Images as patches and back, and the colours of patches. Shapes: B images of C channels, N patches in rows of the grid.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.layers import random_bits
from vitkit.model.vit import VisionTransformer


class Filled(NamedTuple):
    """Pictures with what was hidden filled in.

    Attributes:
        images: (B, C, height, width), normalised as the model reads them; what was not hidden is as it was.
        hidden: (B, N) bool, the patches that were.
    """

    images: Tensor
    hidden: Tensor


class Task(Protocol):
    """What is hidden, and how well it is filled in. It is a module of its own weights.

    Attributes:
        has_hits: whether there is a right and a wrong.
    """

    has_hits: bool

    def figures(self, encoder: VisionTransformer, images: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        """The loss of each image, (B,), and, where something can be right, how much of it is, (B,)."""

    def fill(self, encoder: VisionTransformer, images: Tensor, keys: Tensor) -> Filled:
        """The images as the network sees them whole."""


class SelfSupervised(nn.Module):
    """An encoder and its task. Images are shown with a key each, which decides what is hidden of them.

    Args:
        encoder: a model without a head; it is what is kept.
        task: a module that has the methods of `Task`.
    """

    encoder: VisionTransformer
    task: nn.Module

    def __init__(self, encoder: VisionTransformer, task: nn.Module) -> None:
        super().__init__()
        self.encoder, self.task = encoder, task

    def forward_heads(self, images: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        """(B, C, height, width) images, (B,) keys -> the figures of each image, (B,) each, the loss first."""
        figures: tuple[Tensor, ...] = self.task.figures(self.encoder, images, keys)  # type: ignore[operator]
        return figures

    def forward(self, images: Tensor, keys: Tensor) -> Tensor:
        """The same side by side: (B, 1) or (B, 2)."""
        return torch.stack(self.forward_heads(images, keys), dim=1)

    @torch.no_grad()
    def fill(self, images: Tensor, keys: Tensor) -> Filled:
        """The images with what was hidden filled in."""
        filled: Filled = self.task.fill(self.encoder, images, keys)  # type: ignore[operator]
        return filled


_MASKED, _REPLACED = 0.8, 0.1  # of the corrupted patches; the rest stay as they are (app. B.1.2)


def shuffled(keys: Tensor, patches: int) -> Tensor:
    """The patches of each image in a random order: (B,) keys -> (B, N) places."""
    return random_bits(keys.to(torch.int32), patches).argsort(dim=1, stable=True)


class Corruption(NamedTuple):
    """What becomes of every patch of every image.

    Attributes:
        corrupted: (B, N) bool; those whose content is to be told.
        masked: (B, N) bool; those of them that the [mask] embedding takes the place of.
        source: (B, N) the place whose embedding stands in each; its own, but for patches that were replaced.
    """

    corrupted: Tensor
    masked: Tensor
    source: Tensor


def corrupt(keys: Tensor, patches: int, number: int) -> Corruption:
    """App. B.1.2: of `number` patches of each image 80 % are masked, 10 % become another patch, 10 % stay.

    Args:
        keys: (B,), one an image.
        patches: N.
        number: how many are corrupted.
    """
    bits = random_bits(keys.to(torch.int32), 3 * patches)  # (B, 3N)
    order = bits[:, :patches].argsort(dim=1, stable=True)
    corrupted = torch.zeros_like(order, dtype=torch.bool).scatter(1, order[:, :number], value=True)  # (B, N)
    fate, other = (bits[:, patches:].double() / 2**32 + 0.5).chunk(2, dim=1)  # (B, N) each, in [0, 1)
    own = torch.arange(patches, device=keys.device).expand_as(order)
    another = (own + 1 + (other * (patches - 1)).long()) % patches  # any but the patch itself
    masked = corrupted & (fate < _MASKED)
    replaced = corrupted & ~masked & (fate < _MASKED + _REPLACED)
    return Corruption(corrupted, masked, torch.where(replaced, another, own))


_LEVELS = 8  # of each channel: 3 bits


def patchify(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """(B, C, height, width) -> (B, N, p * q * C): each patch row by row, the channels of a pixel side by side."""
    B, C, height, width = images.shape
    p, q = patch
    x = images.reshape(B, C, height // p, p, width // q, q).permute(0, 2, 4, 3, 5, 1)  # (B, h, w, p, q, C)
    return x.reshape(B, (height // p) * (width // q), p * q * C)


def unpatchify(patches: Tensor, patch: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """What `patchify` was given: (B, N, p * q * C) -> (B, C, height, width)."""
    (B, _, numbers), (p, q), (height, width) = patches.shape, patch, size
    x = patches.reshape(B, height // p, width // q, p, q, numbers // (p * q)).permute(0, 5, 1, 3, 2, 4)
    return x.reshape(B, -1, height, width)


def colours(pixels: Tensor, patch: tuple[int, int], side: int) -> Tensor:
    """The 3-bit mean colour of each of side x side cells of each patch, as a number below 8^C.

    Args:
        pixels: (B, C, height, width), 0 to 1.
        patch: its sides in pixels, divisible by `side`.
        side: cells along a side of a patch.

    Returns:
        (B, N, side * side).
    """
    C = pixels.shape[1]
    cells = F.avg_pool2d(pixels, (patch[0] // side, patch[1] // side))  # (B, C, side * h, side * w)
    levels = (cells * _LEVELS).floor().clamp(0, _LEVELS - 1).long()
    place = _LEVELS ** torch.arange(C - 1, -1, -1, device=pixels.device)  # red counts most
    numbers = (levels * place.view(1, C, 1, 1)).sum(dim=1, keepdim=True)  # (B, 1, side * h, side * w)
    return patchify(numbers, (side, side))


def colour_count(channels: int) -> int:
    """How many colours there are: 512 for RGB."""
    return int(_LEVELS**channels)


def painted(numbers: Tensor, channels: int, patch: tuple[int, int], side: int, size: tuple[int, int]) -> Tensor:
    """The middle of each colour as pixels, 0 to 1: (B, N, side * side) -> (B, C, height, width)."""
    place = _LEVELS ** torch.arange(channels - 1, -1, -1, device=numbers.device)
    levels = numbers.unsqueeze(-1) // place % _LEVELS  # (B, N, side * side, C)
    cells = unpatchify(
        (levels.flatten(2) + 0.5) / _LEVELS, (side, side), (size[0] // patch[0] * side, size[1] // patch[1] * side)
    )
    return F.interpolate(cells, size=size, mode="nearest")
