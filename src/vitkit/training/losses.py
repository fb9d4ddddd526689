"""The losses: of the labels, and of distillation as DeiT does it (arXiv 2012.12877, sec. 4).

There the student's second head imitates a teacher. A student with one head learns labels and teacher with the same
logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

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
