"""Compute 95 % confidence intervals for the figures of an evaluation.

An interval covers the value that the figure would have on an unlimited number of images of the same kind. The method
generalises the interval of Clopper and Pearson (1934) for a proportion:

1. One imaginary image is added: the best possible image for the upper end, the worst possible image for the lower end.
2. All images get random Dirichlet weights, so the figure has a distribution (Rubin 1981; for means of bounded values
   Gaffke 2005).
3. The distribution is approximated by the beta distribution with the same mean and variance. For a proportion, this is
   exact.
4. The end of the interval is a quantile of the beta distribution.

If images come in groups, each group has one random weight, and a whole imaginary group is added. The coverage of the
intervals was checked by simulation (benchmarks/coverage.py).
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
MAX_BRIER = 2.0
_CONFIDENT_QUANTILE = 0.9  # of the losses that images would have if their second most probable class were true
_DEPENDENCE_FACTOR = 1.4  # multiplies the margins of folds, which are not independent (`fold_intervals`)


@dataclass(frozen=True)
class Units:
    """Independent units of an evaluation: images, or groups of images."""

    group: Ints  # number of the unit to which each image belongs, from 0, (n,)
    count: int  # number of units
    # Number of images in the smoothing unit, an imagined unit that is added to the real ones.
    # If each image is a unit, it is 1; for groups, it is the size of an image's group, averaged over images.
    imagined: float

    @classmethod
    def of(cls, images: int, groups: Ints | None) -> Units:
        """Return the groups as units; if `groups` is None, each image is a unit."""
        if groups is None or images == 0:
            return cls(np.arange(images), images, 1.0)
        _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        return cls(group, len(sizes), float((sizes**2).sum() / images))

    @classmethod
    def of_evaluation(cls, evaluation: Evaluation) -> Units:
        """Return the units of an evaluation's images."""
        return cls.of(len(evaluation.labels), np.array(evaluation.groups) if evaluation.groups else None)

    def variance(self, influence: Floats, imagined: float, minimum: float = 0.0) -> float:
        """Return the variance of a figure under random weights of the units.

        `influence` (n,) is the influence of each image on the figure, and `imagined` that of the smoothing unit.
        `minimum` is a lower bound of the contribution of the other units.
        """
        total = max(float((np.bincount(self.group, influence) ** 2).sum()), minimum) + imagined**2
        return total * (self.count + 1) / (self.count + 2)

    def effect(self, is_correct: npt.NDArray[np.bool_]) -> float:
        """Return the design effect of the number of correct images (Kish 1965), at least 1.

        This is the variance with the dependence of images within units, divided by the variance for independent images.
        """
        residual = is_correct - is_correct.mean()
        independent = float((residual**2).sum())
        if not independent:
            return 1.0
        dependent = float((np.bincount(self.group, residual) ** 2).sum())
        return max(dependent / independent, 1.0)


def intervals(evaluation: Evaluation) -> dict[str, Interval]:
    """Return the 95 % confidence intervals of all figures that have one, by name (docs/guide/evaluation.md).

    The intervals cover the figures on an unlimited number of such images. The calibration error is an exception: its
    interval covers the average over samples of the same size. Variation between trainings is not included.
    """
    units = Units.of_evaluation(evaluation)
    rows = metrics_of(evaluation.task.name, len(evaluation.classes))
    return {metric.name: bounds_of(metric.name, evaluation, units) for metric in rows if metric.has_interval}


def fold_intervals(folds: Sequence[Evaluation]) -> dict[str, Interval]:
    """Return 95 % confidence intervals of the figures of a cross-validation, in which each image is tested once.

    The intervals cover the average figure of many repetitions of the training, each tested on an unlimited number of
    images of the same kind. They include two sources of variance in addition to the images. First, folds may differ by
    more than their images explain, because trainings differ. Second, folds are not independent, because they share
    training images. No unbiased estimator of the second variance exists (Bengio and Grandvalet 2004). Therefore every
    margin is increased by two fifths, which is enough according to simulations (benchmarks/coverage.py).
    """
    whole = pooled(folds)
    task = whole.task.name
    rows = {metric.name: metric for metric in metrics_of(task, len(whole.classes))}
    z = float(ndtri(1 - TAIL))  # 1.96
    bounds = {}
    for name, (low, high) in intervals(whole).items():
        value = rows[name].of(whole)
        values = [rows[name].of(fold) for fold in folds]
        if value is None:
            bounds[name] = low, high
            continue
        by_images = (high - low) / 2 / z  # standard deviation
        between_folds = 0.0
        if None not in values:
            between_folds = float(np.var(np.array(values, dtype=np.float64), ddof=1)) / len(folds)
        between_trainings = max(between_folds - by_images**2, 0.0)
        quantile = z
        if between_trainings:  # of Student's t, since this variance comes from few folds (Welch and Satterthwaite)
            total = (_DEPENDENCE_FACTOR * by_images) ** 2 + between_trainings
            quantile = float(stdtrit((len(folds) - 1) * (total / between_trainings) ** 2, 1 - TAIL))
        below = np.hypot(_DEPENDENCE_FACTOR * (value - low) / z, between_trainings**0.5) * quantile
        above = np.hypot(_DEPENDENCE_FACTOR * (high - value) / z, between_trainings**0.5) * quantile
        maximum = {"loss": np.inf, "brier": MAX_BRIER}.get(name, 1.0)
        bounds[name] = max(float(value - below), 0.0), min(float(value + above), maximum)
    return bounds


def bounds_of(name: str, evaluation: Evaluation, units: Units) -> Interval:
    """Return the 95 % confidence interval of a figure that has one (`registry.Metric.has_interval`)."""
    match name:
        case "accuracy":  # the exact match, if images may have several classes
            return mean_interval(evaluation.is_correct.astype(np.float64), 1.0, units)
        case "top5_accuracy":
            return mean_interval(evaluation.is_among(5).astype(np.float64), 1.0, units)
        case "hamming_loss":
            is_same = evaluation.labels == evaluation.predicted
            return mean_interval(1 - is_same.mean(axis=1), 1.0, units)
        case "brier":
            return mean_interval(evaluation.briers, MAX_BRIER, units)
        case "balanced_accuracy":
            return balanced_accuracy_bounds(evaluation, units)
        case "macro_f1":
            return macro_f1_bounds(evaluation, units)
        case "ece":
            return ece_bounds(evaluation, units)
        case "loss":
            return loss_bounds(evaluation, units)
    raise ValueError(f"the figure {name!r} has no interval")


def balanced_accuracy_bounds(evaluation: Evaluation, units: Units) -> Interval:
    """Return the 95 % confidence interval of `balanced_accuracy`, the mean recall of the classes that occur.

    The images of the smoothing unit (see `Units`) are divided equally among these classes.
    """
    classes, label = np.unique(evaluation.labels, return_inverse=True)
    is_correct = evaluation.is_correct
    effect = units.effect(is_correct)
    k = len(classes)
    added = units.imagined / k  # images of the smoothing unit in each class
    images = np.bincount(label) + added
    ends = []
    for extreme in (0.0, 1.0):  # no image of the smoothing unit is correct, or all are
        recall = (np.bincount(label, is_correct) + added * extreme) / images
        influence = (is_correct - recall[label]) / images[label] / k
        imagined = float((added * (extreme - recall) / images).sum()) / k
        mean = float(recall.mean())
        minimum = effect * mean * (1 - mean) * float((1 / images).sum()) / k**2  # if all recalls were equal
        ends.append(_quantile(mean, units.variance(influence, imagined, minimum), 1.0, is_upper=extreme > 0))
    return ends[0], ends[1]


def ece_bounds(evaluation: Evaluation, units: Units) -> Interval:
    """Return the 95 % confidence interval of `ece`, the expected calibration error of samples of n images.

    The interval covers the average error of samples of the same size, not the error on an unlimited number of images,
    because chance makes the error of small samples larger on average.

    The variance of the error has a lower bound, which assumes binomial numbers of correct images in the bins, and
    includes the design effect (`Units.effect`). For this bound, the fraction of correct images in a bin is smoothed
    with one smoothing image at the bin's mean confidence. The smoothing unit (`Units.imagined`) adds the
    effect that one more unit has if all its images turn from correct to wrong.
    """
    confidence, is_correct = evaluation.confidence, evaluation.is_correct  # (n,)
    n = len(confidence)
    bins = bin_of(confidence)
    images = np.bincount(bins, minlength=BINS)  # in each bin
    correct = np.bincount(bins, is_correct, BINS)
    confident = np.bincount(bins, confidence, BINS)  # sum of confidences
    error = float(np.abs(correct - confident).sum()) / n
    accuracy = (correct + confident / np.maximum(images, 1)) / (images + 1)  # of each bin, smoothed
    minimum = units.effect(is_correct) * float((images * accuracy * (1 - accuracy)).sum()) / n**2
    influence = (np.sign(correct - confident)[bins] * (is_correct - confidence) - error) / n
    margin = float(ndtri(1 - TAIL)) * units.variance(influence, units.imagined / n, minimum) ** 0.5
    return max(error - margin, 0.0), min(error + margin, 1.0)


def loss_bounds(evaluation: Evaluation, units: Units) -> Interval:
    """Return the 95 % confidence interval of `loss`, the mean log loss.

    The method adds an image with the worst possible value (see the top of this file). The loss has no upper bound, so
    this value is the larger of two losses. The first is the largest loss of the evaluated images. The second is the
    loss of a very confident prediction if the second most probable class were the true one. The second value matters
    for a model without confident mistakes: its own losses would not show how much such a mistake costs.
    """
    probabilities, labels = evaluation.probabilities, evaluation.labels
    true = probabilities[np.arange(len(labels)), labels]
    second = true
    if probabilities.shape[1] > 1:
        second = np.empty_like(true)  # probability of the second most probable class
        for rows in blocks(*probabilities.shape):
            second[rows] = np.partition(probabilities[rows], -2, axis=1)[:, -2]
    tiny = np.finfo(np.float32).tiny
    losses = -np.log(np.maximum(true.astype(np.float64), tiny))
    if_mistaken = -np.log(np.maximum(second.astype(np.float64), tiny))
    maximum = max(float(losses.max()), float(np.quantile(if_mistaken, _CONFIDENT_QUANTILE)))
    return mean_interval(losses, maximum, units)


def mean_interval(values: Floats, maximum: float, units: Units, factor: float = 1.0) -> Interval:
    """Return the 95 % confidence interval of the mean of `values` (n,), which lie between 0 and `maximum`.

    For values of 0 and 1, this is the interval of Clopper and Pearson. The `factor` multiplies the variance between
    units, if the mean also varies for other reasons.
    """
    ends = []
    weight = len(values) + units.imagined
    for extreme in (0.0, maximum):
        mean = (float(values.sum()) + units.imagined * extreme) / weight
        imagined = units.imagined * (extreme - mean) / weight
        variance = factor * units.variance((values - mean) / weight, imagined)
        ends.append(_quantile(mean, variance, maximum, is_upper=extreme > 0))
    return ends[0], ends[1]


def macro_f1_bounds(evaluation: Evaluation, units: Units) -> Interval:
    """Return the 95 % confidence interval of `macro_f1`, the mean F1 of the classes that occur or are predicted.

    The images of the smoothing unit are divided equally among the classes. A class that is predicted but does not occur
    has an F1 of 0. It is ignored at the upper end, because its F1 may be higher in a larger sample, in which it occurs.
    """
    labels, predicted = evaluation.labels, evaluation.predicted
    occurring = np.unique(labels)
    either = np.union1d(occurring, predicted)
    return (
        _macro_f1_end(labels, predicted, either, units, is_upper=False),
        _macro_f1_end(labels, predicted, occurring, units, is_upper=True),
    )


def _macro_f1_end(labels: Ints, predicted: Ints, classes: Ints, units: Units, *, is_upper: bool) -> float:
    k = len(classes)
    added = units.imagined / k  # images of the smoothing unit in each class
    index_of = np.full(int(max(labels.max(), predicted.max())) + 1, k)  # in `classes`; k for other classes
    index_of[classes] = np.arange(k)
    true, guess = index_of[labels], index_of[predicted]  # (n,)
    is_correct = true == guess
    support = np.bincount(true, minlength=k + 1)[:k]  # images of each class
    guessed = np.bincount(guess, minlength=k + 1)[:k]  # images for which each class is predicted
    hits = np.bincount(true[is_correct], minlength=k + 1)[:k]
    denominator = support + guessed + 2 * added
    f1 = 2 * (hits + added * is_upper) / denominator
    # An image counts in two classes: that of its label, and the predicted one. Other classes (k) have no influence.
    weights = np.append(1 / denominator, 0.0)
    penalties = np.append(f1 / denominator, 0.0)
    influence = (2.0 * is_correct * weights[true] - penalties[true] - penalties[guess]) / k
    imagined = float((2 * added * (is_upper - f1) / denominator).sum()) / k
    mean = float(f1.mean())
    minimum = units.effect(labels == predicted) * mean * (1 - mean) * float((1 / (support + added)).sum()) / k**2
    return _quantile(mean, units.variance(influence, imagined, minimum), 1.0, is_upper=is_upper)


def _quantile(mean: float, variance: float, maximum: float, *, is_upper: bool) -> float:
    """Return an end of the interval: a quantile of the beta distribution on [0, maximum] with these moments."""
    p = mean / maximum if maximum else 0.0
    if p <= 0 or p >= 1 or variance <= 0:
        return mean
    size = max(p * (1 - p) / (variance / maximum**2) - 1, 1e-6)  # the sum of the distribution's two parameters
    return float(betaincinv(p * size, (1 - p) * size, 1 - TAIL if is_upper else TAIL)) * maximum
