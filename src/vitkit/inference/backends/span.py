"""Where a graph begins and ends: its part of preprocessing, and the layer whose output it returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pixels:
    """The normalisation of pixels and the calibration of logits, as in the card of a file.

    Attributes:
        mean, std: one number for each channel, for pixels scaled to [0, 1].
        temperature: the divisor of the logits.
        is_multi_label: whether each class has a probability of its own, by a sigmoid.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    temperature: float
    is_multi_label: bool


@dataclass(frozen=True)
class Span:
    """Where a graph begins and ends.

    Attributes:
        pixels: how to normalise pixels and calibrate logits, if this is part of the graph; None for a graph that takes
            normalised images and returns logits.
        until: the module of `folded(model)` whose output the graph returns in place of the logits; None for the logits.
    """

    pixels: Pixels | None = None
    until: str | None = None


WHOLE = Span()  # from normalised images to logits
