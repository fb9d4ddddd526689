"""What is hidden of each image: a function of its key alone, the same on every device and in every batch.

Shapes: B images, N patches.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitkit.model.layers import random_bits

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
