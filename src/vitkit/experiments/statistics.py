"""Test whether one configuration is better than another, given the predictions of their trainings on the same images.

An accuracy depends on chance in two ways: on the test images, and on the seed of the training. Hence there are two
questions. *Is this trained model better on other images, too?* concerns only the images. *Is the recipe better with
other seeds, too?* concerns images and seeds, which are crossed random factors.

The variance between images can be estimated precisely, because there are many images. The variance between seeds can
only be estimated roughly, because each model has only a few trainings. Therefore the variance between seeds is pooled
over all models (and fractions of the data) by a hierarchical model, `SeedSpread.pooled`. If all models vary similarly
between seeds, the estimate for each model uses all trainings. If the models vary differently, the estimate mostly uses
the model's own trainings. The remaining uncertainty of the variance is integrated out. The test statistic then follows
Student's t distribution if only the seeds matter and all models vary alike, and a normal distribution if only the
images matter.

Several pairs are tested jointly. Errors of all models are drawn from their joint distribution. A pair counts as
different if at most 5 % of these draws contain a standardised difference at least as large as that of the pair (max-t,
step-down: Westfall and Young 1993). The same draws show by how much the accuracy of the best model is overestimated
because this model was selected.

Two imaginary images are added to each pair: one that only the first model classifies correctly, and one that only the
second model does. They prevent an interval of length 0 if no prediction differs (Agresti and Min 2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import chdtrc, ndtr, ndtri

from vitkit.evaluation.intervals import TAIL, Interval, Units, mean_interval

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
LEVEL = 2 * TAIL
DRAWS = 20_000  # random draws of errors; the resolution of p-values is 1 / DRAWS
_QUANTILES = 200  # quantiles that represent all draws of a variance
_STEPS = 8  # iterations that find the ends of an accuracy's interval
_CLOSE = 1e-10  # tolerance of the p-value at the end of an interval
_MOST_VARIANCE = 0.25  # the largest possible variance of a value between 0 and 1
# Heterogeneity of the models: possible values of the standard deviation of the logarithms of their standard deviations
# between seeds, and the prior probability of each value. The value 0 means complete pooling.
_UNLIKE = np.array([0.0, 0.3, 0.6, 1.0, 1.5])
_PRIOR = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
_UNSURE = 1.2  # factor of variances if models vary differently, since their logarithms need not be normal
_NODES = np.linspace(-3.5, 3.5, 29)  # nodes for integrals over the normal distribution
_WEIGHTS = np.exp(-(_NODES**2) / 2)


@dataclass(frozen=True)
class SeedSpread:
    """The variance between seeds of the accuracy, for each of M configurations.

    Attributes:
        variance: sample variance between seeds of each configuration's accuracy, (M,).
        scale: values to which the variances are proportional if all configurations vary alike, (M,). The value is
            p (1 - p) for accuracy p, because accuracies near 1 vary less than accuracies near 0.5.
        freedom: degrees of freedom of each variance; 0 with one seed.
        images: the part of each variance that is due to the finite number of images, (M,). Trainings differ on single
            images by chance, and with more images these differences average out.
    """

    variance: Floats
    scale: Floats
    freedom: float
    images: Floats

    @classmethod
    def of(cls, right: Bools, units: Units, *, is_shared: bool = False) -> SeedSpread:
        """Estimate the variance between seeds of M configurations, each trained with the same S seeds.

        Args:
            right: whether each training of each configuration classifies each image correctly, (M, S, n).
            units: the statistically independent units: single images, or groups of related images.
            is_shared: whether a seed affects all configurations alike, for example because it also draws the subset of
                training images. The common part is then removed from the variance, because it does not affect
                differences.
        """
        M, S, n = right.shape
        accuracy = right.mean(axis=2, dtype=np.float64)  # (M, S)
        rate = (accuracy.mean(axis=1) * n + 1) / (n + 2)
        if S == 1:
            return cls(np.zeros(M), rate * (1 - rate), 0.0, np.zeros(M))
        moved = accuracy - accuracy.mean(axis=1, keepdims=True)
        freedom = float(S - 1)
        if is_shared and M > 1:
            moved = moved - moved.mean(axis=0)
            freedom *= (M - 1) / M
        imagined = (units.imagined / (n + 2 * units.imagined)) ** 2
        images = np.array([_image_part(answers.astype(np.float64), units) for answers in right])
        return cls((moved**2).sum(axis=1) / freedom + imagined, rate * (1 - rate), freedom, images)

    @property
    def p_alike(self) -> float | None:
        """The p-value of the hypothesis that variance / `scale` is equal in all configurations (Bartlett 1937).

        None if there is only one seed or only one configuration.
        """
        M, relative = len(self.variance), self.variance / self.scale
        if not self.freedom or M == 1:
            return None
        ratio = float(self.freedom * (M * np.log(relative.mean()) - np.log(relative).sum()))
        return float(chdtrc(M - 1, ratio / (1 + (M + 1) / (3 * M * self.freedom))))

    def pooled(self, others: Sequence[SeedSpread], rng: np.random.Generator) -> Floats:
        """Draw each configuration's variance between seeds from its posterior distribution, (draws, M).

        In this hierarchical model, the logarithms of variance / `scale` are normally distributed around a common value
        with a flat prior. The standard deviation around this value has the prior `_PRIOR` and is inferred from the
        trainings. Therefore the data determine how strongly the variances are pooled. The part `images` is subtracted
        from the draws.

        Args:
            others: the estimates at other fractions of the data, which also inform the common value.
            rng: random generator.
        """
        M = len(self.variance)
        if not self.freedom:
            return np.zeros((DRAWS, M))
        every = [
            (variance / scale, spread.freedom)
            for spread in (self, *others)
            for variance, scale in zip(spread.variance.tolist(), spread.scale.tolist(), strict=True)
        ]
        least, most = min(relative for relative, _ in every) / 100, _MOST_VARIANCE / float(self.scale.min())
        common = np.geomspace(least, most, 80)
        true = common[:, None, None] * np.exp(2 * _UNLIKE[:, None] * _NODES)  # (80, 5, nodes)
        likely = np.stack([_likelihood(deviations, freedom, true) * _WEIGHTS for deviations, freedom in every])
        posterior = np.exp(np.log(np.maximum(likely.sum(axis=3), 1e-300)).sum(axis=0)) * _PRIOR  # (80, 5)
        cell = rng.choice(posterior.size, DRAWS, p=(posterior / posterior.sum()).ravel())
        place, kind = np.unravel_index(cell, posterior.shape)
        within = (common[1] / common[0]) ** rng.uniform(-0.5, 0.5, DRAWS)
        drawn = np.empty((DRAWS, M))
        for m in range(M):
            steps = np.cumsum(likely[m, place, kind], axis=1)
            node = (steps < rng.random((DRAWS, 1)) * steps[:, -1:]).sum(axis=1)
            drawn[:, m] = true[place, kind, node] * within * np.where(kind > 0, _UNSURE, 1.0) * self.scale[m]
        drawn = np.minimum(drawn, _MOST_VARIANCE)
        return np.maximum(drawn - self.images, 0.0)


def _image_part(right: Floats, units: Units) -> float:
    """Return the part of the variance of one training's accuracy that is due to the finite number of images.

    Args:
        right: whether each training classifies each image correctly, (S, n).
        units: the statistically independent units: single images, or groups of related images.
    """
    S, n = right.shape
    rest = right - right.mean(axis=0) - right.mean(axis=1, keepdims=True) + right.mean()
    squares = sum(float((np.bincount(units.group, row) ** 2).sum()) for row in rest)
    return squares / (S - 1) / n**2 * units.count / max(units.count - 1, 1)


def _likelihood(sampled: float, freedom: float, true: Floats) -> Floats:
    """Return the likelihood of a sample variance given the true variance, up to a constant factor."""
    logarithm = -freedom / 2 * (np.log(true) + sampled / true)
    return np.exp(logarithm - logarithm.max())


@dataclass(frozen=True)
class Difference:
    """The difference in accuracy between two models.

    Attributes:
        mean: accuracy of the first model minus that of the second.
        interval: 95 % interval of the difference, for this pair alone.
        p_alone: p-value of no difference, for this pair alone.
        p: p-value adjusted for all pairs that are compared; if it is below LEVEL, the two models differ.
        needed: the smallest difference that would be significant after the adjustment for all pairs.
    """

    mean: float
    interval: Interval
    p_alone: float
    p: float
    needed: float

    def reversed(self) -> Difference:
        """Return the difference with the two models exchanged."""
        return replace(self, mean=-self.mean, interval=(-self.interval[1], -self.interval[0]))

    @property
    def is_distinguished(self) -> bool:
        """Whether the models differ by more than chance explains, adjusted for all pairs that are compared."""
        return self.p < LEVEL


@dataclass(frozen=True)
class Winner:
    """The best of several models. Its accuracy is corrected, because it was selected on these images and seeds.

    Attributes:
        index: index of the model.
        measured: the measured accuracy of the model.
        corrected: the accuracy after the correction for the selection.
        interval: 95 % interval of the model's true accuracy.
    """

    index: int
    measured: float
    corrected: float
    interval: Interval


class Family:
    """Several models that were tested on the same images, each trained with the same seeds.

    Args:
        right: whether each training of each model classifies each image correctly, (M, S, n).
        units: the statistically independent units: single images, or groups of related images.
        spread: the variance between seeds of the models' accuracies; None estimates it from `right`.
        others: the variances between seeds on other fractions of the data.

    Attributes:
        models, seeds, images: the number of models (M), of seeds (S), and of images (n).
        accuracy: the accuracy of each model, averaged over its seeds, (M,).
    """

    def __init__(
        self, right: Bools, units: Units, spread: SeedSpread | None = None, others: Sequence[SeedSpread] = ()
    ) -> None:
        self.models, self.seeds, self.images = right.shape
        self.units, self.spread, self._others = units, spread or SeedSpread.of(right, units), others
        self._of_image = right.mean(axis=1, dtype=np.float64)  # (M, n)
        self.accuracy = self._of_image.mean(axis=1)

    @cached_property
    def luck(self) -> Floats:
        """The standard deviation between seeds of each model's accuracy, as posterior median, (M,)."""
        return np.sqrt(np.median(self._seed_variances, axis=0) * self.seeds)

    @cached_property
    def _covariance(self) -> Floats:
        """The covariance (M, M) of these trained models' accuracies, caused by the choice of the test images."""
        n, count = self.images, self.units.count
        rest = self._of_image - self.accuracy[:, None]
        sums = np.stack([np.bincount(self.units.group, row) for row in rest])  # (M, units)
        imagined = (self.units.imagined / (n + 2 * self.units.imagined)) ** 2
        return sums @ sums.T / n**2 * count / max(count - 1, 1) + imagined * np.eye(self.models)

    @cached_property
    def _seed_variances(self) -> Floats:
        """Posterior draws of the variance of each model's mean accuracy that is due to seeds, (draws, M)."""
        return self.spread.pooled(self._others, np.random.default_rng(0)) / self.seeds

    @cached_property
    def _image_factors(self) -> Floats:
        """Random draws of the true variance between images, divided by its estimate, (draws,)."""
        freedom = max(self.units.count - 1, 1)
        return freedom / np.random.default_rng(1).chisquare(freedom, DRAWS)

    def _errors(self, *, of_recipes: bool) -> Floats:
        """Draw the errors of all models' accuracies from their joint distribution, (draws, M).

        Args:
            of_recipes: whether to include the errors that are due to the seeds.
        """
        rng = np.random.default_rng(2)
        values, vectors = np.linalg.eigh(self._covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        drawn = rng.standard_normal((DRAWS, self.models)) @ root.T * np.sqrt(self._image_factors)[:, None]
        if of_recipes:
            drawn += rng.standard_normal((DRAWS, self.models)) * np.sqrt(self._seed_variances)
        return drawn

    def differences(self, pairs: Sequence[tuple[int, int]], *, of_recipes: bool = True) -> list[Difference]:
        """Compare the models of each pair, with p-values that are adjusted for all pairs.

        Args:
            pairs: pairs of model indices.
            of_recipes: True compares the recipes, which includes the variance between seeds. False compares only these
                trained models. With one seed, the variance between seeds is unknown and counts as 0.
        """
        if not pairs:
            return []
        first, second = np.array(pairs).T
        covariance = self._covariance
        images = covariance[first, first] + covariance[second, second] - 2 * covariance[first, second]
        variances = np.outer(self._image_factors, images)  # (draws, pairs)
        if of_recipes:
            variances += self._seed_variances[:, first] + self._seed_variances[:, second]
        mean = self.accuracy[first] - self.accuracy[second]
        errors = self._errors(of_recipes=of_recipes)
        size = np.median(variances, axis=0) ** 0.5  # standardises the differences of all pairs
        drawn, seen = np.abs(errors[:, first] - errors[:, second]) / size, np.abs(mean) / size
        summary = _summary(variances)
        alone, margin = _p_of(mean, summary), _margin(summary)
        joint = np.maximum(_step_down(drawn, seen), alone)
        needed = np.maximum(float(np.quantile(drawn.max(axis=1), 1 - LEVEL)) * size, margin)
        return [
            Difference(
                mean=float(mean[i]),
                interval=(max(float(mean[i] - margin[i]), -1.0), min(float(mean[i] + margin[i]), 1.0)),
                p_alone=float(alone[i]),
                p=float(joint[i]),
                needed=float(needed[i]),
            )
            for i in range(len(pairs))
        ]

    def interval(self, model: int, *, of_recipe: bool = True) -> Interval:
        """Return the 95 % interval of a model's accuracy on other images and with other seeds.

        With one seed, the interval includes only the uncertainty from the images (Clopper and Pearson). With several
        seeds, the variance between seeds moves each end outwards. This variance is proportional to p (1 - p) for an
        accuracy p (`SeedSpread.scale`). Each end uses the larger of two variances: the one for the accuracy at this
        end, and the one for the measured accuracy. Therefore the interval of a high accuracy is longer below the
        accuracy than above.

        Args:
            model: index of the model.
            of_recipe: whether to include the variance between seeds.
        """
        mean, z = float(self.accuracy[model]), float(ndtri(1 - TAIL))
        ends = mean_interval(self._of_image[model], 1.0, self.units)
        if not of_recipe or self.seeds == 1:
            return ends
        images = ((np.array(ends) - mean) / z) ** 2  # the variance between images, for each end
        scale, bounds = float(self.spread.scale[model]), np.array(ends)
        for _ in range(_STEPS):  # until the ends agree with the variance at the ends
            times = np.maximum(bounds * (1 - bounds) / scale, 1.0)
            low, high = _margin(_summary(self._seed_variances[:, [model]] * times + images))
            bounds = np.clip([mean - low, mean + high], 0.0, 1.0)
        return float(bounds[0]), float(bounds[1])

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
        errors = self._errors(of_recipes=True)
        gaps = measured - self.accuracy
        chance = np.median(np.abs(errors[:, [best]] - errors), axis=0) / ndtri(0.75)  # a standard deviation
        closer = gaps * np.maximum(1 - (chance / np.maximum(gaps, 1e-12)) ** 2, 0.0)
        picked = (errors - closer).argmax(axis=1)
        flattery = errors[np.arange(len(errors)), picked]
        plain, selected = (float(np.quantile(values, 1 - TAIL)) for values in (errors[:, best], flattery))
        low = max(measured - (measured - low) * max(selected / plain, 1.0), 0.0)
        corrected = min(max(measured - float(np.median(flattery)), low), measured)
        return Winner(best, measured, corrected, (low, high))


def _step_down(drawn: Floats, seen: Floats) -> Floats:
    """Return the p-value of each pair, adjusted for all pairs (Westfall and Young 1993, free step-down).

    Args:
        drawn: absolute standardised differences that would arise by chance alone, (draws, pairs).
        seen: absolute standardised differences as measured, (pairs,).
    """
    order = np.argsort(-seen, kind="stable")
    largest = np.maximum.accumulate(drawn[:, order[::-1]], axis=1)[:, ::-1]  # over the remaining pairs of each step
    adjusted = np.empty(len(seen))
    adjusted[order] = np.maximum.accumulate((largest >= seen[order]).mean(axis=0))
    return adjusted


def _summary(variances: Floats) -> Floats:
    """Convert random draws of variances (draws, m) to quantiles of standard errors (quantiles, m)."""
    step = len(variances) // _QUANTILES
    return np.sqrt(np.sort(variances, axis=0)[step // 2 :: step])


def _p_of(mean: Floats, errors: Floats) -> Floats:
    """Return the two-sided p-value of each mean for the hypothesis that the true mean is 0, (m,).

    Args:
        mean: the measured means, (m,).
        errors: quantiles of the distribution of each mean's standard error, (quantiles, m).
    """
    return 2 * ndtr(-np.abs(mean) / np.maximum(errors, 1e-30)).mean(axis=0)


def _margin(errors: Floats) -> Floats:
    """Return half the width of the 95 % interval of each mean, (m,), computed by Newton's method within bounds.

    Args:
        errors: quantiles of the distribution of each mean's standard error, (quantiles, m).
    """
    errors = np.maximum(errors, 1e-30)
    low, high = np.zeros(errors.shape[1]), 40 * errors.max(axis=0)
    margin = np.sqrt((errors**2).mean(axis=0)) * ndtri(1 - TAIL)
    for _ in range(60):
        scaled = np.minimum(margin / errors, 40.0)
        over = 2 * ndtr(-scaled).mean(axis=0) - LEVEL
        if (np.abs(over) < _CLOSE).all():
            break
        low, high = np.where(over > 0, margin, low), np.where(over > 0, high, margin)
        slope = (np.exp(-(scaled**2) / 2) / errors).mean(axis=0) * (2 / np.pi) ** 0.5
        margin = margin + over / np.maximum(slope, 1e-300)
        margin = np.where((margin > low) & (margin < high), margin, (low + high) / 2)
    return margin
