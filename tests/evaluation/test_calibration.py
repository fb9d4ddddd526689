"""The temperature against an independent minimiser, the calibration error against a loop, and the odd cases."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from vitkit.evaluation import Reliability, fit_temperature


def sample(n: int, k: int, scale: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits `scale` times too large, and labels drawn by what they should say."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (n, k))
    labels = np.array([rng.choice(k, p=p) for p in softmax(logits, axis=1)])
    return scale * logits, labels


@pytest.mark.parametrize(("scale", "k"), [(0.4, 2), (1.0, 10), (3.0, 10)])
def test_the_temperature_has_the_least_log_loss(scale: float, k: int) -> None:
    logits, labels = sample(3000, k, scale)
    own = fit_temperature(softmax(logits, axis=1).astype(np.float32), labels)
    rows = np.arange(len(labels))
    best = minimize(lambda t: -log_softmax(logits / np.exp(t), axis=1)[rows, labels].mean(), [0.0])
    assert own == pytest.approx(float(np.exp(best.x[0])), rel=0.01)
    assert own == pytest.approx(scale, rel=0.1)


@pytest.mark.parametrize(("n", "is_right"), [(1, True), (1, False), (200, True), (200, False)])
def test_images_that_are_all_right_or_all_wrong_leave_it_finite_and_in_range(n: int, is_right: bool) -> None:
    labels = np.arange(n) % 3
    said = labels if is_right else (labels + 1) % 3
    found = fit_temperature(softmax(6 * np.eye(3)[said], axis=1).astype(np.float32), labels)
    assert 0.05 <= found <= 20
    assert (found < 1) == is_right


def test_few_images_that_are_all_right_do_not_make_it_certain() -> None:
    found = fit_temperature(softmax(4 * np.eye(3)[[0, 1, 2]], axis=1).astype(np.float32), np.array([0, 1, 2]))
    assert 0.5 < found < 1
    rows = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    assert 0.05 <= fit_temperature(rows, np.array([0, 1, 1])) <= 20


def test_the_calibration_error_is_that_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.dirichlet(np.ones(4), 300).astype(np.float32), rng.integers(0, 4, 300)
    confidence, right = rows.max(1).astype(np.float64), rows.argmax(1) == labels
    error = 0.0
    for low, high in zip(np.arange(15) / 15, np.arange(1, 16) / 15, strict=True):
        own = (confidence > low) & (confidence <= high)
        if own.any():
            error += own.mean() * abs(right[own].mean() - confidence[own].mean())
    assert Reliability.of(rows, labels).ece == pytest.approx(error, abs=1e-9)


def test_confidence_that_is_as_it_should_be_has_no_error_and_certain_mistakes_have_all_of_it() -> None:
    certain = np.eye(2, dtype=np.float32)[[0, 0, 1]]
    assert Reliability.of(certain, np.array([0, 0, 1])).ece == 0
    assert Reliability.of(certain, np.array([1, 1, 0])).ece == 1
