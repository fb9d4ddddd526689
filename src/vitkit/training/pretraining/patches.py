"""Images as patches and back, and the colours of patches.

Shapes: B images of C channels, N patches in rows of the grid.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

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
