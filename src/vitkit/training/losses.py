"""Losses and training objectives.

An objective converts labels into targets, and computes the loss of a batch and the validation figures. The losses are
cross-entropy, binary cross-entropy, and distillation as in DeiT (arXiv 2012.12877, sec. 4), where a second head of the
student imitates a teacher. If the student has a single head, this head learns from both the labels and the teacher.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, Protocol, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.evaluation.metrics import mean_average_precision
from vitkit.training.distributed import ALONE, ProcessGroup
from vitkit.training.recipe import Recipe


def distillation_loss(
    heads: Sequence[Tensor],
    labels: Tensor,
    teacher: Tensor,
    *,
    kind: Literal["hard", "soft"],
    alpha: float,
    temperature: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute the distillation loss, averaged over the batch.

    - hard (eq. 3): 1/2 CE(class head, labels) + 1/2 CE(distillation head, the teacher's decision)
    - soft (eq. 2): (1 - alpha) CE(class head, labels) + alpha t^2 KL(teacher || distillation head, at temperature t)

    DeiT's code (losses.py) divides KL by the number of classes K, which the paper and Hinton (arXiv 1503.02531) do not.

    Args:
        heads: the logits (B, K) of the class head and, if the model has one, of the distillation head.
        labels: true classes (B,), or targets (B, K). The sum of a row of targets is the weight of the image in both
            terms.
        teacher: the teacher's logits (B, K), in the student's order of classes.
        kind: which of the two losses to compute.
        alpha: lambda in the paper's soft loss.
        temperature: tau in the paper's soft loss.
        label_smoothing: the smoothing of the true labels. The teacher's decisions are not smoothed.
    """
    true = _cross_entropy(heads[0], labels, label_smoothing)
    weights = 1.0 if labels.ndim == 1 else labels.sum(dim=1)  # of the images, (B,)
    student = heads[-1].to(teacher.dtype)  # the divergence of bfloat16 logits would be off by 1e-4
    if kind == "hard":
        imitation = F.cross_entropy(student, teacher.argmax(dim=1), reduction="none")  # (B,)
        return (true + (weights * imitation).mean()) / 2
    student, teacher = (F.log_softmax(logits / temperature, dim=1) for logits in (student, teacher))
    divergence = F.kl_div(student, teacher, reduction="none", log_target=True).sum(dim=1)  # (B,)
    return (1 - alpha) * true + alpha * temperature**2 * (weights * divergence).mean()


def label_loss(heads: Sequence[Tensor], labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Compute the cross-entropy with labels (B,) or targets (B, K), averaged over heads and images; a scalar."""
    return torch.stack([_cross_entropy(logits, labels, label_smoothing) for logits in heads]).mean()


def binary_loss(
    heads: Sequence[Tensor], targets: Tensor, weights: Tensor | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """Compute the binary cross-entropy with targets (B, K) in [0, 1], a mean over heads, images and classes; a scalar.

    `label_smoothing` is the fraction by which the targets are moved towards 1/2. `weights` (K,) has the weight of a
    positive image in the loss of each class. A negative image has weight 1.
    """
    targets = (1 - label_smoothing) * targets + label_smoothing / 2
    losses = [F.binary_cross_entropy_with_logits(logits.float(), targets, pos_weight=weights) for logits in heads]
    return torch.stack(losses).mean()


def _cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)
    spread = labels.sum(dim=1, keepdim=True) / labels.shape[1]
    targets = (1 - smoothing) * labels + smoothing * spread  # (B, K)
    kind = torch.promote_types(logits.dtype, targets.dtype)
    return F.cross_entropy(logits.to(kind), targets.to(kind))


T = TypeVar("T")


class TrainingObjective(Protocol):
    """The interface that the training loop requires of an objective.

    The labels (B,) are the numbers that the data set returns with the images, such as the indices of classes.
    """

    @property
    def takes_labels(self) -> bool:
        """Whether `loss` accepts labels (B,) instead of targets (B, K) for images that are not mixed."""

    @property
    def evaluates_shares(self) -> bool:
        """Whether `validation_figures` takes this process's share of the validation images, and not all of them."""

    def to(self, device: torch.device) -> Self:
        """Return a copy of the objective whose tensors for training steps are on a device."""

    def targets(self, labels: Tensor) -> Tensor:
        """Convert labels (B,) into targets (B, K), which mixup and cutmix can average."""

    def call_network(self, network: Callable[..., T], images: Tensor, labels: Tensor) -> T:
        """Call the network on a batch. Return its output, which in training has one tensor for each head."""

    def loss(self, heads: Sequence[Tensor], images: Tensor, targets: Tensor) -> Tensor:
        """Compute the mean loss of a batch, a scalar. `targets` may be labels (B,) if `takes_labels`."""

    def hits(self, heads: Sequence[Tensor], targets: Tensor) -> Tensor:
        """Return the correctness (B,) of each image, from 0 to 1; an empty tensor if correctness is not defined."""

    def validation_figures(self, outputs: Tensor, labels: Tensor, team: ProcessGroup = ALONE) -> dict[str, float]:
        """Compute the validation figures of all processes by name, from the outputs (n, ...) and labels (n,) of one."""


@dataclass(frozen=True)
class Objective:
    """Cross-entropy on every head, or distillation from a teacher."""

    recipe: Recipe  # with the label smoothing and the kind of distillation
    classes: int  # the number of classes, K
    teacher_logits: Callable[[Tensor], Tensor] | None = None  # computes (B, K) from the student's images
    class_weights: Tensor | None = None  # the weight of an image of each class, (K,); None for equal weights
    # The correction of the class prior, (K,), which is added to the logits in validation, as in the saved model.
    shift: Tensor | None = None
    # The caller's loss instead of the built-in one: a scalar of logits (B, K) and labels (B,) or targets (B, K).
    custom_loss: Callable[[Tensor, Tensor], Tensor] | None = None

    evaluates_shares = True  # the figures of all shares can be combined

    @property
    def takes_labels(self) -> bool:
        return self.class_weights is None

    def to(self, device: torch.device) -> Self:
        return replace(self, class_weights=None if self.class_weights is None else self.class_weights.to(device))

    def targets(self, labels: Tensor) -> Tensor:
        """Convert labels (B,) into one-hot targets (B, K), multiplied by the class weights."""
        # `F.one_hot` would read the labels from the GPU, which makes the CPU wait.
        targets = torch.zeros(len(labels), self.classes, device=labels.device).scatter_(1, labels[:, None], 1.0)
        return targets if self.class_weights is None else targets * self.class_weights

    def call_network(self, network: Callable[..., T], images: Tensor, labels: Tensor) -> T:
        return network(images)

    def loss(self, heads: Sequence[Tensor], images: Tensor, targets: Tensor) -> Tensor:
        """Compute the mean loss from the logits (B, K) of each head. Only a teacher needs the images (B, C, H, W)."""
        recipe = self.recipe
        if self.custom_loss is not None:
            return self._custom_loss(heads, targets)
        if self.teacher_logits is None:
            return label_loss(heads, targets, recipe.label_smoothing)
        return distillation_loss(
            heads,
            targets,
            self.teacher_logits(images),
            kind=recipe.distillation,
            alpha=recipe.distill_alpha,
            temperature=recipe.distill_temperature,
            label_smoothing=recipe.label_smoothing,
        )

    def _custom_loss(self, heads: Sequence[Tensor], targets: Tensor) -> Tensor:
        assert self.custom_loss is not None
        losses = [self.custom_loss(logits, targets) for logits in heads]
        for loss in losses:
            if not isinstance(loss, Tensor) or loss.ndim:
                shape = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
                message = f"loss must return the mean loss of the batch, a tensor of no axes, not {shape}"
                raise VitkitError("training.loss-result", message)
            if torch.is_grad_enabled() and not loss.requires_grad:
                message = "loss must be computed from the logits, and its result does not depend on them"
                raise VitkitError("training.loss-detached", message)
        return torch.stack(losses).mean()

    @torch.no_grad()
    def hits(self, heads: Sequence[Tensor], targets: Tensor) -> Tensor:
        """Return whether the mean logits of the heads classify each image correctly, (B,)."""
        return _mean_of_heads(heads).argmax(dim=1) == (targets if targets.ndim == 1 else targets.argmax(dim=1))

    def validation_figures(self, outputs: Tensor, labels: Tensor, team: ProcessGroup = ALONE) -> dict[str, float]:
        logits = outputs if self.shift is None else outputs + self.shift  # (n, K)
        loss = team.mean_of(F.cross_entropy(logits, labels).item(), len(labels))
        correct, images = team.reduce(((logits.argmax(dim=1) == labels).sum().item(), len(labels)))
        return {"val_loss": loss, "val_acc": correct / images}


@dataclass(frozen=True, kw_only=True)
class MultiLabelObjective(Objective):
    """Binary cross-entropy of each class, for images that may have several classes.

    The accuracy is the fraction of images for which the predictions of all classes are correct at a threshold of 1/2.
    `val_map` is the mean average precision.

    A label is the index of one of S sets of classes. `sets` (S, K) has their targets (`ImageTable.set_targets`).
    """

    sets: Tensor

    evaluates_shares = False  # the average precision depends on the order of all images
    takes_labels = False

    def to(self, device: torch.device) -> Self:
        return replace(super().to(device), sets=self.sets.to(device))

    def targets(self, labels: Tensor) -> Tensor:
        return self.sets[labels]  # (B, K); the loss applies the class weights

    def loss(self, heads: Sequence[Tensor], images: Tensor, targets: Tensor) -> Tensor:
        if self.custom_loss is not None:
            return self._custom_loss(heads, targets)
        return binary_loss(heads, targets, self.class_weights, self.recipe.label_smoothing)

    @torch.no_grad()
    def hits(self, heads: Sequence[Tensor], targets: Tensor) -> Tensor:
        return ((_mean_of_heads(heads) > 0) == (targets > 0.5)).all(dim=1)

    def validation_figures(self, outputs: Tensor, labels: Tensor, team: ProcessGroup = ALONE) -> dict[str, float]:
        logits = outputs if self.shift is None else outputs + self.shift  # (n, K)
        targets = self.sets.cpu()[labels]  # (n, K)
        return {
            "val_loss": F.binary_cross_entropy_with_logits(logits, targets).item(),
            "val_acc": ((logits > 0) == (targets > 0.5)).all(dim=1).float().mean().item(),
            "val_map": mean_average_precision(targets.bool().numpy(), logits.nan_to_num().numpy()),
        }


def _mean_of_heads(heads: Sequence[Tensor]) -> Tensor:
    return torch.stack([head.detach().float() for head in heads]).mean(dim=0)  # (B, K)


class EpochSums:
    """The losses and the correctness of the training images of an epoch, collected by batch."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []  # the sum over the images of each batch
        self.images: list[int] = []  # the number of images of each batch
        self.hits: list[Tensor] = []  # the correctness of the images of each batch
        # The same three for the batches before the run was resumed within the epoch.
        self._earlier = torch.empty(0), list[int](), torch.empty(0, dtype=torch.bool)

    def add(self, loss: Tensor, images: int, hits: Iterable[Tensor]) -> None:
        """Add a batch, by the sum of the losses of its images, their number, and tensors with their correctness."""
        self.losses.append(loss)
        self.images.append(images)
        self.hits.extend(hits)

    def figures(self, team: ProcessGroup) -> dict[str, float]:
        """Return the mean loss and, if it is defined, the accuracy, of the images of all processes.

        The loss is without batches whose loss is not finite. All processes must call this method together.
        """
        losses, images, hits = self._on_cpu()
        finite = [(loss, count) for loss, count in zip(losses.tolist(), images, strict=True) if math.isfinite(loss)]
        local_loss = sum(loss for loss, _ in finite)
        local_images = sum(count for _, count in finite)
        local_sums = (local_loss, local_images, hits.double().sum().item(), len(hits))
        loss_sum, loss_images, correct, classified = team.reduce(local_sums)
        figures = {"train_loss": loss_sum / loss_images if loss_images else math.nan}
        if classified:
            figures["train_acc"] = hits.float().mean().item() if team.size == 1 else correct / classified
        return figures

    def state_dict(self, team: ProcessGroup) -> dict[str, Any]:
        """Return the collected values of all processes. All processes must call this method together."""
        losses, images, hits = zip(*team.gather(self._on_cpu()), strict=True)
        return {"losses": torch.cat(losses), "images": [*chain(*images)], "hits": torch.cat(hits)}

    def load_state_dict(self, state: dict[str, Any], team: ProcessGroup) -> None:
        """Load the result of `state_dict`. As it has the values of all processes, only the main process loads it."""
        if team.is_main:
            self._earlier = state["losses"], state["images"], state["hits"]

    def _on_cpu(self) -> tuple[Tensor, list[int], Tensor]:
        losses, images, hits = self._earlier
        return (
            torch.cat([losses, torch.stack(self.losses).cpu()]) if self.losses else losses,
            images + self.images,
            torch.cat([hits, torch.cat(self.hits).cpu()]) if self.hits else hits,
        )
