"""The temperature against an independent minimiser, the calibration error against a loop, and the odd cases."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_expit, log_softmax, softmax

from vitkit.evaluation import (
    Reliability,
    calibrate,
    log_odds,
    to_probabilities,
)


def sample(n: int, k: int, scale: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits `scale` times too large, and labels drawn by what they should say."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (n, k))
    labels = np.array([rng.choice(k, p=p) for p in softmax(logits, axis=1)])
    return scale * logits, labels


@pytest.mark.parametrize(("scale", "k"), [(0.4, 2), (1.0, 10), (3.0, 10)])
def test_the_temperature_has_the_least_log_loss(scale: float, k: int) -> None:
    logits, labels = sample(3000, k, scale)
    own = calibrate(logits, labels, np.zeros(k)).temperature
    rows = np.arange(len(labels))
    best = minimize(lambda t: -log_softmax(logits / np.exp(t), axis=1)[rows, labels].mean(), [0.0])
    assert own == pytest.approx(float(np.exp(best.x[0])), rel=0.01)
    assert own == pytest.approx(scale, rel=0.1)


@pytest.mark.parametrize(("n", "is_right"), [(1, True), (1, False), (200, True), (200, False)])
def test_images_that_are_all_right_or_all_wrong_leave_it_finite_and_in_range(n: int, is_right: bool) -> None:
    labels = np.arange(n) % 3
    said = labels if is_right else (labels + 1) % 3
    found = calibrate(6 * np.eye(3)[said], labels, np.zeros(3)).temperature
    assert 0.05 <= found <= 20
    assert (found < 1) == is_right
    assert n > 1 or not is_right or found > 0.5, "one image does not make it certain"


def test_bins_have_the_images_confidence_and_accuracy_of_a_loop() -> None:
    """Some bins are too confident and others are not, so that their gaps do not add up as one bin's would."""
    rng = np.random.default_rng(0)
    confidence = np.concatenate([rng.random(400), np.arange(16) / 15])  # the edges, too: bins are (low, high]
    confidence = np.append(confidence[confidence > 2 / 15], [0.03, 0.1])  # the first two bins have one image each
    is_right = rng.random(len(confidence)) < np.sqrt(confidence) - 0.3 * (confidence > 0.5)
    found, error = Reliability.of(confidence, is_right), 0.0
    for i, (low, high) in enumerate(zip(np.arange(15) / 15, np.arange(1, 16) / 15, strict=True)):
        own = (confidence > low) & (confidence <= high)
        assert found.counts[i] == own.sum() > 0 and (i > 1 or own.sum() == 1)
        assert found.confidence[i] == pytest.approx(confidence[own].mean())
        assert found.accuracy[i] == pytest.approx(is_right[own].mean())
        error += own.mean() * abs(is_right[own].mean() - confidence[own].mean())
    assert found.ece == pytest.approx(error)


def cost(logits: np.ndarray, labels: np.ndarray, shift: np.ndarray, temperature: float, strength: float) -> float:
    """The log loss with its prior: log T is normal around 0 and the strength around 1, both with a deviation of 0.5."""
    z = logits / temperature + strength * shift
    if labels.ndim == 1:
        loss = -log_softmax(z, axis=1)[np.arange(len(z)), labels].sum()
    else:
        loss = -(labels * log_expit(z) + (1 - labels) * log_expit(-z)).sum()
    return float(loss + 2 * np.log(temperature) ** 2 + 2 * (strength - 1) ** 2)


@pytest.mark.parametrize("is_multi", [False, True])
@pytest.mark.parametrize("size", [12, 2000])  # with few images, the prior counts
def test_temperature_and_strength_of_a_shift_have_the_least_cost(size: int, is_multi: bool) -> None:
    rng, shift = np.random.default_rng(3), np.array([1.5, 0.0, -1.0])
    logits = 3 * rng.normal(size=(size, 3))
    truth = logits / 2 + 0.6 * shift
    if is_multi:
        labels = (rng.random((size, 3)) < expit(truth)).astype(np.int64)
    else:
        labels = np.array([rng.choice(3, p=softmax(row)) for row in truth])
    found = calibrate(logits, labels, shift)
    own = minimize(
        lambda x: cost(logits, labels, shift, np.exp(x[0]), x[1]), (0.0, 1.0), method="Nelder-Mead", tol=1e-8
    )
    assert found.temperature == pytest.approx(np.exp(own.x[0]), rel=1e-3)
    assert found.strength == pytest.approx(own.x[1], abs=2e-3)
    if size > 12:
        assert found.temperature == pytest.approx(2, rel=0.15) and found.strength == pytest.approx(0.6, abs=0.15)
    doubled = calibrate(np.tile(logits, (2, 1)), np.concatenate([labels, labels]), shift)
    weighted = calibrate(logits, labels, shift, np.full(size, 2.0))
    assert weighted.temperature == pytest.approx(doubled.temperature, rel=1e-3)
    assert weighted.strength == pytest.approx(doubled.strength, abs=2e-3)


@pytest.mark.parametrize(("shift", "is_multi"), [((1.0, 1.0), False), ((0.0, 0.0), False), ((0.0, 0.0), True)])
def test_a_shift_without_effect_keeps_its_strength(shift: tuple[float, ...], is_multi: bool) -> None:
    logits, labels = np.array([[2.0, 0.0], [1.0, 0.5], [0.0, 1.0]]), np.array([0, 1, 1])
    targets = np.eye(2, dtype=np.int64)[labels] if is_multi else labels
    found = calibrate(logits, targets, np.array(shift))
    assert found.strength == 1
    assert found.temperature == pytest.approx(calibrate(logits, targets, np.zeros(2)).temperature)
    if is_multi:  # the same shift of all classes matters to decisions of each class
        assert calibrate(logits, targets, np.array([3.0, 3.0])).strength != 1


def test_logits_of_probabilities_give_them_back_and_are_finite_at_0_and_1() -> None:
    rng = np.random.default_rng(1)
    rows, labels = rng.dirichlet(np.ones(5), 50).astype(np.float32), np.zeros(50, np.int64)
    assert np.allclose(to_probabilities(log_odds(rows, labels), labels), rows, atol=1e-6)
    several = rng.random((50, 3)).astype(np.float32)
    assert np.allclose(to_probabilities(log_odds(several, several), several), several, atol=1e-6)
    ends = np.array([[0.0, 1.0]], np.float32)
    assert np.isfinite(log_odds(ends, labels[:1])).all()
    least, most = log_odds(ends, ends)[0]
    assert least < -80 and most == pytest.approx(np.log(2 / np.finfo(np.float32).eps)), "the largest below 1"
