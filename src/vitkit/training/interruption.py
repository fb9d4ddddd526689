"""Signals end a run where it can go on from."""

from __future__ import annotations

from vitkit.errors import Interrupted
from vitkit.system.stopping import Deferral
from vitkit.training.distributed import ALONE, Team


class Interruption:
    """A signal ends the run after the current step, with `Interrupted`, in all processes after the same one.

    Args:
        stop: notes the signal.
        team: the processes that train together.
    """

    def __init__(self, stop: Deferral, team: Team = ALONE) -> None:
        self._stop, self._team = stop, team

    def after_step(self, *, should_stop: bool = False) -> bool:
        """Raise `Interrupted` where a signal has come to any of the processes, which all must ask.

        Args:
            should_stop: whether this process would end the training for another reason.

        Returns:
            Whether any would.
        """
        everyone = self._team.gather((self._stop.received or 0, should_stop))
        received = max(number for number, _ in everyone)
        if received:
            raise Interrupted(received)
        return any(stops for _, stops in everyone)

    def in_validation(self) -> None:
        """The same alone; several processes have not as many batches each, and meet again in the next step."""
        if self._team.size == 1:
            self.after_step()
