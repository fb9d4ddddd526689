"""The confidence above which predictions are right as often as promised."""

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refusals import refused
from vitkit.errors import VitkitError
from vitkit.inference import HeldOut, Ranking, answers_needed, binomial_tail, sure_threshold


def held_out(doubt: np.ndarray, is_wrong: np.ndarray) -> HeldOut:
    label = np.zeros(len(doubt), np.int64)
    return HeldOut(label, is_wrong.astype(np.int64), doubt, doubt)


@given(st.integers(1, 400), st.floats(0.001, 0.999), st.data())
def test_binomial_tail_is_the_exact_sum(n: int, p: float, data: st.DataObject) -> None:
    """In whole numbers, for SciPy's is off by 1e-9 where it is as small as 1e-291."""
    k = data.draw(st.integers(0, n))
    a, whole = p.as_integer_ratio()
    exact = sum(math.comb(n, i) * a**i * (whole - a) ** (n - i) for i in range(k + 1)) / Fraction(whole**n)
    assert binomial_tail(k, n, p) == pytest.approx(float(exact), rel=1e-11, abs=1e-300)


def test_answers_needed_is_the_rule_of_three() -> None:
    for accuracy in (0.9, 0.95, 0.99, 0.999):
        needed = answers_needed(accuracy)
        assert accuracy**needed <= 0.05 < accuracy ** (needed - 1)


@pytest.mark.parametrize(("wanted", "n"), [(0.9, 200), (0.95, 400)])
@pytest.mark.parametrize("easy", [0.3, 0.6])
def test_true_accuracy_is_reached_in_95_of_100_samples(wanted: float, n: int, easy: float) -> None:
    """Accuracy falls smoothly with doubt, and crosses the requested one, where a greedy choice would err most often."""
    rng, failures, given_answers, draws = np.random.default_rng(0), 0, 0, 1500
    grid = np.linspace(0, 1, 10001)

    def error(doubt: np.ndarray) -> np.ndarray:
        return (1 - wanted) * 2 * np.minimum(doubt / easy, 3.0)  # the mean below `easy` is 1 - wanted

    below = np.cumsum(error(grid)) / np.arange(1, len(grid) + 1)  # the true error of images below each doubt
    for _ in range(draws):
        doubt = rng.random(n)
        try:
            sure = sure_threshold(held_out(doubt, rng.random(n) < error(doubt)), wanted)
        except VitkitError:
            continue
        given_answers += 1
        failures += below[min(np.searchsorted(grid, sure.doubt), len(grid) - 1)] > 1 - wanted + 1e-3
    assert given_answers > 100
    assert failures / draws < 0.05 + 3 * math.sqrt(0.05 * 0.95 / draws)


def test_everything_is_answered_if_nothing_is_wrong() -> None:
    sure = sure_threshold(held_out(np.linspace(0, 0.6, 300), np.zeros(300, bool)), 0.99)
    assert (sure.answered, sure.share) == (300, 1.0)
    assert sure.answers(np.array([[0.5, 0.5], [0.26, 0.74]], np.float32)).all()


def test_equal_confidences_are_answered_together_or_not_at_all() -> None:
    doubt = np.repeat([0.01, 0.2], 300)
    is_wrong = np.arange(600) >= 450
    sure = sure_threshold(held_out(doubt, is_wrong), 0.9)
    assert (sure.answered, sure.wrong) == (300, 0)


@pytest.mark.parametrize(
    ("images", "wrong", "accuracy", "code"),
    [
        (298, 0, 0.99, "inference.images-too-few"),
        (320, 320, 0.99, "inference.accuracy-unproven"),
        (320, 0, 1.0, "inference.share-outside"),
    ],
)
def test_accuracies_that_cannot_be_shown_are_refused(images: int, wrong: int, accuracy: float, code: str) -> None:
    with refused(code):
        sure_threshold(held_out(np.linspace(0, 0.5, images), np.arange(images) < wrong), accuracy)


@given(st.sampled_from([2, 4, 10_000]), st.data())
def test_any_part_of_a_ranking_is_that_of_the_sorted_tuple(levels: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, levels), min_size=1, max_size=30))
    p = (np.array(numbers) / levels).astype(np.float32)  # with ties
    classes = tuple(f"class {i}" for i in range(len(p)))
    expected = tuple((classes[i], float(p[i])) for i in sorted(range(len(p)), key=lambda i: -p[i]))  # which is stable
    ranking = Ranking(classes, p)
    assert tuple(ranking) == ranking == expected and len(ranking) == len(expected)
    assert hash(ranking) == hash(expected) and repr(ranking) == repr(expected)
    assert pickle.loads(pickle.dumps(ranking)) == expected
    start, stop = data.draw(st.integers(-35, 35)), data.draw(st.integers(-35, 35))
    for part in (
        slice(start, stop, data.draw(st.sampled_from([None, 2, -1, -3]))),
        slice(None, stop),
        slice(start, None),
    ):
        assert ranking[part] == expected[part]
    if -len(expected) <= start < len(expected):
        assert ranking[start] == expected[start]
        assert type(ranking[start][1]) is float
    else:
        with pytest.raises(IndexError):
            ranking[start]
    assert ranking != expected[1:] and ranking != list(expected)
