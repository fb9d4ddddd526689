"""Collect items of requests that arrive at about the same time into batches.

Each core processes a whole batch, from decoding the images to the answers, as in `vitkit predict`
(`inference.pipeline`). While all cores are busy, items queue up, so that the next batch is larger and the cost per
image is lower. A free core waits for more items only for the configured time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Computation:
    """A kind of computation. Only items for the same computation are put into one batch."""

    model: str  # the name of the model
    max_batch: int  # the maximum number of items in a batch
    compute: Callable[[Sequence[Any]], Sequence[Any]]  # turns items into answers; called from several threads


class FullError(Exception):
    """The queue has no room for the items of a request."""


class ClosedError(Exception):
    """The workers accept no more requests."""


class Workers:
    """Threads that answer items in batches.

    Args:
        count: the number of threads.
        max_wait: the longest time in seconds that an item waits for other items while a thread is free.
        max_waiting: the maximum number of waiting items.
        on_start: called first in each thread. If it raises an exception, the constructor raises the exception, too.

    Attributes:
        waiting: the number of waiting items.
        working: the number of items that are being answered.
    """

    def __init__(self, count: int, *, max_wait: float, max_waiting: int, on_start: Callable[[], None]) -> None:
        self.max_waiting = max_waiting
        self._max_wait = max_wait
        self._changed = threading.Condition()  # protects the following attributes, which the threads share
        self._queues: dict[Computation, deque[_Item]] = {}  # waiting items in the order of their arrival
        self.waiting = self.working = 0
        self._is_closed = False
        self._threads = [threading.Thread(target=self._run, args=(on_start,), daemon=True) for _ in range(count)]
        self._all_started = threading.Barrier(count + 1)  # the threads, and this constructor
        self._start_errors: list[BaseException] = []
        for thread in self._threads:
            thread.start()
        self._all_started.wait()
        if self._start_errors:
            self.close()
            raise self._start_errors[0]

    async def submit(self, computation: Computation, contents: Sequence[Any]) -> list[Any]:
        """Answer the items of a request, and return the answers in order.

        Raises:
            FullError: too many items are waiting already.
            ClosedError: the workers accept no more requests.
        """
        request = _PendingRequest([None] * len(contents), Future(), len(contents))
        now = time.monotonic()
        with self._changed:
            if self._is_closed:
                raise ClosedError
            if self.waiting + len(contents) > self.max_waiting:
                raise FullError
            queue = self._queues.setdefault(computation, deque())
            queue.extend(_Item(content, now, request, index) for index, content in enumerate(contents))
            self.waiting += len(contents)
            self._changed.notify_all()
        return await asyncio.wrap_future(request.future)

    def close(self) -> None:
        """Accept no more requests, answer the waiting ones, and end the threads."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    # --- In the threads -----------------------------------------------------------------------------------

    def _run(self, on_start: Callable[[], None]) -> None:
        try:
            on_start()
        except BaseException as error:
            self._start_errors.append(error)
        finally:
            self._all_started.wait()
        if self._start_errors:
            return
        while True:
            batch = self._next_batch()
            if batch is None:
                return
            computation, items = batch
            _compute_answers(computation, items)
            complete = list[_PendingRequest]()  # the requests whose items are now all answered
            with self._changed:
                self.working -= len(items)
                for item in items:
                    item.request.unanswered -= 1
                    if not item.request.unanswered:
                        complete.append(item.request)
            for request in complete:
                with suppress(InvalidStateError):  # the client has disconnected
                    if request.error is not None:
                        request.future.set_exception(request.error)
                    else:
                        request.future.set_result(request.answers)

    def _next_batch(self) -> tuple[Computation, list[_Item]] | None:
        """Wait for the next batch and remove its items from the queue; return None if no more items will arrive."""
        with self._changed:
            while True:
                waiting = [kind for kind, queue in self._queues.items() if queue]
                if not waiting:
                    if self._is_closed:
                        return None
                    self._changed.wait()
                    continue
                computation = min(waiting, key=lambda kind: self._queues[kind][0].arrived)
                queue = self._queues[computation]
                if len(queue) < computation.max_batch and not self._is_closed:  # more items may still arrive
                    remaining = queue[0].arrived + self._max_wait - time.monotonic()
                    if remaining > 0:
                        self._changed.wait(remaining)
                        continue
                batch = [queue.popleft() for _ in range(min(computation.max_batch, len(queue)))]
                self.waiting -= len(batch)
                items = [item for item in batch if not item.request.future.done()]  # clients may have disconnected
                if items:
                    self.working += len(items)
                    return computation, items


@dataclass
class _PendingRequest:
    answers: list[Any]  # in the order of the items
    future: Future[list[Any]]  # receives all answers, or the error
    unanswered: int  # the number of items that are not answered yet
    error: Exception | None = None  # the exception that an item raised


@dataclass
class _Item:
    content: Any
    arrived: float  # time.monotonic()
    request: _PendingRequest
    index: int  # the position among the items of the request


def _compute_answers(computation: Computation, items: Sequence[_Item]) -> None:
    """Compute the answers to a batch.

    If this fails, the items are computed one by one, so that a faulty item does not affect the others.
    """
    try:
        answers = computation.compute([item.content for item in items])
    except Exception as error:
        if len(items) == 1:
            items[0].request.error = error
            return
        for item in items:
            _compute_answers(computation, [item])
        return
    for item, answer in zip(items, answers, strict=True):
        item.request.answers[item.index] = answer
