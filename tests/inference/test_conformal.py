"""Sets of classes: the quantile, exact coverage in finite samples, and what is refused."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.errors import VitkitError
from vitkit.inference import ClassSets, HeldOut, PredictionRules, class_sets, images_needed, quantile
from vitkit.inference.prediction import Columns, Prediction, Ranking

KINDS = ("lac", "aps", "raps")


def drawn(rng: np.random.Generator, n: int, classes: int = 4, sharp: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (n, classes) and labels that follow them, so that a model is right as often as it says."""
    logits = sharp * rng.normal(size=(n, classes))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (rng.random((n, 1)) > p.cumsum(axis=1)).sum(axis=1).clip(max=classes - 1)
    return p.astype(np.float32), labels


def covered(
    kind: str, coverage: float, n: int, draws: int, test: int = 50, classes: int = 4, **settings: object
) -> float:
    """The mean coverage over draws of held-out and of test images."""
    rng, names, values = np.random.default_rng(0), tuple("abcdefgh"[:classes]), []
    for _ in range(draws):
        p, labels = drawn(rng, n + test, classes)
        sets = class_sets(HeldOut.of(p[:n], labels[:n]), names, coverage, kind, **settings)  # type: ignore[arg-type]
        values.append(sets.of(p[n:])[np.arange(test), labels[n:]].mean())
    return float(np.mean(values))


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
    draws = 600
    assert abs(covered("lac", coverage, n, draws) - exact) < 4 * math.sqrt(0.25 / draws / 10)


@pytest.mark.parametrize("kind", ["aps", "raps"])
def test_sets_that_are_never_empty_cover_at_least_as_often(kind: str) -> None:
    rng = np.random.default_rng(1)
    assert covered(kind, 0.9, 60, 800) > 0.89
    p, labels = drawn(rng, 400, sharp=4)
    sets = class_sets(HeldOut.of(p, labels), ("a", "b", "c", "d"), 0.3, kind)  # type: ignore[arg-type]
    contained = sets.of(p)
    assert contained.any(axis=1).all() and contained[np.arange(400), p.argmax(axis=1)].all()


def test_smallest_sets_are_empty_if_the_model_is_right_more_often_than_requested() -> None:
    p, labels = drawn(np.random.default_rng(2), 1000, sharp=6)
    sets = class_sets(HeldOut.of(p, labels), ("a", "b", "c", "d"), 0.5).of(p)
    assert (p.argmax(axis=1) == labels).mean() > 0.7
    assert 0.45 < sets[np.arange(1000), labels].mean() < 0.55
    assert (sets.sum(axis=1) == 0).any()


@pytest.mark.parametrize("kind", KINDS)
def test_labels_at_random_are_covered_by_nearly_all_classes(kind: str) -> None:
    rng, sizes, hits = np.random.default_rng(3), [], []
    for _ in range(200):
        p, _ = drawn(rng, 250)
        labels = rng.integers(0, 4, 250)
        sets = class_sets(HeldOut.of(p[:200], labels[:200]), ("a", "b", "c", "d"), 0.95, kind).of(p[200:])  # type: ignore[arg-type]
        hits.append(sets[np.arange(50), labels[200:]].mean())
        sizes.append(sets.sum(axis=1).mean())
    assert np.mean(hits) > 0.945 and np.mean(sizes) > 3.6


def test_each_class_is_covered_if_requested_by_class() -> None:
    rng, names = np.random.default_rng(4), ("common", "rare")
    common, by_class = [], []
    for _ in range(150):
        labels = (rng.random(900) < 0.15).astype(int)
        wrong = np.where(labels == 1, 0.45, 0.02)  # the rare class is usually taken for the common one
        right = np.where(rng.random(900) < wrong, rng.uniform(0.02, 0.4, 900), rng.uniform(0.6, 0.98, 900))
        p = np.stack([np.where(labels == 0, right, 1 - right), np.where(labels == 1, right, 1 - right)], axis=1)
        held_out, test, rare = HeldOut.of(p[:600], labels[:600]), p[600:], labels[600:] == 1
        for values, settings in ((common, {}), (by_class, {"by_class": True})):
            sets = class_sets(held_out, names, 0.9, **settings).of(test)  # type: ignore[arg-type]
            values.append((sets[~rare, 0].mean(), sets[rare, 1].mean()))
    (_, rare_marginal), (usual, rare_conditional) = np.mean(common, axis=0), np.mean(by_class, axis=0)
    assert rare_marginal < 0.7
    assert 0.895 < usual < 0.92 and 0.895 < rare_conditional < 0.92


def test_scores_are_those_of_the_papers() -> None:
    p = np.array([[0.5, 0.3, 0.15, 0.05]], np.float32)
    for label, (lac, aps, raps) in enumerate([(0.5, 0.0, 0.0), (0.7, 0.5, 0.5), (0.85, 0.8, 0.9), (0.95, 0.95, 1.15)]):
        held_out = HeldOut.of(p, np.array([label]))
        for kind, value in (("lac", lac), ("aps", aps), ("raps", raps)):
            assert held_out.scores(kind)[0] == pytest.approx(value, abs=1e-6)  # type: ignore[arg-type]


def test_near_certainty_keeps_its_digits() -> None:
    p = np.array([[1.0, 1e-12, 1e-20], [1.0, 1e-14, 1e-20]], np.float32)
    assert HeldOut.of(p, np.array([0, 0])).doubt == pytest.approx([1e-12, 1e-14])


@pytest.mark.parametrize(
    ("coverage", "labels", "by_class", "message"),
    [
        (0.95, [0] * 18, False, "requires at least 19 validation images, and the run had 18.*at most 0.947"),
        (0.9, [0] * 50 + [1] * 8, True, "by class requires at least 9 .* fewer of 1 class: b 8"),
        (1.0, [0], False, "must be above 0 and below 1"),
        (0.0, [0], False, "must be above 0 and below 1"),
    ],
)
def test_promises_that_would_be_empty_are_refused(
    coverage: float, labels: list[int], by_class: bool, message: str
) -> None:
    p, _ = drawn(np.random.default_rng(0), len(labels), 2)
    with pytest.raises(VitkitError, match=message):
        class_sets(HeldOut.of(p, np.array(labels)), ("a", "b"), coverage, by_class=by_class)


def test_19_images_are_enough_for_95_percent() -> None:
    p, labels = drawn(np.random.default_rng(0), 19, 2)
    assert np.isfinite(class_sets(HeldOut.of(p, labels), ("a", "b"), 0.95).limits).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [0.2, 0.8])
def test_the_column_has_every_class_of_the_set_and_the_most_probable_first(kind: str, first: float) -> None:
    """With a limit for each class, a set can lack a class that is more probable than those in it."""
    p, names = drawn(np.random.default_rng(1), 300)[0], tuple("abcd")
    sets = ClassSets(kind, 0.9, np.array([first, 0.8, 0.8, 0.8]), 99)  # type: ignore[arg-type]
    columns, lacking = Columns(rules=PredictionRules(sets=sets)), 0
    for probabilities, contained in zip(p, sets.of(p), strict=True):
        best, ranking = int(probabilities.argmax()), Ranking(names, probabilities)
        row = columns.row(Prediction("x.png", names[best], float(probabilities[best]), ranking))
        assert row.set is not None and set(row.set) == {names[k] for k in np.flatnonzero(contained)}
        assert list(row.set) == sorted(row.set, key=lambda name: -probabilities[names.index(name)])
        lacking += bool(contained.any()) and not contained[best]
    assert (lacking > 0) == (first == 0.2 and kind == "lac")
