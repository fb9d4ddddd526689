"""What computes logits: the plain model, or one of its faster doubles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Runner(Protocol):
    """Preprocessed images to logits, by one backend in one precision.

    Attributes:
        backend: its name in `registry.BACKENDS`.
        precision: `float32` or `bfloat16`, in which the layers compute.
        is_concurrent: several threads may ask at once, each for a batch of its own.
        merged: patches that are merged away in every layer.
        plan: one of `PLANS`, never `auto`; empty where there is no choice.
    """

    backend: str
    precision: str
    is_concurrent: bool
    merged: int
    plan: str

    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, height, width) float32 -> (B, K) float32 logits, on the CPU, for any B."""
        ...
