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

"by Holm" is how a comparison judged before: each pair's own variance, Student's quantile with Satterthwaite's degrees
of freedom, Holm's correction.
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
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr
from scipy.stats import norm
from tables import RESULTS, result_path, write_table

from vitkit.evaluation import Units
from vitkit.experiments import LEVEL, Family, statistics

MODELS, SEEDS, LUCK, IMAGES = (2, 3, 5, 10), (1, 2, 3, 4, 5), (0.0, 0.01, 0.03, 0.09), 359
UNLIKE = (0.01, 0.05)  # luck of every other model
EQUAL, BETTER = 0.8, 0.9
REPEATS, DRAWS = {2: 1000, 3: 1000, 5: 500, 10: 500}, 2000
Answers = npt.NDArray[np.bool_]


def planted(
    rng: np.random.Generator, accuracies: Sequence[float], seeds: int, luck: Sequence[float]
) -> tuple[Answers, npt.NDArray[np.float64]]:
    """Which images the trainings have right, (M, S, n), and each trained model's true accuracy, (M,)."""
    shape = (len(accuracies), seeds, IMAGES)
    mean = norm.ppf(accuracies)
    width = np.array(luck) / norm.pdf(mean)
    centre = (mean * (1 + width**2) ** 0.5)[:, None] + width[:, None] * rng.normal(size=shape[:2])  # (M, S)
    shared = rng.normal(0, 0.5**0.5, IMAGES)
    own, rest = rng.normal(0, 0.1**0.5, (shape[0], 1, IMAGES)), rng.normal(0, 0.4**0.5, shape)
    return centre[:, :, None] + shared + own + rest > 0, norm.cdf(centre).mean(axis=1)


def by_holm(right: Answers) -> bool:
    """Whether any two are told apart as it was done before."""
    (M, S, n), values = right.shape, right.astype(np.float64)
    p = []
    for a, b in itertools.combinations(range(M), 2):
        found = values[a] - values[b]
        images = float(found.mean(axis=0).var()) / (n - 1) + 2 / (n + 2) ** 2
        seeds = float(found.mean(axis=1).var(ddof=1)) / S if S > 1 else 0.0
        freedom = (seeds + images) ** 2 / (images**2 / (n - 1) + (seeds**2 / (S - 1) if S > 1 else 0))
        p.append(2 * float(stdtr(freedom, -abs(found.mean()) / (seeds + images) ** 0.5)))
    return min(p) * len(p) < LEVEL


def of_equal(models: int, seeds: int, luck: Sequence[float], repeats: int) -> dict[str, float]:
    """How often equal models are judged rightly."""
    rng, pairs = np.random.default_rng([models, seeds, round(1000 * luck[0])]), _pairs(models)
    counts: Counter[str] = Counter()
    for _ in range(repeats):
        right, true = planted(rng, [EQUAL] * models, seeds, luck)
        family = Family(right, Units.of(IMAGES, None))
        recipes, trained = family.differences(pairs), family.differences(pairs, of_recipes=False)
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
        counts["by Holm"] += by_holm(right)
    return {name: value / repeats for name, value in counts.items()}


def of_better(models: int, seeds: int, luck: Sequence[float], repeats: int) -> dict[str, float]:
    """How often a model that is ten points better is found."""
    rng, pairs = np.random.default_rng([1, models, seeds, round(1000 * luck[0])]), _pairs(models)
    accuracies = [BETTER, *[EQUAL] * (models - 1)]
    counts: Counter[str] = Counter()
    for _ in range(repeats):
        right, _ = planted(rng, accuracies, seeds, luck)
        family = Family(right, Units.of(IMAGES, None))
        recipes, trained = (family.differences(pairs, of_recipes=both)[: models - 1] for both in (True, False))
        best = family.winner()
        counts["found"] += any(own.is_distinguished and own.mean > 0 for own in recipes)
        counts["found pair"] += recipes[0].is_distinguished
        counts["found trained"] += trained[0].is_distinguished
        counts["best of"] += best.interval[0] <= accuracies[best.index] <= best.interval[1]
    return {name: value / repeats for name, value in counts.items()}


def _pairs(models: int) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(models), 2))


def measure(setting: tuple[int, int, list[float]], is_smoke: bool = False) -> dict[str, Any]:
    """A row of the table: models, seeds and the luck of each model."""
    models, seeds, luck = setting
    repeats = REPEATS[models] if len(set(luck)) == 1 else 1000  # the nearest to the limit
    repeats = 4 if is_smoke else repeats
    statistics.DRAWS = DRAWS  # the same statistics, with coarser p-values
    found = of_equal(models, seeds, luck, repeats) | of_better(models, seeds, luck, repeats // 4)
    shown = "/".join(f"{own:g}" for own in dict.fromkeys(luck))
    figures = {name: round(own, 3) for name, own in found.items()}
    return {"models": models, "seeds": seeds, "luck": shown, "comparisons": repeats, **figures}


def settings() -> list[tuple[int, int, list[float]]]:
    """Models, seeds, and the luck of each model. With one seed nothing is said of recipes."""
    found = []
    for models, seeds in itertools.product(MODELS, SEEDS):
        found += [(models, seeds, [luck] * models) for luck in (LUCK if seeds > 1 else LUCK[:1])]
        if seeds > 1:
            found.append((models, seeds, [UNLIKE[place % 2] for place in range(models)]))
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few settings and repeats; the figures mean nothing")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the table")
    asked = parser.parse_args(arguments)
    chosen = [(2, 2, [0.01] * 2), (3, 3, [0.01] * 3)] if asked.smoke else settings()
    path, rows = result_path("comparing", "float64", folder=asked.out), list[dict[str, Any]]()
    with ProcessPoolExecutor() as pool:
        for row in pool.map(partial(measure, is_smoke=asked.smoke), chosen):
            if not rows:
                print("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
            rows.append(row)
            print("| " + " | ".join(map(str, row.values())) + " |", flush=True)
            write_table(path, rows)
    print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
