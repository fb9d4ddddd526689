"""The difference of two accuracies on the same images: its sign, its interval's coverage, and several comparisons."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from vitkit.evaluation import Evaluation, class_curves, gain, grouped


def outcome(right: np.ndarray) -> Evaluation:
    """An evaluation in which these images are predicted correctly."""
    rows = np.where(right[:, None], [0.9, 0.1], [0.1, 0.9]).astype(np.float32)
    labels = np.zeros(len(right), np.int64)
    return Evaluation("val", ("a", "b"), tuple(map(str, range(len(right)))), labels, rows)


def test_the_gain_counts_the_images_that_only_one_of_them_predicts() -> None:
    before, after = np.array([1, 1, 0, 0, 0, 1, 0, 0], bool), np.array([1, 0, 1, 1, 0, 1, 0, 1], bool)
    first = gain(outcome(before), outcome(after))
    low, high = first["interval_95"]
    assert (first["gained"], first["lost"], first["accuracy"]) == (3, 1, 0.25) and low < 0 < high
    same = gain(outcome(before), outcome(before))
    assert same["accuracy"] == 0 and same["interval_95"][0] < 0 < same["interval_95"][1]
    back = gain(outcome(after), outcome(before))
    assert (back["accuracy"], back["interval_95"]) == (-0.25, pytest.approx([-high, -low]))


@pytest.mark.parametrize(("images", "gained", "lost"), [(60, 0.05, 0.05), (200, 0.08, 0.03)])
def test_the_interval_covers_the_true_difference(images: int, gained: float, lost: float) -> None:
    rng, covered, times = np.random.default_rng(0), 0, 400
    for _ in range(times):
        drawn = rng.random(images)
        before, after = drawn >= gained, (drawn < gained) | (drawn > gained + lost)
        low, high = gain(outcome(before), outcome(after))["interval_95"]
        covered += low <= gained - lost <= high
    assert covered / times >= 0.94


def test_images_of_one_group_count_as_one() -> None:
    before, after = np.zeros(40, bool), np.arange(40) < 10
    alone = gain(outcome(before), outcome(after))
    together = {str(i): 0 if i < 10 else i for i in range(40)}
    grouped_gain = gain(grouped(outcome(before), together), grouped(outcome(after), together))
    assert alone["interval_95"][0] > 0 > grouped_gain["interval_95"][0]


GRID = np.linspace(0, 1, 201)


@st.composite
def scored(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores with ties, classes without images and a single image among them."""
    n, k, levels = draw(st.integers(1, 40)), draw(st.integers(1, 6)), draw(st.sampled_from([2, 5, 1000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.integers(0, k, n), (rng.integers(0, levels, (n, k)) / levels).astype(np.float32)


@settings(max_examples=20)
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
