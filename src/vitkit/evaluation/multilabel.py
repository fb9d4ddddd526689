"""Where an image may have several classes, or none: what a classifier is worth, and where its thresholds should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.data.task import MULTI_LABEL, NO_THRESHOLD, Task
from vitkit.evaluation import registry
from vitkit.evaluation.metrics import Evaluation, mean_of_known, scores, standings
from vitkit.text.cells import JOINT

Labels = npt.NDArray[np.int64] | npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class MultiEvaluation(Evaluation):
    """The outcome of a multi-label classifier on labelled images. What is said of single classes does not apply.

    Attributes:
        labels: 1 where an image has a class, else 0, (n, K).
        probabilities: (n, K), each from 0 to 1.
        thresholds: the probability from which on an image is said to have a class, (K,).
    """

    thresholds: tuple[float, ...] = ()

    @property
    def task(self) -> Task:
        return MULTI_LABEL

    def with_classes(self, more: Sequence[str]) -> MultiEvaluation:
        widened = super().with_classes(more)
        never_said = (1.0,) * len(more)
        return replace(
            widened, labels=np.pad(self.labels, ((0, 0), (0, len(more)))), thresholds=(*self.thresholds, *never_said)
        )

    def label_row(self, numbers: Sequence[int]) -> npt.NDArray[np.bool_]:
        return np.isin(np.arange(len(self.classes)), numbers)

    @cached_property
    def predicted(self) -> npt.NDArray[np.int64]:
        """1 where an image is said to have a class, else 0, (n, K)."""
        return (self.probabilities >= np.array(self.thresholds)).astype(np.int64)

    def label_of(self, index: int) -> str:
        """The names of an image's classes, joined by `;`."""
        return JOINT.join(self.classes[k] for k in np.flatnonzero(self.labels[index])) or JOINT

    @property
    def accuracy(self) -> float:
        """Exact match: the part of the images whose every class is said, and no other."""
        return float((self.predicted == self.labels).all(axis=1).mean())

    @property
    def balanced_accuracy(self) -> float:
        """The mean of recall and its counterpart on images without the class, over the classes where both exist."""
        hits = self.predicted == self.labels
        positives, images = self.labels.sum(axis=0), len(self.labels)
        both = (positives > 0) & (positives < images)
        if not both.any():
            return float("nan")
        recall = (hits & self.labels).sum(axis=0)[both] / positives[both]
        rejection = (hits & (self.labels == 0)).sum(axis=0)[both] / (images - positives)[both]
        return float(((recall + rejection) / 2).mean())

    @property
    def absent(self) -> tuple[str, ...]:
        """Classes of the model that no image has."""
        return tuple(name for name, images in zip(self.classes, self.labels.sum(axis=0), strict=True) if not images)

    @property
    def hamming_loss(self) -> float:
        """Part of all decisions, one an image and class, that are wrong."""
        return float((self.predicted != self.labels).mean())

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood of a decision, in nats."""
        true = np.where(self.labels == 1, self.probabilities, 1 - self.probabilities.astype(np.float64))
        return float(-np.log(np.maximum(true, np.finfo(np.float32).tiny)).mean())

    @property
    def mean_average_precision(self) -> float:
        """mAP: the mean of the classes' average precision."""
        return mean_average_precision(self.labels, self.probabilities)

    @property
    def macro_f1(self) -> float:
        """The mean F1 at the thresholds over the classes that are there or said: one that is only said has 0."""
        return mean_of_known(self.per_class(), "f1")

    @property
    def micro_f1(self) -> float:
        """F1 of all decisions together; NaN where no image has a class and none is said to."""
        either = int(self.predicted.sum() + self.labels.sum())
        return 2 * int((self.predicted & self.labels).sum()) / either if either else float("nan")

    def per_class(self) -> dict[str, dict[str, Any]]:
        """Precision, recall, F1, support (images), threshold and average precision; None where one is undefined."""
        support, said = self.labels.sum(axis=0), self.predicted.sum(axis=0)
        precision, recall, f1 = scores((self.predicted & self.labels).sum(axis=0), said, support)
        found = average_precisions(self.labels, self.probabilities)
        return {
            name: {
                "precision": precision[i],
                "recall": recall[i],
                "f1": f1[i],
                "support": int(support[i]),
                "threshold": self.thresholds[i],
                "average_precision": _known(float(found[i])),
            }
            for i, name in enumerate(self.classes)
        }

    def summary(self) -> dict[str, Any]:
        """The headline numbers, `accuracy` (the exact match) first."""
        return {
            **registry.summary(self, "multi"),
            "images": len(self.labels),
            "unreadable": len(self.unreadable),
            "split": self.split,
            "task": "multi",
        }


def average_precisions(labels: Labels, scores: Floats) -> npt.NDArray[np.float64]:
    """(K,) the area under each class's steps of precision by recall; NaN for a class that no image has.

    Args:
        labels: whether each image has each class, (n, K).
        scores: anything that rises with the probability, (n, K).
    """
    found = np.full(labels.shape[1], np.nan)
    for i, own in standings(labels, scores):
        found[i] = own.average_precision
    return found


def mean_average_precision(labels: Labels, scores: Floats) -> float:
    """Over the classes that an image has; NaN when there is none."""
    found = average_precisions(labels, scores)
    return float(found[~np.isnan(found)].mean()) if labels.any() else float("nan")


def best_thresholds(labels: Labels, probabilities: Floats) -> tuple[float, ...]:
    """(K,) the threshold with the best F1 of each class, midway between two probabilities that occur.

    Of several equally good the one nearest to 0.5; 0.5 for a class that no image has.

    Args:
        labels: whether each image has each class, (n, K).
        probabilities: (n, K).
    """
    return tuple(_best_threshold(*column) for column in zip(labels.T, probabilities.T, strict=True))


def cross_fitted(evaluation: MultiEvaluation, folds: int = 5, seed: int = 0) -> dict[str, float | None]:
    """What depends on thresholds, where each image is judged by thresholds that it did not help to choose.

    Args:
        evaluation: of n images that the thresholds were chosen on.
        folds: parts of them; the thresholds of each are chosen on the others.
        seed: of the parts.
    """
    part = np.random.default_rng(seed).permutation(len(evaluation.labels)) % folds
    said = np.zeros_like(evaluation.labels)
    for own in range(folds):
        others = part != own
        thresholds = best_thresholds(evaluation.labels[others], evaluation.probabilities[others])
        said[~others] = evaluation.probabilities[~others] >= np.array(thresholds)
    judged = replace(evaluation, probabilities=said.astype(np.float32), thresholds=(0.5,) * len(evaluation.classes))
    keys = ("accuracy", "micro_f1", "macro_f1", "hamming_loss", "balanced_accuracy")
    return {key: judged.summary()[key] for key in keys}


def _best_threshold(labels: Labels, probabilities: Floats) -> float:
    if not labels.any():
        return NO_THRESHOLD
    order = np.argsort(-probabilities, kind="stable")
    values = np.append(probabilities[order].astype(np.float64), 0.0)
    hits, named = np.cumsum(labels[order]), np.arange(1, len(labels) + 1)
    f1 = 2 * hits / (named + labels.sum())
    f1[values[:-1] == values[1:]] = -1  # equal probabilities are named together, or not at all
    if values[-2] == 0:  # all are named by a threshold of 0
        f1[-1] = 2 * hits[-1] / (len(labels) + labels.sum())
    middles = (values[:-1] + values[1:]) / 2
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    return float(middles[best[np.argmin(np.abs(middles[best] - 0.5))]])


def _known(value: float) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else value
