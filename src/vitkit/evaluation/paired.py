"""Compare two models, or two ways to use a model, on the same images.

The difference of two accuracies depends only on the images that one of the two predicts correctly and the other does
not, so it is known much better than either accuracy. Its interval is that of the mean of a bounded value
(`intervals.mean_interval`): an imaginary image that only the first, or only the second, predicts correctly keeps it
from being empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.evaluation.figures import unseen_part
from vitkit.evaluation.intervals import Interval, Units, mean_interval
from vitkit.evaluation.metrics import Evaluation
from vitkit.text.cells import interval_text


@dataclass(frozen=True)
class Gain:
    """The difference between two accuracies on the same images.

    Attributes:
        mean: accuracy of the second minus that of the first.
        interval: 95 % interval of the difference on an unlimited number of such images.
        gained: the number of images that only the second predicts correctly.
        lost: the number of images that only the first predicts correctly.
    """

    mean: float
    interval: Interval
    gained: int
    lost: int

    @property
    def is_certain(self) -> bool:
        """Whether the second is better by more than chance explains."""
        return self.interval[0] > 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "accuracy": self.mean,
            "interval_95": list(self.interval),
            "gained": self.gained,
            "lost": self.lost,
        }

    def __str__(self) -> str:
        return f"{self.mean:+.4f} (95 %: {interval_text(self.interval)})"


def gain(first: Evaluation, second: Evaluation, tests: int = 1) -> Gain:
    """Return how much better the second evaluation is than the first.

    Args:
        first: an evaluation.
        second: an evaluation of the same images, in the same order.
        tests: the number of comparisons of which the best is looked at. The intervals of all of them hold together with
            a probability of 95 % (Bonferroni).
    """
    assert first.paths == second.paths
    before, after = is_right(first), is_right(second)
    units = Units.of(len(before), np.array(first.groups) if first.groups else None)
    halves = (1.0 + after - before) / 2  # from 0 to 1
    low, high = mean_interval(halves, 1.0, units, tests)
    return Gain(
        mean=float(2 * halves.mean() - 1),
        interval=(2 * low - 1, 2 * high - 1),
        gained=int((after & ~before).sum()),
        lost=int((before & ~after).sum()),
    )


def is_right(evaluation: Evaluation) -> npt.NDArray[np.bool_]:
    """Return which images are predicted correctly, (n,): all of their classes if they may have several."""
    right = np.asarray(evaluation.labels == evaluation.predicted)
    return np.asarray(right if right.ndim == 1 else right.all(axis=1))


def tta_figures(
    plain: Evaluation,
    averaged: Evaluation,
    seen: Mapping[str, str] | None,
    views: tuple[str, int],
    seconds: tuple[float, float],
) -> dict[str, Any]:
    """Return the entry `tta` of evaluation.json: what averaging over views gains, and what it costs.

    Args:
        plain: the evaluation of the usual input.
        averaged: the evaluation with several views of each image.
        seen: role by path of the images that the weights had seen, which do not count; None if this is unknown.
        views: the names of the views, and their number.
        seconds: the time of each of the two evaluations.
    """
    before, after = unseen_part(plain, seen), unseen_part(averaged, seen)
    compared: dict[str, Any] = {"plain": None, "gain": None}
    if before is not None and after is not None:
        compared = {"plain": {**before.summary()}, "gain": gain(before, after).to_dict()}
    return {
        "tta": {
            "views": views[0],
            "per_image": views[1],
            "seconds": {"plain": round(seconds[0], 3), "tta": round(seconds[1], 3)},
            "times_slower": round(seconds[1] / seconds[0], 2),
            **compared,
        }
    }


def tta_lines(numbers: Mapping[str, Any]) -> list[str]:
    """Describe in a line what averaging over views gained, and what it cost; empty if it was not used.

    Args:
        numbers: content of evaluation.json.
    """
    entry = numbers.get("tta")
    if entry is None:
        return []
    cost = f"{entry['per_image']} views of each image ({entry['views']}), {entry['times_slower']:.1f} times slower"
    if entry["gain"] is None:
        return [f"{cost}; no image is left to compare on"]
    interval = interval_text(entry["gain"]["interval_95"])
    change = f"accuracy {entry['gain']['accuracy']:+.4f} (95 %: {interval})"
    before = f"from {entry['plain']['accuracy']:.4f} with one view"
    return [f"{cost}: {change}, {before}; the temperature and thresholds are those of one view"]
