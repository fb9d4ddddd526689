"""The trainings of a comparison, one after the other or side by side. Each is an ordinary run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from vitkit.data.whereabouts import refuse_changed
from vitkit.errors import VitkitError
from vitkit.evaluation.headline import headline_of
from vitkit.evaluation.registry import read_figures
from vitkit.experiments.comparison_job import check_run, is_done, make
from vitkit.experiments.comparison_plan import Job
from vitkit.system.progress import Progress, Say
from vitkit.system.run_files import EVALUATION, SPLIT
from vitkit.training.divergence import DivergedError


def make_all(jobs: Sequence[Job], out: Path, devices: int, say: Say, progress: Progress) -> dict[str, str]:
    """Train all jobs that are not finished. One that leads nowhere keeps none of the others from being trained.

    Args:
        jobs: one for each folder.
        out: of the comparison.
        devices: how many are trained at a time, each by a process of its own where there are several.
        say: takes a line for each run that is finished.
        progress: told which run is under way.

    Returns:
        What became of the trainings that are past help, by their folder.

    Raises:
        VitkitError: one cannot be trained at all; the others can go on later. Or a folder does not hold what its
            training left there, or images have changed since the first runs were trained.
        Interrupted: a signal stopped it.
    """
    done = [job for job in jobs if is_done(job, out)]
    left = [job for job in jobs if job not in done]
    if done:
        say(f"{len(done)} of {len(jobs)} runs are there already")
        for job in done:
            check_run(job, out)
        if left:
            refuse_changed(out / done[0].folder / SPLIT, "begin anew in another folder", progress)
    watch = _Watch(len(jobs), left, out, say)
    if devices > 1 and len(left) > 1:
        from vitkit.experiments.workers import make_side_by_side

        make_side_by_side(left, out, devices, watch.finished, watch.failed, progress)
        return watch.past_help
    for job in left:
        number = watch.number

        def tell(what: str, done: int, total: int | None, number: int = number, job: Job = job) -> None:
            progress(f"run {number} of {len(jobs)}: {job.described}: {what}", done, total)

        try:
            make(job, out, tell)
        except DivergedError as error:
            watch.failed(job, str(error))
            continue
        except VitkitError as error:
            raise VitkitError(f"run {number} of {len(jobs)} ({job.described}): {error}") from error
        watch.finished(job)
    return watch.past_help


class _Watch:
    """Counts the runs, and reckons how long the rest will take: by images, as the finished ones took."""

    def __init__(self, runs: int, left: Sequence[Job], out: Path, say: Say, now: Callable[[], float] = time.monotonic):
        self.number, self._runs, self._out, self._say, self._now = runs - len(left) + 1, runs, out, say, now
        self._images_left, self._images_done, self._began = sum(job.images for job in left), 0, now()
        self.past_help: dict[str, str] = {}

    def finished(self, job: Job) -> None:
        self._tell(job, headline_of(read_figures(self._out / job.folder / EVALUATION)).words)

    def failed(self, job: Job, why: str) -> None:
        self.past_help[job.folder] = why
        self._tell(job, why)

    def _tell(self, job: Job, outcome: str) -> None:
        self._images_done += job.images
        self._images_left -= job.images
        left = (self._now() - self._began) / self._images_done * self._images_left
        rest = f"; about {in_words(left)} left" if self._images_left else ""
        self._say(f"run {self.number} of {self._runs}: {job.described}: {outcome}{rest}")
        self.number += 1


def in_words(seconds: float) -> str:
    """`40 s`, `12 min` or `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
