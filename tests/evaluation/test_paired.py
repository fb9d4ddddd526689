"""The difference of two accuracies on the same images: its sign, its interval's coverage, and several comparisons."""

from __future__ import annotations

import numpy as np
import pytest

from vitkit.evaluation import Evaluation, gain, grouped


def outcome(right: np.ndarray) -> Evaluation:
    """An evaluation in which these images are predicted correctly."""
    rows = np.where(right[:, None], [0.9, 0.1], [0.1, 0.9]).astype(np.float32)
    labels = np.zeros(len(right), np.int64)
    return Evaluation("val", ("a", "b"), tuple(map(str, range(len(right)))), labels, rows)


def test_the_gain_counts_the_images_that_only_one_of_them_predicts() -> None:
    before, after = np.array([1, 1, 0, 0, 0, 1, 0, 0], bool), np.array([1, 0, 1, 1, 0, 1, 0, 1], bool)
    first = gain(outcome(before), outcome(after))
    assert (first.gained, first.lost, first.mean) == (3, 1, 0.25)
    assert first.interval[0] < 0 < first.interval[1] and not first.is_certain
    back = gain(outcome(after), outcome(before))
    assert (back.mean, back.interval) == (-0.25, pytest.approx((-first.interval[1], -first.interval[0])))


def test_equal_predictions_leave_room_for_a_difference() -> None:
    right = np.arange(50) % 3 > 0
    same = gain(outcome(right), outcome(right))
    assert same.mean == 0 and same.interval[0] < 0 < same.interval[1]


@pytest.mark.parametrize(("images", "gained", "lost"), [(60, 0.05, 0.05), (200, 0.02, 0.02), (200, 0.08, 0.03)])
def test_the_interval_covers_the_true_difference(images: int, gained: float, lost: float) -> None:
    rng, covered, times = np.random.default_rng(0), 0, 400
    for _ in range(times):
        drawn = rng.random(images)
        before, after = drawn >= gained, (drawn < gained) | (drawn > gained + lost)
        low, high = gain(outcome(before), outcome(after)).interval
        covered += low <= gained - lost <= high
    assert covered / times >= 0.94


def test_several_comparisons_rarely_find_a_winner_where_there_is_none() -> None:
    rng, alone, jointly, times, tests = np.random.default_rng(1), 0, 0, 300, 4
    for _ in range(times):
        before = outcome(rng.random(150) < 0.8)
        others = [outcome(rng.random(150) < 0.8) for _ in range(tests)]
        alone += any(gain(before, other).is_certain for other in others)
        jointly += any(gain(before, other, tests).is_certain for other in others)
    assert jointly / times <= 0.04 < alone / times  # 2.5 % are above the interval by chance


def test_images_of_one_group_count_as_one() -> None:
    before, after = np.zeros(40, bool), np.arange(40) < 10
    alone = gain(outcome(before), outcome(after))
    together = {str(i): 0 if i < 10 else i for i in range(40)}
    grouped_gain = gain(grouped(outcome(before), together), grouped(outcome(after), together))
    assert alone.is_certain and not grouped_gain.is_certain
