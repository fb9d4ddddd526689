"""The normalisation of the input and the calibration of the output of a graph that takes pixels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pixels:
    """The normalisation of pixels and the calibration of logits, as in the card of a file."""

    mean: tuple[float, ...]  # of each channel, for pixels scaled to [0, 1]
    std: tuple[float, ...]
    temperature: float  # the divisor of the logits
    is_multi_label: bool  # whether each class has a probability of its own, by a sigmoid
