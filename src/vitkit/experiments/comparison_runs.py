"""Run the trainings of a comparison, one after another or in parallel.

Each training is an ordinary run, which is resumed if it was interrupted.

If trainings run in parallel, each worker process (`system.processes`) trains one job at a time. A worker ends when its
parent process ends, even if the parent is killed. Therefore no worker keeps a folder locked that another process wants
to use.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import queue
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from vitkit.data import refuse_changed_images
from vitkit.errors import Interrupted, VitkitError
from vitkit.evaluation import headline_of, read_figures
from vitkit.experiments.comparison_plan import ComparisonJob
from vitkit.experiments.comparison_request import PLANNED
from vitkit.system import (
    EVALUATION,
    RECIPE,
    REPORT,
    SPLIT,
    Worker,
    choose_device,
    log,
    muted,
    receiver,
    reporting_within,
    serve_calls,
    write_json,
)
from vitkit.training import DivergedError, Recipe, remove_run_files, resume, train

COSTS = "costs"  # the folder next to the runs, with a file for each run


def train_job(job: ComparisonJob, out: Path) -> None:
    """Train a job or resume its training, and measure its peak memory."""
    folder, fields = out / job.folder, job.fields
    can_measure = _reset_peak_memory()
    if job.pretraining is not None and not (folder / RECIPE).is_file():
        from vitkit.training import Pretraining, pretrain, resume_pretraining, split_fields

        encoder = folder.with_name(f"{folder.name}-pretrained")
        if not (encoder / REPORT).is_file():
            options, recipe_fields = split_fields(dict(job.pretraining))
            start_pretraining = partial(pretrain, choices=Pretraining(**options))
            _start_or_resume(start_pretraining, resume_pretraining, recipe_fields, encoder)
        fields = {**fields, "weights": str(encoder)}
    _start_or_resume(train, resume, fields, folder)
    peak = _peak_memory() if can_measure else None
    if peak is not None:
        (out / COSTS).mkdir(exist_ok=True)
        write_json(out / COSTS / f"{folder.name}.json", {"peak_memory": peak})


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


def train_all(jobs: Sequence[ComparisonJob], out: Path, devices: int) -> dict[str, str]:
    """Train all jobs that are not finished, and return the error messages of those that diverged, by folder.

    With several `devices`, that many jobs are trained in parallel, each in a process of its own. Other errors are
    raised. After an error or a signal, the remaining jobs can be trained later.
    """
    finished = [job for job in jobs if (out / job.folder / REPORT).is_file()]
    remaining = [job for job in jobs if job not in finished]
    if finished:
        log.info(f"{len(finished)} of {len(jobs)} runs are finished already")
        if remaining:
            refuse_changed_images(out / finished[0].folder / SPLIT, "start again in another folder")
    messages: dict[str, str] = {}  # of the diverged runs
    number, start_time = len(finished) + 1, time.monotonic()
    images_done, images_left = 0, sum(job.images for job in remaining)

    def on_end(job: ComparisonJob, message: str | None) -> None:  # `message` is None unless the training diverged
        nonlocal number, images_done, images_left
        images_done += job.images
        images_left -= job.images
        seconds = (time.monotonic() - start_time) / images_done * images_left
        duration = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
        if seconds >= 90 * 60:
            duration = f"{seconds / 3600:.1f} h"
        rest = f"; about {duration} left" if images_left else ""
        if message is None:
            outcome = headline_of(read_figures(out / job.folder / EVALUATION)).words
        else:
            outcome = messages[job.folder] = message
        log.info(f"run {number} of {len(jobs)}: {job.described}: {outcome}{rest}")
        number += 1

    if devices > 1 and len(remaining) > 1:
        _train_in_parallel(remaining, out, devices, on_end)
        return messages
    for job in remaining:
        message = None
        try:
            with reporting_within(f"run {number} of {len(jobs)}: {job.described}"):
                train_job(job, out)
        except DivergedError as error:
            message = str(error)
        except VitkitError as error:
            raise VitkitError(error.code, f"run {number} of {len(jobs)} ({job.described}): {error}") from error
        on_end(job, message)
    return messages


def _train_in_parallel(
    jobs: Sequence[ComparisonJob], out: Path, devices: int, on_end: Callable[[ComparisonJob, str | None], None]
) -> None:
    """Train in up to `devices` worker processes. If a training diverges, the others go on; other errors are raised."""
    count = min(devices, len(jobs))
    workers = [
        Worker(__name__, environment=environment, is_detached=True)  # this process forwards Ctrl-C
        for environment in _environments(count, jobs[0].fields.get("device", "auto"))
    ]
    free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        free.put(worker)

    def train_on_free_worker(job: ComparisonJob) -> dict[str, Any]:
        worker = free.get()
        try:
            outcome: dict[str, Any] = worker.call((job, out))
        except (OSError, EOFError, ValueError, pickle.PickleError):  # ValueError: the pipe was closed
            return {"error": "its process ended", "code": "experiments.process-lost", "diverged": False}
        finally:
            free.put(worker)
        return outcome

    threads = ThreadPoolExecutor(count)
    try:
        job_of = {threads.submit(train_on_free_worker, job): job for job in jobs}
        receiver()("training", 0, len(jobs))
        for done, future in enumerate(as_completed(job_of), start=1):
            job, outcome = job_of[future], future.result()
            if outcome["error"] is not None and not outcome["diverged"]:
                code = outcome["code"]
                raise VitkitError(code, f"{job.described}: {outcome['error']}")
            on_end(job, outcome["error"])
            if done < len(jobs):
                receiver()("training", done, len(jobs))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:  # busy workers stop cleanly
            worker.close()
        for worker in workers:
            worker.wait()


def _environments(count: int, device: str) -> list[dict[str, str]]:
    """Return the environment variables of each worker, which give it its own GPU or its share of the cores."""
    threads = max((os.cpu_count() or 1) // count, 1)
    environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    if choose_device(device) != "cuda":
        return [environment] * count
    import torch

    gpus = torch.cuda.device_count()
    if count > gpus:
        raise VitkitError("experiments.devices-missing", f"--devices {count}, but this machine has {gpus}")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
    return [environment | {"CUDA_VISIBLE_DEVICES": visible[number]} for number in range(count)]


def _train_in_worker(job_and_folder: tuple[ComparisonJob, Path]) -> dict[str, Any]:
    # Return the error in plain types, because it may be impossible to pickle it.
    try:
        train_job(*job_and_folder)
    except (VitkitError, OSError, RuntimeError) as error:
        code = error.code if isinstance(error, VitkitError) else "experiments.run-failed"
        return {"error": str(error), "code": code, "diverged": isinstance(error, DivergedError)}
    except Interrupted:
        sys.exit(0)
    return {"error": None, "diverged": False}


# --- Peak memory ----------------------------------------------------------------------------------------------

# With a GPU, the peak is the maximum that torch has allocated on it. Otherwise, it is the peak resident memory of the
# process, including libraries, which can be reset only on Linux.


def _reset_peak_memory() -> bool:
    """Reset the peak memory, and return whether it can be measured. Unused memory is returned to the system first."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return True
    with suppress(OSError, AttributeError, TypeError):  # the last: on Windows
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak, see proc(5)
    except OSError:
        return False
    return True


def _peak_memory() -> int | None:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() or None  # 0 if the training used another device
    with suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
        match = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        return None if match is None else int(match[1]) * 1024
    return None


if __name__ == "__main__":
    serve_calls(_train_in_worker, stops_at_end=True)
