"""Test whether new images differ from the validation images of a model (data drift).

A model folder records three kinds of values for the validation images (`inference.trust`): predicted classes,
confidences, and scores for unfamiliar images. A two-sample test compares each kind with the values of the new images.

If both sets of images come from the same distribution, the p-value of one test is at most a with a probability of at
most a. The p-values of several tests are adjusted by the method of Holm (1979). Then the probability that any adjusted
p-value is at most a is at most a, however the tests depend on each other. The test of predicted classes has the same
weight as all other tests together, because these are strongly correlated: each measures how unfamiliar an image is.

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
_TITLES = {
    "classes": "predicted classes",
    "confidence": "confidence",
    "neighbours": "distance to the nearest training images",
    "mahalanobis": "distance to the nearest class",
    "energy": "energy of the logits",
}


@dataclass(frozen=True, eq=False)
class Looks:
    """The predictions and scores of a model for n images, which drift tests compare.

    Attributes:
        predicted: the most probable class of each image, (n,).
        doubt: 1 minus the probability of this class, (n,).
        scores: scores for unfamiliar images by name, (n,) each; higher is less familiar. Empty if the model has none.
    """

    predicted: Ints
    doubt: Floats
    scores: dict[str, Floats]

    @classmethod
    def of_validation(cls, trust: Trust) -> Looks:
        """Return the values of the validation images, as recorded in a model folder."""
        unknown = trust.unknown
        scores = {} if unknown is None else dict(zip(_names(trust), unknown.known, strict=True))
        return cls(trust.held_out.predicted, trust.held_out.doubt, scores)

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
        """Return the values of the images at these indices, or of those where a mask is true."""
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


def _p_of_shares(before: Ints, now: Ints, *, seed: int) -> float:
    """Return the p-value of a permutation test for equal class shares, with Pearson's chi-squared statistic."""
    both = before + now
    there = both > 0
    n, expected = int(now.sum()), now.sum() * both / max(int(both.sum()), 1)

    def statistic(counts: npt.NDArray[Any]) -> Any:
        return (((counts - expected) ** 2)[..., there] / both[there]).sum(axis=-1)

    drawn = np.random.default_rng(seed).multivariate_hypergeometric(both, n, size=_DRAWS)
    return float((1 + (statistic(drawn) >= statistic(now) * (1 - 1e-12)).sum()) / (_DRAWS + 1))


def _p_of_values(first: Floats, second: Floats) -> float:
    from scipy.stats import ks_2samp

    return float(ks_2samp(first, second).pvalue)


def _weights(tests: int) -> Floats:
    """Return the weights of the tests, whose sum is 1. The first one is the test of predicted classes."""
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


def detectable_shares(
    before: Looks, images: int, classes: Sequence[str], level: float, power: float = 0.8
) -> dict[str, float]:
    """Return for each class the share in new images that the test of predicted classes would detect.

    The share of the class is higher than before, and the other classes keep their ratios. The probability that the
    adjusted p-value is at most `level` is about `power`, by the noncentral chi-squared distribution. Classes that were
    never predicted before are left out, and so are those of which no share suffices, because there are too few images.

    Args:
        before: the values of the earlier images.
        images: the number of new images.
        classes: the names of the classes.
        level: the level of the adjusted p-values.
        power: the probability of detecting the change.
    """
    from scipy.special import chdtri, chndtrinc

    counts = np.bincount(before.predicted, minlength=len(classes))
    n, freedom = len(before), int((counts > 0).sum()) - 1
    if freedom < 1:
        return {}
    weight = _weights(2 + len(before.scores))[0]
    needed = chndtrinc(chdtri(freedom, weight * level), freedom, 1 - power)  # the noncentrality parameter
    p = counts[counts > 0] / n

    def noncentrality(q: Floats) -> Floats:
        inside, outside = n * p + images * q, n * (1 - p) + images * (1 - q)
        value: Floats = n * images * (q - p) ** 2 * (1 / inside + 1 / np.maximum(outside, 1e-12))
        return value

    low, high = p, np.ones_like(p)
    for _ in range(40):
        middle = (low + high) / 2
        is_enough = noncentrality(middle) >= needed
        low, high = np.where(is_enough, low, middle), np.where(is_enough, middle, high)
    names = [name for name, count in zip(classes, counts.tolist(), strict=True) if count]
    is_enough = noncentrality(high) >= needed
    return {
        name: q for name, q, is_possible in zip(names, high.tolist(), is_enough.tolist(), strict=True) if is_possible
    }


def _shares_in_words(before: Ints, now: Ints, classes: Sequence[str]) -> tuple[str, str]:
    """Describe both shares of the class whose share changed most."""
    shares = [counts / max(int(counts.sum()), 1) for counts in (before, now)]
    k = int(np.abs(shares[1] - shares[0]).argmax())
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
    """Return for each class, by name, the fraction of images for which it is predicted."""
    counts = np.bincount(looks.predicted, minlength=len(classes))
    return dict(zip(classes, (counts / max(len(looks), 1)).tolist(), strict=True))
