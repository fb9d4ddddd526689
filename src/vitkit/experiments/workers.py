"""Trainings side by side: processes that take jobs, a line of JSON each, until there are no more.

A worker lives on a pipe from who started it. When that process ends, however it ends, the pipe does too, and the worker
stops its training in good order: nobody is left at work in a folder that another process wants to go on in.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import RawIOBase
from pathlib import Path
from typing import Any

from vitkit.errors import Interrupted, VitkitError
from vitkit.experiments.comparison_plan import Job
from vitkit.system.devices import choose_device
from vitkit.system.files import from_json, to_json
from vitkit.system.processes import python
from vitkit.system.progress import Progress


def make_side_by_side(
    jobs: Sequence[Job],
    out: Path,
    devices: int,
    finished: Callable[[Job], None],
    failed: Callable[[Job, str], None],
    progress: Progress,
) -> None:
    """Train jobs by several processes, each on a GPU of its own, or on its part of the cores.

    Args:
        jobs: to be trained.
        out: of the comparison.
        devices: how many processes.
        finished: called with each job that is finished.
        failed: called with each whose training is past help, and why.
        progress: told how many are.

    Raises:
        VitkitError: there are not as many GPUs, or a job cannot be trained.
    """
    count = min(devices, len(jobs))
    workers = [_start(environment) for environment in _environments(count, jobs[0].fields.get("device", "auto"))]
    told: queue.Queue[tuple[int, str]] = queue.Queue()
    for number, worker in enumerate(workers):
        threading.Thread(target=_listen, args=(number, worker, told), daemon=True).start()
    left, busy = list(reversed(jobs)), dict[int, Job]()
    try:
        for number in range(count):
            busy[number] = left.pop()
            _give(workers[number], busy[number], out)
        while busy:
            progress("training", len(jobs) - len(left) - len(busy), len(jobs))
            number, line = told.get()
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
    """Where each worker computes."""
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


def _give(worker: subprocess.Popen[str], job: Job, out: Path) -> None:
    assert worker.stdin is not None
    with suppress(BrokenPipeError):  # its end is told by the other pipe
        worker.stdin.write(to_json({"out": str(out), "job": vars(job)}) + "\n")
        worker.stdin.flush()


def _listen(number: int, worker: subprocess.Popen[str], told: queue.Queue[tuple[int, str]]) -> None:
    assert worker.stdout is not None
    for line in worker.stdout:
        told.put((number, line))
    told.put((number, ""))


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


def _make(asked: dict[str, Any]) -> dict[str, Any]:
    """Train a job; why it could not be, if so."""
    from vitkit.experiments.comparison_job import make
    from vitkit.training.divergence import DivergedError

    try:
        make(Job(**asked["job"]), Path(asked["out"]))
    except (VitkitError, OSError, RuntimeError) as error:
        return {"error": str(error), "is_past_help": isinstance(error, DivergedError)}
    except Interrupted:
        sys.exit(0)
    return {"error": None, "is_past_help": False}


if __name__ == "__main__":
    main()
