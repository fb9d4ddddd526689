"""What goes wrong in training, noticed while there is something to go back to.

A step whose loss or gradient is not finite is left out; a model that calls every image the same goes back to where it
was better, to go on with a lower learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.system.files import replacing
from vitkit.system.progress import Say
from vitkit.system.run_files import BAD_BATCH

_IN_A_ROW = 3  # steps left out, until training stops
_LOWERED = 2  # times that the learning rate is lowered, until training stops
_FACTOR = 0.1
_SAVED = 10  # bad batches
_ADVICE = "try a lower --lr, a longer --warmup"


class DivergedError(VitkitError):
    """Training is past help."""


@dataclass(frozen=True)
class Outcome:
    """What validation showed.

    Attributes:
        logits: (n, K).
        labels: (n,) true classes.
        shift: (K,) what of every row of `logits` the model has not learned; None for nothing.
    """

    logits: Tensor
    labels: Tensor
    shift: Tensor | None = None

    @property
    def accuracy(self) -> float:
        return (self.logits.argmax(dim=1) == self.labels).double().mean().item()

    @property
    def largest_class(self) -> float:
        """The part of the images that the largest true class has."""
        return self.labels.bincount().max().item() / len(self.labels)


def has_collapsed(outcome: Outcome, best_accuracy: float = 0.0, fell_before: bool = False) -> bool:
    """Whether a model calls (almost) every image the same though it ought to know better.

    That is when 99 % of the predictions are one class, no class has more than 90 % of the images, and the accuracy is
    no better than always answering the largest class gives. A model that has only just begun to learn looks the same,
    so there must be a sign of harm too: logits that are not finite, a loss half as large again as the entropy of the
    true classes and larger than that of knowing nothing, logits that (almost) do not depend on the image, or a better
    accuracy before.

    Args:
        outcome: of the validation images; of fewer than ten it says nothing.
        best_accuracy: of the epochs before.
        fell_before: whether the model has collapsed before in this training; then no further sign is needed.
    """
    logits, labels = outcome.logits.double(), outcome.labels
    if len(labels) < 10 or outcome.largest_class > 0.9:
        return False
    if not logits.isfinite().all():
        return True
    same = logits.argmax(dim=1).bincount().max().item() / len(labels) >= 0.99
    if not same or outcome.accuracy > outcome.largest_class:
        return False
    if fell_before:
        return True
    shares = labels.bincount() / len(labels)
    entropy = -torch.xlogy(shares, shares).sum().item()
    learned = logits if outcome.shift is None else logits - outcome.shift
    # One of the two is for classes as frequent as they are: which one, depends on --balance and --prior.
    loss = min(F.cross_entropy(each, labels).item() for each in (logits, learned))
    ignorant = math.log(logits.shape[1])  # the loss of calling all classes equally likely, which harms nobody
    if loss > max(1.5 * entropy, 1.05 * ignorant) or best_accuracy > outcome.largest_class + 0.1:
        return True
    relative = learned - learned.mean(dim=1, keepdim=True)  # softmax sees no more than that
    by_image, by_class = relative.std(dim=0).max().item(), relative.mean(dim=0).std().item()
    return by_image < 0.01 * by_class


class Guard:
    """Counts what went wrong, tells of it, and ends a training that is past help.

    Attributes:
        lowered: how often the learning rate was lowered.
    """

    def __init__(self, say: Say, folder: Path | None = None) -> None:
        self.say, self._folder = say, folder
        self.lowered = 0
        self.best_accuracy = 0.0
        self._bad_in_a_row = 0

    @property
    def lr_scale(self) -> float:
        """What the learning rate is multiplied by."""
        return _FACTOR**self.lowered

    def state_dict(self) -> dict[str, Any]:
        return {"lowered": self.lowered, "best_accuracy": self.best_accuracy, "bad_in_a_row": self._bad_in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.lowered, self.best_accuracy = state["lowered"], state["best_accuracy"]
        self._bad_in_a_row = state["bad_in_a_row"]

    def pass_step(self) -> None:
        """A step went well."""
        self._bad_in_a_row = 0

    def skip_step(self, what: str, batch: Mapping[str, Any]) -> None:
        """Tell that a step is left out, and keep its batch for a look at it.

        Args:
            what: is not finite.
            batch: what is saved; its `epoch`, from 0, and `step` are told.

        Raises:
            DivergedError: it is the third in a row.
        """
        self._bad_in_a_row += 1
        saved = self._save(batch)
        self.say(
            f"the {what} is not finite in epoch {batch['epoch'] + 1}, after {batch['step']} steps: step left out"
            + (f"; its images are in {saved}" if saved else "")
        )
        if self._bad_in_a_row >= _IN_A_ROW:
            raise DivergedError(
                f"the {what} was not finite in {_IN_A_ROW} steps in a row: {_ADVICE}, or --precision float32"
            )

    def _save(self, batch: Mapping[str, Any]) -> Path | None:
        if self._folder is None or (number := len(list(self._folder.glob(BAD_BATCH))) + 1) > _SAVED:
            return None
        path = self._folder / BAD_BATCH.replace("*", str(number))
        with replacing(path) as temporary:
            torch.save(dict(batch), temporary)
        return path

    def judge(self, outcome: Outcome | None) -> bool:
        """Whether an epoch's outcome, if there are validation images, is one to go on from."""
        if outcome is None:
            return True
        if has_collapsed(outcome, self.best_accuracy, self.lowered > 0):
            return False
        self.best_accuracy = max(self.best_accuracy, outcome.accuracy)
        return True

    def lower(self, epoch: int, what: str) -> None:
        """Lower the learning rate, and tell why.

        Args:
            epoch: from 0, the one that went wrong.
            what: went wrong.

        Raises:
            DivergedError: it was lowered twice already.
        """
        if self.lowered >= _LOWERED:
            raise DivergedError(
                f"{what} after epoch {epoch + 1}, with a {round(1 / self.lr_scale)}th of the learning rate too:"
                f" {_ADVICE}, or look at the labels"
            )
        self.lowered += 1
        self.say(
            f"{what} after epoch {epoch + 1}: back to the weights of before, and on with a tenth of the learning rate"
        )


def all_finite(weights: Mapping[str, Tensor]) -> bool:
    """Whether no number of these tensors is infinite or NaN."""
    return all(bool(weight.isfinite().all()) for weight in weights.values())
