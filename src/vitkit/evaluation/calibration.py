"""Measure how well confidences match accuracy, and correct them by a temperature (Guo et al., arXiv 1706.04599)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, log_expit, log_softmax, softmax

Floats = npt.NDArray[np.floating[Any]]
BINS = 15
_TEMPERATURES = (0.05, 20.0)  # allowed range
_STRENGTHS = (0.0, 2.0)  # allowed range
_PRIOR = 0.5  # standard deviation of the priors of ln T and of the strength, which limit the influence of few images
_NUMBERS = 2**18  # entries of an array that are processed at a time; they fit into a core's cache


def blocks(rows: int, width: int) -> Iterator[slice]:
    """Return slices that divide an array (rows, width) into blocks of rows, so that intermediate results stay small."""
    size = max(1, _NUMBERS // max(width, 1))
    return (slice(start, start + size) for start in range(0, rows, size))


@dataclass(frozen=True)
class Reliability:
    """Accuracy as a function of confidence, in bins of equal width. Values are 0 in an empty bin."""

    counts: npt.NDArray[np.int64]  # images in each bin, (bins,)
    confidence: npt.NDArray[np.float64]  # mean confidence in each bin, (bins,)
    accuracy: npt.NDArray[np.float64]  # fraction of correct images in each bin, (bins,)

    @classmethod
    def of(cls, confidence: npt.NDArray[np.float64], is_correct: npt.NDArray[np.bool_]) -> Reliability:
        """Bin n images by confidence; `confidence` and `is_correct` are (n,)."""
        bins = bin_of(confidence)
        counts = np.bincount(bins, minlength=BINS)
        images = np.maximum(counts, 1)  # no division by 0
        return cls(
            counts=counts,
            confidence=np.bincount(bins, confidence, minlength=BINS) / images,
            accuracy=np.bincount(bins, is_correct, minlength=BINS) / images,
        )

    @property
    def ece(self) -> float:
        """Expected calibration error (eq. 3): mean gap between confidence and accuracy, bins weighted by images."""
        return float((self.counts * np.abs(self.accuracy - self.confidence)).sum() / self.counts.sum())


def bin_of(confidence: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the bin index of each confidence, from 0. Bins are half-open intervals (low, high], as in Guo et al."""
    return np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)


@dataclass(frozen=True)
class Calibration:
    """Parameters that turn logits z into calibrated log-odds: z / temperature + strength * shift.

    The shift corrects for class frequencies that differ between training and use.
    """

    temperature: float  # above 0
    strength: float = 1.0


def calibrate(
    logits: Floats, labels: npt.NDArray[np.int64], shift: Floats, weights: Floats | None = None
) -> Calibration:
    """Fit temperature and strength by log loss on held-out images, with a weak prior that both are near 1.

    Without the prior, a classifier that makes no mistake on these images would get a confidence of 1 for every image.

    Args:
        logits: (n, K).
        labels: true classes (n,), or class indicators (n, K), in which case each class is a binary decision.
        shift: number that is multiplied by the strength and added to the logit of each class, (K,). The strength stays
            1 if the shift has no effect: if it is 0, or if it is the same for all classes and the labels are (n,).
        weights: weight of each image, (n,); None weights all equally.
    """
    image_weights = np.ones(len(labels)) if weights is None else weights
    shift_has_effect = np.ptp(shift) > 0 if labels.ndim == 1 else shift.any()

    def cost(log_t: float, strength: float) -> float:
        losses = np.empty(len(logits))
        for rows in blocks(*logits.shape):
            z = logits[rows] / np.exp(log_t) + strength * shift
            label = labels[rows]
            if labels.ndim == 1:
                losses[rows] = -log_softmax(z, axis=1)[np.arange(len(label)), label]
            else:  # the sum over K binary decisions
                losses[rows] = -log_expit(np.where(label == 1, z, -z)).sum(axis=1)
        return float(image_weights @ losses + (log_t / _PRIOR) ** 2 / 2 + ((strength - 1) / _PRIOR) ** 2 / 2)

    log_temperatures = tuple(np.log(_TEMPERATURES))
    if not shift_has_effect:
        best = minimize_scalar(
            lambda log_t: cost(log_t, 1.0), bounds=log_temperatures, method="bounded", options={"xatol": 1e-6}
        )
        return Calibration(float(np.exp(best.x)))
    bounds = (log_temperatures, _STRENGTHS)
    best = minimize(lambda pair: cost(pair[0], pair[1]), (0.0, 1.0), bounds=bounds, method="L-BFGS-B")
    log_t, strength = best.x
    return Calibration(float(np.exp(log_t)), float(strength))


def log_odds(probabilities: Floats, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Convert probabilities (n, K) to logits (n, K).

    For labels (n,), this inverts the softmax; the logits are determined only up to a constant per row. For class
    indicators (n, K), it inverts the sigmoid.
    """
    p = np.maximum(probabilities.astype(np.float64), np.finfo(np.float32).tiny)  # so that no logarithm is infinite
    if labels.ndim == 1:
        return np.log(p)
    # 1 - eps / 2 is the largest float32 below 1.
    return np.log(p) - np.log(np.maximum(1 - p, np.finfo(np.float32).eps / 2))


def to_probabilities(logits: Floats, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Convert logits to probabilities (n, K), by softmax for labels (n,) and by sigmoid for class indicators (n, K)."""
    probabilities = softmax(logits, axis=1) if labels.ndim == 1 else expit(logits)
    return np.asarray(probabilities, dtype=np.float32)
