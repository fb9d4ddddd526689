"""Carry out a run from beginning to end: resolve the request, train and evaluate the model, and write the report.

`drive` starts the processes, has the main process write the run folder, and has all processes train. It carries out
every kind of run: `train` on image files, `train_on` on datasets of the user, and pre-training. `cross_validate` tests
each image once, with a model that was not trained on the image.

A dataset of the user is a Python object that returns (image, label) by index. As it has no files, no files are checked
and no images are split. All items are read once before the training to get the labels. Validation images that are also
training images are excluded from the figures. The figures mention that the model was selected on the validation images.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vitkit
from vitkit.classifier import Classifier
from vitkit.data.corrections import read_proposals
from vitkit.data.doctor.examine import Finding, find_twins, of_splits
from vitkit.data.loading import BatchedImages, TrainingImages
from vitkit.data.preprocess import Preprocess
from vitkit.data.preprocess import describe as described
from vitkit.data.seen import PictureRecord, exposures, find_overlap, make_record
from vitkit.data.split_file import (
    groups_from_file,
    groups_to_list,
    images_of_run,
    move_run,
    refuse_changed,
    roles_in_run,
    split_to_dict,
)
from vitkit.data.splits import SPLITS, check_trainable, held_out_split
from vitkit.data.table import ImageTable
from vitkit.data.user_datasets import NAME, Datasets, EvaluationOf, Survey, TrainingOf, survey
from vitkit.errors import VitkitError
from vitkit.evaluation import registry
from vitkit.evaluation.evaluator import evaluate_before
from vitkit.evaluation.figures import (
    DOUBTS,
    all_figures,
    by_name_in_words,
    chosen_on,
    counted_part,
    describe,
    seen_of,
    unseen_part,
)
from vitkit.evaluation.headline import headline_of
from vitkit.evaluation.intervals import Interval, fold_intervals
from vitkit.evaluation.metrics import Evaluation, grouped, pooled
from vitkit.evaluation.registry import read_figures
from vitkit.model_folder import RECORD, WEIGHTS
from vitkit.reporting import plots
from vitkit.reporting.evaluation_report import pictures_of, write_report
from vitkit.system.files import from_json, read_appended, read_json, write_bytes, write_json, write_text
from vitkit.system.progress import Say, progress, reporting_to, silent
from vitkit.system.run_files import (
    CLASS_INDICES,
    EVALUATION,
    FINDINGS,
    FOLDS,
    GROUPS,
    LABELS,
    METRICS,
    OUT_OF_FOLD,
    PICTURES,
    PREPROCESS,
    PRETRAINING,
    PROPOSALS,
    RECIPE,
    REPORT,
    SELECTION,
    SPLIT,
    check_run_folder,
    fold_folder,
)
from vitkit.text.arguments import is_number
from vitkit.text.cells import interval_text, plural
from vitkit.text.pages import table, write_page
from vitkit.training.averages import mix_with_start
from vitkit.training.defaults import check_effects, complete, weights_of
from vitkit.training.distributed import ProcessGroup, assemble, check_team, describe_team
from vitkit.training.final_model import keep_zero_shot, plan_of_final, settle_final
from vitkit.training.finalize import OutOfFold, ValidationFacts, calibrate_by, correction_of
from vitkit.training.fine_tune import learn
from vitkit.training.lineage import (
    SplitImages,
    ancestry_of,
    contents_of,
    note_shared_tests,
    record_after,
)
from vitkit.training.loggers import check_watchers
from vitkit.training.probe import Features, HeadImages, fit_head, head_images
from vitkit.training.recipe import Recipe, Request, name_of, without_places
from vitkit.training.report import doubt_labels, draw_data, pictures_for_page, report
from vitkit.training.request import NONE, Extensions, load_of_run
from vitkit.training.run_folder import (
    PATIENCE,
    Observers,
    Run,
    check_overwritten,
    check_place,
    check_restartable,
    cleanup_on_failure,
    clear,
    discard_if_empty,
    holds_run,
    lock_run,
    new_run_folder,
    read_metrics,
    recipe_of_restart,
    reporting,
    reserve_folder,
    start_over,
    write_request,
)
from vitkit.training.selection import choose_and_resolve, resolve_method
from vitkit.training.start import (
    Blueprint,
    augment_of,
    blueprint_of,
    choose_device,
    choose_workers,
    digest_of_backbone,
    new_classifier,
    resolve,
    resolve_model,
)
from vitkit.training.teacher import Teacher, teacher_of_run
from vitkit.weights import load
from vitkit.weights.loading import WeightsSource
from vitkit.weights.preprocessing import preprocess_of


def fit_and_report(run: Run, recipe: Recipe, blueprint: Blueprint | None = None) -> Evaluation | None:
    """Train and evaluate one classifier, starting from the files in the run folder.

    Args:
        run: the run, whose folder contains the recipe and the split.
        recipe: the complete recipe.
        blueprint: the description of the model (`start.Blueprint`); None if this process has not created it yet.

    Returns:
        The evaluation of the held-out images that the initial weights had not seen; None if the weights had seen all of
        them.
    """
    table, known, weights = _fit(run, recipe, blueprint)
    with reporting(run):
        return _conclude(run, recipe, table, known, weights)


def _fit(
    run: Run, recipe: Recipe, blueprint: Blueprint | None
) -> tuple[ImageTable, Features | None, WeightsSource | None]:
    """Train a model, and return the images of the run, their frozen features, and the initial weights.

    The features are None unless this process has fitted a head to frozen features. The weights are None if the training
    starts from random weights.
    """
    table = images_of_run(run.folder / SPLIT)
    data_hash = from_json((run.folder / SPLIT).read_text(encoding="utf-8"))["hash"]
    model = run.team.main_first(lambda: blueprint or blueprint_of(recipe, table.classes))
    classifier, teacher = before_training(run, model, table, data_hash)
    record = run.folder / RECORD
    classifier.pictures = record.read_bytes() if record.is_file() else None
    if run.team.is_main:
        augment = augment_of(recipe, run.extensions.augment)
        images = TrainingImages(table.of_split("train"), classifier.preprocess, augment, recipe.seed)
        draw_data(run.folder, table, images, recipe.seed)
    counts = ", ".join(f"{table.splits.count(name)} {name}" for name in SPLITS)
    run.say(f"{len(table.classes)} classes; images: {counts}")
    known: Features | None = None
    if run.until == 0:
        keep_zero_shot(run, classifier)
    elif recipe.method == "probe":
        if run.team.is_main and not (run.folder / WEIGHTS).is_file():  # a resumed run may have its head already
            images_of_head = head_images(recipe, table, classifier, run.extensions.augment)
            known = fit_head(run, recipe, table, classifier, images_of_head, _seen_before(run, model))
    else:
        learn(run, recipe, table, classifier, teacher)
    return table, known, model.weights


def _seen_before(run: Run, blueprint: Blueprint) -> frozenset[str]:
    """Return the paths of the images on which the initial weights had been trained or selected."""
    if blueprint.pictures is None:
        return frozenset()
    roles = roles_in_run(run.folder / SPLIT, PictureRecord.from_bytes(blueprint.pictures, run.folder))
    return frozenset(path for path, role in roles.items() if role in ("train", "val"))


def before_training(
    run: Run, blueprint: Blueprint, table: ImageTable, data_hash: str
) -> tuple[Classifier, Teacher | None]:
    """Create the classifier to train and its teacher, and print notes about both.

    The teacher is None if the recipe names none.
    """
    recipe = blueprint.recipe
    classifier = run.team.main_first(lambda: new_classifier(blueprint, table, data_hash))
    if recipe.weights != "none":
        classifier.provenance["weights"]["sha256"] = digest_of_backbone(classifier.model)
    if run.extensions.names():
        classifier.provenance["extensions"] = run.extensions.names()
        run.say("; ".join(f"{part}: {name}" for part, name in run.extensions.names().items()))
    for caveat in [] if classifier.report is None else classifier.report.caveats(has_new_head=True):
        run.say(f"note: {caveat}")
    for resized in () if classifier.report is None else classifier.report.resized:
        if resized.name not in ("pos_embed", "pos_embed.x", "pos_embed.y"):
            was, now = ("x".join(map(str, shape)) for shape in (resized.old, resized.new))
            size = "x".join(map(str, classifier.preprocess.size))
            run.say(f"note: patch embedding resized from {was} to {now} pixels ({resized.convention}) at {size} pixels")
    if recipe.teacher is None:
        return classifier, None
    teacher = teacher_of_run(run.folder, recipe.teacher, classifier.classes, classifier.preprocess.size)
    classifier.provenance["teacher"] = {"name": without_places(recipe).teacher, "sha256": teacher.sha256}
    for note in teacher.notes:
        run.say(f"note: {note}")
    return classifier, teacher


def _conclude(
    run: Run, recipe: Recipe, table: ImageTable, known: Features | None, weights: WeightsSource | None
) -> Evaluation | None:
    """Calibrate and evaluate the trained model, and write the report."""

    def evaluate() -> tuple[dict[str, Any], Evaluation | None]:
        doubts, frozen = doubt_labels(run, recipe, table, known, weights)
        return report(run.folder, recipe, table, run.say, doubts, frozen)

    numbers, evaluation = run.team.broadcast_from_main(evaluate)
    loss = "" if numbers["loss"] is None else f" ({numbers['loss']:.4f} log loss)"
    run.say(f"{headline_of(numbers).words}{loss}; report: {run.folder / REPORT}")
    return evaluation


_SHOWN = ("accuracy", "balanced_accuracy", "macro_f1", "hamming_loss", "loss")  # the figures that the report shows


@dataclass(frozen=True)
class FoldFigure:
    """A figure of a cross-validation.

    Attributes:
        mean: the figure, computed over the test images of all folds together; None if there are no images.
        interval: the 95 % confidence interval (see `fold_intervals`); None if the figure has no interval.
    """

    mean: float | None
    interval: Interval | None

    def to_dict(self) -> dict[str, Any]:
        """Return the figure as a dictionary for JSON."""
        return {"mean": self.mean, "interval_95": None if self.interval is None else list(self.interval)}

    def __str__(self) -> str:
        if self.mean is None:
            return "-"
        if self.interval is None:
            return f"{self.mean:.4f}"
        return f"{self.mean:.4f} (95 %: {interval_text(self.interval, 4)})"


def figures_of_folds(evaluations: Sequence[Evaluation]) -> dict[str, FoldFigure]:
    """Compute the figures of a cross-validation, by name, from the evaluations of its folds.

    Without evaluations, the result is only an accuracy whose value is None.
    """
    if not evaluations:
        return {"accuracy": FoldFigure(None, None)}
    whole, bounds = pooled(evaluations), fold_intervals(evaluations)
    numbers = registry.summary(whole, whole.task.name)
    return {name: FoldFigure(value, bounds.get(name)) for name, value in numbers.items()}


def cross_validate(run: Run, recipe: Recipe, blueprint: Blueprint | None = None) -> None:
    """Train and test all folds that are not finished yet, and train the final model on all images.

    The results of all folds are written to folds.json, and to report.html when the final model is finished.

    Args:
        run: the run, whose folder contains the folders of the folds.
        recipe: the complete recipe.
        blueprint: the description of the model (`start.Blueprint`), which all folds share; None if this process has not
            created it yet.

    Raises:
        VitkitError: the folder of a fold or the images of a finished fold are missing.
    """
    assert recipe.folds is not None
    folders = [fold_folder(run.folder, number) for number in range(recipe.folds)]
    trained: dict[Path, Evaluation | None] = {}
    for number, folder in enumerate(folders, start=1):
        if not (folder / RECIPE).is_file():
            raise VitkitError(f"{folder} contains no run; start the cross-validation again with --force")
        if not (folder / REPORT).is_file():
            run.say(f"fold {number} of {recipe.folds}")
            recipe_of_fold = recipe.replace(folds=None)
            model = None if blueprint is None else replace(blueprint, recipe=recipe_of_fold)
            trained[folder] = fit_and_report(replace(run, folder=folder, whole=run.folder), recipe_of_fold, model)
    results = [read_figures(folder / EVALUATION) for folder in folders]
    has_final = (run.folder / SPLIT).is_file()  # cross-validations of earlier versions have none
    figures: dict[str, FoldFigure] = {}
    if run.team.is_main:
        needs_predictions = has_final and recipe.method != "probe" and not (run.folder / OUT_OF_FOLD).is_file()
        figures = {} if trained or needs_predictions else _known(run.folder / FOLDS)
        if not figures:
            evaluations = [
                trained[folder] if folder in trained else _evaluated_again(folder, figure, recipe)
                for folder, figure in zip(folders, results, strict=True)
            ]
            figures = figures_of_folds([figure for figure in evaluations if figure is not None])
            if has_final and recipe.method != "probe":
                _write_predictions(run, folders, evaluations)
        numbers = {name: figure.to_dict() for name, figure in figures.items()}
        write_json(run.folder / FOLDS, {**numbers, "folds": results})
        if (unlearned := sum("zero_shot" in figure for figure in results)) > 0:
            run.say(f"note: in {unlearned} of {recipe.folds} folds the model is the zero-shot one: no epoch was better")
        run.say(headline_of({**numbers, "folds": results}).words)
    final = _fit_final(run, recipe, folders, blueprint) if has_final else None
    if run.team.is_main:
        stored: dict[str, Any] = {name: figure.to_dict() for name, figure in figures.items()}
        stored |= {"folds": results} if final is None else {"folds": results, "final": final}
        write_json(run.folder / FOLDS, stored)
        _write_report(run.folder / REPORT, recipe, results, figures, final)
        run.say(f"{headline_of(stored).words}; report: {run.folder / REPORT}")


def _write_predictions(run: Run, folders: Sequence[Path], evaluations: Sequence[Evaluation | None]) -> None:
    """Write the predictions of the folds' models for their test images, which will calibrate the final model."""
    pairs = [(item, folder) for item, folder in zip(evaluations, folders, strict=True) if item is not None]
    if pairs:
        model = load(folders[0]).model
        OutOfFold.of_folds([item for item, _ in pairs], [folder for _, folder in pairs], model).write(run.folder)


def _fit_final(run: Run, recipe: Recipe, folders: Sequence[Path], blueprint: Blueprint | None) -> dict[str, Any] | None:
    """Train the final model on all images, and return its entry in folds.json."""
    plan = plan_of_final(recipe, folders)
    images = images_of_run(run.folder / SPLIT)
    run.say(plan.words(len(images)))
    model = None if blueprint is None else replace(blueprint, recipe=plan.recipe)
    table, _, _ = _fit(replace(run, until=plan.epochs), plan.recipe, model)

    def settle() -> dict[str, Any]:
        about = settle_final(run, plan, table)
        return about if plan.epochs is None else {**about, "epochs": plan.epochs, "best_epochs": list(plan.best)}

    with reporting(run):
        return run.team.broadcast_from_main(settle)


def _known(file: Path) -> dict[str, FoldFigure]:
    """Read the figures in folds.json. The result is empty if the file is missing, damaged, or in an older format."""
    known = {}
    try:
        for name, row in from_json(file.read_text(encoding="utf-8")).items():
            if name not in ("folds", "final"):
                mean, ends = row["mean"], row["interval_95"]
                known[name] = FoldFigure(mean, None if ends is None else (ends[0], ends[1]))
                if not all(value is None or is_number(value) for value in (mean, *(known[name].interval or ()))):
                    return {}
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return {}
    return known


def _evaluated_again(folder: Path, numbers: Mapping[str, Any], recipe: Recipe) -> Evaluation | None:
    """Repeat the evaluation of a finished fold, on the test images that the weights had not seen."""
    images = images_of_run(folder / SPLIT)
    split = held_out_split(images)
    classifier = load(folder).use(images=len(images.of_split(split)), device=choose_device(recipe))
    judged = evaluate_before(classifier, images, split, read_proposals(folder), partial(progress, "evaluating"))
    seen = (numbers.get("seen") or {"paths": ()})["paths"]
    return unseen_part(grouped(judged.before, groups_from_file(folder / GROUPS)), dict.fromkeys(seen))


def _unseen(folder: Path) -> str:
    """Describe, as part of a sentence, whether the model of each fold had seen the test images of the fold."""
    record = fold_folder(folder, 0) / RECORD
    if record.is_file() and PictureRecord.from_bytes(record.read_bytes(), record).is_whole:
        return "had not seen it"
    return "was not trained on it; it is not recorded whether its pretrained weights had seen it"


def _write_report(
    path: Path,
    recipe: Recipe,
    results: Sequence[dict[str, Any]],
    figures: dict[str, FoldFigure],
    final: dict[str, Any] | None,
) -> None:
    shown = {name: item for name, item in figures.items() if name in _SHOWN}
    rows = [
        [
            f'<a href="fold-{number}/{REPORT}">fold {number}</a>{", zero-shot" if "zero_shot" in item else ""}',
            *("-" if item[name] is None else f"{item[name]:.4f}" for name in shown),
            str(item["images"]),
        ]
        for number, item in enumerate(results, start=1)
    ]
    rows.append(["all", *map(str, shown.values()), str(sum(item["images"] for item in results))])
    accuracy = figures["accuracy"]
    numbers = {**{name: item.to_dict() for name, item in figures.items()}, "folds": results}
    headline = headline_of(numbers if final is None else {**numbers, "final": final})
    caveats = [f"<p>{escape(caveat.text[0].upper() + caveat.text[1:])}.</p>" for caveat in headline.caveats]
    first = "<p>No accuracy can be given.</p>"
    if accuracy.mean is not None and accuracy.interval is not None:
        interval = f'<span class="soft">(95 %: {interval_text([100 * end for end in accuracy.interval], 1)})</span>'
        first = f'<p><span class="figure">{100 * accuracy.mean:.1f} %</span> {headline.figure} {interval}</p>'
    title = f"{name_of(recipe)} on {without_places(recipe).data}, {recipe.folds} folds"
    body = [
        f"<h1>{escape(title)}</h1>",
        first,
        *caveats,
        f"<p>Every image was tested once, by a model that {_unseen(path.parent)}.</p>",
        *([] if final is None else [f"<p>{escape(_about_final(final))}</p>"]),
        table(rows, ["", *(name.replace("_", " ") for name in shown), "images"]),
    ]
    write_page(path, title, body)


def _about_final(final: Mapping[str, Any]) -> str:
    """Describe the final model of a cross-validation in sentences, from its entry in folds.json."""
    epochs = final.get("epochs")
    length = "" if epochs is None else f" for {plural(epochs, 'epoch', 'epochs')}, the median of the folds' best,"
    calibrated = (
        "It is not calibrated."
        if final["temperature"] is None
        else f"Its temperature is {final['temperature']:.3f}, fitted on predictions of models without the image."
    )
    every = plural(final["images"], "image", "images")
    return f"The model in this folder was trained{length} on all {every}. {calibrated}"


Work = Callable[[Run, Recipe, Blueprint | None], Any]
Prepared = tuple[Path, Recipe, Blueprint | None]  # the run's folder, its recipe and the blueprint of its model


def drive(
    recipe: Recipe,
    observers: Observers,
    prepare: Callable[[ProcessGroup, ExitStack], Prepared],
    work: Work,
    again: Callable[[Path], str],
) -> Path:
    """Carry out a run: start its processes, prepare the folder in the main process, and train in all processes.

    Args:
        recipe: the recipe, which determines the processes and the device. It need not be complete.
        observers: the observers of the run.
        prepare: a function that locks and fills the run folder. It is called in the main process only, with the process
            group and a stack. The contexts that it enters on the stack, such as the lock, are closed at the end of the
            run.
        work: a function that trains and reports. It receives the run, the complete recipe, and the blueprint of the
            model, which is None if this process has not created it.
        again: a function that returns the command that continues an interrupted run, given its folder.

    Returns:
        The run folder.
    """
    check_watchers(recipe, observers.callbacks, observers.loggers)
    observers.extensions.check(recipe)
    team = assemble(recipe.devices, recipe.nodes, choose_device(recipe))
    with ExitStack() as hold:
        if not team.is_main:
            hold.enter_context(reporting_to(silent))
        blueprints: list[Blueprint | None] = []  # it has open files, so it cannot be sent to other processes

        def begin() -> tuple[Path, Recipe]:
            folder, resolved, blueprint = prepare(team, hold)
            blueprints.append(blueprint)
            return folder, resolved

        folder, resolved = team.broadcast_from_main(begin)
        run = observers.run(folder, team)
        with cleanup_on_failure(run, again(folder)):
            work(run, resolved, blueprints[0] if blueprints else None)
    return folder


def drive_again(
    folder: Path,
    recipe: Recipe,
    observers: Observers,
    work: Work,
    again: Callable[[Path], str],
    data_root: Path | None = None,
) -> Path:
    """Continue an interrupted run with `drive`.

    Args:
        folder: the folder of the run.
        recipe: the recipe of the run.
        observers: the observers of the run.
        work: see `drive`.
        again: see `drive`.
        data_root: the folder that now contains the images; None if they have not moved.
    """

    def prepare(team: ProcessGroup, hold: ExitStack) -> Prepared:
        check_team(recipe, team)
        observers.extensions.check_resumed(folder)
        _tidy(folder, data_root, hold)
        return folder, recipe, None

    return drive(recipe, observers, prepare, work, again)


def prepare_restart(
    folder: Path, fields: Mapping[str, Any], team: ProcessGroup, observers: Observers, hold: ExitStack
) -> Prepared:
    """Prepare a restart with `--resume-if-there`: lock the run, and apply the fields that the new command changes.

    Args:
        folder: the folder of the run.
        fields: the fields that the new command sets.
        team: the processes that train together.
        observers: the observers of the run.
        hold: the stack that holds the lock.
    """
    observers.extensions.check_resumed(folder)
    _tidy(folder, None, hold, PATIENCE)
    recipe, changes = recipe_of_restart(folder, fields)
    check_team(recipe, team)
    run = observers.run(folder)
    run.say(f"continuing the run in {folder}")
    for line in changes:
        run.say(line)
    write_text(folder / RECIPE, recipe.to_toml())
    return folder, recipe, None


def train(
    recipe: Request | Recipe | dict[str, Any],
    out: str | Path | None = None,
    *,
    force: bool = False,
    resume_if_there: bool = False,
    notes: Sequence[str] = (),
    named: Collection[str] = (),
    callbacks: Sequence[Any] = (),
    loggers: Sequence[Any] = (),
    extensions: Extensions = NONE,
    say: Say = print,
) -> Path:
    """Train a classifier and report on it.

    Args:
        recipe: the recipe; its `data` must be set. In a request or a mapping, values for the fields that are not set
            are chosen for the data and the model (`training.defaults`). A `Recipe` is used unchanged.
        out: the run folder; by default the next free `runs/NAME-N`.
        force: overwrite the run in `out`.
        resume_if_there: continue the run in `out` if there is one.
        notes: lines about the recipe. They are printed before the reasons for the values that vitkit has chosen.
        named: the fields that the user set for this training, as opposed to fields of a recipe file. It is an error if
            one of them has no effect.
        callbacks: objects with some of `loop.HOOKS`.
        loggers: objects such as `loggers.Logger`, in addition to the recipe's.
        extensions: the caller's replacements for parts of the training.
        say: called with each line of output.

    Returns:
        The run folder, which is also the model folder of the best weights.

    Raises:
        VitkitError: the data or the recipe cannot be trained on, `out` exists, or another process works on the run.
        Interrupted: a signal stopped the run. The folder contains the best model so far.
        OSError: the folder cannot be written.
    """
    if isinstance(recipe, dict) and recipe.get("data") is None:
        raise VitkitError("the recipe names no data: set data to a folder with one sub-folder of images per class")
    request = Request.of(recipe)
    if request.recipe.data is None:
        raise VitkitError("the recipe names no data: set data to a folder with one sub-folder of images per class")
    if resume_if_there:
        check_restartable(out, force=force)
    observers = Observers(say, tuple(callbacks), tuple(loggers), extensions)

    def prepare(team: ProcessGroup, hold: ExitStack) -> Prepared:
        if resume_if_there and out is not None and holds_run(out):
            _refuse_pretraining(Path(out))
            return prepare_restart(Path(out), request.fields, team, observers, hold)
        overwrites, wait = start_over(out, force=force, resume_if_there=resume_if_there)
        return _prepare(request, named, out, overwrites, wait, team, notes, observers, hold)

    return drive(request.recipe, observers, prepare, _work, _again)


def _prepare(
    request: Request,
    named: Collection[str],
    out: str | Path | None,
    force: bool,
    wait: float,
    team: ProcessGroup,
    notes: Sequence[str],
    observers: Observers,
    hold: ExitStack,
) -> Prepared:
    """Resolve a request, lock the run folder, and write the recipe, the split and other inputs of the run into it."""

    idle, reserved = list[str](), list[bool]()

    def reserve(table: ImageTable, recipes: Sequence[Recipe]) -> None:
        is_reserved = bool(reserved)
        reserved.append(True)
        idle.clear()
        for recipe in recipes:
            idle.extend(check_effects(recipe, request.fields, named, table))
            # These checks are repeated, because the method may have been chosen by the number of images.
            check_watchers(recipe, observers.callbacks, observers.loggers)
            observers.extensions.check(recipe)
            check_team(recipe, team)
            check_place(out, table, recipe.teacher, weights_of(recipe))
        if out is not None and not is_reserved:
            reserve_folder(out, hold, force=force, wait=wait)

    beside = dict.fromkeys([Path("runs"), *([] if out is None else [Path(out).parent])])
    selection = None
    if request.recipe.select_time is not None:
        start, selection = choose_and_resolve(request, reserve, list(beside))
    elif request.recipe.method == "auto" and request.recipe.weights != "none":
        start = resolve_method(request, lambda table, recipe: reserve(table, [recipe]), list(beside), named)
    else:
        start = resolve(request, lambda table, recipe: reserve(table, [recipe]), list(beside))
    recipe, table = start.recipe, start.table
    run = observers.run(Path(out) if out is not None else new_run_folder(table.root.name, hold))
    labels = None if recipe.labels is None else read_appended(Path(recipe.labels))
    try:
        clear(run.folder)
        write_request(run.folder, request.fields)
        run.extensions.write(run.folder)
        if labels is not None:
            write_bytes(run.folder / LABELS, labels)
        run.say(f"vitkit {vitkit.__version__}: training {name_of(recipe)} on {table.place}")
        tried = [] if selection is None else selection.lines()
        for reason in [
            *filter(None, [table.layout]),
            *notes,
            *dict.fromkeys(idle),
            *tried,
            *start.reasons,
            *describe_team(recipe, team),
        ]:
            run.say(reason)
        if selection is not None:
            write_json(run.folder / SELECTION, selection.to_dict())
        if recipe.folds is None:
            (split_images,) = start.parts
            write_start(run.folder, recipe, split_images, start.before, tell(run, start.findings_of(split_images)))
            if (line := note_shared_tests(out, split_images)) is not None:
                run.say(line)
        else:
            lines = tell(run, start.findings)
            for number, split_images in enumerate(start.parts):
                folder = fold_folder(run.folder, number)
                folder.mkdir()
                lacking = map(str, of_splits(split_images.images.table))
                write_start(folder, recipe.replace(folds=None), split_images, start.before, [*lines, *lacking])
            assert start.whole is not None
            write_start(run.folder, recipe, start.whole, start.before, lines)
    except BaseException:
        discard_if_empty(run.folder)
        raise
    return run.folder, recipe, start.blueprint


def _work(run: Run, recipe: Recipe, blueprint: Blueprint | None) -> None:
    """Train one classifier, or cross-validate if the recipe has `folds`, from the files in the run folder."""
    if recipe.folds is None:
        fit_and_report(run, recipe, blueprint)
    else:
        cross_validate(run, recipe, blueprint)


def _again(folder: Path) -> str:
    return f"vitkit train --resume {folder}"


def resume(
    folder: str | Path,
    data_root: Path | None = None,
    *,
    callbacks: Sequence[Any] = (),
    loggers: Sequence[Any] = (),
    extensions: Extensions = NONE,
    say: Say = print,
) -> Path:
    """Continue an interrupted run from its last checkpoint. The final weights are the same as without the interruption.

    Args:
        folder: the folder of the run.
        data_root: the folder that now contains the images, which is recorded in the run; None if they have not moved.
        callbacks: objects with some of `loop.HOOKS`.
        loggers: objects such as `loggers.Logger`, in addition to the recipe's.
        extensions: the same extensions as before.
        say: called with each line of output.

    Raises:
        VitkitError: the folder contains no run, another process works on it, or some of its images are missing or have
            changed.
    """
    folder = Path(folder)
    check_run_folder(folder)
    _refuse_pretraining(folder)
    recipe = load_of_run(folder / RECIPE)
    if recipe.data is None:
        raise VitkitError(f"{folder} was trained on datasets in Python: pass them to vitkit.train with resume=")
    observers = Observers(say, tuple(callbacks), tuple(loggers), extensions)
    return drive_again(folder, recipe, observers, _work, _again, data_root)


def _refuse_pretraining(folder: Path) -> None:
    if (folder / PRETRAINING).is_file():
        raise VitkitError(f"{folder} is a pre-training: vitkit pretrain --resume {folder}")


def _tidy(folder: Path, data_root: Path | None, hold: ExitStack, wait: float = 0.0) -> None:
    """Lock a run that will be continued, record the new folder of its images, and refuse images that have changed.

    Args:
        folder: the folder of the run.
        data_root: the folder that now contains the images; None if they have not moved.
        hold: the stack that holds the lock.
        wait: seconds to wait for another process that has locked the run.
    """
    lock_run(folder, hold, wait)
    if data_root is not None:
        for split_file in sorted(folder.rglob(SPLIT)):
            move_run(split_file, data_root)
    for split_file in sorted(folder.rglob(SPLIT)):
        refuse_changed(split_file, "name the folder that contains them now: --data-root DIR")


def tell(run: Run, findings: Iterable[Finding]) -> list[str]:
    """Print each finding once, and return the printed lines."""
    lines = list(dict.fromkeys(map(str, findings)))
    for finding in lines:
        run.say(finding)
    return lines


def write_start(
    folder: Path,
    recipe: Recipe,
    images: SplitImages,
    before: PictureRecord,
    findings: list[str],
    *,
    has_labels: bool = True,
) -> None:
    """Write all inputs of a training into its folder, so that the training can be resumed.

    Args:
        folder: the folder of the run.
        recipe: the complete recipe.
        images: the split images.
        before: the record of the images that the initial weights have seen.
        findings: the findings about the data, as lines of text.
        has_labels: whether the training uses the labels of the images.
    """
    table = images.images.table
    write_json(folder / FINDINGS, findings)
    if has_labels:
        write_json(folder / CLASS_INDICES, dict(enumerate(table.classes)))
    write_json(folder / SPLIT, {**split_to_dict(table), "contents": contents_of(images.images)})
    if images.proposals:
        write_json(folder / PROPOSALS, [proposal._asdict() for proposal in images.proposals])
    write_json(folder / GROUPS, groups_to_list(table, images.images.groups))
    write_bytes(folder / RECORD, record_after(images, before, has_labels=has_labels).to_bytes())
    write_text(folder / RECIPE, recipe.to_toml())


_DEALING = ("layout", "labels", "split", "split_from", "group_by", "folds", "max_images", "split_seed")
OF_FILES = ("data", *_DEALING, "find_lr", "cache", "select_time")  # fields


def train_on(
    datasets: Datasets,
    fields: dict[str, Any],
    out: str | Path | None,
    *,
    force: bool,
    observers: Observers,
    named: Collection[str] = (),
    resume_if_there: bool = False,
) -> Path:
    """Train on the user's datasets, and write a run folder with the recipe, metrics.csv, the model and the report.

    Args:
        datasets: the datasets for training and validation.
        fields: the fields of the recipe. Fields that only apply to image files are refused.
        out: the run folder; by default the next free `runs/datasets-N`.
        force: overwrite the run in `out`.
        observers: the observers of the run.
        named: the fields that the caller set, as opposed to those of a recipe file.
        resume_if_there: continue the run in `out` if there is one.

    Raises:
        VitkitError: the datasets or the recipe cannot be trained on.
    """
    _refuse(fields)
    from_scratch = fields.get("weights") == "none" or fields.get("method") == "scratch"
    request = Request.of({"method": "scratch" if from_scratch else "full", "lp_ft": False, "cache": "none", **fields})
    surveys: list[Survey] = []  # only filled in the main process
    if resume_if_there:
        check_restartable(out, force=force)

    def prepare(team: ProcessGroup, hold: ExitStack) -> Prepared:
        if resume_if_there and out is not None and holds_run(out):
            return prepare_restart(Path(out), request.fields, team, observers, hold)
        check_overwritten(out, request.recipe.teacher, weights_of(request.recipe))
        data_survey = survey(datasets)
        surveys.append(data_survey)
        check_trainable(data_survey.table)
        recipe, reasons = complete(request, data_survey.table)
        reasons += check_effects(recipe, fields, named)
        check_team(recipe, team)
        blueprint, of_model = resolve_model(recipe, request.fields, data_survey.table)
        data_survey.check(blueprint.preprocess)
        preprocess, of_pixels = _preprocess_of(datasets, data_survey, blueprint.preprocess)
        recipe = blueprint.recipe
        if out is not None:
            overwrites, wait = start_over(out, force=force, resume_if_there=resume_if_there)
            reserve_folder(out, hold, force=overwrites, wait=wait)
        run = observers.run(Path(out) if out is not None else new_run_folder("datasets", hold))
        clear(run.folder)
        write_request(run.folder, request.fields)
        run.extensions.write(run.folder)
        write_json(run.folder / PREPROCESS, preprocess.to_dict())
        write_json(run.folder / CLASS_INDICES, dict(enumerate(data_survey.table.classes)))
        write_text(run.folder / RECIPE, recipe.to_toml())
        run.say(f"vitkit {vitkit.__version__}: training {name_of(recipe)} on {NAME}")
        for reason in (*reasons, *of_model, *of_pixels):
            run.say(reason)
        if data_survey.shared:
            run.say(f"problem: {data_survey.shared} validation images are training images too and are not counted")
        return run.folder, recipe, blueprint

    def work(run: Run, recipe: Recipe, blueprint: Blueprint | None) -> None:
        data_survey = surveys[0] if surveys else survey(datasets)
        _work_on_datasets(run, recipe, blueprint, datasets, data_survey)

    return drive(request.recipe, observers, prepare, work, _again_on_datasets)


def resume_on(datasets: Datasets, folder: Path, observers: Observers) -> None:
    """Continue a run on the user's datasets, with the recipe in its folder.

    Raises:
        VitkitError: the folder contains no run on datasets, or the datasets differ from those of the run.
    """
    check_run_folder(folder)
    recipe = load_of_run(folder / RECIPE)
    if recipe.data is not None:
        raise VitkitError(f"{folder} was trained on files, in {recipe.data}: leave out train_dataset")

    def work(run: Run, recipe: Recipe, blueprint: Blueprint | None) -> None:
        _work_on_datasets(run, recipe, blueprint, datasets, survey(datasets))

    drive_again(folder, recipe, observers, work, _again_on_datasets)


def _again_on_datasets(folder: Path) -> str:
    return f'vitkit.train(resume="{folder}", train_dataset=..., val_dataset=...)'


def _refuse(fields: dict[str, Any]) -> None:
    named_fields = [name for name in OF_FILES if fields.get(name) not in (None, False)]
    if named_fields:
        raise VitkitError(f"{named_fields[0]} applies to files, and train_dataset has none: leave it out")


def _preprocess_of(
    datasets: Datasets, data_survey: Survey, preprocess_before: Preprocess
) -> tuple[Preprocess, list[str]]:
    """Return the preprocessing that is saved with the model, and lines to print about it.

    Raises:
        VitkitError: the caller's preprocessing is invalid, or is for another image size than the model's.
    """
    if datasets.preprocess is not None:
        named = preprocess_of(datasets.preprocess, preprocess_before)
        return named, [f"files are preprocessed as you specified: {described(named.to_dict())}"]
    preprocess, notes = data_survey.preprocess_of(datasets, preprocess_before)
    if preprocess != preprocess_before and not preprocess.unknown:
        notes = [f"files are preprocessed like the datasets' transforms: {described(preprocess.to_dict())}", *notes]
    return preprocess, notes


def _work_on_datasets(
    run: Run, recipe: Recipe, blueprint: Blueprint | None, datasets: Datasets, data_survey: Survey
) -> None:
    table, team = data_survey.table, run.team
    model = team.main_first(lambda: blueprint or blueprint_of(recipe, table.classes))
    classifier, teacher = before_training(run, model, table, data_survey.digest)
    classifier.preprocess = Preprocess.from_dict(read_json(run.folder / PREPROCESS))
    record, seen = team.broadcast_from_main(partial(_look_up, model, classifier, teacher, data_survey))
    classifier.pictures = record
    data, of_head = _data_of(recipe, datasets, table, classifier, run)
    if team.is_main:
        assert isinstance(data.train, TrainingOf)
        draw_data(run.folder, table, data.train, recipe.seed)
    counts = ", ".join(f"{len(table.of_split(name))} {name}" for name in ("train", "val"))
    run.say(f"{len(table.classes)} classes; images: {counts}")
    if recipe.method != "probe":
        learn(run, recipe, table, classifier, teacher, data, data_survey.contents, of_head)
    elif team.is_main and not (run.folder / WEIGHTS).is_file():  # a resumed run may have its head already
        fit_head(run, recipe, table, classifier, of_head)
    team.broadcast_from_main(partial(_conclude_user_datasets, run, recipe, data.val, seen))


@dataclass(frozen=True)
class _SeenImages:
    """The validation images that the weights have been trained on, in this run or before, directly or as copies.

    Attributes:
        roles: the role of each of these images in the training, or the role of its copy. The keys are the names of the
            images, which replace paths because the datasets have no files.
        doubt: the reason why the weights may have seen further images; empty if there is no such reason.
    """

    roles: dict[str, str]
    doubt: str


def _look_up(
    blueprint: Blueprint, classifier: Classifier, teacher: Teacher | None, data_survey: Survey
) -> tuple[bytes, _SeenImages]:
    """Find the images that the weights have seen.

    Return the record of these images after the run, in bytes, and the validation images among them.
    """
    before = ancestry_of(blueprint.recipe, blueprint.pictures, None if teacher is None else teacher.pictures)
    facts, table = data_survey.facts(classifier.preprocess), data_survey.table
    overlap = find_overlap(before, table, facts)
    roles = exposures(table, find_twins(table, facts), overlap)
    labels = [table.name_of(i) for i in range(len(table))]
    record = before.merge(make_record(facts, labels, roles, is_whole=data_survey.is_certain))
    seen = seen_of({path: roles[i] for i, path in enumerate(table.paths) if table.splits[i] == "val"}, "val")
    is_doubtful = bool(before.seen) and not data_survey.is_certain
    return record.to_bytes(), _SeenImages(seen, _DOUBT if is_doubtful else DOUBTS[overlap.looked_for])


# If the weights come from a run, its pictures are recognised by their appearance.
_DOUBT = "it cannot be determined for tensors, or pictures that change, whether the weights had seen others"


def _data_of(
    recipe: Recipe, datasets: Datasets, table: ImageTable, classifier: Classifier, run: Run
) -> tuple[BatchedImages, HeadImages]:
    """Return the images of the datasets in two forms: in batches for training, and as data sets for fitting a head."""
    labels = {name: table.of_split(name).labels for name in ("train", "val")}
    preprocess, val = classifier.preprocess, datasets.val if datasets.val is not None else []
    augment = augment_of(recipe, run.extensions.augment)
    augmented = TrainingOf(datasets.train, labels["train"], "train", preprocess, augment, recipe.seed)
    held_out = EvaluationOf(val, labels["val"], "val", preprocess)
    batches = BatchedImages(
        augmented,
        held_out,
        table,
        batch_size=recipe.batch_size,
        workers=choose_workers(recipe, preprocess.size),
        seed=recipe.seed,
        balanced=recipe.balance == "sampler",
        process=(run.team.rank, run.team.size),
    )
    plain = EvaluationOf(datasets.train, labels["train"], "train", preprocess)
    return batches, HeadImages(plain, augmented, held_out)


def _conclude_user_datasets(run: Run, recipe: Recipe, val: Any, seen: _SeenImages) -> None:
    """Calibrate the saved model, and evaluate it on the validation images if there are any."""
    if not len(val):
        predictions = OutOfFold.read(run.folder)
        how = "not calibrated"
        if predictions is not None:
            classifier = load(run.folder)
            facts = ValidationFacts(chosen_on("val", recipe.__dict__), folds=predictions.folds)
            calibrate_by(run.folder, classifier, partial(predictions.evaluation, classifier), facts)
            how = "calibrated by cross-validation of the training images"
        run.say(f"no validation images: the confidences are {how}, and there are no figures")
        return
    classifier = load(run.folder)
    if recipe.wise_ft:
        judge = partial(_judge_user_datasets, recipe=recipe, val=val, seen=seen)
        mix_with_start(run.folder, classifier, judge, run.say)
    classifier = classifier.use(images=len(val), device=choose_device(recipe))
    before = correction_of(classifier)
    facts = ValidationFacts(chosen_on("val", recipe.__dict__), seen=seen.roles)
    calibrate_by(run.folder, classifier, lambda: _ask(classifier, val), facts)
    if correction_of(classifier) != before:  # the head has changed, and the optimised model has a copy of its weights
        classifier = classifier.use(images=len(val), device=choose_device(recipe))
    evaluation = _ask(classifier, val)
    evaluation = replace(evaluation, chosen=chosen_on("val", recipe.__dict__))
    numbers = all_figures(evaluation, seen.roles, classifier.provenance, classifier.computation, seen.doubt)
    write_json(run.folder / EVALUATION, numbers)
    if (spoilt := describe(numbers)) is not None:
        run.say(f"note: {spoilt}")
    _write_report_user_datasets(run, recipe, classifier, counted_part(evaluation, numbers), numbers)
    loss = "" if numbers["loss"] is None else f" ({numbers['loss']:.4f} log loss)"
    run.say(f"{headline_of(numbers).words}{loss}")


def _judge_user_datasets(
    classifier: Classifier, *, recipe: Recipe, val: EvaluationOf, seen: _SeenImages
) -> Evaluation | None:
    return unseen_part(_ask(classifier.use(images=len(val), device=choose_device(recipe)), val), seen.roles)


def _ask(classifier: Classifier, val: EvaluationOf) -> Evaluation:
    batches = torch.utils.data.DataLoader(val, batch_size=64)
    parts: list[Tensor] = []
    with torch.inference_mode():
        for images, _ in batches:
            parts.append(classifier.probabilities(images).float().cpu())
            progress("evaluating", sum(map(len, parts)), len(val))
    return Evaluation(
        split="val",
        classes=classifier.classes,
        paths=tuple(val.paths),
        labels=np.array(val.labels),
        probabilities=torch.cat(parts).numpy(),
        temperature=classifier.temperature,
    )


def _write_report_user_datasets(
    run: Run, recipe: Recipe, classifier: Classifier, evaluation: Evaluation, numbers: dict[str, Any]
) -> None:
    folder = run.folder
    rows, best = read_metrics(folder / METRICS), classifier.provenance["metrics"]["epoch"]
    drawn = {"Curves": plots.curves(rows, best, is_mixed=bool(recipe.mixup or recipe.cutmix))}
    drawn |= {caption: draw() for caption, draw in pictures_of(evaluation, None).items()}
    for caption, picture in drawn.items():
        plots.save_figure(picture, folder / PICTURES[caption])
    write_report(
        folder / REPORT,
        title=f"{name_of(recipe)} on {NAME}",
        evaluation=evaluation,
        numbers=numbers,
        root=None,
        facts={
            "data": NAME,
            **by_name_in_words(classifier.provenance),
            "made with": ", ".join(f"{n} {v}" for n, v in classifier.provenance["versions"].items()),
        },
        findings=[
            *([f"problem: {spoilt}"] if (spoilt := describe(numbers)) else []),
            "the images came from datasets, not files, so wrong labels were not searched for",
        ],
        pictures=pictures_for_page(folder, drawn, rows),
        recipe=without_places(recipe).to_toml(),
    )
