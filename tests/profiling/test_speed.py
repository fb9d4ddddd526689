"""Contenders compared: who is faster, how far the logits are off, and what cannot be had."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import tiny
from vitkit.profiling import (
    Contender,
    Quartiles,
    Speed,
    Timing,
    compare,
    drift_of,
    interleave,
    random_model,
    row,
)
from vitkit.system import reporting_to


def test_contenders_are_compared_with_the_model_on_every_image() -> None:
    model, images = tiny.build(), tiny.images(6)
    sizes: list[int] = []

    def off(batch: Tensor) -> Tensor:
        sizes.append(len(batch))
        return model(batch) + 0.5

    contenders = [
        Contender("same", "float32", model),
        Contender("off", "bfloat16", off),
        Contender("stranger", "float32", lambda batch: torch.zeros(len(batch), 2), same_weights=False),
    ]
    same, other, stranger = compare(model, contenders, images, 2, 3)
    assert same.drift is not None and other.drift is not None and stranger.drift is None
    assert (same.drift.largest, same.drift.agreement, same.drift.images) == (0.0, 1.0, 6)
    assert other.drift.largest == pytest.approx(0.5, abs=1e-5)
    assert set(sizes) == {2}  # never more at a time than asked for
    assert [len(own.timing.seconds) for own in (same, other, stranger)] == [3, 3, 3]


def test_a_row_has_the_figures_and_the_ratios_asked_for() -> None:
    reference = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 5.0], [1.0, 0.0]])
    logits = torch.tensor([[1.0, 2.5], [3.0, 0.0], [6.0, 5.0], [1.0, -1.0]])
    slow = Speed("slow", "float32", 8, Timing((4.0, 8.0)), drift_of(logits, reference))
    fast = Speed("fast", "bfloat16", 8, Timing((1.0, 2.0)), None)
    found = row(fast, {"times_slow": slow, "times_absent": None})
    assert found["images_per_s"] == 6.0
    assert (found["images_per_s_q1"], found["images_per_s_q3"]) == (5.0, 7.0)
    assert (found["times_slow"], found["times_absent"]) == (4.0, None)
    assert (found["largest_difference"], found["same_top1"], found["rounds"]) == (None, None, 2)
    told = row(slow, {})
    assert (told["largest_difference"], told["same_top1"], slow.drift.images) == (6.0, 0.75, 4)


def test_random_weights_come_from_the_seed_and_tell_images_apart() -> None:
    first, again, other = (random_model(tiny.tiny(), seed) for seed in (0, 0, 1))
    logits = first(tiny.images(2))
    assert torch.equal(logits, again(tiny.images(2)))
    assert not torch.equal(logits, other(tiny.images(2)))
    assert not torch.equal(logits[0], logits[1])
    assert random_model(tiny.tiny(num_classes=0)).head is None


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
    clock, told = Clock(), []
    works = {name: clock.work(name, 1.0) for name in "ab"}
    with reporting_to(lambda *what: told.append(what)):
        interleave(works, 2, stopwatch=clock.stopwatch)
    assert "".join(clock.log) == "aabb" + "ab" * 2
    assert told == [("timing a", 0, 2), ("timing b", 0, 2), ("timing a", 1, 2), ("timing b", 1, 2)]
    clock = Clock()
    works = {name: clock.work(name, 1.0) for name in "ab"}
    times = interleave(works, 9, stopwatch=clock.stopwatch, max_seconds=0)
    assert "".join(clock.log) == "aabb" + "ab", "no round but the first begins after the limit"
    assert times["a"].seconds == times["b"].seconds == (1.0,)


def test_the_first_calls_and_what_the_one_before_slowed_are_not_counted() -> None:
    clock = Clock()
    times = interleave({"a": clock.work("a", 100.0, 50.0, 3.0, 1.0, 2.0)}, 3, stopwatch=clock.stopwatch)
    assert times["a"].seconds == (3.0, 1.0, 2.0)
    times = interleave({"a": clock.work("a", 0.5, 0.5, 0.9, 0.5)}, 1, stopwatch=clock.stopwatch)
    assert times["a"].seconds == (0.5,)


def test_all_but_long_work_is_done_once_untimed_in_its_turn_and_short_work_several_times() -> None:
    clock = Clock()
    works = {"short": clock.work("s", 0.125), "middle": clock.work("m", 0.5), "long": clock.work("l", 1.0)}
    times = interleave(works, 2, stopwatch=clock.stopwatch, min_seconds=0.5)
    assert "".join(clock.log) == "ssmmll" + ("s" + "ssss" + "mm" + "l") * 2
    assert times["short"].seconds == pytest.approx((0.125, 0.125))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
def test_quartiles_are_numpys(values: list[float]) -> None:
    found = Quartiles.of(tuple(values))
    assert (found.low, found.median, found.high) == pytest.approx(np.percentile(values, [25, 50, 75]))


def test_a_ratio_is_taken_within_each_round() -> None:
    # The machine is ten times slower in the second round: the ratio of medians would say something else.
    ours, theirs = Timing((1.0, 10.0, 1.0)), Timing((2.0, 20.0, 3.0))
    assert ours.speedup_over(theirs).median == 2.0
    assert theirs.speedup_over(ours).median == 0.5
    assert Timing((2.0, 4.0, 8.0)).rate(8) == Quartiles(2.0, 1.5, 3.0)
