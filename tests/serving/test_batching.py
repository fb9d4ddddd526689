"""Batches: how they form, what is answered, and what happens when something fails, is full or ends."""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from vitkit.serving import ClosedError, Computation, FullError, Workers


class Doubling:
    """Doubles numbers, and keeps what it was asked at a time; a number below 0 fails."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.batches = seconds, list[list[int]]()
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, asked: Sequence[int]) -> list[int]:
        self.gate.wait()
        self.batches.append(list(asked))
        time.sleep(self.seconds)
        if min(asked) < 0:
            raise ValueError(f"{min(asked)} is below 0")
        return [2 * number for number in asked]


def workers(count: int = 1, wait: float = 0.0, max_waiting: int = 100, on_start: Any = lambda: None) -> Workers:
    return Workers(count, max_wait=wait, max_waiting=max_waiting, on_start=on_start)


async def ask_all(own: Workers, work: Computation, asked: Sequence[Sequence[int]]) -> list[Any]:
    return await asyncio.gather(*(own.submit(work, list(each)) for each in asked), return_exceptions=True)


def test_each_request_gets_its_own_answers_in_order() -> None:
    double, own = Doubling(0.001), workers(3, max_waiting=1000)
    asked = [list(range(i, i + i % 5 + 1)) for i in range(60)]
    found = asyncio.run(ask_all(own, Computation("a", 4, double), asked))
    own.close()
    assert found == [[2 * number for number in each] for each in asked]
    assert max(map(len, double.batches)) == 4


def while_it_works(double: Doubling, own: Workers, asked: Sequence[tuple[Computation, list[int]]]) -> list[Any]:
    """Ask the first, and all others once the thread is at work on it."""

    async def ask() -> list[Any]:
        double.gate.clear()
        first = asyncio.create_task(own.submit(*asked[0]))
        await asyncio.sleep(0.05)  # it is taken
        rest = [asyncio.create_task(own.submit(*each)) for each in asked[1:]]
        await asyncio.sleep(0.01)
        assert own.working == 1
        double.gate.set()
        return await asyncio.gather(first, *rest, return_exceptions=True)

    found = asyncio.run(ask())
    own.close()
    assert own.waiting == own.working == 0
    return found


def test_what_comes_while_a_thread_is_at_work_is_answered_together_by_kind() -> None:
    double, other = Doubling(), Doubling()
    a, b = Computation("a", 8, double), Computation("b", 4, other)
    while_it_works(double, workers(), [(a, [i]) for i in range(13)])
    assert [len(batch) for batch in double.batches] == [1, 8, 4]
    double.batches.clear()
    a = Computation("a", 4, double)
    kinds = [(a, [0]), *((work, [i]) for i, work in enumerate([b, a, b, a, b, b, b]))]
    while_it_works(double, workers(), kinds)
    assert double.batches == [[0], [1, 3]]
    assert other.batches == [[0, 2, 4, 5], [6]]


@pytest.mark.parametrize(("wait", "asked"), [(600.0, [1, 2, 3]), (0.2, [1])])
def test_a_free_thread_waits_for_more_unless_its_batch_is_full_or_time_is_up(wait: float, asked: list[int]) -> None:
    double, own = Doubling(), workers(wait=wait)
    work = Computation("a", 3, double)

    async def ask() -> None:
        first = asyncio.create_task(own.submit(work, asked[:1]))
        await asyncio.sleep(0.02)  # the thread is free: without waiting it would have begun
        await asyncio.gather(first, *(own.submit(work, [number]) for number in asked[1:]))

    asyncio.run(asyncio.wait_for(ask(), 60))
    own.close()
    assert double.batches == [asked]


def test_who_asks_what_fails_pays_for_it_alone() -> None:
    double, own = Doubling(), workers(wait=0.1)
    found = asyncio.run(ask_all(own, Computation("a", 3, double), [[1], [-2], [3]]))
    own.close()
    assert found[0] == [2] and found[2] == [6]
    assert isinstance(found[1], ValueError)
    assert double.batches == [[1, -2, 3], [1], [-2], [3]]


def test_what_is_more_than_may_wait_is_refused_and_the_rest_is_answered() -> None:
    double = Doubling()
    work = Computation("a", 1, double)
    asked = [(work, each) for each in ([0], [1, 2], [3, 4, 5, 6], [7, 8, 9], [10])]
    found = while_it_works(double, workers(max_waiting=5), asked)
    assert [found[i] for i in (0, 1, 3)] == [[0], [2, 4], [14, 16, 18]]
    assert [type(found[i]) for i in (2, 4)] == [FullError, FullError]


def test_closing_answers_what_waits_and_takes_nothing_more() -> None:
    double, own = Doubling(0.01), workers(2, wait=5.0)
    work = Computation("a", 4, double)

    async def ask() -> Any:
        asked = [asyncio.create_task(own.submit(work, [i])) for i in range(30)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(own.close))
        found = await asyncio.gather(*asked)
        await closing
        with pytest.raises(ClosedError):
            await own.submit(work, [1])
        return found

    assert asyncio.run(ask()) == [[2 * i] for i in range(30)]
    own.close()


def test_what_fails_as_a_thread_begins_is_told() -> None:
    def on_start() -> None:
        raise OSError("no such library")

    with pytest.raises(OSError, match="no such library"):
        workers(2, on_start=on_start)
