"""Distillation: the losses against a computation by hand, and which head learns what from whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tiny
from vitkit.training import Objective, Recipe, distillation_loss, label_loss

LABELS = [0, 3, 6]


def numbers(seed: int, rows: int = 3, columns: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (rows, columns))


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def cross_entropy(logits: np.ndarray, labels: list[int], smoothing: float = 0.0) -> float:
    logs = log_softmax(logits)
    total = 0.0
    for row, label in zip(logs, labels, strict=True):
        total -= (1 - smoothing) * row[label] + smoothing * row.mean()
    return total / len(labels)


def by_hand(kind: str, heads: list[np.ndarray], teacher: np.ndarray, alpha: float, t: float, smoothing: float) -> float:
    true = cross_entropy(heads[0], LABELS, smoothing)
    if kind == "hard":
        return 0.5 * true + 0.5 * cross_entropy(heads[-1], [int(row.argmax()) for row in teacher])
    p, q = log_softmax(teacher / t), log_softmax(heads[-1] / t)
    divergence = (np.exp(p) * (p - q)).sum() / (p.size if kind == "soft-deit" else len(LABELS))
    return (1 - alpha) * true + alpha * t * t * divergence


@pytest.mark.parametrize("one_head", [False, True], ids=["two heads", "one head"])
@pytest.mark.parametrize(("alpha", "temperature", "smoothing"), [(0.1, 3.0, 0.0), (0.7, 1.0, 0.1), (0.0, 5.0, 0.0)])
@pytest.mark.parametrize("kind", ["hard", "soft", "soft-deit"])
def test_losses_are_of_the_paper(kind: Any, alpha: float, temperature: float, smoothing: float, one_head: bool) -> None:
    heads = [numbers(1)] if one_head else [numbers(1), numbers(2)]
    loss = distillation_loss(
        [torch.from_numpy(head) for head in heads],
        torch.tensor(LABELS),
        torch.from_numpy(numbers(3)),
        kind=kind,
        alpha=alpha,
        temperature=temperature,
        label_smoothing=smoothing,
    )
    assert loss.item() == pytest.approx(by_hand(kind, heads, numbers(3), alpha, temperature, smoothing), abs=1e-12)


@pytest.mark.parametrize("kind", ["hard", "soft", "soft-deit"])
def test_what_an_image_weighs_counts_in_what_is_learned_from_the_teacher(kind: Any) -> None:
    heads, teacher = [torch.from_numpy(numbers(seed)) for seed in (1, 2)], torch.from_numpy(numbers(3))
    weights = torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64)
    targets = F.one_hot(torch.tensor(LABELS), 7) * weights[:, None]
    choices: dict[str, Any] = {"kind": kind, "alpha": 0.3, "temperature": 2.0}
    loss = distillation_loss(heads, targets, teacher, **choices)
    each = [
        distillation_loss([head[i : i + 1] for head in heads], torch.tensor([label]), teacher[i : i + 1], **choices)
        for i, label in enumerate(LABELS)
    ]
    assert loss.item() == pytest.approx((torch.stack(each) @ weights / 3).item(), rel=1e-12)


def test_without_a_teacher_every_head_learns_the_labels() -> None:
    heads = [numbers(1), numbers(2)]
    expected = sum(cross_entropy(head, LABELS, 0.1) for head in heads) / 2
    loss = label_loss([torch.from_numpy(head) for head in heads], torch.tensor(LABELS), 0.1)
    assert loss.item() == pytest.approx(expected, abs=1e-12)


def test_the_class_head_learns_labels_and_the_other_the_teacher() -> None:
    model = tiny.build(distill_token=True, distill_head=True).train()
    wrong = torch.eye(7)[[1, 1, 1]]
    objective = Objective(Recipe(label_smoothing=0.0), 7, lambda images: wrong)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batch = (tiny.images(3), torch.tensor([2, 2, 2]))
    for _ in range(20):
        optimizer.zero_grad()
        objective.loss(model.forward_heads(batch[0]), *batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        first, second = model.eval().forward_heads(batch[0])
    assert (first.argmax(1) == 2).all()
    assert (second.argmax(1) == 1).all()
    assert torch.allclose(model(batch[0]), (first + second) / 2)


@pytest.mark.parametrize("kind", ["hard", "soft", "soft-deit"])
def test_half_precision_costs_the_losses_nothing(kind: Any) -> None:
    heads = [torch.from_numpy(numbers(seed, 64)).bfloat16() for seed in (1, 2)]
    labels, teacher = torch.arange(64) % 7, torch.from_numpy(numbers(3, 64)).float()
    choices: dict[str, Any] = {"kind": kind, "alpha": 0.9, "temperature": 3.0}
    with torch.autocast("cpu", torch.bfloat16):
        loss = distillation_loss(heads, labels, teacher, **choices)
    exact = distillation_loss([head.double() for head in heads], labels, teacher.double(), **choices)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=1e-6)
