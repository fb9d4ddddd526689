"""Run the trainings of a comparison, one after another or in parallel.

Each training is an ordinary run, which is resumed if it was interrupted. After a run, the digests of its result files
are stored next to its folder. With these digests, exchanged folders and edited files are detected.

If trainings run in parallel, each worker process (`system.processes`) trains one job at a time. A worker ends when its
parent process ends, even if the parent is killed. Therefore no worker keeps a folder locked that another process wants
to use.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import pickle
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vitkit.data.split_file import refuse_changed
from vitkit.errors import Interrupted, VitkitError
from vitkit.evaluation.headline import headline_of
from vitkit.evaluation.registry import read_figures
from vitkit.experiments.comparison_plan import ComparisonJob
from vitkit.model_folder import DESCRIPTION, read_description
from vitkit.system.environment import choose_device
from vitkit.system.files import from_json, write_json
from vitkit.system.processes import Worker, answer_questions
from vitkit.system.progress import Say, ignore, progress, reporting_within
from vitkit.system.run_files import EVALUATION, GROUPS, METRICS, PREDICTIONS, RECIPE, REPORT, SPLIT
from vitkit.training import run
from vitkit.training.recipe import build
from vitkit.training.request import load_of_run
from vitkit.training.run_folder import clear
from vitkit.training.stability import DivergedError

COSTS = "costs"  # a folder next to the runs: the peak memory of each run


DIGESTS = "digests"  # a folder next to the runs: the digests of each run's files
_SEALED = (RECIPE, SPLIT, GROUPS, METRICS, PREDICTIONS, EVALUATION, DESCRIPTION)  # the last has the weights' digest
# Fields that distinguish the runs of a comparison and are not changed when a recipe is resolved.
_TELLING = ("seed", "max_images", "model", "model_fields", "method", "epochs")


def is_finished(folder: Path) -> bool:
    """Return whether a run is finished, that is, whether it has written its last file."""
    return (folder / REPORT).is_file()


def is_done(job: ComparisonJob, out: Path) -> bool:
    """Return whether a job's run is finished and the digests of its files are stored."""
    return is_finished(out / job.folder) and _digests_of(job, out).is_file()


def check_run(job: ComparisonJob, out: Path) -> None:
    """Check that the files in a finished run's folder have not changed since its training.

    Raises:
        VitkitError: a file is missing, was edited, or belongs to another run.
    """
    folder = out / job.folder
    expected = from_json(_digests_of(job, out).read_text(encoding="utf-8"))
    now = _read_digests(folder)
    if changed := [name for name in _SEALED if now.get(name) != expected.get(name)]:
        raise VitkitError(
            f"{folder / changed[0]} has changed since the training: it was edited, or belongs to another run; restore "
            f"it, or delete {folder} and continue with --resume"
        )
    read_description(folder)  # compares the weights with their digest


def _check_recipe(job: ComparisonJob, folder: Path) -> None:
    """Check that the run in a folder belongs to this job, so that it can be continued.

    Raises:
        VitkitError: the run has another recipe.
    """
    expected, recipe = build(dict(job.fields)), load_of_run(folder / RECIPE)
    for name in _TELLING:
        wanted, there = getattr(expected, name), getattr(recipe, name)
        if name in job.fields and wanted is not None and wanted != there:
            raise VitkitError(
                f"{folder} contains a run with {name} {there}, but the comparison expects {wanted}: restore the "
                f"original run, or delete {folder} and continue with --resume"
            )


def _digests_of(job: ComparisonJob, out: Path) -> Path:
    return out / DIGESTS / f"{Path(job.folder).name}.json"


def _read_digests(folder: Path) -> dict[str, str]:
    digests = {}
    for name in _SEALED:
        if (folder / name).is_file():
            digests[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return digests


def make(job: ComparisonJob, out: Path) -> None:
    """Train a job or resume its training, and measure its peak memory.

    Raises:
        VitkitError: the job cannot be trained, or its folder contains another run.
        Interrupted: a signal stopped the training.
    """

    folder, fields = out / job.folder, job.fields
    if (folder / RECIPE).is_file():
        _check_recipe(job, folder)
    is_measured = is_finished(folder)  # then it is only evaluated again
    with PeakMemory() as memory:
        if job.pretraining is not None and not (folder / RECIPE).is_file():
            from vitkit.training.pretraining import pretrain as pretraining

            encoder = folder.with_name(f"{folder.name}-pretrained")
            if not is_finished(encoder):
                _finish(pretraining.pretrain, pretraining.resume, dict(job.pretraining), encoder)
            fields = {**fields, "weights": str(encoder)}
        _finish(run.train, run.resume, fields, folder)
    (out / DIGESTS).mkdir(exist_ok=True)
    write_json(_digests_of(job, out), _read_digests(folder))
    if memory.peak is not None and not is_measured:
        (out / COSTS).mkdir(exist_ok=True)
        write_json(out / COSTS / f"{folder.name}.json", {"peak_memory": memory.peak})


def _finish(begin: Callable[..., Path], resume: Callable[..., Path], fields: dict[str, Any], folder: Path) -> None:
    """Resume the run in a folder if the folder contains a recipe; otherwise, start a run there."""
    if (folder / RECIPE).is_file():
        resume(folder, say=ignore)
        return
    if folder.is_dir():  # the run was killed before it wrote its recipe
        clear(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    begin(fields, folder, say=ignore)


def make_all(jobs: Sequence[ComparisonJob], out: Path, devices: int, say: Say) -> dict[str, str]:
    """Train all jobs that are not finished. If one diverges, the others are still trained.

    Args:
        jobs: one job for each folder.
        out: the folder of the comparison.
        devices: the number of jobs that are trained at a time. If there are several, each has its own process.
        say: called with a line for each finished run.

    Returns:
        The error messages of the trainings that diverged, by folder.

    Raises:
        VitkitError: a job cannot be trained, files of a finished run have changed, or images have changed since the
            first runs. The remaining jobs can be trained later.
        Interrupted: a signal stopped the trainings.
    """
    done = [job for job in jobs if is_done(job, out)]
    left = [job for job in jobs if job not in done]
    if done:
        say(f"{len(done)} of {len(jobs)} runs are finished already")
        for job in done:
            check_run(job, out)
        if left:
            refuse_changed(out / done[0].folder / SPLIT, "start again in another folder")
    watch = _RunMonitor(len(jobs), left, out, say)
    if devices > 1 and len(left) > 1:
        make_side_by_side(left, out, devices, watch.finished, watch.failed)
        return watch.past_help
    for job in left:
        number = watch.number
        try:
            with reporting_within(f"run {number} of {len(jobs)}: {job.described}"):
                make(job, out)
        except DivergedError as error:
            watch.failed(job, str(error))
            continue
        except VitkitError as error:
            raise VitkitError(f"run {number} of {len(jobs)} ({job.described}): {error}") from error
        watch.finished(job)
    return watch.past_help


class _RunMonitor:
    """Report each run that ends, with the remaining time as estimated from the numbers of training images."""

    def __init__(
        self, runs: int, left: Sequence[ComparisonJob], out: Path, say: Say, now: Callable[[], float] = time.monotonic
    ):
        self.number, self._runs, self._out, self._say, self._now = runs - len(left) + 1, runs, out, say, now
        self._images_left, self._images_done, self._began = sum(job.images for job in left), 0, now()
        self.past_help: dict[str, str] = {}

    def finished(self, job: ComparisonJob) -> None:
        self._tell(job, headline_of(read_figures(self._out / job.folder / EVALUATION)).words)

    def failed(self, job: ComparisonJob, why: str) -> None:
        self.past_help[job.folder] = why
        self._tell(job, why)

    def _tell(self, job: ComparisonJob, outcome: str) -> None:
        self._images_done += job.images
        self._images_left -= job.images
        left = (self._now() - self._began) / self._images_done * self._images_left
        rest = f"; about {in_words(left)} left" if self._images_left else ""
        self._say(f"run {self.number} of {self._runs}: {job.described}: {outcome}{rest}")
        self.number += 1


def in_words(seconds: float) -> str:
    """Return a duration as `40 s`, `12 min` or `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def make_side_by_side(
    jobs: Sequence[ComparisonJob],
    out: Path,
    devices: int,
    finished: Callable[[ComparisonJob], None],
    failed: Callable[[ComparisonJob, str], None],
) -> None:
    """Train jobs in several processes, each on its own GPU or its share of the cores.

    Args:
        jobs: the jobs to train.
        out: the folder of the comparison.
        devices: the number of processes.
        finished: called with each finished job.
        failed: called with each job whose training diverged, and the reason.

    Raises:
        VitkitError: there are fewer GPUs than processes, or a job cannot be trained.
    """
    count = min(devices, len(jobs))
    workers = [
        Worker(__name__, environment=environment, is_detached=True)  # this process forwards Ctrl-C
        for environment in _environments(count, jobs[0].fields.get("device", "auto"))
    ]
    left: queue.SimpleQueue[ComparisonJob] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[ComparisonJob, dict[str, Any]]] = queue.SimpleQueue()
    for job in jobs:
        left.put(job)
    for worker in workers:
        threading.Thread(target=_hand_out, args=(worker, left, answers, out), daemon=True).start()
    try:
        for done in range(len(jobs)):
            progress("training", done, len(jobs))
            job, answer = answers.get()
            if answer["error"] is None:
                finished(job)
            elif answer["is_past_help"]:
                failed(job, answer["error"])
            else:
                raise VitkitError(f"{job.described}: {answer['error']}")
    finally:
        while not left.empty():
            with suppress(queue.Empty):
                left.get_nowait()
        for worker in workers:  # busy workers stop cleanly
            worker.close()
        for worker in workers:
            worker.wait()


def _hand_out(
    worker: Worker,
    left: queue.SimpleQueue[ComparisonJob],
    answers: queue.SimpleQueue[tuple[ComparisonJob, dict[str, Any]]],
    out: Path,
) -> None:
    """Let a worker train one job after another from the queue `left`, and put its answers into the queue `answers`."""
    while True:
        try:
            job = left.get_nowait()
        except queue.Empty:
            return
        try:
            answers.put((job, worker.ask((job, out))))
        except (OSError, EOFError, ValueError, pickle.PickleError):  # ValueError: the pipe was closed
            answers.put((job, {"error": "its process ended", "is_past_help": False}))
            return


def _environments(count: int, device: str) -> list[dict[str, str]]:
    """Return the environment variables of each worker, which select its GPU and its number of threads."""
    threads = max((os.cpu_count() or 1) // count, 1)
    environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    if choose_device(device) != "cuda":
        return [environment] * count
    import torch

    there = torch.cuda.device_count()
    if count > there:
        raise VitkitError(f"--devices {count}, but this machine has {there}")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(there)))).split(",")
    return [environment | {"CUDA_VISIBLE_DEVICES": visible[number]} for number in range(count)]


def _make(question: tuple[ComparisonJob, Path]) -> dict[str, Any]:
    """Train a job in a worker.

    Returns:
        `error`, the error message or None, and `is_past_help`, whether the training diverged.
    """
    from vitkit.training.stability import DivergedError

    try:
        make(*question)
    except (VitkitError, OSError, RuntimeError) as error:
        return {"error": str(error), "is_past_help": isinstance(error, DivergedError)}
    except Interrupted:
        sys.exit(0)
    return {"error": None, "is_past_help": False}


def main() -> None:
    """Run a worker: train the jobs that arrive. When the pipe is closed, stop the current training cleanly."""
    answer_questions(_make, stops_at_end=True)


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # see proc(5)


class PeakMemory:
    """Measure the peak memory of a `with` block.

    With a GPU, this is the maximum that torch has allocated on it. Otherwise, it is the peak resident memory of the
    process, including libraries. This peak is reset at the beginning of the block, which is possible only on Linux.
    Before the reset, unused memory is returned to the system, so that it does not count.

    Attributes:
        peak: the peak in bytes, set at the end of the block; None if it cannot be measured.
    """

    peak: int | None = None

    def __enter__(self) -> Self:
        import torch

        gc.collect()
        self._on_gpu = torch.cuda.is_available()
        self._is_set = True
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
            return self
        with suppress(OSError, AttributeError, TypeError):  # the last: on Windows
            ctypes.CDLL(None).malloc_trim(0)
        try:
            _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
        except OSError:
            self._is_set = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import torch

        if self._on_gpu:
            self.peak = torch.cuda.max_memory_allocated() or None  # 0 if the block used another device
        elif self._is_set and sys.platform == "linux":
            self.peak = _peak_of_process()


def _peak_of_process() -> int | None:
    with suppress(OSError):
        match = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        return None if match is None else int(match[1]) * 1024
    return None


if __name__ == "__main__":
    main()
