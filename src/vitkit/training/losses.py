"""The losses: of the labels, and of distillation as DeiT does it (arXiv 2012.12877, sec. 4).

There the student's second head imitates a teacher. A student with one head learns labels and teacher with the same
logits.

What a model is to learn from an image and its label, and how its answers are judged, in validation and meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data.table import ImageTable
from vitkit.data.task import MULTI_LABEL
from vitkit.evaluation.multilabel import mean_average_precision
from vitkit.training.distributed import ProcessGroup
from vitkit.training.recipe import Recipe
from vitkit.training.stability import Outcome

Kind = Literal["hard", "soft", "soft-deit"]


def distillation_loss(
    heads: Sequence[Tensor],
    labels: Tensor,
    teacher: Tensor,
    *,
    kind: Kind,
    alpha: float,
    temperature: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The mean over the batch, a scalar.

    hard (eq. 3): 1/2 CE(class head, labels) + 1/2 CE(distillation head, the teacher's decision).
    soft (eq. 2): (1 - alpha) CE(class head, labels) + alpha t^2 KL(teacher at temperature t || distillation head at t).
    soft-deit: the same with KL / K. So DeiT's published code has it (losses.py divides by the number of logits, B K),
    and an alpha of its scripts means what it means there; the paper's formula, and Hinton's (arXiv 1503.02531), have
    no K.

    Args:
        heads: logits (B, K) of the class head and, where there is one, of the distillation head.
        labels: (B,) true classes, or (B, K) targets. What a row of targets sums to is the weight of its image, in
            what is learned from the teacher too.
        teacher: logits (B, K), in the student's order of classes.
        kind: which of the three.
        alpha: lambda of the paper's soft loss.
        temperature: tau of the paper's soft loss.
        label_smoothing: of the true labels alone.
    """
    true = _cross_entropy(heads[0], labels, label_smoothing)
    student = heads[-1].to(teacher.dtype)  # the divergence of bfloat16 logits would be off by 1e-4
    if kind == "hard":
        return (true + _mean(F.cross_entropy(student, teacher.argmax(dim=1), reduction="none"), labels)) / 2
    terms = F.kl_div(
        F.log_softmax(student / temperature, dim=1),
        F.log_softmax(teacher / temperature, dim=1),
        reduction="none",
        log_target=True,
    )  # (B, K)
    divergence = terms.mean(dim=1) if kind == "soft-deit" else terms.sum(dim=1)  # (B,)
    return (1 - alpha) * true + alpha * temperature**2 * _mean(divergence, labels)


def label_loss(heads: Sequence[Tensor], labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Without a teacher every head learns the labels (as of `distillation_loss`): the mean of their cross-entropies."""
    return torch.stack([_cross_entropy(logits, labels, label_smoothing) for logits in heads]).mean()


def binary_loss(
    heads: Sequence[Tensor], targets: Tensor, weights: Tensor | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """Where an image may have several classes: the mean binary cross-entropy of all heads, images and classes.

    Args:
        heads: logits (B, K), one or two.
        targets: (B, K), each from 0 to 1.
        weights: (K,) what an image that has a class counts in it; one without it counts 1.
        label_smoothing: how far targets are drawn towards 1/2.
    """
    targets = (1 - label_smoothing) * targets + label_smoothing / 2
    losses = [F.binary_cross_entropy_with_logits(own.float(), targets, pos_weight=weights) for own in heads]
    return torch.stack(losses).mean()


def _cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)
    spread = labels.sum(dim=1, keepdim=True) / labels.shape[1]
    targets = (1 - smoothing) * labels + smoothing * spread  # (B, K)
    kind = torch.promote_types(logits.dtype, targets.dtype)
    return F.cross_entropy(logits.to(kind), targets.to(kind))


def _mean(losses: Tensor, labels: Tensor) -> Tensor:
    """Of the images' losses (B,), each by the weight of its targets."""
    return losses.mean() if labels.ndim == 1 else (losses * labels.sum(dim=1)).mean()


T = TypeVar("T")


class Learning(Protocol):
    """What the loop asks of an objective. What it calls labels (B,) is whatever the data give beside each image."""

    def to(self, device: torch.device) -> Self:
        """The same with what a step reads on this device."""

    @property
    def takes_labels(self) -> bool:
        """Whether the loss takes labels as they come, if images are not mixed."""

    def targets(self, labels: Tensor) -> Tensor:
        """Labels (B,) as what can be mixed, (B, K)."""

    def ask(self, network: Callable[..., T], images: Tensor, labels: Tensor) -> T:
        """What the network says of some images; in training it says a tensor for each head."""

    def loss(self, heads: Sequence[Tensor], images: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of some images, ()."""

    def hits(self, heads: Sequence[Tensor], targets: Tensor) -> Tensor:
        """How far each image is right, 0 to 1, (B,); (0,) where nothing can be right."""

    def judge(self, answers: Tensor, labels: Tensor) -> tuple[dict[str, float], Outcome | None]:
        """The figures of the validation images, and what tells of a collapse, if anything does."""


@dataclass(frozen=True)
class Objective:
    """Cross-entropy on every head, or distillation from a teacher.

    Attributes:
        recipe: label smoothing and how to distil.
        classes: K.
        imitate: images to the teacher's logits; a function, so that no checkpoint holds the teacher.
        class_weights: (K,) what an image of each class counts; None for all alike.
        shift: (K,) what is added to logits in validation, as it will be to those of the model that is saved.
    """

    recipe: Recipe
    classes: int
    imitate: Callable[[Tensor], Tensor] | None = None
    class_weights: Tensor | None = None
    shift: Tensor | None = None

    def to(self, device: torch.device) -> Self:
        """The same with what a step reads on this device."""
        return replace(self, class_weights=None if self.class_weights is None else self.class_weights.to(device))

    def targets(self, labels: Tensor) -> Tensor:
        """Labels (B,) as (B, K): what of each class an image is, times what an image of that class counts."""
        targets = F.one_hot(labels, self.classes).float()  # (B, K)
        return targets if self.class_weights is None else targets * self.class_weights

    @property
    def takes_labels(self) -> bool:
        """Whether labels (B,) say all that targets would."""
        return self.class_weights is None

    def ask(self, network: Callable[..., T], images: Tensor, labels: Tensor) -> T:  # none is shown
        """What the network says of some images."""
        return network(images)

    def loss(self, heads: Sequence[Tensor], images: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of some images.

        Args:
            heads: logits (B, K) of each head.
            images: (B, C, height, width), which a teacher looks at too.
            targets: labels (B,), or weights of the classes (B, K).
        """
        recipe = self.recipe
        if self.imitate is None:
            return label_loss(heads, targets, recipe.label_smoothing)
        return distillation_loss(
            heads,
            targets,
            self.imitate(images),
            kind=recipe.distillation,
            alpha=recipe.distill_alpha,
            temperature=recipe.distill_temperature,
            label_smoothing=recipe.label_smoothing,
        )

    @torch.no_grad()
    def hits(self, heads: Sequence[Tensor], targets: Tensor) -> Tensor:
        """Which images the mean of the heads has right, (B,)."""
        answers = _mean_of_heads(heads)
        return answers.argmax(dim=1) == (targets if targets.ndim == 1 else targets.argmax(dim=1))

    def judge(self, logits: Tensor, labels: Tensor) -> tuple[dict[str, float], Outcome | None]:
        """The figures of the validation images, and what tells of a collapse.

        Args:
            logits: (n, K), of the images' order.
            labels: (n,).
        """
        said = logits if self.shift is None else logits + self.shift
        outcome = Outcome(said, labels, self.shift)
        return {"val_loss": F.cross_entropy(said, labels).item(), "val_acc": outcome.accuracy}, outcome


@dataclass(frozen=True)
class MultiLabelObjective(Objective):
    """Binary cross-entropy of each class, where images may have several.

    An accuracy is the part of the images whose every class is right at a probability of 1/2, and `val_map` is the mean
    average precision. A model that calls all images the same cannot be told from one that has only begun to learn.

    Attributes:
        sets: (S, K) the targets of each label (`ImageTable.set_targets`).
    """

    sets: Tensor = field(default_factory=lambda: torch.empty(0))

    def to(self, device: torch.device) -> Self:
        return replace(super().to(device), sets=self.sets.to(device))

    def targets(self, labels: Tensor) -> Tensor:
        return self.sets[labels]  # (B, K); the weights are a matter of each class's loss

    @property
    def takes_labels(self) -> bool:
        return False

    def loss(self, heads: Sequence[Tensor], images: Tensor, targets: Tensor) -> Tensor:
        return binary_loss(heads, targets, self.class_weights, self.recipe.label_smoothing)

    @torch.no_grad()
    def hits(self, heads: Sequence[Tensor], targets: Tensor) -> Tensor:
        return ((_mean_of_heads(heads) > 0) == (targets > 0.5)).all(dim=1)

    def judge(self, logits: Tensor, labels: Tensor) -> tuple[dict[str, float], Outcome | None]:
        said = logits if self.shift is None else logits + self.shift
        targets = self.sets.cpu()[labels]  # (n, K)
        figures = {
            "val_loss": F.binary_cross_entropy_with_logits(said, targets).item(),
            "val_acc": ((said > 0) == (targets > 0.5)).all(dim=1).float().mean().item(),
            "val_map": mean_average_precision(targets.bool().numpy(), said.nan_to_num().numpy()),
        }
        return figures, None


def _mean_of_heads(heads: Sequence[Tensor]) -> Tensor:
    """(B, K) the mean of the heads' logits."""
    return torch.stack([head.detach().float() for head in heads]).mean(dim=0)


def objective_of(table: ImageTable, recipe: Recipe, **options: Any) -> Objective:
    """The objective of the table's task; for `options` see the attributes of `Objective`."""
    classes = len(table.classes)
    if table.task is MULTI_LABEL:
        return MultiLabelObjective(recipe, classes, sets=torch.tensor(table.set_targets()), **options)
    return Objective(recipe, classes, **options)


class EpochSums:
    """How the training images of an epoch went, as they were seen."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []  # of each batch the sum over its images
        self.images: list[int] = []  # of each batch
        self.hits: list[Tensor] = []  # of each batch how far its images are right

    def add(self, loss: Tensor, images: int, hits: Iterable[Tensor]) -> None:
        """Count a batch by the sum of its images' losses, (), and by how far each image is right."""
        self.losses.append(loss)
        self.images.append(images)
        self.hits.extend(hits)

    def over(self, team: ProcessGroup) -> dict[str, float]:
        """The mean loss and, if any, the accuracy over all processes; losses that are not finite are no part of it."""
        losses = torch.stack(self.losses).tolist() if self.losses else []
        own = [(loss, images) for loss, images in zip(losses, self.images, strict=True) if math.isfinite(loss)]
        sums = team.gather((sum(loss for loss, _ in own), sum(images for _, images in own)))
        images = sum(images for _, images in sums)
        hits = torch.cat(team.gather(torch.cat(self.hits).cpu()))
        loss = sum(loss for loss, _ in sums) / images if images else math.nan
        return {"train_loss": loss, **({"train_acc": hits.float().mean().item()} if len(hits) else {})}
