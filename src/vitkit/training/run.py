"""Carry out a run from beginning to end: resolve the request, train and evaluate the model, and write the report.

`drive` starts the processes, has the main process write the run folder, and has all processes train (`fine_tune`,
`cross_validation`). It carries out every kind of run: `train` on image files, `train_on` on datasets of the user, and
pre-training.

A dataset of the user is a Python object that returns (image, label) by index. As it has no files, no files are checked
and no images are split. All items are read once before the training to get the labels. Validation images that are also
training images are excluded from the figures. The figures mention that the model was selected on the validation images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vitkit
from vitkit.classifier import Classifier
from vitkit.data.doctor.examine import Finding, check_splits, find_twins
from vitkit.data.earlier_labels import UNCHANGED
from vitkit.data.loading import BatchedImages
from vitkit.data.preprocess import Preprocess
from vitkit.data.preprocess import describe as described
from vitkit.data.seen import PictureRecord, exposures, find_overlap, make_record
from vitkit.data.split_file import (
    groups_to_list,
    move_run,
    refuse_changed,
    split_to_dict,
)
from vitkit.data.splits import check_trainable
from vitkit.data.table import ImageTable
from vitkit.data.user_datasets import NAME, Datasets, EvaluationOf, Survey, TrainingOf, survey
from vitkit.errors import VitkitError
from vitkit.evaluation.figures import (
    DOUBTS,
    all_figures,
    by_name_in_words,
    chosen_on,
    counted_part,
    describe,
    doubt_of,
    seen_of,
)
from vitkit.evaluation.headline import headline_of
from vitkit.evaluation.metrics import Evaluation
from vitkit.model_folder import RECORD, WEIGHTS
from vitkit.reporting import plots
from vitkit.reporting.evaluation_report import pictures_of, write_report
from vitkit.system.files import read_appended, read_json, write_bytes, write_json, write_text
from vitkit.system.progress import progress, reporting_to, silent
from vitkit.system.run_files import (
    CLASS_INDICES,
    EARLIER_LABELS,
    EVALUATION,
    FINDINGS,
    GROUPS,
    LABELS,
    METRICS,
    PICTURES,
    PREPROCESS,
    PRETRAINING,
    RECIPE,
    REPORT,
    SPLIT,
    check_run_folder,
    fold_folder,
    resume_command,
    run_of_fold,
)
from vitkit.training.cross_validation import cross_validate
from vitkit.training.defaults import check_effects, complete, weights_of
from vitkit.training.distributed import ProcessGroup, assemble, check_team, describe_team
from vitkit.training.finalize import OutOfFold, ValidationFacts, calibrate_by, correction_of
from vitkit.training.fine_tune import before_training, fit_and_report, learn
from vitkit.training.lineage import (
    SplitImages,
    ancestry_of,
    note_shared_tests,
    record_after,
)
from vitkit.training.loggers import check_hooks
from vitkit.training.probe import HeadImages, fit_head
from vitkit.training.recipe import Recipe, name_of, without_places
from vitkit.training.report import draw_classes, draw_some, pictures_for_page
from vitkit.training.request import NONE, Hooks, load_of_run
from vitkit.training.run_folder import (
    Run,
    check_overwritten,
    check_place,
    cleanup_on_failure,
    clear,
    discard_if_empty,
    lock_run,
    new_run_folder,
    read_metrics,
    reserve_folder,
    write_request,
)
from vitkit.training.selection import resolve_method
from vitkit.training.start import (
    Blueprint,
    Start,
    augment_of,
    blueprint_of,
    choose_device,
    choose_workers,
    resolve,
    resolve_model,
)
from vitkit.training.teacher import Teacher
from vitkit.weights import load
from vitkit.weights.preprocessing import preprocess_of

Work = Callable[[Run, Recipe, Blueprint | None], Any]
Prepared = tuple[Path, Recipe, Blueprint | None]  # the run's folder, its recipe and the blueprint of its model


def drive(
    recipe: Recipe,
    hooks: Hooks,
    prepare: Callable[[ProcessGroup, ExitStack], Prepared],
    work: Work,
    again: Callable[[Path], str],
) -> Path:
    """Carry out a run: start its processes, prepare the folder in the main process, and train in all processes.

    Args:
        recipe: the recipe, which determines the processes and the device. It need not be complete.
        hooks: objects of the caller.
        prepare: a function that locks and fills the run folder. It is called in the main process only, with the process
            group and a stack. The contexts that it enters on the stack, such as the lock, are closed at the end of the
            run.
        work: a function that trains and reports. It receives the run, the complete recipe, and the blueprint of the
            model, which is None if this process has not created it.
        again: a function that returns the command that continues an interrupted run, given its folder.

    Returns:
        The run folder.
    """
    check_hooks(recipe, hooks)
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
        run = Run(folder, team=team, hooks=hooks)
        with cleanup_on_failure(run, again(folder)):
            work(run, resolved, blueprints[0] if blueprints else None)
    return folder


def drive_again(
    folder: Path,
    recipe: Recipe,
    hooks: Hooks,
    work: Work,
    again: Callable[[Path], str],
    data_root: Path | None = None,
) -> Path:
    """Continue an interrupted run with `drive`.

    Args:
        folder: the folder of the run.
        recipe: the recipe of the run.
        hooks: objects of the caller.
        work: see `drive`.
        again: see `drive`.
        data_root: the folder that now contains the images; None if they have not moved.
    """

    def prepare(team: ProcessGroup, hold: ExitStack) -> Prepared:
        check_team(recipe, team)
        hooks.check_resumed(folder)
        _tidy(folder, data_root, hold)
        return folder, recipe, None

    return drive(recipe, hooks, prepare, work, again)


def train(
    asked: Recipe,
    out: str | Path | None = None,
    *,
    force: bool = False,
    notes: Sequence[str] = (),
    hooks: Hooks = NONE,
) -> Path:
    """Train a classifier and report on it.

    Args:
        asked: the requested recipe; its `data` must be set. Values for the fields that are not set are chosen for the
            data and the model (`training.defaults`). It is an error if a field that the caller has set has no effect.
        out: the run folder; by default the next free `runs/NAME-N`.
        force: overwrite the run in `out`.
        notes: lines about the recipe. They are printed before the reasons for the values that vitkit has chosen.
        hooks: objects of the caller that observe the training, or replace parts of it.

    Returns:
        The run folder, which is also the model folder of the best weights.

    Raises:
        VitkitError: the data or the recipe cannot be trained on, `out` exists, or another process works on the run.
        Interrupted: a signal stopped the run. The folder contains the best model so far.
        OSError: the folder cannot be written.
    """
    if asked.data is None:
        raise VitkitError("the recipe names no data: set data to a folder with one sub-folder of images per class")

    def prepare(team: ProcessGroup, hold: ExitStack) -> Prepared:
        return _prepare(asked, out, force, team, notes, hooks, hold)

    return drive(asked, hooks, prepare, _work, resume_command)


def resolve_request(
    asked: Recipe,
    out: str | Path | None,
    team: ProcessGroup,
    hooks: Hooks,
    reserve_out: Callable[[Path], None],
) -> tuple[Start, list[str]]:
    """Resolve a requested recipe, and check that it can be trained, before anything is written.

    Args:
        asked: the requested recipe.
        out: the requested run folder; None for the next free one.
        team: the processes that train together.
        hooks: objects of the caller.
        reserve_out: refuses the requested run folder if it is in use, or locks it. It is called before the images are
            read, which may take long.

    Returns:
        The start of the run, and lines about fields without effect.
    """
    idle, reserved = list[str](), list[bool]()

    def reserve(table: ImageTable, recipe: Recipe) -> None:
        is_reserved = bool(reserved)
        reserved.append(True)
        idle[:] = check_effects(recipe, asked, table)
        # These checks are repeated, because the method may have been chosen by the number of images.
        check_hooks(recipe, hooks)
        check_team(recipe, team)
        check_place(out, table, recipe.teacher, weights_of(recipe))
        if out is not None and not is_reserved:
            reserve_out(Path(out))

    beside = list(dict.fromkeys([Path("runs"), *([] if out is None else [Path(out).parent])]))
    if asked.method == "auto" and asked.weights != "none":
        return resolve_method(asked, reserve, beside), idle
    return resolve(asked, reserve, beside), idle


def _prepare(
    asked: Recipe,
    out: str | Path | None,
    force: bool,
    team: ProcessGroup,
    notes: Sequence[str],
    hooks: Hooks,
    hold: ExitStack,
) -> Prepared:
    """Resolve a requested recipe, lock the run folder, and write the inputs of the run into it."""
    reserve_out = partial(reserve_folder, hold=hold, force=force)
    start, idle = resolve_request(asked, out, team, hooks, reserve_out)
    recipe, table = start.recipe, start.table
    run = Run(Path(out) if out is not None else new_run_folder(table.root.name, hold), hooks=hooks)
    labels = None if recipe.labels is None else read_appended(Path(recipe.labels))
    try:
        clear(run.folder)
        write_request(run.folder, asked.set_fields())
        run.hooks.write(run.folder)
        if labels is not None:
            write_bytes(run.folder / LABELS, labels)
        run.say(f"vitkit {vitkit.__version__}: training {name_of(recipe)} on {table.place}")
        for reason in [
            *filter(None, [table.layout]),
            *notes,
            *dict.fromkeys(idle),
            *start.reasons,
            *describe_team(recipe, team),
        ]:
            run.say(reason)
        if recipe.folds is None:
            (split_images,) = start.parts
            write_start(run.folder, recipe, split_images, start.before, tell(run, start.findings_of(split_images)))
            if (line := note_shared_tests(out, split_images)) is not None:
                run.say(line)
        else:
            told = tell(run, start.findings)
            for number, split_images in enumerate(start.parts):
                folder = fold_folder(run.folder, number)
                folder.mkdir()
                own = [*told, *split_images.findings, *check_splits(split_images.images.table)]
                write_start(folder, recipe.replace(folds=None), split_images, start.before, own)
            assert start.whole is not None
            write_start(run.folder, recipe, start.whole, start.before, told)
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


def resume(
    folder: str | Path,
    data_root: Path | None = None,
    *,
    hooks: Hooks = NONE,
) -> Path:
    """Continue an interrupted run from its last checkpoint. The final weights are the same as without the interruption.

    Args:
        folder: the folder of the run.
        data_root: the folder that now contains the images, which is recorded in the run; None if they have not moved.
        hooks: objects of the caller, with the same functions as before.

    Raises:
        VitkitError: the folder contains no run, another process works on it, or some of its images are missing or have
            changed.
    """
    folder = Path(folder)
    check_run_folder(folder)
    _refuse_pretraining(folder)
    if run_of_fold(folder) is not None:  # the lock and the final model are those of the cross-validation
        raise VitkitError(f"{folder} is a fold of a cross-validation: continue that with {resume_command(folder)}")
    recipe = load_of_run(folder / RECIPE)
    if recipe.data is None:
        raise VitkitError(f"{folder} was trained on datasets in Python: pass them to vitkit.train with resume=")
    return drive_again(folder, recipe, hooks, _work, resume_command, data_root)


def _refuse_pretraining(folder: Path) -> None:
    if (folder / PRETRAINING).is_file():
        raise VitkitError(f"{folder} is a pre-training: vitkit pretrain --resume {folder}")


def _tidy(folder: Path, data_root: Path | None, hold: ExitStack) -> None:
    """Lock a run that will be continued, record the new folder of its images, and refuse images that have changed.

    Args:
        folder: the folder of the run.
        data_root: the folder that now contains the images; None if they have not moved.
        hold: the stack that holds the lock.
    """
    lock_run(folder, hold)
    if data_root is not None:
        for split_file in sorted(folder.rglob(SPLIT)):
            move_run(split_file, data_root)
    for split_file in sorted(folder.rglob(SPLIT)):
        refuse_changed(split_file, "name the folder that contains them now: --data-root DIR")


def tell(run: Run, findings: Iterable[Finding]) -> list[Finding]:
    """Print each finding once, and return the printed findings."""
    told = list(dict.fromkeys(findings))
    for finding in told:
        run.say(str(finding))
    return told


def write_start(
    folder: Path,
    recipe: Recipe,
    images: SplitImages,
    before: PictureRecord,
    findings: Iterable[Finding],
    *,
    has_labels: bool = True,
) -> None:
    """Write all inputs of a training into its folder, so that the training can be resumed.

    Args:
        folder: the folder of the run.
        recipe: the complete recipe.
        images: the split images.
        before: the record of the images that the initial weights have seen.
        findings: the findings about the data.
        has_labels: whether the training uses the labels of the images.
    """
    table = images.images.table
    write_json(folder / FINDINGS, [asdict(finding) for finding in findings])
    if has_labels:
        write_json(folder / CLASS_INDICES, dict(enumerate(table.classes)))
    write_json(folder / SPLIT, {**split_to_dict(table), "contents": images.images.contents})
    if images.earlier != UNCHANGED:
        write_json(folder / EARLIER_LABELS, images.earlier.to_dict())
    write_json(folder / GROUPS, groups_to_list(table, images.images.groups))
    write_bytes(folder / RECORD, record_after(images, before, has_labels=has_labels).to_bytes())
    write_text(folder / RECIPE, recipe.to_toml())


_DEALING = (
    *("layout", "follow_links", "labels", "split", "split_from", "group_by", "folds", "max_images", "split_seed"),
)
OF_FILES = ("data", *_DEALING, "find_lr", "cache")  # fields


def train_on(
    datasets: Datasets,
    asked: Recipe,
    out: str | Path | None,
    *,
    force: bool = False,
    hooks: Hooks = NONE,
) -> Path:
    """Train on the user's datasets, and write a run folder with the recipe, metrics.csv, the model and the report.

    Args:
        datasets: the datasets for training and validation.
        asked: the requested recipe. Fields that only apply to image files are refused.
        out: the run folder; by default the next free `runs/datasets-N`.
        force: overwrite the run in `out`.
        hooks: objects of the caller that observe the training, or replace parts of it.

    Raises:
        VitkitError: the datasets or the recipe cannot be trained on.
    """
    if of_files := [name for name in OF_FILES if name in asked.given and getattr(asked, name) not in (None, False)]:
        raise VitkitError(f"{of_files[0]} applies to files, and a data set in memory has none: leave it out")
    is_from_scratch = asked.weights == "none" or asked.method == "scratch"
    usual = Recipe(method="scratch" if is_from_scratch else "full", lp_ft=False, cache="none")
    asked = usual.updated(asked)
    surveys: list[Survey] = []  # only filled in the main process

    def prepare(team: ProcessGroup, hold: ExitStack) -> Prepared:
        check_overwritten(out, asked.teacher, weights_of(asked))
        data_survey = survey(datasets)
        surveys.append(data_survey)
        check_trainable(data_survey.table)
        recipe, reasons = complete(asked, data_survey.table)
        reasons += check_effects(recipe, asked)
        check_team(recipe, team)
        blueprint, of_model = resolve_model(recipe, asked.set_fields(), data_survey.table)
        data_survey.check(blueprint.preprocess)
        preprocess, of_pixels = _preprocess_of(datasets, data_survey, blueprint.preprocess)
        recipe = blueprint.recipe
        if out is not None:
            reserve_folder(out, hold, force=force)
        run = Run(Path(out) if out is not None else new_run_folder("datasets", hold), hooks=hooks)
        clear(run.folder)
        write_request(run.folder, asked.set_fields())
        run.hooks.write(run.folder)
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

    return drive(asked, hooks, prepare, work, _again_on_datasets)


def resume_on(datasets: Datasets, folder: Path, hooks: Hooks = NONE) -> Path:
    """Continue a run on the user's datasets, with the recipe in its folder.

    Raises:
        VitkitError: the folder contains no run on datasets, or the datasets differ from those of the run.
    """
    check_run_folder(folder)
    recipe = load_of_run(folder / RECIPE)
    if recipe.data is not None:
        raise VitkitError(f"{folder} was trained on files, in {recipe.data}: leave out the data set in memory")

    def work(run: Run, recipe: Recipe, blueprint: Blueprint | None) -> None:
        _work_on_datasets(run, recipe, blueprint, datasets, survey(datasets))

    return drive_again(folder, recipe, hooks, work, _again_on_datasets)


def _again_on_datasets(folder: Path) -> str:
    return f'vitkit.train(vitkit.Datasets(...), resume="{folder}")'


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
        draw_classes(run.folder, table)
    counts = ", ".join(f"{len(table.of_split(name))} {name}" for name in ("train", "val"))
    run.say(f"{len(table.classes)} classes; images: {counts}")
    if recipe.method != "probe":
        learn(run, recipe, table, classifier, teacher, data, data_survey.contents, of_head)
    elif team.is_main and not (run.folder / WEIGHTS).is_file():  # a resumed run may have its head already
        draw_some(run.folder, table, of_head.train, classifier.preprocess, recipe.seed)
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
    doubt = _DOUBT if bool(before.seen) and not data_survey.is_certain else DOUBTS[overlap.looked_for]
    return record.to_bytes(), _SeenImages(seen, doubt_of(before) or doubt)


# If the weights come from a run, its pictures are recognised by their appearance.
_DOUBT = "it cannot be determined for tensors, or pictures that change, whether the weights had seen others"


def _data_of(
    recipe: Recipe, datasets: Datasets, table: ImageTable, classifier: Classifier, run: Run
) -> tuple[BatchedImages, HeadImages]:
    """Return the images of the datasets in two forms: in batches for training, and as data sets for fitting a head."""
    labels = {name: table.of_split(name).labels for name in ("train", "val")}
    preprocess, val = classifier.preprocess, datasets.val if datasets.val is not None else []
    augment = augment_of(recipe, run.hooks.augment)
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
    return batches, HeadImages(plain, held_out)


def _conclude_user_datasets(run: Run, recipe: Recipe, val: Any, seen: _SeenImages) -> None:
    """Calibrate the saved model, and evaluate it on the validation images if there are any."""
    if not len(val):
        predictions = OutOfFold.read(run.folder)
        how = "not calibrated"
        if predictions is not None:
            classifier = load(run.folder)
            facts = ValidationFacts(chosen_on("val", recipe.to_dict()), folds=predictions.folds)
            calibrate_by(run.folder, classifier, partial(predictions.evaluation, classifier), facts)
            how = "calibrated by cross-validation of the training images"
        run.say(f"no validation images: the confidences are {how}, and there are no figures")
        return
    classifier = load(run.folder)
    classifier = classifier.use(images=len(val), device=choose_device(recipe))
    before = correction_of(classifier)
    facts = ValidationFacts(chosen_on("val", recipe.to_dict()), seen=seen.roles)
    calibrate_by(run.folder, classifier, lambda: _ask(classifier, val), facts)
    if correction_of(classifier) != before:  # the head has changed, and the optimised model has a copy of its weights
        classifier = classifier.use(images=len(val), device=choose_device(recipe))
    evaluation = _ask(classifier, val)
    evaluation = replace(evaluation, chosen=chosen_on("val", recipe.to_dict()))
    numbers = all_figures(evaluation, seen.roles, classifier.provenance, classifier.computation, seen.doubt)
    write_json(run.folder / EVALUATION, numbers)
    if (spoilt := describe(numbers)) is not None:
        run.say(f"note: {spoilt}")
    _write_report_user_datasets(run, recipe, classifier, counted_part(evaluation, numbers), numbers)
    loss = "" if numbers["loss"] is None else f" ({numbers['loss']:.4f} log loss)"
    run.say(f"{headline_of(numbers).words}{loss}")


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
