"""Are today's images those that a model was made for? Tests against the validation images of its training.

A model folder records what the model made of its validation images (`inference.trust`): the predicted classes, the
confidences, and the scores by which unfamiliar images are recognised. Each is compared with that of today's images by a
two-sample test. If both sets of images come about in the same way, a test has a p-value of at most a with a
probability of at most a. With several tests, the p-values are adjusted (Holm 1979), so that any of them is significant
at a level with a probability of at most this level, however the tests depend on each other.

This holds for one comparison of independent images. Many pictures of one scene, or a comparison every day, raise false
alarms more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.inference.conformal import doubt_of
from vitkit.inference.trust import Trust
from vitkit.inference.unknown import Seen

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
LEVEL = 0.05
_DRAWS = 9_999  # random divisions in the test of class shares
_TITLES = {
    "classes": "predicted classes",
    "confidence": "confidence",
    "neighbours": "distance to the nearest training images",
    "mahalanobis": "distance to the nearest class",
    "energy": "energy of the logits",
}


@dataclass(frozen=True, eq=False)
class Looks:
    """How n images look to a model.

    Attributes:
        predicted: the most probable class, (n,).
        doubt: 1 minus the probability of this class, (n,).
        scores: scores of how unfamiliar the images are, (n,) each, by name; empty if the model has none.
    """

    predicted: Ints
    doubt: Floats
    scores: dict[str, Floats]

    @classmethod
    def of_validation(cls, trust: Trust) -> Looks:
        """Return what a model folder records about the validation images."""
        unknown = trust.unknown
        scores = {} if unknown is None else dict(zip(_names(trust), unknown.known, strict=True))
        return cls(trust.held_out.predicted, trust.held_out.doubt, scores)

    @classmethod
    def of(cls, trust: Trust, probabilities: npt.NDArray[np.float32], seen: Seen) -> Looks:
        """Return how images look with these probabilities (n, K), features and logits."""
        unknown = trust.unknown
        scores = {} if unknown is None else {str(score.method): score.of(seen) for score in unknown.scores}
        return cls(probabilities.argmax(axis=1).astype(np.int64), doubt_of(probabilities), scores)

    @classmethod
    def joined(cls, parts: Sequence[Looks]) -> Looks:
        """Join the images of several parts."""
        if not parts:
            return cls(np.empty(0, np.int64), np.empty(0), {})
        predicted, doubt = (np.concatenate([getattr(part, name) for part in parts]) for name in ("predicted", "doubt"))
        scores = {name: np.concatenate([part.scores[name] for part in parts]) for name in parts[0].scores}
        return cls(predicted, doubt, scores)

    def at(self, rows: npt.NDArray[Any]) -> Looks:
        """Return the images at these indices, or where a mask is true."""
        return Looks(self.predicted[rows], self.doubt[rows], {name: s[rows] for name, s in self.scores.items()})

    def __len__(self) -> int:
        return len(self.predicted)


def _names(trust: Trust) -> tuple[str, ...]:
    return () if trust.unknown is None else tuple(score.method for score in trust.unknown.scores)


@dataclass(frozen=True)
class DriftTest:
    """A test of whether two sets of images look the same.

    Attributes:
        name: `classes`, `confidence`, or the name of a score.
        p: the p-value of this test alone.
        adjusted: the p-value adjusted for all tests of the comparison.
        before, now: what was compared, in words.
    """

    name: str
    p: float
    adjusted: float
    before: str
    now: str

    @property
    def title(self) -> str:
        """What is compared."""
        return _TITLES[self.name]


def compare_looks(before: Looks, now: Looks, classes: Sequence[str], seed: int = 0) -> tuple[DriftTest, ...]:
    """Test whether images look as others do.

    Args:
        before: the images of the past.
        now: the images of today.
        classes: the names of the classes.
        seed: seed of the random divisions by which class shares are tested.
    """
    first, second = (np.bincount(looks.predicted, minlength=len(classes)) for looks in (before, now))
    rows = [("classes", _p_of_shares(first, second, seed=seed), _shares_in_words(first, second, classes))]
    values = {"confidence": (before.doubt, now.doubt)}
    values |= {name: (before.scores[name], now.scores[name]) for name in before.scores if name in now.scores}
    for name, both in values.items():
        rows.append((name, _p_of_values(*both), _values_in_words(name, *both)))
    adjusted = _holm(np.array([p for _, p, _ in rows]))
    return tuple(DriftTest(name, p, float(a), *words) for (name, p, words), a in zip(rows, adjusted, strict=True))


def _p_of_shares(before: Ints, now: Ints, *, seed: int) -> float:
    """Return the p-value of equal shares by Pearson's statistic, under random divisions of all images."""
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


def _holm(p: Floats) -> Floats:
    """Adjust p-values by the step-down method of Holm (1979)."""
    order = np.argsort(p, kind="stable")
    factors = np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1)
    return adjusted


def _shares_in_words(before: Ints, now: Ints, classes: Sequence[str]) -> tuple[str, str]:
    """Describe the share of the class whose share differs most."""
    shares = [counts / max(int(counts.sum()), 1) for counts in (before, now)]
    k = int(np.abs(shares[1] - shares[0]).argmax())
    return f"{classes[k]} {shares[0][k]:.1%}", f"{classes[k]} {shares[1][k]:.1%}"


def _values_in_words(name: str, before: Floats, now: Floats) -> tuple[str, str]:
    """Describe the medians of confidences, or how many scores are beyond 95 % of those of the past."""
    if name == "confidence":
        first, second = (f"median {1 - float(np.median(values)):.3f}" for values in (before, now))
        return first, second
    limit = float(np.quantile(before, 0.95, method="higher"))
    first, second = (f"{(values > limit).mean():.1%} above {limit:.3g}" for values in (before, now))
    return first, second


def shares_of(looks: Looks, classes: Sequence[str]) -> dict[str, float]:
    """Return the fraction of images that each class is predicted for."""
    counts = np.bincount(looks.predicted, minlength=len(classes))
    return dict(zip(classes, (counts / max(len(looks), 1)).tolist(), strict=True))
