"""Calibrate and evaluate the model of a finished run, search for label errors, and write the report.

The saved model is loaded with the same backend and precision as in `vitkit eval RUN`, so that the figures of the run
and of the command are identical. The temperature and the thresholds are fitted on predictions of the same backend. The
search for label errors uses the weights that the run started from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from vitkit.classifier import Classifier
from vitkit.data.doctor.examine import caveats_of, read_findings
from vitkit.data.earlier_labels import LabelsBefore, labels_before_run
from vitkit.data.loading import BatchedImages, EvaluationImages
from vitkit.data.preprocess import Preprocess
from vitkit.data.seen import PictureRecord, look_up
from vitkit.data.split_file import groups_from_file, look_over, read_contents, roles_in_run
from vitkit.data.splits import SPLITS, held_out_split
from vitkit.data.storage import Place
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation import label_errors
from vitkit.evaluation.evaluator import (
    align,
    earlier_figures,
    evaluate_before,
    tested_images,
    with_labels,
)
from vitkit.evaluation.figures import (
    SHARES,
    all_figures,
    calibration_rise,
    chosen_on,
    describe,
    doubt_of,
    seen_of,
    unseen_part,
    without,
)
from vitkit.evaluation.headline import BY_FOLDS, describe_labels, headline_of
from vitkit.evaluation.intervals import fold_intervals
from vitkit.evaluation.label_errors import LabelError, from_features, in_words
from vitkit.evaluation.metrics import Evaluation, MultiEvaluation, grouped
from vitkit.evaluation.promises import trust_figures, trust_lines
from vitkit.explanation import can_explain
from vitkit.explanation.explanation import explain_mistake
from vitkit.inference.trust import CROSS_VALIDATED, VALIDATION
from vitkit.inference.unknown import Unknown
from vitkit.reporting import plots
from vitkit.reporting.evaluation_report import pictures_of, write_predictions, write_report
from vitkit.reporting.report_data import Explained, embed
from vitkit.system.files import without_place, write_json
from vitkit.system.progress import Say, progress
from vitkit.system.run_files import (
    EVALUATION,
    FINDINGS,
    GROUPS,
    LABEL_ERRORS,
    METRICS,
    PICTURES,
    PREDICTIONS,
    RECIPE,
    REPORT,
    SPLIT,
)
from vitkit.training.defaults import weights_of
from vitkit.training.finalize import (
    OutOfFold,
    ValidationFacts,
    calibrate_and_save,
    calibrate_by,
    correction_of,
    record_tests,
)
from vitkit.training.probe import Features, compute_features, frozen
from vitkit.training.recipe import Recipe, name_of, without_places
from vitkit.training.run_folder import ZERO_SHOT, Run, read_metrics
from vitkit.training.start import blueprint_of, choose_device, choose_precision, new_classifier
from vitkit.training.unknown import LabelledImages, describe_unknown, fit_out_of_fold, fit_to_images
from vitkit.weights import load
from vitkit.weights.loading import WeightsSource, look


def settle(
    folder: Path,
    classifier: Classifier,
    recipe: Recipe,
    table: ImageTable,
    say: Say,
    facts: ValidationFacts,
    frozen: Features | None = None,
) -> tuple[Classifier, Evaluation | None]:
    """Calibrate the saved model, and report the result.

    The calibration uses the validation images. Without validation images, it uses the out-of-fold predictions of the
    training images, if the run has such predictions.

    Args:
        folder: the run folder, whose model folder is changed.
        classifier: the classifier of that folder, not yet calibrated.
        recipe: the recipe of the run, which determines the device and precision.
        table: the split images of the run.
        say: called with each line of output.
        facts: information about the validation images.
        frozen: features of the images, computed with initial weights that had not seen the images; None if there are
            none.

    Returns:
        The classifier with its backend, and the evaluation of the calibration images after the calibration. The
        evaluation is None if there are no such images, or if none can be read.
    """
    split = held_out_split(table)
    images = len(table) if split == "all" else len(table.of_split(split))  # it decides the backend, as in `vitkit eval`
    is_single = classifier.task == "single"
    calibrated_classifier = classifier.use(images=images, device=choose_device(recipe), features=is_single)
    before = correction_of(calibrated_classifier)

    def updated(classifier: Classifier) -> Classifier:
        """Return the classifier, with a new backend if its head has changed: a backend contains a copy of the head."""
        if correction_of(classifier) == before:
            return classifier
        return classifier.use(images=images, device=choose_device(recipe), features=is_single)

    def fit_unknown(classifier: Classifier, held_out: Sequence[str]) -> Unknown | None:
        return _fit_unknown(updated(classifier), table, held_out, frozen, recipe.seed, say)

    predictions = None if "val" in table.splits else OutOfFold.read(folder)
    if predictions is None:
        watch = partial(progress, table.task.calibration)
        fit = fit_unknown if is_single else None
        seen = calibrate_and_save(folder, calibrated_classifier, table, watch, facts, fit)
    else:
        facts = replace(facts, seen={}, folds=predictions.folds)  # the predictions exclude images seen before
        by_folds = partial(_fit_unknown_by_folds, table=table, predictions=predictions, recipe=recipe, say=say)

        def fit_by_folds(classifier: Classifier, held_out: Sequence[str]) -> Unknown | None:
            return by_folds(updated(classifier), held_out)

        now = partial(predictions.evaluation, calibrated_classifier)
        seen = calibrate_by(folder, calibrated_classifier, now, facts, fit_by_folds if is_single else None)
    calibrated_classifier = updated(calibrated_classifier)
    (_tell if calibrated_classifier.thresholds is None else _tell_of_thresholds)(calibrated_classifier, seen, say)
    return calibrated_classifier, seen


def _fit_unknown(
    classifier: Classifier,
    table: ImageTable,
    held_out: Sequence[str],
    frozen: Features | None,
    seed: int,
    say: Say,
) -> Unknown | None:
    """Fit the score that recognises unknown images, and report the fractions of unknown images that it misses.

    Return None if no training image or no held-out image can be read.
    """
    started = time.monotonic()
    row_of = {} if frozen is None else {path: i for i, path in enumerate(frozen.paths)}
    number_of, place = align(table, classifier), {path: i for i, path in enumerate(table.paths)}

    def images(indices: Sequence[int]) -> LabelledImages:
        files = [table.file(i) for i in indices]
        labels = np.array([number_of[table.labels[i]] for i in indices], dtype=np.int64)
        rows = np.array([row_of.get(table.paths[i], -1) for i in indices], dtype=np.int64)
        return LabelledImages(lambda i: classifier.pixels(files[i]), labels, rows)

    train = [i for i, split in enumerate(table.splits) if split == "train"]
    unknown = fit_to_images(
        classifier,
        images(train),
        images([place[path] for path in held_out]),
        None if frozen is None else frozen.rows.numpy(),
        seed=seed,
        progress=partial(progress, "unknown images"),
    )
    if unknown is not None:
        say(f"{describe_unknown(unknown)} ({time.monotonic() - started:.0f} s)")
    return unknown


def _fit_unknown_by_folds(
    classifier: Classifier,
    held_out: Sequence[str],
    *,
    table: ImageTable,
    predictions: OutOfFold,
    recipe: Recipe,
    say: Say,
) -> Unknown | None:
    """Fit the score that recognises unknown images, by comparing each training image with those of the other folds.

    This requires a head on a frozen backbone. If the backbone was trained, it was trained on all of these images, and
    the result is None. The result is also None if no image can be read.
    """
    if recipe.method != "probe":
        say("unknown images cannot be recognised: no image has features of the final model that it was not trained on")
        return None
    started, row_of = time.monotonic(), {path: i for i, path in enumerate(predictions.paths)}
    rows = [row_of[path] for path in held_out]
    place = {path: i for i, path in enumerate(table.paths)}
    files = [table.file(place[path]) for path in held_out]
    labels = predictions.labels[rows]
    unknown = fit_out_of_fold(
        classifier,
        LabelledImages(lambda i: classifier.pixels(files[i]), labels),
        predictions.fold[rows],
        seed=recipe.seed,
        progress=partial(progress, "unknown images"),
    )
    if unknown is not None:
        say(f"{describe_unknown(unknown, CROSS_VALIDATED)} ({time.monotonic() - started:.0f} s)")
    return unknown


def _tell(classifier: Classifier, seen: Evaluation | None, say: Say) -> None:
    if seen is None:
        say("no validation images: the confidences are not calibrated (temperature 1)")
    standing = correction_of(classifier)
    if standing is not None and any(standing.shift):
        held = f"{standing.strength:.2f} of the prior shift is applied"
        say(f"confidences are for classes {SHARES[standing.prior]}: {held}")


def _tell_of_thresholds(classifier: Classifier, seen: Evaluation | None, say: Say) -> None:
    assert classifier.thresholds is not None
    if seen is None:
        say("no validation images to choose thresholds: every class has 0.5")
        return
    say(f"temperature {classifier.temperature:.3f}, fitted on {len(seen.labels)} {_kind(seen)}")
    few = zip(classifier.classes[:10], classifier.thresholds, strict=False)
    named = ", ".join(f"{name} {threshold:.3f}" for name, threshold in few)
    say(f"thresholds by F1 on {_kind(seen)}: {named}{', ...' if len(classifier.classes) > 10 else ''}")


def _kind(seen: Evaluation) -> str:
    """Return the term for the calibration images in messages, such as `validation images`."""
    return VALIDATION if seen.split == "val" else CROSS_VALIDATED


def calibrated(numbers: Mapping[str, Any], seen: Evaluation, evaluation: Evaluation) -> str:
    """Describe in one line how the temperature changed the calibration error.

    Args:
        numbers: the figures of an evaluation (`evaluation.figures`).
        seen: the evaluation of the images that the temperature was fitted on.
        evaluation: the evaluation that `numbers` belongs to.
    """
    rise, rose = calibration_rise(evaluation, numbers), ""
    if rise is not None:
        change = "no more" if rise.is_chance else "more"
        rose = f"; it rose by {rise.by:.4f}, {change} than chance does with {len(evaluation.labels)} images"
    return (
        f"temperature {numbers['temperature']:.3f}, fitted on {len(seen.labels)} {_kind(seen)}: calibration error "
        f"{numbers['ece_before_temperature']:.4f} -> {numbers['ece']:.4f} on {evaluation.split} images{rose}"
    )


_EXPLAINED = 12  # maximum number of explained mistakes


def draw_classes(folder: Path, table: ImageTable) -> None:
    """Write a figure of the number of images per class and split (classes.png)."""
    splits = {name: table.of_split(name) for name in SPLITS if name in table.splits}
    counts = {name: images_of_split.counts() for name, images_of_split in splits.items()}
    plots.save_figure(plots.class_counts(counts, table.classes), folder / PICTURES["Images per class"])


_SHOWN = 32  # maximum number of images in train_batch.png


def draw_batch(folder: Path, train: ImageTable, preprocess: Preprocess, images: Tensor, rows: Sequence[int]) -> None:
    """Write a figure of the first images of a training batch (train_batch.png).

    Args:
        folder: the folder of the run.
        train: the training images.
        preprocess: the model's preprocessing.
        images: the augmented images of the batch, (B, C, height, width).
        rows: the row of each image in `train`.
    """
    pictures = [preprocess.picture_of(image.numpy()) for image in images[:_SHOWN].float().cpu()]
    titles = [train.name_of(row) or "none" for row in rows[:_SHOWN]]
    sheet = plots.contact_sheet(pictures, titles, "Training images as the model sees them, augmented")
    plots.save_figure(sheet, folder / PICTURES["What the model sees in training"])


def draw_some(folder: Path, table: ImageTable, images: Dataset[Any], preprocess: Preprocess, seed: int) -> None:
    """Write the same figure for a run without batches: of training images that are drawn at random."""
    train = table.of_split("train")
    rows = np.random.default_rng(seed).permutation(len(train))[:_SHOWN].tolist()
    draw_batch(folder, train, preprocess, torch.stack([images[row][0] for row in rows]), rows)


class DrawFirstBatch:
    """A callback that draws the first batch on which a run trains, before images are mixed."""

    def __init__(self, folder: Path, data: BatchedImages, preprocess: Preprocess) -> None:
        self._folder, self._data, self._preprocess = folder, data, preprocess

    def draw_first_batch(self, images: Tensor) -> None:
        """Draw the images of this process, (B, C, height, width)."""
        rows, train = self._data.rows_of_batch(0, 0), self._data.table.of_split("train")
        draw_batch(self._folder, train, self._preprocess, images, rows)


class Reported(NamedTuple):
    """The results of a run.

    Attributes:
        numbers: the content of evaluation.json.
        evaluation: the evaluation of the held-out images that the initial weights had not seen; None if the weights had
            seen all of them.
    """

    numbers: dict[str, Any]
    evaluation: Evaluation | None


def report(
    folder: Path,
    recipe: Recipe,
    table: ImageTable,
    say: Say,
    doubts: Sequence[LabelError] | None = None,
    frozen: Features | None = None,
) -> Reported:
    """Calibrate and evaluate the saved model, and write its figures and its report into the run folder.

    Args:
        folder: the run folder, whose model folder is changed.
        recipe: the recipe of the run.
        table: the split images of the run.
        say: called with each line of output.
        doubts: the likely label errors in all images (see `doubt_labels`). If it is None, label errors are searched for
            only in the held-out images, with the predictions of the trained model.
        frozen: features of the images, computed with initial weights that had not seen the images; None if there are
            none.
    """
    held_out: list[str] = [name for name in ("val", "test") if name in table.splits] or ["all"]
    table, changes = look_over(table, read_contents(folder / SPLIT), held_out)
    if changes:
        say(f"problem: {changes.text}; they are left out")
    split, groups = held_out_split(table), groups_from_file(folder / GROUPS)
    findings, classifier = read_findings(folder / FINDINGS), load(folder)
    record = None if classifier.pictures is None else PictureRecord.from_bytes(classifier.pictures, folder)
    roles = None if record is None else roles_in_run(folder / SPLIT, record)
    facts = ValidationFacts(
        chosen_on("val", recipe.to_dict(), table.task), groups, {} if roles is None else seen_of(roles, "val")
    )
    classifier, seen = settle(folder, classifier, recipe, table, say, facts, frozen)
    chosen = chosen_on(split, recipe.to_dict(), table.task)
    predictions = OutOfFold.read(folder) if split == "all" else None
    tests, earlier = None if predictions is None else predictions.tests(), labels_before_run(folder, table)
    if tests is None:
        evaluation = evaluate_before(classifier, table, split, earlier, partial(progress, "evaluating"))
    else:
        evaluation = _test_by_folds(tests, classifier, table, earlier)
    evaluation = replace(grouped(evaluation, groups), chosen=chosen)
    seen_before = None if roles is None else seen_of(roles, evaluation.split)
    about = classifier.computation | changes.to_dict() | earlier_figures(evaluation, earlier, seen_before)
    about |= trust_figures(classifier, evaluation, seen_before, is_of_run=True)
    about |= {"problems": problems} if (problems := caveats_of(findings)) else {}
    numbers = all_figures(evaluation, seen_before, classifier.provenance, about, doubt_of(record))
    if predictions is not None and evaluation.split == BY_FOLDS:
        numbers = _figures_by_folds(numbers, predictions, evaluation, classifier)
    if (trained := choose_precision(recipe.precision, recipe.device)) != classifier.precision:
        say(f"trained in {trained}, evaluated in {classifier.precision}, as `vitkit predict` does on this machine")
    spoilt, relabelled = describe(numbers), describe_labels(numbers)
    for line in filter(None, (relabelled, spoilt)):
        say(f"note: {line}")
    write_predictions(folder / PREDICTIONS, evaluation)
    if evaluation.split == "test":
        record_tests(folder, classifier, evaluation, seen_before)
    counted = unseen_part(evaluation, seen_before)
    evaluation = evaluation if counted is None else counted
    if seen is not None and numbers.get("ece") is not None:
        say(calibrated(numbers, seen, evaluation))
    for line in trust_lines(numbers):
        say(line)
    if doubts is None:
        current = with_labels(evaluation, evaluation.since)  # it has the classes of earlier labels, too
        of_val = seen and seen.with_classes(current.classes[len(seen.classes) :])
        doubts = label_errors.from_predictions(_held_out(current, of_val))
        if doubts:
            say(f"{label_errors.in_words(doubts)} (among held-out images, according to the model itself)")
    numbers["label_errors"] = label_errors.summary(doubts)
    label_errors.write_label_errors(folder / LABEL_ERRORS, doubts)
    rows = read_metrics(folder / METRICS)
    best, is_mixed = classifier.provenance["metrics"]["epoch"], bool(recipe.mixup or recipe.cutmix)
    plots.save_figure(plots.curves(rows, best, is_mixed=is_mixed), folder / PICTURES["Curves"])
    laid_out = embed(classifier, evaluation, table.place, partial(progress, "laying out images"))
    for caption, draw in pictures_of(evaluation, laid_out).items():
        plots.save_figure(draw(), folder / PICTURES[caption])
    write_json(folder / EVALUATION, numbers)
    write_report(
        folder / REPORT,
        title=f"{name_of(recipe)} on {without_place(table.name)}",
        evaluation=evaluation,
        numbers=numbers,
        root=table.place,
        facts=_facts(classifier, record, recipe, table, rows),
        findings=[
            *([f"note: {relabelled}"] if relabelled else []),
            *([f"problem: {spoilt}"] if spoilt else []),
            *map(str, findings),
        ],
        pictures=pictures_for_page(folder, PICTURES, rows),
        laid_out=laid_out,
        doubts=doubts,
        recipe=without_places(recipe).to_toml(),
        explained=_explain_mistakes(classifier, evaluation, table.place),
    )
    return Reported(numbers, counted)


def _test_by_folds(tests: Evaluation, classifier: Classifier, table: ImageTable, earlier: LabelsBefore) -> Evaluation:
    """Evaluate the predictions for the training images, each by a head that was fitted without the image's fold.

    An image whose earlier class no longer exists has no fold. It counts as a mistake, whatever the final head predicts.

    Args:
        tests: the evaluation of the nested cross-validation.
        classifier: the classifier with the final head.
        table: the images of the run.
        earlier: the labels that the images had in earlier runs.
    """
    plain = replace(classifier, trust=None)  # unfamiliarity is undefined for training images
    rows = tested_images(table, "all", earlier)
    place = {path: i for i, path in enumerate(rows.paths)}
    outcomes: dict[str, npt.NDArray[np.float32] | str] = dict(zip(tests.paths, tests.probabilities, strict=True))
    others = [path for path in rows.paths if path not in outcomes]
    files = (rows.file(place[path]) for path in others)
    outcomes |= zip(others, (outcome for _, outcome in plain.assessments(files)), strict=True)
    evaluation = evaluate_before(plain, table, "all", earlier, outcomes=outcomes)
    return replace(evaluation, split=BY_FOLDS, temperature=1.0)


def _figures_by_folds(
    numbers: Mapping[str, Any], predictions: OutOfFold, evaluation: Evaluation, classifier: Classifier
) -> dict[str, Any]:
    """Adapt the figures of an evaluation to a test by nested cross-validation.

    The confidence intervals are computed over the folds. The temperature is that of the classifier. The calibration
    error before the temperature is that of the nested cross-validation without its temperatures.

    Args:
        numbers: the figures of `evaluation`, which are not changed in place.
        predictions: the out-of-fold predictions of the run, including those of the nested cross-validation.
        evaluation: the evaluation of the nested cross-validation.
        classifier: the calibrated classifier.
    """
    untempered = predictions.tests(is_calibrated=False)
    assert untempered is not None
    fold_of = dict(zip(predictions.paths, predictions.fold.tolist(), strict=True))
    folds = [fold_of.get(path, i % predictions.folds) for i, path in enumerate(evaluation.paths)]
    parts = [
        without(evaluation, {path: "" for path, number in zip(evaluation.paths, folds, strict=True) if number != k})
        for k in range(predictions.folds)
    ]
    bounds = fold_intervals([part for part in parts if part is not None])
    changed = {
        **numbers,
        "temperature": classifier.temperature,
        "ece_before_temperature": untempered.ece,
        "intervals_95": {name: list(bounds.get(name, ends)) for name, ends in numbers["intervals_95"].items()},
    }
    return {**changed, "headline": headline_of(changed).to_dict()}


def pictures_for_page(folder: Path, captions: Iterable[str], rows: Sequence[Mapping[str, float]]) -> dict[str, bytes]:
    """Return the content of the picture files in a run's folder that the report shows, by caption.

    Args:
        folder: the run's folder.
        captions: some of the keys of `PICTURES`. Files that do not exist are left out of the result.
        rows: the rows of metrics.csv. With a single row, the picture of the curves is left out.
    """
    files = {caption: folder / PICTURES[caption] for caption in captions if caption != "Curves" or len(rows) > 1}
    return {caption: file.read_bytes() for caption, file in files.items() if file.is_file()}


def _explain_mistakes(classifier: Classifier, evaluation: Evaluation, root: Place) -> list[Explained]:
    """Explain the worst mistakes of the model.

    The result is empty for multi-label data, after a test by cross-validation, and for models that cannot be explained.
    """
    is_unexplained = isinstance(evaluation, MultiEvaluation) or evaluation.split == BY_FOLDS
    chosen = [] if is_unexplained else evaluation.mistakes(_EXPLAINED)
    chosen = [i for i in chosen if evaluation.label_of(i) in classifier.classes]
    if not can_explain(classifier.model):
        return []
    plain, explained = replace(classifier, runner=None), []  # the maps need the model's gradients
    for done, i in enumerate(chosen, start=1):
        progress("explaining mistakes", done, len(chosen))
        true, predicted = (evaluation.classes[index[i]] for index in (evaluation.labels, evaluation.predicted))
        pictures = explain_mistake(plain, root / evaluation.paths[i], true, predicted)
        if not isinstance(pictures, str):  # it may have become unreadable
            explained.append(Explained(i, f"{true}, taken for {predicted}", pictures))
    return explained


def _held_out(evaluation: Evaluation, seen: Evaluation | None) -> list[Evaluation]:
    """Return those of the two evaluations that are of the validation or the test split.

    If both are of the same split, return only `evaluation`.
    """
    both = {part.split: part for part in (seen, evaluation) if part is not None}
    return [part for split, part in both.items() if split in ("val", "test")]


def _kept(recipe: Recipe, table: ImageTable, epoch: int, *, is_calibrated: bool) -> str:
    """Describe which weights were saved as the model, and how they were chosen."""
    has_val = "val" in table.splits
    if epoch == ZERO_SHOT:
        return "zero-shot: no epoch was better on the val images"
    if recipe.method == "probe" and has_val:
        return "a head, its penalty chosen by the log loss on val images"
    if recipe.method == "probe":
        how = "its penalty chosen by a cross-validation of the training images"
        return f"a head, {how}" if is_calibrated else "a head with the middle penalty"
    return f"the best by {recipe.monitor}" if has_val and recipe.keep != "last" else "the last"


def _spent(rows: list[dict[str, float]]) -> str:
    if not rows or "seconds" not in rows[-1]:  # metrics.csv was lost, or edited
        return ""
    epochs = sum(row["epoch"] > ZERO_SHOT for row in rows)
    return f"{epochs} epochs in {rows[-1]['seconds']:.0f} s; "


def _zero_shot(rows: list[dict[str, float]]) -> dict[str, str]:
    """Describe the validation figures before any training, if the head was made from the class names.

    The result is empty if there are no such figures.
    """
    lines = [
        f"{name} {row[name]:.4f}"
        for row in rows
        for name in ("val_loss", "val_acc", "val_map")
        if row["epoch"] == ZERO_SHOT and name in row
    ]
    return {"zero-shot": f"{', '.join(lines)} with the class names alone, before any training"} if lines else {}


def _unseen(record: PictureRecord | None) -> dict[str, str]:
    """Return a row for the report that says whether all images that the weights were trained on are recorded.

    The result is empty without a record.
    """
    if record is None:
        return {}
    if record.is_whole:
        return {"seen before": "all images that the weights were ever trained on are recorded in pictures.npz"}
    return {"seen before": "not known: what the first weights were trained on is not recorded"}


def _facts(
    classifier: Classifier,
    record: PictureRecord | None,
    recipe: Recipe,
    table: ImageTable,
    rows: list[dict[str, float]],
) -> dict[str, str]:
    config, preprocess = classifier.model.config, classifier.preprocess
    parameters = sum(parameter.numel() for parameter in classifier.model.parameters())
    splits = ", ".join(f"{len(table.of_split(name))} {name}" for name in SPLITS)
    h, w = config.image_size
    pixels = (preprocess.fit, preprocess.interpolation, f"mean {preprocess.mean}", f"std {preprocess.std}")
    kept = classifier.provenance["metrics"]["epoch"]
    chosen = _kept(recipe, table, kept, is_calibrated=classifier.trust is not None)
    return {
        "model": f"{name_of(recipe)}: {parameters:,} parameters, {config.in_words}",
        "data": f"{table.root.name}: {splits} images, {len(table.classes)} classes",
        "pixels": ", ".join((f"{h}x{w}", *pixels)),
        "training": f"{_spent(rows)}kept: epoch {kept + 1}, {chosen}",
        **_zero_shot(rows),
        **_unseen(record),
        "computed": classifier.computed,
        "seed": str(recipe.seed),
        "data hash": classifier.provenance["data_hash"],
        "made with": ", ".join(f"{name} {number}" for name, number in classifier.provenance["versions"].items()),
    }


MOST = 20_000  # images; more would take too much time and memory


def doubt_labels(
    run: Run, recipe: Recipe, table: ImageTable, known: Features | None, weights: WeightsSource | None = None
) -> tuple[list[LabelError] | None, Features | None]:
    """Find likely label errors in all images of a run, the most likely first.

    The search uses the initial weights of the run, because the trained weights may have memorised the labels. If the
    initial weights had seen some of the images, the search uses the latest earlier weights that had seen no image (see
    `unspoilt_weights`).

    Args:
        run: the run, for messages.
        recipe: the recipe of the run.
        table: all images.
        known: the features that `probe.fit_head` has already computed; None if there are none.
        weights: the weights that the run started from, if they have been opened already; otherwise None.

    Returns:
        The label errors, and the features of all images that were computed for the search. Both are None if there are
        no suitable weights, if there are more than `MOST` images, or if an image cannot be read.
    """
    if recipe.weights == "none":
        return None, None
    if len(table) > MOST:
        run.say(f"only held-out images are searched for label errors, because there are more than {MOST:,} images")
        return None, None
    started = time.monotonic()
    precision = choose_precision(recipe.precision, recipe.device)
    try:
        begun = frozen(recipe)
        source = unspoilt_weights(recipe, table, weights)
        if source is None:
            text = "the weights had been trained on the images, and earlier weights are not available"
            run.say(f"note: only held-out images are searched for label errors: {text}")
            return None, None
        if recipe.head_from == "names":
            known = None  # a head of the class names reads other features than `frozen`
        if source != weights_of(recipe):
            run.say(f"label errors are searched with {source}, which had not seen these images")
            begun, known, weights = begun.replace(weights=source), None, None
        classifier = new_classifier(blueprint_of(begun, table.classes, weights), table, "")
        watch = partial(progress, "looking for label errors")
        features = _features(table, known, classifier, recipe, precision, watch)
    except VitkitError as error:  # an image has become unreadable
        run.say(f"note: label errors were not searched for: {error}")
        return None, None
    targets = table.task.targets(torch.tensor(table.labels), table.set_targets())
    doubts = from_features(table, features, targets.to(torch.int64), recipe.seed)
    seconds = time.monotonic() - started
    about = f"of {len(table)} images, frozen features in {precision}, {seconds:.0f} s"
    run.say(f"{in_words(doubts)} ({about})")
    return doubts, Features(table.paths, features)


def _features(
    table: ImageTable,
    known: Features | None,
    begun: Classifier,
    recipe: Recipe,
    precision: str,
    progress: Callable[[int, int], None],
) -> Tensor:
    """Return the features of all n images, (n, D). Only those that are not in `known` are computed."""

    def compute(images: ImageTable) -> Tensor:
        plain_images = EvaluationImages(images, begun.preprocess)
        return compute_features(begun.model, plain_images, recipe, precision, progress)[0]

    if known is None:
        return compute(table)
    place = {path: i for i, path in enumerate(known.paths)}
    there = [i for i, path in enumerate(table.paths) if path in place]
    rest = [i for i, path in enumerate(table.paths) if path not in place]
    features = torch.empty(len(table), known.rows.shape[1])
    features[there] = known.rows[[place[table.paths[i]] for i in there]]
    if rest:
        features[rest] = compute(table.take(rest))
    return features


def unspoilt_weights(recipe: Recipe, table: ImageTable, weights: WeightsSource | None = None) -> str | None:
    """Return the latest weights in the ancestry of a run that had seen none of the run's images.

    The ancestry consists of the initial weights of the run, the initial weights of the earlier run that trained them,
    and so on. Weights without a picture record, such as published weights, are assumed to have seen none of the images.

    Returns:
        The name or path of the weights; None if there are no such weights, or if they are no longer available.
    """
    source, passed = weights_of(recipe), set[str]()
    while source not in passed:
        try:
            plan = (weights or look(source, use="training")).plan()
        except VitkitError:
            return None
        if plan.pictures is None:
            return source
        _, overlap = look_up(PictureRecord.from_bytes(plan.pictures, source), table)
        if not overlap.seen():
            return source
        passed.add(source)
        before = _weights_before(source, plan.provenance)
        if before is None:
            return None
        source, weights = before, None
    return None


def _weights_before(source: str, provenance: Mapping[str, Any]) -> str | None:
    """Return the initial weights of the run that trained a model. Return None if they are unknown or random."""
    recipe = Path(source) / RECIPE
    if recipe.is_file():
        began = Recipe.load(recipe)
        return None if began.weights == "none" else weights_of(began)
    before = provenance.get("weights")
    name_before = before.get("source") if isinstance(before, Mapping) else None
    return name_before if isinstance(name_before, str) else None
