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


def _class_shares_p_value(before: Ints, now: Ints, *, seed: int) -> float:
    # The p-value of a permutation test for equal class shares, with Pearson's chi-squared statistic.
    both, images, rng = before + now, int(now.sum()), np.random.default_rng(seed)
    measured = float(_chi_squared(now, both, images)) * (1 - 1e-12)  # so that rounding breaks no tie
    block, extreme = max(1, _BLOCK_COUNTS // len(both)), 0
    for start in range(0, _DRAWS, block):
        drawn = rng.multivariate_hypergeometric(both, images, size=min(block, _DRAWS - start))
        extreme += int((_chi_squared(drawn, both, images) >= measured).sum())
    return (1 + extreme) / (_DRAWS + 1)


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
