"""Classes of unequal size: whether their images count alike, and how much each counts where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

UNEQUAL = 3  # the largest class has more than so many times the images of the smallest: `auto` balances


def settle_balance(
    balance: Literal["auto", "loss", "sampler", "none"], counts: Sequence[int]
) -> tuple[Literal["loss", "sampler", "none"], str | None]:
    """How the classes are balanced, and a line that says so where `auto` decides to.

    Args:
        balance: what was asked for.
        counts: training images of each class; those of classes without any do not count.
    """
    if balance != "auto":
        return balance, None
    occurring = [count for count in counts if count]
    if not occurring or max(occurring) <= UNEQUAL * min(occurring):
        return "none", None
    return "loss", (
        f"balance loss: classes have {min(occurring)} to {max(occurring)} training images, so rare ones weigh more"
        " (--balance none to leave it)"
    )


def class_weights(counts: Sequence[int]) -> Tensor:
    """(K,) weights, inverse to the classes' images, whose mean over all training images is 1.

    Args:
        counts: training images of each class; a class without any has weight 0.
    """
    images = torch.tensor(counts, dtype=torch.float64)
    inverse = torch.where(images > 0, images.sum() / images.clamp(min=1), 0.0)
    return (inverse / (images > 0).sum()).float()
