"""The model that a cross-validation ends with: trained on all images, calibrated by models that had not seen them."""

import csv
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import runs
import tiny
import vitkit
import warm
from hearing import heard
from vitkit.classifier import Classifier
from vitkit.data import Preprocess, split_from_file
from vitkit.errors import Interrupted, VitkitError
from vitkit.evaluation import Evaluation
from vitkit.evaluation.calibration import calibrate, log_odds
from vitkit.inference import HeldOut
from vitkit.reporting.model_card import model_card_text
from vitkit.system import reporting_to
from vitkit.training import OutOfFold, Recipe, median_epochs, resume, train
from vitkit.weights import load

FOLDS = 3


def recipe_for(data: Path, **fields: Any) -> Recipe:
    return runs.quick(data, **{"epochs": 3, "batch_size": 8, "folds": FOLDS, **fields})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.photos(tmp_path_factory.mktemp("final-data") / "photos", images=9, noise=90)


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-validation that tests may read but not change."""
    return train(recipe_for(data), tmp_path_factory.mktemp("final") / "run")


def predictions_of_folds(folder: Path) -> dict[str, dict[str, str]]:
    """The row of predictions.csv of each image, from the fold that tested it."""
    rows: dict[str, dict[str, str]] = {}
    for fold in sorted(folder.glob("fold-*")):
        with (fold / "predictions.csv").open(newline="") as text:
            rows |= {row["path"]: row for row in csv.DictReader(text)}
    return rows


# --- What it is trained on, and for how long ----------------------------------------------------------


def test_it_is_trained_on_every_image_of_every_fold(finished: Path) -> None:
    table = split_from_file(finished / "split.json")
    assert set(table.splits) == {"train"} and len(table) == 27
    assert set(table.paths) == predictions_of_folds(finished).keys()
    final = json.loads((finished / "folds.json").read_text())["final"]
    assert final["images"] == 27
    record = load(finished).provenance
    assert record["data_hash"] == json.loads((finished / "split.json").read_text())["hash"]
    assert record["recipe"]["folds"] is None


def test_it_ends_after_the_median_of_the_best_epochs_in_the_same_schedule(tmp_path: Path) -> None:
    """With shuffled labels, the best epochs differ between folds."""
    data = runs.shuffled(runs.photos(tmp_path / "photos", images=9, noise=90), seed=0)
    recipe = recipe_for(data, epochs=4, lr=0.01, warmup=0.0, monitor="val_loss")
    folder = train(recipe, tmp_path / "run")
    best = [load(fold).provenance["metrics"]["epoch"] + 1 for fold in sorted(folder.glob("fold-*"))]
    final = json.loads((folder / "folds.json").read_text())["final"]
    assert (final["best_epochs"], final["epochs"]) == (best, sorted(best)[1])
    rows, of_fold = runs.metrics(folder), runs.metrics(folder / "fold-1")
    assert len(rows) == final["epochs"] < 4, "the case is chosen so that an epoch is left out"
    assert load(folder).provenance["metrics"]["epoch"] == final["epochs"] - 1
    assert len(of_fold) == 4
    for own, other in zip(rows, of_fold, strict=False):  # the rate is that of the same part of the schedule
        assert own["lr"] == pytest.approx(other["lr"], abs=0.002)


@given(best=st.lists(st.integers(0, 30), min_size=2, max_size=9))
def test_the_number_of_epochs_is_that_of_half_of_the_folds(best: list[int]) -> None:
    epochs = median_epochs(best)
    assert sum(value <= epochs for value in best) >= len(best) / 2
    assert sum(value >= epochs for value in best) >= (len(best) - 1) / 2


# --- What it is calibrated by -------------------------------------------------------------------------


def test_its_predictions_out_of_fold_are_those_that_the_folds_reported(finished: Path) -> None:
    """At the temperature of its fold, each image has the confidence in that fold's predictions.csv."""
    predictions = OutOfFold.read(finished)
    assert predictions is not None and predictions.folds == FOLDS
    reported = predictions_of_folds(finished)
    temperatures = {
        path: load(fold).temperature
        for fold in sorted(finished.glob("fold-*"))
        for path in split_from_file(fold / "split.json").of_split("test").paths
    }
    for path, label, logits in zip(predictions.paths, predictions.labels, predictions.logits, strict=True):
        z = logits.astype(np.float64) / temperatures[path]
        p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        assert predictions.classes[int(p.argmax())] == reported[path]["predicted"]
        assert predictions.classes[int(label)] == reported[path]["label"]
        assert p.max() == pytest.approx(float(reported[path]["confidence"]), abs=2e-6)


def test_its_temperature_and_promises_are_fitted_on_them(finished: Path) -> None:
    classifier, predictions = load(finished), OutOfFold.read(finished)
    assert predictions is not None and classifier.held_out is not None
    logits = predictions.logits.astype(np.float64)
    fitted = calibrate(logits, predictions.labels, np.zeros(logits.shape[1]))
    assert classifier.temperature == pytest.approx(fitted.temperature, rel=1e-4)
    assert json.loads((finished / "folds.json").read_text())["final"]["temperature"] == classifier.temperature
    z = logits / classifier.temperature
    p = np.exp(z - z.max(axis=1, keepdims=True))
    stored, expected = classifier.held_out.held_out, HeldOut.of((p / p.sum(axis=1, keepdims=True)), predictions.labels)
    for name in ("label", "predicted"):
        assert (getattr(stored, name) == getattr(expected, name)).all()
    np.testing.assert_allclose(stored.rest, expected.rest, atol=1e-5)
    assert (stored.folds, stored.chosen) == (FOLDS, ("temperature by log loss",))


def test_a_balanced_training_is_corrected_as_that_of_its_folds(tmp_path: Path) -> None:
    data = runs.photos(tmp_path / "photos", images=9, noise=90)
    for i in range(3, 10):
        (data / "red" / f"img{i}.png").unlink()
    folder = train(recipe_for(data, folds=2, epochs=1, balance="loss"), tmp_path / "run")
    balance = load(folder).provenance["balance"]
    assert balance["balance"] == "loss" and balance["counts"] == [9, 9, 2]
    assert any(balance["in_head"])
    predictions, reported = OutOfFold.read(folder), predictions_of_folds(folder)
    for fold in sorted(folder.glob("fold-*")):
        model, tested = load(fold), split_from_file(fold / "split.json").of_split("test").paths
        shift = np.array(model.provenance["balance"]["in_head"])
        for i in (predictions.paths.index(path) for path in tested):
            z = (predictions.logits[i] + shift) / model.temperature
            assert predictions.classes[int(z.argmax())] == reported[predictions.paths[i]]["predicted"]


def test_several_classes_get_thresholds(data: Path, tmp_path: Path) -> None:
    rows = [("path", "labels")]
    for i, path in enumerate(sorted(data.rglob("*.png"))):
        rows.append((str(path.relative_to(data)), ("a", "a;b", "b")[i % 3]))
    source = data / "several.csv"
    with source.open("w", newline="") as text:
        csv.writer(text).writerows(rows)
    folder = train(recipe_for(source, folds=2, epochs=1, monitor="val_loss"), tmp_path / "run")
    source.unlink()
    classifier = load(folder)
    assert classifier.thresholds is not None and classifier.thresholds != (0.5, 0.5)
    assert classifier.trust is None


@pytest.mark.parametrize("damage", ["cut", "shape"])
def test_a_damaged_file_of_predictions_is_named(finished: Path, tmp_path: Path, damage: str) -> None:
    predictions = OutOfFold.read(finished)
    assert predictions is not None
    if damage == "shape":
        replace(predictions, classes=("a",)).write(tmp_path)
    else:
        data = (finished / "out_of_fold.safetensors").read_bytes()
        (tmp_path / "out_of_fold.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(VitkitError, match=r"out_of_fold\.safetensors is damaged"):
        OutOfFold.read(tmp_path)


# --- What is said of it -------------------------------------------------------------------------------


def test_terminal_file_page_and_card_say_whose_figures_these_are(finished: Path, tmp_path: Path) -> None:
    caveat = "of the folds' models; the final model was trained on all 27 images, so none is left to test it"
    assert caveat in (finished / "log.txt").read_text().splitlines()[-1]
    assert caveat in vitkit.TrainingRun(finished).headline.words
    page = (finished / "report.html").read_text()
    assert "Of the folds&#x27; models; the final model was trained on all 27 images" in page
    assert "on all 27 images. Its temperature is" in page
    figures = json.loads((finished / "folds.json").read_text())
    card = model_card_text("run", load(finished), "0", finished)
    assert "27 training" in card and "each tested once by a model of a cross-validation with 3 folds" in card
    assert f"- accuracy: {100 * figures['accuracy']['mean']:.1f} % (95 % interval" in card
    assert "the final model was trained on all 27 images" in card


def test_it_predicts_with_promises_that_say_what_they_rest_on(finished: Path, data: Path) -> None:
    result = vitkit.predict(finished, data, promises=vitkit.Promises(coverage=0.9))
    assert len(result.rows()) == 27
    notes = " ".join(result.notes)
    assert "sets by 27 cross-validated images" in notes and "has no guarantee" in notes
    with pytest.raises(VitkitError, match="requires at least 299 cross-validated images"):
        vitkit.predict(finished, data, promises=vitkit.Promises(accuracy=0.99))


def test_an_evaluation_of_its_images_gives_the_figures_of_the_folds_instead(finished: Path) -> None:
    result = vitkit.evaluate(finished)
    assert result.headline.value is None
    assert any("over 3 folds" in note for note in result.notes)


# --- Interruptions ------------------------------------------------------------------------------------


def test_ctrl_c_in_the_final_model_keeps_the_folds_and_weights(finished: Path, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def progress(what: str, done: int, total: int) -> None:
        if what.startswith("epoch 2") and (folder / "folds.json").is_file():
            os.kill(os.getpid(), signal.SIGINT)

    lines: list[str] = []
    with pytest.raises(Interrupted), reporting_to(progress), heard(lines.append):
        train(recipe_for(data), folder)
    assert lines[-1] == f"to continue: vitkit train --resume {folder}"
    assert not (folder / "report.html").is_file()
    kept = {fold: (fold / "model.safetensors").stat().st_mtime_ns for fold in folder.glob("fold-*")}
    with heard(lines.append):
        resume(folder)
    assert {fold: (fold / "model.safetensors").stat().st_mtime_ns for fold in folder.glob("fold-*")} == kept
    runs.assert_same_weights(folder, finished)
    assert (folder / "folds.json").read_text() == (finished / "folds.json").read_text()
    assert load(folder).trust == load(finished).trust


def test_a_killed_command_is_started_again(finished: Path, data: Path, tmp_path: Path) -> None:
    """SIGKILL as soon as the final model is in training; --resume goes on."""
    folder = runs.copy_of(finished, tmp_path / "run")  # as it is after the folds
    for name in ("report.html", "metrics.csv", "model.json", "model.safetensors", "trust.safetensors"):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoints")
    command = [warm.vitkit(), "train", "--resume", str(folder)]
    process = subprocess.Popen(command, env=runs.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 300
    while not (folder / "metrics.csv").is_file() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    process.communicate()  # to the end of its output, and thus of the process
    assert not (folder / "report.html").is_file() and (folder / "metrics.csv").is_file(), "it was in training"
    resume(folder)
    runs.assert_same_weights(folder, finished)
    final, expected = (json.loads((run / "folds.json").read_text())["final"] for run in (folder, finished))
    assert final == {**expected, "temperature": pytest.approx(expected["temperature"], rel=0.05)}


@pytest.mark.parametrize("name", ["split.json", "fold-2/split.json"])
def test_a_cross_validation_without_its_images_is_refused_before_it_trains(
    finished: Path, tmp_path: Path, name: str
) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    for lost in (name, "fold-1/report.html", "model.safetensors"):
        (folder / lost).unlink()
    before = everything(folder)
    with pytest.raises(VitkitError, match=r"split.json|fold-2 contains no run"):
        resume(folder)
    assert everything(folder) == before


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.name.startswith(".")}


@pytest.mark.parametrize("seeds", [1, pytest.param(4, marks=pytest.mark.accept)])
def test_shuffled_labels_are_not_predicted_better_than_by_chance(tmp_path: Path, seeds: int) -> None:
    """The pooled predictions that calibrate the final model are honest: their accuracy is that of chance."""
    right, total = 0, 0
    for seed in range(seeds):
        data = runs.shuffled(runs.photos(tmp_path / f"photos-{seed}", images=10, noise=200, seed=seed), seed)
        folder = train(recipe_for(data, folds=2, epochs=2, seed=seed), tmp_path / f"run-{seed}")
        predictions = OutOfFold.read(folder)
        right += int((predictions.logits.argmax(axis=1) == predictions.labels).sum())
        total += len(predictions.labels)
    assert abs(right / total - 1 / 3) < 3 * (2 / 9 / total) ** 0.5


def test_predictions_take_on_the_correction_of_the_classifier() -> None:
    model = tiny.build(num_classes=2)
    classifier = Classifier(model, ("a", "b"), Preprocess(size=model.config.image_size))
    logits = np.array([[1.0, 0.0], [0.0, 3.0]], np.float32)
    made = OutOfFold(("a", "b"), ("x", "y"), np.array([0, 1]), logits, 2, np.array([0, 1])).evaluation(classifier)
    assert isinstance(made, Evaluation) and made.split == "train"
    back = log_odds(made.probabilities, made.labels)
    np.testing.assert_allclose(back[:, 1] - back[:, 0], [-1, 3], rtol=1e-5)
