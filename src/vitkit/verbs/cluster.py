"""Divide a command among several processes on this machine, or on the machines of a Ray cluster.

Each process opens the model once, and writes one part after another (`parts.write_part`). Complete parts are kept, so
an interrupted command continues when it is repeated. A process that dies is replaced, and the new process continues the
part after the last image that was written. On this machine, `system.processes` starts the processes. On a cluster, Ray
starts, places, restarts and retries the processes.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from pickle import PickleError
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal

from vitkit.errors import VitkitError, first_line
from vitkit.inference.pipeline import cores, limit_cores
from vitkit.system.files import exclusive_in
from vitkit.system.processes import Worker, answer_questions
from vitkit.system.progress import progress
from vitkit.verbs.inputs import check_choice
from vitkit.verbs.parts import SUFFIX, DividedJob, JobRequest, Part, Parts, find_parts, folder_of, write_part

if TYPE_CHECKING:
    from vitkit.classifier import Classifier

ClusterName = Literal["local", "ray"]
_NAME = re.compile(rf"\d+-of-(\d+)\{SUFFIX}")
_ATTEMPTS = 3  # times that a part is tried if the process that writes it dies
_PER_PART = 5_000  # images of a part, unless the command says how many parts there are
_PARTS_PER_WORKER = 4  # at least, so that no worker waits long for the last part of another
Answer = tuple[Part, str | None]  # a part, and the reason if it was not written
Write = Callable[[Sequence[Part]], Iterator[Answer]]

_RAY = "--cluster ray requires Ray: pip install 'vitkit[ray]'"


def check_cluster(
    *,
    out: Path | None,
    shard: str | None = None,
    cluster: str | None = None,
    workers: int | None = None,
    parts: int | None = None,
) -> bool:
    """Check the flags that divide a command into parts, and return whether one of them is set.

    Raises:
        VitkitError: a flag is invalid, excludes another one, or requires a flag that is missing.
    """
    if cluster is not None:
        check_choice("--cluster", cluster, ClusterName)
    if shard is not None and cluster is not None:
        raise VitkitError("--shard handles one part, and --cluster all of them: use only one of them")
    for flag, value in (("--workers", workers), ("--parts", parts)):
        if value is not None and cluster is None:
            raise VitkitError(f"{flag} requires --cluster")
    if out is None and (shard is not None or cluster is not None):
        raise VitkitError(
            f"{'--shard' if cluster is None else '--cluster'} requires --out, the output of all parts together"
        )
    if shard is not None:
        Part.of(shard)
    return shard is not None or cluster is not None


def check_model(model: str | Path | Classifier, flag: str) -> None:
    """Refuse a classifier in memory, which another process cannot open.

    Raises:
        VitkitError: the model is a classifier in memory.
    """
    if not isinstance(model, (str, Path)):
        raise VitkitError(f"{flag} requires a model that other processes can open: pass its folder or name")


@contextmanager
def parts_of_cluster(
    request: JobRequest,
    images: int,
    out: Path,
    *,
    cluster: ClusterName,
    workers: int | None,
    parts: int | None,
    force: bool,
) -> Iterator[Parts]:
    """Write all parts of a command, and yield them as a context manager.

    The parts are deleted if the `with` block ends without an error.

    Args:
        request: the arguments of the command, which are sent to the processes.
        images: the number of images of the command.
        out: the output of the command.
        cluster: `local` for processes on this machine, `ray` for those of a Ray cluster.
        workers: the number of processes. None means one per GPU; without GPUs, it means a single process, or with Ray
            one per machine.
        parts: the number of parts. None means the number of parts of an interrupted command. If there is no such
            command, it means a number that depends on `images` and the number of processes.
        force: whether to replace parts of another command.

    Raises:
        VitkitError: a part cannot be written, or Ray is not installed.
    """
    folder = folder_of(out)
    with exclusive_in(folder):
        run = {"local": _by_processes, "ray": _by_ray}[cluster]
        with run(request, out, workers, force=force) as (count_workers, write):
            count = parts or _earlier(folder) or max(_PARTS_PER_WORKER * count_workers, -(-images // _PER_PART))
            every = [Part(number, count) for number in range(1, count + 1)]
            progress("parts", 0, count)
            for done, (part, reason) in enumerate(write(every), 1):
                if reason is not None:
                    raise VitkitError(f"part {part}: {reason}")
                progress("parts", done, count)
        yield find_parts([part.file(out) for part in every])
    for part in every:
        part.file(out).unlink(missing_ok=True)
    with suppress(OSError):  # the folder may contain other files, such as parts of another command
        folder.rmdir()


def _earlier(folder: Path) -> int | None:
    """Return the number of parts into which an interrupted command was divided, according to the names of its parts.

    Return None if the folder contains no parts, or parts of commands that were divided differently.
    """
    counts = {int(match[1]) for file in folder.iterdir() if (match := _NAME.match(file.name))}
    return counts.pop() if len(counts) == 1 else None


@dataclass(frozen=True)
class _WorkerTask:
    """The first message to a worker.

    Attributes:
        request: the command.
        out: the output of the command.
        folder: the working directory, to which relative paths refer.
        cores: the number of cores to use.
        force: whether to replace parts of another command.
    """

    request: JobRequest
    out: Path
    folder: str
    cores: int
    force: bool


class _Writer:
    """The writer of parts in a worker process. It opens the model and the images only once."""

    def __init__(self, task: _WorkerTask) -> None:
        self._task = task
        self._opened: DividedJob | None = None  # opened by the first `write`, which returns the error if this fails

    def write(self, part: Part) -> Answer:
        """Write a part. Return the part and an error message, which is None if the part was written."""
        try:
            if self._opened is None:
                self._opened = self._open()
            write_part(self._opened, part, self._task.out, force=self._task.force)
        except (VitkitError, OSError) as error:
            return part, str(error)
        return part, None

    def _open(self) -> DividedJob:
        try:
            os.chdir(self._task.folder)
        except OSError as error:
            raise VitkitError(
                f"a worker cannot open the folder {self._task.folder} ({error.strerror}): "
                "every worker needs it under this path"
            ) from error
        limit_cores(self._task.cores)
        return self._task.request.job()


# --- Processes on this machine ------------------------------------------------------------------------------------


@contextmanager
def _by_processes(request: JobRequest, out: Path, workers: int | None, *, force: bool) -> Iterator[tuple[int, Write]]:
    devices = _gpus() if request.device in ("auto", "cuda") else []
    count = workers or max(1, len(devices))
    task = _WorkerTask(request, out.absolute(), os.getcwd(), max(1, cores() // count), force)  # noqa: PTH109
    environments = [{"CUDA_VISIBLE_DEVICES": devices[i % len(devices)]} if devices else {} for i in range(count)]
    processes = [_Process(task, environment) for environment in environments]
    idle: SimpleQueue[_Process] = SimpleQueue()
    for process in processes:
        idle.put(process)

    def write(part: Part) -> Answer:
        process = idle.get()
        try:
            return process.write(part)
        finally:
            idle.put(process)

    pool = ThreadPoolExecutor(count)

    def write_all(parts: Sequence[Part]) -> Iterator[Answer]:
        return (future.result() for future in as_completed([pool.submit(write, part) for part in parts]))

    try:
        yield count, write_all
    finally:
        for process in processes:
            process.close()
        pool.shutdown(cancel_futures=True)
        for process in processes:
            process.wait()


class _Process:
    """A worker process on this machine. It is started for its first part, and restarted if it dies."""

    def __init__(self, task: _WorkerTask, environment: dict[str, str]) -> None:
        self._task, self._environment = task, environment
        self._worker: Worker | None = None
        self._is_closed = False

    def write(self, part: Part) -> Answer:
        """Write a part. Return the part and an error message, which is None if the part was written."""
        for _ in range(_ATTEMPTS):
            if self._is_closed:
                break
            try:
                if self._worker is None:
                    self._worker = Worker(__name__, environment=self._environment, is_detached=True)
                    self._worker.ask(self._task)
                answer: Answer = self._worker.ask(part)
                return answer
            except (EOFError, OSError, PickleError):
                self.wait()
        return part, f"its process died {_ATTEMPTS} times, perhaps for lack of memory: use fewer --workers"

    def close(self) -> None:
        """End the process after its current part, and do not start another one."""
        self._is_closed = True
        if self._worker is not None:
            self._worker.close()

    def wait(self) -> None:
        """End the process after its current part, and wait until it has ended."""
        if self._worker is not None:
            self._worker.close()
            self._worker.wait()
            self._worker = None


def _gpus() -> list[str]:
    """Return the names of the CUDA devices that this process may use."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return [str(i) for i in range(count)] if named is None else named.split(",")[:count]


def serve() -> None:
    """Answer the parent process: receive the command as the first message, and write each requested part."""
    writers: list[_Writer] = []

    def answer(question: _WorkerTask | Part) -> Answer | None:
        if isinstance(question, Part):
            return writers[0].write(question)
        writers.append(_Writer(question))
        return None

    answer_questions(answer, stops_at_end=True)


# --- Ray ----------------------------------------------------------------------------------------------------------


def share_of_nodes(nodes: Sequence[tuple[int, int]], workers: int) -> tuple[float, float]:
    """Return the largest numbers of cores and GPUs per worker with which all workers can run at the same time.

    Ray starts a worker only on a machine where this share is free. With a larger share, Ray would wait forever for such
    a machine. If there are more workers than GPUs or cores, several workers share one.

        >>> share_of_nodes([(16, 4), (16, 4)], workers=8), share_of_nodes([(2, 0)], workers=4)
        ((4.0, 1.0), (0.5, 0.0))

    Args:
        nodes: the numbers of cores and GPUs of each machine.
        workers: the number of workers.
    """
    cores, gpus = (sum(node[i] for node in nodes) for i in (0, 1))
    per_gpu = -(-workers // gpus) if gpus else 0  # workers on a GPU

    def places(of_node: tuple[int, int], share: float) -> int:
        fit = int(of_node[0] / share + 1e-9)
        return min(fit, of_node[1] * per_gpu) if gpus else fit

    shares = [*range(cores // workers, 0, -1), *(_part_of_one(several) for several in range(2, workers + 1))]
    share = next((share for share in shares if sum(places(node, share) for node in nodes) >= workers), 0.0)
    return float(share), _part_of_one(per_gpu) if gpus else 0.0


def _part_of_one(workers: int) -> float:
    """Return the fraction of a core or GPU for each of several workers, rounded down to Ray's unit of 1/10,000."""
    return 10_000 // workers / 10_000


@contextmanager
def _by_ray(request: JobRequest, out: Path, workers: int | None, *, force: bool) -> Iterator[tuple[int, Write]]:
    try:
        import ray
        from ray.exceptions import RayError
        from ray.util import ActorPool
    except ImportError as error:
        raise VitkitError(_RAY) from error
    was_connected = ray.is_initialized()
    if not was_connected:
        handler = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
        # The cluster of RAY_ADDRESS, or the one that runs on this machine, or a new one.
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray's handler exits with another code, and prints a stack trace
    try:
        may_use_gpus = request.device in ("auto", "cuda")
        nodes = [
            (int(node["Resources"].get("CPU", 0)), int(node["Resources"].get("GPU", 0)) if may_use_gpus else 0)
            for node in ray.nodes()
            if node["Alive"]
        ]
        count = workers or sum(gpus for _, gpus in nodes) or len(nodes)
        cores, gpus = share_of_nodes(nodes, count)
        actor = ray.remote(_Writer).options(
            num_cpus=cores, num_gpus=gpus, max_restarts=-1, max_task_retries=_ATTEMPTS - 1
        )
        task = _WorkerTask(request, out.absolute(), os.getcwd(), max(1, int(cores)), force)  # noqa: PTH109

        def write_all(parts: Sequence[Part]) -> Iterator[Answer]:
            pool = ActorPool([actor.remote(task) for _ in range(count)])
            try:
                yield from pool.map_unordered(lambda writer, part: writer.write.remote(part), parts)
            except RayError as error:
                raise VitkitError(f"a worker failed: {first_line(getattr(error, 'cause', None) or error)}") from error

        yield count, write_all
    finally:
        if not was_connected:
            ray.shutdown()


if __name__ == "__main__":
    serve()
