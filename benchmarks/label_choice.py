"""Labelling what is chosen, beside what is drawn: `python benchmarks/label_choice.py DATA WEIGHTS [--shuffled]`.

DATA is a folder of photographs in class folders, WEIGHTS a checkpoint that was not trained on it. For each seed two
fifths of the photographs are set aside to judge by, which nobody can choose; of the others, ten at a time are labelled:
drawn by lot, or chosen by `evaluation.label_choice`. A linear head on the frozen features of those with labels is then
judged by what was set aside. Both ways have the same photographs, judges and heads, so their difference is paired.
`--shuffled` deals the labels anew, by lot: nothing can be learned, and both must come out at chance.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import t
from sklearn.linear_model import LogisticRegression
from tables import RESULTS, result_path, write_table

import vitkit
from vitkit.data import read_source
from vitkit.evaluation import choose_next

SIZES, BATCH = (10, 20, 40, 80, 160), 10
FIRST_SEED, SEEDS = 100, 8  # others than those that the way of choosing was settled on
JUDGES = 0.4
_PENALTY = 1 / 30

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Choose = Callable[[Floats, list[int | None], int, int], list[int]]


def drawn(x: Floats, labels: list[int | None], count: int, seed: int) -> list[int]:  # noqa: ARG001
    """By lot."""
    free = [i for i, label in enumerate(labels) if label is None]
    return [int(i) for i in np.random.default_rng((seed, len(free))).permutation(free)[:count]]


WAYS: dict[str, Choose] = {"drawn": drawn, "chosen": choose_next}


def accuracies(x: Floats, y: Labels, seed: int, choose: Choose, sizes: Sequence[int] = SIZES) -> list[float]:
    """Of a head on the labelled photographs, at each number of labels.

    Args:
        x: features of length 1, (n, D).
        y: labels, (n,).
        seed: of which photographs judge.
        choose: a way.
        sizes: numbers of labels.
    """
    order = np.random.default_rng(seed).permutation(len(x))
    judges, pool = np.split(order, [round(JUDGES * len(x))])
    labels: list[int | None] = [None] * len(pool)
    found = []
    for size in range(BATCH, max(sizes) + 1, BATCH):
        for i in choose(x[pool], labels, BATCH, seed):
            labels[i] = int(y[pool[i]])
        if size in sizes:
            known = [i for i, label in enumerate(labels) if label is not None]
            assert len(known) == size
            own = pool[known]
            head = LogisticRegression(C=1 / _PENALTY, max_iter=300)
            found.append(float((head.fit(x[own], y[own]).predict(x[judges]) == y[judges]).mean()))
    return found


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and its 95 % interval by Student's t distribution."""
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / len(values) ** 0.5
    margin = float(t.ppf(0.975, len(values) - 1)) * error
    return mean, mean - margin, mean + margin


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both ways at each number of labels, and what choosing gains."""
    told = []
    for size in dict.fromkeys(row["labels"] for row in rows):
        own = [row for row in rows if row["labels"] == size]
        gain, low, high = interval([row["chosen"] - row["drawn"] for row in own])
        means = {way: round(float(np.mean([row[way] for row in own])), 4) for way in WAYS}
        told.append({"labels": size, **means, "gain": round(gain, 4), "low": round(low, 4), "high": round(high, 4)})
    return told


def features_of(data: Path, weights: Path, kept: Path | None) -> tuple[Floats, Labels]:
    """Features of length 1 and labels of all photographs; computed once where there is a file to keep them in."""
    table = read_source(data)
    if kept is None or not kept.is_file():
        place = kept or Path(tempfile.mkdtemp()) / "features.npz"
        vitkit.embed(weights, data, out=place)
        kept = place
    with np.load(kept) as stored:
        row = {os.path.realpath(path): i for i, path in enumerate(stored["paths"].tolist())}
        x = stored["features"].astype(np.float64)
    x = x[[row[os.path.realpath(table.file(i))] for i in range(len(table))]]
    return x / np.linalg.norm(x, axis=1, keepdims=True), np.array(table.labels)


def main() -> None:
    """All seeds; the table is written after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("weights", type=Path, nargs="?")
    parser.add_argument("--features", type=Path, help="An .npz file that keeps the features.")
    parser.add_argument("--shuffled", action="store_true")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="made-up features, to see that the script works")
    options = parser.parse_args()
    if options.smoke:
        y = np.repeat(np.arange(4), 100)
        x = np.eye(8)[y] + 0.3 * np.random.default_rng(0).standard_normal((400, 8))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    else:
        x, y = features_of(options.data, options.weights, options.features)
    rows: list[dict[str, Any]] = []
    what = "label-choice-shuffled" if options.shuffled else "label-choice"
    for seed in range(FIRST_SEED, FIRST_SEED + (2 if options.smoke else options.seeds)):
        own = np.random.default_rng(seed).permutation(y) if options.shuffled else y
        found = {name: accuracies(x, own, seed, choose) for name, choose in WAYS.items()}
        rows += [
            {"seed": seed, "labels": size, **{name: round(found[name][k], 4) for name in WAYS}}
            for k, size in enumerate(SIZES)
        ]
        write_table(result_path(what, "float32", folder=options.out), rows)
        told = [f"{row['drawn']:.3f} -> {row['chosen']:.3f}" for row in rows[-len(SIZES) :]]
        print(f"seed {seed}: {', '.join(told)}", flush=True)
    for row in summary(rows):
        print("   ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
