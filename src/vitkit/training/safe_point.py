"""Weights to go back to, where an epoch has led to a model that is of no use."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from vitkit.training.divergence import Guard, Outcome, all_finite
from vitkit.training.sharding import full_weights, is_sharded, set_full_weights

Weights = dict[str, Tensor]


class SafePoint:
    """The weights of the last good epoch, or of the start.

    Args:
        parts: what is trained, and its average if there is one; of the first only what changes is kept.

    Attributes:
        is_doubtful: whether those are not the ones of the last epoch, of which nobody knows yet whether it was good.
    """

    def __init__(self, model: nn.Module, average: nn.Module | None = None) -> None:
        self.is_doubtful = False
        self._model, self._average = model, average
        self._weights: dict[str, Weights] = {}

    def remember(self) -> None:
        """Keep the weights of now."""
        learning = {name for name, own in self._model.named_parameters() if own.requires_grad}
        learning |= {name for name, _ in self._model.named_buffers()}  # of batch norms what they have seen
        if is_sharded(self._model):
            self._weights = {"model": full_weights(self._model)}
        else:
            self._weights = {"model": _copied(self._model, learning)}
        if self._average is not None:
            self._weights["average"] = _copied(self._average)
        self.is_doubtful = False

    def go_back(self) -> None:
        """Take up the weights that are kept."""
        if is_sharded(self._model):
            set_full_weights(self._model, self._weights["model"])
        else:
            self._model.load_state_dict(self._weights["model"], strict=False)
        if self._average is not None:
            self._average.load_state_dict(self._weights["average"], strict=False)
        self.is_doubtful = False

    def judge(self, guard: Guard, outcome: Outcome | None, *, epoch: int, is_warm: bool) -> bool:
        """Go back if the last epoch was of no use, and keep its weights if it was good; whether it was of no use.

        Args:
            guard: is asked, and told.
            outcome: of the validation images; None without any.
            epoch: from 0.
            is_warm: whether the warm-up is over; before, a model that calls all images the same is given time.

        Raises:
            DivergedError: it was of no use with a much lower learning rate too.
        """
        parts = (self._model,) if self._average is None else (self._model, self._average)
        is_finite, is_good = all(all_finite(part.state_dict()) for part in parts), guard.judge(outcome)
        if is_finite and is_good:
            self.remember()
        elif is_finite and not is_warm:
            self.is_doubtful = True
        else:
            what = "the model calls all validation images the same" if is_finite else "the weights are no longer finite"
            guard.lower(epoch, what)
            self.go_back()
            return True
        return False

    def state_dict(self) -> dict[str, Any] | None:
        """The weights, where those of the last epoch will not do."""
        return self._weights if self.is_doubtful else None

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Take up what `state_dict` gave."""
        self.is_doubtful, self._weights = state is not None, state or {}


def _copied(module: nn.Module, names: set[str] | None = None) -> Weights:
    return {
        name: value.detach().cpu().clone()
        for name, value in module.state_dict().items()
        if names is None or name in names
    }
