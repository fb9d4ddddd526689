"""What computes logits: the plain model, or one of its faster doubles."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

Engine = Literal["auto", "eager", "compile", "openvino", "onnx"]
Precision = Literal["auto", "float32", "bfloat16"]
ENGINES: tuple[str, ...] = get_args(Engine)
PRECISIONS: tuple[str, ...] = get_args(Precision)


class Runner(Protocol):
    """Preprocessed images to logits, by one engine in one precision.

    Attributes:
        engine: one of `ENGINES`, never `auto`.
        precision: `float32` or `bfloat16`, in which the layers compute.
        is_concurrent: several threads may ask at once, each for a batch of its own.
        merged: patches that are merged away in every layer.
    """

    engine: str
    precision: str
    is_concurrent: bool
    merged: int

    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, height, width) float32 -> (B, K) float32 logits, on the CPU, for any B."""
        ...


class GraphRunner:
    """A runner whose graph takes any number of images, or one number alone.

    Attributes:
        card: what a file of vitkit's says of itself; None where it says nothing.
        batch: the only number of images that the graph takes; None for any.
    """

    engine: str
    precision: str
    is_concurrent = False
    merged = 0
    card: str | None
    batch: int | None

    def __call__(self, images: Tensor) -> Tensor:
        if self.batch is None:
            return self._run(images.contiguous())
        missing = images.new_zeros(-len(images) % self.batch, *images.shape[1:])
        whole = torch.split(torch.cat([images, missing]), self.batch)
        return torch.cat([self._run(piece) for piece in whole])[: len(images)]

    def _run(self, images: Tensor) -> Tensor:
        """(batch, C, height, width), contiguous -> (batch, K)."""
        raise NotImplementedError
