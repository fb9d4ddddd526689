"""Carry out runs: pass a `Run` through the stages of its kind, from the request to the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from vitkit.data.split_file import move_run, refuse_changed_images
from vitkit.errors import Interrupted, VitkitError
from vitkit.model_folder import WEIGHTS
from vitkit.system.files import exclusive_in
from vitkit.system.progress import reporting_to, silent
from vitkit.system.run_files import (
    LOG,
    METRICS,
    PRETRAINING,
    RECIPE,
    SPLIT,
    check_run_folder,
    folds_in,
    resume_command,
    run_of_fold,
)
from vitkit.training.cross_validation import cross_validate
from vitkit.training.distributed import check_team, form_process_group
from vitkit.training.finalize import OutOfFold
from vitkit.training.inputs import Inputs
from vitkit.training.loggers import check_hooks
from vitkit.training.recipe import Recipe
from vitkit.training.request import NO_HOOKS, Hooks, load_run_recipe
from vitkit.training.run_folder import Run, check_free, discard_if_empty, remove_temporary_files
from vitkit.training.stages.calibrate import calibrate
from vitkit.training.stages.evaluate import evaluate
from vitkit.training.stages.examine import examine_images
from vitkit.training.stages.fit import fit
from vitkit.training.stages.open import open_data
from vitkit.training.stages.report import report
from vitkit.training.stages.resolve import resolve
from vitkit.training.stages.split import split_images
from vitkit.training.stages.write import write_folds, write_inputs
from vitkit.training.start import choose_device

Stage = Callable[[Run], None]


@dataclass(frozen=True)
class Stages:
    """The stages of a kind of run, in order."""

    # Before the training, in the main process. The last stage writes what resuming needs into the run folder. When a
    # run is resumed, these stages are omitted.
    prepare: tuple[Stage, ...]
    fit: Stage  # in all processes together
    conclude: tuple[Stage, ...] = ()  # after the training, in the main process
    command: Callable[[Path], str] = resume_command  # returns the command that continues the run in a folder
    # Reads the inputs of the run from its folder, in processes that have not prepared it. None for datasets in Python.
    read_inputs: Callable[[Path], Inputs] | None = Inputs.read


PREPARE = (open_data, examine_images, split_images, resolve)  # these stages write no files
CONCLUDE = (calibrate, evaluate, report)
TRAINING = Stages((*PREPARE, write_inputs), fit, CONCLUDE)
FOLDS = Stages((*PREPARE, write_folds), partial(cross_validate, CONCLUDE))  # it concludes the run of each fold


def prepared(request: Recipe) -> Run:
    """Complete a requested recipe, whose `data` must be set, and divide its images. Nothing is trained or written.

    Unlike in a training, no linear probe is tested, which may replace the method that is chosen for `auto`.

    Raises:
        VitkitError: the data or the recipe cannot be trained on.
    """
    run = Run(request)
    for stage in (open_data, examine_images, split_images):
        stage(run)
    return run


def train(
    request: Recipe,
    out: str | Path | None = None,
    *,
    force: bool = False,
    notes: Sequence[str] = (),
    hooks: Hooks = NO_HOOKS,
) -> Path:
    """Train a classifier and report on it.

    Args:
        request: the requested recipe; its `data` must be set. Values for the fields that are not set are chosen for the
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
    if request.data is None:
        message = "the recipe names no data: set data to a folder with one sub-folder of images per class"
        raise VitkitError("training.data-missing", message)
    run = Run(request, None if out is None else Path(out), hooks=hooks, notes=notes, keeps_pictures=True)
    run.earlier_runs = [Path("runs")] if run.out is None else [Path("runs"), run.out.parent]
    return carry_out(run, TRAINING if request.folds is None else FOLDS, force=force)


def carry_out(run: Run, stages: Stages, *, force: bool = False) -> Path:
    """Pass a new run through its stages, and return its folder. With `force`, a run in this folder is overwritten."""

    @cache  # the stage `open_data` is repeated if another method is chosen, but the folder is locked only once
    def reserve(out: Path) -> None:
        run.exit_stack.enter_context(exclusive_in(out))
        check_free(out, force=force)

    def prepare() -> None:
        run.reserve = reserve
        for stage in stages.prepare:
            stage(run)

    return _pass_through(run, stages, prepare, is_new=True)


def continue_run(run: Run, folder: Path, stages: Stages, data_root: Path | None = None) -> Path:
    """Continue an interrupted run, and return its folder.

    Args:
        run: the run, with the recipe of its folder.
        folder: the folder of the run.
        stages: its stages; those before the training are omitted.
        data_root: the folder that now contains the images; None if they have not moved.
    """

    def prepare() -> None:
        check_team(run.request, run.team)
        run.hooks.check_resumed(folder)
        run.exit_stack.enter_context(exclusive_in(folder))
        for member in (folder, *folds_in(folder)):
            for name in (LOG, METRICS):
                if (member / name).is_symlink():
                    message = f"{member / name} is a link, but a run appends to it: replace it by the file"
                    raise VitkitError("training.file-is-link", message)
        remove_temporary_files(folder)
        for split_file in sorted(folder.rglob(SPLIT)):
            if data_root is not None:
                move_run(split_file, data_root)
            refuse_changed_images(split_file, "name the folder that contains them now: --data-root DIR")
        run.recipe = run.request
        run.set_folder(folder)
        run.out_of_fold = OutOfFold.read(folder)

    return _pass_through(run, stages, prepare, is_new=False)


def _pass_through(run: Run, stages: Stages, prepare: Callable[[], None], *, is_new: bool) -> Path:
    # Prepare the run in the main process, train in all processes, and conclude the run in the main process.
    check_hooks(run.request, run.hooks)
    run.team = form_process_group(run.request.devices, run.request.nodes, choose_device(run.request))

    def prepare_folder() -> tuple[Path, Recipe]:
        prepare()
        return run.folder, run.recipe

    with run.exit_stack:
        if not run.team.is_main:
            run.exit_stack.enter_context(reporting_to(silent))
        folder, run.recipe = run.team.broadcast_from_main(prepare_folder)
        if not run.team.is_main:
            run.set_folder(folder)
        try:
            if stages.read_inputs is not None and not hasattr(run, "inputs"):
                run.inputs = stages.read_inputs(folder)
            stages.fit(run)
            run.team.broadcast_from_main(lambda: [stage(run) for stage in stages.conclude])
        except Interrupted:
            if not any(folder.rglob(WEIGHTS)):
                run.say("stopped before there was a model")
            run.say(f"to continue: {stages.command(folder)}")
            raise
        except BaseException:
            if is_new and run.team.is_main:
                discard_if_empty(folder)
            raise
    return folder


def resume(folder: str | Path, data_root: Path | None = None, *, hooks: Hooks = NO_HOOKS) -> Path:
    """Continue an interrupted run from its last checkpoint. The final weights are the same as without the interruption.

    Args:
        folder: the folder of the run.
        data_root: the folder that now contains the images, which is recorded in the run; None if they have not moved.
        hooks: objects of the caller; its functions (loss, augment, optimizer) must be the same as at the start.

    Raises:
        VitkitError: the folder contains no run, another process works on it, or some of its images are missing or have
            changed.
    """
    folder = Path(folder)
    check_run_folder(folder)
    if (folder / PRETRAINING).is_file():
        raise VitkitError("training.run-kind", f"{folder} is a pre-training: vitkit pretrain --resume {folder}")
    if run_of_fold(folder) is not None:  # only the whole cross-validation has a lock and a final model
        message = f"{folder} is a fold of a cross-validation: continue that with {resume_command(folder)}"
        raise VitkitError("training.run-kind", message)
    recipe = load_run_recipe(folder / RECIPE)
    if recipe.data is None:
        message = f"{folder} was trained on datasets in Python: pass them to vitkit.train with resume="
        raise VitkitError("training.run-kind", message)
    stages = TRAINING if recipe.folds is None else FOLDS
    return continue_run(Run(recipe, hooks=hooks, keeps_pictures=True), folder, stages, data_root)
