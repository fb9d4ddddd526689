"""Test whether one configuration is better than another, given the predictions of their trainings on the same images.

An accuracy depends on chance in two ways: on the test images, and on the seed of the training. Hence there are two
questions. *Is this trained model better on other images, too?* concerns only the images. *Is the recipe better with
other seeds, too?* concerns images and seeds, which are crossed random factors.

A parametric bootstrap answers both: `Family` draws the errors that chance may have added to the accuracies of all
models. Intervals and p-values are quantiles and frequencies of these draws. Several pairs are tested jointly: a pair
counts as different if at most 5 % of the draws contain an error of a difference that is at least as large as that of
the pair, relative to the pair's margin (max-t, step-down: Westfall and Young 1993). The same draws show by how much the
accuracy of the best model is overestimated because this model was selected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from vitkit.evaluation import TAIL, Interval, Units, mean_interval

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
LEVEL = 2 * TAIL
DRAWS = 20_000  # random draws of errors; the resolution of p-values is 1 / DRAWS


@dataclass(frozen=True)
class Difference:
    """The difference in accuracy between two models."""

    mean: float  # accuracy of the first model minus that of the second
    interval: Interval  # 95 %, for this pair alone
    p_alone: float  # p-value of no difference, for this pair alone
    p: float  # adjusted for all pairs that are compared; below LEVEL, the two models differ
    needed: float  # the smallest difference that would be significant after the adjustment

    def reversed(self) -> Difference:
        """Return the difference with the two models exchanged."""
        return replace(self, mean=-self.mean, interval=(-self.interval[1], -self.interval[0]))

    @property
    def is_distinguished(self) -> bool:
        """Whether the models differ by more than chance explains, adjusted for all pairs that are compared."""
        return self.p < LEVEL

    def better(self, first: str, second: str) -> str | None:
        """Return the name of the better model, `first` or `second`; None if they cannot be distinguished."""
        return (first if self.mean > 0 else second) if self.is_distinguished else None

    def to_dict(self) -> dict[str, Any]:
        """Return the interval and p-values, and the smallest significant difference, in JSON types."""
        return {"interval": list(self.interval), "p": self.p, "p_alone": self.p_alone, "needed": self.needed}


@dataclass(frozen=True)
class Winner:
    """The best of several models. Its accuracy is corrected, because it was selected on these images and seeds."""

    index: int  # in the family
    measured: float  # accuracy
    corrected: float
    interval: Interval  # 95 %, of the model's true accuracy

    def to_dict(self, name: str, models: int) -> dict[str, Any]:
        """Return the figures of the best of so many models in JSON types."""
        figures = {"measured": self.measured, "expected": self.corrected, "interval": list(self.interval)}
        return {"model": name, "of": models, **figures}


class Family:
    """Several models that were tested on the same images, each trained with the same seeds.

    Args:
        correct: whether each training of each model classifies each image correctly, (M, S, n).
        units: the statistically independent units: single images, or groups of related images.
        shares_subsets: whether a seed also draws the subset of training images, which is the same for all models. The
            effect that all models have in common is then no difference between them.

    Attributes:
        models, seeds, images: the number of models (M), of seeds (S), and of images (n).
        accuracy: the accuracy of each model, averaged over its seeds, (M,).
    """

    def __init__(self, correct: Bools, units: Units, *, shares_subsets: bool = False) -> None:
        self.models, self.seeds, self.images = correct.shape
        self.units, self._correct = units, correct
        self._shares_subsets = shares_subsets and self.models > 1
        self._image_accuracy = correct.mean(axis=1, dtype=np.float64)  # over the seeds, (M, n)
        self.accuracy = self._image_accuracy.mean(axis=1)
        # The contribution of each model's smoothing unit (`_image_errors`), so that no variance is 0.
        self._smoothing = (units.imagined / (self.images + 2 * units.imagined)) ** 2

    @cached_property
    def seed_variance(self) -> Floats:
        """The variance of each model's accuracy between seeds, (M,); NaN with one seed.

        It includes the part that is due to the finite number of images (`chance_variance`).
        """
        return self._variance_of(self._correct.mean(axis=2))

    def _variance_of(self, accuracies: Floats) -> Floats:
        # The variance between seeds of accuracies (M, S).
        return accuracies.var(axis=1, ddof=1) + self._smoothing

    @cached_property
    def chance_variance(self) -> Floats:
        """The part of `seed_variance` that is due to the finite number of images, (M,).

        Trainings differ on single images by chance, and with more images these differences average out.
        """
        correct = self._correct.astype(np.float64)
        # The interaction of seeds and images: what neither the seed's nor the image's mean explains.
        interaction = correct - correct.mean(axis=1, keepdims=True) - correct.mean(axis=2, keepdims=True)
        interaction += self.accuracy[:, None, None]
        return np.array([np.trace(self._covariance(model)) for model in interaction]) / (self.seeds - 1)

    def _covariance(self, values: Floats) -> Floats:
        """Return the covariance of the means of k quantities (k, n) whose values add up to 0, (k, k)."""
        count = self.units.count
        sums = np.stack([np.bincount(self.units.group, row) for row in values])  # (k, units)
        return sums @ sums.T / self.images**2 * count / max(count - 1, 1)

    @cached_property
    def _image_errors(self) -> Floats:
        """Errors of these trained models' accuracies that are due to the choice of the test images, (draws, M).

        This is the distribution of a bootstrap over units with normally distributed weights, the same ones for all
        models, and with as many degrees of freedom as there are units. A smoothing unit for each model, which only
        this model classifies correctly, prevents errors of 0 if no prediction differs (Agresti and Min 2005).
        """
        rng, freedom = np.random.default_rng(0), max(self.units.count - 1, 1)
        covariance = self._covariance(self._image_accuracy - self.accuracy[:, None])
        covariance += self._smoothing * np.eye(self.models)
        drawn = rng.multivariate_normal(np.zeros(self.models), covariance, DRAWS, method="eigh")
        return drawn * np.sqrt(freedom / rng.chisquare(freedom, (DRAWS, 1)))

    @cached_property
    def _recipe_errors(self) -> Floats:
        """Errors of the accuracies that are due to the choice of the images and of the seeds, (draws, M).

        Resampling a few seeds would give too small a variance and no tails. Therefore the errors are drawn from
        Student's t distribution. A few trainings determine a variance only roughly, so the variances of all models are
        averaged, relative to their `_scale`. A model that varies more than this average keeps its own variance: an
        average of unlike variances would be too small for it. With one seed, these are the errors due to the images.
        """
        if self.seeds == 1:
            return self._image_errors
        return self._add_seed_errors(self.seed_variance, self.models * (self.seeds - 1))

    def _add_seed_errors(self, variance: Floats, freedom: float) -> Floats:
        """Return the errors that are due to the images plus errors that are due to the seeds, (draws, M).

        `variance` (M,) is that of each model between seeds, and `freedom` the number of degrees of freedom of all
        models' variances together.
        """
        rng, scale = np.random.default_rng(1), self._scale(self.accuracy)
        variance = np.maximum(variance, (variance / scale).mean() * scale)
        # `_image_errors` already contain the part of the variance that is due to the finite number of images.
        drawn = variance * freedom / rng.chisquare(freedom, (DRAWS, 1)) - self.chance_variance
        seed_errors = rng.standard_normal((DRAWS, self.models)) * np.sqrt(np.maximum(drawn, 0.0) / self.seeds)
        return self._image_errors + seed_errors

    def _scale(self, accuracy: Floats | float) -> Floats:
        """Return p (1 - p) for accuracy p, to which variances are proportional: accuracies near 1 vary less."""
        rate = (np.asarray(accuracy) * self.images + 1) / (self.images + 2)
        return rate * (1 - rate)

    def differences(self, pairs: Sequence[tuple[int, int]], *, include_seeds: bool = True) -> list[Difference]:
        """Compare the models of each pair of indices, with p-values that are adjusted for all pairs.

        With `include_seeds`, recipes are compared, whose accuracies vary between seeds; otherwise only these trained
        models. With one seed, the variance between seeds is unknown and counts as 0.
        """
        if not pairs:
            return []
        first, second = np.array(pairs).T
        mean = self.accuracy[first] - self.accuracy[second]
        if not include_seeds:
            errors = self._image_errors
        elif self.seeds == 1 or not self._shares_subsets:
            errors = self._recipe_errors
        else:
            # The effect of a seed that all models have in common cancels in a difference, and is left out. Subtracting
            # the mean over M models leaves (M - 1) / M of the variance and of its degrees of freedom.
            accuracies = self._correct.mean(axis=2)  # (M, S)
            remaining = (self.models - 1) / self.models
            variance = self._variance_of(accuracies - accuracies.mean(axis=0)) / remaining
            errors = self._add_seed_errors(variance, self.models * (self.seeds - 1) * remaining)
        drawn = np.abs(errors[:, first] - errors[:, second])  # (draws, pairs)
        margin = np.quantile(drawn, 1 - LEVEL, axis=0, method="higher")
        drawn, measured = drawn / margin, np.abs(mean) / margin  # relative to the margin of each pair
        # Step-down: a pair is tested together with the pairs that differ less. A p-value is at least that before it.
        order = np.argsort(-measured, kind="stable")
        largest = np.maximum.accumulate(drawn[:, order[::-1]], axis=1)[:, ::-1]  # of the pair and those that follow
        adjusted = np.empty(len(pairs))
        adjusted[order] = np.maximum.accumulate(_frequency(largest >= measured[order]))
        alone = _frequency(drawn >= measured)
        needed = margin * np.quantile(drawn.max(axis=1), 1 - LEVEL, method="higher")
        return [
            Difference(
                mean=float(mean[i]),
                interval=(max(float(mean[i] - margin[i]), -1.0), min(float(mean[i] + margin[i]), 1.0)),
                p_alone=float(alone[i]),
                p=float(adjusted[i]),
                needed=float(needed[i]),
            )
            for i in range(len(pairs))
        ]

    def interval(self, model: int) -> Interval:
        """Return the 95 % interval of a model's accuracy on other images and with other seeds.

        With one seed, the interval includes only the uncertainty from the images (Clopper and Pearson). With several
        seeds, the variance is multiplied by the squared ratio of the errors with and without the choice of the seeds.
        The contribution of the seeds is scaled to each end of the interval (`_scale`), but is never smaller than at the
        measured accuracy, because a training that is mostly right can have more bad luck than good luck.
        """
        values, accuracy = self._image_accuracy[model], float(self.accuracy[model])
        both = float(np.quantile(np.abs(self._recipe_errors[:, model]), 1 - LEVEL))
        from_images = float(np.quantile(np.abs(self._image_errors[:, model]), 1 - LEVEL))
        seed_share = max((both / from_images) ** 2 - 1, 0.0)  # the variance from the seeds, relative to that of images
        scale = float(self._scale(accuracy))

        def interval_scaled_at(end: float) -> Interval:
            factor = 1 + seed_share * max(float(self._scale(end)) / scale, 1.0)
            return mean_interval(values, 1.0, self.units, factor=factor)

        low = high = accuracy
        for _ in range(8 if seed_share else 1):  # each end changes its factor; eight steps are enough to converge
            low, high = interval_scaled_at(low)[0], interval_scaled_at(high)[1]
        return low, high

    def accuracy_of(self, model: int) -> dict[str, Any]:
        """Return the accuracy of a model and its interval (`interval`) in JSON types."""
        return {"accuracy": float(self.accuracy[model]), "interval": [float(end) for end in self.interval(model)]}

    def winner(self) -> Winner:
        """Return the best model, with its accuracy corrected for the selection.

        Measured accuracies differ more than true accuracies, because chance adds to the differences. Therefore the gap
        between each model and the best one is first reduced by the contribution of chance. Evaluations are then
        simulated around the resulting accuracies. The correction is the median, over these simulations, of the error
        of the model that comes out best.
        """
        best = int(self.accuracy.argmax())
        low, high = self.interval(best)
        measured = float(self.accuracy[best])
        if self.models == 1:
            return Winner(best, measured, measured, (low, high))
        errors = self._recipe_errors
        gaps = measured - self.accuracy
        # The standard deviation of each gap, from the median, which extreme draws do not change.
        deviation = np.median(np.abs(errors[:, [best]] - errors), axis=0) / ndtri(0.75)
        reduced_gaps = gaps * np.maximum(1 - (deviation / np.maximum(gaps, 1e-12)) ** 2, 0.0)
        selected = (errors - reduced_gaps).argmax(axis=1)  # the model that comes out best in each draw
        selected_errors = errors[np.arange(len(errors)), selected]
        # Selection makes large errors more frequent, so the lower end of the interval is moved by the same factor.
        factor = np.quantile(selected_errors, 1 - TAIL) / np.quantile(errors[:, best], 1 - TAIL)
        low = max(measured - (measured - low) * max(float(factor), 1.0), 0.0)
        corrected = min(max(measured - float(np.median(selected_errors)), low), measured)
        return Winner(best, measured, corrected, (low, high))


def _frequency(occurred: Bools) -> Floats:
    """Return the frequency of each of k events in the draws (draws, k). The measurement counts as one more draw."""
    return (occurred.sum(axis=0) + 1) / (len(occurred) + 1)
