"""Metrics of a classifier on labelled images, with one class per image or several, and the choice of thresholds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from vitkit.data.table import MULTI_LABEL, NO_THRESHOLD, SINGLE_LABEL, Task
from vitkit.evaluation import registry
from vitkit.evaluation.calibration import Reliability, blocks
from vitkit.text.cells import JOINT

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]
Labels = npt.NDArray[np.int64] | npt.NDArray[np.bool_]
_NUMBERS = 2**20  # scores that are read at a time
RATES = np.linspace(0, 1, 201)  # the rates at which the curves of classes are compared


@dataclass(frozen=True)
class ClassCurves:
    """The curves of one class against all other classes, and the areas below them."""

    roc_auc: float | None  # area under the ROC curve; None if there are no images of other classes
    average_precision: float  # area under the precision-recall curve, as a step function
    true_rates: Floats | None  # true positive rate at each false positive rate of `RATES`; None if `roc_auc` is
    precisions: Floats  # the highest precision at each recall of `RATES` or above it


def class_curves(labels: Ints, scores: Floats) -> dict[int, ClassCurves]:
    """Return the curves of each class that occurs in `labels` (n,), by class number, given its `scores` (n, K)."""
    from sklearn.metrics import auc, roc_curve

    n = len(labels)
    by_class = {}
    occurring, counts = np.unique(labels, return_counts=True)
    step = max(_NUMBERS // n, 1)  # a table in a file is read a few columns at a time
    for position, (i, count) in enumerate(zip(occurring.tolist(), counts.tolist(), strict=True)):
        if position % step == 0:
            columns = np.ascontiguousarray(scores[:, occurring[position : position + step]].T)
        if count == n:  # no image of another class
            precisions = np.ones(len(RATES), np.float32)
            by_class[i] = ClassCurves(roc_auc=None, average_precision=1.0, true_rates=None, precisions=precisions)
            continue
        # Precision and recall follow from the points of the ROC curve, so that the scores are sorted only once.
        false, true, _ = roc_curve(labels == i, columns[position % step], drop_intermediate=False)
        precision = np.ones_like(true)  # 1 by definition if no image is predicted
        precision[1:] = true[1:] * count / (true[1:] * count + false[1:] * (n - count))
        highest = np.maximum.accumulate(precision[::-1])[::-1]  # at this recall or a higher one
        by_class[i] = ClassCurves(
            roc_auc=float(auc(false, true)),
            average_precision=float((np.diff(true) * precision[1:]).sum()),
            true_rates=np.interp(RATES, false, true).astype(np.float32),  # there may be thousands of classes
            precisions=np.interp(RATES, true, highest).astype(np.float32),
        )
    return by_class


Counts = npt.NDArray[np.int64]
Ratios = list[float | None]  # None where the denominator is 0


@dataclass(frozen=True)
class Evaluation:
    """Predictions of a classifier on labelled images."""

    task: ClassVar[Task] = SINGLE_LABEL  # one class per image

    split: str  # train, val, test or all
    classes: tuple[str, ...]  # names, in the order of the columns of `probabilities`
    paths: tuple[str, ...]  # of the images, (n,)
    labels: npt.NDArray[np.int64]  # true class of each image, (n,)
    probabilities: npt.NDArray[np.float32]  # (n, K); each row sums to 1
    unreadable: dict[str, str] = field(default_factory=dict)  # why an image could not be predicted, by path
    temperature: float = 1.0  # of the classifier; the probabilities include it
    groups: tuple[int, ...] = ()  # group number of each image, (n,), if images of a group depend on each other
    chosen: tuple[str, ...] = ()  # choices that were made on these images, such as the epoch (`figures.chosen_on`)
    # Current label, by path, of each image whose label has changed since an earlier run. `labels` has the earlier ones.
    current_labels: Mapping[str, str] = field(default_factory=dict)
    # Conformal p-value of each image, (n,): the fraction of held-out images that are no more familiar to the classifier
    # (`inference.unknown`). None if the classifier has no score for unknown images.
    p_known: npt.NDArray[np.float32] | None = None

    def with_classes(self, added: Sequence[str]) -> Self:
        """Add classes that the classifier does not know and therefore never predicts."""
        probabilities = np.pad(self.probabilities, ((0, 0), (0, len(added))))
        return replace(self, classes=(*self.classes, *added), probabilities=probabilities)

    @cached_property
    def predicted(self) -> npt.NDArray[np.int64]:
        """Most probable class of each image, (n,)."""
        return self.probabilities.argmax(axis=1)

    @property
    def is_correct(self) -> npt.NDArray[np.bool_]:
        """Whether each image is predicted correctly, (n,)."""
        return np.asarray(self.predicted == self.labels)

    @property
    def accuracy(self) -> float:
        """Fraction of images that are predicted correctly."""
        return float(self.is_correct.mean())

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall of the classes that occur, each with the same weight."""
        return _mean_of_known(self.per_class(), "recall")

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood of the true class, in nats (natural logarithm)."""
        true = self.probabilities[np.arange(len(self.labels)), self.labels]
        return float(-np.log(np.maximum(true, np.finfo(np.float32).tiny)).mean())

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the classes that occur or are predicted, as in scikit-learn.

        F1 is 0 for a class that is predicted but does not occur.
        """
        return _mean_of_known(self.per_class(), "f1")

    @property
    def top5_accuracy(self) -> float:
        """Fraction of images whose true class is among the 5 most probable."""
        return float(self.is_among(5).mean())

    @property
    def ece(self) -> float:
        """Expected calibration error: mean gap between confidence and accuracy over bins (`calibration`)."""
        return self.reliability.ece

    @cached_property
    def reliability(self) -> Reliability:
        """Accuracy as a function of confidence."""
        return Reliability.of(self.confidence, self.is_correct)

    @cached_property
    def reliability_untempered(self) -> Reliability:
        """Accuracy as a function of the confidence at temperature 1."""
        return Reliability.of(self.confidence_untempered, self.is_correct)

    @cached_property
    def confidence(self) -> npt.NDArray[np.float64]:
        """Highest probability of each image, (n,)."""
        return self.probabilities.max(axis=1).astype(np.float64)

    @cached_property
    def confidence_untempered(self) -> npt.NDArray[np.float64]:
        """Highest probability of each image at temperature 1, (n,)."""
        if self.temperature == 1:
            return self.confidence
        highest = np.empty(len(self.probabilities))
        for rows in blocks(*self.probabilities.shape):
            part = np.maximum(self.probabilities[rows].astype(np.float64), np.finfo(np.float32).tiny)
            highest[rows] = 1 / ((part / part.max(axis=1, keepdims=True)) ** self.temperature).sum(axis=1)
        return highest

    @cached_property
    def curves(self) -> dict[int, ClassCurves]:
        """Curves of the classes that occur, by class number."""
        return class_curves(self.labels, self.probabilities)

    @property
    def brier(self) -> float:
        """Mean squared distance of the probabilities from the one-hot labels, 0 to 2 (Brier 1950)."""
        return float(self.briers.mean())

    @property
    def briers(self) -> npt.NDArray[np.float64]:
        """Squared distance of each image's probabilities from its one-hot label, (n,)."""
        # |p - one-hot|^2 = |p|^2 - 2 p[label] + 1, computed in blocks to save memory
        true = self.probabilities[np.arange(len(self.labels)), self.labels].astype(np.float64)
        squares = np.empty(len(true))
        for rows in blocks(*self.probabilities.shape):
            squares[rows] = (self.probabilities[rows].astype(np.float64) ** 2).sum(axis=1)
        return np.maximum(squares - 2 * true + 1, 0.0)

    def label_of(self, index: int) -> str:
        """Name of an image's true class."""
        return self.classes[self.labels[index]]

    @property
    def absent(self) -> tuple[str, ...]:
        """Classes of the model to which no image belongs."""
        return tuple(self.classes[i] for i in np.setdiff1d(np.arange(len(self.classes)), self.labels))

    def confused(self, max_count: int) -> list[tuple[str, str, int, float]]:
        """Return at most `max_count` pairs of classes that are confused, the most frequent first.

        They are tuples of true class, predicted class, number of images with this pair, and their fraction of the
        images of the true class.
        """
        images = self._count(self.labels)
        true, predicted, counts = self.confusion_pairs()
        wrong = true != predicted
        true, predicted, counts = true[wrong], predicted[wrong], counts[wrong]
        shares = counts / images[true]
        return [
            (self.classes[true[p]], self.classes[predicted[p]], int(counts[p]), float(shares[p]))
            for p in np.argsort(-counts, kind="stable")[:max_count]
        ]

    def mistakes(self, max_count: int) -> list[int]:
        """Return the indices of at most `max_count` misclassified images, the most confident first."""
        wrong = np.flatnonzero(~self.is_correct)
        order = np.argsort(-self.probabilities[wrong].max(axis=1), kind="stable")[:max_count]
        return [int(i) for i in wrong[order]]

    def is_among(self, k: int) -> npt.NDArray[np.bool_]:
        """Return whether each image's true class is among the k most probable, (n,)."""
        true = self.probabilities[np.arange(len(self.labels)), self.labels]
        among = np.empty(len(true), dtype=np.bool_)
        for rows in blocks(*self.probabilities.shape):
            among[rows] = (self.probabilities[rows] > true[rows, None]).sum(axis=1) < k
        return among

    def confusion(self, max_rows: int | None = None) -> npt.NDArray[np.int64]:
        """Return the confusion matrix of counts; rows are true classes, columns predicted ones.

        If there are more than `max_rows` classes, neighbouring classes are merged into one row and column.
        """
        classes_per_row = 1 if max_rows is None else math.ceil(len(self.classes) / max_rows)
        side = math.ceil(len(self.classes) / classes_per_row)
        true, predicted, counts = self.confusion_pairs()
        matrix = np.zeros((side, side), dtype=np.int64)
        np.add.at(matrix, (true // classes_per_row, predicted // classes_per_row), counts)
        return matrix

    def per_class(self) -> dict[str, dict[str, Any]]:
        """Return precision, recall, F1 and support (number of images) of each class; None where undefined."""
        hits = self._count(self.labels[self.is_correct])
        support = self._count(self.labels)
        precision, recall, f1 = scores(hits, self._count(self.predicted), support)
        return {
            name: {"precision": precision[i], "recall": recall[i], "f1": f1[i], "support": int(support[i])}
            for i, name in enumerate(self.classes)
        }

    def _count(self, labels: npt.NDArray[np.int64]) -> Counts:
        return np.bincount(labels, minlength=len(self.classes))

    def confusion_pairs(self) -> tuple[Counts, Counts, Counts]:
        """Count the images with each combination of true and predicted class that occurs.

        Returns:
            Three arrays: the true class, the predicted class, and the number of images of each combination.
        """
        pairs, counts = np.unique(self.labels * len(self.classes) + self.predicted, return_counts=True)
        true, predicted = np.divmod(pairs, len(self.classes))
        return true, predicted, counts

    def summary(self) -> dict[str, Any]:
        """Return the main figures by name, `accuracy` first."""
        figures = registry.summary(self, self.task.name)
        return {**figures, "images": len(self.labels), "unreadable": len(self.unreadable), "split": self.split}


def scores(hits: Counts, predicted: Counts, support: Counts) -> tuple[Ratios, Ratios, Ratios]:
    """Return precision, recall and F1 of each class.

    Precision is None for a class that is never predicted, recall for a class that no image has, and F1 for a class that
    is never predicted and that no image has. Averages ignore None. The arguments (K,) are the numbers of images for
    which each class is predicted correctly, is predicted, and is true.
    """
    return _ratios(hits, predicted), _ratios(hits, support), _ratios(2 * hits, predicted + support)


def _mean_of_known(rows: Mapping[str, Mapping[str, float | None]], key: str) -> float:
    # The mean of a figure over the classes for which it is defined; NaN if there are none.
    values = [row[key] for row in rows.values()]
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else float("nan")


def _ratios(part: Counts, whole: Counts) -> Ratios:
    return [float(a / b) if b else None for a, b in zip(part, whole, strict=True)]


def grouped(evaluation: Evaluation, number_of: Mapping[str, int]) -> Evaluation:
    """Add group numbers, by path, to an evaluation. An image without a number becomes a group of its own.

    The evaluation is returned unchanged if no two of its images are in the same group.
    """
    numbers = [number_of[path] for path in evaluation.paths if path in number_of]
    if len(set(numbers)) == len(numbers):
        return evaluation
    unused = max(numbers) + 1
    groups = tuple(number_of.get(path, unused + i) for i, path in enumerate(evaluation.paths))
    return replace(evaluation, groups=groups)


def pooled(folds: Sequence[Evaluation]) -> Evaluation:
    """Merge the evaluations of a cross-validation's folds, which have disjoint images and the same classes.

    Each image keeps the classes predicted by the model of its fold, with that model's thresholds. All images of a group
    must be in the same fold.
    """
    groups: list[int] = []
    count = 0  # of groups so far, which is added to the numbers of a fold so that groups of different folds differ
    for fold in folds:
        _, number = np.unique(fold.groups or np.arange(len(fold.labels)), return_inverse=True)
        groups += (count + number).tolist()
        count += int(number.max()) + 1
    p_known = [fold.p_known for fold in folds if fold.p_known is not None]
    whole = replace(
        folds[0],
        paths=tuple(path for fold in folds for path in fold.paths),
        labels=np.concatenate([fold.labels for fold in folds]),
        probabilities=np.concatenate([fold.probabilities for fold in folds]),
        unreadable={path: reason for fold in folds for path, reason in fold.unreadable.items()},
        groups=tuple(groups) if count < len(groups) else (),  # empty if each image is its own group
        p_known=np.concatenate(p_known) if len(p_known) == len(folds) else None,
    )
    # Set the cached property, which would otherwise use the thresholds of the first fold for all images.
    whole.__dict__["predicted"] = np.concatenate([fold.predicted for fold in folds])
    return whole


# --- Several classes per image --------------------------------------------------------------------------------


@dataclass(frozen=True)
class MultiEvaluation(Evaluation):
    """Predictions of a multi-label classifier on labelled images.

    `labels` are class indicators (n, K), and each of the `probabilities` (n, K) is from 0 to 1. Members of `Evaluation`
    that assume one class per image, such as `top5_accuracy`, do not apply.
    """

    task: ClassVar[Task] = MULTI_LABEL

    thresholds: tuple[float, ...] = ()  # lowest probability at which each class is predicted, (K,)

    def with_classes(self, added: Sequence[str]) -> MultiEvaluation:
        widened = super().with_classes(added)
        never_predicted = (1.0,) * len(added)
        return replace(
            widened,
            labels=np.pad(self.labels, ((0, 0), (0, len(added)))),
            thresholds=(*self.thresholds, *never_predicted),
        )

    @cached_property
    def predicted(self) -> npt.NDArray[np.int64]:
        """Predicted class indicators (n, K): 1 where a class is predicted for an image, otherwise 0."""
        return (self.probabilities >= np.array(self.thresholds)).astype(np.int64)

    def label_of(self, index: int) -> str:
        """Names of an image's true classes, joined by `;`."""
        return JOINT.join(self.classes[k] for k in np.flatnonzero(self.labels[index])) or JOINT

    @property
    def is_correct(self) -> npt.NDArray[np.bool_]:
        """Whether exactly the true classes are predicted for each image, (n,); `accuracy` is then the exact match."""
        return np.asarray((self.predicted == self.labels).all(axis=1))

    @property
    def balanced_accuracy(self) -> float:
        """Mean of sensitivity and specificity, over the classes that some but not all images have."""
        hits = self.predicted == self.labels
        positives = self.labels.sum(axis=0)
        negatives = len(self.labels) - positives
        both = (positives > 0) & (negatives > 0)
        if not both.any():
            return float("nan")
        sensitivity = (hits & self.labels).sum(axis=0)[both] / positives[both]
        specificity = (hits & (self.labels == 0)).sum(axis=0)[both] / negatives[both]
        return float(((sensitivity + specificity) / 2).mean())

    @property
    def absent(self) -> tuple[str, ...]:
        """Classes of the model to which no image belongs."""
        return tuple(self.classes[k] for k in np.flatnonzero(self.labels.sum(axis=0) == 0))

    @property
    def hamming_loss(self) -> float:
        """Fraction of wrong decisions, with one decision per image and class."""
        return float((self.predicted != self.labels).mean())

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood per decision (one per image and class), in nats."""
        true = np.where(self.labels == 1, self.probabilities, 1 - self.probabilities.astype(np.float64))
        return float(-np.log(np.maximum(true, np.finfo(np.float32).tiny)).mean())

    @property
    def mean_average_precision(self) -> float:
        """Mean of the classes' average precision (mAP)."""
        return mean_average_precision(self.labels, self.probabilities)

    @property
    def micro_f1(self) -> float:
        """F1 over all decisions, one per image and class; NaN if no class occurs and none is predicted."""
        total = int(self.predicted.sum() + self.labels.sum())
        hits = int((self.predicted & self.labels).sum())
        return 2 * hits / total if total else float("nan")

    def per_class(self) -> dict[str, dict[str, Any]]:
        """Return precision, recall, F1, support, threshold and average precision per class; None where undefined."""
        hits = (self.predicted & self.labels).sum(axis=0)
        support = self.labels.sum(axis=0)
        precision, recall, f1 = scores(hits, self.predicted.sum(axis=0), support)
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
        return {**super().summary(), "task": "multi"}


def average_precisions(labels: Labels, scores: Floats) -> npt.NDArray[np.float64]:
    """Return the average precision (K,) of each class; NaN for a class that no image has.

    `labels` are class indicators (n, K), and a higher score (n, K) means that the class is more probable.
    """
    from sklearn.metrics import average_precision_score

    precisions = np.full(labels.shape[1], np.nan)
    for k in np.flatnonzero(labels.any(axis=0)):
        precisions[k] = average_precision_score(labels[:, k], scores[:, k])
    return precisions


def mean_average_precision(labels: Labels, scores: Floats) -> float:
    """Return the mean average precision over the classes that occur; NaN if there are none."""
    precisions = average_precisions(labels, scores)
    return float(precisions[~np.isnan(precisions)].mean()) if labels.any() else float("nan")


def best_thresholds(labels: Labels, probabilities: Floats) -> tuple[float, ...]:
    """Choose the threshold with the best F1 for each class.

    Each threshold lies halfway between two neighbouring probabilities. Of several equally good thresholds, the nearest
    to 0.5 is chosen. A class that no image has gets the threshold 0.5. `labels` are class indicators (n, K).
    """
    thresholds = []
    for has, probability in zip(labels.T, probabilities.T, strict=True):  # (n,) for one class
        if not has.any():
            thresholds.append(NO_THRESHOLD)
            continue
        order = np.argsort(-probability, kind="stable")
        values = np.append(probability[order].astype(np.float64), 0.0)
        # The F1 if the class is predicted for the k most probable images, for each k from 1 to n.
        hits = np.cumsum(has[order])
        predicted = np.arange(1, len(has) + 1)
        f1 = 2 * hits / (predicted + has.sum())
        f1[values[:-1] == values[1:]] = -1  # images of equal probability are predicted together or not at all
        if values[-2] == 0:  # a threshold of 0 predicts the class for all images
            f1[-1] = 2 * hits[-1] / (len(has) + has.sum())
        halfway = (values[:-1] + values[1:]) / 2
        candidates = halfway[f1 >= f1.max() - 1e-12]  # up to rounding, equally good
        thresholds.append(float(candidates[np.argmin(np.abs(candidates - 0.5))]))
    return tuple(thresholds)
