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
        distances = [part.distance for part in parts if part.distance is not None]
        return cls(
            predicted=np.concatenate([part.predicted for part in parts]),
            doubt=np.concatenate([part.doubt for part in parts]),
            distance=np.concatenate(distances) if distances else None,
        )

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

    p_values = dict[str, float]()
    words = dict[str, tuple[str, str]]()

    counts_before = np.bincount(before.predicted, minlength=len(classes))
    counts_now = np.bincount(now.predicted, minlength=len(classes))
    p_values["classes"] = _class_shares_p_value(counts_before, counts_now, seed=seed)
    shares_before = counts_before / max(len(before), 1)
    shares_now = counts_now / max(len(now), 1)
    # The class whose share changed most; of several such classes, the most frequent one.
    k = int(np.lexsort((shares_now, np.abs(shares_now - shares_before)))[-1])
    words["classes"] = f"{classes[k]} {shares_before[k]:.1%}", f"{classes[k]} {shares_now[k]:.1%}"

    p_values["confidence"] = float(ks_2samp(before.doubt, now.doubt).pvalue)
    medians = 1 - float(np.median(before.doubt)), 1 - float(np.median(now.doubt))
    words["confidence"] = f"median {medians[0]:.3f}", f"median {medians[1]:.3f}"

    if before.distance is not None and now.distance is not None:
        p_values["distance"] = float(ks_2samp(before.distance, now.distance).pvalue)
        limit = float(np.quantile(before.distance, 0.95, method="higher"))
        far = (before.distance > limit).mean(), (now.distance > limit).mean()
        words["distance"] = f"{far[0]:.1%} above {limit:.3g}", f"{far[1]:.1%} above {limit:.3g}"

    adjusted = false_discovery_control(list(p_values.values())).tolist()
    return tuple(
        DriftTest(name, p, p_adjusted, *words[name])
        for (name, p), p_adjusted in zip(p_values.items(), adjusted, strict=True)
    )


def _class_shares_p_value(before: Ints, now: Ints, *, seed: int) -> float:
    # The p-value of a permutation test for equal class shares, with Pearson's chi-squared statistic.
    rng = np.random.default_rng(seed)
    both = before + now
    images = int(now.sum())
    measured = float(_chi_squared(now, both, images)) * (1 - 1e-12)  # so that rounding breaks no tie
    at_least = 0  # permutations whose statistic is at least as large
    block = max(1, _BLOCK_COUNTS // len(both))
    for start in range(0, _DRAWS, block):
        drawn = rng.multivariate_hypergeometric(both, images, size=min(block, _DRAWS - start))
        at_least += int((_chi_squared(drawn, both, images) >= measured).sum())
    return (1 + at_least) / (_DRAWS + 1)


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
