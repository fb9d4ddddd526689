"""A run from beginning to end: read the data, look for what spoils it, split it, train, report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import vitkit
from vitkit.data.doctor.examine import examine
from vitkit.data.doctor.findings import Finding, of_scenes, of_splits
from vitkit.data.pictures import PictureRecord
from vitkit.data.sources import read_source
from vitkit.data.split_file import groups_to_list, split_to_dict
from vitkit.data.splits import check_trainable, fold, limit_training, scenes, split
from vitkit.data.whereabouts import move_run
from vitkit.errors import VitkitError
from vitkit.model_folder import RECORD
from vitkit.system.files import write_bytes, write_json, write_text
from vitkit.system.progress import Progress, Say, silent
from vitkit.system.run_files import CLASS_INDICES, FINDINGS, GROUPS, RECIPE, SPLIT, fold_folder
from vitkit.training.architecture import weights_of
from vitkit.training.cross_validation import cross_validate
from vitkit.training.defaults import complete, spare_patches
from vitkit.training.distributed import Team, assemble, check_team, describe_team
from vitkit.training.fit import fit_and_report
from vitkit.training.lineage import (
    Divided,
    Images,
    ancestry_of,
    contents_of,
    divide,
    of_ancestry,
    of_earlier_runs,
    record_after,
    refuse_folds,
)
from vitkit.training.loggers import check_watchers
from vitkit.training.recipe import Recipe, build, name_of
from vitkit.training.recipe_files import load_of_run
from vitkit.training.run_folder import (
    Run,
    check_place,
    clear,
    discard_if_empty,
    going_on,
    hold_again,
    hold_given,
    hold_next,
)
from vitkit.training.setup import choose_device, start_of
from vitkit.training.teacher import check_distillation, load_teacher
from vitkit.weights.read import reading_once


def train(
    recipe: Recipe | dict[str, Any],
    out: str | Path | None = None,
    *,
    force: bool = False,
    notes: Sequence[str] = (),
    callbacks: Sequence[Any] = (),
    loggers: Sequence[Any] = (),
    say: Say = print,
    progress: Progress = silent,
) -> Path:
    """Train a classifier and report on it.

    Args:
        recipe: what and how; its `data` must be set. Of a mapping of some fields, the others are chosen to suit
            what is trained (`training.defaults`); a `Recipe` is taken as it is.
        out: the run folder; by default the next free `runs/NAME-N`.
        force: write over the run that is in `out`.
        notes: lines about the recipe, to be told with the choices that were left to vitkit.
        callbacks: objects with some of `loop.HOOKS`.
        loggers: objects such as `loggers.Logger`, beside the recipe's.
        say: takes each line of the story.
        progress: told what is being done, how many are done, of how many.

    Returns:
        The run folder, which is also the model folder of the best weights.

    Raises:
        VitkitError: the data or the recipe cannot be trained on, or `out` exists, or another process works on it.
        Interrupted: a signal stopped the run; the folder holds the best model so far.
        OSError: the folder cannot be written.
    """
    fields = recipe.__dict__ if isinstance(recipe, Recipe) else recipe
    if fields.get("data") is None:
        raise VitkitError("the recipe names no data")
    asked = build(fields, "flags")
    check_watchers(asked, callbacks, loggers)
    team = assemble(asked.devices, asked.nodes, choose_device(asked))
    with ExitStack() as hold, reading_once():
        folder, settled = team.by_first(lambda: _prepare(fields, out, force, team, notes, say, progress, hold))
        _go(Run(folder, say, progress, team=team, callbacks=tuple(callbacks), loggers=tuple(loggers)), settled)
    return folder


def _prepare(
    fields: dict[str, Any],
    out: str | Path | None,
    force: bool,
    team: Team,
    notes: Sequence[str],
    say: Say,
    progress: Progress,
    hold: ExitStack,
) -> tuple[Path, Recipe]:
    """Settle everything that the recipe leaves open, and write it into the run's folder, which is held from then on."""
    table = read_source(fields["data"], progress, fields.get("layout", "auto"))
    check_trainable(table)
    recipe, reasons = complete(fields, table)
    check_distillation(recipe)
    check_team(recipe, team)
    check_place(out, table, recipe.teacher, weights_of(recipe))
    if out is not None:
        hold_given(out, hold, force=force)
    # What cannot be built should fail before the images are read.
    config, preprocess = start_of(recipe, table.classes, progress)
    recipe = spare_patches(recipe, fields, config)
    taught = None
    if recipe.teacher is not None:
        taught = load_teacher(recipe.teacher, table.classes, config.image_size).pictures
    diagnosis = examine(table, preprocess, progress)
    groups = list(diagnosis.twins)
    if recipe.group_by is not None:
        groups = scenes(diagnosis.table, recipe.group_by, groups)
    torn = [] if recipe.group_by is None else of_scenes(diagnosis.table, groups)
    images = Images(diagnosis.table, diagnosis.facts, diagnosis.twins, tuple(groups))
    before = ancestry_of(recipe, taught, progress)
    parts = _parts(images, recipe, before, progress)
    if recipe.max_images is not None:
        parts = [_limit(own, recipe.max_images, recipe.seed) for own in parts]
    run = Run(Path(out) if out is not None else hold_next(table.root.name, hold), say, progress)
    try:
        clear(run.folder)
        run.say(f"vitkit {vitkit.__version__}: training {name_of(recipe)} on {table.root}")
        for reason in [*filter(None, [table.layout]), *notes, *reasons, *describe_team(recipe, team)]:
            run.say(reason)
        if recipe.folds is None:
            (own,) = parts
            found = [*of_ancestry(own, recipe), *torn, *own.findings, *diagnosis.findings, *of_splits(own.images.table)]
            _settle(run.folder, recipe, own, before, _tell(run, found))
            if (line := of_earlier_runs(out, own)) is not None:
                run.say(line)
        else:
            told = _tell(run, diagnosis.findings)
            write_text(run.folder / RECIPE, recipe.to_toml())
            for number, own in enumerate(parts):
                folder = fold_folder(run.folder, number)
                folder.mkdir()
                lacking = map(str, of_splits(own.images.table))
                _settle(folder, recipe.replace(folds=None), own, before, [*told, *lacking])
    except BaseException:
        discard_if_empty(run.folder)
        raise
    return run.folder, recipe


def _go(run: Run, recipe: Recipe) -> None:
    """Train and report, from what the folder says."""
    with going_on(run, f"vitkit train --resume {run.folder}"):
        if recipe.folds is None:
            fit_and_report(run, recipe)
        else:
            cross_validate(run, recipe)


def resume(
    folder: str | Path,
    data_root: Path | None = None,
    *,
    callbacks: Sequence[Any] = (),
    loggers: Sequence[Any] = (),
    say: Say = print,
    progress: Progress = silent,
) -> Path:
    """Go on with a run that was interrupted, from its last finished epoch, to the weights it would have had.

    Args:
        folder: the run.
        data_root: the folder that holds its images now, which the run then remembers; None: where they were.
        callbacks: objects with some of `loop.HOOKS`.
        loggers: objects such as `loggers.Logger`, beside the recipe's.
        say: takes each line of the story.
        progress: told what is being done, how many are done, of how many.

    Raises:
        VitkitError: the folder holds no run, or another process works on it, or the root has not all of its images.
    """
    folder = Path(folder)
    if not (folder / RECIPE).is_file():
        raise VitkitError(f"{folder} is not a run folder: it has no {RECIPE}")
    recipe = load_of_run(folder / RECIPE)
    if recipe.data is None:
        raise VitkitError(f"{folder} was trained on datasets given from Python: give vitkit.train them with resume=")
    check_watchers(recipe, callbacks, loggers)
    team = assemble(recipe.devices, recipe.nodes, choose_device(recipe))
    check_team(recipe, team)
    with ExitStack() as hold, reading_once():
        team.by_first(lambda: _tidy(folder, data_root, progress, hold))
        _go(Run(folder, say, progress, team=team, callbacks=tuple(callbacks), loggers=tuple(loggers)), recipe)
    return folder


def _tidy(folder: Path, data_root: Path | None, progress: Progress, hold: ExitStack) -> None:
    hold_again(folder, hold)
    if data_root is not None:
        for split_file in sorted(folder.rglob(SPLIT)):
            move_run(split_file, data_root, progress)


def _parts(images: Images, recipe: Recipe, before: PictureRecord, progress: Progress) -> list[Divided]:
    """The images split as the recipe says: once, or with each fold in turn as its test images."""
    if recipe.folds is None:
        return [divide(images, recipe, before, progress)]
    table, groups = images.table, images.groups
    if any(table.splits):
        raise VitkitError(
            f"{table.name} comes already split; --folds makes its own parts: name a folder of class folders"
        )
    if recipe.split[0] <= 0:
        raise VitkitError(f"split must be three parts with something to train on, not {recipe.split}")
    overlap = refuse_folds(images, recipe, before, progress)
    fold_of = fold(table, recipe.folds, recipe.seed, groups)
    train, val, _ = recipe.split
    shares = (train / (train + val), val / (train + val), 0.0)
    parts = []
    for own in range(recipe.folds):
        tested = replace(table, splits=tuple("test" if other == own else "train" for other in fold_of))
        parts.append(Divided(replace(images, table=split(tested, shares, recipe.seed, groups)), overlap))
    return parts


def _limit(own: Divided, limit: int, seed: int) -> Divided:
    """The same with fewer training images."""
    limited = limit_training(own.images.table, limit, seed)
    place = {path: i for i, path in enumerate(own.images.table.paths)}
    kept = [place[path] for path in limited.paths]
    return replace(own, images=replace(own.images.take(kept), table=limited), overlap=own.overlap.take(kept))


def _tell(run: Run, findings: Iterable[Finding]) -> list[str]:
    told = list(dict.fromkeys(map(str, findings)))
    for finding in told:
        run.say(finding)
    return told


def _settle(folder: Path, recipe: Recipe, own: Divided, before: PictureRecord, findings: list[str]) -> None:
    """Write down all that training starts from, so that it can be resumed from here on."""
    table = own.images.table
    write_json(folder / FINDINGS, findings)
    write_json(folder / CLASS_INDICES, dict(enumerate(table.classes)))
    write_json(folder / SPLIT, {**split_to_dict(table), "contents": contents_of(own.images)})
    write_json(folder / GROUPS, groups_to_list(table, own.images.groups))
    write_bytes(folder / RECORD, record_after(own, before).to_bytes())
    write_text(folder / RECIPE, recipe.to_toml())
