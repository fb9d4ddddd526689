"""Compare two models, or two ways to use a model, on the same images.

The difference of two accuracies depends only on the images that exactly one of the two models predicts correctly.
Therefore it is known more precisely than either accuracy. Its confidence interval is computed by
`intervals.mean_interval`, which adds an imaginary image that exactly one of the models predicts correctly. As a result,
the interval has a positive width even if the models never differ.
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
        mean: accuracy of the second model minus that of the first model.
        interval: 95 % confidence interval of the difference on an unlimited number of such images.
        gained: the number of images that only the second model predicts correctly.
        lost: the number of images that only the first model predicts correctly.
    """

    mean: float
    interval: Interval
    gained: int
    lost: int

    @property
    def is_certain(self) -> bool:
        """Whether the second model is significantly better, that is, the interval is above 0."""
        return self.interval[0] > 0

    def to_dict(self) -> dict[str, Any]:
        """Return the gain in plain JSON types, as in evaluation.json."""
        return {
            "accuracy": self.mean,
            "interval_95": list(self.interval),
            "gained": self.gained,
            "lost": self.lost,
        }

    def __str__(self) -> str:
        return f"{self.mean:+.4f} (95 %: {interval_text(self.interval)})"


def gain(first: Evaluation, second: Evaluation, tests: int = 1) -> Gain:
    """Compute the gain in accuracy of the second evaluation over the first.

    Args:
        first: an evaluation.
        second: an evaluation of the same images, in the same order.
        tests: the number of comparisons from which the best one is selected. The interval is widened, so that the
            intervals of all comparisons hold together with a probability of 95 % (Bonferroni).
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
    """Return whether each image is predicted correctly, (n,). For several classes per image, all must be correct."""
    right = np.asarray(evaluation.labels == evaluation.predicted)
    return np.asarray(right if right.ndim == 1 else right.all(axis=1))


def tta_figures(
    plain: Evaluation,
    averaged: Evaluation,
    seen: Mapping[str, str] | None,
    views: tuple[str, int],
    seconds: tuple[float, float],
) -> dict[str, Any]:
    """Return the entry `tta` of evaluation.json: the gain and the cost of averaging over views of each image.

    Args:
        plain: the evaluation with a single view of each image.
        averaged: the evaluation with several views of each image.
        seen: role by path of the images that the weights had seen, which are excluded; None if this is unknown.
        views: the names of the views, and the number of views.
        seconds: the time of the evaluation with a single view, and with several views.
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
    """Describe the gain and the cost of averaging over views in one line; empty if it was not used.

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
