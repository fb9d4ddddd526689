"""A command whose worker process is killed in its middle, once or always."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vitkit.verbs.parts import DividedJob, Value


@dataclass(frozen=True)
class Dying:
    """Twenty images, whose values are their squares. The process is killed at image `at`, as often as `times`.

    It dies once `after` images have been computed, by any process.
    Each image that is computed gets a file in the folder `seen`, so that a test knows what was computed twice.
    """

    seen: Path
    at: int
    times: int
    after: int = 0
    device = "cpu"

    def job(self, note: Callable[[str], None] = print) -> DividedJob:
        compute = partial(self.values)
        return DividedJob("predict", [str(i) for i in range(20)], {"flags": {}}, lambda: ({"backend": "none"}, compute))

    def values(self, positions: Sequence[int]) -> Iterator[Value]:
        for i in positions:
            deaths = len(list(self.seen.glob("death*")))
            if i == self.at and deaths < self.times:
                while len(list(self.seen.glob("* by *"))) < self.after:
                    time.sleep(0.01)
                (self.seen / f"death{deaths}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            (self.seen / f"{i} by {os.getpid()}").touch()
            value: Any = i * i
            yield value, None
