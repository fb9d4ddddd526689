"""Measure on test images whether a model's promises hold, and how its score for unknown images performs.

There are two promises: sets of classes contain the true class with a requested probability, and confident predictions
have a requested accuracy. The promises and the score are derived from the model's predictions for held-out images
(`inference.trust`). They are measured on other images, because results on the held-out images would be too good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from vitkit.classifier import Classifier
from vitkit.errors import VitkitError
from vitkit.evaluation.calibration import blocks
from vitkit.evaluation.figures import unseen_part
from vitkit.evaluation.intervals import Units, mean_interval
from vitkit.evaluation.metrics import Evaluation, MultiEvaluation
from vitkit.inference.trust import ClassSets, SureThreshold
from vitkit.inference.unknown import Unknown, images_needed
from vitkit.text.cells import interval_text, plural

LEVELS = (0.05, 0.01)  # highest p-values of images that are called unknown
COVERAGES = (0.9, 0.95)  # measured if none is requested
ACCURACIES = (0.95, 0.99)  # measured if none is requested


def trust_figures(
    classifier: Classifier,
    evaluation: Evaluation,
    seen: Mapping[str, str] | None,
    *,
    is_of_run: bool,
    coverage: float | None = None,
    accuracy: float | None = None,
) -> dict[str, Any]:
    """Return the entries `promises` and `unknown` of evaluation.json, as far as they can be measured.

    `promises` requires that the classifier has a record of held-out images, and that each evaluated image has exactly
    one class, which the model knows. `unknown` requires a score for unknown images.

    Args:
        classifier: the classifier that was evaluated.
        evaluation: the evaluation of all images.
        seen: the images that the weights had seen, as a mapping from path to role (train or val). They are excluded.
            None if this is unknown.
        is_of_run: whether the images belong to the run that trained the model. Only test images of a run are measured.
        coverage: the requested coverage of class sets; None for `COVERAGES`.
        accuracy: the requested accuracy of confident predictions; None for `ACCURACIES`.

    Raises:
        VitkitError: a requested promise cannot be made.
    """
    counted = unseen_part(evaluation, seen)
    has_same_classes = counted is not None and classifier.classes == counted.classes
    can_measure = has_same_classes and not isinstance(counted, MultiEvaluation)
    if coverage is not None or accuracy is not None:
        if not can_measure:
            raise VitkitError(
                "evaluation.promise-unmeasurable",
                "--coverage and --accuracy require images that the weights have not seen, each with exactly one of the "
                "model's classes: leave out these flags, or choose other images",
            )
        classifier.rules(coverage=coverage, accuracy=accuracy)  # raises an error if the promise cannot be made
    # Validation images of the run test nothing: the promises and the score for unknown images were fitted to them.
    measured = None if is_of_run and evaluation.split != "test" else counted
    figures: dict[str, Any] = {}
    if measured is not None and can_measure and classifier.held_out is not None:
        units = Units.of_evaluation(measured)
        coverages = _figures_of_each(
            COVERAGES if coverage is None else (coverage,),
            lambda value: _coverage_figures(classifier.rules(coverage=value).sets, measured, units),
        )
        accuracies = _figures_of_each(
            ACCURACIES if accuracy is None else (accuracy,),
            lambda value: _accuracy_figures(classifier.rules(accuracy=value).sure, measured),
        )
        held_out = classifier.held_out.held_out
        validation: dict[str, Any] = {"images": len(held_out), "chosen_on_them": list(held_out.chosen)}
        if held_out.folds:
            validation["folds"] = held_out.folds
        figures["promises"] = {"validation": validation, "coverage": coverages, "accuracy": accuracies}
    if classifier.unknown is not None:
        figures["unknown"] = _unknown_figures(classifier.unknown, classifier, measured)
    return figures


def trust_lines(numbers: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each promise and each level of `--unknown` that evaluation.json has measured."""
    promises = numbers.get("promises", {"coverage": [], "accuracy": []})
    for row in promises["coverage"]:
        if "refused" not in row:
            empty = f", {row['empty']} empty" if row["empty"] else ""
            yield (
                f"sets that are to cover {row['requested']:g}: {row['measured']:.4f} (95 %: "
                f"{interval_text(row['interval_95'])}), {row['mean_size']:.2f} classes on average{empty}"
            )
    for row in promises["accuracy"]:
        if "refused" not in row:
            line = f"{row['answered']} of {plural(row['images'], 'image', 'images')} answered"
            if row["measured"] is not None:
                line += f", accuracy {row['measured']:.4f} (95 %: {interval_text(row['interval_95'])})"
            yield f"predictions that are to be right {row['requested']:g} of the time: {line}"
    for row in numbers.get("unknown", {"called": []})["called"]:
        yield (
            f"images that --unknown {row['level']:g} calls unknown: {row['measured']:.4f} (95 %: "
            f"{interval_text(row['interval_95'])})"
        )


def _figures_of_each(requested: Sequence[float], measure: Callable[[float], dict[str, Any]]) -> list[dict[str, Any]]:
    # The figures of each requested promise, or why it cannot be made.
    rows = []
    for value in requested:
        try:
            rows.append({"requested": value, **measure(value)})
        except VitkitError as error:
            rows.append({"requested": value, "refused": str(error)})
    return rows


def _coverage_figures(sets: ClassSets | None, evaluation: Evaluation, units: Units) -> dict[str, Any]:
    assert sets is not None
    covers = np.empty(len(evaluation.labels), np.bool_)  # whether the set of each image has its class
    sizes = np.empty(len(evaluation.labels), np.int64)
    for rows in blocks(*evaluation.probabilities.shape):
        contained = sets.contains(evaluation.probabilities[rows])
        labels = evaluation.labels[rows]
        covers[rows] = contained[np.arange(len(labels)), labels]
        sizes[rows] = contained.sum(axis=1)
    by_class = {}
    for k, name in enumerate(evaluation.classes):
        has_class = evaluation.labels == k
        if has_class.any():
            by_class[name] = {
                "measured": float(covers[has_class].mean()),
                "mean_size": float(sizes[has_class].mean()),
                "images": int(has_class.sum()),
            }
    return {
        "measured": float(covers.mean()),
        "interval_95": list(mean_interval(covers.astype(np.float64), 1.0, units)),
        "images": len(covers),
        "mean_size": float(sizes.mean()),
        "empty": int((sizes == 0).sum()),
        "sizes": np.bincount(sizes).tolist(),
        "per_class": by_class,
    }


def _accuracy_figures(sure: SureThreshold | None, evaluation: Evaluation) -> dict[str, Any]:
    assert sure is not None
    is_correct = evaluation.is_correct
    probabilities = evaluation.probabilities
    answered = np.concatenate([sure.answers(probabilities[rows]) for rows in blocks(*probabilities.shape)])
    figures = {
        "above_confidence": max(sure.confidence, 0.0),
        "answered": int(answered.sum()),
        "images": len(is_correct),
        "expected_share": sure.share,
    }
    if not answered.any():
        return {**figures, "measured": None}
    correct = is_correct[answered].astype(np.float64)
    groups = np.array(evaluation.groups)[answered] if evaluation.groups else None
    bounds = mean_interval(correct, 1.0, Units.of(len(correct), groups))
    return {**figures, "measured": float(correct.mean()), "interval_95": list(bounds)}


def _unknown_figures(unknown: Unknown, classifier: Classifier, measured: Evaluation | None) -> dict[str, Any]:
    # How the score for unknown images was fitted, and at each level the fraction of `measured` that is called unknown.
    figures: dict[str, Any] = {"validation_images": len(unknown.known)}
    if classifier.held_out is not None and classifier.held_out.held_out.folds:
        figures["folds"] = classifier.held_out.held_out.folds
    figures["accepted"] = unknown.accepted
    figures["limits"] = [{**asdict(limit), "bounds": list(limit.bounds)} for limit in unknown.limits]
    figures["called"] = []
    if measured is None or measured.p_known is None:
        return figures
    units = Units.of_evaluation(measured)
    for level in LEVELS:
        if len(unknown.known) < images_needed(level):
            continue
        # The tolerance is for p-values in float32, which may round to just above the level.
        is_called = (measured.p_known <= level + 1e-6).astype(np.float64)
        figures["called"].append(
            {
                "level": level,
                "measured": float(is_called.mean()),
                "interval_95": list(mean_interval(is_called, 1.0, units)),
                "images": len(is_called),
            }
        )
    return figures
