"""Every figure that is told of an evaluation, with how far chance may have moved the main ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn.metrics import average_precision_score, roc_auc_score

from vitkit.evaluate.calibration import BINS
from vitkit.evaluate.metrics import Evaluation
from vitkit.evaluate.multilabel import MultiEvaluation

RESAMPLES = 1000
DASH = "\N{EN DASH}"  # between the ends of an interval
_LEVELS = (2.5, 97.5)  # percentiles
_FINE = 100  # parts of a bin of confidence


def figures(evaluation: Evaluation) -> dict[str, Any]:
    """All of them, in plain JSON types, `accuracy` first: evaluation.json, and what `vitkit eval --json` prints."""
    rows: dict[str, dict[str, Any]] = {name: dict(row) for name, row in evaluation.per_class().items()}
    if isinstance(evaluation, MultiEvaluation):
        return {**evaluation.summary(), "absent_classes": list(evaluation.absent), "per_class": rows}
    areas = rank_areas(evaluation)
    for name, row in rows.items():
        row |= areas[name]
    found = [own["roc_auc"] for own in areas.values() if own["roc_auc"] is not None]
    precisions = [own["average_precision"] for own in areas.values() if own["average_precision"] is not None]
    return {
        **evaluation.summary(),
        "roc_auc": float(np.mean(found)) if found else None,
        "average_precision": float(np.mean(precisions)),
        "temperature": evaluation.temperature,
        "ece_before_temperature": at_temperature(evaluation, 1.0).ece,
        "intervals_95": {name: list(bounds) for name, bounds in intervals(evaluation).items()},
        "absent_classes": list(evaluation.absent),
        "confused": [
            {"true": true, "predicted": predicted, "count": count, "share": share}
            for true, predicted, count, share in evaluation.confused(20)
        ],
        "per_class": rows,
    }


def intervals(evaluation: Evaluation, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, tuple[float, float]]:
    """95 % bootstrap percentile intervals of accuracy, balanced accuracy and calibration error.

    The images are drawn anew with replacement, as many as there are, again and again (Efron & Tibshirani 1993, ch. 13).
    How many of each kind are drawn is multinomial, so kinds are drawn instead of images. For accuracies an image's kind
    is its class and whether it is right; for the calibration error whether it is right and its confidence, to a part in
    1500. The intervals say what other such images might give, not what another training would.

    Args:
        evaluation: of n images.
        resamples: how often they are drawn.
        seed: of the draws.
    """
    rng, n = np.random.default_rng(seed), len(evaluation.labels)
    is_right = evaluation.predicted == evaluation.labels
    _, own = np.unique(evaluation.labels, return_inverse=True)
    cells = np.bincount(2 * own + is_right, minlength=2 * (int(own.max()) + 1))
    drawn = rng.multinomial(n, cells / n, resamples).reshape(resamples, -1, 2)  # (resamples, classes, wrong or right)
    right, images = drawn[..., 1], drawn.sum(axis=2)
    recall = np.where(images > 0, right / np.maximum(images, 1), np.nan)
    confidence = evaluation.probabilities.max(axis=1).astype(np.float64)
    fine = np.clip(np.ceil(confidence * BINS * _FINE).astype(int) - 1, 0, BINS * _FINE - 1)
    kinds, kind, counts = np.unique(2 * fine + is_right, return_inverse=True, return_counts=True)
    gap = np.bincount(kind, is_right - confidence) / counts  # mean of each kind
    in_bin = (kinds // (2 * _FINE))[:, None] == np.arange(BINS)
    gaps = np.abs(rng.multinomial(n, counts / n, resamples) @ (gap[:, None] * in_bin)).sum(axis=1)
    outcomes = {
        "accuracy": right.sum(axis=1) / n,
        "balanced_accuracy": np.nanmean(recall, axis=1),
        "ece": gaps / n,
    }
    bounds = {name: np.percentile(values, _LEVELS).tolist() for name, values in outcomes.items()}
    return {name: (low, high) for name, (low, high) in bounds.items()}


def rank_areas(evaluation: Evaluation) -> dict[str, dict[str, float | None]]:
    """Areas under each class's ROC and precision-recall curves, one-vs-rest; None where there is no such curve."""
    areas: dict[str, dict[str, float | None]] = {}
    for i, name in enumerate(evaluation.classes):
        is_own, score = evaluation.labels == i, evaluation.probabilities[:, i]
        areas[name] = {
            "roc_auc": float(roc_auc_score(is_own, score)) if 0 < is_own.sum() < len(is_own) else None,
            "average_precision": float(average_precision_score(is_own, score)) if is_own.any() else None,
        }
    return areas


def at_temperature(evaluation: Evaluation, temperature: float) -> Evaluation:
    """What a classifier of the same logits and another temperature would say."""
    logits = np.log(np.maximum(evaluation.probabilities.astype(np.float64), np.finfo(np.float32).tiny))
    probabilities = softmax(logits * (evaluation.temperature / temperature), axis=1).astype(np.float32)
    return replace(evaluation, probabilities=probabilities, temperature=temperature)
