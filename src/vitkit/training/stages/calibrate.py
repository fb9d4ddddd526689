"""Fit the temperature, the thresholds and the score of unknown images, on images that did not train the model.

They are fitted with the backend and precision of `vitkit eval`, so that the figures of the run and of the command are
identical, and saved with the model. No later stage changes the model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.seen import PictureRecord, search_readable_images
from vitkit.data.split_file import check_images
from vitkit.data.splits import held_out_split
from vitkit.errors import VitkitError
from vitkit.evaluation.evaluator import evaluate, evaluate_with_earlier_labels, tested_images
from vitkit.evaluation.figures import SHARES, chosen_on
from vitkit.evaluation.headline import BY_FOLDS
from vitkit.evaluation.metrics import Evaluation, grouped
from vitkit.inference.trust import CROSS_VALIDATED, VALIDATION
from vitkit.inference.unknown import Unknown
from vitkit.system.progress import progress
from vitkit.text.cells import plural
from vitkit.training.defaults import weights_of
from vitkit.training.features import FeatureStore
from vitkit.training.finalize import OutOfFold, ValidationFacts, calibrate_on, correction_of, record_tests
from vitkit.training.run_folder import Run
from vitkit.training.start import choose_device
from vitkit.training.unknown import fit_out_of_fold, fit_to_images
from vitkit.weights.loading import inspect_source

_MAX_SEARCHED = 20_000  # images in which label errors are searched for; more would take too much time and memory


def calibrate(run: Run) -> None:
    """Calibrate the trained model, evaluate it on the held-out images, and save it.

    `run.calibration` and `run.tested` are the evaluations of the validation images and of the held-out images.
    """
    inputs, fields = run.inputs, run.recipe.to_dict()
    held_out: list[str] = [name for name in ("val", "test") if name in inputs.table.splits] or ["all"]
    run.table, run.changes = check_images(inputs.table, inputs.contents, held_out)
    if run.changes:
        run.say(f"problem: {run.changes.text}; they are left out")
    run.frozen_features = frozen_features(run)
    chosen = chosen_on("val", fields, run.table.task)
    fit_calibration(run, ValidationFacts(chosen, inputs.groups, inputs.seen("val") or {}))

    table, classifier = run.table, run.classifier
    split = held_out_split(table)
    tests = run.out_of_fold.tests() if split == "all" and run.out_of_fold is not None else None
    try:
        if tests is not None:
            tested = _evaluate_by_folds(run, tests)
        else:
            show_progress = partial(progress, "evaluating")
            tested = evaluate_with_earlier_labels(classifier, table, split, inputs.earlier, show_progress)
        run.tested = replace(grouped(tested, inputs.groups), chosen=chosen_on(split, fields, table.task))
        if tested.split == "test":
            record_tests(classifier, run.tested, inputs.seen("test"))
    finally:  # the calibration is saved even if the test fails or is interrupted
        classifier.save(run.folder)


def _evaluate_by_folds(run: Run, tests: Evaluation) -> Evaluation:
    """Return the evaluation of all images by the predictions `tests`, each of a head that was fitted without the fold.

    An image whose earlier class no longer exists has no fold. It counts as a mistake, whatever the final head predicts.
    """
    table, earlier = run.table, run.inputs.earlier
    classifier = replace(run.classifier, trust=None)  # unfamiliarity is undefined for training images
    outcomes: dict[str, Any] = dict(zip(tests.paths, tests.probabilities, strict=True))
    others = [path for path in tested_images(table, "all", earlier).paths if path not in outcomes]
    predicted = classifier.assessments(table.at(path) for path in others)
    for path, (_, outcome) in zip(others, predicted, strict=True):
        outcomes[path] = outcome
    evaluation = evaluate_with_earlier_labels(classifier, table, "all", earlier, outcomes=outcomes)
    return replace(evaluation, split=BY_FOLDS, temperature=1.0)


def frozen_features(run: Run) -> Tensor | None:
    """Return the features of all images of a run, (n, D), under initial weights that had seen none of them.

    Label errors are searched with these features, because the trained weights may have memorised the labels. The result
    is None, and a line says why, if there are no such weights, too many images, or an unreadable image.
    """
    recipe, table = run.recipe, run.inputs.table
    if recipe.weights == "none":
        return None
    if len(table) > _MAX_SEARCHED:
        reason = f"there are more than {_MAX_SEARCHED:,} images"
        run.say(f"only held-out images are searched for label errors, because {reason}")
        return None
    source = weights_of(recipe)
    try:
        weights = run.blueprint.weights or inspect_source(source, use="training")
        pictures = weights.plan().pictures  # None for published weights, which are assumed to have seen none of them
        if pictures is not None:
            _, overlap = search_readable_images(PictureRecord.from_bytes(pictures, source), table)
            if overlap.seen():
                reason = "the weights had been trained on some of these images"
                run.say(f"note: only held-out images are searched for label errors: {reason}")
                return None
        store = run.features or FeatureStore(recipe, weights, run.photographs)
        return store.features(table, "looking for label errors")
    except VitkitError as error:  # an image has become unreadable
        run.say(f"note: label errors were not searched for: {error}")
        return None


def fit_calibration(run: Run, facts: ValidationFacts) -> None:
    """Calibrate the model on the validation images, and report the result.

    Without validation images, the out-of-fold predictions of the training images are used, if the run has them.
    Afterwards, `run.classifier` computes with the backend of `vitkit eval`.
    """
    table, recipe = run.table, run.recipe
    split, is_single = held_out_split(table), run.classifier.task == "single"
    images = len(table) if split == "all" else len(table.of_split(split))

    def with_backend(classifier: Classifier) -> Classifier:
        # As in `vitkit eval`, the number of images determines the backend.
        used = classifier.use(images=images, device=choose_device(recipe), features=is_single)
        used.pictures_kept = run.photographs
        return used

    classifier = with_backend(run.classifier)
    before = correction_of(classifier)
    predictions, evaluate_now = None, None
    if "val" in table.splits:
        evaluate_now = partial(evaluate, classifier, table, "val", partial(progress, table.task.calibration))
    elif run.out_of_fold is not None:
        predictions = run.out_of_fold
        evaluate_now = partial(predictions.evaluation, classifier)
        facts = replace(facts, seen={}, folds=predictions.folds)  # the predictions exclude images seen before
    fit = partial(_fit_unknown, run, predictions) if is_single else None
    run.calibration = calibrate_on(classifier, evaluate_now, facts, fit)
    # A backend contains a copy of the head. If the calibration has changed the head, another backend is needed.
    run.classifier = classifier if correction_of(classifier) == before else with_backend(classifier)
    if is_single:
        _say_calibration(run)
    else:
        _say_thresholds(run)


def _say_calibration(run: Run) -> None:
    if run.calibration is None:
        run.say("no validation images: the confidences are not calibrated (temperature 1)")
    correction = correction_of(run.classifier)
    if correction is not None and any(correction.shift):
        applied = f"{correction.strength:.2f} of the prior shift is applied"
        run.say(f"confidences are for classes {SHARES[correction.prior]}: {applied}")


def _say_thresholds(run: Run) -> None:
    classifier, calibration = run.classifier, run.calibration
    if calibration is None:
        run.say("no validation images to choose thresholds: every class has 0.5")
        return
    assert classifier.thresholds is not None
    images = calibration_images(calibration)
    run.say(f"temperature {classifier.temperature:.3f}, fitted on {len(calibration.labels)} {images}")
    pairs = list(zip(classifier.classes, classifier.thresholds, strict=True))
    shown = ", ".join(f"{name} {threshold:.3f}" for name, threshold in pairs[:10])
    run.say(f"thresholds by F1 on {images}: {shown}{', ...' if len(pairs) > 10 else ''}")


def _fit_unknown(
    run: Run, predictions: OutOfFold | None, classifier: Classifier, held_out: Sequence[str]
) -> Unknown | None:
    """Fit the score that recognises unknown images to the `held_out` images, and report what it misses.

    With out-of-fold predictions, each training image is compared with those of the other folds. This requires a head on
    a frozen backbone: no image has features of a trained backbone that was not trained on it.
    """
    started, table, seed = time.monotonic(), run.table, run.recipe.seed
    show_progress = partial(progress, "unknown images")
    if predictions is None:
        frozen = None if run.frozen_features is None else run.frozen_features.numpy()
        unknown = fit_to_images(classifier, table, held_out, frozen, seed=seed, progress=show_progress)
    elif run.recipe.method == "probe":
        row_of = {path: i for i, path in enumerate(predictions.paths)}
        rows = np.array([row_of[path] for path in held_out])
        labels, fold = predictions.labels[rows], predictions.fold[rows]
        files = [table.at(path) for path in held_out]
        unknown = fit_out_of_fold(classifier, files, labels, fold, seed=seed, progress=show_progress)
    else:
        reason = "no image has features of the final model that it was not trained on"
        run.say(f"unknown images cannot be recognised: {reason}")
        return None
    if unknown is not None:
        kind = VALIDATION if predictions is None else CROSS_VALIDATED
        images = plural(len(unknown.known), kind.removesuffix("s"), kind)
        line = f"unknown images are recognised by the distance to the nearest training images, with {images}"
        for limit in unknown.limits:
            low, high = limit.bounds
            shares = f"{limit.kind} {limit.share:.0%} (95 %: {low:.0%} to {high:.0%})"
            line += f"; if {unknown.accepted:.0%} of known images pass as known, so do these unknown ones: {shares}"
        run.say(f"{line} ({time.monotonic() - started:.0f} s)")
    return unknown


def calibration_images(calibration: Evaluation) -> str:
    """Return the term for the calibration images in messages, such as `validation images`."""
    return VALIDATION if calibration.split == "val" else CROSS_VALIDATED
