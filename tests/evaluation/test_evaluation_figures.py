"""Intervals against a plain bootstrap, areas against scikit-learn, and all of it as JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import average_precision_score, roc_auc_score

from vitkit.evaluation import Evaluation, at_temperature, rank_areas
from vitkit.evaluation.figures import figures


def sample(n: int, k: int = 4, seed: int = 0, sharpness: float = 2.0, temperature: float = 1.0) -> Evaluation:
    """Logits that tell the class more often than not."""
    rng = np.random.default_rng(seed)
    labels = np.minimum(rng.geometric(0.4, n) - 1, k - 1)  # classes of different sizes
    logits = rng.normal(size=(n, k)) + sharpness * np.eye(k)[labels]
    probabilities = softmax(logits / temperature, axis=1).astype(np.float32)
    return Evaluation(
        split="test",
        classes=tuple("abcdefgh"[:k]),
        paths=tuple(map(str, range(n))),
        labels=labels,
        probabilities=probabilities,
        temperature=temperature,
    )


def subset(own: Evaluation, drawn: np.ndarray) -> Evaluation:
    return Evaluation("test", own.classes, tuple(map(str, drawn)), own.labels[drawn], own.probabilities[drawn])


def test_areas_are_scikit_learns_and_none_where_there_is_no_curve() -> None:
    own = sample(60, 3)
    for i, (_, row) in enumerate(rank_areas(own).items()):
        assert row["roc_auc"] == pytest.approx(roc_auc_score(own.labels == i, own.probabilities[:, i]))
        assert row["average_precision"] == pytest.approx(
            average_precision_score(own.labels == i, own.probabilities[:, i])
        )
    one_class = subset(own, np.flatnonzero(own.labels == 0))
    areas = rank_areas(one_class)
    assert areas["a"] == {"roc_auc": None, "average_precision": 1.0}
    assert areas["b"] == {"roc_auc": None, "average_precision": None}
    assert json.loads(json.dumps(figures(one_class)))["roc_auc"] is None


def test_another_temperature_is_that_of_the_logits() -> None:
    np.testing.assert_allclose(
        at_temperature(sample(50, temperature=0.5), 1.0).probabilities, sample(50).probabilities, atol=1e-6
    )


def test_figures_are_json_with_accuracy_first_and_every_number_of_the_evaluation() -> None:
    own = sample(80, temperature=0.7)
    numbers = json.loads(json.dumps(figures(own)))
    assert next(iter(numbers)) == "accuracy"
    assert {name: numbers[name] for name in own.summary()} == own.summary()
    assert numbers["temperature"] == 0.7
    assert numbers["ece_before_temperature"] == pytest.approx(sample(80).ece, abs=1e-6)
    for name, (low, high) in numbers["intervals_95"].items():
        assert 0 <= low <= numbers[name] <= high, name
    areas = rank_areas(own)
    for name, row in own.per_class().items():
        assert numbers["per_class"][name] == row | areas[name]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_the_error_before_the_temperature_is_that_of_the_probabilities_at_temperature_one(temperature: float) -> None:
    own = sample(200, temperature=temperature)
    plain = at_temperature(own, 1.0)
    assert own.untempered.ece == pytest.approx(plain.ece, abs=1e-6)
    assert own.untempered.counts.tolist() == plain.untempered.counts.tolist()
    assert figures(own)["ece_before_temperature"] == own.untempered.ece
