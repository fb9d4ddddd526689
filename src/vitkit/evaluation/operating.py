"""Where classes differ much in size: what the same model comes to as the data come, and where every class counts alike.

The two differ by the logarithms of the classes' shares alone, so one evaluation gives both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from vitkit.evaluation.calibration import blocks, log_odds, to_probabilities
from vitkit.evaluation.metrics import Evaluation
from vitkit.evaluation.multilabel import MultiEvaluation

BALANCE = "balance"  # where a model's provenance keeps what balanced training has given it
UNEQUAL = 3  # times the images of the smallest class: with more, classes differ much in size
SHARES = {"data": "as frequent as in training", "uniform": "all alike"}


def differ_much(counts: Sequence[int]) -> bool:
    """Whether the largest class has more than `UNEQUAL` times the images of the smallest that has any."""
    occurring = [count for count in counts if count]
    return bool(occurring) and max(occurring) > UNEQUAL * min(occurring)


def operating_points(evaluation: Evaluation, standing: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Accuracy, balanced accuracy and each class's recall for both; None where there is little to choose.

    Args:
        evaluation: of the model, for the prior that it was trained for.
        standing: the model's `balance` in its provenance; None of a model that knows of no training images.
    """
    if standing is None or isinstance(evaluation, MultiEvaluation):
        return None
    counts, own = standing["counts"], standing["prior"]
    if not differ_much(counts) or len(counts) != evaluation.probabilities.shape[1]:
        return None
    points = {
        prior: evaluation if prior == own else for_prior(evaluation, counts, prior) for prior in ("data", "uniform")
    }
    return {"chosen": own} | {name: _figures(point) for name, point in points.items()}


def for_prior(evaluation: Evaluation, counts: Sequence[int], prior: Literal["data", "uniform"]) -> Evaluation:
    """What the same model says of the images for the other prior (Saerens et al. 2002, eq. 2.4).

    Args:
        evaluation: for one of them.
        counts: training images of each class.
        prior: the one that is wanted.
    """
    shares = np.log(np.maximum(counts, 1))
    found = np.empty_like(evaluation.probabilities)
    for own in blocks(*found.shape):
        labels = evaluation.labels[own]
        logits = log_odds(evaluation.probabilities[own], labels) + (shares if prior == "data" else -shares)
        found[own] = to_probabilities(logits, labels)
    return replace(evaluation, probabilities=found)


def _figures(evaluation: Evaluation) -> dict[str, Any]:
    rows = evaluation.per_class().items()
    return {
        "accuracy": evaluation.accuracy,
        "balanced_accuracy": evaluation.balanced_accuracy,
        "recall": {name: row["recall"] if row["support"] else None for name, row in rows},
    }
