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

    pixels: Pixels | None = None  # if not None, the graph normalises pixels and calibrates logits by these values
    # The module of `exportable_copy(model)` whose output the graph returns instead of the logits; None for the logits
    layer: str | None = None


WHOLE = Span()  # from normalised images to logits
