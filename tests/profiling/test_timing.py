"""Work timed in turn, by a clock that the test holds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitkit.profiling import Quartiles, Timing, interleave, on_cpu, stopwatch_for
from vitkit.system import reporting_to


class Clock:
    """Work takes as long as it says; what was done, and when, is written down."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def work(self, name: str, *seconds: float) -> Callable[[], None]:
        left = list(seconds)

        def run() -> None:
            self.log.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run

    def stopwatch(self, work: Callable[[], object]) -> float:
        before = self.now
        work()
        return self.now - before


def test_everything_is_warmed_up_twice_and_then_takes_turns() -> None:
    clock = Clock()
    works = {name: clock.work(name, 1.0) for name in "abc"}
    interleave(works, 3, stopwatch=clock.stopwatch)
    assert "".join(clock.log) == "aabbcc" + "abc" * 3


def test_the_first_calls_are_not_counted() -> None:
    clock = Clock()
    times = interleave({"a": clock.work("a", 100.0, 50.0, 3.0, 1.0, 2.0)}, 3, stopwatch=clock.stopwatch)
    assert times["a"].seconds == (3.0, 1.0, 2.0)


def test_all_but_long_work_is_done_once_untimed_in_its_turn_and_short_work_several_times() -> None:
    clock = Clock()
    works = {"short": clock.work("s", 0.25), "middle": clock.work("m", 2.0), "long": clock.work("l", 4.0)}
    times = interleave(works, 2, stopwatch=clock.stopwatch, least=1.0, long=4.0)
    assert "".join(clock.log) == "ssmmll" + ("s" + "ssss" + "mm" + "l") * 2
    assert times["short"].seconds == pytest.approx((0.25, 0.25))


def test_what_the_one_before_slowed_is_not_timed() -> None:
    clock = Clock()
    times = interleave({"a": clock.work("a", 0.5, 0.5, 0.9, 0.5)}, 1, stopwatch=clock.stopwatch)
    assert times["a"].seconds == (0.5,)


def test_progress_is_told_of_each_turn() -> None:
    clock, told = Clock(), []
    works = {name: clock.work(name, 1.0) for name in "ab"}
    with reporting_to(lambda *what: told.append(what)):
        interleave(works, 2, stopwatch=clock.stopwatch)
    assert told == [("timing a", 0, 2), ("timing b", 0, 2), ("timing a", 1, 2), ("timing b", 1, 2)]


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
def test_quartiles_are_numpys(values: list[float]) -> None:
    found = Quartiles.of(tuple(values))
    assert (found.low, found.median, found.high) == pytest.approx(np.percentile(values, [25, 50, 75]))


def test_a_ratio_is_taken_within_each_round() -> None:
    # The machine is ten times slower in the second round: the ratio of medians would say something else.
    ours, theirs = Timing((1.0, 10.0, 1.0)), Timing((2.0, 20.0, 3.0))
    assert ours.times_as_fast_as(theirs).median == 2.0
    assert theirs.times_as_fast_as(ours).median == 0.5


def test_a_rate_is_items_by_seconds() -> None:
    assert Timing((2.0, 4.0, 8.0)).rate(8) == Quartiles(2.0, 1.5, 3.0)


def test_the_wall_clock_sees_work_on_the_cpu() -> None:
    done = []
    assert stopwatch_for(torch.device("cpu")) is on_cpu
    assert 0 <= on_cpu(lambda: done.append(1)) < 1
    assert done == [1]
