"""Whether a confidence of 90 % is right nine times in ten, and how to make it so (Guo et al., arXiv 1706.04599)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

BINS = 15
_RANGE = (0.05, 20.0)
_PRIOR = 0.5  # standard deviation of ln T before anything is seen: a few images should not make certainty


@dataclass(frozen=True)
class Reliability:
    """How often a classifier is right, by its confidence, in bins of equal width.

    Attributes:
        counts: images in each bin, (bins,).
        confidence: mean confidence in each bin, (bins,); 0 in an empty one.
        accuracy: part of them that is right, (bins,); 0 in an empty one.
    """

    counts: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float64]
    accuracy: npt.NDArray[np.float64]

    @classmethod
    def of(cls, probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], bins: int = BINS) -> Reliability:
        """Of the most probable class of each image; `probabilities` (n, K), `labels` (n,)."""
        confidence = probabilities.max(axis=1).astype(np.float64)
        is_right = probabilities.argmax(axis=1) == labels
        own = bin_of(confidence, bins)
        counts = np.bincount(own, minlength=bins)
        some = np.maximum(counts, 1)
        return cls(
            counts,
            np.bincount(own, confidence, minlength=bins) / some,
            np.bincount(own, is_right, minlength=bins) / some,
        )

    @property
    def ece(self) -> float:
        """Expected calibration error (eq. 3): the mean gap between confidence and accuracy, over images."""
        return float((self.counts * np.abs(self.accuracy - self.confidence)).sum() / self.counts.sum())


def bin_of(confidence: npt.NDArray[np.float64], bins: int = BINS) -> npt.NDArray[np.int64]:
    """The bin of each confidence, from 0; they are (low, high], as in the paper."""
    return np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)


def fit_temperature(probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> float:
    """The temperature T > 0 that makes held-out probabilities right: softmax(logits / T) (sec. 4.2).

    The least log loss, with a weak prior that T is near 1: where every image is classified rightly the log loss alone
    would make the classifier certain of everything.

    Args:
        probabilities: (n, K), softmax of the logits at temperature 1.
        labels: (n,) true classes.
    """
    logits = np.log(np.maximum(probabilities.astype(np.float64), np.finfo(np.float32).tiny))  # up to a constant a row
    rows = np.arange(len(labels))

    def cost(log_t: float) -> float:
        return float(-log_softmax(logits / np.exp(log_t), axis=1)[rows, labels].sum() + (log_t / _PRIOR) ** 2 / 2)

    found = minimize_scalar(cost, bounds=np.log(_RANGE), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x))


def most_rise(
    probabilities: npt.NDArray[np.float32], before: npt.NDArray[np.float32], draws: int = 400, seed: int = 0
) -> float:
    """How much chance alone makes the calibration error rise where the temperature is right, at most 39 times in 40.

    Args:
        probabilities: at the temperature, (n, K): whether an image is right is drawn by them.
        before: the same at temperature 1.
        draws: how often.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    after, first = (own.max(axis=1).astype(np.float64) for own in (probabilities, before))
    bins = bin_of(after), bin_of(first)
    rises = []
    for _ in range(draws):
        is_right = rng.random(len(after)) < after
        gaps = [np.bincount(own, is_right - sure) for own, sure in zip(bins, (after, first), strict=True)]
        rises.append(float(np.abs(gaps[0]).sum() - np.abs(gaps[1]).sum()) / len(after))
    return float(np.quantile(rises, 0.975))
