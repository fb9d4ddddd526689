"""Where the images of each class stand among all, by its probability: what curves and areas are made of.

A curve bends only where an image of the class stands, so one sorted column a class gives all of it: n log n a class,
however many curves and areas are read from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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
