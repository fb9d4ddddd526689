"""Distillation as DeiT does it (arXiv 2012.12877, sec. 4): the student's second head imitates a teacher.

A student with one head learns labels and teacher with the same logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


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
    """The mean over the batch, a scalar.

    hard (eq. 3): 1/2 CE(class head, labels) + 1/2 CE(distillation head, the teacher's decision).
    soft (eq. 2): (1 - alpha) CE(class head, labels) + alpha t^2 KL(teacher at temperature t || distillation head at t).

    Args:
        heads: logits (B, K) of the class head and, where there is one, of the distillation head.
        labels: (B,) true classes.
        teacher: logits (B, K), in the student's order of classes.
        kind: which of the two.
        alpha: lambda of the paper's soft loss.
        temperature: tau of the paper's soft loss.
        label_smoothing: of the true labels alone.
    """
    true = F.cross_entropy(heads[0], labels, label_smoothing=label_smoothing)
    student = heads[-1].to(teacher.dtype)  # the divergence of bfloat16 logits would be off by 1e-4
    if kind == "hard":
        return (true + F.cross_entropy(student, teacher.argmax(dim=1))) / 2
    imitation = F.kl_div(
        F.log_softmax(student / temperature, dim=1),
        F.log_softmax(teacher / temperature, dim=1),
        reduction="batchmean",
        log_target=True,
    )
    return (1 - alpha) * true + alpha * temperature**2 * imitation


def label_loss(heads: Sequence[Tensor], labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Without a teacher every head learns the labels: the mean of their cross-entropies."""
    losses = [F.cross_entropy(logits, labels, label_smoothing=label_smoothing) for logits in heads]
    return torch.stack(losses).mean()
