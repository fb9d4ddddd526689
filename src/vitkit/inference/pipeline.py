"""Read and compute many images at once, in order and in bounded memory.

If a backend can compute in several threads (PyTorch on a CPU, OpenVINO), each core reads and computes batches of its
own from end to end, so that no core waits for another. Any other backend uses the cores by itself; its batches are
computed one at a time while the next ones are read.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain, islice
from threading import Event, Lock, local
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from vitkit.data.decode import UnreadableImageError
from vitkit.errors import NOT_FINITE, ShortageError, is_memory_short

if TYPE_CHECKING:
    from torch import Tensor

Row = npt.NDArray[np.float32] | str
T = TypeVar("T")
Images = TypeVar("Images", "Tensor", npt.NDArray[np.float32])  # of a model, and of a graph that needs no PyTorch
_THREADS_HERE = local()  # threads that a computation may take here, while PyTorch is not loaded

BATCH, BATCH_ALONE = 8, 32  # of a backend that computes in every thread, and of one that computes a batch at a time


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """Return the number of threads to compute with in this thread: PyTorch's number, or ours if it is not loaded.

    It begins as OMP_NUM_THREADS, or the number of cores.
    """
    of_torch = getattr(sys.modules.get("torch"), "get_num_threads", None)
    if of_torch is not None:
        return int(of_torch())
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return getattr(_THREADS_HERE, "threads", None) or (
        int(setting) if setting.isdecimal() and int(setting) else cores()
    )


def set_threads(count: int) -> None:
    """Have computations in this thread take so many. PyTorch's number becomes that of later threads, too."""
    of_torch = getattr(sys.modules.get("torch"), "set_num_threads", None)
    if of_torch is not None:
        of_torch(count)
    else:
        _THREADS_HERE.threads = count


def flow(
    sources: Iterable[T],
    read: Callable[[T], Images | str],
    compute: Callable[[Images], Images],
    batch_size: int,
    *,
    is_concurrent: bool,
) -> Iterator[tuple[T, Row]]:
    """Yield each source in order, with its row of the result or the reason why there is none.

    Args:
        sources: paths, or pictures in memory; taken a few batches ahead.
        read: a source -> (C, height, width), or a reason; called in several threads.
        compute: (B, C, height, width) -> (B, ...).
        batch_size: images computed at a time.
        is_concurrent: several threads may compute at once, each in a thread of its own.
    """
    batches = _in_batches(sources, batch_size)
    start = list(islice(batches, 2))
    if len(start) < 2:  # too few to share out: each step has all cores
        with ThreadPoolExecutor() as pool:
            for batch in start:
                yield from join(batch, list(pool.map(read, batch)), compute)
        return
    with _crew(is_concurrent) as (pool, count, ended):
        turn = nullcontext() if is_concurrent else Lock()

        def run(batch: list[T]) -> list[tuple[T, Row]]:
            images = [read(source) for source in batch if not ended.is_set()]
            with turn:
                return [] if ended.is_set() else join(batch, images, compute)

        waiting: deque[Future[list[tuple[T, Row]]]] = deque()
        for batch in chain(start, batches):
            waiting.append(pool.submit(run, batch))
            if len(waiting) == 2 * count:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch


def join(sources: list[T], images: list[Images | str], compute: Callable[[Images], Images]) -> list[tuple[T, Row]]:
    """Return the sources with the rows of all images that could be read, computed in one go."""
    readable = [image for image in images if not isinstance(image, str)]
    rows = iter(np.asarray(compute(_stack(readable))) if readable else ())
    return [
        (source, image if isinstance(image, str) else _if_finite(next(rows)))
        for source, image in zip(sources, images, strict=True)
    ]


def _stack(images: list[Images]) -> Images:
    if isinstance(images[0], np.ndarray):
        return np.stack(images)
    import torch

    return torch.stack(images)


def _if_finite(row: npt.NDArray[np.float32]) -> Row:
    return row if np.isfinite(row).all() else NOT_FINITE


@contextmanager
def _crew(is_concurrent: bool) -> Iterator[tuple[ThreadPoolExecutor, int, Event]]:
    """Threads, their number, and what tells them to stop; each computes in one thread if it may concurrently."""
    count = cores() if is_concurrent else cores() + 1  # one waits for its turn
    before, ended = threads(), Event()
    pool = ThreadPoolExecutor(count, initializer=partial(set_threads, 1 if is_concurrent else before))
    try:
        yield pool, count, ended
    finally:
        ended.set()
        pool.shutdown(cancel_futures=True)
        set_threads(before)  # what the pool's threads have set is also the default of later threads


def try_read(read: Callable[[T], Images], source: T) -> Images | str:
    """Return the input of an image, or the reason why it cannot be read."""
    try:
        return read(source)
    except UnreadableImageError as error:
        return str(error)


def unless_short(rows: Iterator[tuple[str, T]], batch_size: int) -> Iterator[tuple[str, T]]:
    """Iterate, and raise a `VitkitError` if memory runs out."""
    try:
        yield from rows
    except (MemoryError, RuntimeError) as error:
        if not is_memory_short(error):
            raise
        raise ShortageError(
            f"there is too little memory for {batch_size} images at a time: free some, or compute fewer at a time"
        ) from error
