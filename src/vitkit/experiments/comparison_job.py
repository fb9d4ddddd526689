"""One training of a comparison, from its beginning or from where it was stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitkit.experiments.comparison_plan import Job
from vitkit.system.files import write_json
from vitkit.system.progress import Progress, silent, unsaid
from vitkit.system.run_files import RECIPE, REPORT
from vitkit.training import run
from vitkit.training.run_folder import clear

COSTS = "costs"  # a folder beside the runs: what of each was measured from outside


def is_finished(folder: Path) -> bool:
    """Whether a run has written the last of its files."""
    return (folder / REPORT).is_file()


def make(job: Job, out: Path, progress: Progress = silent) -> None:
    """Train a job from its beginning, or from where it was stopped, and measure its memory.

    Raises:
        VitkitError: it cannot be trained.
        Interrupted: a signal stopped it.
    """
    from vitkit.profiling.memory import PeakMemory

    folder, fields = out / job.folder, job.fields
    with PeakMemory() as memory:
        if job.pretraining is not None and not (folder / RECIPE).is_file():
            from vitkit.training.pretraining import run as pretraining

            encoder = folder.with_name(f"{folder.name}-pretrained")
            if not is_finished(encoder):
                _finish(pretraining.pretrain, pretraining.resume, dict(job.pretraining), encoder, progress)
            fields = {**fields, "weights": str(encoder)}
        _finish(run.train, run.resume, fields, folder, progress)
    if memory.peak is not None:
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
