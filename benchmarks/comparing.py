"""Does the interval of a difference between two models hold the truth? `python benchmarks/comparing.py [--smoke]`.

Answers of two models are drawn of which the truth is known: a seed's luck moves all of a training's answers (standard
deviation of its accuracy: luck), half of what makes an image hard is the same for all, a tenth a model's own over all
its seeds. Accuracies are .8 and .75 (`held`, `found`), or .8 both (`false`).

    held       the 95 % interval of the difference holds 5 points, by `vitkit.experiments.statistics.difference`
    accuracy   the interval of a model's own accuracy holds .8
    bootstrap  as `held`, by percentiles of a bootstrap that draws seeds, then images
    found      the 5 points are told from none
    false      two configurations that are as good as one another are told apart
    points     half of the interval, in points: the median
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import norm
from tables import RESULTS, result_path, write_table

from vitkit.evaluation.intervals import Units
from vitkit.experiments.statistics import LEVEL, accuracy_interval, difference

SEEDS, IMAGES, LUCK = (1, 2, 3, 5), (60, 400), (0.0, 0.01, 0.03)
REPEATS, DRAWS = 400, 200
BETTER, WORSE = 0.8, 0.75
Answers = npt.NDArray[np.bool_]


def planted(rng: np.random.Generator, accuracies: list[float], seeds: int, images: int, luck: float) -> list[Answers]:
    """Which images the trainings of each model have right, (S, n)."""
    shared = rng.normal(0, 0.5**0.5, images)
    found = []
    for accuracy in accuracies:
        width = luck / norm.pdf(norm.ppf(accuracy))
        shift = norm.ppf(accuracy) * (1 + width**2) ** 0.5
        own, rest = rng.normal(0, 0.1**0.5, images), rng.normal(0, 0.4**0.5, (seeds, images))
        found.append(shift + rng.normal(0, width, (seeds, 1)) + shared + own + rest > 0)
    return found


def bootstrapped(rng: np.random.Generator, first: Answers, second: Answers) -> tuple[float, float]:
    """Percentiles of the difference over seeds and images drawn with replacement, in pairs."""
    found = first.astype(float) - second
    S, n = found.shape
    seeds = rng.multinomial(S, np.full(S, 1 / S), DRAWS) / S  # (draws, S)
    images = rng.multinomial(n, np.full(n, 1 / n), DRAWS) / n  # (draws, n)
    low, high = np.quantile(np.einsum("bs,sn,bn->b", seeds, found, images, optimize=True), [0.025, 0.975])
    return float(low), float(high)


def measure(seeds: int, images: int, luck: float, repeats: int) -> dict[str, Any]:
    """A row of the table."""
    rng, units = np.random.default_rng([seeds, images, round(1000 * luck)]), Units.of(images, None)
    counts, halves = dict.fromkeys(("held", "accuracy", "bootstrap", "found", "false"), 0), []
    for _ in range(repeats):
        first, second, same = planted(rng, [BETTER, WORSE, BETTER], seeds, images, luck)
        own, (low, high) = difference(first, second, units), bootstrapped(rng, first, second)
        counts["held"] += own.interval[0] <= BETTER - WORSE <= own.interval[1]
        counts["bootstrap"] += low <= BETTER - WORSE <= high
        counts["found"] += own.p < LEVEL
        counts["false"] += difference(first, same, units).p < LEVEL
        low, high = accuracy_interval(first, units)
        counts["accuracy"] += low <= BETTER <= high
        halves.append(50 * (own.interval[1] - own.interval[0]))
    row: dict[str, Any] = {"seeds": seeds, "images": images, "luck": luck}
    return {
        **row,
        **{name: own / repeats for name, own in counts.items()},
        "points": round(float(np.median(halves)), 1),
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few settings and repeats; the figures mean nothing")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the table")
    asked = parser.parse_args(arguments)
    settings = [(2, 60, 0.01), (3, 60, 0.01)] if asked.smoke else list(product(SEEDS, IMAGES, LUCK))
    rows = []
    for setting in settings:
        rows.append(measure(*setting, repeats=20 if asked.smoke else REPEATS))
        if len(rows) == 1:
            print("| " + " | ".join(rows[0]) + " |\n" + "|---" * len(rows[0]) + "|")
        print("| " + " | ".join(map(str, rows[-1].values())) + " |", flush=True)
    path = result_path("comparing", "float64", folder=asked.out)
    write_table(path, rows)
    print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
