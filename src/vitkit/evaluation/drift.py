"""Test whether new images differ from the validation and test images of a model (data drift).

A model folder records predicted classes and confidences for these images, and for the validation images also scores for
unfamiliar images (`inference.trust`). A two-sample test compares each kind of value with the values of the new images.

If both sets of images come from the same distribution, the p-value of one test is at most a with a probability of at
most a. The p-values of several tests are adjusted by the method of Holm (1979). Then the probability that at least one
adjusted p-value is at most a is at most a, no matter how the tests depend on each other. The test of predicted classes
has the same weight as all other tests together, because the others are strongly correlated: each of them measures how
unfamiliar images are.

These probabilities apply to one comparison of independent images. Many pictures of one scene, or a comparison every
day, cause more false alarms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.inference.trust import Trust, doubt_of
from vitkit.inference.unknown import Seen

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
LEVEL = 0.05
_DRAWS = 9_999  # random permutations in the test of class shares
_AT_ONCE = 4_000_000  # counts that are drawn at a time
_POWER = 0.8  # the probability with which `detectable_rise` detects a change
_PRECISE = 0.005  # the precision of the share
_FEW_CLASSES = 20  # with more, one permutation test stands for those of all simulated comparisons
_SIMULATED, _MOST_SIMULATED = 300, 2_000  # comparisons of a share, at least and at most
_FEW_DRAWS, _LOW = 999, 0.01  # permutations in simulated comparisons, unless the level is as low as this
_TITLES = {
    "classes": "predicted classes",
    "confidence": "confidence",
    "neighbours": "distance to the nearest training images",
    "mahalanobis": "distance to the nearest class",
    "energy": "energy of the logits",
}


@dataclass(frozen=True, eq=False)
class Looks:
    """A model's predictions and scores for n images, which are the values that drift tests compare.

    Attributes:
        predicted: the most probable class of each image, (n,).
        doubt: 1 minus the probability of this class, (n,).
        scores: scores (n,) for unfamiliar images by name; a higher score means a less familiar image. Scores that were
            recorded with a model exist only for the validation images. Empty if the model has no such scores.
    """

    predicted: Ints
    doubt: Floats
    scores: dict[str, Floats]

    @classmethod
    def recorded(cls, trust: Trust) -> Looks:
        """Return the values of the validation and test images that are recorded in a model folder."""
        unknown = trust.unknown
        scores = {} if unknown is None else dict(zip(_names(trust), unknown.known, strict=True))
        parts = [trust.held_out, *([] if trust.tests is None else [trust.tests])]
        predicted, doubt = (np.concatenate([getattr(part, name) for part in parts]) for name in ("predicted", "doubt"))
        return cls(predicted, doubt, scores)

    @classmethod
    def of(cls, trust: Trust, probabilities: npt.NDArray[np.float32], seen: Seen) -> Looks:
        """Compute the values of images from their probabilities (n, K), features and logits."""
        unknown = trust.unknown
        scores = {} if unknown is None else {str(score.method): score.of(seen) for score in unknown.scores}
        return cls(probabilities.argmax(axis=1).astype(np.int64), doubt_of(probabilities), scores)

    @classmethod
    def joined(cls, parts: Sequence[Looks]) -> Looks:
        """Concatenate the values of several sets of images."""
        if not parts:
            return cls(np.empty(0, np.int64), np.empty(0), {})
        predicted, doubt = (np.concatenate([getattr(part, name) for part in parts]) for name in ("predicted", "doubt"))
        scores = {name: np.concatenate([part.scores[name] for part in parts]) for name in parts[0].scores}
        return cls(predicted, doubt, scores)

    def at(self, rows: npt.NDArray[Any]) -> Looks:
        """Return the values of the images that these indices or this boolean mask select."""
        return Looks(self.predicted[rows], self.doubt[rows], {name: s[rows] for name, s in self.scores.items()})

    def __len__(self) -> int:
        return len(self.predicted)


def _names(trust: Trust) -> tuple[str, ...]:
    return () if trust.unknown is None else tuple(score.method for score in trust.unknown.scores)


@dataclass(frozen=True)
class DriftTest:
    """The result of one two-sample test between earlier and new images.

    Attributes:
        name: `classes`, `confidence`, or the name of a score.
        p: the p-value of this test alone.
        adjusted: the p-value adjusted for all tests of the comparison.
        before, now: a summary of the compared values in words, for the earlier and the new images.
    """

    name: str
    p: float
    adjusted: float
    before: str
    now: str

    @property
    def title(self) -> str:
        """Name of the compared values, in words."""
        return _TITLES[self.name]


def compare_looks(before: Looks, now: Looks, classes: Sequence[str], seed: int = 0) -> tuple[DriftTest, ...]:
    """Test whether new images differ from earlier ones in predicted classes, confidence or scores.

    Args:
        before: the values of the earlier images.
        now: the values of the new images.
        classes: the names of the classes.
        seed: seed of the permutation test of class shares.
    """
    first, second = (np.bincount(looks.predicted, minlength=len(classes)) for looks in (before, now))
    rows = [("classes", _p_of_shares(first, second, seed=seed), _shares_in_words(first, second, classes))]
    values = {"confidence": (before.doubt, now.doubt)}
    values |= {name: (before.scores[name], now.scores[name]) for name in before.scores if name in now.scores}
    for name, both in values.items():
        rows.append((name, _p_of_values(*both), _values_in_words(name, *both)))
    adjusted = _holm(np.array([p for _, p, _ in rows]), _weights(len(rows)))
    return tuple(DriftTest(name, p, float(a), *words) for (name, p, words), a in zip(rows, adjusted, strict=True))


def _p_of_shares(before: Ints, now: Ints, *, seed: int, draws: int = _DRAWS) -> float:
    """Return the p-value of a permutation test for equal class shares, with Pearson's chi-squared statistic."""
    both, images, rng = before + now, int(now.sum()), np.random.default_rng(seed)
    least = float(_chi_squared(now, both, images)) * (1 - 1e-12)
    block, extreme = max(1, _AT_ONCE // len(both)), 0
    for start in range(0, draws, block):
        drawn = rng.multivariate_hypergeometric(both, images, size=min(block, draws - start))
        extreme += int((_chi_squared(drawn, both, images) >= least).sum())
    return (1 + extreme) / (draws + 1)


def _p_of_values(first: Floats, second: Floats) -> float:
    from scipy.stats import ks_2samp

    return float(ks_2samp(first, second).pvalue)


def _weights(tests: int) -> Floats:
    """Return the weights of the tests, beginning with the test of predicted classes. Their sum is 1."""
    others = max(tests - 1, 1)
    return np.array([others, *[1] * (tests - 1)]) / (others + tests - 1)


def _holm(p: Floats, weights: Floats) -> Floats:
    """Adjust p-values by the weighted step-down method of Holm (1979)."""
    order = np.argsort(p / weights, kind="stable")
    in_order = weights[order]
    left = np.cumsum(in_order[::-1])[::-1]  # total weight of each test and those that follow
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * left / in_order), 1)
    return adjusted


@dataclass(frozen=True)
class DetectableRise:
    """The smallest rise of a class's share of the predictions that a comparison usually detects.

    Attributes:
        name: the name of the class.
        before: the share in the earlier images.
        now: the share in new images that the test of predicted classes detects with a probability of 80 %.
    """

    name: str
    before: float
    now: float


def detectable_rise(before: Looks, images: int, classes: Sequence[str], level: float) -> DetectableRise | None:
    """Return the smallest rise of one class's share that a comparison with new images usually detects.

    The rise is found by simulation, for the class with the median share. The shares of the other classes keep their
    ratios. A comparison detects the rise if the adjusted p-value of the test of predicted classes is at most `level`.

    Args:
        before: the values of the earlier images.
        images: the number of new images.
        classes: the names of the classes.
        level: the level of the adjusted p-values.

    Returns:
        The class and its shares; None if no share would be detected, because there are too few images or `level` is
        too low, or if there is only one class.
    """
    counts = np.bincount(before.predicted, minlength=len(classes))
    level *= _weights(2 + len(before.scores))[0]
    if level < 1 / (_DRAWS + 1) or len(classes) < 2:
        return None
    by_share = np.argsort(counts, kind="stable")
    rising = by_share[(counts[by_share] > 0) & (counts[by_share] < len(before))]
    k = int(rising[(len(rising) - 1) // 2] if len(rising) else by_share[0])
    p = counts / len(before)
    others = np.delete(p, k) / (1 - p[k])

    def power(q: float) -> float:
        return _power(counts, np.insert(others * (1 - q), k, q), images, level)

    low, high = float(p[k]), 1.0
    if power(high) < _POWER:
        return None
    while high - low > _PRECISE:
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= _POWER else (middle, high)
    return DetectableRise(classes[k], float(p[k]), high)


def _power(before: Ints, shares: Floats, images: int, level: float) -> float:
    """Estimate the probability that the test of class shares rejects at `level`, if new images have these shares.

    New images are simulated and tested. With few classes, each simulated sample has a permutation test of its own. With
    many classes, a single permutation test, with the expected class counts of the new images, gives the critical value
    for all samples. If the level is too low to estimate this value, the result is 0.
    """
    rng = np.random.default_rng(0)
    if len(before) <= _FEW_CLASSES:
        draws = _DRAWS if level < _LOW else _FEW_DRAWS
        rows, times = np.unique(rng.multinomial(images, shares, size=_SIMULATED), axis=0, return_counts=True)
        is_rejected = [_p_of_shares(before, row, seed=0, draws=draws) <= level for row in rows]
        return float(np.average(is_rejected, weights=times))
    simulated = int(np.clip(_AT_ONCE // len(before), _SIMULATED, _MOST_SIMULATED))
    if level * simulated < 1:
        return 0.0
    expected = before + (images * shares).round().astype(np.int64)
    permuted = rng.multivariate_hypergeometric(expected, min(images, int(expected.sum())), size=simulated)
    critical = np.quantile(_chi_squared(permuted, expected, images), 1 - level, method="higher")
    now = rng.multinomial(images, shares, size=simulated)
    return float((_chi_squared(now, before + now, images) > critical).mean())


def _chi_squared(now: npt.NDArray[Any], both: npt.NDArray[Any], images: int) -> npt.NDArray[np.float64]:
    """Return Pearson's statistic for the class counts `now` (..., K) of the new images and `both` of all images."""
    total = both.sum(axis=-1, keepdims=True)
    expected = images * both / np.maximum(total, 1)
    statistic: npt.NDArray[np.float64] = ((now - expected) ** 2 / np.maximum(both, 1)).sum(axis=-1)
    return statistic


def _shares_in_words(before: Ints, now: Ints, classes: Sequence[str]) -> tuple[str, str]:
    """Describe the earlier and the new share of the class whose share changed most."""
    shares = [counts / max(int(counts.sum()), 1) for counts in (before, now)]
    k = int(np.lexsort((shares[1], np.abs(shares[1] - shares[0])))[-1])
    return f"{classes[k]} {shares[0][k]:.1%}", f"{classes[k]} {shares[1][k]:.1%}"


def _values_in_words(name: str, before: Floats, now: Floats) -> tuple[str, str]:
    """Describe the median confidences, or the fractions of scores above the 95 % quantile of the earlier scores."""
    if name == "confidence":
        first, second = (f"median {1 - float(np.median(values)):.3f}" for values in (before, now))
        return first, second
    limit = float(np.quantile(before, 0.95, method="higher"))
    first, second = (f"{(values > limit).mean():.1%} above {limit:.3g}" for values in (before, now))
    return first, second


def shares_of(looks: Looks, classes: Sequence[str]) -> dict[str, float]:
    """Return the fraction of images for which each class is predicted, by class name."""
    counts = np.bincount(looks.predicted, minlength=len(classes))
    return dict(zip(classes, (counts / max(len(looks), 1)).tolist(), strict=True))
