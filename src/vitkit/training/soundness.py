"""Whether a step's loss and gradient are finite: a step that is not sound is left out.

On a CPU that is asked before the step. On a GPU the optimiser leaves the step out by itself, and what became of it is
asked later (`Later`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vitkit.data.batches import Batch
from vitkit.training.distributed import ALONE, Team
from vitkit.training.divergence import Guard
from vitkit.training.later import Later, Place

Describe = Callable[[Batch, Place], dict[str, Any]]  # what is saved of a bad batch


class AskAtOnce:
    """Every step's loss and gradient are looked at before it is taken.

    Args:
        guard: is told of each step.
        describe: a batch, to be saved.
        team: the processes that train together, which leave out the same steps.
    """

    def __init__(self, guard: Guard, describe: Describe, team: Team = ALONE) -> None:
        self._guard, self._describe, self._team = guard, describe, team
        self._bad: dict[str, Any] | None = None  # the first batch of this step whose loss is not finite
        self._last: tuple[Batch, Place]

    def begin(self) -> None:
        """A new step."""
        self._bad = None

    def note_loss(self, loss: Tensor, batch: Batch, place: Place) -> None:
        """Take the loss, (), of a batch of this step into account."""
        self._last = batch, place
        if self._bad is None and not loss.isfinite():
            self._bad = self._describe(batch, place)

    def allows(self, optimizer: torch.optim.Optimizer, norm: Tensor) -> bool:
        """Whether to take the step, along a gradient of this norm, ().

        Raises:
            DivergedError: it is the third in a row that is left out.
        """
        if self._is_bad():
            shares = self._team.gather(self._bad)
            what, bad = "loss", next(own for own in shares if own is not None)  # the first process may have none of it
        elif not norm.isfinite():
            what, bad = "gradient", self._describe(*self._last)
        else:
            return True
        self._guard.skip_step(what, bad)
        return False

    def is_sound(self, norm: Tensor) -> Tensor:
        """(), whether loss and gradient are finite, as `allows` will find."""
        return norm.isfinite() & torch.tensor(not self._is_bad(), device=norm.device)

    def _is_bad(self) -> bool:
        return self._team.any(self._bad is not None)

    def end(self) -> None:
        """The step was taken."""
        self._guard.pass_step()

    def settle(self) -> None:
        """The epoch is over; nothing is open."""


class AskLater:
    """The optimiser leaves out what is not sound; now and then, and at an epoch's end, one asks which steps.

    Args:
        guard: is told of each step.
        describe_again: a step's last batch, of which only the place is known by then.
    """

    def __init__(self, guard: Guard, describe_again: Callable[[Place], dict[str, Any]]) -> None:
        self._guard, self._describe_again = guard, describe_again
        self._later = Later()
        self._last: Place

    def begin(self) -> None:
        """A new step."""

    def note_loss(self, loss: Tensor, batch: Batch, place: Place) -> None:
        """Take the loss, (), of a batch of this step into account."""
        self._last = place
        self._later.note_loss(loss)

    def allows(self, optimizer: torch.optim.Optimizer, norm: Tensor) -> bool:
        """The optimiser will see by itself."""
        self._later.prepare(optimizer, norm, self._last)
        return True

    def is_sound(self, norm: Tensor) -> Tensor:
        """(), whether loss and gradient are finite; it lies on the device."""
        return self._later.is_sound(norm)

    def end(self) -> None:
        """The step was taken, or left out; ask now and then.

        Raises:
            DivergedError: three in a row were left out.
        """
        if self._later.is_due:
            self.settle()

    def settle(self) -> None:
        """The epoch is over: ask of all steps since the last time.

        Raises:
            DivergedError: three in a row were left out.
        """
        for place in self._later.settle():
            if place is None:
                self._guard.pass_step()
            else:
                self._guard.skip_step("loss or its gradient", self._describe_again(place))
