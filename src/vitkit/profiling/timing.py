"""Timing several pieces of work so that they can be compared: in turn, round after round (A B C ... A B C ...).

Whatever slows the machine for a while slows them all, so a ratio is taken within each round, and its median reported.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from vitkit.system.progress import Progress

Work = Callable[[], object]
Stopwatch = Callable[[Work], float]  # does the work once; seconds


@dataclass(frozen=True)
class Quartiles:
    """The middle of some values, and where their inner half lies."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: tuple[float, ...]) -> Quartiles:
        """By linear interpolation, as numpy's default; of one value all three are that value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True)
class Timing:
    """Seconds of one piece of work, a value for each round."""

    seconds: tuple[float, ...]

    @property
    def quartiles(self) -> Quartiles:
        """Of the seconds."""
        return Quartiles.of(self.seconds)

    def rate(self, items: int) -> Quartiles:
        """Items a second, where the work does so many."""
        return Quartiles.of(tuple(items / seconds for seconds in self.seconds))

    def times_as_fast_as(self, other: Timing) -> Quartiles:
        """2 where this takes half the time of the other in the same round."""
        return Quartiles.of(tuple(b / a for a, b in zip(self.seconds, other.seconds, strict=True)))


def on_cpu(work: Work) -> float:
    """Seconds by the wall clock."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def on_cuda(work: Work) -> float:
    """Seconds between two events on the device's stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def stopwatch_for(device: torch.device) -> Stopwatch:
    """The one that sees when work on this device is done."""
    return on_cuda if device.type == "cuda" else on_cpu


def interleave(
    works: Mapping[str, Work],
    rounds: int,
    *,
    stopwatch: Stopwatch = on_cpu,
    least: float = 0.05,
    long: float = 1.0,
    progress: Progress | None = None,
) -> dict[str, Timing]:
    """Time each piece of work once a round, in the order given.

    Before the first round each is done twice: kernels are chosen and compiled then. In its turn work is done once
    untimed first, unless it took `long` seconds: what ran before it has taken the caches, and may have threads that
    still spin, which a tenth of a second shows. Work that took less than `least` seconds is then done several times;
    its time is the mean.
    """
    repeats, untimed = {}, {}
    for name, work in works.items():
        stopwatch(work)
        took = stopwatch(work)
        repeats[name], untimed[name] = max(math.ceil(least / max(took, 1e-9)), 1), took < long
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for done in range(rounds):
        for name, work in works.items():
            if progress is not None:
                progress(f"timing {name}", done, rounds)
            if untimed[name]:
                work()
            seconds[name].append(_mean(work, repeats[name], stopwatch))
    return {name: Timing(tuple(own)) for name, own in seconds.items()}


def _mean(work: Work, repeats: int, stopwatch: Stopwatch) -> float:
    def again() -> None:
        for _ in range(repeats):
            work()

    return stopwatch(again) / repeats
