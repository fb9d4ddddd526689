"""Where a training is: what callbacks are given, and what a run goes on from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn

from vitkit.model.build import Model
from vitkit.training.averaging import Average
from vitkit.training.clock import Clock
from vitkit.training.distributed import ALONE, Team
from vitkit.training.divergence import Guard
from vitkit.training.microbatch import Pieces
from vitkit.training.optim import build_optimizer, lr_factor, swa_factor
from vitkit.training.pretraining.network import SelfSupervised
from vitkit.training.recipe import Recipe
from vitkit.training.safe_point import SafePoint
from vitkit.training.sharding import full_state, set_full_state

Trained = Model | SelfSupervised  # what can be in training


@dataclass(eq=False, repr=False)
class TrainingState:
    """A training between two of its steps.

    The learning rate is a function of how far the training is: steps of the total, or seconds of the time budget,
    whichever is further; what went by before the first step, as in fitting a head, is no part of it. Nothing of it
    needs to be restored on resume but these seconds.

    Attributes:
        model: in training.
        optimizer: over its parameters that learn.
        recipe: how it is trained.
        total_steps: of the whole training.
        clock: the seconds spent.
        guard: watches over the training and tells of it.
        pieces: how many images are computed at a time.
        average: of the weights, if the recipe asks for one.
        safe_point: weights to go back to.
        epoch: the current one, from 0.
        step: how many steps of the optimiser were taken.
        metrics: of this epoch as far as they are known: lr, train_loss, train_acc, val_loss, val_acc. A callback may
            add to them; loggers are given all.
        should_stop: set it, and the training ends after this step, and this epoch with it.
        went_back: whether this epoch's weights were given up.
    """

    model: Trained
    optimizer: torch.optim.Optimizer
    recipe: Recipe
    total_steps: int
    clock: Clock
    guard: Guard
    pieces: Pieces
    average: Average | None
    safe_point: SafePoint
    epoch: int = 0
    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    should_stop: bool = False
    went_back: bool = False
    epoch_began: float = 0.0  # the clock's part then

    @classmethod
    def begin(
        cls,
        model: Trained,
        recipe: Recipe,
        total_steps: int,
        guard: Guard | None = None,
        team: Team = ALONE,
    ) -> TrainingState:
        """Before the first step.

        Args:
            model: to train, on its device; of frozen parts nothing is trained.
            recipe: how.
            total_steps: of the whole training.
            guard: by default one that prints.
            team: the processes that train together.
        """
        guard = guard or Guard(print)
        average = Average(model, recipe) if recipe.ema or recipe.swa else None
        return cls(
            model,
            build_optimizer(model, recipe),
            recipe,
            total_steps,
            Clock(recipe.budget, team),
            guard,
            Pieces(guard.say),
            average,
            SafePoint(model, average),
        )

    def __repr__(self) -> str:
        return f"TrainingState(epoch={self.epoch}, step={self.step} of {self.total_steps}, metrics={self.metrics})"

    @property
    def progress(self) -> float:
        """How much of the training is behind, in [0, 1]."""
        return min(max(self.step / self.total_steps, self.clock.part), 1.0)

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        recipe, epochs = self.recipe, self.recipe.epochs
        factor = swa_factor(self.epoch, recipe)
        if factor is None and recipe.step_per == "epoch":
            factor = lr_factor(max(self.epoch / epochs, self.epoch_began), recipe, 1 / epochs)
        elif factor is None:
            factor = lr_factor(self.progress, recipe, 1 / self.total_steps)
        return recipe.lr * factor * self.guard.lr_scale

    @property
    def kept(self) -> Trained:
        """The model that is validated and saved: the average, once there is one."""
        return cast(Trained, self.average.model) if self.average is not None and self.average.has_begun else self.model

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs after this epoch; several processes call it together."""
        model, optimizer = full_state(self.model, self.optimizer)
        return {
            "epoch": self.epoch + 1,
            "step": self.step,
            "model": model,
            "optimizer": optimizer,
            "average": None if self.average is None else self.average.state_dict(),
            "spent": self.clock.elapsed,
            "ahead": self.clock.ahead,
            "piece": self.pieces.size,
            "before": self.safe_point.state_dict(),
            "guard": self.guard.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        set_full_state(self.model, self.optimizer, state["model"], state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.epoch, self.step = state["epoch"], state["step"]
        self.clock.spent, self.clock.ahead = state["spent"], state["ahead"]
        self.pieces.size = state["piece"]
        self.safe_point.load_state_dict(state["before"])
        self.guard.load_state_dict(state["guard"])


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Parts that are in training mode are so again afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
