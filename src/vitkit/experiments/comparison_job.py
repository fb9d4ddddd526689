"""One training of a comparison, from its beginning or from where it was stopped, and whether its folder is still it.

When a run is finished, the digests of the files that its figures come from are written beside it. A folder that was
swapped with another, or whose files were edited, is not believed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.experiments.comparison_plan import Job
from vitkit.model_folder import DESCRIPTION, read_description
from vitkit.system.files import from_json, write_json
from vitkit.system.progress import Progress, silent, unsaid
from vitkit.system.run_files import EVALUATION, GROUPS, METRICS, PREDICTIONS, RECIPE, REPORT, SPLIT
from vitkit.training import run
from vitkit.training.recipe import build
from vitkit.training.recipe_files import load_of_run
from vitkit.training.run_folder import clear

COSTS = "costs"  # a folder beside the runs: what of each was measured from outside


DIGESTS = "digests"  # likewise: what each run's files hold
_SEALED = (RECIPE, SPLIT, GROUPS, METRICS, PREDICTIONS, EVALUATION, DESCRIPTION)  # the last names the weights' digest
# Fields that tell the runs of one comparison apart and that settling a recipe does not change.
_TELLING = ("seed", "max_images", "model", "model_fields", "method", "epochs")


def is_finished(folder: Path) -> bool:
    """Whether a run has written the last of its files."""
    return (folder / REPORT).is_file()


def is_done(job: Job, out: Path) -> bool:
    """Whether a job's run is finished, and what its files hold is written down."""
    return is_finished(out / job.folder) and _digests_of(job, out).is_file()


def check_run(job: Job, out: Path) -> None:
    """Hold that the files in a finished run's folder are those that its training left.

    Raises:
        VitkitError: one is gone, was edited, or belongs to another run.
    """
    folder = out / job.folder
    expected = from_json(_digests_of(job, out).read_text(encoding="utf-8"))
    now = _read_digests(folder)
    if changed := [name for name in _SEALED if now.get(name) != expected.get(name)]:
        raise VitkitError(
            f"{folder / changed[0]} is not what the training left there: it was edited, or is another run's; put back "
            f"what was there, or delete {folder} and --resume"
        )
    read_description(folder)  # which compares the weights with their digest


def _check_recipe(job: Job, folder: Path) -> None:
    """Hold that the run in a folder is that of the job, before it goes on."""
    asked, found = build(dict(job.fields)), load_of_run(folder / RECIPE)
    for name in _TELLING:
        wanted, there = getattr(asked, name), getattr(found, name)
        if name in job.fields and wanted is not None and wanted != there:
            raise VitkitError(
                f"{folder} holds a run with {name} {there}, and the comparison has one with {wanted} there: put back "
                f"what was there, or delete {folder} and --resume"
            )


def _digests_of(job: Job, out: Path) -> Path:
    return out / DIGESTS / f"{Path(job.folder).name}.json"


def _read_digests(folder: Path) -> dict[str, str]:
    found = {}
    for name in _SEALED:
        if (folder / name).is_file():
            found[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return found


def make(job: Job, out: Path, progress: Progress = silent) -> None:
    """Train a job from its beginning, or from where it was stopped, and measure its memory.

    Raises:
        VitkitError: it cannot be trained, or its folder holds another run.
        Interrupted: a signal stopped it.
    """
    from vitkit.profiling.memory import PeakMemory

    folder, fields = out / job.folder, job.fields
    if (folder / RECIPE).is_file():
        _check_recipe(job, folder)
    is_measured = is_finished(folder)  # it was trained before, and is only evaluated again
    with PeakMemory() as memory:
        if job.pretraining is not None and not (folder / RECIPE).is_file():
            from vitkit.training.pretraining import run as pretraining

            encoder = folder.with_name(f"{folder.name}-pretrained")
            if not is_finished(encoder):
                _finish(pretraining.pretrain, pretraining.resume, dict(job.pretraining), encoder, progress)
            fields = {**fields, "weights": str(encoder)}
        _finish(run.train, run.resume, fields, folder, progress)
    (out / DIGESTS).mkdir(exist_ok=True)
    write_json(_digests_of(job, out), _read_digests(folder))
    if memory.peak is not None and not is_measured:
        (out / COSTS).mkdir(exist_ok=True)
        write_json(out / COSTS / f"{folder.name}.json", {"peak_memory": memory.peak})


def _finish(
    begin: Callable[..., Path],
    resume: Callable[..., Path],
    fields: dict[str, Any],
    folder: Path,
    progress: Progress,
) -> None:
    """Make a run from its beginning, or go on with it where it was stopped."""
    if (folder / RECIPE).is_file():
        resume(folder, say=unsaid, progress=progress)
        return
    if folder.is_dir():  # killed before its recipe was written, which comes last
        clear(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    begin(fields, folder, say=unsaid, progress=progress)
