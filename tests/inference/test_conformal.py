"""Sets of classes: the quantile, exact coverage in finite samples, and what is refused."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refusals import refused
from vitkit.inference import ClassSets, HeldOut, PredictionRules, class_sets, images_needed, quantile
from vitkit.inference.prediction import Columns, Prediction, Ranking


def drawn(rng: np.random.Generator, n: int, classes: int = 4, sharp: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (n, classes) and labels that follow them, so that a model is right as often as it says."""
    logits = sharp * rng.normal(size=(n, classes))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (rng.random((n, 1)) > p.cumsum(axis=1)).sum(axis=1).clip(max=classes - 1)
    return p.astype(np.float32), labels


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.integers(1, 99))
def test_quantile_is_the_order_statistic_of_the_definition(scores: list[float], percent: int) -> None:
    k = math.ceil((len(scores) + 1) * Fraction(percent, 100))  # exact arithmetic
    expected = sorted(scores)[k - 1] if k <= len(scores) else math.inf
    assert quantile(np.array(scores), percent / 100) == expected


@given(st.integers(1, 999))
def test_images_needed_is_the_least_number_with_a_finite_quantile(permille: int) -> None:
    needed = images_needed(permille / 1000)
    assert math.isfinite(quantile(np.zeros(needed), permille / 1000))
    assert needed == 1 or math.isinf(quantile(np.zeros(needed - 1), permille / 1000))


@pytest.mark.parametrize(("n", "coverage"), [(19, 0.9), (19, 0.95), (50, 0.9), (200, 0.8)])
def test_coverage_is_exactly_the_order_statistics_share(n: int, coverage: float) -> None:
    exact = math.ceil((n + 1) * coverage - 1e-9) / (n + 1)  # of scores without ties
    rng, draws, covered = np.random.default_rng(0), 600, []
    for _ in range(draws):
        p, labels = drawn(rng, n + 50)
        sets = class_sets(HeldOut.from_probabilities(p[:n], labels[:n]), coverage)
        covered.append(sets.contains(p[n:])[np.arange(50), labels[n:]].mean())
    assert abs(np.mean(covered) - exact) < 4 * math.sqrt(0.25 / draws / 10)


def test_labels_at_random_are_covered_by_nearly_all_classes() -> None:
    rng, sizes, hits = np.random.default_rng(3), [], []
    for _ in range(200):
        p, _ = drawn(rng, 250)
        labels = rng.integers(0, 4, 250)
        sets = class_sets(HeldOut.from_probabilities(p[:200], labels[:200]), 0.95).contains(p[200:])
        hits.append(sets[np.arange(50), labels[200:]].mean())
        sizes.append(sets.sum(axis=1).mean())
    assert np.mean(hits) > 0.945 and np.mean(sizes) > 3.6


def test_the_score_is_1_minus_the_probability_of_the_true_class() -> None:
    p = np.array([[0.5, 0.3, 0.15, 0.05]], np.float32)
    for label, score in enumerate([0.5, 0.7, 0.85, 0.95]):
        assert HeldOut.from_probabilities(p, np.array([label])).rest[0] == pytest.approx(score, abs=1e-6)
    p = np.array([[1.0, 1e-12, 1e-20], [1.0, 1e-14, 1e-20]], np.float32)
    assert HeldOut.from_probabilities(p, np.array([0, 0])).doubt == pytest.approx([1e-12, 1e-14]), "near certainty"


@pytest.mark.parametrize(
    ("coverage", "images", "code"),
    [
        (0.95, 18, "inference.images-too-few"),
        (1.0, 1, "inference.share-outside"),
        (0.0, 1, "inference.share-outside"),
    ],
)
def test_promises_that_would_be_empty_are_refused(coverage: float, images: int, code: str) -> None:
    p, labels = drawn(np.random.default_rng(0), 19, 2)
    assert math.isfinite(class_sets(HeldOut.from_probabilities(p, labels), 0.95).limit)
    with refused(code):
        class_sets(HeldOut.from_probabilities(p[:images], labels[:images]), coverage)


def test_the_column_has_every_class_of_the_set_and_the_most_probable_first() -> None:
    p, names = drawn(np.random.default_rng(1), 300)[0], tuple("abcd")
    sets = ClassSets(0.9, 0.8, 99)
    columns, sizes = Columns(rules=PredictionRules(sets=sets)), set[int]()
    for probabilities, contained in zip(p, sets.contains(p), strict=True):
        best, ranking = int(probabilities.argmax()), Ranking(names, probabilities)
        row = columns.row(Prediction("x.png", names[best], float(probabilities[best]), ranking))
        assert row.set is not None and set(row.set) == {names[k] for k in np.flatnonzero(contained)}
        assert list(row.set) == sorted(row.set, key=lambda name: -probabilities[names.index(name)])
        sizes.add(len(row.set))
    assert sizes == {1, 2, 3, 4}
