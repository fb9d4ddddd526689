"""Verdicts on planted answers: what is the same is not told apart, what differs is, and intervals cover."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, norm

from vitkit.evaluation.intervals import Units
from vitkit.experiments.statistics import LEVEL, Difference, accuracy_interval, difference, holm

Answers = npt.NDArray[np.bool_]


def planted(
    rng: np.random.Generator, accuracies: list[float], seeds: int, images: int, *, luck: float, alike: float = 0.5
) -> list[Answers]:
    """Which images trainings of models have right, (S, n) each.

    Args:
        rng: draws them.
        accuracies: what each model has on average over seeds and images.
        seeds: how many.
        images: how many.
        luck: standard deviation of the accuracy between seeds, about.
        alike: how far all models and seeds find the same images hard, 0 to 1.
    """
    shared = rng.normal(0, alike**0.5, images)
    found = []
    for accuracy in accuracies:
        width = luck / norm.pdf(norm.ppf(accuracy))
        shift = norm.ppf(accuracy) * (1 + width**2) ** 0.5  # so that the mean over the luck is the accuracy
        own = rng.normal(0, (0.2 * (1 - alike)) ** 0.5, images)
        rest = rng.normal(0, (0.8 * (1 - alike)) ** 0.5, (seeds, images))
        found.append(shift + rng.normal(0, width, (seeds, 1)) + shared + own + rest > 0)
    return found


def alone(images: int) -> Units:
    return Units.of(images, None)


def test_two_seeds_of_one_configuration_cannot_be_told_apart() -> None:
    rng = np.random.default_rng(0)
    found = [difference(*planted(rng, [0.8, 0.8], 3, 500, luck=0.01), alone(500)) for _ in range(20)]
    assert sum(own.p >= LEVEL for own in found) >= 18


def test_a_planted_difference_of_five_points_is_found() -> None:
    rng = np.random.default_rng(1)
    found = [difference(*planted(rng, [0.9, 0.85], 5, 1000, luck=0.005), alone(1000)) for _ in range(20)]
    assert all(own.p < LEVEL and own.mean > 0 for own in found)
    assert sum(own.interval[0] <= 0.05 <= own.interval[1] for own in found) >= 18


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_same_answers_differ_by_nothing_and_yet_might(seeds: int) -> None:
    answers = np.random.default_rng(2).random((seeds, 40)) < 0.7
    own = difference(answers, answers, alone(40))
    assert own.mean == 0 and own.p == 1
    assert own.interval[0] < 0 < own.interval[1]  # other images may show what these did not


def covered(seeds: int, images: int, luck: float, trials: int, rng: np.random.Generator) -> tuple[int, int]:
    """Of so many trials: how often the interval of a difference holds the truth, and those of the accuracies."""
    pairs = accuracies = 0
    for _ in range(trials):
        first, second = planted(rng, [0.8, 0.75], seeds, images, luck=luck)
        low, high = difference(first, second, alone(images)).interval
        pairs += low <= 0.05 <= high
        for own, truth in ((first, 0.8), (second, 0.75)):
            low, high = accuracy_interval(own, alone(images))
            accuracies += low <= truth <= high
    return pairs, accuracies


@pytest.mark.parametrize(
    ("seeds", "luck", "least"), [(2, 0.02, 0.90), (3, 0.02, 0.92), (5, 0.02, 0.93), (3, 0.0, 0.93)]
)
def test_intervals_cover(seeds: int, luck: float, least: float) -> None:
    trials = 200
    pairs, accuracies = covered(seeds, 200, luck, trials, np.random.default_rng(3))
    assert binomtest(pairs, trials, least, alternative="less").pvalue > 0.001, pairs
    assert binomtest(accuracies, 2 * trials, least, alternative="less").pvalue > 0.001, accuracies


@pytest.mark.accept
@pytest.mark.parametrize(("seeds", "least"), [(2, 0.90), (3, 0.935), (5, 0.945)])
@pytest.mark.parametrize("images", [60, 400])
@pytest.mark.parametrize("luck", [0.0, 0.01, 0.03])
def test_intervals_cover_to_the_point(seeds: int, least: float, images: int, luck: float) -> None:
    trials = 2000
    pairs, accuracies = covered(seeds, images, luck, trials, np.random.default_rng(4))
    assert binomtest(pairs, trials, least, alternative="less").pvalue > 0.001, pairs
    assert binomtest(accuracies, 2 * trials, least, alternative="less").pvalue > 0.001, accuracies


def test_with_one_seed_the_interval_is_the_proportions() -> None:
    right = np.arange(50) < 43
    expected = binomtest(43, 50).proportion_ci()
    assert accuracy_interval(right[None], alone(50)) == pytest.approx(tuple(expected), abs=1e-6)


def test_copies_of_images_are_no_new_images() -> None:
    first, second = planted(np.random.default_rng(5), [0.8, 0.7], 3, 60, luck=0.01)
    once = difference(first, second, alone(60))
    twice = difference(np.tile(first, 2), np.tile(second, 2), Units.of(120, np.tile(np.arange(60), 2)))
    assert twice.mean == pytest.approx(once.mean)
    assert twice.interval == pytest.approx(once.interval, rel=0.02)
    unaware = difference(np.tile(first, 2), np.tile(second, 2), alone(120))
    assert unaware.spread.images < 0.6 * once.spread.images  # what taking copies for images would claim


ANSWERS = st.tuples(st.integers(1, 4), st.integers(2, 30), st.integers(0, 2**32 - 1))


@given(ANSWERS)
@settings(max_examples=60, deadline=None)
def test_what_holds_of_any_answers(shape: tuple[int, int, int]) -> None:
    seeds, images, number = shape
    first, second = np.random.default_rng(number).random((2, seeds, images)) < 0.6
    own, back = difference(first, second, alone(images)), difference(second, first, alone(images))
    assert own.mean == -back.mean == pytest.approx(first.mean() - second.mean())
    assert own.p == back.p and own.interval == pytest.approx((-back.interval[1], -back.interval[0]))
    assert own.interval[0] <= own.mean <= own.interval[1]
    assert (own.p < LEVEL) == (not own.interval[0] <= 0 <= own.interval[1])
    assert (own.p < LEVEL) == (abs(own.mean) > own.needed(1))
    assert own.needed(3) > own.needed(1)
    low, high = accuracy_interval(first, alone(images))
    assert 0 <= low <= first.mean() <= high <= 1


def test_answers_of_other_shapes_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="pairs"):
        difference(np.ones((2, 3), bool), np.ones((3, 3), bool), alone(3))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_its_steps_reject(p: list[float]) -> None:
    adjusted, left = holm(p), len(p)
    for own, i in sorted((own, i) for i, own in enumerate(p)):
        if own * left > LEVEL:
            assert all(adjusted[j] > LEVEL for j in range(len(p)) if p[j] >= own)
            break
        assert adjusted[i] <= LEVEL
        left -= 1


def test_a_difference_knows_what_it_would_take() -> None:
    own = difference(*planted(np.random.default_rng(6), [0.8, 0.8], 3, 500, luck=0.0), alone(500))
    assert isinstance(own, Difference)
    shifted = own.spread.p_of(own.needed(1))
    assert shifted == pytest.approx(LEVEL)
