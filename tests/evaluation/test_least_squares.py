"""Few-shot by least squares: scikit-learn's Ridge and RidgeCV are the oracles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge, RidgeCV

from vitkit.evaluation import PENALTIES, choose_least_squares, least_squares, one_or_minus_one


def few(seed: int, n: int, features: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, n - classes)])
    centres = rng.normal(size=(classes, features))
    return centres[labels] + rng.normal(size=(n, features)) + 5, labels


def test_targets_are_one_and_minus_one() -> None:
    assert one_or_minus_one(np.array([1, 0]), 3).tolist() == [[-1, 1, -1], [1, -1, -1]]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    n=st.integers(6, 60),
    features=st.integers(1, 80),
    classes=st.integers(2, 5),
    power=st.integers(-4, 4),
)
def test_it_is_scikit_learns_ridge(seed: int, n: int, features: int, classes: int, power: int) -> None:
    """With more images than features and with fewer."""
    x, labels = few(seed, n, features, classes)
    targets = one_or_minus_one(labels, classes)
    ours, theirs = least_squares(x, targets, 10.0**power), Ridge(alpha=10.0**power, solver="svd").fit(x, targets)
    new = few(seed + 1, 20, features, classes)[0]
    assert np.abs(ours.scores(new) - theirs.predict(new).reshape(20, classes)).max() < 1e-4
    assert np.abs(ours.weight - theirs.coef_).max() < 1e-4
    assert np.abs(ours.bias - theirs.intercept_).max() < 1e-4


@pytest.mark.parametrize(("n", "features"), [(12, 40), (60, 10)])
@pytest.mark.parametrize("seed", range(5))
def test_the_penalty_is_the_one_that_scikit_learn_chooses_by_leaving_one_out(n: int, features: int, seed: int) -> None:
    x, labels = few(seed, n, features, 3)
    targets = one_or_minus_one(labels, 3)
    scale = ((x - x.mean(axis=0)) ** 2).mean()
    theirs = RidgeCV(alphas=[scale * penalty for penalty in PENALTIES]).fit(x, targets)
    ours = choose_least_squares(x, targets)
    assert ours.penalty == pytest.approx(theirs.alpha_)
    assert np.abs(ours.scores(x) - theirs.predict(x)).max() < 1e-4


def test_leaving_one_out_is_what_it_says() -> None:
    """By fitting anew without each image in turn."""
    x, labels = few(0, 15, 30, 3)
    targets, penalties = one_or_minus_one(labels, 3), (0.1, 1.0, 10.0, 100.0)
    scale = ((x - x.mean(axis=0)) ** 2).mean()

    def error(penalty: float) -> float:
        rest = [np.delete(np.arange(15), i) for i in range(15)]
        fits = [least_squares(x[own], targets[own], penalty * scale) for own in rest]
        return float(sum(((fit.scores(x[i : i + 1]) - targets[i]) ** 2).sum() for i, fit in enumerate(fits)))

    assert choose_least_squares(x, targets, penalties).penalty == pytest.approx(scale * min(penalties, key=error))


def test_features_that_say_nothing_leave_the_classes_shares() -> None:
    found = choose_least_squares(np.ones((6, 4)), one_or_minus_one(np.array([0, 0, 0, 0, 1, 1]), 2))
    assert np.allclose(found.scores(np.ones((1, 4))), [[1 / 3, -1 / 3]])
