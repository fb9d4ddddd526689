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
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from vitkit.data import refuse_changed
from vitkit.errors import Interrupted, VitkitError
from vitkit.evaluation import headline_of, read_figures
from vitkit.experiments.comparison_plan import ComparisonJob
from vitkit.experiments.comparison_request import PLANNED
from vitkit.model_folder import DESCRIPTION, read_description
from vitkit.system import (
    EVALUATION,
    GROUPS,
    METRICS,
    PREDICTIONS,
    RECIPE,
    REPORT,
    SPLIT,
    Worker,
    answer_questions,
    choose_device,
    from_json,
    log,
    muted,
    receiver,
    reporting_within,
    write_json,
)
from vitkit.training import DivergedError, Recipe, clear, load_of_run, resume, train

COSTS, _DIGESTS = "costs", "digests"  # folders next to the runs, with a file for each run
# Files of a finished run that must not change; the last has the weights' digest.
_CHECKED_FILES = (RECIPE, SPLIT, GROUPS, METRICS, PREDICTIONS, EVALUATION, DESCRIPTION)
# Fields that distinguish the runs of a comparison and are not changed when a recipe is resolved.
_IDENTIFYING = ("seed", "max_images", "model", "model_fields", "method", "epochs")


def _digests_file(job: ComparisonJob, out: Path) -> Path:
    return out / _DIGESTS / f"{Path(job.folder).name}.json"


def _read_digests(folder: Path) -> dict[str, str]:
    files = {name: folder / name for name in _CHECKED_FILES if (folder / name).is_file()}
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}


def make(job: ComparisonJob, out: Path) -> None:
    """Train a job or resume its training, and measure its peak memory."""
    folder, fields = out / job.folder, job.fields
    is_begun, is_measured = (folder / RECIPE).is_file(), (folder / REPORT).is_file()
    if is_begun:
        expected, recipe = Recipe.of(fields, PLANNED), load_of_run(folder / RECIPE)
        for name in _IDENTIFYING:
            wanted, there = getattr(expected, name), getattr(recipe, name)
            if name in fields and wanted is not None and wanted != there:
                raise VitkitError(
                    "experiments.run-changed",
                    f"{folder} contains a run with {name} {there}, but the comparison expects {wanted}: restore the "
                    f"original run, or delete {folder} and continue with --resume",
                )
    can_measure = _reset_peak_memory()
    if job.pretraining is not None and not is_begun:
        from vitkit.training import Pretraining, pretrain, resume_pretraining, split_fields

        encoder = folder.with_name(f"{folder.name}-pretrained")
        if not (encoder / REPORT).is_file():
            options, shared = split_fields(dict(job.pretraining))
            begin = partial(pretrain, choices=Pretraining(**options))
            _finish(begin, resume_pretraining, shared, encoder)
        fields = {**fields, "weights": str(encoder)}
    _finish(train, resume, fields, folder)
    peak = _peak_memory() if can_measure else None
    (out / _DIGESTS).mkdir(exist_ok=True)
    write_json(_digests_file(job, out), _read_digests(folder))
    if peak is not None and not is_measured:  # a finished run is only evaluated again
        (out / COSTS).mkdir(exist_ok=True)
        write_json(out / COSTS / f"{folder.name}.json", {"peak_memory": peak})


def _finish(begin: Callable[..., Path], go_on: Callable[..., Path], fields: dict[str, Any], folder: Path) -> None:
    if (folder / RECIPE).is_file():
        with muted():
            go_on(folder)
        return
    if folder.is_dir():  # the run was killed before it wrote its recipe
        clear(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with muted():
        begin(Recipe.of(fields, PLANNED), folder)


def make_all(jobs: Sequence[ComparisonJob], out: Path, devices: int) -> dict[str, str]:
    """Train all jobs that are not finished, and return the error messages of those that diverged, by folder.

    `jobs` has one job for each folder. With several `devices`, each job is trained in its own process. After an error
    or a signal, the remaining jobs can be trained later.
    """
    done = [job for job in jobs if (out / job.folder / REPORT).is_file() and _digests_file(job, out).is_file()]
    left = [job for job in jobs if job not in done]
    if done:
        log.info(f"{len(done)} of {len(jobs)} runs are finished already")
        for job in done:
            folder = out / job.folder
            expected, now = from_json(_digests_file(job, out).read_text(encoding="utf-8")), _read_digests(folder)
            if changed := [name for name in _CHECKED_FILES if now.get(name) != expected.get(name)]:
                raise VitkitError(
                    "experiments.run-changed",
                    f"{folder / changed[0]} has changed since the training: it was edited, or belongs to another run; "
                    f"restore it, or delete {folder} and continue with --resume",
                )
            read_description(folder)  # compares the weights with their digest
        if left:
            refuse_changed(out / done[0].folder / SPLIT, "start again in another folder")
    diverged: dict[str, str] = {}
    number, began = len(done) + 1, time.monotonic()
    images_done, images_left = 0, sum(job.images for job in left)

    def ended(job: ComparisonJob, why: str | None) -> None:
        nonlocal number, images_done, images_left
        images_done, images_left = images_done + job.images, images_left - job.images
        seconds = (time.monotonic() - began) / images_done * images_left
        duration = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
        if seconds >= 90 * 60:
            duration = f"{seconds / 3600:.1f} h"
        rest = f"; about {duration} left" if images_left else ""
        if why is not None:
            diverged[job.folder] = why
        outcome = headline_of(read_figures(out / job.folder / EVALUATION)).words if why is None else why
        log.info(f"run {number} of {len(jobs)}: {job.described}: {outcome}{rest}")
        number += 1

    if devices > 1 and len(left) > 1:
        _make_side_by_side(left, out, devices, ended)
        return diverged
    for job in left:
        why = None
        try:
            with reporting_within(f"run {number} of {len(jobs)}: {job.described}"):
                make(job, out)
        except DivergedError as error:
            why = str(error)
        except VitkitError as error:
            raise VitkitError(error.code, f"run {number} of {len(jobs)} ({job.described}): {error}") from error
        ended(job, why)
    return diverged


def _make_side_by_side(
    jobs: Sequence[ComparisonJob], out: Path, devices: int, ended: Callable[[ComparisonJob, str | None], None]
) -> None:
    # Each process has its own GPU or its share of the cores.
    count = min(devices, len(jobs))
    workers = [
        Worker(__name__, environment=environment, is_detached=True)  # this process forwards Ctrl-C
        for environment in _environments(count, jobs[0].fields.get("device", "auto"))
    ]
    free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        free.put(worker)

    def ask(job: ComparisonJob) -> dict[str, Any]:
        worker = free.get()
        try:
            answer: dict[str, Any] = worker.ask((job, out))
        except (OSError, EOFError, ValueError, pickle.PickleError):  # ValueError: the pipe was closed
            return {"error": "its process ended", "code": "experiments.process-lost", "is_past_help": False}
        finally:
            free.put(worker)
        return answer

    threads = ThreadPoolExecutor(count)
    try:
        asked = {threads.submit(ask, job): job for job in jobs}
        receiver()("training", 0, len(jobs))
        for done, future in enumerate(as_completed(asked), start=1):
            job, answer = asked[future], future.result()
            if answer["error"] is not None and not answer["is_past_help"]:
                code = answer["code"]
                raise VitkitError(code, f"{job.described}: {answer['error']}")
            ended(job, answer["error"])
            if done < len(jobs):
                receiver()("training", done, len(jobs))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:  # busy workers stop cleanly
            worker.close()
        for worker in workers:
            worker.wait()


def _environments(count: int, device: str) -> list[dict[str, str]]:
    threads = max((os.cpu_count() or 1) // count, 1)
    environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    if choose_device(device) != "cuda":
        return [environment] * count
    import torch

    there = torch.cuda.device_count()
    if count > there:
        raise VitkitError("experiments.devices-missing", f"--devices {count}, but this machine has {there}")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(there)))).split(",")
    return [environment | {"CUDA_VISIBLE_DEVICES": visible[number]} for number in range(count)]


def _make(question: tuple[ComparisonJob, Path]) -> dict[str, Any]:
    try:
        make(*question)
    except (VitkitError, OSError, RuntimeError) as error:
        code = error.code if isinstance(error, VitkitError) else "experiments.run-failed"
        return {"error": str(error), "code": code, "is_past_help": isinstance(error, DivergedError)}
    except Interrupted:
        sys.exit(0)
    return {"error": None, "is_past_help": False}


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
    answer_questions(_make, stops_at_end=True)
