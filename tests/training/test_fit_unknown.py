"""The score for unknown images is fitted at the end of a training, and its limits are measured and stated."""

from typing import Any

import numpy as np
import pytest

from clouds import known
from refusals import refused
from vitkit.training import LEFT_OUT, LabelledFeatures, fit_unknown
from vitkit.training.unknown import _prediction_interval


def before(n: int, seed: int, spread: float) -> LabelledFeatures:
    """Images of five classes as the initial weights see them: clouds, some of which are close together."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, n)
    return LabelledFeatures(spread * np.eye(5, 8)[labels] + rng.standard_normal((n, 8)), labels)


def in_folds(train: LabelledFeatures, folds: int) -> Any:
    fold = np.arange(len(train.labels)) % folds
    pairs = [(train.select(fold != k), train.select(fold == k)) for k in range(folds)]
    return fit_unknown(train.features, [(a.features, b.features) for a, b in pairs], (train, pairs))


def test_classes_are_left_out_of_the_initial_weights_alone() -> None:
    """Trained features know the class that is left out, and would flatter the score."""
    unknown = fit_unknown(known(300, 0), known(200, 1), (before(300, 0, 0.0), before(200, 1, 0.0)))
    (limit,) = unknown.limits
    assert (limit.kind, limit.classes) == (LEFT_OUT, 5)
    assert 0.8 < limit.share <= 1  # features that say nothing
    assert limit.bounds[0] < 0.95 <= limit.bounds[1]
    assert not fit_unknown(known(300, 0), known(200, 1)).limits
    easy = fit_unknown(known(300, 0), known(200, 1), (before(300, 0, 20.0), before(200, 1, 20.0)))
    assert easy.limits[0].share < 0.1
    (limit,) = in_folds(before(200, 0, 20.0), 4).limits
    assert (limit.kind, limit.classes, limit.images) == (LEFT_OUT, 5, 200) and limit.share < 0.1
    lonely = in_folds(LabelledFeatures(known(12, 0), np.array([0] * 11 + [1])), 3)  # one image is left in the folds
    assert lonely.known.shape == (12,)
    assert not lonely.limits, "one class says nothing about another one"


def test_the_interval_for_another_class_covers_it() -> None:
    """Over many sets of classes that differ, the prediction interval contains the share of one more class."""
    rng, hits, rounds = np.random.default_rng(0), 0, 400
    for _ in range(rounds):
        angles = np.clip(rng.normal(0.8, 0.2, 6), 0, np.pi / 2)
        *shares, another = np.sin(angles) ** 2
        low, high = _prediction_interval(np.array(shares), np.full(5, 1e6))
        hits += low <= another <= high
    assert 0.92 < hits / rounds < 0.98
    low, high = _prediction_interval(np.zeros(4), np.full(4, 10.0))
    assert low == 0 < high  # ten images that are all noticed do not show that every image is


def test_few_validation_images_lower_what_is_accepted_and_none_are_refused() -> None:
    for images, accepted in ((300, 0.95), (10, 1 - 1 / 11), (1, 0.5)):
        assert fit_unknown(known(300, 0), known(images, 1)).accepted == pytest.approx(accepted)
    with refused("training.held-out-missing"):
        fit_unknown(known(50, 0), known(0, 1))
