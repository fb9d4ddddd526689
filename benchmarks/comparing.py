"""Are the verdicts of `vitkit compare` right? `python benchmarks/comparing.py [--smoke]`.

Answers of 2 to 10 models are drawn of which the truth is known: a seed's luck moves all of a training's answers
(standard deviation of its accuracy: luck), half of what makes an image hard is the same for all, a tenth a model's own
over all its seeds. `vitkit.experiments.statistics.Family` judges them, as a comparison does, with fewer draws.

Among equal models, all with an accuracy of .8:

    false      any two recipes are told apart: the family-wise error
    trained    any two trained models are told apart the wrong way round
    pair       the 95 % interval of a difference between recipes holds 0: the mean over pairs
    accuracy   the interval of a model's accuracy holds .8
    best       the interval of the best model's accuracy does
    measured   by how many points the best model's measured accuracy flatters it: the mean
    expected   the same of its corrected accuracy

Where one model has .9 and the others .8 (a quarter as many comparisons):

    found        the best recipe is told from at least one of the others
    found pair   from a certain one of them
    found trained  the same of the trained models
    best of      the interval of the best model's accuracy holds its true one

"resampled" is the plain bootstrap, for comparison: seeds and images are drawn again with replacement, percentiles of
the differences give the p-values, and Holm's correction adjusts them. It shows what a few seeds do to it.

The rows with other numbers of images have tiny test sets, and images in groups of five that are alike.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import norm
from tables import RESULTS, result_path, write_table

from vitkit.evaluation import Units
from vitkit.experiments import LEVEL, Family, statistics

MODELS, SEEDS, LUCK, IMAGES = (2, 3, 5, 10), (1, 2, 3, 4, 5), (0.0, 0.01, 0.03, 0.09), 359
UNLIKE = (0.01, 0.05)  # luck of every other model
OTHER_IMAGES = ((10, 1), (60, 1), (60, 5), (360, 5))  # numbers of images, and sizes of their groups
EQUAL, BETTER = 0.8, 0.9
REPEATS, DRAWS = {2: 1000, 3: 1000, 5: 500, 10: 500}, 2000
ALIKE = 0.7  # the part of what makes an image hard that is the same in its group
Answers = npt.NDArray[np.bool_]


class Setting(NamedTuple):
    """Comparisons of one kind; `group` images are alike."""

    models: int
    seeds: int
    luck: tuple[float, ...]
    images: int = IMAGES
    group: int = 1

    @property
    def units(self) -> Units:
        return Units.of(self.images, np.arange(self.images) // self.group if self.group > 1 else None)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return list(itertools.combinations(range(self.models), 2))

    def rng(self, *first: int) -> np.random.Generator:
        usual = (IMAGES, 1)
        other = (self.images, self.group) if (self.images, self.group) != usual else ()
        return np.random.default_rng([*first, self.models, self.seeds, round(1000 * self.luck[0]), *other])


def planted(
    rng: np.random.Generator, accuracies: Sequence[float], setting: Setting
) -> tuple[Answers, npt.NDArray[np.float64]]:
    """Which images the trainings have right, (M, S, n), and each trained model's true accuracy, (M,)."""
    shape = (setting.models, setting.seeds, setting.images)

    def noise(variance: float, *size: int) -> npt.NDArray[np.float64]:
        drawn = rng.normal(0, variance**0.5, size)
        if setting.group == 1:
            return drawn
        of_group = rng.normal(0, variance**0.5, (*size[:-1], -(-size[-1] // setting.group)))
        return (1 - ALIKE) ** 0.5 * drawn + ALIKE**0.5 * of_group.repeat(setting.group, axis=-1)[..., : size[-1]]

    mean = norm.ppf(accuracies)
    width = np.array(setting.luck) / norm.pdf(mean)
    centre = (mean * (1 + width**2) ** 0.5)[:, None] + width[:, None] * rng.normal(size=shape[:2])  # (M, S)
    shared = noise(0.5, setting.images)
    own, rest = noise(0.1, shape[0], 1, setting.images), noise(0.4, *shape)
    return centre[:, :, None] + shared + own + rest > 0, norm.cdf(centre).mean(axis=1)


class Resampling:
    """The plain bootstrap of a setting."""

    def __init__(self, setting: Setting) -> None:
        rng, units = np.random.default_rng(5), setting.units
        drawn = rng.multinomial(units.count, np.full(units.count, 1 / units.count), DRAWS)
        self._images = drawn[:, units.group].T.astype(np.float64)  # (n, draws)
        self._seeds = rng.multinomial(setting.seeds, np.full(setting.seeds, 1 / setting.seeds), DRAWS)  # (draws, S)
        self._first, self._second = np.array(setting.pairs).T

    def is_any_distinguished(self, right: Answers) -> bool:
        accuracy = np.einsum("msd,ds->dm", right.astype(np.float64) @ self._images, self._seeds)
        found = accuracy[:, self._first] - accuracy[:, self._second]
        p = 2 * (1 + np.minimum((found <= 0).sum(axis=0), (found >= 0).sum(axis=0))) / (1 + DRAWS)
        return bool(p.min() * len(p) < LEVEL)


def of_equal(setting: Setting, repeats: int) -> dict[str, float]:
    """How often equal models are judged rightly."""
    rng, pairs = setting.rng(), setting.pairs
    resampling = Resampling(setting)
    counts: Counter[str] = Counter()
    for _ in range(repeats):
        right, true = planted(rng, [EQUAL] * setting.models, setting)
        family = Family(right, setting.units)
        recipes, trained = family.differences(pairs), family.differences(pairs, include_seeds=False)
        low, high = family.interval(0)
        best = family.winner()
        counts["false"] += any(own.is_distinguished for own in recipes)
        counts["trained"] += any(
            own.is_distinguished and own.mean * (true[a] - true[b]) <= 0
            for own, (a, b) in zip(trained, pairs, strict=True)
        )
        counts["pair"] += np.mean([own.interval[0] <= 0 <= own.interval[1] for own in recipes])
        counts["accuracy"] += low <= EQUAL <= high
        counts["best"] += best.interval[0] <= EQUAL <= best.interval[1]
        counts["measured"] += 100 * (best.measured - EQUAL)
        counts["expected"] += 100 * (best.corrected - EQUAL)
        counts["resampled"] += resampling.is_any_distinguished(right)
    return {name: value / repeats for name, value in counts.items()}


def of_better(setting: Setting, repeats: int) -> dict[str, float]:
    """How often a model that is ten points better is found."""
    rng, pairs, others = setting.rng(1), setting.pairs, setting.models - 1
    accuracies = [BETTER, *[EQUAL] * others]
    counts: Counter[str] = Counter()
    for _ in range(repeats):
        right, _ = planted(rng, accuracies, setting)
        family = Family(right, setting.units)
        recipes, trained = (family.differences(pairs, include_seeds=both)[:others] for both in (True, False))
        best = family.winner()
        counts["found"] += any(own.is_distinguished and own.mean > 0 for own in recipes)
        counts["found pair"] += recipes[0].is_distinguished
        counts["found trained"] += trained[0].is_distinguished
        counts["best of"] += best.interval[0] <= accuracies[best.index] <= best.interval[1]
    return {name: value / repeats for name, value in counts.items()}


def measure(setting: Setting, repeats: int | None = None) -> dict[str, Any]:
    """A row of the table."""
    is_alike = len(set(setting.luck)) == 1
    repeats = repeats or (REPEATS[setting.models] if is_alike else 1000)  # unlike models are the nearest to the limit
    statistics.DRAWS = DRAWS  # the same statistics, with coarser p-values
    found = of_equal(setting, repeats) | of_better(setting, repeats // 4)
    luck = "/".join(f"{own:g}" for own in dict.fromkeys(setting.luck))
    figures = {name: round(own, 3) for name, own in found.items()}
    return {**setting._asdict(), "luck": luck, "comparisons": repeats, **figures}


def settings() -> list[Setting]:
    """The rows of the table. With one seed nothing is said of recipes."""
    found = []
    for models, seeds in itertools.product(MODELS, SEEDS):
        found += [Setting(models, seeds, (luck,) * models) for luck in (LUCK if seeds > 1 else LUCK[:1])]
        if seeds > 1:
            found.append(Setting(models, seeds, tuple(UNLIKE[place % 2] for place in range(models))))
    for (images, group), models, seeds in itertools.product(OTHER_IMAGES, (2, 5), (1, 3)):
        found += [
            Setting(models, seeds, (luck,) * models, images, group) for luck in (LUCK[::2] if seeds > 1 else (0,))
        ]
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few settings and repeats; the figures mean nothing")
    parser.add_argument("--repeats", type=int, help="comparisons of equal models in each row; by default 500 to 1000")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the table")
    asked = parser.parse_args(arguments)
    chosen = [Setting(2, 2, (0.01,) * 2), Setting(3, 3, (0.01,) * 3, 60, 5)] if asked.smoke else settings()
    path, rows = result_path("comparing", "float64", folder=asked.out), list[dict[str, Any]]()
    with ProcessPoolExecutor() as pool:
        for row in pool.map(partial(measure, repeats=4 if asked.smoke else asked.repeats), chosen):
            if not rows:
                print("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
            rows.append(row)
            print("| " + " | ".join(map(str, row.values())) + " |", flush=True)
            write_table(path, rows)
    print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
