"""Planted label errors found: `python benchmarks/label_errors.py DATA WEIGHTS`.

DATA is a folder of photographs in class folders, WEIGHTS a checkpoint that was not trained on it. For each of five
seeds, 100 photographs are drawn of every class, 12 of all of them get another class's label, and it is counted how
many of the 12 are among the 25 most doubtful. The photographs' own label errors count against it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from vitkit.data.loading import EvaluationImages
from vitkit.data.sources import read_source
from vitkit.evaluation.doubts import from_features
from vitkit.training.probe import compute_features
from vitkit.training.recipe import Recipe
from vitkit.training.setup import choose_precision, new_classifier

SEEDS, PER_CLASS, PLANTED, SHOWN = 5, 100, 12, 25


def measure(data: Path, weights: Path, seeds: int = SEEDS) -> list[int]:
    """Of each seed, how many of the planted errors are among those shown."""
    whole = read_source(data)
    recipe = Recipe(data=str(data), weights=str(weights), method="probe")
    found = []
    drawn = [np.random.default_rng(seed) for seed in range(seeds)]
    own = np.array(whole.labels)
    k = len(whole.classes)
    chosen = [np.concatenate([g.permutation(np.flatnonzero(own == c))[:PER_CLASS] for c in range(k)]) for g in drawn]
    every = np.unique(np.concatenate(chosen))
    table = whole.take(every.tolist())
    frozen = new_classifier(recipe, table, "", lambda *_: None)
    images = EvaluationImages(table, frozen.preprocess)
    precision = choose_precision(recipe.precision)
    features, labels = compute_features(frozen.model, images, recipe, precision, lambda *_: None)
    for seed, (generator, indices) in enumerate(zip(drawn, chosen, strict=True)):
        rows = np.searchsorted(every, indices)
        spoilt = labels[rows].clone()
        planted = generator.choice(len(rows), PLANTED, replace=False)
        for i in planted:
            spoilt[i] = int(generator.choice([c for c in range(k) if c != spoilt[i]]))
        part = table.take(rows.tolist())
        shown = {doubt.path for doubt in from_features(part, features[rows], spoilt, seed)[:SHOWN]}
        found.append(len(shown & {part.paths[i] for i in planted}))
        print(f"seed {seed}: {found[-1]} of {PLANTED} planted errors among the {SHOWN} most doubtful", flush=True)
    return found


if __name__ == "__main__":
    outcome = measure(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"mean of {len(outcome)} seeds: {np.mean(outcome):.1f}")
