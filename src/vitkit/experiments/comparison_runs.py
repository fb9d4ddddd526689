"""Carry out the trainings of a comparison, one after another or side by side. Each is an ordinary run.

A training starts from its beginning or from where it was stopped. When a run is finished, the digests of the files that
its figures come from are written beside it, so that a folder that was swapped, or whose files were edited, is noticed.

Side by side, worker processes receive jobs as lines of JSON. A worker ends with the pipe from the process that started
it, however that process ends, so that no worker stays behind in a folder that another process wants to use.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import RawIOBase
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
from vitkit.system.files import from_json, to_json, write_json
from vitkit.system.progress import Say, ignore, progress, reporting_within
from vitkit.system.run_files import EVALUATION, GROUPS, METRICS, PREDICTIONS, RECIPE, REPORT, SPLIT
from vitkit.system.stopping import python
from vitkit.training import run
from vitkit.training.recipe import build
from vitkit.training.recipe_files import load_of_run
from vitkit.training.run_folder import clear
from vitkit.training.stability import DivergedError

COSTS = "costs"  # a folder beside the runs: what of each was measured from outside


DIGESTS = "digests"  # likewise: what each run's files hold
_SEALED = (RECIPE, SPLIT, GROUPS, METRICS, PREDICTIONS, EVALUATION, DESCRIPTION)  # the last names the weights' digest
# Fields that tell the runs of one comparison apart and that settling a recipe does not change.
_TELLING = ("seed", "max_images", "model", "model_fields", "method", "epochs")


def is_finished(folder: Path) -> bool:
    """Return whether a run has written the last of its files."""
    return (folder / REPORT).is_file()


def is_done(job: ComparisonJob, out: Path) -> bool:
    """Return whether a job's run is finished and its results are recorded."""
    return is_finished(out / job.folder) and _digests_of(job, out).is_file()


def check_run(job: ComparisonJob, out: Path) -> None:
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


def _check_recipe(job: ComparisonJob, folder: Path) -> None:
    """Hold that the run in a folder is that of the job, before it goes on."""
    expected, recipe = build(dict(job.fields)), load_of_run(folder / RECIPE)
    for name in _TELLING:
        wanted, there = getattr(expected, name), getattr(recipe, name)
        if name in job.fields and wanted is not None and wanted != there:
            raise VitkitError(
                f"{folder} holds a run with {name} {there}, but the comparison expects {wanted}: restore the original "
                f"run, or delete {folder} and continue with --resume"
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
    """Train a job from its beginning, or from where it was stopped, and measure its memory.

    Raises:
        VitkitError: it cannot be trained, or its folder holds another run.
        Interrupted: a signal stopped it.
    """

    folder, fields = out / job.folder, job.fields
    if (folder / RECIPE).is_file():
        _check_recipe(job, folder)
    is_measured = is_finished(folder)  # it was trained before, and is only evaluated again
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
    """Make a run from its beginning, or go on with it where it was stopped."""
    if (folder / RECIPE).is_file():
        resume(folder, say=ignore)
        return
    if folder.is_dir():  # killed before its recipe was written, which comes last
        clear(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    begin(fields, folder, say=ignore)


def make_all(jobs: Sequence[ComparisonJob], out: Path, devices: int, say: Say) -> dict[str, str]:
    """Train all jobs that are not finished. One that leads nowhere keeps none of the others from being trained.

    Args:
        jobs: one for each folder.
        out: the out of the comparison.
        devices: how many are trained at a time, each by a process of its own where there are several.
        say: takes a line for each run that is finished.

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
            refuse_changed(out / done[0].folder / SPLIT, "begin anew in another folder")
    watch = _Watch(len(jobs), left, out, say)
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


class _Watch:
    """Count the runs and estimate the remaining time from the images of the finished ones."""

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
    """Train jobs by several processes, each on a GPU of its own, or on its part of the cores.

    Args:
        jobs: the jobs to train.
        out: the out of the comparison.
        devices: how many processes.
        finished: called with each job that is finished.
        failed: called with each whose training is past help, and why.

    Raises:
        VitkitError: there are not as many GPUs, or a job cannot be trained.
    """
    count = min(devices, len(jobs))
    workers = [_start(environment) for environment in _environments(count, jobs[0].fields.get("device", "auto"))]
    messages: queue.Queue[tuple[int, str]] = queue.Queue()
    for number, worker in enumerate(workers):
        threading.Thread(target=_listen, args=(number, worker, messages), daemon=True).start()
    left, busy = list(reversed(jobs)), dict[int, ComparisonJob]()
    try:
        for number in range(count):
            busy[number] = left.pop()
            _give(workers[number], busy[number], out)
        while busy:
            progress("training", len(jobs) - len(left) - len(busy), len(jobs))
            number, line = messages.get()
            if number not in busy:
                continue
            job = busy.pop(number)
            answer: dict[str, Any] = from_json(line) if line else {"error": "its process ended", "is_past_help": False}
            if answer["error"] is None:
                finished(job)
            elif answer["is_past_help"]:
                failed(job, answer["error"])
            else:
                raise VitkitError(f"{job.described}: {answer['error']}")
            if left:
                busy[number] = left.pop()
                _give(workers[number], busy[number], out)
    finally:
        _end(workers)


def _environments(count: int, device: str) -> list[dict[str, str]]:
    """Return the environment of each worker, which determines its device."""
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


def _start(environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603  # this program
        python(__name__),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        start_new_session=True,  # Ctrl-C reaches them through who started them
    )


def _give(worker: subprocess.Popen[str], job: ComparisonJob, out: Path) -> None:
    assert worker.stdin is not None
    with suppress(BrokenPipeError):  # its end is told by the other pipe
        worker.stdin.write(to_json({"out": str(out), "job": vars(job)}) + "\n")
        worker.stdin.flush()


def _listen(number: int, worker: subprocess.Popen[str], messages: queue.Queue[tuple[int, str]]) -> None:
    assert worker.stdout is not None
    for line in worker.stdout:
        messages.put((number, line))
    messages.put((number, ""))


def _end(workers: Sequence[subprocess.Popen[str]]) -> None:
    """Let those that are at work stop in good order, and wait for all."""
    for worker in workers:
        assert worker.stdin is not None
        with suppress(BrokenPipeError):
            worker.stdin.close()
    for worker in workers:
        worker.wait()


# --- In a worker ----------------------------------------------------------------------------------------------


def main() -> None:
    """Train the jobs that come, until the pipe ends; at its end in the midst of one, stop it in good order."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever libraries print is no answer
    pipe = open(os.dup(sys.stdin.fileno()), "rb", buffering=0)  # noqa: SIM115, PTH123  # until the process ends
    # A process that prepares images is forked from this one and closes its sys.stdin, for which it would wait for
    # ever while a thread reads from it here.
    sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123
    lines: queue.Queue[bytes] = queue.Queue()
    at_work = threading.Event()
    threading.Thread(target=_read, args=(pipe, lines, at_work), daemon=True).start()
    while line := lines.get():
        at_work.set()
        answer = _make(from_json(line.decode()))
        at_work.clear()
        with suppress(BrokenPipeError):
            print(to_json(answer), file=answers, flush=True)


def _read(pipe: RawIOBase, lines: queue.Queue[bytes], at_work: threading.Event) -> None:
    for line in pipe:
        lines.put(line)
    lines.put(b"")
    if at_work.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


def _make(request: dict[str, Any]) -> dict[str, Any]:
    """Train a job; why it could not be, if so."""
    from vitkit.training.stability import DivergedError

    try:
        make(ComparisonJob(**request["job"]), Path(request["out"]))
    except (VitkitError, OSError, RuntimeError) as error:
        return {"error": str(error), "is_past_help": isinstance(error, DivergedError)}
    except Interrupted:
        sys.exit(0)
    return {"error": None, "is_past_help": False}


if __name__ == "__main__":
    main()


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # as proc(5) has it


class PeakMemory:
    """Measure the peak memory of a `with` block.

    On a GPU it is what torch's allocator has given out there. Elsewhere it is the largest resident memory of the
    process, libraries and all, as Linux counts it once its mark is set back; `malloc` is asked to hand back what is
    free before, so that work done earlier does not count.

    Attributes:
        peak: bytes, once the block has ended; None where the system does not say.
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
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        try:
            _CLEAR.write_text(_RESET_PEAK)
        except OSError:
            self._is_set = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import torch

        if self._on_gpu:
            self.peak = torch.cuda.max_memory_allocated() or None  # 0: it was computed elsewhere
        elif self._is_set and sys.platform == "linux":
            self.peak = _peak_of_process()


def _peak_of_process() -> int | None:
    with suppress(OSError):
        match = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
        return None if match is None else int(match[1]) * 1024
    return None
