"""What computes logits: the plain model, or one of its faster doubles."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

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
    """

    engine: str
    precision: str

    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, height, width) float32 -> (B, K) float32 logits, on the CPU, for any B."""
        ...
