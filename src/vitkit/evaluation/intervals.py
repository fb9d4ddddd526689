"""How far chance may have moved the figures of an evaluation: 95 % confidence intervals that were simulated to cover.

An interval is of what the figure would be on ever more images of the same kind. Its ends are found as Clopper and
Pearson (1934) find those of a proportion: by adding one imagined image that is as bad, or as good, as can be, and
taking a quantile of the figure when all images are weighted at random (Dirichlet weights: Rubin 1981; for means of
bounded values Gaffke 2005). The quantile is that of the beta distribution with the same mean and variance, which for a
proportion is exact. Where images come in groups, groups are weighted and a whole group is imagined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, ndtri, stdtrit

from vitkit.evaluation.calibration import BINS, bin_of, blocks
from vitkit.evaluation.metrics import Evaluation, pooled
from vitkit.evaluation.registry import metrics_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Interval = tuple[float, float]
TAIL = 0.025
MOST_BRIER = 2.0
_CONFIDENT = 0.9  # of the images are less confident than the one whose mistake is imagined for the log loss
_SHARED = 1.4  # times as far as images by themselves, the figures of folds vary, which share training images
_MOST = {"loss": np.inf, "brier": MOST_BRIER}  # of a figure; of others 1


@dataclass(frozen=True)
class Units:
    """What is independent of one another: images, or groups of them.

    Attributes:
        group: a number for each image, from 0, (n,).
        count: of units.
        imagined: images of the unit that is imagined: one, or those of the group that an image is in on average.
    """

    group: Ints
    count: int
    imagined: float

    @classmethod
    def of(cls, images: int, groups: Ints | None) -> Units:
        """Each image by itself where no groups are given."""
        if groups is None:
            return cls(np.arange(images), images, 1.0)
        _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        return cls(group, len(sizes), float((sizes**2).sum() / images))

    def variance(self, influence: Floats, imagined: float, least: float = 0.0) -> float:
        """Of a figure under random weights.

        Args:
            influence: of each image on the figure, (n,).
            imagined: that of the imagined unit.
            least: a lower bound of the variance, apart from the imagined unit's.
        """
        total = max(float((np.bincount(self.group, influence) ** 2).sum()), least) + imagined**2
        return total * (self.count + 1) / (self.count + 2)

    def effect(self, is_right: npt.NDArray[np.bool_]) -> float:
        """How many times the variance of independent images the number that is right has; 1 or more (Kish 1965)."""
        residual = is_right - is_right.mean()
        alone = float((residual**2).sum())
        return max(float((np.bincount(self.group, residual) ** 2).sum()) / alone, 1.0) if alone else 1.0


def intervals(evaluation: Evaluation) -> dict[str, Interval]:
    """95 % confidence intervals of the figures of an evaluation that have one (docs/guide/evaluation.md).

    They are of what the figures would be on ever more such images (of the calibration error: on average over as many),
    not of what another training would give.
    """
    n = len(evaluation.labels)
    units = Units.of(n, np.array(evaluation.groups) if evaluation.groups else None)
    rows = metrics_of(evaluation.task.name, len(evaluation.classes))
    return {metric.name: metric.bounds(evaluation, units) for metric in rows if metric.interval}


def fold_intervals(folds: Sequence[Evaluation]) -> dict[str, Interval]:
    """95 % confidence intervals of the figures of a cross-validation, over all its images, each tested once.

    They are of what trainings like these would give on average on ever more such images. Two things are added to what
    the images bring. Where folds differ by more than their images explain, the rest is how far a training may differ
    from another. And folds are not independent, since they share training images: no estimate knows by how much that
    moves their mean (Bengio and Grandvalet 2004), so two fifths are added to every margin, which was simulated to be
    enough (benchmarks/coverage.py).

    Args:
        folds: the evaluation of each fold's images by the model that was not trained on them.
    """
    whole = pooled(folds)
    task = whole.task.name
    rows = {metric.name: metric for metric in metrics_of(task, len(whole.classes))}
    found, z = {}, float(ndtri(1 - TAIL))
    for name, (low, high) in intervals(whole).items():
        value, values = rows[name].of(whole), [rows[name].of(own) for own in folds]
        if value is None:
            found[name] = low, high
            continue
        images = (high - low) / 2 / z
        between = 0.0 if None in values else float(np.var(np.array(values, dtype=np.float64), ddof=1)) / len(folds)
        more = max(between - images**2, 0.0)
        all_in_all = (_SHARED * images) ** 2 + more
        quantile = float(stdtrit((len(folds) - 1) * (all_in_all / more) ** 2, 1 - TAIL)) if more else z
        below, above = (np.hypot(_SHARED * own / z, more**0.5) * quantile for own in (value - low, high - value))
        found[name] = max(float(value - below), 0.0), min(float(value + above), _MOST.get(name, 1.0))
    return found


def accuracy_bounds(evaluation: Evaluation, units: Units) -> Interval:
    """Of `accuracy`; where an image may have several classes, of the exact match."""
    is_right = evaluation.labels == evaluation.predicted
    return mean_interval((is_right if is_right.ndim == 1 else is_right.all(axis=1)).astype(np.float64), 1.0, units)


def hamming_loss_bounds(evaluation: Evaluation, units: Units) -> Interval:
    """Of `hamming_loss`."""
    is_same = evaluation.labels == evaluation.predicted
    return mean_interval(1 - is_same.mean(axis=1), 1.0, units)


def balanced_accuracy_bounds(evaluation: Evaluation, units: Units) -> Interval:
    """Of `balanced_accuracy`."""
    return balanced_accuracy_interval(evaluation.labels, evaluation.predicted, units)


def macro_f1_bounds(evaluation: Evaluation, units: Units) -> Interval:
    """Of `macro_f1`."""
    return macro_f1_interval(evaluation.labels, evaluation.predicted, units)


def loss_bounds(evaluation: Evaluation, units: Units) -> Interval:
    """Of `loss`."""
    return _loss_interval(evaluation.probabilities, evaluation.labels, units)


def brier_bounds(evaluation: Evaluation, units: Units) -> Interval:
    """Of `brier`."""
    return mean_interval(evaluation.briers, MOST_BRIER, units)


def ece_bounds(evaluation: Evaluation, units: Units) -> Interval:
    """Of `ece`."""
    confidence = evaluation.probabilities.max(axis=1).astype(np.float64)
    return calibration_interval(confidence, evaluation.labels == evaluation.predicted, units)


def top5_bounds(evaluation: Evaluation, units: Units) -> Interval:
    """Of `top5_accuracy`."""
    return mean_interval(evaluation.is_among(5).astype(np.float64), 1.0, units)


def _loss_interval(probabilities: npt.NDArray[np.float32], labels: Ints, units: Units) -> Interval:
    """Of the mean log loss, which has no bound: the imagined image costs as much as the worst of these.

    Or as much as a very confident one of these would cost if its second most probable class were the true one, if that
    is more: where nothing is wrong, or only images that the model was unsure of, the worst of these says nothing of
    what a confident mistake costs.
    """
    true = probabilities[np.arange(len(labels)), labels]
    second = true
    if probabilities.shape[1] > 1:
        second = np.empty_like(true)  # the second most probable class's
        for rows in blocks(*probabilities.shape):
            second[rows] = np.partition(probabilities[rows], -2, axis=1)[:, -2]
    own, mistaken = (-np.log(np.maximum(p.astype(np.float64), np.finfo(np.float32).tiny)) for p in (true, second))
    return mean_interval(own, max(float(own.max()), float(np.quantile(mistaken, _CONFIDENT))), units)


def mean_interval(values: Floats, most: float, units: Units) -> Interval:
    """Of the mean of `values` (n,) from 0 to `most`; of 0 and 1 it is Clopper's and Pearson's."""
    ends = []
    for extreme in (0.0, most):
        weight = len(values) + units.imagined
        mean = (float(values.sum()) + units.imagined * extreme) / weight
        imagined = units.imagined * (extreme - mean) / weight
        ends.append(_quantile(mean, units.variance((values - mean) / weight, imagined), most, is_upper=extreme > 0))
    return ends[0], ends[1]


def balanced_accuracy_interval(labels: Ints, predicted: Ints, units: Units) -> Interval:
    """Of the mean recall of the classes that occur; the imagined unit is of all of them in equal parts."""
    own, label = np.unique(labels, return_inverse=True)
    is_right, k = (labels == predicted).astype(np.float64), len(own)
    part = units.imagined / k
    images, effect = np.bincount(label) + part, units.effect(labels == predicted)
    ends = []
    for extreme in (0.0, 1.0):
        recall = (np.bincount(label, is_right) + part * extreme) / images
        influence = (is_right - recall[label]) / images[label] / k
        imagined = float((part * (extreme - recall) / images).sum()) / k
        mean = float(recall.mean())
        least = effect * mean * (1 - mean) * float((1 / images).sum()) / k**2
        ends.append(_quantile(mean, units.variance(influence, imagined, least), 1.0, is_upper=extreme > 0))
    return ends[0], ends[1]


def macro_f1_interval(labels: Ints, predicted: Ints, units: Units) -> Interval:
    """Of the mean F1 of the classes that occur or are said; the imagined unit is of all of them in equal parts.

    At the upper end a class that is said and never there is left out: more images might have shown it.
    """
    there = np.unique(labels)
    either = np.union1d(there, predicted)
    return (
        _macro_f1_end(labels, predicted, either, units, is_upper=False),
        _macro_f1_end(labels, predicted, there, units, is_upper=True),
    )


def _macro_f1_end(labels: Ints, predicted: Ints, classes: Ints, units: Units, *, is_upper: bool) -> float:
    k = len(classes)
    part = units.imagined / k
    true, said = (_place(own, classes) for own in (labels, predicted))  # (n,), k where it is none of them
    there, named, both = (np.bincount(own, minlength=k + 1)[:k] for own in (true, said, true[true == said]))
    images = there + part
    either = there + named + 2 * part
    f1 = 2 * (both + part * is_upper) / either
    shares, weights = (np.append(own / either, 0.0) for own in (f1, np.ones(k)))  # an image counts in two classes
    influence = (2.0 * (true == said) * weights[true] - shares[true] - shares[said]) / k
    imagined = float((2 * part * (is_upper - f1) / either).sum()) / k
    mean = float(f1.mean())
    least = units.effect(labels == predicted) * mean * (1 - mean) * float((1 / images).sum()) / k**2
    return _quantile(mean, units.variance(influence, imagined, least), 1.0, is_upper=is_upper)


def _place(labels: Ints, classes: Ints) -> Ints:
    """Where each label is among sorted classes; their number where it is none of them, (n,)."""
    place = np.searchsorted(classes, labels)
    return np.where(np.append(classes, -1)[place] == labels, place, len(classes))


def calibration_interval(confidence: Floats, is_right: npt.NDArray[np.bool_], units: Units) -> Interval:
    """Of the calibration error that as many images as these give on average (`Reliability.ece`).

    With few images that is more than with many, since chance moves every bin: the binned error of n images is judged by
    its expectation at n. Its spread is at most that of the images that are right in each bin, whose part is drawn
    towards the bin's confidence by one imagined image; one more image is imagined to be moved from right to wrong.

    Args:
        confidence: of the most probable class, (n,).
        is_right: whether that is the true one, (n,).
        units: images, or groups of them.
    """
    n, own = len(confidence), bin_of(confidence)
    images, right, sure = (np.bincount(own, value, BINS) for value in (np.ones(n), is_right, confidence))
    error = float(np.abs(right - sure).sum()) / n
    part = (right + sure / np.maximum(images, 1)) / (images + 1)
    least = units.effect(is_right) * float((images * part * (1 - part)).sum()) / n**2
    gap = (right - sure) / np.maximum(images, 1)
    influence = (np.sign(gap)[own] * (is_right - confidence) - error) / n
    margin = float(ndtri(1 - TAIL)) * units.variance(influence, units.imagined / n, least) ** 0.5
    return max(error - margin, 0.0), min(error + margin, 1.0)


def _quantile(mean: float, variance: float, most: float, *, is_upper: bool) -> float:
    """The end of the interval, from a beta distribution on [0, most]."""
    share = mean / most if most else 0.0
    if share <= 0 or share >= 1 or variance <= 0:
        return mean
    size = max(share * (1 - share) / (variance / most**2) - 1, 1e-6)
    tail = 1 - TAIL if is_upper else TAIL
    return float(betaincinv(share * size, (1 - share) * size, tail)) * most
