"""Regularised least squares on frozen features, in closed form: the paper's few-shot classifier (sec. 4.1).

Logistic regression: the head that frozen features deserve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
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


Floats = npt.NDArray[np.float64]
PENALTIES = tuple(10.0**power for power in range(-6, 7))


@dataclass(frozen=True)
class LeastSquares:
    """A linear map of features whose largest output is the class.

    Attributes:
        weight, bias: (K, D) and (K,).
        penalty: on the squares of the weights; the biases are free.
    """

    weight: Floats
    bias: Floats
    penalty: float

    def scores(self, x: npt.NDArray[np.floating]) -> Floats:
        """(n, D) -> (n, K)."""
        return np.asarray(x, np.float64) @ self.weight.T + self.bias


def one_or_minus_one(labels: npt.NDArray[np.integer], classes: int) -> Floats:
    """(n,) -> targets (n, K): 1 at the class, -1 at all others, as in the paper."""
    return np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)


def least_squares(x: npt.NDArray[np.floating], targets: Floats, penalty: float) -> LeastSquares:
    """The least sum of squared errors + penalty * |weight|^2.

    Args:
        x: features, (n, D).
        targets: (n, K).
        penalty: above 0.
    """
    return _fit(np.asarray(x, np.float64), targets, (penalty,))


def choose_least_squares(
    x: npt.NDArray[np.floating], targets: Floats, penalties: Sequence[float] = PENALTIES
) -> LeastSquares:
    """`least_squares` by the penalty that predicts each image best from the others; the greatest where several do.

    What each would be predicted without itself follows from the fit to all (leave-one-out, in closed form), so no
    image is kept back from the few there are. Penalties count for features whose mean square is 1.
    """
    features = np.asarray(x, np.float64)
    scale = max(float(((features - features.mean(axis=0)) ** 2).mean()), np.finfo(np.float64).tiny)
    return _fit(features, targets, [penalty * scale for penalty in sorted(penalties, reverse=True)])


def _fit(x: Floats, targets: Floats, penalties: Sequence[float]) -> LeastSquares:
    """By one singular value decomposition of the centred features for all penalties."""
    n, mean, middle = len(x), x.mean(axis=0), targets.mean(axis=0)
    left, singular, right = np.linalg.svd(x - mean, full_matrices=False)  # (n, r), (r,), (r, D)
    seen = left.T @ (targets - middle)  # (r, K)
    best, least = penalties[0], np.inf
    for penalty in penalties if len(penalties) > 1 else ():
        kept = singular**2 / (singular**2 + penalty)  # (r,)
        residual = targets - middle - left @ (kept[:, None] * seen)  # (n, K)
        leverage = (left**2 * kept).sum(axis=1) + 1 / n  # (n,)
        error = float(((residual / np.maximum(1 - leverage, 1e-12)[:, None]) ** 2).sum())
        if error < least * (1 - 1e-9):
            best, least = penalty, error
    weight = (right.T @ ((singular / (singular**2 + best))[:, None] * seen)).T  # (K, D)
    return LeastSquares(weight, middle - weight @ mean, best)
