"""Figures of the score for unknown images: what a training measured, and how many labelled images look unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from vitkit.classifier import Classifier
from vitkit.evaluation.figures import unseen_part
from vitkit.evaluation.intervals import Units, mean_interval
from vitkit.evaluation.metrics import Evaluation
from vitkit.inference.unknown import NAMES, images_needed
from vitkit.text.cells import interval_text

LEVELS = (0.05, 0.01)  # fractions of known images that are called unknown


def unknown_figures(
    classifier: Classifier, evaluation: Evaluation, seen: Mapping[str, str] | None, *, is_of_run: bool
) -> dict[str, Any]:
    """Return the entry `unknown` of evaluation.json; empty if the classifier has no score for unknown images.

    Its list `called` says how many of the evaluated images are called unknown at each level. It is empty for
    validation images of the run, with which the score was fitted.

    Args:
        classifier: the classifier that was evaluated.
        evaluation: its evaluation on all images.
        seen: role by path of the images that the weights had seen, which do not count; None if this is unknown.
        is_of_run: whether the images are those of the run.
    """
    unknown, counted = classifier.unknown, unseen_part(evaluation, seen)
    if unknown is None:
        return {}
    called = []
    if counted is not None and counted.unknown is not None and not (is_of_run and counted.split != "test"):
        units = Units.of(len(counted.labels), np.array(counted.groups) if counted.groups else None)
        images = unknown.known.shape[1]
        for level in (level for level in LEVELS if images >= images_needed(unknown.method, level)):
            is_called = (counted.unknown <= level + 1e-6).astype(np.float64)
            figures = {"measured": float(is_called.mean()), "interval_95": list(mean_interval(is_called, 1.0, units))}
            called.append({"level": level, **figures, "images": len(is_called)})
    return {
        "unknown": {
            "method": unknown.method,
            "validation_images": unknown.known.shape[1],
            **({"folds": folds} if (folds := _folds(classifier)) else {}),
            "accepted": unknown.accepted,
            "passing": dict(unknown.passing),
            "limits": [{**asdict(limit), "bounds": list(limit.bounds)} for limit in unknown.limits],
            "called": called,
        }
    }


def _folds(classifier: Classifier) -> int:
    return classifier.held_out.held_out.folds if classifier.held_out else 0


def unknown_lines(numbers: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each level with the fraction of images that are called unknown.

    Args:
        numbers: content of evaluation.json.
    """
    for row in numbers.get("unknown", {"called": []})["called"]:
        yield (
            f"images that --unknown {row['level']:g} calls unknown: {row['measured']:.4f} (95 %: "
            f"{interval_text(row['interval_95'])})"
        )


def method_in_words(numbers: Mapping[str, Any]) -> str:
    """Describe the score in the entry `unknown`."""
    return NAMES[numbers["unknown"]["method"]]
