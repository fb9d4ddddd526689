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
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Work:
    """A kind of computation. Only items for the same computation are put into one batch."""

    name: str  # the name of the model
    most: int  # the maximum size of a batch
    # A function that takes a batch of items and returns their answers in the same order. It is called from several
    # threads.
    answer: Callable[[Sequence[Any]], Sequence[Any]]


class FullError(Exception):
    """The queue has no room for the items of a request."""


class ClosedError(Exception):
    """The workers accept no more requests."""


class Workers:
    """Threads that answer items in batches.

    Args:
        count: the number of threads.
        wait: the longest time in seconds that an item waits for other items while a thread is free.
        most: the maximum number of waiting items.
        begin: called first in each thread. If it raises an exception, the constructor raises the exception, too.
        observe: called after each batch with the kind of computation, the number of items and the duration in seconds.

    Attributes:
        waiting: the number of waiting items.
        working: the number of items that are being answered.
    """

    def __init__(
        self,
        count: int,
        *,
        wait: float,
        most: int,
        begin: Callable[[], None],
        observe: Callable[[Work, int, float], None],
    ) -> None:
        self._wait, self.most, self._observe = wait, most, observe
        self._changed = threading.Condition()  # protects the following attributes, which the threads share
        self._queues: dict[Work, deque[_Question]] = {}  # waiting items in the order of their arrival
        self.waiting = self.working = 0
        self._is_closed = False
        self._threads = [threading.Thread(target=self._run, args=(begin,), daemon=True) for _ in range(count)]
        self._begun = threading.Barrier(count + 1)
        self._failed: list[BaseException] = []
        for thread in self._threads:
            thread.start()
        self._begun.wait()
        if self._failed:
            self.close()
            raise self._failed[0]

    async def ask(self, work: Work, contents: Sequence[Any]) -> list[Any]:
        """Answer the items of a request, and return the answers in order.

        Raises:
            FullError: too many items are waiting already.
            ClosedError: the workers accept no more requests.
        """
        loop = asyncio.get_running_loop()
        request = _PendingRequest([None] * len(contents), loop, loop.create_future(), len(contents))
        now = time.monotonic()
        with self._changed:
            if self._is_closed:
                raise ClosedError
            if self.waiting + len(contents) > self.most:
                raise FullError
            queue = self._queues.setdefault(work, deque())
            queue.extend(_Question(content, now, request, place) for place, content in enumerate(contents))
            self.waiting += len(contents)
            self._changed.notify_all()
        return await request.future

    def cancel(self) -> None:
        """Accept no more requests, and answer the waiting ones with `ClosedError`. Batches in progress are finished."""
        with self._changed:
            self._is_closed = True
            refused = [question for queue in self._queues.values() for question in queue]
            self._queues.clear()
            self.waiting = 0
            self._changed.notify_all()
        for question in refused:
            question.request.error = ClosedError()
        self._give_answers(refused)

    def close(self) -> None:
        """Accept no more requests, answer the waiting ones, and end the threads."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    # --- In the threads -----------------------------------------------------------------------------------

    def _run(self, begin: Callable[[], None]) -> None:
        try:
            begin()
        except BaseException as error:
            self._failed.append(error)
        finally:
            self._begun.wait()
        while not self._failed and (taken := self._take()) is not None:
            work, questions = taken
            began = time.monotonic()
            _answer(work, questions)
            self._observe(work, len(questions), time.monotonic() - began)
            with self._changed:
                self.working -= len(questions)
            self._give_answers(questions)

    def _take(self) -> tuple[Work, list[_Question]] | None:
        """Wait for the next batch and remove its items from the queue; return None if no more items will arrive."""
        with self._changed:
            while True:
                waiting = [kind for kind, queue in self._queues.items() if queue]
                work = min(waiting, key=lambda kind: self._queues[kind][0].came, default=None)
                if work is None:
                    if self._is_closed:
                        return None
                    self._changed.wait()
                    continue
                queue = self._queues[work]
                left = queue[0].came + self._wait - time.monotonic()
                if len(queue) >= work.most or left <= 0 or self._is_closed:
                    taken = [queue.popleft() for _ in range(min(work.most, len(queue)))]
                    self.waiting -= len(taken)
                    questions = [question for question in taken if not question.request.future.done()]
                    if not questions:  # the clients have disconnected
                        continue
                    self.working += len(questions)
                    return work, questions
                self._changed.wait(left)

    def _give_answers(self, questions: Sequence[_Question]) -> None:
        """Complete the requests whose items are now all answered. Each event loop is woken only once."""
        complete = dict[asyncio.AbstractEventLoop, list[_PendingRequest]]()
        with self._changed:
            for question in questions:
                question.request.left -= 1
                if not question.request.left:
                    complete.setdefault(question.request.loop, []).append(question.request)

        def set_results(requests: Sequence[_PendingRequest]) -> None:  # in the thread of the event loop
            for request in requests:
                if request.future.done():
                    continue
                if request.error is not None:
                    request.future.set_exception(request.error)
                else:
                    request.future.set_result(request.answers)

        for loop, requests in complete.items():
            with suppress(RuntimeError):  # the loop is closed, and its clients have disconnected
                loop.call_soon_threadsafe(set_results, requests)


@dataclass
class _PendingRequest:
    answers: list[Any]  # in the order of the items
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Any]]  # receives all answers, or the error
    left: int  # the number of items that are not answered yet
    error: Exception | None = None  # that an item raised


@dataclass
class _Question:
    content: Any
    came: float  # time.monotonic()
    request: _PendingRequest
    place: int  # among the items of the request


def _answer(work: Work, questions: Sequence[_Question]) -> None:
    """Answer a batch.

    If this fails, the items are answered one by one, so that a faulty item does not affect the others.
    """
    try:
        answers = work.answer([question.content for question in questions])
    except Exception as error:
        if len(questions) == 1:
            questions[0].request.error = error
            return
        for question in questions:
            _answer(work, [question])
        return
    for question, answer in zip(questions, answers, strict=True):
        question.request.answers[question.place] = answer
