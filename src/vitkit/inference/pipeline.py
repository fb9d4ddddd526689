"""Read and predict many images concurrently, in order and in bounded memory.

If a backend can compute in several threads (PyTorch on a CPU, OpenVINO), each core reads and computes batches of its
own, so that no core waits for another. Any other backend distributes a batch over the cores by itself. Its batches are
computed one at a time while threads read the next ones.
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
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from vitkit.data.decode import UnreadableImageError
from vitkit.errors import NOT_FINITE, ShortageError, is_memory_short

if TYPE_CHECKING:
    from torch import Tensor

Row = npt.NDArray[np.float32] | str
T = TypeVar("T")
Images = TypeVar("Images", "Tensor", npt.NDArray[np.float32])  # the input of a model, or of a graph without PyTorch
_SETTING = local()  # `threads`: the number from `set_threads` in this thread, while PyTorch is not loaded

BATCH = 8  # default batch size of backends that compute in several threads at once
BATCH_ALONE = 32  # default batch size of other backends


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads() -> int:
    """Return the number of threads that a computation started in this thread uses.

    If PyTorch is loaded, this is PyTorch's setting. Otherwise it is the number from `set_threads`, by default
    OMP_NUM_THREADS or the number of cores.
    """
    torch_threads = getattr(sys.modules.get("torch"), "get_num_threads", None)
    if torch_threads is not None:
        return int(torch_threads())
    if hasattr(_SETTING, "threads"):
        return int(_SETTING.threads)
    variable = os.environ.get("OMP_NUM_THREADS", "")
    count = int(variable) if variable.isdecimal() else 0
    return count or cores()


def set_threads(count: int) -> None:
    """Set the number that `threads` returns in this thread. If PyTorch is loaded, new threads inherit the number."""
    set_torch_threads = getattr(sys.modules.get("torch"), "set_num_threads", None)
    if set_torch_threads is not None:
        set_torch_threads(count)
    else:
        _SETTING.threads = count


def compute_in_order(
    sources: Iterable[T],
    read: Callable[[T], Images | str],
    compute: Callable[[Images], Images],
    batch_size: int,
    *,
    is_concurrent: bool,
) -> Iterator[tuple[T, Row]]:
    """Yield each source, in order, with its row of the output or with an error message.

    There is an error message if the source cannot be read, or if its row is not finite.

    Args:
        sources: paths or pictures in memory; they are consumed a few batches ahead.
        read: converts a source to (C, height, width), or returns an error message; called in several threads.
        compute: (B, C, height, width) -> (B, ...).
        batch_size: the number of images in a batch.
        is_concurrent: whether `compute` may run in several threads at once.
    """
    remaining = iter(sources)
    batches = iter(lambda: list(islice(remaining, batch_size)), [])  # until there are no more sources
    first_batches = list(islice(batches, 2))
    if len(first_batches) < 2:  # with a single batch, reading and computing each use all cores
        with ThreadPoolExecutor() as pool:
            for batch in first_batches:
                yield from compute_batch(batch, list(pool.map(read, batch)), compute)
        return
    with thread_pool(is_concurrent) as (pool, count, is_ended):
        computing = nullcontext() if is_concurrent else Lock()  # one batch at a time unless `is_concurrent`

        def run(batch: list[T]) -> list[tuple[T, Row]]:
            images = [read(source) for source in batch if not is_ended.is_set()]
            with computing:
                return [] if is_ended.is_set() else compute_batch(batch, images, compute)

        submitted: deque[Future[list[tuple[T, Row]]]] = deque()
        for batch in chain(first_batches, batches):
            submitted.append(pool.submit(run, batch))
            if len(submitted) == 2 * count:
                yield from submitted.popleft().result()
        while submitted:
            yield from submitted.popleft().result()


def compute_batch(
    sources: list[T], images: list[Images | str], compute: Callable[[Images], Images]
) -> list[tuple[T, Row]]:
    """Compute one batch, and return each source with its row of the output or its error message.

    The image of an unreadable source is a string, the error message. Unreadable images are replaced by copies of the
    first readable one, so that the batch size, on which the rounding of results may depend, stays the same.
    """
    readable: list[Any] = [image for image in images if not isinstance(image, str)]
    if not readable:
        return [(source, str(message)) for source, message in zip(sources, images, strict=True)]
    filled = readable + [readable[0]] * (len(images) - len(readable))
    batch: Any
    if isinstance(readable[0], np.ndarray):
        batch = np.stack(filled)
    else:
        import torch

        batch = torch.stack(filled)
    rows = iter(np.asarray(compute(batch)))
    results = list[tuple[T, Row]]()
    for source, image in zip(sources, images, strict=True):
        if isinstance(image, str):
            results.append((source, image))
            continue
        row = next(rows)
        results.append((source, row if np.isfinite(row).all() else NOT_FINITE))
    return results


@contextmanager
def thread_pool(is_concurrent: bool) -> Iterator[tuple[ThreadPoolExecutor, int, Event]]:
    """Start a thread pool; yield the pool, its number of threads, and an event that is set when the `with` block ends.

    All threads compute at once, on one core each, if `is_concurrent`. Otherwise one thread computes at a time, on all
    cores, while the others read.
    """
    earlier_threads = threads()
    if is_concurrent:
        count, threads_each = cores(), 1
    else:
        count, threads_each = cores() + 1, earlier_threads  # one thread computes while the others read
    is_ended = Event()
    pool = ThreadPoolExecutor(count, initializer=partial(set_threads, threads_each))
    try:
        yield pool, count, is_ended
    finally:
        is_ended.set()
        pool.shutdown(cancel_futures=True)
        set_threads(earlier_threads)  # with PyTorch, the threads of the pool also changed the default of later threads


def try_read(read: Callable[[T], Images], source: T) -> Images | str:
    """Return the result of `read`, or an error message if the image cannot be read."""
    try:
        return read(source)
    except UnreadableImageError as error:
        return str(error)


def explain_memory_shortage(rows: Iterator[tuple[str, T]], batch_size: int) -> Iterator[tuple[str, T]]:
    """Yield the rows. If memory runs out, raise a `ShortageError` whose message states the batch size."""
    try:
        yield from rows
    except (MemoryError, RuntimeError) as error:
        if not is_memory_short(error):
            raise
        raise ShortageError(
            "inference.memory-short",
            f"there is too little memory for {batch_size} images at a time: free memory, or use smaller batches",
        ) from error
