"""What a multi-label classifier says, how good it is, and what is written of it, against independent computations."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics as sk

import photos
import tiny
from refusals import refused
from vitkit.classifier import Classifier
from vitkit.data import Preprocess, read_source
from vitkit.evaluation import MultiEvaluation, average_precisions, best_thresholds, evaluate, mean_average_precision
from vitkit.evaluation.figures import figures
from vitkit.inference import Columns, Csv, JsonLines, Prediction
from vitkit.reporting import write_report
from vitkit.weights import load

CLASSES = ("blue", "green", "red")


def classifier(thresholds: tuple[float, ...] = (0.3, 0.5, 0.7), seed: int = 0) -> Classifier:
    model = tiny.build(seed, num_classes=3, image_size=(16, 16))
    return Classifier(model, CLASSES, Preprocess(size=(16, 16)), thresholds=thresholds)


def page_of(own: MultiEvaluation, path: Path) -> str:
    """The report, up to its script."""
    plain: Any = {"title": "t", "facts": {}, "findings": [], "pictures": {}, "root": None}
    write_report(path, evaluation=own, numbers=figures(own), **plain)
    return path.read_text(encoding="utf-8").partition("<main")[2].partition("<script")[0]


def test_a_class_that_no_image_has_is_none_and_not_nan_in_json(tmp_path: Path) -> None:
    labels, scores = np.array([[1, 0], [0, 0]]), np.array([[0.9, 0.2], [0.1, 1.0]], np.float32)
    own = MultiEvaluation("test", ("a", "b"), ("1", "2"), labels, scores, thresholds=(0.5, 0.5))
    text = json.dumps({**own.summary(), "per_class": own.per_class()}, allow_nan=False)
    assert [own.label_of(i) for i in (0, 1)] == ["a", ";"]
    assert json.loads(text)["per_class"]["b"]["average_precision"] is None
    assert own.mean_average_precision == 1.0 and np.isnan(average_precisions(labels == 1, scores)[1])
    assert np.isnan(mean_average_precision(np.zeros((2, 2), bool), scores))
    assert np.isfinite(own.loss)
    assert not re.search(r"\bnan\b", page_of(own, tmp_path / "page.html"))


@given(seed=st.integers(0, 10_000), images=st.integers(1, 12), classes=st.integers(1, 6))
@settings(max_examples=15)
def test_means_over_classes_leave_out_those_without_a_figure(seed: int, images: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    labels = (rng.random((images, classes)) < 0.2).astype(np.int64)
    scores = rng.random((images, classes)).astype(np.float32)
    names, paths = tuple("abcdef"[:classes]), tuple(map(str, range(images)))
    own = MultiEvaluation("test", names, paths, labels, scores, thresholds=(0.8,) * classes)
    true, said, summary = own.labels, own.predicted, own.summary()
    for key, scorer in (("precision", sk.precision_score), ("recall", sk.recall_score), ("f1", sk.f1_score)):
        each = np.array([scorer(true[:, k], said[:, k], zero_division=np.nan) for k in range(classes)])
        np.testing.assert_allclose(np.array([row[key] for row in own.per_class().values()], dtype=float), each)
    known = each[~np.isnan(each)]
    assert summary["macro_f1"] == (pytest.approx(known.mean()) if len(known) else None)
    is_empty = not (true.any() or said.any())
    assert summary["micro_f1"] == (None if is_empty else pytest.approx(sk.f1_score(true.ravel(), said.ravel())))
    assert summary["accuracy"] == pytest.approx(sk.accuracy_score(true, said))
    assert summary["hamming_loss"] == pytest.approx((true != said).mean())
    losses = [sk.log_loss(true[:, k], scores[:, k], labels=[0, 1]) for k in range(classes)]
    assert summary["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    there = true.any(axis=0)
    if there.any():
        expected = sk.average_precision_score(true[:, there], scores[:, there], average="macro")
        assert summary["mean_average_precision"] == pytest.approx(expected)
    both = there & ~true.all(axis=0)
    if both.any():
        each = [sk.balanced_accuracy_score(true[:, k], said[:, k]) for k in np.flatnonzero(both)]
        assert summary["balanced_accuracy"] == pytest.approx(np.mean(each))
    else:
        assert summary["balanced_accuracy"] is None
    assert own.absent == tuple(name for name, is_there in zip(names, there, strict=True) if not is_there)


@given(
    arrays(np.bool_, st.tuples(st.integers(1, 12), st.just(1))),
    st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0]), min_size=12, max_size=12),
)
@settings(max_examples=20)
def test_no_other_threshold_has_a_better_f1(labels: np.ndarray, scores: list[float]) -> None:
    probabilities = np.array(scores[: len(labels)], np.float32)[:, None]
    (found,) = best_thresholds(labels, probabilities)
    if not labels.any():
        assert found == 0.5
        return

    def f1(threshold: float) -> float:
        return float(sk.f1_score(labels[:, 0], probabilities[:, 0] >= threshold, zero_division=0.0))

    candidates = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95)  # what lies between the scores
    assert f1(found) == pytest.approx(max(map(f1, candidates)))
    assert 0 <= found <= 1


def test_of_equal_thresholds_the_one_nearest_to_a_half_is_taken_midway() -> None:
    labels = np.array([[1], [1], [0]], bool)
    assert best_thresholds(labels, np.array([[0.9], [0.7], [0.2]])) == pytest.approx((0.45,))


def test_probabilities_are_each_their_own_and_a_label_joins_what_reaches_its_threshold(tmp_path: Path) -> None:
    paths = [str(photos.save(photos.noise(16, 16, seed=i), tmp_path / f"{i}.png")) for i in range(12)]
    own = classifier()
    logits = own.logits(torch.stack([own.read(path) for path in paths]))
    expected = torch.sigmoid(logits).numpy()
    own.thresholds = tuple(np.quantile(expected, 0.55, axis=0).tolist())
    said = set()
    for prediction, row in zip(own.predict([*paths, str(tmp_path / "gone.png")]), [*expected, None], strict=True):
        if row is None:
            assert prediction.error is not None and prediction.label is None and prediction.confidence is None
            continue
        named = [k for k in range(3) if row[k] >= (own.thresholds or ())[k]]
        assert prediction.label == ";".join(CLASSES[k] for k in named)
        assert prediction.confidence == pytest.approx(min(row[named]) if named else 1 - max(row), abs=1e-5)
        assert [p for _, p in prediction.ranking] == pytest.approx(sorted(row, reverse=True), abs=1e-5)
        said.add(len(named))
    assert 0 in said and max(said) >= 2


def test_a_saved_classifier_says_the_same_after_loading(tmp_path: Path) -> None:
    own = classifier((0.1, 0.123456789, 1.0))
    own.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.task == "multi" and again.thresholds == own.thresholds
    batch = torch.randn(2, 3, 16, 16)
    assert torch.equal(again.probabilities(batch), own.probabilities(batch))
    assert torch.equal(own.probabilities(batch), torch.sigmoid(own.model(batch)).detach())


def test_thresholds_must_be_one_a_class_from_0_to_1_in_a_file_too(tmp_path: Path) -> None:
    classifier().save(tmp_path)
    description = json.loads((tmp_path / "model.json").read_text())
    for stored, code in (([0.5, "x", 0.5], "classifier.field-invalid"), ([0.5, 2.0, 0.5], "classifier.field-invalid")):
        (tmp_path / "model.json").write_text(json.dumps({**description, "thresholds": stored}))
        with refused(code, "thresholds"):
            load(tmp_path)
    with refused("classifier.field-invalid"):
        classifier((0.5, 0.5))


def listed(tmp_path: Path, *labels: str) -> Path:
    rows = []
    for i, label in enumerate(labels):
        photos.save(photos.noise(16, 16, seed=i), tmp_path / f"{i}.png")
        rows.append(f"{i}.png,{label}")
    (tmp_path / "all.csv").write_text("\n".join(["path,labels", *rows]) + "\n")
    return tmp_path / "all.csv"


def test_classes_go_by_name_and_unreadable_images_are_left_out(tmp_path: Path) -> None:
    file = listed(tmp_path, "red;green", "", "red", "green")
    (tmp_path / "2.png").write_bytes(b"no picture")
    own = classifier()
    outcome = evaluate(own, read_source(file), "all")
    assert isinstance(outcome, MultiEvaluation)
    assert outcome.labels.tolist() == [[0, 1, 1], [0, 0, 0], [0, 1, 0]]
    assert outcome.paths == ("0.png", "1.png", "3.png") and list(outcome.unreadable) == ["2.png"]
    with refused("evaluation.class-unknown", "cat"):
        evaluate(own, read_source(listed(tmp_path, "red;cat", "", "blue")), "all")


def test_images_of_one_class_each_can_be_put_to_a_multi_label_model_but_not_the_other_way(tmp_path: Path) -> None:
    folder = photos.folder(tmp_path / "data", {"blue": 2, "red": 1})
    outcome = evaluate(classifier(), read_source(folder), "all")
    assert outcome.labels.tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1]]
    single = Classifier(tiny.build(num_classes=3, image_size=(16, 16)), CLASSES, Preprocess(size=(16, 16)))
    with refused("data.task-multi-label"):
        evaluate(single, read_source(listed(tmp_path, "red;green", "")), "all")


_RANKING = (("red", 0.8), ("green", 0.6), ("blue", 0.1))
_SAID = [
    Prediction("a.png", "green;red", 0.6, _RANKING),
    Prediction("b.png", "", 0.2, _RANKING),
    Prediction("c.png", "red", 0.8, _RANKING),
    Prediction("d.png", error="no picture"),
]


@pytest.mark.parametrize("form", [Csv, JsonLines])
@pytest.mark.parametrize(("top", "reject"), [(1, None), (1, 0.5), (2, 0.0), (3, 0.7), (3, 1.0)])
def test_what_is_written_is_read_again(form: type[Csv] | type[JsonLines], top: int, reject: float | None) -> None:
    columns = Columns(top, reject, multi=True)
    for prediction in _SAID:
        row = form(columns).decode(form(columns).encode(prediction))
        assert row == columns.row(prediction)
        assert columns.is_consistent_with(row)
    header = "path,label,confidence,error,rejected,label_1,confidence_1,label_2,confidence_2\n"
    assert Csv(Columns(2, 0.5, multi=True)).header == header
