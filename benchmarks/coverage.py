"""Do the intervals cover? `python benchmarks/coverage.py [--smoke]`.

Evaluations are drawn of which the truth is known, and it is counted how often the 95 % intervals of
`vitkit.evaluation.intervals` hold it: true accuracies .8 to .99, 30 to 500 images, 2 to 10 classes (the last
three kinds with fewer of them), and four kinds:

    calibrated       a model whose confidences are as they should be
    overconfident    the same with logits twice as large
    uneven           classes of unequal size and difficulty
    groups of five   images in groups of five of one class that share four fifths of their noise's variance

Logits are unit normals, that of the true class higher by what the accuracy asks for. What an interval should hold is
the figure on 200,000 other images; of the calibration error, the mean over all evaluations of as many images. Balanced
accuracy and macro F1 are judged by the classes that occur in the evaluation. The table has a row for each setting with
the coverage and the mean width of each figure's interval; the smallest coverages are printed as Markdown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax
from tables import RESULTS, result_path, write_table

from vitkit.evaluation.calibration import Reliability
from vitkit.evaluation.intervals import intervals
from vitkit.evaluation.metrics import Evaluation

ACCURACIES, IMAGES, CLASSES = (0.8, 0.9, 0.95, 0.98, 0.99), (30, 50, 100, 200, 500), (2, 5, 10)
_CORNERS = ((30, 100, 500), (0.8, 0.95, 0.99), (2, 10))  # for the kinds after the first
REPEATS, TRUTH = 1000, 200_000
FIGURES = ("accuracy", "balanced_accuracy", "macro_f1", "top5_accuracy", "loss", "brier", "ece")


class Kind(NamedTuple):
    """How evaluations are drawn: logits times `scale`, images in groups of `group` that share `alike` of the noise."""

    name: str
    scale: float = 1.0
    is_uneven: bool = False
    group: int = 1
    alike: float = 0.0


KINDS = (
    Kind("calibrated"),
    Kind("overconfident", scale=2.0),
    Kind("uneven", is_uneven=True),
    Kind("groups of five", group=5, alike=0.8),
)


class World:
    """A classifier of known accuracy, and images for it."""

    def __init__(self, kind: Kind, accuracy: float, classes: int) -> None:
        noise = np.random.default_rng(0).normal(size=(TRUTH, classes))
        margin = float(np.quantile(noise[:, 1:].max(axis=1) - noise[:, 0], accuracy))
        easy = np.linspace(-0.8, 0.8, classes) if kind.is_uneven else np.zeros(classes)
        sizes = np.linspace(3, 1, classes)[::-1] if kind.is_uneven else np.ones(classes)
        self.kind, self.classes, self.margin = kind, classes, margin + easy
        self.frequency = sizes / sizes.sum()
        labels, probabilities = self._draw(np.random.default_rng(1), TRUTH, group=1)
        self.names = tuple(map(str, range(classes)))
        truth = Evaluation("test", self.names, (), labels, probabilities)
        rows = truth.per_class().values()
        self.recall, self.f1 = (np.array([row[key] for row in rows]) for key in ("recall", "f1"))
        self.expected = {name: getattr(truth, name) for name in ("accuracy", "loss", "brier")}
        self.expected["top5_accuracy"] = truth.top(5)

    def _draw(self, rng: np.random.Generator, images: int, group: int) -> tuple[Any, Any]:
        labels = np.repeat(rng.choice(self.classes, images // group, p=self.frequency), group)
        logits = rng.normal(size=(images, self.classes))
        if group > 1:
            shared = np.repeat(rng.normal(size=(images // group, self.classes)), group, axis=0)
            logits = (1 - self.kind.alike) ** 0.5 * logits + self.kind.alike**0.5 * shared
        logits[np.arange(images), labels] += self.margin[labels]
        scores = self.kind.scale * self.margin.mean() * logits
        return labels, np.maximum(softmax(scores, axis=1), 1e-30).astype(np.float32)

    def evaluations(self, images: int, repeats: int) -> Iterator[Evaluation]:
        rng = np.random.default_rng([2, images, self.classes])
        groups = tuple((np.arange(images) // self.kind.group).tolist()) if self.kind.group > 1 else ()
        for _ in range(repeats):
            yield Evaluation("test", self.names, (), *self._draw(rng, images, self.kind.group), groups=groups)

    def held(self, own: Evaluation) -> dict[str, float]:
        """What the intervals of this evaluation should hold, but for the calibration error."""
        there = np.unique(own.labels)
        means = {"balanced_accuracy": self.recall[there].mean(), "macro_f1": self.f1[there].mean()}
        return self.expected | means


@cache
def world_of(kind: Kind, accuracy: float, classes: int) -> World:
    """Made once: its truth takes longest."""
    return World(kind, accuracy, classes)


def measure(kind: Kind, accuracy: float, images: int, classes: int, repeats: int = REPEATS) -> dict[str, float]:
    """Coverage and mean width of each interval."""
    world = world_of(kind, accuracy, classes)
    drawn = list(world.evaluations(images, repeats))
    usual = float(np.mean([Reliability.of(own.probabilities, own.labels).ece for own in drawn]))
    row: dict[str, float] = {}
    held: dict[str, list[bool]] = {}
    for own in drawn:
        truth = world.held(own) | {"ece": usual}
        for name, (low, high) in intervals(own).items():
            held.setdefault(name, []).append(low - 1e-9 <= truth[name] <= high + 1e-9)
            row[f"{name}_width"] = row.get(f"{name}_width", 0.0) + (high - low) / repeats
    return {name: float(np.mean(values)) for name, values in held.items()} | row


def least_by_images(rows: list[dict[str, Any]]) -> str:
    """A Markdown table: for each kind and number of images the smallest coverage over accuracies and classes."""
    lines = ["| | images | " + " | ".join(name.replace("_", " ") for name in FIGURES) + " |"]
    lines.append("|---" * (len(FIGURES) + 2) + "|")
    for kind, images in dict.fromkeys((row["kind"], row["images"]) for row in rows):
        own = [row for row in rows if (row["kind"], row["images"]) == (kind, images)]
        least = [min(row[name] for row in own if row[name] is not None) for name in FIGURES]
        lines.append(f"| {kind} | {images} | " + " | ".join(f"{value:.3f}" for value in least) + " |")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few settings and repeats; the figures mean nothing")
    parser.add_argument("--out", type=Path, help="the folder of the table; by default benchmarks/results")
    asked = parser.parse_args(arguments)
    every = product(KINDS, IMAGES, ACCURACIES, CLASSES)
    settings = [own for own in every if own[0] == KINDS[0] or own[1:] in product(*_CORNERS)]
    repeats = REPEATS
    if asked.smoke:
        settings, repeats = [(kind, 30, 0.9, 10) for kind in KINDS], 5
    rows = []
    for kind, images, accuracy, classes in settings:
        found = measure(kind, accuracy, images, classes, repeats)
        known = {"kind": kind.name, "images": images, "accuracy_asked": accuracy, "classes": classes}
        columns = [name + end for name in FIGURES for end in ("", "_width")]
        rows.append({**known, **{name: round(found[name], 4) if name in found else None for name in columns}})
        print(f"{kind.name}, {images} images, {accuracy}, {classes} classes", file=sys.stderr, flush=True)
    print(least_by_images(rows))
    print(f"smallest of all: {min(row[name] for row in rows for name in FIGURES if row[name] is not None):.3f}")
    write_table(result_path("coverage", "float32", folder=asked.out or RESULTS), rows)


if __name__ == "__main__":
    main(sys.argv[1:])
