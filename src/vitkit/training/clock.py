"""The time that a training has taken, and what of it a budget leaves."""

from __future__ import annotations

import time

from vitkit.training.distributed import ALONE, Team


class Clock:
    """Counts the seconds of a training over all processes that worked on it.

    Where a time budget rules, all processes go by the first one's clock: they must agree on learning rates.

    Args:
        budget: seconds for the whole training; None: as many as it takes.
        team: the processes that train together.

    Attributes:
        spent: seconds before this process.
        ahead: of them before the first step, as in fitting a head, which a schedule fitted to a budget leaves out.
    """

    def __init__(self, budget: float | None = None, team: Team = ALONE) -> None:
        self.spent = self.ahead = 0.0
        self._budget, self._team = budget, team
        self._started = self._now = time.monotonic()

    def start(self) -> None:
        """From now on this process's seconds count."""
        self._started = self._now = self._team.by_first(time.monotonic)

    def look(self) -> None:
        """Between two looks no time goes by."""
        self._now = self._team.by_first(time.monotonic) if self._budget else time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds spent in training."""
        return self.spent + (self._now - self._started)  # nothing is lost to rounding

    @property
    def part(self) -> float:
        """How much of the time that the budget leaves for steps is behind, in [0, 1]; 0 without a budget."""
        if not self._budget:
            return 0.0
        left = max(self._budget - self.ahead, 1e-9)  # a first step is taken even where nothing is left
        return min((self.elapsed - self.ahead) / left, 1.0)

    @property
    def is_up(self) -> bool:
        """Whether the budget is used up."""
        return bool(self._budget) and self.elapsed >= float(self._budget or 0)
