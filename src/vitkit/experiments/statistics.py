"""Whether one configuration is better than another, by what each of its trainings said of the same images.

Two things of chance are in an accuracy: which images it was measured on, and the seed of the training. An interval that
holds for both needs both: the images and the seeds are two crossed random factors, in pairs where two models are
compared. The variance of the difference is estimated for each factor; the one between seeds, of which there are few, is
taken S / (S - 1) times, and the quantile is Student's with the degrees of freedom of Satterthwaite (1946). A bootstrap
that draws seeds, then images, has the variance between S seeds (S - 1) / S times and normal quantiles, which misses the
truth too often with two or three (docs/decisions/0027-comparing.md has the coverage of both).

Two imagined images, one that only the first model has right and one that only the second has, keep an interval from
being empty where nothing differs (Agresti and Min 2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtr, stdtrit

from vitkit.evaluation.intervals import TAIL, Interval, Units, mean_interval

Floats = npt.NDArray[np.float64]
LEVEL = 2 * TAIL


@dataclass(frozen=True)
class Spread:
    """How far chance may have moved a mean over seeds and images.

    Attributes:
        seeds: variance of the mean that comes of the seeds, 0 with one seed.
        images: variance of the mean that comes of the images.
        of_seeds, of_images: how many there are, of images those that are independent.
    """

    seeds: float
    images: float
    of_seeds: int
    of_images: int

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return float((self.seeds + self.images) ** 0.5)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the error (Satterthwaite 1946)."""
        parts = self.images**2 / max(self.of_images - 1, 1)
        if self.of_seeds > 1:
            parts += self.seeds**2 / (self.of_seeds - 1)
        return float((self.seeds + self.images) ** 2 / parts) if parts else float(max(self.of_images - 1, 1))

    def margin(self, level: float = LEVEL) -> float:
        """Half of the interval that misses the truth with this probability."""
        return float(stdtrit(self.freedom, 1 - level / 2)) * self.error

    def p_of(self, mean: float) -> float:
        """How probable a mean at least as far from 0 is where the truth is 0."""
        return min(float(2 * stdtr(self.freedom, -abs(mean) / self.error)), 1.0) if self.error else 1.0


def spread_of(values: Floats, units: Units) -> Spread:
    """Of the mean of `values` (S, n): S seeds, n images.

    Args:
        values: of each seed's training for each image.
        units: the images, or the groups of them that are independent of one another.
    """
    S, n = values.shape
    mean, of_image = values.mean(), values.mean(axis=0)
    sums = np.bincount(units.group, of_image - mean)
    images = float((sums**2).sum()) / n**2 * units.count / max(units.count - 1, 1)
    seeds = float(values.mean(axis=1).var()) / (S - 1) if S > 1 else 0.0  # of the mean of S
    return Spread(seeds * (S / (S - 1) if S > 1 else 1.0), images, S, units.count)


@dataclass(frozen=True)
class Difference:
    """How much better the first of two models is than the second, paired over seeds and images.

    Attributes:
        mean: accuracy of the first less that of the second.
        interval: 95 %, of this pair alone.
        p: of no difference, of this pair alone.
        spread: what the interval is made of.
    """

    mean: float
    interval: Interval
    p: float
    spread: Spread

    def needed(self, pairs: int) -> float:
        """The least difference that would be told from none among so many pairs."""
        return self.spread.margin(LEVEL / pairs)


def difference(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_], units: Units) -> Difference:
    """Compare two models by which images they have right, each (S, n): S seeds, n images, in the same order.

    Raises:
        ValueError: the two have other shapes.
    """
    if first.shape != second.shape:
        raise ValueError(f"pairs are compared: {first.shape} is not {second.shape}")
    found = first.astype(np.float64) - second.astype(np.float64)  # (S, n)
    plain = spread_of(found, units)
    imagined = 2 * (units.imagined / (found.shape[1] + 2 * units.imagined)) ** 2
    spread = Spread(plain.seeds, plain.images + imagined, plain.of_seeds, plain.of_images)
    mean, margin = float(found.mean()), spread.margin()
    return Difference(mean, (max(mean - margin, -1.0), min(mean + margin, 1.0)), spread.p_of(mean), spread)


def accuracy_interval(is_right: npt.NDArray[np.bool_], units: Units) -> Interval:
    """95 % interval of the accuracy of trainings like these, on images like these.

    With one seed it is that of the images alone, by Clopper and Pearson. With more its ends are moved out by what the
    seeds add to the variance.

    Args:
        is_right: which images each seed's training has right, (S, n).
        units: the images, or the groups of them that are independent of one another.
    """
    values = is_right.astype(np.float64)
    mean, z = float(values.mean()), float(ndtri(1 - TAIL))
    low, high = mean_interval(values.mean(axis=0), 1.0, units)
    seeds = spread_of(values, units).seeds
    if not seeds:
        return low, high
    ends = []
    for end in (low, high):
        own = Spread(seeds, ((end - mean) / z) ** 2, len(values), units.count)
        ends.append(own.margin())
    return max(mean - ends[0], 0.0), min(mean + ends[1], 1.0)


def holm(p: Sequence[float]) -> list[float]:
    """Each p-value as it counts among all of them (Holm 1979): below a level, it is told apart at that level."""
    order, adjusted, largest = np.argsort(p, kind="stable"), [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min((len(p) - rank) * p[i], 1.0))
        adjusted[i] = largest
    return adjusted
