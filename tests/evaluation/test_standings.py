"""Areas and curves of each class against scikit-learn's, one class and one curve at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from vitkit.evaluation import average_precisions, class_curves

GRID = np.linspace(0, 1, 201)


@st.composite
def scored(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores with ties, classes without images and a single image among them."""
    n, k, levels = draw(st.integers(1, 40)), draw(st.integers(1, 6)), draw(st.sampled_from([2, 5, 1000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.integers(0, k, n), (rng.integers(0, levels, (n, k)) / levels).astype(np.float32)


@settings(max_examples=30)
@given(scored())
def test_areas_and_curves_are_scikit_learns(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    labels, scores = drawn
    found = class_curves(labels, scores)
    assert sorted(found) == sorted(set(labels.tolist()))
    for i, own in found.items():
        is_own, score = labels == i, scores[:, i]
        assert own.average_precision == pytest.approx(reference.average_precision_score(is_own, score), abs=1e-12)
        precision, recall, _ = reference.precision_recall_curve(is_own, score)
        highest = np.maximum.accumulate(precision)
        expected = np.interp(GRID, recall[::-1], highest[::-1])
        assert own.precisions == pytest.approx(expected, abs=1e-7)  # stored as float32
        if is_own.all():
            assert own.roc_auc is None and own.true_rates is None
            continue
        assert own.roc_auc == pytest.approx(reference.roc_auc_score(is_own, score), abs=1e-12)
        false, true, _ = reference.roc_curve(is_own, score, drop_intermediate=False)
        assert own.true_rates == pytest.approx(np.interp(GRID, false, true), abs=1e-7)


@settings(max_examples=30)
@given(scored(), st.integers(0, 2**32 - 1))
def test_of_several_classes_an_image_each_column_stands_alone(drawn: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    _, scores = drawn
    has = np.random.default_rng(seed).random(scores.shape) < 0.4
    expected = [
        reference.average_precision_score(own, s) if own.any() else np.nan
        for own, s in zip(has.T, scores.T, strict=True)
    ]
    assert average_precisions(has, scores) == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_many_classes_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 30, 100), rng.random((100, 30)).astype(np.float32)
    whole = {i: own.roc_auc for i, own in class_curves(labels, scores).items()}
    monkeypatch.setattr("vitkit.evaluation.metrics._NUMBERS", 250)
    assert {i: own.roc_auc for i, own in class_curves(labels, scores).items()} == whole
