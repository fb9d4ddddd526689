"""Test whether new images differ from the validation and test images of a model (data drift).

A model folder records predicted classes and confidences for these images, and for the validation images also the scores
for unfamiliar images (`inference.trust`). A two-sample test compares each kind of value with the values of the new
images: Pearson's chi-squared test, with p-values by random permutations, for the predicted classes, and the
Kolmogorov-Smirnov test for the others.

If both sets of images come from the same distribution, the p-value of one test is at most a with a probability of at
most a. The p-values of several tests are adjusted by the method of Benjamini & Hochberg (1995). If nothing differs, the
probability that at least one adjusted p-value is at most a is then at most a, for tests that are independent or
positively dependent (Simes 1986), as measures of how unfamiliar images are.

These probabilities apply to one comparison of independent images. Many pictures of one scene, or a comparison every
day, cause more false alarms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.inference.trust import Trust, uncertainty_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
LEVEL = 0.05
_DRAWS = 9_999  # random permutations in the test of class shares
_BLOCK_COUNTS = 4_000_000  # maximum number of class counts that are drawn at a time
# For the power of the test (`_power`):
_FEW_CLASSES = 20  # with more classes, all simulated samples share one permutation test
_MIN_SIMULATED, _MAX_SIMULATED = 300, 2_000  # number of simulated samples
_FEW_DRAWS = 999  # random permutations for each sample, except that there are `_DRAWS` in two cases:
_LOW_LEVEL = 0.01  # if the level is lower than this,
_FEW_SAMPLES = 50  # or if at most this number of samples are different
_TITLES = {
    "classes": "predicted classes",
    "confidence": "confidence",
    "distance": "distance to the nearest training images",
}


@dataclass(frozen=True, eq=False)
class Sample:
    """A model's predictions and scores for images, which are the values that drift tests compare.

    The scores for unfamiliar images are recorded only for the validation images, so that m may be smaller than n.
    """

    predicted: Ints  # the most probable class of each image, (n,)
    doubt: Floats  # 1 minus the probability of this class, (n,)
    # Scores for unfamiliar images, (m,), higher if less familiar; None if there are none.
    distance: Floats | None = None

    @classmethod
    def recorded(cls, trust: Trust) -> Sample:
        """Return the values of the validation and test images that are recorded in a model folder."""
        distance = None if trust.unknown is None else trust.unknown.known
        validation = cls(trust.held_out.predicted, trust.held_out.doubt, distance)
        if trust.tests is None:
            return validation
        return cls.joined([validation, cls(trust.tests.predicted, trust.tests.doubt)])

    @classmethod
    def of(
        cls, trust: Trust, probabilities: npt.NDArray[np.float32], features: npt.NDArray[np.floating[Any]]
    ) -> Sample:
        """Compute the values of images from their probabilities (n, K) and features (n, D)."""
        distance = None if trust.unknown is None else trust.unknown.neighbours.distances(features)
        return cls(probabilities.argmax(axis=1).astype(np.int64), uncertainty_of(probabilities), distance)

    @classmethod
    def joined(cls, parts: Sequence[Sample]) -> Sample:
        """Concatenate the values of several sets of images, of which there is at least one."""
        predicted, doubt = (np.concatenate([getattr(part, name) for part in parts]) for name in ("predicted", "doubt"))
        distances = [part.distance for part in parts if part.distance is not None]
        return cls(predicted, doubt, np.concatenate(distances) if distances else None)

    def __len__(self) -> int:
        return len(self.predicted)


@dataclass(frozen=True)
class DriftTest:
    """The result of one two-sample test between earlier and new images."""

    name: str  # `classes`, `confidence` or `distance`
    p: float  # the p-value of this test alone
    adjusted: float  # the p-value adjusted for all tests of the comparison
    before: str  # a summary of the compared values in words, for the earlier images
    now: str  # and for the new images

    @property
    def title(self) -> str:
        """Return the name of the compared values, in words."""
        return _TITLES[self.name]


def drift_tests(before: Sample, now: Sample, classes: Sequence[str], seed: int = 0) -> tuple[DriftTest, ...]:
    """Test whether new images differ from earlier ones in predicted classes, confidence or distance.

    `classes` are the names of the classes, and `seed` is that of the permutations of the predicted classes.
    """
    from scipy.stats import false_discovery_control, ks_2samp

    counts = [np.bincount(sample.predicted, minlength=len(classes)) for sample in (before, now)]
    earlier, new = shares = [count / max(int(count.sum()), 1) for count in counts]
    k = int(np.lexsort((new, np.abs(new - earlier)))[-1])  # the class whose share changed most; of several, the largest
    medians = [f"median {1 - float(np.median(sample.doubt)):.3f}" for sample in (before, now)]
    rows = [
        ("classes", _class_shares_p_value(*counts, seed=seed), [f"{classes[k]} {share[k]:.1%}" for share in shares]),
        ("confidence", float(ks_2samp(before.doubt, now.doubt).pvalue), medians),
    ]
    if before.distance is not None and now.distance is not None:
        limit = float(np.quantile(before.distance, 0.95, method="higher"))
        far = [f"{(values > limit).mean():.1%} above {limit:.3g}" for values in (before.distance, now.distance)]
        rows.append(("distance", float(ks_2samp(before.distance, now.distance).pvalue), far))
    adjusted = map(float, false_discovery_control([p for _, p, _ in rows]))
    return tuple(DriftTest(name, p, q, *words) for (name, p, words), q in zip(rows, adjusted, strict=True))


def _class_shares_p_value(before: Ints, now: Ints, *, seed: int, draws: int = _DRAWS) -> float:
    # The p-value of a permutation test for equal class shares, with Pearson's chi-squared statistic.
    both, images, rng = before + now, int(now.sum()), np.random.default_rng(seed)
    measured = float(_chi_squared(now, both, images)) * (1 - 1e-12)  # so that rounding breaks no tie
    block, extreme = max(1, _BLOCK_COUNTS // len(both)), 0
    for start in range(0, draws, block):
        drawn = rng.multivariate_hypergeometric(both, images, size=min(block, draws - start))
        extreme += int((_chi_squared(drawn, both, images) >= measured).sum())
    return (1 + extreme) / (draws + 1)


@dataclass(frozen=True)
class DetectableRise:
    """The smallest rise of a class's share of the predictions that a comparison usually detects."""

    name: str  # of the class
    before: float  # the share in the earlier images
    now: float  # the share in new images that the test of predicted classes detects with a probability of 80 %


def detectable_rise(before: Sample, images: int, classes: Sequence[str], level: float) -> DetectableRise | None:
    """Return the smallest rise of one class's share that a comparison with new images usually detects.

    The rise is that of the class with the median share. The shares of the other classes keep their ratios. A comparison
    detects the rise if the p-value of the test of predicted classes is so low that its adjusted value is at most
    `level` whatever the other tests say. `images` is the number of new images.

    The result is None if no share would be detected, because there are too few images or `level` is too low, or if
    there is only one class.
    """
    level /= 2 if before.distance is None else 3  # for the smallest p-value of two or three tests
    if level < 1 / (_DRAWS + 1) or len(classes) < 2:
        return None
    counts = np.bincount(before.predicted, minlength=len(classes))
    p = counts / len(before)
    by_share = np.argsort(counts, kind="stable")
    predicted = by_share[(p[by_share] > 0) & (p[by_share] < 1)]
    # The class with the median share of those that are predicted; if a single class is, one of the others.
    k = int(predicted[(len(predicted) - 1) // 2] if len(predicted) else by_share[0])
    others = np.delete(p, k) / (1 - p[k])

    def is_detected(q: float) -> bool:
        return _power(counts, np.insert(others * (1 - q), k, q), images, level) >= 0.8

    low, high = float(p[k]), 1.0
    if not is_detected(high):
        return None
    while high - low > 0.005:
        middle = (low + high) / 2
        low, high = (low, middle) if is_detected(middle) else (middle, high)
    return DetectableRise(classes[k], float(p[k]), high)


def _power(before: Ints, shares: Floats, images: int, level: float) -> float:
    # The probability, by simulation, that the test of class shares rejects at `level` if new images have these shares.
    # With few classes, each simulated sample has a permutation test of its own. With many classes, a single permutation
    # test, with the expected class counts of the new images, gives the critical value for all samples. If the level is
    # too low to estimate this value, the result is 0.
    rng = np.random.default_rng(0)
    if len(before) <= _FEW_CLASSES:
        rows, times = np.unique(rng.multinomial(images, shares, size=_MIN_SIMULATED), axis=0, return_counts=True)
        draws = _DRAWS if level < _LOW_LEVEL or len(rows) <= _FEW_SAMPLES else _FEW_DRAWS
        is_rejected = [_class_shares_p_value(before, row, seed=0, draws=draws) <= level for row in rows]
        return float(np.average(is_rejected, weights=times))
    simulated = int(np.clip(_BLOCK_COUNTS // len(before), _MIN_SIMULATED, _MAX_SIMULATED))
    if level * simulated < 1:
        return 0.0
    expected = before + (images * shares).round().astype(np.int64)
    permuted = rng.multivariate_hypergeometric(expected, min(images, int(expected.sum())), size=simulated)
    critical = np.quantile(_chi_squared(permuted, expected, images), 1 - level, method="higher")
    now = rng.multinomial(images, shares, size=simulated)
    return float((_chi_squared(now, before + now, images) > critical).mean())


def _chi_squared(now: npt.NDArray[Any], both: npt.NDArray[Any], images: int) -> npt.NDArray[np.float64]:
    # Pearson's statistic, up to a constant factor, for the class counts `now` (..., K) of the new images and `both` of
    # all images.
    total = both.sum(axis=-1, keepdims=True)
    expected = images * both / np.maximum(total, 1)
    statistic: npt.NDArray[np.float64] = ((now - expected) ** 2 / np.maximum(both, 1)).sum(axis=-1)
    return statistic


def class_shares(sample: Sample, classes: Sequence[str]) -> dict[str, float]:
    """Return the fraction of images for which each class is predicted, by class name."""
    counts = np.bincount(sample.predicted, minlength=len(classes))
    return dict(zip(classes, (counts / max(len(sample), 1)).tolist(), strict=True))
