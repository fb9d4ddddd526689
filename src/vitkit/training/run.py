"""Carry out runs: pass a `Run` through the stages of its kind, from the request to the report.

The stages before the training, and those after it, run in the main process. All processes train together. A run is
written into its folder before the training starts, so that another process can resume it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import vitkit
from vitkit.data.doctor.examine import Finding, check_splits
from vitkit.data.split_file import move_run, refuse_changed
from vitkit.errors import VitkitError
from vitkit.system.files import read_appended, write_bytes
from vitkit.system.progress import reporting_to, silent
from vitkit.system.run_files import (
    LABELS,
    PRETRAINING,
    RECIPE,
    SPLIT,
    check_run_folder,
    fold_folder,
    resume_command,
    run_of_fold,
)
from vitkit.training.cross_validation import cross_validate
from vitkit.training.distributed import assemble, check_team, describe_team
from vitkit.training.finalize import OutOfFold
from vitkit.training.inputs import Inputs
from vitkit.training.lineage import ancestry_findings, note_shared_tests
from vitkit.training.loggers import check_hooks
from vitkit.training.recipe import Recipe, name_of
from vitkit.training.request import NONE, Hooks, load_of_run
from vitkit.training.run_folder import (
    Run,
    cleanup_on_failure,
    clear,
    discard_if_empty,
    lock_run,
    new_run_folder,
    reporting,
    reserve_folder,
    write_request,
)
from vitkit.training.stages.calibrate import calibrate
from vitkit.training.stages.evaluate import evaluate
from vitkit.training.stages.examine import examine_images
from vitkit.training.stages.fit import fit
from vitkit.training.stages.open import open_data
from vitkit.training.stages.report import report
from vitkit.training.stages.resolve import resolve
from vitkit.training.stages.split import split_images
from vitkit.training.start import choose_device

Stage = Callable[[Run], None]


@dataclass(frozen=True)
class Stages:
    """The stages of a kind of run, in order.

    Attributes:
        prepare: the stages that complete the recipe and divide the images. They write nothing.
        write: writes what resuming needs into the folder of the run.
        fit: trains, in all processes.
        conclude: the stages after the training.
        again: a function that returns the command that continues an interrupted run, given its folder.
    """

    prepare: tuple[Stage, ...]
    write: Callable[[Run, ExitStack], None]
    fit: Stage
    conclude: tuple[Stage, ...] = ()
    again: Callable[[Path], str] = resume_command


PREPARE = (open_data, examine_images, split_images, resolve)


def prepared(asked: Recipe, earlier_runs: Sequence[Path] = (Path("runs"),), *, chooses_method: bool = False) -> Run:
    """Complete a requested recipe and divide its images, without training and without writing anything.

    Args:
        asked: the requested recipe; `data` must be set.
        earlier_runs: folders that contain earlier runs, whose models may have proposed labels of these images.
        chooses_method: whether the method `auto` is chosen by testing a linear probe, as in a training.

    Raises:
        VitkitError: the data or the recipe cannot be trained on.
    """
    run = Run(asked, earlier_runs=earlier_runs)
    for stage in PREPARE if chooses_method else PREPARE[:-1]:
        stage(run)
    return run


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
    run = Run(asked, None if out is None else Path(out), hooks=hooks, notes=notes, keeps_pictures=True)
    run.earlier_runs = list(dict.fromkeys([Path("runs"), *([] if run.out is None else [run.out.parent])]))
    return carry_out(run, TRAINING if asked.folds is None else FOLDS, force=force)


def carry_out(run: Run, stages: Stages, *, force: bool = False) -> Path:
    """Pass a new run through its stages, and return its folder.

    Args:
        run: the run, with its requested recipe.
        stages: its stages.
        force: overwrite the run in the requested folder.
    """

    def prepare(hold: ExitStack) -> None:
        run.reserve = partial(reserve_folder, hold=hold, force=force)
        for stage in stages.prepare:
            stage(run)
        stages.write(run, hold)

    return _drive(run, stages, prepare)


def continue_run(run: Run, folder: Path, stages: Stages, data_root: Path | None = None) -> Path:
    """Continue an interrupted run, and return its folder.

    Args:
        run: the run, with the recipe of its folder.
        folder: the folder of the run.
        stages: its stages, of which those before the training are left out.
        data_root: the folder that now contains the images; None if they have not moved.
    """

    def prepare(hold: ExitStack) -> None:
        check_team(run.asked, run.team)
        run.hooks.check_resumed(folder)
        lock_run(folder, hold)
        for split_file in sorted(folder.rglob(SPLIT)):
            if data_root is not None:
                move_run(split_file, data_root)
            refuse_changed(split_file, "name the folder that contains them now: --data-root DIR")
        run.recipe = run.asked
        run.enter(folder)
        run.out_of_fold = OutOfFold.read(folder)

    return _drive(run, stages, prepare)


def _drive(run: Run, stages: Stages, prepare: Callable[[ExitStack], None]) -> Path:
    """Start the processes, prepare the run in the main process, train in all, and conclude in the main process."""
    check_hooks(run.asked, run.hooks)
    run.team = assemble(run.asked.devices, run.asked.nodes, choose_device(run.asked))
    with ExitStack() as hold:
        if not run.team.is_main:
            hold.enter_context(reporting_to(silent))

        def begin() -> tuple[Path, Recipe]:
            prepare(hold)
            return run.folder, run.recipe

        folder, run.recipe = run.team.broadcast_from_main(begin)
        if not run.team.is_main:
            run.enter(folder)
        with cleanup_on_failure(run, stages.again(folder)):
            if not hasattr(run, "inputs") and (folder / SPLIT).is_file():
                run.inputs = Inputs.read(folder)
            stages.fit(run)
            with reporting(run):
                run.team.broadcast_from_main(lambda: [stage(run) for stage in stages.conclude])
    return folder


def _write(run: Run, hold: ExitStack) -> None:
    """Choose the folder of a run, and write the request and the inputs of the training into it."""
    with begun_folder(run, hold, run.source.root.name):
        introduce(run, f"training {name_of(run.recipe)} on {run.source.place}")
        (part,) = run.parts
        findings = [*ancestry_findings(part, run.recipe), *run.torn, *part.findings, *run.findings]
        findings = tell(run, [*findings, *check_splits(part.images.table)])
        run.inputs = Inputs.of(part, run.before, findings)
        run.inputs.write(run.folder, run.recipe)
        if (line := note_shared_tests(run.out, part)) is not None:
            run.say(line)


def _write_folds(run: Run, hold: ExitStack) -> None:
    """Do the same for a cross-validation, whose folds have folders of their own."""
    with begun_folder(run, hold, run.source.root.name):
        introduce(run, f"training {name_of(run.recipe)} on {run.source.place}")
        findings = tell(run, run.findings)
        for number, part in enumerate(run.parts):
            folder = fold_folder(run.folder, number)
            folder.mkdir()
            own_findings = [*findings, *part.findings, *check_splits(part.images.table)]
            inputs = run.inputs_of_folds[folder] = Inputs.of(part, run.before, own_findings)
            inputs.write(folder, run.recipe.replace(folds=None))
        assert run.undivided is not None
        run.inputs = Inputs.of(run.undivided, run.before, findings)
        run.inputs.write(run.folder, run.recipe)


@contextmanager
def begun_folder(run: Run, hold: ExitStack, name: str, fields: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Choose and empty the folder of a run, and write the request into it. Remove the files if the context fails.

    Args:
        run: the run.
        hold: the stack that holds the lock.
        name: the name of the folder if none was requested: the next free `runs/NAME-N`.
        fields: the fields that the user has set; None for those of the requested recipe.
    """
    labels = None if run.asked.labels is None else read_appended(Path(run.asked.labels))  # it may lie in the folder
    folder = run.out if run.out is not None else new_run_folder(name, hold)
    try:
        clear(folder)
        run.enter(folder)
        write_request(folder, run.asked.set_fields() if fields is None else fields)
        run.hooks.write(folder)
        if labels is not None:
            write_bytes(folder / LABELS, labels)
        yield
    except BaseException:
        discard_if_empty(folder)
        raise


def introduce(run: Run, task: str) -> None:
    """Print what the run is, and the reasons for what was chosen for it."""
    run.say(f"vitkit {vitkit.__version__}: {task}")
    for reason in [
        *filter(None, [run.source.layout]),
        *run.notes,
        *dict.fromkeys(run.idle),
        *run.reasons,
        *describe_team(run.recipe, run.team),
    ]:
        run.say(reason)


def tell(run: Run, findings: Sequence[Finding]) -> list[Finding]:
    """Print each finding once, and return the printed findings."""
    findings = list(dict.fromkeys(findings))
    for finding in findings:
        run.say(str(finding))
    return findings


TRAINING = Stages(PREPARE, _write, fit, (calibrate, evaluate, report))
FOLDS = Stages(PREPARE, _write_folds, cross_validate)


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
    if (folder / PRETRAINING).is_file():
        raise VitkitError(f"{folder} is a pre-training: vitkit pretrain --resume {folder}")
    if run_of_fold(folder) is not None:  # the lock and the final model are those of the cross-validation
        raise VitkitError(f"{folder} is a fold of a cross-validation: continue that with {resume_command(folder)}")
    recipe = load_of_run(folder / RECIPE)
    if recipe.data is None:
        raise VitkitError(f"{folder} was trained on datasets in Python: pass them to vitkit.train with resume=")
    stages = TRAINING if recipe.folds is None else FOLDS
    return continue_run(Run(recipe, hooks=hooks, keeps_pictures=True), folder, stages, data_root)
