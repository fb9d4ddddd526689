"""Run the trainings of a comparison or an experiment. Each is an ordinary run, which is resumed after a stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vitkit.data import refuse_changed_images
from vitkit.errors import VitkitError
from vitkit.evaluation import headline_of, read_figures
from vitkit.experiments.comparison_plan import ComparisonJob
from vitkit.experiments.comparison_request import PLANNED
from vitkit.system import EVALUATION, RECIPE, REPORT, SPLIT, log, muted, reporting_within
from vitkit.training import DivergedError, Recipe, remove_run_files, resume, train


def train_job(job: ComparisonJob, out: Path) -> None:
    """Train a job, or resume its training."""
    folder, fields = out / job.folder, job.fields
    if job.pretraining is not None and not (folder / RECIPE).is_file():
        from vitkit.training import Pretraining, pretrain, resume_pretraining, split_fields

        encoder = folder.with_name(f"{folder.name}-pretrained")
        if not (encoder / REPORT).is_file():
            options, recipe_fields = split_fields(dict(job.pretraining))
            start_pretraining = partial(pretrain, choices=Pretraining(**options))
            _start_or_resume(start_pretraining, resume_pretraining, recipe_fields, encoder)
        fields = {**fields, "weights": str(encoder)}
    _start_or_resume(train, resume, fields, folder)


def _start_or_resume(
    start: Callable[..., Path], resume_run: Callable[..., Path], fields: dict[str, Any], folder: Path
) -> None:
    with muted():
        if (folder / RECIPE).is_file():
            resume_run(folder)
            return
        if folder.is_dir():  # the run was killed before it wrote its recipe
            remove_run_files(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        start(Recipe.of(fields, PLANNED), folder)


def train_all(jobs: Sequence[ComparisonJob], out: Path) -> dict[str, str]:
    """Train all jobs that are not finished, and return the error messages of those that diverged, by folder.

    Other errors are raised. After an error or a signal, the remaining jobs can be trained later.
    """
    finished = [job for job in jobs if (out / job.folder / REPORT).is_file()]
    remaining = [job for job in jobs if job not in finished]
    if finished:
        log.info(f"{len(finished)} of {len(jobs)} runs are finished already")
        if remaining:
            refuse_changed_images(out / finished[0].folder / SPLIT, "start again in another folder")
    diverged: dict[str, str] = {}
    start_time, images_done = time.monotonic(), 0
    images_left = sum(job.images for job in remaining)
    for number, job in enumerate(remaining, start=len(finished) + 1):
        run = f"run {number} of {len(jobs)}"
        try:
            with reporting_within(f"{run}: {job.described}"):
                train_job(job, out)
            outcome = headline_of(read_figures(out / job.folder / EVALUATION)).words
        except DivergedError as error:
            outcome = diverged[job.folder] = str(error)
        except VitkitError as error:
            raise VitkitError(error.code, f"{run} ({job.described}): {error}") from error
        images_done += job.images
        images_left -= job.images
        seconds = (time.monotonic() - start_time) / images_done * images_left
        duration = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
        if seconds >= 90 * 60:
            duration = f"{seconds / 3600:.1f} h"
        rest = f"; about {duration} left" if images_left else ""
        log.info(f"{run}: {job.described}: {outcome}{rest}")
    return diverged
