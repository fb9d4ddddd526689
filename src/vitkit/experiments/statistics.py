"""Whether one configuration is better than another, by what each of its trainings said of the same images.

Two sources of chance are in an accuracy: which images it was measured on, and the seed of the training. So there are
two questions. *Are these trained models better on such images?* is about the images alone. *Is the recipe better, under
another seed?* is about both: images and seeds are crossed random factors.

The variance between images is known well, for there are many. That between seeds is not, for there are few: one
model's three trainings say next to nothing about it. It is therefore pooled over all models (and fractions of the
data) by a hierarchical model, `SeedSpread.pooled`: as far as the models' seeds vary alike, all trainings count for
each model, and as far as they do not, each model's own do. What is not known about the variance is integrated over,
which is Student's t where only the seeds matter and all vary alike, and normal where only the images do.

Several pairs are judged jointly. Errors of all models are drawn from their joint distribution, and a pair is told apart
where no more than 5 % of the draws have a pair that looks as different (max-t, step-down: Westfall and Young 1993).
The same draws say by how much the best of several models is flattered by having been picked.

Two imagined images, one that only the first model has right and one that only the second has, keep an interval from
being empty where nothing differs (Agresti and Min 2005).
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
DRAWS = 20_000  # of what chance may do; p-values are as fine as one in so many
_QUANTILES = 200  # that stand for all draws of a variance
_STEPS = 8  # of finding the ends of an accuracy's interval
_CLOSE = 1e-10  # to the level: the p-value at the end of an interval
_MOST_VARIANCE = 0.25  # of anything between 0 and 1
# How unlike one another the models' seeds may vary: the standard deviation of the logarithm of their standard
# deviations, and how probable each is before the first training. 0 is complete pooling.
_UNLIKE = np.array([0.0, 0.3, 0.6, 1.0, 1.5])
_PRIOR = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
_UNSURE = 1.2  # times as large a variance is taken for where models are unlike: they need not lie as a normal does
_NODES = np.linspace(-3.5, 3.5, 29)  # of the normal distribution
_WEIGHTS = np.exp(-(_NODES**2) / 2)


@dataclass(frozen=True)
class SeedSpread:
    """The variation of accuracies between seeds, over several configurations.

    Attributes:
        variance: the sample variance of each configuration's accuracies between seeds, (M,).
        scale: what the variances are proportional to if all configurations are alike, (M,): p (1 - p), so that a model
            that is nearly always right varies less than one that is right half of the time.
        freedom: degrees of freedom of each variance; 0 with one seed.
        images: the part of each variance that comes of the images, (M,): a training is right on some and wrong on
            others by chance, which averages out over ever more images.
    """

    variance: Floats
    scale: Floats
    freedom: float
    images: Floats

    @classmethod
    def of(cls, right: Bools, units: Units, *, is_shared: bool = False) -> SeedSpread:
        """Estimate the spread of M configurations, each trained with the same S seeds.

        Args:
            right: which images each training of each configuration has right, (M, S, n).
            units: the images, or the groups of them that are independent of one another.
            is_shared: what a seed decides moves all configurations alike, as the subset of the images does that it
                draws: the draws that part is taken out, because it leaves their differences as they are.
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
        """Return the p-value for equal variances of all configurations (Bartlett 1937)."""
        M, relative = len(self.variance), self.variance / self.scale
        if not self.freedom or M == 1:
            return None
        ratio = float(self.freedom * (M * np.log(relative.mean()) - np.log(relative).sum()))
        return float(chdtrc(M - 1, ratio / (1 + (M + 1) / (3 * M * self.freedom))))

    def pooled(self, others: Sequence[SeedSpread], rng: np.random.Generator) -> Floats:
        """Draw plausible values of the variance between seeds of each configuration, (draws, M).

        They are drawn from the posterior of a hierarchical model: the logarithms of the variances, relative to their
        scale, are normal around a common value, of which nothing is assumed, and how far they lie around it is weighed
        by what the trainings say. So the test of whether pooling is justified is part of the estimate.

        Args:
            others: the estimates at other fractions of the data, which add information on the common value.
            rng: draws.
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
    """Return the variance of one training's accuracy due to the finite number of images, from trainings (S, n)."""
    S, n = right.shape
    rest = right - right.mean(axis=0) - right.mean(axis=1, keepdims=True) + right.mean()
    squares = sum(float((np.bincount(units.group, row) ** 2).sum()) for row in rest)
    return squares / (S - 1) / n**2 * units.count / max(units.count - 1, 1)


def _likelihood(sampled: float, freedom: float, true: Floats) -> Floats:
    """Return the likelihood of a sample variance given the true one, up to a factor."""
    logarithm = -freedom / 2 * (np.log(true) + sampled / true)
    return np.exp(logarithm - logarithm.max())


@dataclass(frozen=True)
class Difference:
    """The difference in accuracy between two models.

    Attributes:
        mean: accuracy of the first less that of the second.
        interval: 95 %, of this pair alone.
        p_alone: the p alone of no difference, of this pair alone.
        p: the same among all pairs that are compared; below LEVEL, the two are told apart.
        needed: the least difference that would be told from none among so many pairs.
    """

    mean: float
    interval: Interval
    p_alone: float
    p: float
    needed: float

    def reversed(self) -> Difference:
        """Return the difference of the second model to the first."""
        return replace(self, mean=-self.mean, interval=(-self.interval[1], -self.interval[0]))

    @property
    def is_distinguished(self) -> bool:
        """Return whether the first differs by more than chance, allowing for all pairs that are compared."""
        return self.p < LEVEL


@dataclass(frozen=True)
class Winner:
    """The best of several models, corrected for having been selected on these images and seeds.

    Attributes:
        index: which it is.
        measured: its accuracy.
        corrected: the same less what the best of such models has by luck.
        interval: 95 %, of its true accuracy.
    """

    index: int
    measured: float
    corrected: float
    interval: Interval


class Family:
    """Several models that were tested on the same images, each trained with the same seeds.

    Args:
        right: which images each training of each model has right, (M, S, n).
        units: the images, or the groups of them that are independent of one another.
        spread: the spread of the models between seeds; computed if it is not given.
        others: the spread of these models between seeds at other fractions of the data.

    Attributes:
        models, seeds, images: how many there are.
        accuracy: the accuracy of each model, over its seeds, (M,).
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
        """Return the standard deviation of each model's accuracy over seeds, (M,): the median of its posterior."""
        return np.sqrt(np.median(self._seed_variances, axis=0) * self.seeds)

    @cached_property
    def _covariance(self) -> Floats:
        """Return the covariance of the accuracies of these trained models over such images, (M, M)."""
        n, count = self.images, self.units.count
        rest = self._of_image - self.accuracy[:, None]
        sums = np.stack([np.bincount(self.units.group, row) for row in rest])  # (M, units)
        imagined = (self.units.imagined / (n + 2 * self.units.imagined)) ** 2
        return sums @ sums.T / n**2 * count / max(count - 1, 1) + imagined * np.eye(self.models)

    @cached_property
    def _seed_variances(self) -> Floats:
        """Return draws of the variance of the mean over seeds, (draws, M)."""
        return self.spread.pooled(self._others, np.random.default_rng(0)) / self.seeds

    @cached_property
    def _image_factors(self) -> Floats:
        """Return draws of the variance between images relative to its estimate, (draws,)."""
        freedom = max(self.units.count - 1, 1)
        return freedom / np.random.default_rng(1).chisquare(freedom, DRAWS)

    def _errors(self, *, of_recipes: bool) -> Floats:
        """Draw the errors of all accuracies from their joint distribution, (draws, M)."""
        rng = np.random.default_rng(2)
        values, vectors = np.linalg.eigh(self._covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        drawn = rng.standard_normal((DRAWS, self.models)) @ root.T * np.sqrt(self._image_factors)[:, None]
        if of_recipes:
            drawn += rng.standard_normal((DRAWS, self.models)) * np.sqrt(self._seed_variances)
        return drawn

    def differences(self, pairs: Sequence[tuple[int, int]], *, of_recipes: bool = True) -> list[Difference]:
        """Compare the models of each pair, adjusted for testing several pairs.

        Args:
            pairs: the pairs of models.
            of_recipes: include what other seeds would give; otherwise compare only these trained models. With one seed
                nothing is known of others.
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
        size = np.median(variances, axis=0) ** 0.5  # what makes pairs comparable
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
        """Return the 95 % interval of the accuracy of such trainings on such images.

        With one seed it is that of the images alone, by Clopper and Pearson. With more its ends are moved out by what
        the seeds add to the variance, as much as they would if the accuracy were at that end (`SeedSpread.scale`): a
        model that is mostly right can be unlucky by more than it can be lucky.
        """
        mean, z = float(self.accuracy[model]), float(ndtri(1 - TAIL))
        ends = mean_interval(self._of_image[model], 1.0, self.units)
        if not of_recipe or self.seeds == 1:
            return ends
        images = ((np.array(ends) - mean) / z) ** 2  # of either end
        scale, bounds = float(self.spread.scale[model]), np.array(ends)
        for _ in range(_STEPS):  # until the variance is that at the ends
            times = np.maximum(bounds * (1 - bounds) / scale, 1.0)
            low, high = _margin(_summary(self._seed_variances[:, [model]] * times + images))
            bounds = np.clip([mean - low, mean + high], 0.0, 1.0)
        return float(bounds[0]), float(bounds[1])

    def winner(self) -> Winner:
        """Return the best model, corrected for having been selected as the best.

        The truth is imagined where the models lie closer together than they were measured, since chance drives them
        apart: every gap to the best loses what chance alone would make of it. Around it evaluations are drawn, and it
        is seen by how much their best is flattered.
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
    """Return the joint p-value of each pair (Westfall and Young 1993, free step-down).

    Args:
        drawn: how far apart chance alone brings each pair, (draws, pairs).
        seen: how far apart each is, (pairs,).
    """
    order = np.argsort(-seen, kind="stable")
    largest = np.maximum.accumulate(drawn[:, order[::-1]], axis=1)[:, ::-1]  # of the pairs from each step on
    adjusted = np.empty(len(seen))
    adjusted[order] = np.maximum.accumulate((largest >= seen[order]).mean(axis=0))
    return adjusted


def _summary(variances: Floats) -> Floats:
    """Return quantiles (quantiles, m) of the standard errors whose variances were drawn at random (draws, m)."""
    step = len(variances) // _QUANTILES
    return np.sqrt(np.sort(variances, axis=0)[step // 2 :: step])


def _p_of(mean: Floats, errors: Floats) -> Floats:
    """Return the probability of means at least this far from 0 if the truth is 0, (m,).

    Args:
        mean: (m,).
        errors: what the standard error of each may be, (quantiles, m).
    """
    return 2 * ndtr(-np.abs(mean) / np.maximum(errors, 1e-30)).mean(axis=0)


def _margin(errors: Floats) -> Floats:
    """Half of the 95 % interval of each mean, (m,), over what its standard error may be, (quantiles, m).

    Newton's method, within bounds that bisection narrows.
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
