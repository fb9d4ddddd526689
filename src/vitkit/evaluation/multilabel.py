"""Metrics of multi-label classifiers, whose images may have several classes or none, and the choice of thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.data.task import MULTI_LABEL, NO_THRESHOLD, Task
from vitkit.evaluation import registry
from vitkit.evaluation.metrics import Evaluation, class_rankings, mean_of_known, scores
from vitkit.text.cells import JOINT

Labels = npt.NDArray[np.int64] | npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class MultiEvaluation(Evaluation):
    """Predictions of a multi-label classifier on labelled images.

    Members of `Evaluation` that assume one class per image, such as `top5_accuracy`, do not apply.

    Attributes:
        labels: class indicators (n, K): 1 where an image has a class, otherwise 0.
        probabilities: (n, K), each from 0 to 1.
        thresholds: lowest probability at which a class is predicted, (K,).
    """

    thresholds: tuple[float, ...] = ()

    @property
    def task(self) -> Task:
        return MULTI_LABEL

    def with_classes(self, more: Sequence[str]) -> MultiEvaluation:
        widened = super().with_classes(more)
        never_predicted = (1.0,) * len(more)
        return replace(
            widened,
            labels=np.pad(self.labels, ((0, 0), (0, len(more)))),
            thresholds=(*self.thresholds, *never_predicted),
        )

    def label_row(self, numbers: Sequence[int]) -> npt.NDArray[np.bool_]:
        return np.isin(np.arange(len(self.classes)), numbers)

    @cached_property
    def predicted(self) -> npt.NDArray[np.int64]:
        """Predicted class indicators (n, K): 1 where a class is predicted for an image, otherwise 0."""
        return (self.probabilities >= np.array(self.thresholds)).astype(np.int64)

    def label_of(self, index: int) -> str:
        """Names of an image's true classes, joined by `;`."""
        return JOINT.join(self.classes[k] for k in np.flatnonzero(self.labels[index])) or JOINT

    @property
    def accuracy(self) -> float:
        """Exact match: fraction of images for which exactly the true classes are predicted."""
        return float((self.predicted == self.labels).all(axis=1).mean())

    @property
    def balanced_accuracy(self) -> float:
        """Mean of sensitivity and specificity, over the classes that some but not all images have."""
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
        """Fraction of wrong decisions, with one decision per image and class."""
        return float((self.predicted != self.labels).mean())

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood per decision, in nats."""
        true = np.where(self.labels == 1, self.probabilities, 1 - self.probabilities.astype(np.float64))
        return float(-np.log(np.maximum(true, np.finfo(np.float32).tiny)).mean())

    @property
    def mean_average_precision(self) -> float:
        """Mean of the classes' average precision (mAP)."""
        return mean_average_precision(self.labels, self.probabilities)

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the classes that occur or are predicted.

        F1 is 0 for a class that is predicted but does not occur.
        """
        return mean_of_known(self.per_class(), "f1")

    @property
    def micro_f1(self) -> float:
        """F1 over all decisions, one per image and class; NaN if no class occurs and none is predicted."""
        either = int(self.predicted.sum() + self.labels.sum())
        return 2 * int((self.predicted & self.labels).sum()) / either if either else float("nan")

    def per_class(self) -> dict[str, dict[str, Any]]:
        """Return precision, recall, F1, support, threshold and average precision per class; None where undefined.

        The support is the number of images of a class.
        """
        support, predicted = self.labels.sum(axis=0), self.predicted.sum(axis=0)
        precision, recall, f1 = scores((self.predicted & self.labels).sum(axis=0), predicted, support)
        average_precision = average_precisions(self.labels, self.probabilities)
        return {
            name: {
                "precision": precision[i],
                "recall": recall[i],
                "f1": f1[i],
                "support": int(support[i]),
                "threshold": self.thresholds[i],
                "average_precision": None if np.isnan(average_precision[i]) else float(average_precision[i]),
            }
            for i, name in enumerate(self.classes)
        }

    def summary(self) -> dict[str, Any]:
        """Return the main figures by name, `accuracy` first, which is the exact match."""
        return {
            **registry.summary(self, "multi"),
            "images": len(self.labels),
            "unreadable": len(self.unreadable),
            "split": self.split,
            "task": "multi",
        }


def average_precisions(labels: Labels, scores: Floats) -> npt.NDArray[np.float64]:
    """Return the average precision (K,) of each class; NaN for a class that no image has.

    Args:
        labels: class indicators, (n, K).
        scores: (n, K); a higher score means that the class is more probable.
    """
    precisions = np.full(labels.shape[1], np.nan)
    for i, ranking in class_rankings(labels, scores):
        precisions[i] = ranking.average_precision
    return precisions


def mean_average_precision(labels: Labels, scores: Floats) -> float:
    """Return the mean average precision over the classes that occur; NaN if there are none."""
    precisions = average_precisions(labels, scores)
    return float(precisions[~np.isnan(precisions)].mean()) if labels.any() else float("nan")


def best_thresholds(labels: Labels, probabilities: Floats) -> tuple[float, ...]:
    """Choose the threshold with the best F1 for each class.

    Each threshold lies halfway between two neighbouring probabilities. Of several equally good thresholds, the nearest
    to 0.5 is chosen. A class that no image has gets the threshold 0.5.

    Args:
        labels: class indicators, (n, K).
        probabilities: (n, K).
    """
    return tuple(_best_threshold(*column) for column in zip(labels.T, probabilities.T, strict=True))


def cross_fitted(evaluation: MultiEvaluation, folds: int = 5, seed: int = 0) -> dict[str, float | None]:
    """Return the figures that depend on thresholds, with thresholds chosen by cross-validation.

    The thresholds of each fold are chosen on the other folds, so that no image is tested with thresholds chosen on it.

    Args:
        evaluation: evaluation of the n images that the classifier's thresholds were chosen on.
        folds: number of folds.
        seed: seed of the random folds.
    """
    fold_of = np.random.default_rng(seed).permutation(len(evaluation.labels)) % folds
    predicted = np.zeros_like(evaluation.labels)
    for fold in range(folds):
        others = fold_of != fold
        thresholds = best_thresholds(evaluation.labels[others], evaluation.probabilities[others])
        predicted[~others] = evaluation.probabilities[~others] >= np.array(thresholds)
    evaluated = replace(
        evaluation, probabilities=predicted.astype(np.float32), thresholds=(0.5,) * len(evaluation.classes)
    )
    keys = ("accuracy", "micro_f1", "macro_f1", "hamming_loss", "balanced_accuracy")
    return {key: evaluated.summary()[key] for key in keys}


def _best_threshold(labels: Labels, probabilities: Floats) -> float:
    if not labels.any():
        return NO_THRESHOLD
    order = np.argsort(-probabilities, kind="stable")
    values = np.append(probabilities[order].astype(np.float64), 0.0)
    hits, predicted = np.cumsum(labels[order]), np.arange(1, len(labels) + 1)
    f1 = 2 * hits / (predicted + labels.sum())
    f1[values[:-1] == values[1:]] = -1  # images of equal probability are predicted together or not at all
    if values[-2] == 0:  # a threshold of 0 predicts the class for all images
        f1[-1] = 2 * hits[-1] / (len(labels) + labels.sum())
    middles = (values[:-1] + values[1:]) / 2
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    return float(middles[best[np.argmin(np.abs(middles[best] - 0.5))]])
