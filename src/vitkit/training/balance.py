"""Classes of unequal size: how much their images count in training, and for which shares of them a model then speaks.

A model that was trained as if the classes were alike says how probable each would be if they were. Its log-odds of
class k are too high by the logarithm of what k's images counted for; taking that off gives the probabilities for the
data as they come (Saerens, Latinne & Decaestecker 2002, eq. 2.4; Menon et al. 2021, arXiv 2007.07314, sec. 4.1). It is
taken off the heads' biases, so whatever reads, converts or exports the model has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from vitkit.evaluation.operating import differ_much
from vitkit.model.build import Model

Balance = Literal["loss", "sampler", "none"]


def settle_balance(
    balance: Literal["auto", "loss", "sampler", "none"], counts: Sequence[int]
) -> tuple[Balance, str | None]:
    """How the classes are balanced, and a line that says so where `auto` decides to.

    Args:
        balance: what was asked for.
        counts: training images of each class; those of classes without any do not count.
    """
    if balance != "auto":
        return balance, None
    if not differ_much(counts):
        return "none", None
    occurring = [count for count in counts if count]
    return "loss", (
        f"balance loss: classes have {min(occurring)} to {max(occurring)} training images, so rare ones weigh more"
        " (--balance none to leave it)"
    )


def class_weights(counts: Sequence[int], *, is_multi: bool = False) -> Tensor:
    """(K,) weights, inverse to the classes' images, whose mean over all training images is 1.

    Args:
        counts: training images of each class; a class without any has weight 0.
        is_multi: an image may have several classes. A weight is then of the images that have the class beside those
            that have not, so that none is below 1: a common class needs no less attention than it has.
    """
    images = torch.tensor(counts, dtype=torch.float64)
    inverse = torch.where(images > 0, images.sum() / images.clamp(min=1), 0.0)
    weights = (inverse / (images > 0).sum()).float()
    return weights.clamp(min=1) if is_multi else weights


@dataclass(frozen=True)
class Standing:
    """For which shares of the classes a model speaks, and what its heads' biases were given so that it does.

    Attributes:
        balance: how its training balanced the classes.
        prior: whose probabilities it gives: those of data like the training images, or of classes all alike.
        counts: training images of each class.
        shift: (K,) what is to be added to calibrated logits.
        heads: the heads that learned from labels, which get it; a head that learns from a teacher alone has learned
            what that says of an image, however much the image counted.
        strength: the part of `shift` that validation images want; 1 is what theory says of a model that has learned
            all there is to learn. One that has learned its training images by heart heeds weights less (Byrd & Lipton
            2019, arXiv 1812.03372).
        in_head: (K,) what has been added to each of `heads`, at the temperature of now.
    """

    balance: Balance
    prior: Literal["data", "uniform"]
    counts: tuple[int, ...]
    shift: tuple[float, ...]
    heads: tuple[str, ...]
    strength: float = 1.0
    in_head: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """In plain JSON types."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Standing:
        typed: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
        return cls(**typed)

    def settled(self, temperature: float, strength: float) -> Standing:
        """The same, where `in_head` gives `strength` of the shift to logits that are then divided by `temperature`."""
        return replace(self, strength=strength, in_head=tuple(temperature * strength * own for own in self.shift))


def stand(
    counts: Sequence[int],
    balance: Balance,
    prior: Literal["data", "uniform"],
    model: Model,
    *,
    is_multi: bool = False,
    has_teacher: bool = False,
) -> Standing:
    """What the model's logits need after a training that balances classes so, to be for this prior.

    Args:
        counts: training images of each class.
        balance: of the training.
        prior: what the probabilities are to be for.
        model: whose heads get it.
        is_multi: an image may have several classes.
        has_teacher: a second head learns from a teacher.
    """
    learned = log_weights(counts, balance, is_multi=is_multi)
    wanted = log_weights(counts, "loss") if prior == "uniform" else torch.zeros_like(learned)
    heads = tuple(name for name in ("head", "head_dist") if getattr(model, name) is not None)
    shift = tuple((wanted - learned).tolist())
    own = heads[:1] if has_teacher else heads
    return Standing(balance, prior, tuple(counts), shift, own).settled(1.0, 1.0)


def log_weights(counts: Sequence[int], balance: Balance, *, is_multi: bool = False) -> Tensor:
    """(K,) logarithms of how much more an image of each class counts in training, by weight or by being shown.

    A class without an image is treated as if it had one.
    """
    if balance == "none":
        return torch.zeros(len(counts))
    return class_weights([max(own, 1) for own in counts], is_multi=is_multi).log()


def shift_answers(model: Model, standing: Standing) -> Tensor:
    """(K,) what `standing` adds to the model's logits, which are the mean of its heads'."""
    heads = sum(getattr(model, name) is not None for name in ("head", "head_dist"))
    return torch.tensor(standing.in_head) * (len(standing.heads) / max(heads, 1))


@torch.no_grad()
def give_heads(model: Model, standing: Standing, amount: Sequence[float]) -> None:
    """Add (K,) numbers to the biases of the heads."""
    for name in standing.heads:
        bias = model.get_parameter(f"{name}.bias")
        bias.add_(torch.tensor(amount).to(bias))


@contextmanager
def standing_so(model: Model, standing: Standing) -> Iterator[None]:
    """The model as it is to be saved; afterwards the one in training again, to the bit."""
    kept = {name: model.get_parameter(f"{name}.bias").detach().clone() for name in standing.heads}
    give_heads(model, standing, standing.in_head)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, bias in kept.items():
                model.get_parameter(f"{name}.bias").copy_(bias)
