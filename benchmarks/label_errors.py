"""Planted label errors found, and right labels listed: `python benchmarks/label_errors.py DATA WEIGHTS`.

DATA is a folder of photographs in class folders, WEIGHTS a checkpoint that was not trained on it. For each seed, 100
photographs are drawn of every class, 12 of all of them get another class's label, and it is counted how many of the 12
are among the 25 most doubtful. The photographs' own label errors count against it. Then lists are made where nothing is
wrong, and where it is known what is:

    photographs, swapped     the above: five seeds
    photographs, permuted    the same photographs under randomly permuted labels
    noise                    a probe on 200 images of 50 features that say nothing, four classes
    overlapping              a probe on 600 images of three classes that overlap, with right labels
    calibrated               300 images of ten classes whose labels are drawn by the probabilities themselves
    calibrated, swapped      500 of five classes, 12 of which then get another label
    several classes          300 images of eight classes, any number of which they have, drawn likewise
    several, turned round    500 of them, 40 decisions of which are turned round

`listed` are labels, `by chance` those of which the list says that they are expected by chance, `right` those that are
right; all means over the evaluations, of which `any` is the part with a list.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tables import RESULTS, result_path, write_table
from torch import Tensor

from vitkit.data import EvaluationImages, read_source
from vitkit.evaluation import find_suspects, probe_out_of_fold
from vitkit.training import Recipe, blueprint_of, choose_precision, compute_features, new_classifier

SEEDS, PER_CLASS, PLANTED, SHOWN = 5, 100, 12, 25
REPEATS, PROBES = 200, 20  # evaluations that are drawn; those that fit a probe


class Labelled(NamedTuple):
    """What a classifier says of images, their labels, and which of these are wrong."""

    probabilities: npt.NDArray[np.floating]
    labels: npt.NDArray[np.int64]
    wrong: set[int]


def photographs(data: Path, weights: Path, *, is_permuted: bool) -> Iterator[Labelled]:
    """For each seed, photographs with a few labels swapped, or all permuted."""
    whole = read_source(data)
    recipe = Recipe(data=str(data), weights=str(weights), method="probe")
    drawn = [np.random.default_rng(seed) for seed in range(SEEDS)]
    own, k = np.array(whole.labels), len(whole.classes)
    chosen = [np.concatenate([g.permutation(np.flatnonzero(own == c))[:PER_CLASS] for c in range(k)]) for g in drawn]
    every = np.unique(np.concatenate(chosen))
    features, labels = _features(data, recipe, every)
    for seed, (generator, indices) in enumerate(zip(drawn, chosen, strict=True)):
        rows = np.searchsorted(every, indices)
        spoilt, planted = labels[rows].clone(), generator.choice(len(rows), PLANTED, replace=False)
        for i in planted:
            spoilt[i] = int(generator.choice([c for c in range(k) if c != spoilt[i]]))
        if is_permuted:
            spoilt = labels[rows][generator.permutation(len(rows))]
        yield _probed(features[rows], spoilt, k, seed, set() if is_permuted else set(map(int, planted)))


_known: dict[Path, tuple[Tensor, Tensor]] = {}


def _features(data: Path, recipe: Recipe, every: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    if data not in _known:
        table = read_source(data).take(every.tolist())
        frozen = new_classifier(blueprint_of(recipe, table.classes), table, "")
        images, precision = EvaluationImages(table, frozen.preprocess), choose_precision(recipe.precision)
        _known[data] = compute_features(frozen.model, images, recipe, precision, lambda *_: None)[:2]
    return _known[data]


def _probed(features: Tensor, labels: Tensor, classes: int, seed: int, wrong: set[int]) -> Labelled:
    probabilities = probe_out_of_fold(features, labels, classes, seed)
    assert probabilities is not None
    return Labelled(probabilities, labels.numpy(), wrong)


def noise() -> Iterator[Labelled]:
    """Features that say nothing."""
    for seed in range(PROBES):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(200, 50)), rng.integers(4, size=200)
        yield _probed(torch.from_numpy(x).float(), torch.from_numpy(y), 4, seed, set())


def overlapping() -> Iterator[Labelled]:
    """Classes that cannot be distinguished better than two times in three; every label is right."""
    for seed in range(PROBES):
        rng = np.random.default_rng(seed)
        y = rng.integers(3, size=600)
        x = 1.7 * np.eye(3, 10)[y] + rng.normal(size=(600, 10))
        yield _probed(torch.from_numpy(x).float(), torch.from_numpy(y), 3, seed, set())


def calibrated(images: int, classes: int, unsure: float, swapped: int) -> Iterator[Labelled]:
    """Labels that are drawn by the probabilities, some of which then get another class."""
    for seed in range(REPEATS):
        rng = np.random.default_rng(seed)
        rows = rng.dirichlet(np.full(classes, unsure), images)
        labels = np.array([rng.choice(classes, p=row) for row in rows])
        wrong = rng.choice(images, swapped, replace=False)
        labels[wrong] = (labels[wrong] + rng.integers(1, classes, swapped)) % classes
        yield Labelled(rows.astype(np.float32), labels, set(map(int, wrong)))


def several(images: int, turned: int) -> Iterator[Labelled]:
    """Decisions on eight classes that are drawn by their probabilities, some of which are then turned round."""
    for seed in range(REPEATS):
        rng = np.random.default_rng(seed)
        rows = 1 / (1 + np.exp(-(rng.normal(-2, 1, 8) + 4 * rng.normal(size=(images, 8)))))
        labels = (rng.random(rows.shape) < rows).astype(np.int64)
        wrong, which = rng.choice(images, turned, replace=False), rng.integers(8, size=turned)
        labels[wrong, which] = 1 - labels[wrong, which]
        yield Labelled(rows.astype(np.float32), labels, set(map(int, wrong)))


def judge(kind: str, drawn: Iterator[Labelled]) -> tuple[dict[str, Any], list[int]]:
    """A row of the table, and of each evaluation how many of its wrong labels are among the first that are shown."""
    lists, first, wrong = [], [], 0
    for own in drawn:
        suspects = find_suspects(own.probabilities, own.labels)
        right = sum(suspect.index not in own.wrong for suspect in suspects)
        lists.append((len(suspects), sum(suspect.chance for suspect in suspects), right))
        first.append(len({suspect.index for suspect in suspects[:SHOWN]} & own.wrong))
        wrong = len(own.wrong)
    listed, by_chance, right = (round(float(value), 2) for value in np.mean(lists, axis=0))
    row = {"kind": kind, "evaluations": len(lists), "any": round(float(np.mean([own[0] > 0 for own in lists])), 3)}
    row |= {"listed": listed, "most": max(own[0] for own in lists), "by chance": by_chance, "right": right}
    return {**row, "wrong": wrong, "wrong among 25": round(float(np.mean(first)), 2)}, first


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the table")
    asked = parser.parse_args(arguments)
    kinds: dict[str, Callable[[], Iterator[Labelled]]] = {
        "photographs, swapped": lambda: photographs(asked.data, asked.weights, is_permuted=False),
        "photographs, permuted": lambda: photographs(asked.data, asked.weights, is_permuted=True),
        "noise": noise,
        "overlapping": overlapping,
        "calibrated": lambda: calibrated(300, 10, 0.2, 0),
        "calibrated, swapped": lambda: calibrated(500, 5, 0.1, PLANTED),
        "several classes": lambda: several(300, 0),
        "several, turned round": lambda: several(500, 40),
    }
    rows, found = [], []
    for kind, draw in kinds.items():
        row, first = judge(kind, draw())
        found = found or first
        if not rows:
            print("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
        print("| " + " | ".join(map(str, row.values())) + " |", flush=True)
        rows.append(row)
    write_table(result_path("label-errors", "float32", folder=asked.out), rows)
    print(f"planted errors among the {SHOWN} most doubtful: {found}; mean of {len(found)} seeds: {np.mean(found):.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
