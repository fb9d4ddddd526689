"""Weights of classes against scikit-learn's, and when they are used at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight

from vitkit.training import class_weights, resolve_balance

COUNTS = st.lists(st.integers(1, 500), min_size=1, max_size=8)


@given(COUNTS)
def test_the_weights_are_scikit_learns(counts: list[int]) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    expected = compute_class_weight("balanced", classes=np.arange(len(counts)), y=labels)
    np.testing.assert_allclose(class_weights(counts).numpy(), expected, rtol=1e-6)


@given(COUNTS, st.integers(0, 3))
def test_their_mean_over_training_images_is_1_also_where_classes_have_none(counts: list[int], empty: int) -> None:
    counts = counts + [0] * empty
    weights = class_weights(counts).numpy()
    assert (weights * counts).sum() / sum(counts) == pytest.approx(1, rel=1e-5)
    assert (weights[len(counts) - empty :] == 0).all()


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([10, 30], "none"), ([10, 31], "loss"), ([10, 20, 31], "loss"), ([10, 0, 30], "none"), ([7], "none")],
)
def test_auto_weighs_where_the_largest_has_more_than_three_times_the_smallest(counts: list[int], expected: str) -> None:
    balance, why = resolve_balance("auto", counts)
    assert balance == expected
    assert (why is None) == (expected == "none")


def test_auto_says_so_in_a_line() -> None:
    line = resolve_balance("auto", [5, 40])[1]
    assert line is not None
    assert line.startswith("balance loss: classes have 5 to 40 training images")
    assert "--balance none" in line


@pytest.mark.parametrize("asked", ["loss", "sampler", "none"])
def test_what_is_asked_for_is_done_without_a_word(asked: str) -> None:
    assert resolve_balance(asked, [1, 100]) == (asked, None)  # type: ignore[arg-type]
    assert resolve_balance(asked, [9, 9]) == (asked, None)  # type: ignore[arg-type]
