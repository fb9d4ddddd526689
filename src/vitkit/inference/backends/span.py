"""Where a graph begins and ends: its part of preprocessing, and the layer whose output it returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pixels:
    """The normalisation of pixels and the calibration of logits, as in the card of a file."""

    mean: tuple[float, ...]  # of each channel, for pixels scaled to [0, 1]
    std: tuple[float, ...]
    temperature: float  # the divisor of the logits
    is_multi_label: bool  # whether each class has a probability of its own, by a sigmoid


@dataclass(frozen=True)
class Span:
    """Where a graph begins and ends: by default, it takes normalised images and returns logits."""

    pixels: Pixels | None = None  # how to normalise pixels and calibrate logits, if this is part of the graph
    until: str | None = None  # the module of `folded(model)` whose output the graph returns in place of the logits


WHOLE = Span()  # from normalised images to logits
