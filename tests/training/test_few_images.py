"""Few images: none is set aside for validation, and cross-validation chooses the penalty and calibrates the head."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import runs
import vitkit
from hearing import heard
from vitkit.data import split_from_file, table_of
from vitkit.evaluation import headline_of
from vitkit.training import PENALTIES, OutOfFold, Recipe, choose, cross_validate_head, folds_of, resume
from vitkit.weights import load

CLASSES = 4


def clouds(n: int, seed: int = 0, spread: float = 2.5) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % CLASSES
    centres = np.random.default_rng(99).normal(size=(CLASSES, 10))
    points = centres[labels] + rng.normal(0, spread, (n, 10))
    return torch.from_numpy(points.astype(np.float32)), torch.from_numpy(labels)


def folds(labels: torch.Tensor, groups: dict[str, int] | None = None, seed: int = 0) -> torch.Tensor:
    rows = [(str(i), str(k), "train") for i, k in enumerate(labels.tolist())]
    fold_of = folds_of(table_of("few", Path(), rows), groups or {}, seed)
    assert fold_of is not None
    return fold_of


# --- The cross-validation -----------------------------------------------------------------------------


def test_the_penalty_is_that_of_a_cross_validation_by_scikit_learn() -> None:
    x, y = clouds(60)
    fold_of = folds(y)
    penalty, logits = cross_validate_head(x, y, fold_of, CLASSES)
    losses, predicted = [], {}
    for tried in PENALTIES:
        p = np.zeros((len(x), CLASSES))
        for k in range(5):
            rest, out = (fold_of != k).numpy(), (fold_of == k).numpy()
            model = LogisticRegression(C=1 / (tried * rest.sum()), max_iter=5000, tol=1e-8)
            p[out] = make_pipeline(StandardScaler(), model).fit(x[rest], y[rest]).predict_proba(x[out])
        losses.append(log_loss(y, p))
        predicted[tried] = p
    assert penalty == PENALTIES[int(np.argmin(losses))]
    np.testing.assert_allclose(logits.softmax(dim=1).numpy(), predicted[penalty], atol=0.01)


def test_no_image_and_no_copy_of_it_has_an_influence_on_its_own_prediction() -> None:
    x, y = clouds(40)
    groups = {"0": 0, "4": 0}  # two copies
    fold_of = folds(y, groups)
    assert fold_of[0] == fold_of[4]
    wrong = y.clone()
    wrong[0] = wrong[4] = 3
    own, other = (cross_validate_head(x, labels, fold_of, CLASSES, fold_of != fold_of[0]) for labels in (y, wrong))
    assert own[0] == other[0], "these images did not choose the penalty here"
    torch.testing.assert_close(own[1][fold_of == fold_of[0]], other[1][fold_of == fold_of[0]])
    assert not torch.allclose(own[1][fold_of != fold_of[0]], other[1][fold_of != fold_of[0]])


@given(each=st.lists(st.integers(1, 9), min_size=2, max_size=5), seed=st.integers(0, 5))
def test_folds_divide_each_class_evenly(each: list[int], seed: int) -> None:
    labels = torch.tensor([k for k, count in enumerate(each) for _ in range(count)])
    if max(each) < 2:
        return
    fold_of = folds(labels, seed=seed)
    parts = min(5, max(each))
    assert set(fold_of.tolist()) <= set(range(parts))
    for k, count in enumerate(each):
        sizes = Counter(fold_of[labels == k].tolist())
        assert max(sizes.values()) <= -(-count // parts)


def test_images_that_the_weights_had_seen_do_not_choose() -> None:
    """Of these, the features give the label away; the others say nothing, so that the largest penalty is best."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(80, 10)).astype(np.float32))
    y = torch.from_numpy(rng.permutation(np.arange(80) % 2))
    x[:60, 0] = 3.0 * y[:60]
    is_new = torch.arange(80) >= 60
    honest, _ = cross_validate_head(x, y, folds(y), 2, is_new)
    flattered, _ = cross_validate_head(x, y, folds(y), 2)
    assert honest > flattered


# --- When ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "each", "split"),
    [
        ({}, 8, (0.8, 0.0, 0.2)),
        ({"method": "probe"}, 90, (0.8, 0.0, 0.2)),
        ({"method": "probe"}, 300, (0.7, 0.1, 0.2)),
        ({"method": "full"}, 8, (0.7, 0.1, 0.2)),
        ({"method": "probe", "split": (0.7, 0.1, 0.2)}, 8, (0.7, 0.1, 0.2)),
        ({"weights": "none"}, 8, (0.7, 0.1, 0.2)),
    ],
)
def test_a_head_for_few_needs_no_validation(fields: dict[str, Any], each: float, split: tuple[float, ...]) -> None:
    recipe, reasons = choose(Recipe.of(fields), each)
    assert recipe.split == split
    assert any("no image is set aside for validation" in reason for reason in reasons) == (split[1] == 0)
    recipe, reasons = choose(Recipe.of(fields), each, comes_split=True)
    assert split[1] or (recipe.split == (0.7, 0.1, 0.2) and not any("set aside" in reason for reason in reasons))


# --- A run --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.photos(tmp_path_factory.mktemp("few-data") / "photos", images=15, noise=120)


def fields(start: Path) -> dict[str, Any]:
    return {"weights": str(start), "method": "probe", "precision": "float32", "workers": 0}


@pytest.fixture(scope="module")
def finished(data: Path, start: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return runs.followed(data, tmp_path_factory.mktemp("few") / "run", **fields(start))


def test_the_headline_is_of_images_that_nothing_was_chosen_on(finished: tuple[Path, str]) -> None:
    folder, said = finished
    assert Counter(split_from_file(folder / "split.json").splits) == {"train": 36, "test": 9}
    figures = json.loads((folder / "evaluation.json").read_text())
    headline = headline_of(figures)
    assert (headline.split, headline.images, figures["chosen_on"]) == ("test", 9, [])
    assert "chosen by cross-validation of the training images: loss " in said
    assert "flattered by the selection" in said and "val_acc" not in said
    assert "fitted on 36 cross-validated images" in said


def test_its_promises_rest_on_predictions_out_of_fold(finished: tuple[Path, str], data: Path) -> None:
    folder, _ = finished
    classifier, predictions = load(folder), OutOfFold.read(folder)
    assert predictions is not None and classifier.held_out is not None
    held_out, table = classifier.held_out.held_out, split_from_file(folder / "split.json")
    assert (len(held_out), held_out.folds) == (36, 5)
    assert held_out.chosen == ("penalty by log loss", "temperature by log loss")
    assert set(predictions.paths) == set(table.of_split("train").paths)
    assert (held_out.predicted == predictions.logits.argmax(axis=1)).all()
    unknown = classifier.unknown
    assert unknown is not None and len(unknown.known) == 36
    rows = vitkit.predict(folder, data, promises=vitkit.Promises(coverage=0.9, unknown=0.1)).rows()
    assert all({"set", "familiar"} <= row.keys() for row in rows)
    page = (folder / "report.html").read_text()
    assert "36 cross-validated images" in page


def test_killed_before_its_report_it_is_calibrated_the_same(finished: tuple[Path, str], tmp_path: Path) -> None:
    folder = runs.copy_of(finished[0], tmp_path / "run")
    for name in ("report.html", "evaluation.json", "trust.safetensors"):
        (folder / name).unlink()
    described = json.loads((folder / "model.json").read_text())
    del described["trust_sha256"]
    described["temperature"] = 1.0
    (folder / "model.json").write_text(json.dumps(described))
    resume(folder)
    assert load(folder).temperature == load(finished[0]).temperature
    assert load(folder).trust == load(finished[0]).trust


def test_pictures_that_the_weights_had_seen_make_no_promise(
    finished: tuple[Path, str], data: Path, tmp_path: Path
) -> None:
    """Another head on the weights of a run over the same photographs: every one of them is known."""
    _, said = runs.followed(data, tmp_path / "second", **fields(finished[0]))
    assert split_from_file(tmp_path / "second" / "split.json").splits.count("test") == 9
    assert load(tmp_path / "second").trust is None
    assert "not calibrated" in said


@pytest.mark.parametrize("seeds", [1, pytest.param(3, marks=pytest.mark.accept)])
def test_the_protocol_reports_chance_on_shuffled_labels(start: Path, tmp_path: Path, seeds: int) -> None:
    """Over several runs, the headline is as often right as chance, and sets hold their class as often as promised."""
    right, images, covered = 0.0, 0, list[float]()
    for seed in range(seeds):
        data = runs.shuffled(runs.photos(tmp_path / f"photos-{seed}", images=30, noise=200, seed=seed), seed)
        run = vitkit.train(data, vitkit.Recipe(seed=seed, **fields(start)), out=tmp_path / f"run-{seed}")
        right += run.headline.images * run.accuracy
        images += run.headline.images
        covered.append(run.evaluation["promises"]["coverage"][0]["measured"])
    error = (2 / 9 / images) ** 0.5
    assert abs(right / images - 1 / 3) < 3 * error
    assert np.mean(covered) > 0.9 - 3 * (0.09 / images) ** 0.5


def test_a_cross_validation_ends_with_a_calibrated_head_on_all(data: Path, start: Path, tmp_path: Path) -> None:
    run = vitkit.train(data, vitkit.Recipe(folds=3, **fields(start)), out=tmp_path / "run")
    assert run.headline.images == 45 and run.headline.folds == 3
    assert {split for fold in run.folds for split in split_from_file(fold.folder / "split.json").splits} == {
        "train",
        "test",
    }
    classifier = run.classifier
    assert classifier.held_out is not None and len(classifier.held_out.held_out) == 45
    assert classifier.unknown is not None


def test_datasets_without_validation_images_are_calibrated_too(start: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.normal(size=(24, 3, 16, 16)).astype(np.float32))
    pairs = [(image, i % 2) for i, image in enumerate(pixels)]
    lines: list[str] = []
    with heard(lines.append):
        run = vitkit.train(
            vitkit.Datasets(train=pairs, class_names=["a", "b"]), vitkit.Recipe(**fields(start)), out=tmp_path / "run"
        )
    assert "calibrated by cross-validation" in lines[-1]
    assert run.classifier.held_out is not None and len(run.classifier.held_out.held_out) == 24
