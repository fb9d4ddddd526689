"""Numbers that say how good a classifier is on labelled images.

Where the images of each class stand among all, by its probability: what curves and areas are made of. A curve bends
only where an image of the class stands, so one sorted column a class gives all of it: n log n a class, however many
curves and areas are read from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from vitkit.data.table import ImageTable
from vitkit.data.task import SINGLE_LABEL, Task
from vitkit.evaluation import registry
from vitkit.evaluation.calibration import Reliability, blocks, confidence_at

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]
_NUMBERS = 2**20  # sorted at a time


@dataclass(frozen=True)
class Standing:
    """The images of one class, at each of the m different scores that they have, from the highest.

    Attributes:
        own: images of the class with that score or a higher one, (m,).
        said: all images with that score or a higher one, (m,).
        above: all images with a higher score, (m,).
        images: of all classes.
    """

    own: Ints
    said: Ints
    above: Ints
    images: int

    @property
    def at(self) -> Ints:
        """Images of the class with exactly that score, (m,)."""
        return np.concatenate([self.own[:1], self.own[1:] - self.own[:-1]])  # numpy's diff is slower

    @property
    def others(self) -> int:
        """Images that are not of the class."""
        return self.images - int(self.own[-1])

    @property
    def _others_ahead(self) -> tuple[Ints, Ints]:
        """Images that are not of the class with a higher score, and with that score or a higher one, (m,) each."""
        return self.above - (self.own - self.at), self.said - self.own

    @property
    def roc_auc(self) -> float | None:
        """How often an image of the class has a higher score than another, ties by half; None without another."""
        if not self.others:
            return None
        before, upto = self._others_ahead
        ahead = int((self.at * (before + upto)).sum())  # pairs that are the wrong way round, twice
        return 1 - ahead / (2 * int(self.own[-1]) * self.others)

    @property
    def average_precision(self) -> float:
        """The area under the steps of precision by recall."""
        return float((self.at * self.own / self.said).sum() / self.own[-1])

    def true_rate(self, false_rates: Floats) -> Floats:
        """The height of the ROC curve over each of these parts of the other images."""
        before, upto = self._others_ahead
        x = np.concatenate([[0], np.column_stack([before, upto]).ravel(), [self.others]]) / self.others
        y = np.concatenate([[0], np.column_stack([self.own - self.at, self.own]).ravel(), self.own[-1:]])
        return np.interp(false_rates, x, y / self.own[-1])

    def best_precision(self, recalls: Floats) -> Floats:
        """The highest precision at each of these recalls or at a higher one."""
        last = np.append(self.above[1:], self.images)  # said before the next image of the class is, (m,)
        steps = np.column_stack([self.own / self.said, self.own / last]).ravel()
        recall = np.repeat(self.own / self.own[-1], 2)
        start = [1.0] if self.above[0] == 0 else [1.0, 0.0]  # nothing is said; only other images are
        precision = np.maximum.accumulate(np.concatenate([start, steps])[::-1])[::-1]
        return np.interp(recalls, np.concatenate([np.zeros(len(start)), recall]), precision)


def standings(labels: npt.NDArray[Any], scores: Floats) -> Iterator[tuple[int, Standing]]:
    """Each class that an image has, in order, and where its images stand.

    Args:
        labels: (n,) true classes, or (n, K) whether each image has each class.
        scores: anything that rises with the probability, (n, K).
    """
    members = _members(labels, scores.shape[1])
    there = [i for i, own in enumerate(members) if len(own)]
    size = max(1, _NUMBERS // max(len(scores), 1))
    for start in range(0, len(there), size):
        classes = there[start : start + size]
        columns = np.sort(np.ascontiguousarray(scores[:, classes].T), axis=1)  # (classes, n)
        for i, column in zip(classes, columns, strict=True):
            yield i, _stand(column, scores[members[i], i])


def _members(labels: npt.NDArray[Any], classes: int) -> Sequence[Ints]:
    """The images of each class."""
    if labels.ndim == 2:
        return [np.flatnonzero(column) for column in labels.T]
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.searchsorted(labels[order], np.arange(1, classes)))


def _stand(column: Floats, own: Floats) -> Standing:
    """Among the sorted scores of all images, those of the class."""
    different, counts = np.unique(own, return_counts=True)
    said = len(column) - np.searchsorted(column, different, side="left")
    above = len(column) - np.searchsorted(column, different, side="right")
    return Standing(np.cumsum(counts[::-1]), said[::-1], above[::-1], len(column))


Counts = npt.NDArray[np.int64]
Known = list[float | None]


@dataclass(frozen=True)
class Evaluation:
    """The outcome of a classifier on labelled images.

    Attributes:
        split: which images: train, val, test.
        classes: names, in the order of the columns.
        paths: of the images, (n,).
        labels: true class of each image, (n,).
        probabilities: (n, K), rows sum to 1.
        unreadable: reason of each image that was left out.
        temperature: of the classifier; it is in the probabilities.
        groups: a number for each image, the same for those that are not independent of one another, (n,); empty where
            all are.
        chosen: what was chosen on these images, and by what (chosen.py).
        since: the labels that some of the images have now, by path; empty of one that is left out. They were changed
            because a model proposed it, so that the images are judged by their labels of before (proposed.py).
    """

    split: str
    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float32]
    unreadable: dict[str, str] = field(default_factory=dict)
    temperature: float = 1.0
    groups: tuple[int, ...] = ()
    chosen: tuple[str, ...] = ()
    since: Mapping[str, str] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        """Whether each image has one class, or may have several."""
        return SINGLE_LABEL

    def with_classes(self, more: Sequence[str]) -> Self:
        """The evaluation with further classes, which the classifier does not know and never says."""
        probabilities = np.pad(self.probabilities, ((0, 0), (0, len(more))))
        return replace(self, classes=(*self.classes, *more), probabilities=probabilities)

    def label_row(self, numbers: Sequence[int]) -> int | npt.NDArray[np.bool_]:
        """What `labels` has of an image with the classes of these numbers."""
        return numbers[0]

    @cached_property
    def predicted(self) -> npt.NDArray[np.int64]:
        """The most probable class of each image, (n,)."""
        return self.probabilities.argmax(axis=1)

    @property
    def accuracy(self) -> float:
        """Part of the images whose most probable class is the true one."""
        return float((self.predicted == self.labels).mean())

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall over the classes that occur: every class counts alike."""
        return mean_of_known(self.per_class(), "recall")

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood of the true class, in nats."""
        true = self.probabilities[np.arange(len(self.labels)), self.labels]
        return float(-np.log(np.maximum(true, np.finfo(np.float32).tiny)).mean())

    @property
    def macro_f1(self) -> float:
        """Mean F1 over the classes that occur or are said, as scikit-learn's: one that is only said has 0."""
        return mean_of_known(self.per_class(), "f1")

    @property
    def top5_accuracy(self) -> float:
        """Part of the images whose true class is among the 5 most probable."""
        return self.top(5)

    @property
    def ece(self) -> float:
        """Expected calibration error: how far confidence is from accuracy, over bins of confidence (calibration.py)."""
        return self.reliability.ece

    @cached_property
    def reliability(self) -> Reliability:
        """How often the classifier is right, by its confidence."""
        return Reliability.of_confidence(self.confidence, self.predicted == self.labels)

    @cached_property
    def untempered(self) -> Reliability:
        """How often the classifier would be right, by the confidence that it would have at temperature 1."""
        return Reliability.of_confidence(self.confidence_before, self.predicted == self.labels)

    @cached_property
    def confidence(self) -> npt.NDArray[np.float64]:
        """The highest probability of each image, (n,)."""
        return self.probabilities.max(axis=1).astype(np.float64)

    @cached_property
    def confidence_before(self) -> npt.NDArray[np.float64]:
        """The same at temperature 1."""
        return self.confidence if self.temperature == 1 else confidence_at(self.probabilities, self.temperature)

    @cached_property
    def standings(self) -> dict[int, Standing]:
        """Where the images of each class stand, for the classes that an image has."""
        return dict(standings(self.labels, self.probabilities))

    @property
    def brier(self) -> float:
        """Mean squared distance of the probabilities from the truth, 0 to 2 (Brier 1950)."""
        return float(self.briers.mean())

    @property
    def briers(self) -> npt.NDArray[np.float64]:
        """The squared distance of each image's probabilities from the truth, (n,)."""
        true = self.probabilities[np.arange(len(self.labels)), self.labels].astype(np.float64)
        squares = np.empty(len(true))
        for own in blocks(*self.probabilities.shape):
            squares[own] = (self.probabilities[own].astype(np.float64) ** 2).sum(axis=1)
        return np.maximum(squares - 2 * true + 1, 0.0)

    def label_of(self, index: int) -> str:
        """The name of an image's class."""
        return self.classes[self.labels[index]]

    @property
    def absent(self) -> tuple[str, ...]:
        """Classes of the model that no image has."""
        return tuple(self.classes[i] for i in np.setdiff1d(np.arange(len(self.classes)), self.labels))

    def confused(self, most: int) -> list[tuple[str, str, int, float]]:
        """The most frequent mistakes: true class, predicted class, images, their part of the true class."""
        images = self._count(self.labels)
        true, said, counts = self.pairs()
        wrong = true != said
        true, said, counts = true[wrong], said[wrong], counts[wrong]
        return [
            (self.classes[true[p]], self.classes[said[p]], int(counts[p]), float(counts[p] / images[true[p]]))
            for p in np.argsort(-counts, kind="stable")[:most]
        ]

    def mistakes(self, most: int) -> list[int]:
        """Images that are wrong, the most confident mistake first."""
        wrong = np.flatnonzero(self.predicted != self.labels)
        order = np.argsort(-self.probabilities[wrong].max(axis=1), kind="stable")[:most]
        return [int(i) for i in wrong[order]]

    def top(self, k: int) -> float:
        """Part of the images whose true class is among the k most probable."""
        return float(self.is_among(k).mean())

    def is_among(self, k: int) -> npt.NDArray[np.bool_]:
        """Whether each image's true class is among the k most probable, (n,)."""
        true = self.probabilities[np.arange(len(self.labels)), self.labels]
        among = np.empty(len(true), dtype=np.bool_)
        for own in blocks(*self.probabilities.shape):
            among[own] = (self.probabilities[own] > true[own, None]).sum(axis=1) < k
        return among

    def confusion(self, most: int | None = None) -> npt.NDArray[np.int64]:
        """(K, K) counts: row the true class, column the predicted one.

        Args:
            most: rows and columns; more classes are counted several to a row, in their order. None: one a row.
        """
        each = 1 if most is None else -(-len(self.classes) // most)
        side = -(-len(self.classes) // each)
        true, said, counts = self.pairs()
        matrix = np.zeros((side, side), dtype=np.int64)
        np.add.at(matrix, (true // each, said // each), counts)
        return matrix

    def per_class(self) -> dict[str, dict[str, Any]]:
        """Precision, recall, F1 and support (images) of each class; None where one is undefined (`scores`)."""
        hits, there = self._count(self.labels[self.predicted == self.labels]), self._count(self.labels)
        precision, recall, f1 = scores(hits, self._count(self.predicted), there)
        return {
            name: {"precision": precision[i], "recall": recall[i], "f1": f1[i], "support": int(there[i])}
            for i, name in enumerate(self.classes)
        }

    def _count(self, labels: npt.NDArray[np.int64]) -> Counts:
        """(K,) images of each class."""
        return np.bincount(labels, minlength=len(self.classes))

    def pairs(self) -> tuple[Counts, Counts, Counts]:
        """True and predicted class and images of each pair that occurs, in order of the classes."""
        pairs, counts = np.unique(self.labels * len(self.classes) + self.predicted, return_counts=True)
        return *np.divmod(pairs, len(self.classes)), counts

    def summary(self) -> dict[str, Any]:
        """The headline numbers, `accuracy` first."""
        figures = registry.summary(self, "single")
        return {**figures, "images": len(self.labels), "unreadable": len(self.unreadable), "split": self.split}


def scores(hits: Counts, said: Counts, there: Counts) -> tuple[Known, Known, Known]:
    """Precision, recall and F1 of each class.

    A class that is never said has no precision, one that no image has no recall, and one of which both is true no F1:
    these are None, and no mean counts them.

    Args:
        hits: images of the class that are said to be of it, (K,).
        said: images that are said to be of it, (K,).
        there: images of it, (K,).
    """
    return _ratios(hits, said), _ratios(hits, there), _ratios(2 * hits, said + there)


def mean_of_known(rows: Mapping[str, Mapping[str, float | None]], key: str) -> float:
    """The mean of a figure over the classes that have it; NaN where none has."""
    known = [value for row in rows.values() if (value := row[key]) is not None]
    return float(np.mean(known)) if known else float("nan")


def _ratios(part: Counts, whole: Counts) -> Known:
    return [float(a / b) if b else None for a, b in zip(part, whole, strict=True)]


def grouped(evaluation: Evaluation, number_of: Mapping[str, int]) -> Evaluation:
    """The evaluation with what is known of images that are not independent.

    Args:
        evaluation: of n images.
        number_of: by path, the group of each image that is in one.
    """
    known = [number_of.get(path) for path in evaluation.paths]
    some = [number for number in known if number is not None]
    if len(set(some)) == len(some):
        return evaluation
    free = max(some) + 1
    groups = tuple(free + i if number is None else number for i, number in enumerate(known))
    return replace(evaluation, groups=groups)


def pooled(folds: Sequence[Evaluation]) -> Evaluation:
    """The evaluations of other images by models of the same classes, as one. What each model said of its images stays.

    Groups of images lie within one fold.
    """
    first, groups, start = folds[0], list[int](), 0
    for own in folds:
        _, number = np.unique(own.groups or np.arange(len(own.labels)), return_inverse=True)
        groups += (start + number).tolist()
        start += int(number.max()) + 1
    whole = replace(
        first,
        paths=tuple(path for own in folds for path in own.paths),
        labels=np.concatenate([own.labels for own in folds]),
        probabilities=np.concatenate([own.probabilities for own in folds]),
        unreadable={path: reason for own in folds for path, reason in own.unreadable.items()},
        groups=tuple(groups) if start < len(groups) else (),
    )
    whole.__dict__["predicted"] = np.concatenate([own.predicted for own in folds])  # by each model's thresholds
    return whole


def held_out_split(table: ImageTable) -> str:
    """The split that results are reported on: test, else val, else all there is."""
    return next((name for name in ("test", "val") if name in table.splits), "all")
