"""The numbers against hand-computed ones and scikit-learn's."""

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn import metrics as reference

import runs
from photos import folder
from refusals import refused
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess, held_out_split, read_source, split
from vitkit.evaluation import Evaluation, evaluate
from vitkit.evaluation.figures import figures


def evaluation(labels: list[int], probabilities: Any, **fields: Any) -> Evaluation:
    rows = np.array(probabilities, dtype=np.float32)
    return Evaluation(
        split="test",
        classes=tuple("abcdefghij"[: rows.shape[1]]),
        paths=tuple(f"{i}.png" for i in range(len(labels))),
        labels=np.array(labels),
        probabilities=rows,
        **fields,
    )


HAND = evaluation(
    [0, 0, 0, 1, 1, 2],
    [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.05, 0.8, 0.15], [0.1, 0.8, 0.1], [0.5, 0.3, 0.2], [0.2, 0.5, 0.3]],
)


@given(seed=st.integers(0, 10_000), images=st.integers(1, 40), classes=st.integers(2, 8))
@settings(max_examples=20)
def test_numbers_equal_scikit_learns(seed: int, images: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.ones(classes), images)
    own = evaluation(rng.integers(0, classes, images).tolist(), probabilities)
    true, predicted, every = own.labels, own.predicted, np.arange(classes)
    assert own.accuracy == pytest.approx(reference.accuracy_score(true, predicted))
    with warnings.catch_warnings(action="ignore"):  # classes that are predicted but do not occur
        assert own.balanced_accuracy == pytest.approx(reference.balanced_accuracy_score(true, predicted))
    np.testing.assert_array_equal(own.confusion(), reference.confusion_matrix(true, predicted, labels=every))
    assert own.loss == pytest.approx(
        reference.log_loss(true, own.probabilities / own.probabilities.sum(1, keepdims=True), labels=every), rel=1e-4
    )
    for k in range(1, classes):
        rank = (own.probabilities > own.probabilities[np.arange(images), true][:, None]).sum(1)
        assert own.is_among(k).mean() == pytest.approx(np.mean(rank < k))
        if classes > 2:
            assert own.is_among(k).mean() == pytest.approx(
                reference.top_k_accuracy_score(true, own.probabilities, k=k, labels=every)
            )
    assert own.macro_f1 == pytest.approx(reference.f1_score(true, predicted, average="macro"))
    assert own.brier == pytest.approx(((own.probabilities - np.eye(classes)[true]) ** 2).sum(1).mean(), abs=1e-6)
    columns = reference.precision_recall_fscore_support(
        true, predicted, labels=every, average=None, zero_division=np.nan
    )
    for key, column in zip(("precision", "recall", "f1", "support"), columns, strict=True):
        found = [row[key] for row in own.per_class().values()]
        np.testing.assert_allclose(np.array(found, dtype=float), column, err_msg=key)  # None becomes NaN


def test_the_most_confused_classes_and_the_most_confident_mistakes_come_first() -> None:
    assert HAND.confused(9) == [("a", "b", 1, 1 / 3), ("b", "a", 1, 1 / 2), ("c", "b", 1, 1.0)]
    assert HAND.confused(1) == [("a", "b", 1, 1 / 3)]
    assert (HAND.mistakes(9), HAND.mistakes(1)) == ([2, 4, 5], [2])
    assert evaluation([0, 2], [[0.9, 0.05, 0.05]] * 2).absent == ("b",)
    assert HAND.absent == ()


def test_a_perfect_classifier_has_no_less_than_1_where_classes_are_absent() -> None:
    numbers = figures(evaluation(list(range(8)) * 2, np.eye(10)[list(range(8)) * 2]))
    assert [numbers[name] for name in ("macro_f1", "balanced_accuracy", "roc_auc", "average_precision")] == [1.0] * 4
    assert numbers["absent_classes"] == ["i", "j"]
    undefined = dict.fromkeys(("precision", "recall", "f1", "roc_auc", "average_precision"))
    assert numbers["per_class"]["j"] == undefined | {"support": 0}
    assert math.isfinite(evaluation([1], [[1.0, 0.0]]).loss), "an impossible true class"


def test_the_summary_is_json() -> None:
    summary = replace(HAND, unreadable={"x.png": "truncated"}).summary()
    assert (summary["images"], summary["unreadable"], summary["split"]) == (6, 1, "test")
    assert "top5_accuracy" not in summary, "five of three classes are always right"
    assert json.loads(json.dumps(summary | {"per_class": HAND.per_class()}))["accuracy"] == 0.5
    assert evaluation([0, 5], [[0.3, 0.2, 0.2, 0.2, 0.06, 0.04]] * 2).summary()["top5_accuracy"] == 0.5


def classifier(*classes: str) -> Classifier:
    return Classifier(build(num_classes=len(classes)), classes, Preprocess(size=(12, 16)))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return folder(tmp_path, {"cat": 4, "dog": 3, "owl": 2})


def test_every_image_of_the_split_is_asked_about_once(photos: Path) -> None:
    table = split(read_source(photos), (0.5, 0.0, 0.5), 0)
    own = classifier("cat", "dog", "owl")
    for name in ("train", "test"):
        rows = table.of_split(name)
        out = evaluate(own, table, name)
        assert (out.split, out.paths, tuple(out.labels)) == (name, rows.paths, rows.labels)
        expected = [prediction.label for prediction in own.predict(rows.file(i) for i in range(len(rows)))]
        assert [out.classes[i] for i in out.predicted] == expected
        np.testing.assert_allclose(out.probabilities.sum(axis=1), 1, atol=1e-5)
    assert len(evaluate(own, table, "all").paths) == 9


def test_classes_are_matched_by_name_whatever_their_order(photos: Path) -> None:
    table = read_source(photos)
    out = evaluate(classifier("owl", "bat", "dog", "cat"), table, "all")
    assert out.classes == ("owl", "bat", "dog", "cat")
    assert [out.classes[label] for label in out.labels] == [path.split("/")[0] for path in out.paths]
    assert out.per_class()["bat"]["support"] == 0
    assert {name: row["support"] for name, row in out.per_class().items() if row["support"]} == table.counts()


def test_a_class_that_the_model_does_not_know_is_named_unless_it_is_outside_the_split(photos: Path) -> None:
    table = read_source(photos)
    with refused("evaluation.class-unknown", "owl", "cat, dog, rat"):
        evaluate(classifier("cat", "dog", "rat"), table, "all")
    table = replace(table, splits=tuple("train" if label == 2 else "test" for label in table.labels))
    assert len(evaluate(classifier("cat", "dog"), table, "test").labels) == 7


def test_unreadable_files_are_left_out_and_listed(photos: Path) -> None:
    (photos / "cat" / "cat_1.png").write_bytes(b"")
    (photos / "owl" / "owl_0.png").write_bytes(b"<html>")
    told: list[tuple[int, int]] = []
    own = classifier("cat", "dog", "owl")
    out = evaluate(own, read_source(photos), "all", lambda *counts: told.append(counts))
    assert out.unreadable == {"cat/cat_1.png": "empty file", "owl/owl_0.png": "not an image"}
    assert [out.classes[label] for label in out.labels] == [path.split("/")[0] for path in out.paths]
    assert (out.summary()["images"], out.summary()["unreadable"]) == (7, 2)
    assert told == [(done, 9) for done in range(1, 10)]


def test_a_split_without_a_readable_image_is_refused(photos: Path) -> None:
    table, own = read_source(photos), classifier("cat", "dog", "owl")
    with refused("evaluation.split-missing", "test"):
        evaluate(own, table, "test")
    for path in photos.rglob("*.png"):
        path.write_bytes(b"")
    with refused("evaluation.images-unreadable", "cat/cat_0.png"):
        evaluate(own, table, "all")


def test_the_held_out_split_is_test_else_val_else_all(photos: Path) -> None:
    table = read_source(photos)
    assert held_out_split(table) == "all"
    for shares, name in (((0.5, 0.25, 0.25), "test"), ((0.5, 0.5, 0.0), "val"), ((1.0, 0.0, 0.0), "all")):
        assert held_out_split(split(table, shares, 0)) == name


def sample(n: int, k: int = 4, seed: int = 0, sharpness: float = 2.0, temperature: float = 1.0) -> Evaluation:
    """Logits that tell the class more often than not."""
    rng = np.random.default_rng(seed)
    labels = np.minimum(rng.geometric(0.4, n) - 1, k - 1)  # classes of different sizes
    logits = rng.normal(size=(n, k)) + sharpness * np.eye(k)[labels]
    return evaluation(labels.tolist(), softmax(logits / temperature, axis=1), temperature=temperature)


def test_figures_are_json_with_accuracy_first_and_every_number_of_the_evaluation() -> None:
    own = sample(80, temperature=0.7)
    numbers = json.loads(json.dumps(figures(own)))
    assert next(iter(numbers)) == "accuracy"
    assert {name: numbers[name] for name in own.summary()} == own.summary()
    assert numbers["temperature"] == 0.7
    for name, (low, high) in numbers["intervals_95"].items():
        assert 0 <= low <= numbers[name] <= high, name
    for i, (name, row) in enumerate(own.per_class().items()):
        curves = own.curves[i]
        areas = {"roc_auc": curves.roc_auc, "average_precision": curves.average_precision}
        assert numbers["per_class"][name] == row | areas


@pytest.mark.parametrize("temperature", [0.3, 2.5])
def test_the_error_before_the_temperature_is_that_of_the_probabilities_at_temperature_one(temperature: float) -> None:
    own = sample(200, temperature=temperature)
    plain = runs.untempered(own)
    assert own.reliability_untempered.ece == pytest.approx(plain.ece, abs=1e-6)
    assert figures(own)["ece_before_temperature"] == own.reliability_untempered.ece
    assert own.reliability_untempered.counts.tolist() == plain.reliability_untempered.counts.tolist()
