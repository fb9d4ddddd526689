"""Intervals against Clopper's and Pearson's, by their coverage, and where images come in groups."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import binomtest

from refusals import refused
from vitkit.data import ImageTable, groups_from_file, groups_to_list
from vitkit.evaluation import Evaluation, MultiEvaluation, Units, grouped, mean_interval
from vitkit.evaluation.figures import figures
from vitkit.evaluation.intervals import intervals
from vitkit.system import write_json
from vitkit.text import interval_text


def exact(right: int, images: int) -> tuple[float, float]:
    found = binomtest(right, images).proportion_ci(0.95, "exact")
    return found.low, found.high


def drawn(rng: np.random.Generator, images: int, classes: int, sharpness: float) -> Evaluation:
    """Of a classifier whose confidences are as they should be; without sharpness it knows nothing."""
    labels = rng.integers(0, classes, images)
    logits = rng.normal(size=(images, classes)) + sharpness * np.eye(classes)[labels]
    probabilities = softmax((sharpness or 1.0) * logits, axis=1).astype(np.float32)
    return Evaluation("test", tuple("abcdefghij"[:classes]), tuple(map(str, range(images))), labels, probabilities)


def perfect(images: int, classes: int) -> Evaluation:
    labels = np.arange(images) % classes
    rows = np.full((images, classes), 0.02, np.float32)
    rows[np.arange(images), labels] = 1 - 0.02 * (classes - 1)
    return Evaluation("test", tuple("abcdefghij"[:classes]), tuple(map(str, range(images))), labels, rows)


@given(images=st.integers(1, 3000), data=st.data())
@settings(max_examples=50)
def test_that_of_a_proportion_is_clopper_and_pearsons(images: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, images))
    found = mean_interval((np.arange(images) < right).astype(float), 1.0, Units.of(images, None))
    assert found == pytest.approx(exact(right, images), abs=1e-9)


@given(groups=st.integers(1, 60), size=st.integers(1, 9), data=st.data())
@settings(max_examples=30)
def test_copies_count_as_one_image(groups: int, size: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, groups))
    number = np.repeat(np.arange(groups), size)
    found = mean_interval((number < right).astype(float), 1.0, Units.of(len(number), number))
    assert found == pytest.approx(exact(right, groups), abs=1e-9)


@pytest.mark.parametrize(("images", "classes"), [(1, 2), (30, 10), (1000, 2)])
def test_nothing_wrong_is_not_certainty(images: int, classes: int) -> None:
    found = intervals(perfect(images, classes))
    assert found["accuracy"] == pytest.approx((0.025 ** (1 / images), 1.0))
    for name in ("accuracy", "balanced_accuracy", "macro_f1"):
        low, high = found[name]
        assert high == 1 and 0 < low <= exact(images, images)[0] + 1e-9, name
        assert interval_text((low, high)) != "1.000\N{EN DASH}1.000"
    for name in ("loss", "brier", "ece"):
        low, high = found[name]
        assert high > getattr(perfect(images, classes), name) > 0, name


def test_what_is_shown_is_rounded_outwards() -> None:
    assert interval_text((0.99996, 1.0)) == "0.999\N{EN DASH}1.000"
    assert interval_text((0.29, 0.58)) == "0.290\N{EN DASH}0.580"
    assert interval_text((0.12345, 0.12345), 4) == "0.1234\N{EN DASH}0.1235"


@pytest.mark.parametrize(
    ("images", "classes", "sharpness"),
    [(30, 2, 2.9), (100, 5, 2.2), pytest.param(30, 10, 4.5, marks=pytest.mark.accept)],
)
def test_they_hold_the_truth(images: int, classes: int, sharpness: float) -> None:
    """A few of the settings of benchmarks/coverage.py, whose table is in the guide."""
    rng = np.random.default_rng(0)
    own = drawn(rng, 100_000, classes, sharpness)
    truth = {name: getattr(own, name) for name in ("accuracy", "balanced_accuracy", "macro_f1", "loss", "brier")}
    samples = [drawn(rng, images, classes, sharpness) for _ in range(300)]
    truth["ece"] = float(np.mean([one.ece for one in samples]))
    found = [intervals(one) for one in samples]
    for name, value in truth.items():
        held = np.mean([low <= value <= high for low, high in (one[name] for one in found)])
        assert held >= 0.93, (name, held)


@pytest.mark.parametrize("images", [30, 100])
def test_that_of_the_log_loss_holds_it_where_few_images_have_most_of_it(images: int) -> None:
    """Of a model whose certainty has little to do with what it knows; the middle mistake was too cheap to imagine."""
    rng = np.random.default_rng(0)

    def one(images: int) -> Evaluation:
        labels = rng.integers(0, 3, images)
        logits = np.exp(rng.normal(size=(images, 1))) * 1.6 * (rng.normal(size=(images, 3)) + 1.6 * np.eye(3)[labels])
        rows = np.maximum(softmax(logits, axis=1), 1e-30).astype(np.float32)
        return Evaluation("test", ("a", "b", "c"), ("",) * images, labels, rows)

    truth = one(200_000).loss
    found = [intervals(one(images))["loss"] for _ in range(300)]
    assert np.mean([low <= truth <= high for low, high in found]) >= 0.93


@pytest.mark.parametrize("classes", [2, 5])
def test_with_shuffled_labels_they_hold_chance(classes: int) -> None:
    held = []
    for seed in range(20):
        found = intervals(drawn(np.random.default_rng(seed), 60, classes, 0.0))
        held.append([low <= 1 / classes <= high for low, high in (found["accuracy"], found["balanced_accuracy"])])
    assert (np.sum(held, axis=0) >= 18).all()


def test_groups_widen_every_interval_and_groups_of_one_change_nothing() -> None:
    own = drawn(np.random.default_rng(0), 40, 4, 2.0)
    many = np.repeat(np.arange(40), 5)
    copied = replace(own, labels=own.labels[many], probabilities=own.probabilities[many], paths=("",) * 200)
    alone, known = intervals(copied), intervals(replace(copied, groups=tuple(many.tolist())))
    for name, (low, high) in known.items():
        assert high - low > 1.4 * (alone[name][1] - alone[name][0]), name
    assert known["accuracy"] == pytest.approx(intervals(own)["accuracy"])
    assert intervals(replace(own, groups=tuple(range(40)))) == intervals(own)


def test_groups_go_by_path_through_the_runs_file(tmp_path: Path) -> None:
    own = drawn(np.random.default_rng(0), 6, 2, 2.0)
    table = ImageTable("t", Path(), ("a", "b"), tuple("012345x"), (0,) * 7, (None,) * 7)
    listed = groups_to_list(table, [7, 3, 7, 4, 3, 5, 7])
    assert listed == [["0", "2", "x"], ["1", "4"]]
    write_json(tmp_path / "groups.json", listed)
    known = grouped(own, groups_from_file(tmp_path / "groups.json"))
    same = np.array(known.groups)[:, None] == np.array(known.groups)
    assert same.sum() == 6 + 2 * 2 and same[0, 2] and same[1, 4]
    assert figures(known)["independent_groups"] == 4
    assert "independent_groups" not in figures(own)
    assert grouped(own, {"0": 1, "5": 2}) == own and groups_from_file(tmp_path / "none.json") == {}
    (tmp_path / "groups.json").write_text("[[1, 2], 3]")
    with refused("data.run-damaged"):
        groups_from_file(tmp_path / "groups.json")


def test_several_classes_an_image_have_intervals_of_exact_match_and_hamming_loss() -> None:
    labels = np.array([[1, 0], [0, 0], [1, 1]])
    own = MultiEvaluation("test", ("a", "b"), ("1", "2", "3"), labels, labels * 0.9, thresholds=(0.5, 0.5))
    assert figures(own)["intervals_95"]["accuracy"] == pytest.approx(exact(3, 3))
    assert figures(own)["intervals_95"]["hamming_loss"] == pytest.approx((0.0, 1 - exact(3, 3)[0]))
