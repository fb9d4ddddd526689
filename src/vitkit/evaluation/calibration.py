"""Whether a confidence of 90 % is right nine times in ten, and how to make it so (Guo et al., arXiv 1706.04599)."""

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
_RANGE, _STRENGTHS = (0.05, 20.0), (0.0, 2.0)
_PRIOR = 0.5  # standard deviation of ln T, and of the strength, before anything is seen: a few images are no certainty
_EXACT = {"xatol": 1e-6}
_NUMBERS = 2**18  # of a table that are computed with at a time: as many as stay in a core's cache


def blocks(rows: int, width: int, numbers: int | None = None) -> Iterator[slice]:
    """The rows of a table, a few at a time: what is computed of each row alone needs no second table."""
    size = max(1, (numbers or _NUMBERS) // max(width, 1))
    return (slice(start, start + size) for start in range(0, rows, size))


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
        return cls.of_confidence(confidence, probabilities.argmax(axis=1) == labels, bins)

    @classmethod
    def of_confidence(
        cls, confidence: npt.NDArray[np.float64], is_right: npt.NDArray[np.bool_], bins: int = BINS
    ) -> Reliability:
        """Of n images, (n,) each."""
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


def confidence_at(probabilities: npt.NDArray[np.float32], power: float) -> npt.NDArray[np.float64]:
    """The highest probability of each row of (n, K) at another temperature, (n,); `power`: the old one over the new."""
    found = np.empty(len(probabilities))
    for own in blocks(*probabilities.shape):
        rows = np.maximum(probabilities[own].astype(np.float64), np.finfo(np.float32).tiny)
        found[own] = 1 / ((rows / rows.max(axis=1, keepdims=True)) ** power).sum(axis=1)
    return found


def bin_of(confidence: npt.NDArray[np.float64], bins: int = BINS) -> npt.NDArray[np.int64]:
    """The bin of each confidence, from 0; they are (low, high], as in the paper."""
    return np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)


@dataclass(frozen=True)
class Calibration:
    """What makes logits z into log-odds that hold: z / temperature + strength * shift.

    Attributes:
        temperature: above 0.
        strength: how much of a shift between the classes' shares in training and in the data is called for.
    """

    temperature: float
    strength: float = 1.0


def fit_temperature(probabilities: Floats, labels: npt.NDArray[np.int64]) -> float:
    """The temperature T > 0 that makes held-out probabilities right: softmax(logits / T) (sec. 4.2).

    The least log loss, with a weak prior that T is near 1: where every image is classified rightly the log loss alone
    would make the classifier certain of everything.

    Args:
        probabilities: (n, K), softmax of the logits at temperature 1.
        labels: (n,) true classes.
    """
    logits = log_odds(probabilities, labels)
    return calibrate(logits, labels, np.zeros(logits.shape[1])).temperature


def most_rise(after: npt.NDArray[np.float64], first: npt.NDArray[np.float64], draws: int = 400, seed: int = 0) -> float:
    """How much chance alone makes the calibration error rise where the temperature is right, at most 39 times in 40.

    Args:
        after: confidences at the temperature, (n,): whether an image is right is drawn by them.
        first: the same at temperature 1.
        draws: how often.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    bins = bin_of(after), bin_of(first)
    rises = []
    for _ in range(draws):
        is_right = rng.random(len(after)) < after
        gaps = [np.bincount(own, is_right - sure) for own, sure in zip(bins, (after, first), strict=True)]
        rises.append(float(np.abs(gaps[0]).sum() - np.abs(gaps[1]).sum()) / len(after))
    return float(np.quantile(rises, 0.975))


def calibrate(
    logits: Floats, labels: npt.NDArray[np.int64], shift: Floats, weights: Floats | None = None
) -> Calibration:
    """Temperature and strength of the least log loss on held-out images, both with a weak prior that they are near 1.

    Args:
        logits: (n, K).
        labels: (n,) true classes; or (n, K), 1 where an image has a class: then each class is judged by itself.
        shift: (K,); where it is the same for all classes of (n,) labels, nothing depends on the strength, which is 1.
        weights: (n,) what each image counts; None for all alike.
    """
    times = np.ones(len(labels)) if weights is None else weights
    moves = np.ptp(shift) > 0 if labels.ndim == 1 else shift.any()

    def cost(log_t: float, strength: float) -> float:
        losses = np.empty(len(logits))
        for own in blocks(*logits.shape):
            losses[own] = _losses(logits[own] / np.exp(log_t) + strength * shift, labels[own])
        return float(times @ losses + (log_t / _PRIOR) ** 2 / 2 + ((strength - 1) / _PRIOR) ** 2 / 2)

    low, high = np.log(_RANGE)
    if not moves:
        found = minimize_scalar(lambda own: cost(own, 1.0), bounds=(low, high), method="bounded", options=_EXACT)
        return Calibration(float(np.exp(found.x)))
    both = minimize(lambda own: cost(*own), (0.0, 1.0), bounds=((low, high), _STRENGTHS), method="L-BFGS-B")
    return Calibration(float(np.exp(both.x[0])), float(both.x[1]))


def log_odds(probabilities: Floats, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """(n, K) logits of these probabilities: of softmax, up to a constant a row; of sigmoid, where labels are (n, K)."""
    exact = np.maximum(probabilities.astype(np.float64), np.finfo(np.float32).tiny)
    if labels.ndim == 1:
        return np.log(exact)
    return np.log(exact) - np.log(np.maximum(1 - exact, np.finfo(np.float32).eps / 2))


def to_probabilities(logits: Floats, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """(n, K) by softmax; or by sigmoid, where labels are (n, K)."""
    found = softmax(logits, axis=1) if labels.ndim == 1 else expit(logits)
    return np.asarray(found, dtype=np.float32)


def _losses(logits: Floats, labels: npt.NDArray[np.int64]) -> Floats:
    """(n,) the negative log-likelihood of each image's class, or of all its classes."""
    if labels.ndim == 1:
        return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels]
    return -log_expit(np.where(labels == 1, logits, -logits)).sum(axis=1)
