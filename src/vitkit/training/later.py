"""On a GPU the outcome of a step is asked for later: whoever asks at once makes the GPU wait for the next step.

The optimiser itself leaves out a step whose loss or gradient is not finite, as it does for a gradient scaler.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LOOK = 50  # steps after which their outcomes are asked for


@dataclass(frozen=True)
class Place:
    """A step: its epoch, its last batch in the epoch, and how many steps were before it."""

    epoch: int
    batch: int
    step: int


class Later:
    """Steps that were taken and whose outcomes still lie on the device."""

    def __init__(self) -> None:
        self._sound: Tensor | None = None  # whether the losses of this step are finite so far
        self._waiting: list[tuple[Tensor, Place]] = []

    def note_loss(self, loss: Tensor) -> None:
        """Take the loss of a batch, (), into account."""
        sound = loss.isfinite()
        self._sound = sound if self._sound is None else self._sound & sound

    def is_sound(self, norm: Tensor) -> Tensor:
        """(), whether the losses of this step and the gradient's norm, (), are finite."""
        return norm.isfinite() if self._sound is None else norm.isfinite() & self._sound

    def prepare(self, optimizer: torch.optim.Optimizer, norm: Tensor, place: Place) -> None:
        """Let a fused optimiser's next step do nothing, should a loss or the gradient's norm, (), not be finite."""
        sound = self.is_sound(norm)
        self._sound = None
        optimizer.grad_scale, optimizer.found_inf = None, (~sound).float()  # type: ignore[attr-defined]
        self._waiting.append((sound, place))

    @property
    def is_due(self) -> bool:
        return len(self._waiting) >= _LOOK

    def settle(self) -> list[Place | None]:
        """For each step since the last time, in their order: None, or which one was left out."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return []
        sound = torch.stack([own for own, _ in waiting]).tolist()
        return [None if good else place for good, (_, place) in zip(sound, waiting, strict=True)]
