"""Compute the figures of the held-out images, and search for label errors."""

from __future__ import annotations

import time
from typing import Any

import torch

from vitkit.data.doctor.examine import caveats_of
from vitkit.evaluation import label_errors
from vitkit.evaluation.evaluator import earlier_figures, with_labels
from vitkit.evaluation.figures import all_figures, describe, unrecorded_reason, unseen_part, without
from vitkit.evaluation.headline import BY_FOLDS, describe_labels, headline_of
from vitkit.evaluation.intervals import fold_intervals
from vitkit.evaluation.promises import trust_figures, trust_lines
from vitkit.training.run_folder import Run
from vitkit.training.stages.calibrate import calibration_images
from vitkit.training.start import choose_precision


def evaluate(run: Run) -> None:
    """Compute `run.numbers` from the predictions for the held-out images, and find `run.label_errors`.

    `run.evaluation` is the part of the held-out images that the initial weights had not seen, or None.
    """
    inputs, recipe, classifier, tested = run.inputs, run.recipe, run.classifier, run.tested
    seen = inputs.seen(tested.split)
    facts = classifier.computation | run.changes.to_dict() | earlier_figures(tested, inputs.earlier, seen)
    facts |= trust_figures(classifier, tested, seen, is_of_run=True)
    problems = caveats_of(inputs.findings)
    if problems:
        facts["problems"] = problems
    run.numbers = all_figures(tested, seen, classifier.provenance, facts, unrecorded_reason(inputs.record))
    if tested.split == BY_FOLDS:
        run.numbers = _figures_by_folds(run)
    precision = choose_precision(recipe.precision, recipe.device)
    if precision != classifier.precision:
        evaluated = f"evaluated in {classifier.precision}, as `vitkit predict` does on this machine"
        run.say(f"trained in {precision}, {evaluated}")
    for note in (describe_labels(run.numbers), describe(run.numbers)):
        if note:
            run.say(f"note: {note}")
    run.evaluation = unseen_part(tested, seen)
    reported = run.evaluation or tested
    if run.calibration is not None and run.numbers.get("ece") is not None:
        fitted_on = f"{len(run.calibration.labels)} {calibration_images(run.calibration)}"
        errors = f"{run.numbers['ece_before_temperature']:.4f} -> {run.numbers['ece']:.4f}"
        run.say(
            f"temperature {run.numbers['temperature']:.3f}, fitted on {fitted_on}: "
            f"calibration error {errors} on {reported.split} images"
        )
    for line in trust_lines(run.numbers):
        run.say(line)
    run.label_errors = find_label_errors(run)
    run.numbers["label_errors"] = label_errors.summary(run.label_errors)


def find_label_errors(run: Run) -> list[label_errors.LabelError]:
    """Return labels that are likely wrong, the most doubtful first.

    All images are searched with their features under weights that had not seen them (`run.frozen_features`). Without
    such features, only held-out images are searched, with the predictions of the model.
    """
    if run.frozen_features is None:
        reported = run.evaluation or run.tested
        current = with_labels(reported, reported.current_labels)  # it has the classes of earlier labels, too
        evaluations = {current.split: current}
        if run.calibration is not None and run.calibration.split != current.split:
            added = current.classes[len(run.calibration.classes) :]
            evaluations[run.calibration.split] = run.calibration.with_classes(added)
        errors = label_errors.from_predictions(evaluations[name] for name in ("val", "test") if name in evaluations)
        if errors:
            run.say(f"{label_errors.describe_errors(errors)} (among held-out images, according to the model itself)")
        return errors
    started, table = time.monotonic(), run.inputs.table
    targets = table.task.targets(torch.tensor(table.labels), table.set_targets())
    errors = label_errors.from_features(table, run.frozen_features, targets.to(torch.int64), run.recipe.seed)
    precision = choose_precision(run.recipe.precision, run.recipe.device)
    seconds = time.monotonic() - started
    described = label_errors.describe_errors(errors)
    run.say(f"{described} (of {len(table)} images, frozen features in {precision}, {seconds:.0f} s)")
    return errors


def _figures_by_folds(run: Run) -> dict[str, Any]:
    """Return the figures of a test by nested cross-validation, with intervals that are computed over its folds.

    `temperature` is that of the final classifier. `ece_before_temperature` is the calibration error of the predictions
    of all folds before calibration.
    """
    numbers, predictions, evaluation = run.numbers, run.out_of_fold, run.tested
    assert predictions is not None
    untempered = predictions.tests(is_calibrated=False)
    assert untempered is not None
    fold_of = dict(zip(predictions.paths, predictions.fold.tolist(), strict=True))
    for i, path in enumerate(evaluation.paths):
        fold_of.setdefault(path, i % predictions.folds)  # images without a fold are spread over all folds
    parts = []
    for number in range(predictions.folds):
        other_folds = dict.fromkeys(path for path in evaluation.paths if fold_of[path] != number)
        part = without(evaluation, other_folds)
        if part is not None:
            parts.append(part)
    bounds = fold_intervals(parts)
    changed = {
        **numbers,
        "temperature": run.classifier.temperature,
        "ece_before_temperature": untempered.ece,
        "intervals_95": {name: list(bounds.get(name, ends)) for name, ends in numbers["intervals_95"].items()},
    }
    return {**changed, "headline": headline_of(changed).to_dict()}
