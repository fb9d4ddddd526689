"""Every figure that is told of an evaluation, with how far chance may have moved the main ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from vitkit.evaluation.calibration import blocks, most_rise
from vitkit.evaluation.intervals import intervals
from vitkit.evaluation.metrics import Evaluation
from vitkit.evaluation.multilabel import MultiEvaluation, cross_fitted


def figures(evaluation: Evaluation) -> dict[str, Any]:
    """All of them, in plain JSON types, `accuracy` first: evaluation.json, and what `vitkit eval --json` prints."""
    rows: dict[str, dict[str, Any]] = {name: dict(row) for name, row in evaluation.per_class().items()}
    if isinstance(evaluation, MultiEvaluation):
        return {
            **evaluation.summary(),
            "chosen_on": list(evaluation.chosen),
            **({"cross_fitted": cross_fitted(evaluation)} if evaluation.chosen else {}),
            **_intervals(evaluation),
            "absent_classes": list(evaluation.absent),
            "per_class": rows,
        }
    areas = rank_areas(evaluation)
    for name, row in rows.items():
        row |= areas[name]
    found = [own["roc_auc"] for own in areas.values() if own["roc_auc"] is not None]
    precisions = [own["average_precision"] for own in areas.values() if own["average_precision"] is not None]
    return {
        **evaluation.summary(),
        "chosen_on": list(evaluation.chosen),
        "roc_auc": float(np.mean(found)) if found else None,
        "average_precision": float(np.mean(precisions)),
        "temperature": evaluation.temperature,
        "ece_before_temperature": evaluation.untempered.ece,
        **_intervals(evaluation),
        "absent_classes": list(evaluation.absent),
        "confused": [
            {"true": true, "predicted": predicted, "count": count, "share": share}
            for true, predicted, count, share in evaluation.confused(20)
        ],
        "per_class": rows,
    }


def _intervals(evaluation: Evaluation) -> dict[str, Any]:
    found = {name: list(bounds) for name, bounds in intervals(evaluation).items()}
    grouped = {"independent_groups": len(set(evaluation.groups))} if evaluation.groups else {}
    return {"intervals_95": found, **grouped}


def rank_areas(evaluation: Evaluation) -> dict[str, dict[str, float | None]]:
    """Areas under each class's ROC and precision-recall curves, one-vs-rest; None where there is no such curve."""
    areas: dict[str, dict[str, float | None]]
    areas = {name: {"roc_auc": None, "average_precision": None} for name in evaluation.classes}
    for i, own in evaluation.standings.items():
        areas[evaluation.classes[i]] = {"roc_auc": own.roc_auc, "average_precision": own.average_precision}
    return areas


class Rise(NamedTuple):
    """How much larger the calibration error is than at temperature 1, and whether chance may have made it so."""

    by: float
    is_chance: bool


def calibration_rise(evaluation: Evaluation, numbers: Mapping[str, Any]) -> Rise | None:
    """Whether the calibration error of an evaluation, whose figures are known, is larger than at temperature 1."""
    if numbers["ece"] is None:
        return None
    by = numbers["ece"] - numbers["ece_before_temperature"]
    if evaluation.temperature == 1 or by <= 0:
        return None
    return Rise(by, by <= most_rise(evaluation.confidence, evaluation.confidence_before))


def at_temperature(evaluation: Evaluation, temperature: float) -> Evaluation:
    """What a classifier of the same logits and another temperature would say."""
    probabilities = np.empty_like(evaluation.probabilities)
    for own in blocks(*probabilities.shape):
        logits = np.log(np.maximum(evaluation.probabilities[own].astype(np.float64), np.finfo(np.float32).tiny))
        probabilities[own] = softmax(logits * (evaluation.temperature / temperature), axis=1)
    return replace(evaluation, probabilities=probabilities, temperature=temperature)
