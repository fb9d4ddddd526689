"""What computes logits: the plain model, or one of its faster doubles."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from vitkit.errors import VitkitError, first_line

Backend = Literal["auto", "eager", "compile", "openvino", "onnx"]
Precision = Literal["auto", "float32", "bfloat16"]
Plan = Literal[
    "auto", "plain", "folded-fused", "folded-batch", "folded-image", "packed-fused", "packed-batch", "packed-image"
]
BACKENDS: tuple[str, ...] = get_args(Backend)
PRECISIONS: tuple[str, ...] = get_args(Precision)
PLANS: tuple[str, ...] = get_args(Plan)


class Runner(Protocol):
    """Preprocessed images to logits, by one backend in one precision.

    Attributes:
        backend: one of `BACKENDS`, never `auto`.
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


class GraphRunner:
    """A runner whose graph takes any number of images, or one number alone.

    Attributes:
        batch: the only number of images that the graph takes; None for any.
        outputs: number of logits; None where the graph does not say.
    """

    backend: str
    precision: str
    is_concurrent = False
    merged = 0
    plan = ""
    batch: int | None
    outputs: int | None

    def __call__(self, images: Tensor) -> Tensor:
        if self.batch is None:
            return self._answer(images.contiguous())
        missing = images.new_zeros(-len(images) % self.batch, *images.shape[1:])
        whole = torch.split(torch.cat([images, missing]), self.batch)
        return torch.cat([self._answer(piece) for piece in whole])[: len(images)]

    def _answer(self, images: Tensor) -> Tensor:
        """As `_run`, with whatever the runtime raises in a line."""
        try:
            logits = self._run(images)
        except VitkitError:
            raise
        except Exception as error:  # each runtime has its own kinds
            shape = tuple(images.shape)
            raise VitkitError(f"the backend {self.backend} cannot compute {shape}: {first_line(error)}") from error
        if logits.shape != (len(images), self.outputs or logits.shape[-1]):
            raise VitkitError(f"the backend {self.backend} answers {tuple(logits.shape)} for {len(images)} images")
        return logits

    def _run(self, images: Tensor) -> Tensor:
        """(batch, C, height, width), contiguous -> (batch, K)."""
        raise NotImplementedError
