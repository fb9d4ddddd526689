"""Logistic regression: the head that frozen features deserve."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_STEPS = 200  # of L-BFGS, at most


def regress(
    x: Tensor, y: Tensor, penalty: float, weight: Tensor, bias: Tensor, anchor: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Multinomial regression: least mean cross-entropy + penalty / 2 * |weight - anchor|^2, by L-BFGS.

    Of targets it is one binary regression a class, one-vs-rest.

    Args:
        x: features, (n, D).
        y: labels, (n,), or 0 and 1 of each class, (n, K).
        penalty: on the weights; biases are free.
        weight: (K, D), to begin with.
        bias: (K,), to begin with.
        anchor: (K, D), which the weights are to stay near; None: zeros.
    """
    anchor = torch.zeros_like(weight) if anchor is None else anchor
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    optimizer = torch.optim.LBFGS((weight, bias), max_iter=_STEPS, tolerance_grad=1e-5, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        # Over the classes a sum, so that each has the penalty that it would have alone.
        times = 1 if y.ndim == 1 else y.shape[1]
        value = times * regression_loss(x @ weight.T + bias, y) + penalty / 2 * ((weight - anchor) ** 2).sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()


def regression_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy of labels (n,), or binary cross-entropy of targets (n, K)."""
    return F.cross_entropy(logits, y) if y.ndim == 1 else F.binary_cross_entropy_with_logits(logits, y)
