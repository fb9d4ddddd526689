"""Logistic regression on frozen features, fitted by L-BFGS."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_STEPS = 200  # maximum number of L-BFGS iterations
_SMALL = 2**21  # entries of `x`; below this, synchronising threads costs more time than it saves


def regress(
    x: Tensor, y: Tensor, penalty: float, weight: Tensor, bias: Tensor, anchor: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Fit a multinomial logistic regression: minimise mean cross-entropy + penalty / 2 * |weight - anchor|^2.

    If the labels are class indicators (n, K), this fits one binary regression per class (one-vs-rest).

    Args:
        x: features, (n, D).
        y: labels (n,), or class indicators (n, K).
        penalty: factor of the squared weights; biases are not penalised.
        weight: initial weights, (K, D).
        bias: initial biases, (K,).
        anchor: weights that the penalty pulls towards, (K, D); None for zeros.
    """
    anchor = torch.zeros_like(weight) if anchor is None else anchor
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    optimizer = torch.optim.LBFGS((weight, bias), max_iter=_STEPS, tolerance_grad=1e-5, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        # Multiplying by the number of classes turns the mean over classes into a sum. The penalty of each class is
        # then that of a separate regression.
        classes = 1 if y.ndim == 1 else y.shape[1]
        value = classes * regression_loss(x @ weight.T + bias, y) + penalty / 2 * ((weight - anchor) ** 2).sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    threads = torch.get_num_threads()
    try:
        if x.numel() < _SMALL:
            torch.set_num_threads(1)
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    finally:
        torch.set_num_threads(threads)
    return weight.detach(), bias.detach()


def regression_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy for labels (n,), or the mean binary cross-entropy for class indicators (n, K)."""
    return F.cross_entropy(logits, y) if y.ndim == 1 else F.binary_cross_entropy_with_logits(logits, y)
