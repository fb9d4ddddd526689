"""Do the intervals cover? `python benchmarks/coverage.py [--smoke]`.

Evaluations are drawn of which the truth is known, and it is counted how often the 95 % intervals of
`vitkit.evaluation.intervals` hold it: true accuracies .8 to .99, 30 to 500 images, 2 to 10 classes (kinds after the
first with fewer of them), and these kinds of one classifier:

    calibrated         a model whose confidences are as they should be
    overconfident      the same with logits twice as large
    uneven             classes of unequal size and difficulty
    groups of five     images in groups of five of one class that share four fifths of their noise's variance
    heavy tails        noise of Student's t with three degrees of freedom in the place of the normal
    uneven certainty   a calibrated model's logits times a log-normal number of each image

Logits are unit normals, that of the true class higher by what the accuracy asks for. What an interval should hold is
the figure on 200,000 other images; of the calibration error, the mean over all evaluations of as many images. Balanced
accuracy and macro F1 are judged by the classes that occur in the evaluation.

And these kinds of cross-validation, with 2, 5 and 10 folds of 30 to 300 images in all:

    folds              a calibrated model each
    folds, lucky       the same, but a training's luck moves its accuracy by three points at .8, one at .98
    folds, nearest     each image is said to be what the nearest image of the other folds is, a method as unstable as
                       can be: what its folds have wrong goes together

What their intervals should hold is the mean figure of other such models, that are fitted to as many other images.

The table has a row for each setting with the coverage and the mean width of each figure's interval; the smallest
coverages are printed as Markdown. A row has 1,000 evaluations, so that a coverage of .95 is measured as .93 to .97.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax
from tables import RESULTS, result_path, write_table

from vitkit.evaluation import Evaluation, Interval, fold_intervals, pooled
from vitkit.evaluation.intervals import intervals

ACCURACIES, IMAGES, CLASSES = (0.8, 0.9, 0.95, 0.98, 0.99), (30, 50, 100, 200, 500), (2, 5, 10)
_CORNERS = ((30, 100, 500), (0.8, 0.95, 0.99), (2, 10))  # for the kinds after the first
_HEAVY = ((30, 100, 500), (0.8, 0.95, 0.99), (3, 10))
_FOLDS = ((30, 100, 300), (0.8, 0.95, 0.99), (2, 5), (2, 5, 10))
REPEATS, TRUTH = 1000, 200_000
FIGURES = ("accuracy", "balanced_accuracy", "macro_f1", "top5_accuracy", "loss", "brier", "ece")


class Kind(NamedTuple):
    """How evaluations are drawn: logits times `scale`, images in groups of `group` that share `alike` of the noise."""

    name: str
    scale: float = 1.0
    is_uneven: bool = False
    group: int = 1
    alike: float = 0.0
    freedom: int = 0  # of the noise; 0 where it is normal
    uncertainty: float = 0.0  # the standard deviation of the logarithm of each image's scale
    luck: float = 0.0  # that of a training's advantage in logits


KINDS = (
    Kind("calibrated"),
    Kind("overconfident", scale=2.0),
    Kind("uneven", is_uneven=True),
    Kind("groups of five", group=5, alike=0.8),
    Kind("heavy tails", freedom=3),
    Kind("uneven certainty", uncertainty=1.0),
)
OF_FOLDS = (Kind("folds"), Kind("folds, lucky", luck=0.15))
NEAREST = "folds, nearest"


class Setting(NamedTuple):
    """A row of the table."""

    kind: str
    images: int
    accuracy_asked: float
    classes: int
    folds: int | None = None


class Truth(NamedTuple):
    """What intervals should hold."""

    expected: dict[str, float]
    recall: np.ndarray[Any, Any]
    f1: np.ndarray[Any, Any]

    @classmethod
    def of(cls, many: Evaluation) -> Truth:
        """The figures of an evaluation of very many images."""
        rows = many.per_class().values()
        recall, f1 = (np.array([row[key] for row in rows]) for key in ("recall", "f1"))
        expected = {name: getattr(many, name) for name in ("accuracy", "loss", "brier")}
        return cls(expected | {"top5_accuracy": float(many.is_among(5).mean())}, recall, f1)

    def held(self, own: Evaluation) -> dict[str, float]:
        """What the intervals of this evaluation should hold, but for the calibration error."""
        there = np.unique(own.labels)
        return self.expected | {"balanced_accuracy": self.recall[there].mean(), "macro_f1": self.f1[there].mean()}


class Drawn(NamedTuple):
    """An evaluation and its intervals."""

    evaluation: Evaluation
    intervals: dict[str, Interval]


class World:
    """A classifier of known accuracy, or one for each of several folds, and images for it."""

    def __init__(self, kind: Kind, accuracy: float, classes: int, folds: int | None = None) -> None:
        self.kind, self.classes, self.folds = kind, classes, folds
        noise, luck = self._noise(np.random.default_rng(0), TRUTH), np.random.default_rng(3).normal(size=TRUTH)
        margin = float(np.quantile(noise[:, 1:].max(axis=1) - noise[:, 0] - kind.luck * luck, accuracy))
        easy = np.linspace(-0.8, 0.8, classes) if kind.is_uneven else np.zeros(classes)
        sizes = np.linspace(3, 1, classes)[::-1] if kind.is_uneven else np.ones(classes)
        self.margin = margin + easy
        self.frequency = sizes / sizes.sum()
        labels, probabilities = self._draw(np.random.default_rng(1), TRUTH, group=1, trainings=TRUTH // 100)
        self.names = tuple(map(str, range(classes)))
        self.truth = Truth.of(Evaluation("test", self.names, (), labels, probabilities))

    def _noise(self, rng: np.random.Generator, images: int) -> Any:
        shape = (images, self.classes)
        return rng.standard_t(self.kind.freedom, size=shape) if self.kind.freedom else rng.normal(size=shape)

    def _draw(self, rng: np.random.Generator, images: int, group: int, trainings: int = 1) -> tuple[Any, Any]:
        labels = np.repeat(rng.choice(self.classes, images // group, p=self.frequency), group)
        logits = self._noise(rng, images)
        if group > 1:
            shared = np.repeat(rng.normal(size=(images // group, self.classes)), group, axis=0)
            logits = (1 - self.kind.alike) ** 0.5 * logits + self.kind.alike**0.5 * shared
        logits[np.arange(images), labels] += self.margin[labels]
        if self.kind.luck:
            luck = self.kind.luck * rng.normal(size=trainings)
            logits[np.arange(images), labels] += luck[_fold_of(images, trainings)]
        scale = self.kind.scale * self.margin.mean()
        if self.kind.uncertainty:
            scale = scale * np.exp(self.kind.uncertainty * rng.normal(size=(images, 1)))
        return labels, np.maximum(softmax(scale * logits, axis=1), 1e-30).astype(np.float32)

    def drawn(self, images: int, repeats: int) -> Iterator[Drawn]:
        """Evaluations of other images each."""
        rng = np.random.default_rng([2, images, self.classes])
        groups = tuple((np.arange(images) // self.kind.group).tolist()) if self.kind.group > 1 else ()
        for _ in range(repeats):
            labels, probabilities = self._draw(rng, images, self.kind.group, self.folds or 1)
            if self.folds is None:
                own = Evaluation("test", self.names, (), labels, probabilities, groups=groups)
                yield Drawn(own, intervals(own))
            else:
                yield _of_folds(self.names, labels, probabilities, _fold_of(images, self.folds))


def _fold_of(images: int, folds: int) -> Any:
    """The number of each image's fold, (n,): equal parts, one after the other."""
    return np.arange(images) * folds // images


def _of_folds(names: tuple[str, ...], labels: Any, probabilities: Any, fold: Any) -> Drawn:
    """A cross-validation."""
    parts = [fold == number for number in range(int(fold.max()) + 1)]
    found = [Evaluation("test", names, ("",) * int(own.sum()), labels[own], probabilities[own]) for own in parts]
    return Drawn(pooled(found), fold_intervals(found))


class NearestImage:
    """The nearest image as a method, which is right as often as asked with the images of all folds but one."""

    def __init__(self, images: int, accuracy: float, classes: int, folds: int) -> None:
        self.images, self.classes, self.folds, self.names = images, classes, folds, tuple(map(str, range(classes)))
        low, high = 0.1, 40.0
        for _ in range(16):  # until it is right as often as it should be
            self.apart = (low + high) / 2
            own = self._many(np.random.default_rng(0), trainings=100)
            low, high = (self.apart, high) if own.accuracy < accuracy else (low, self.apart)
        self.truth = Truth.of(self._many(np.random.default_rng(1), trainings=400))

    def _draw(self, rng: np.random.Generator, images: int) -> tuple[Any, Any]:
        labels = np.arange(images) % self.classes
        return self.apart * np.eye(self.classes, 4 * self.classes)[labels] + rng.normal(
            size=(images, 4 * self.classes)
        ), labels

    def _said(self, x: Any, labels: Any, asked: Any) -> Any:
        """The probabilities (n, K) of images, by the nearest image of each class."""
        square = (asked**2).sum(axis=1)[:, None] + (x**2).sum(axis=1) - 2 * asked @ x.T
        far = np.stack([square[:, labels == k].min(axis=1) for k in range(self.classes)], axis=1)
        return np.maximum(softmax(-far / 2, axis=1), 1e-30).astype(np.float32)

    def _many(self, rng: np.random.Generator, trainings: int) -> Evaluation:
        """Other images, by trainings on other images each."""
        found = []
        for _ in range(trainings):
            (x, labels), (asked, true) = self._draw(rng, self.images - self.images // self.folds), self._draw(rng, 500)
            found.append((true, self._said(x, labels, asked)))
        true, said = (np.concatenate(rows) for rows in zip(*found, strict=True))
        return Evaluation("test", self.names, (), true, said)

    def drawn(self, images: int, repeats: int) -> Iterator[Drawn]:
        """Cross-validations of other images each, every class in each fold alike."""
        rng = np.random.default_rng([4, images, self.classes, self.folds])
        fold = np.arange(images) // self.classes % self.folds
        for _ in range(repeats):
            x, labels = self._draw(rng, images)
            said = np.empty((images, self.classes), np.float32)
            for number in range(self.folds):
                own = fold == number
                said[own] = self._said(x[~own], labels[~own], x[own])
            yield _of_folds(self.names, labels, said, fold)


def world_of(setting: Setting) -> World | NearestImage:
    """The images and models of a row."""
    kind, images, accuracy, classes, folds = setting
    if kind == NEAREST:
        assert folds is not None
        return NearestImage(images, accuracy, classes, folds)
    return World(next(own for own in (*KINDS, *OF_FOLDS) if own.name == kind), accuracy, classes, folds)


def measure(setting: Setting, repeats: int = REPEATS) -> dict[str, Any]:
    """A row of the table: coverage and mean width of each interval."""
    world = world_of(setting)
    drawn = list(world.drawn(setting.images, repeats))
    usual = float(np.mean([own.ece for own, _ in drawn]))
    widths: dict[str, list[float]] = {}
    held: dict[str, list[bool]] = {}
    for own, found in drawn:
        truth = world.truth.held(own) | {"ece": usual}
        for name, (low, high) in found.items():
            held.setdefault(name, []).append(low - 1e-9 <= truth[name] <= high + 1e-9)
            widths.setdefault(name, []).append(high - low)
    row: dict[str, Any] = setting._asdict()
    for name in FIGURES:
        row[name] = round(float(np.mean(held[name])), 4) if name in held else None
        row[f"{name}_width"] = round(float(np.mean(widths[name])), 4) if name in held else None
    return row


def settings() -> list[Setting]:
    """All rows of the table."""
    first, *others, heavy, uncertain = (kind.name for kind in KINDS)
    found = [Setting(first, *own) for own in product(IMAGES, ACCURACIES, CLASSES)]
    found += [Setting(kind, *own) for kind in others for own in product(*_CORNERS)]
    found += [Setting(kind, *own) for kind in (heavy, uncertain) for own in product(*_HEAVY)]
    return found + [
        Setting(method, *own) for method in (*(kind.name for kind in OF_FOLDS), NEAREST) for own in product(*_FOLDS)
    ]


def least_by_images(rows: list[dict[str, Any]]) -> str:
    """A Markdown table: for each kind and number of images the smallest coverage over accuracies and classes."""
    lines = ["| | images | " + " | ".join(name.replace("_", " ") for name in FIGURES) + " |"]
    lines.append("|---" * (len(FIGURES) + 2) + "|")
    for kind, folds, images in dict.fromkeys((row["kind"], row["folds"], row["images"]) for row in rows):
        own = [row for row in rows if (row["kind"], row["folds"], row["images"]) == (kind, folds, images)]
        known = [[row[name] for row in own if row[name] is not None] for name in FIGURES]
        least = [f"{min(values):.3f}" if values else "" for values in known]
        name = kind if folds is None else f"{folds} {kind}"
        lines.append(f"| {name} | {images} | " + " | ".join(least) + " |")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few settings and repeats; the figures mean nothing")
    parser.add_argument("--out", type=Path, help="the folder of the table; by default benchmarks/results")
    asked = parser.parse_args(arguments)
    chosen, repeats = settings(), REPEATS
    if asked.smoke:
        chosen = [Setting(kind.name, 30, 0.9, 10) for kind in KINDS]
        chosen += [Setting(own, 30, 0.9, 2, 2) for own in (*(kind.name for kind in OF_FOLDS), NEAREST)]
        repeats = 5
    rows = []
    with ProcessPoolExecutor() as pool:
        for row in pool.map(partial(measure, repeats=repeats), chosen):
            rows.append(row)
            print(", ".join(f"{name} {row[name]}" for name in Setting._fields), file=sys.stderr, flush=True)
    print(least_by_images(rows))
    print(f"smallest of all: {min(row[name] for row in rows for name in FIGURES if row[name] is not None):.3f}")
    write_table(result_path("coverage", "float32", folder=asked.out or RESULTS), rows)


if __name__ == "__main__":
    main(sys.argv[1:])
