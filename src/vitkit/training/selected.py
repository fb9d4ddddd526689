"""How several weights fared on the same training images, and which of them a run begins from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.errors import VitkitError
from vitkit.text.words import aligned, interval_text, listed, plural

_ALIKE = 0.05  # a p-value, above which two are not told apart


@dataclass(frozen=True)
class Trial:
    """One of the weights, and how a linear probe on its frozen features fared.

    Attributes:
        weights: as they were asked for.
        pixels: height and width of the images; None where it was not opened.
        seconds: an image, decoded and computed, on this machine.
        accuracy: of cross-validation, with its 95 % interval; of several classes an image the exact match.
        alike: probability of a difference from the chosen one at least as large where there is none; None of itself.
        reason: why it was not measured; its other figures are then None.
    """

    weights: str
    pixels: tuple[int, int] | None = None
    seconds: float | None = None
    accuracy: float | None = None
    interval: tuple[float, float] | None = None
    alike: float | None = None
    reason: str | None = None

    def cells(self) -> list[str]:
        """Its figures, of weights that were measured."""
        assert self.accuracy is not None and self.interval is not None and self.pixels is not None
        pixels = "x".join(map(str, self.pixels))
        return [f"{self.accuracy:.4f}", interval_text(self.interval), f"{self.seconds:.3f}", pixels]


@dataclass(frozen=True)
class Selection:
    """A choice among weights.

    Attributes:
        trials: each of them, in the order asked for.
        chosen: the weights whose accuracy is the highest; of equal ones those that are quicker.
        images: that each was tested on.
        of: training images that there are.
        parts, tested: of the cross-validation, and how many of them there was time for.
        asked, seconds: the time that was given, and that it took.
        figure: `accuracy`, or `exact match`.
    """

    trials: tuple[Trial, ...]
    chosen: str
    images: int
    of: int
    parts: int
    tested: int
    asked: float
    seconds: float
    figure: str = "accuracy"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], path: Path) -> Selection:
        """What `to_dict` gave.

        Raises:
            VitkitError: it is something else.
        """
        try:
            trials = tuple(Trial(**own) for own in stored["trials"])
            return cls(**{**stored, "trials": trials})
        except (KeyError, TypeError) as error:
            raise VitkitError(f"{path} is damaged: {error}; delete it, and the report does without") from error

    def lines(self) -> list[str]:
        """In words: what was done, a table, and what may be said of it."""
        return [self.summary(), *(f"  {line}" for line in aligned(self.table())), *self.remarks()]

    def summary(self) -> str:
        """What was done."""
        measured = sum(own.reason is None for own in self.trials)
        parts = f"{self.tested} of {self.parts}" if self.tested < self.parts else f"{self.parts}"
        return (
            f"{measured} of {len(self.trials)} weights tried in {self.seconds:.0f} of {self.asked:g} s: a linear probe "
            f"on frozen features, cross-validated ({parts} parts), on {self.images} of "
            f"{plural(self.of, 'training image', 'training images')}"
        )

    def table(self, name: Callable[[str], str] = str) -> list[list[str]]:
        """A heading and a row for each of the weights, the best first; those that were not measured say why.

        Args:
            name: what to call weights.
        """
        known = sorted((own for own in self.trials if own.reason is None), key=rank)
        left = [own for own in self.trials if own.reason is not None]
        return [
            ["weights", "images", self.figure, "95 %", "s/image", "pixels"],
            *([name(own.weights), str(self.images), *own.cells()] for own in known),
            *([name(own.weights), "0", f"not measured: {own.reason}", "", "", ""] for own in left),
        ]

    def remarks(self, name: Callable[[str], str] = str) -> list[str]:
        """What was chosen, what its figure is worth, and what these images do not tell from it."""
        best = next(own for own in self.trials if own.weights == self.chosen)
        alike = [own for own in self.trials if own.alike is not None and own.alike > _ALIKE]
        told = [
            f"{name(own.weights)} (p {own.alike:.2g}, {own.seconds / best.seconds:.2g} x its time an image)"
            for own in alike
            if own.seconds and best.seconds
        ]
        worth = f"its {self.figure} above is of the choosing, the best of several"
        return [
            f"weights {name(self.chosen)}: chosen; {worth}, which looked at no validation or test image",
            *([f"these images do not tell it from {listed(told, len(told))}"] if told else []),
        ]


def rank(trial: Trial) -> tuple[float, float]:
    """The best first: by accuracy, and of equal ones the quicker."""
    assert trial.accuracy is not None and trial.seconds is not None
    return -trial.accuracy, trial.seconds


def no_difference(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_], groups: Sequence[int]) -> float:
    """How probable it is, where two are equally good, that their answers differ as one-sidedly as these: a sign test.

    Args:
        first: which images one has right, (n,).
        second: the same of the other.
        groups: a number for each image; those of one number count as one.
    """
    from scipy.stats import binomtest

    _, group = np.unique(groups, return_inverse=True)
    better = np.sign(np.bincount(group, first.astype(np.float64) - second.astype(np.float64)))
    decided = int(np.abs(better).sum())
    return float(binomtest(int((better > 0).sum()), decided).pvalue) if decided else 1.0
