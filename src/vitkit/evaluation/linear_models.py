"""Linear models on frozen features.

Logistic regression is fitted by L-BFGS. Regularised least squares is solved in closed form; it is the few-shot
classifier of the paper (sec. 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
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


Floats = npt.NDArray[np.float64]
PENALTIES = tuple(10.0**power for power in range(-6, 7))


@dataclass(frozen=True)
class LeastSquares:
    """A linear map of features. The predicted class is the class with the largest output.

    Attributes:
        weight, bias: parameters of the map, (K, D) and (K,).
        penalty: factor of the squared weights in the fit. The biases are not penalised.
    """

    weight: Floats
    bias: Floats
    penalty: float

    def scores(self, x: npt.NDArray[np.floating]) -> Floats:
        """Return the outputs (n, K) for features (n, D)."""
        return np.asarray(x, np.float64) @ self.weight.T + self.bias


def one_or_minus_one(labels: npt.NDArray[np.integer], classes: int) -> Floats:
    """Return targets (n, K) for labels (n,): 1 for the true class and -1 for all other classes, as in the paper."""
    return np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)


def least_squares(x: npt.NDArray[np.floating], targets: Floats, penalty: float) -> LeastSquares:
    """Minimise the sum of squared errors + penalty * |weight|^2.

    Args:
        x: features, (n, D).
        targets: (n, K).
        penalty: positive number.
    """
    return _fit(np.asarray(x, np.float64), targets, (penalty,))


def choose_least_squares(
    x: npt.NDArray[np.floating], targets: Floats, penalties: Sequence[float] = PENALTIES
) -> LeastSquares:
    """Fit `least_squares` with the penalty that has the smallest leave-one-out error.

    The leave-one-out predictions follow in closed form from the fit to all images, so no images have to be held out. In
    a tie, the largest penalty is chosen. Penalties refer to features that are centred and scaled to a mean square of 1.
    """
    features = np.asarray(x, np.float64)
    scale = max(float(((features - features.mean(axis=0)) ** 2).mean()), np.finfo(np.float64).tiny)
    return _fit(features, targets, [penalty * scale for penalty in sorted(penalties, reverse=True)])


def _fit(x: Floats, targets: Floats, penalties: Sequence[float]) -> LeastSquares:
    """Return the fit with the best penalty. All penalties share one singular value decomposition of the features."""
    n, mean, middle = len(x), x.mean(axis=0), targets.mean(axis=0)
    left, singular, right = np.linalg.svd(x - mean, full_matrices=False)  # (n, r), (r,), (r, D)
    projected = left.T @ (targets - middle)  # (r, K)
    best, least = penalties[0], np.inf
    for penalty in penalties if len(penalties) > 1 else ():
        shrinkage = singular**2 / (singular**2 + penalty)  # (r,)
        residual = targets - middle - left @ (shrinkage[:, None] * projected)  # (n, K)
        leverage = (left**2 * shrinkage).sum(axis=1) + 1 / n  # (n,)
        error = float(((residual / np.maximum(1 - leverage, 1e-12)[:, None]) ** 2).sum())
        if error < least * (1 - 1e-9):
            best, least = penalty, error
    weight = (right.T @ ((singular / (singular**2 + best))[:, None] * projected)).T  # (K, D)
    return LeastSquares(weight, middle - weight @ mean, best)
