"""What is trained: an encoder, which is kept, and a task, which makes it fill in what is hidden of a picture."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

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
