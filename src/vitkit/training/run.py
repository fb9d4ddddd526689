"""A run from beginning to end: read the data, look for what spoils it, split it, train, report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import vitkit
from vitkit.data.doctor.findings import Finding, of_splits
from vitkit.data.pictures import PictureRecord
from vitkit.data.split_file import groups_to_list, split_to_dict
from vitkit.data.table import ImageTable
from vitkit.data.whereabouts import move_run, refuse_changed
from vitkit.errors import VitkitError
from vitkit.model_folder import RECORD
from vitkit.system.files import read_appended, write_bytes, write_json, write_text
from vitkit.system.progress import Progress, Say, silent
from vitkit.system.run_files import (
    CLASS_INDICES,
    FINDINGS,
    GROUPS,
    LABELS,
    PRETRAINING,
    PROPOSALS,
    RECIPE,
    SELECTION,
    SPLIT,
    fold_folder,
)
from vitkit.training.architecture import weights_of
from vitkit.training.candidates import choose_and_settle
from vitkit.training.cross_validation import cross_validate
from vitkit.training.distributed import Team, assemble, check_team, describe_team
from vitkit.training.effects import check_effects
from vitkit.training.fit import fit_and_report
from vitkit.training.lineage import (
    Divided,
    contents_of,
    of_earlier_runs,
    record_after,
)
from vitkit.training.loggers import check_watchers
from vitkit.training.recipe import Recipe, build
from vitkit.training.recipe_files import load_of_run
from vitkit.training.recipe_names import name_of
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
from vitkit.training.setup import choose_device
from vitkit.weights.read import reading_once


def train(
    recipe: Recipe | dict[str, Any],
    out: str | Path | None = None,
    *,
    force: bool = False,
    notes: Sequence[str] = (),
    named: Collection[str] = (),
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
        named: the fields that the user named for this training, as opposed to those of a recipe file.
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
        folder, settled = team.by_first(lambda: _prepare(fields, named, out, force, team, notes, say, progress, hold))
        _go(Run(folder, say, progress, team=team, callbacks=tuple(callbacks), loggers=tuple(loggers)), settled)
    return folder


def _prepare(
    fields: dict[str, Any],
    named: Collection[str],
    out: str | Path | None,
    force: bool,
    team: Team,
    notes: Sequence[str],
    say: Say,
    progress: Progress,
    hold: ExitStack,
) -> tuple[Path, Recipe]:
    """Settle everything that the recipe leaves open, and write it into the run's folder, which is held from then on."""

    idle: list[str] = []

    def take_place(table: ImageTable, recipes: Sequence[Recipe]) -> None:
        for recipe in recipes:
            idle.extend(check_effects(recipe, fields, named, table))
            check_team(recipe, team)
            check_place(out, table, recipe.teacher, weights_of(recipe))
        if out is not None:
            hold_given(out, hold, force=force)

    beside = dict.fromkeys([Path("runs"), *([] if out is None else [Path(out).parent])])
    settled, selection = choose_and_settle(fields, progress, take_place, list(beside))
    recipe, table = settled.recipe, settled.table
    run = Run(Path(out) if out is not None else hold_next(table.root.name, hold), say, progress)
    labels = None if recipe.labels is None else read_appended(Path(recipe.labels))
    try:
        clear(run.folder)
        if labels is not None:
            write_bytes(run.folder / LABELS, labels)
        run.say(f"vitkit {vitkit.__version__}: training {name_of(recipe)} on {table.root}")
        tried = [] if selection is None else selection.lines()
        for reason in [
            *filter(None, [table.layout]),
            *notes,
            *dict.fromkeys(idle),
            *tried,
            *settled.reasons,
            *describe_team(recipe, team),
        ]:
            run.say(reason)
        if selection is not None:
            write_json(run.folder / SELECTION, selection.to_dict())
        if recipe.folds is None:
            (own,) = settled.parts
            write_start(run.folder, recipe, own, settled.before, tell(run, settled.findings_of(own)))
            if (line := of_earlier_runs(out, own)) is not None:
                run.say(line)
        else:
            told = tell(run, settled.findings)
            write_text(run.folder / RECIPE, recipe.to_toml())
            for number, own in enumerate(settled.parts):
                folder = fold_folder(run.folder, number)
                folder.mkdir()
                lacking = map(str, of_splits(own.images.table))
                write_start(folder, recipe.replace(folds=None), own, settled.before, [*told, *lacking])
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
        VitkitError: the folder holds no run, or another process works on it, or some of its images are gone or hold
            other pictures now.
    """
    folder = Path(folder)
    if not (folder / RECIPE).is_file():
        raise VitkitError(f"{folder} is not a run folder: it has no {RECIPE}")
    if (folder / PRETRAINING).is_file():
        raise VitkitError(f"{folder} is a pre-training: vitkit pretrain --resume {folder}")
    recipe = load_of_run(folder / RECIPE)
    if recipe.data is None:
        raise VitkitError(f"{folder} was trained on datasets given from Python: give vitkit.train them with resume=")
    with taken_up(folder, recipe, data_root, callbacks, loggers, say, progress) as run:
        _go(run, recipe)
    return folder


@contextmanager
def taken_up(
    folder: Path,
    recipe: Recipe,
    data_root: Path | None,
    callbacks: Sequence[Any],
    loggers: Sequence[Any],
    say: Say,
    progress: Progress,
) -> Iterator[Run]:
    """A run that is to go on, held meanwhile, by all processes of its recipe."""
    check_watchers(recipe, callbacks, loggers)
    team = assemble(recipe.devices, recipe.nodes, choose_device(recipe))
    check_team(recipe, team)
    with ExitStack() as hold, reading_once():
        team.by_first(lambda: _tidy(folder, data_root, progress, hold))
        yield Run(folder, say, progress, team=team, callbacks=tuple(callbacks), loggers=tuple(loggers))


def _tidy(folder: Path, data_root: Path | None, progress: Progress, hold: ExitStack) -> None:
    """Hold a run that is to go on, whose images may be elsewhere now."""
    hold_again(folder, hold)
    if data_root is not None:
        for split_file in sorted(folder.rglob(SPLIT)):
            move_run(split_file, data_root, progress)
    for split_file in sorted(folder.rglob(SPLIT)):
        refuse_changed(split_file, "say where they are now: --data-root DIR", progress)


def tell(run: Run, findings: Iterable[Finding]) -> list[str]:
    """Say each finding once; what was said."""
    told = list(dict.fromkeys(map(str, findings)))
    for finding in told:
        run.say(finding)
    return told


def write_start(
    folder: Path,
    recipe: Recipe,
    own: Divided,
    before: PictureRecord,
    findings: list[str],
    *,
    has_labels: bool = True,
) -> None:
    """Write down all that training starts from, so that it can be resumed from here on.

    Args:
        folder: of the run.
        recipe: settled.
        own: its images.
        before: what the weights had seen.
        findings: what the doctor found.
        has_labels: whether the images' classes are learned.
    """
    table = own.images.table
    write_json(folder / FINDINGS, findings)
    if has_labels:
        write_json(folder / CLASS_INDICES, dict(enumerate(table.classes)))
    write_json(folder / SPLIT, {**split_to_dict(table), "contents": contents_of(own.images)})
    if own.proposals:
        write_json(folder / PROPOSALS, [proposal._asdict() for proposal in own.proposals])
    write_json(folder / GROUPS, groups_to_list(table, own.images.groups))
    write_bytes(folder / RECORD, record_after(own, before, has_labels=has_labels).to_bytes())
    write_text(folder / RECIPE, recipe.to_toml())
