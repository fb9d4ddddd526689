"""Cross-validation: folds are runs of their own, their mean has its interval, and no crash or Ctrl-C loses a fold."""

import csv
import json
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import binomtest
from sklearn.metrics import balanced_accuracy_score

import photos as pictures
import runs
import vitkit
from hearing import heard
from refusals import refused
from vitkit.data import ImageTable, split_from_file
from vitkit.errors import Interrupted
from vitkit.evaluation import Evaluation, MultiEvaluation, evaluate, fold_intervals
from vitkit.evaluation.calibration import calibrate
from vitkit.inference import HeldOut
from vitkit.reporting.model_card import model_card_text
from vitkit.system import exclusive_in, reporting_to
from vitkit.text import interval_text
from vitkit.training import OutOfFold, Recipe, run
from vitkit.training import cross_validation as folds
from vitkit.weights import load


@pytest.fixture(scope="module")
def data() -> Path:
    return runs.shared_few()


@pytest.fixture(scope="module")
def finished() -> Path:
    """Three folds."""
    return runs.shared_folds()


def in_folds(data: Path, **fields: Any) -> Recipe:
    return runs.folded(data, **{"epochs": 1, "folds": 2, **fields})


def fold_folders(folder: Path) -> list[Path]:
    return sorted(folder.glob("fold-*"))


def split_of(folder: Path) -> ImageTable:
    return split_from_file(folder / "split.json")


def figures_of_folds(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "folds.json").read_text()))


def test_each_fold_is_a_run_that_predicts(finished: Path, data: Path) -> None:
    assert [folder.name for folder in fold_folders(finished)] == ["fold-1", "fold-2", "fold-3"]
    for folder in (*fold_folders(finished), finished):
        (prediction,) = load(folder).predict(data / "red" / "img1.png")
        assert prediction.label in load(folder).classes == ("blue", "green", "red")
        assert (folder / "report.html").is_file() and len(runs.metrics(folder)) <= 2
        own = Recipe.load(folder / "recipe.toml")
        number = 3 if folder == finished else None
        assert own == runs.folded().replace(folds=number, method=own.method, head_from=own.head_from)
    assert [path.name for path in finished.rglob("*") if path.name.startswith(".")] == []


def test_every_image_is_tested_once_and_never_trained_on_there(finished: Path) -> None:
    tables = [split_of(folder) for folder in fold_folders(finished)]
    tested = Counter(path for table in tables for path in table.of_split("test").paths)
    assert (len(tested), set(tested.values())) == (21, {1})
    for table in tables:
        assert len(set(table.paths)) == len(table) == 21
        of_class = Counter(table.of_split("test").labels)
        assert of_class.keys() == {0, 1, 2} and set(of_class.values()) <= {2, 3}
        assert Counter(table.of_split("val").labels) == {0: 1, 1: 1, 2: 1}


def test_folds_json_has_what_each_fold_measured_and_the_figures_of_all_images(finished: Path) -> None:
    told = figures_of_folds(finished)
    own = [evaluate(load(folder), split_of(folder), "test") for folder in fold_folders(finished)]
    assert [result["images"] for result in told["folds"]] == [len(outcome.labels) for outcome in own]
    for name in ("accuracy", "balanced_accuracy", "loss"):
        assert [result[name] for result in told["folds"]] == pytest.approx([getattr(o, name) for o in own], rel=1e-5)
        low, high = told[name]["interval_95"]
        assert low < told[name]["mean"] < high
    for name in ("accuracy", "loss"):  # means over images
        weighted = np.average([getattr(o, name) for o in own], weights=[len(o.labels) for o in own])
        assert told[name]["mean"] == pytest.approx(weighted, rel=1e-5)
    labels, said = (np.concatenate([getattr(o, name) for o in own]) for name in ("labels", "predicted"))
    assert told["balanced_accuracy"]["mean"] == pytest.approx(balanced_accuracy_score(labels, said))
    assert {"macro_f1", "brier", "ece"} <= told.keys()


def folds_with(right: Sequence[Sequence[bool]], groups: tuple[int, ...] = ()) -> list[Evaluation]:
    """Folds whose images are answered rightly or not, of two classes by turns."""
    made = []
    for number, own in enumerate(right):
        labels, sure = np.arange(len(own)) % 2, np.where(own, 0.9, 0.2)
        rows = np.stack([np.where(labels == k, sure, 1 - sure) for k in (0, 1)], axis=1).astype(np.float32)
        paths = tuple(f"{number}-{i}" for i in range(len(own)))
        made.append(Evaluation("test", ("a", "b"), paths, labels, rows, groups=groups))
    return made


@given(right=st.lists(st.lists(st.booleans(), min_size=2, max_size=12), min_size=2, max_size=6))
@settings(max_examples=30)
def test_an_interval_lies_between_nothing_and_all_and_is_never_empty(right: list[list[bool]]) -> None:
    own = folds_with(right)
    found = folds.figures_of_folds(own)
    whole = [own for fold in right for own in fold]
    assert found["accuracy"]["mean"] == pytest.approx(np.mean(whole))
    for name, most in (("accuracy", 1), ("balanced_accuracy", 1), ("macro_f1", 1), ("brier", 2), ("loss", np.inf)):
        mean, (low, high) = found[name]["mean"], found[name]["interval_95"] or (1, 0)
        assert 0 <= low <= mean <= high <= most and low < high
    plain = binomtest(sum(whole), len(whole)).proportion_ci()
    low, high = found["accuracy"]["interval_95"] or (1, 0)
    assert low <= plain.low + 1e-9 and high >= plain.high - 1e-9, "no narrower than of images by themselves"


def cross_validated(rng: np.random.Generator, images: int, number: int, apart: float) -> list[Evaluation]:
    """Folds of two classes of points, each of which the nearest point of the other folds names."""
    labels = rng.integers(0, 2, images)
    points = rng.normal(size=(images, 3)) + apart * labels[:, None]
    fold = rng.permutation(images) % number
    made = []
    for k in range(number):
        own, rest = fold == k, fold != k
        far = ((points[own, None] - points[rest]) ** 2).sum(axis=2)
        said = labels[rest][far.argmin(axis=1)]
        rows = np.where(said[:, None] == np.arange(2), 0.9, 0.1).astype(np.float32)
        made.append(Evaluation("test", ("a", "b"), ("",) * len(rows), labels[own], rows))
    return made


@pytest.mark.parametrize(("images", "apart", "number"), [(60, 0.0, 2), (50, 2.6, 10)])
def test_their_intervals_hold_what_such_trainings_give_on_average(images: int, apart: float, number: int) -> None:
    """A few of the settings of benchmarks/coverage.py; Student's interval of the folds held .98 in .64 of them."""
    rng = np.random.default_rng(0)
    drawn = [cross_validated(rng, images, number, apart) for _ in range(200)]
    true = np.mean([own.accuracy for one in drawn for own in one]) if apart else 0.5  # labels without a meaning
    found = [fold_intervals(one) for one in drawn]
    for name in ("accuracy", "balanced_accuracy"):
        assert np.mean([own[name][0] <= true <= own[name][1] for own in found]) >= 0.93


def test_copies_count_as_one_image_in_the_interval_of_folds() -> None:
    rng = np.random.default_rng(0)
    right = [list(map(bool, rng.random(20) < 0.8)) for _ in range(3)]
    twice = [[own for own in fold for _ in (0, 1)] for fold in right]
    groups = tuple(i // 2 for i in range(40))  # the same numbers in every fold, of other pictures
    once, unaware = (fold_intervals(folds_with(own))["accuracy"] for own in (right, twice))
    aware = fold_intervals(folds_with(twice, groups))["accuracy"]
    assert aware == pytest.approx(once, abs=0.03)
    assert unaware[1] - unaware[0] < 0.85 * (aware[1] - aware[0])


def test_each_image_of_several_classes_is_judged_by_the_thresholds_of_its_fold() -> None:
    rng = np.random.default_rng(0)
    made = []
    for number, threshold in enumerate((0.3, 0.7)):
        labels = (rng.random((20, 3)) < 0.4).astype(np.int64)
        rows = np.where(labels == 1, threshold + 0.1, threshold - 0.1).astype(np.float32)
        paths = tuple(f"{number}-{i}" for i in range(20))
        made.append(MultiEvaluation("test", ("a", "b", "c"), paths, labels, rows, thresholds=(threshold,) * 3))
    found = folds.figures_of_folds(made)
    assert (found["accuracy"]["mean"], found["hamming_loss"]["mean"], found["micro_f1"]["mean"]) == (1, 0, 1)
    low, high = found["accuracy"]["interval_95"] or (1, 0)
    assert 0.8 < low < high == 1 and found["loss"]["interval_95"] is None
    assert found["loss"]["mean"] == pytest.approx(np.mean([own.loss for own in made]))


def test_copies_and_scenes_are_kept_in_one_fold(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = runs.copy_of(data, tmp_path / "photos")
    shutil.copy(source / "red" / "img1.png", source / "red" / "img3_copy.png")  # joins two scenes
    settled: list[Path] = []
    monkeypatch.setattr(run, "FOLDS", replace(run.FOLDS, fit=lambda own: settled.append(own.folder)))
    monkeypatch.setattr(run, "discard_if_empty", lambda folder: None)
    run.train(in_folds(source, folds=3, group_by=r"\w+/img[12]\.|img\d"), tmp_path / "run")
    (folder,) = settled
    for table in map(split_of, fold_folders(folder)):
        where = dict(zip(table.paths, table.splits, strict=True))
        assert where["red/img1.png"] == where["red/img3_copy.png"]
        assert len({where[f"{name}/img3.png"] for name in runs.COLOURS} | {where["red/img3_copy.png"]}) == 1
        assert len({where[f"{name}/img5.png"] for name in runs.COLOURS}) == 1


def keep(folder: Path, *names: str) -> None:
    """Of a folder of a run: those whose names are none of these are deleted."""
    for path in folder.iterdir():
        if path.name not in names:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def assert_same_folds(folder: Path, other: Path) -> None:
    for name in ("fold-1", "fold-2", "fold-3", "."):
        runs.assert_same_weights(folder / name, other / name)
    assert figures_of_folds(folder) == figures_of_folds(other)


@pytest.mark.parametrize("done", ["fold-1/report.html", "folds.json"], ids=["in the second fold", "in the final model"])
def test_killed_and_stopped_it_keeps_what_is_done_and_goes_on(finished: Path, tmp_path: Path, done: str) -> None:
    """As the folder is after SIGKILL: one fold done, one begun, one settled but not begun; or without the model."""
    folder, lines = runs.copy_of(finished, tmp_path / "run"), list[str]()
    begun = ("recipe.toml", "split.json", "pictures.npz", "findings.json", "class_indices.json", "groups.json")
    if done == "folds.json":
        keep(folder, *begun, "request.json", "folds.json", "out_of_fold.safetensors", "fold-1", "fold-2", "fold-3")
    else:
        for name in ("folds.json", "report.html"):
            (folder / name).unlink()
        for fold in ("fold-2", "fold-3"):
            keep(folder / fold, *begun)
        (folder / "fold-2" / ".model.json.1.tmp").write_text("half")
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("fold-*/report.html")}

    def progress(what: str, step: int, total: int) -> None:
        if what.startswith("epoch"):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted), reporting_to(progress), heard(lines.append):
        run.resume(folder)
    assert lines[-1] == f"to continue: vitkit train --resume {folder}"
    assert not (folder / "report.html").exists() and (folder / "folds.json").exists() == (done == "folds.json")
    with heard(lines.append):
        run.resume(folder)
    assert "fold 1 of 3" not in lines
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert_same_folds(folder, finished)
    assert not (folder / "fold-2" / ".model.json.1.tmp").exists()
    assert load(folder).trust == load(finished).trust


def test_a_finished_one_is_resumed_without_harm_and_damaged_figures_are_named(finished: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    lines: list[str] = []
    with heard(lines.append):
        run.resume(folder)
    assert not any(line.startswith("fold ") for line in lines)
    assert_same_folds(folder, finished)
    figures = folder / "fold-2" / "evaluation.json"
    figures.write_text('{"accuracy": "much"}')
    with refused("evaluation.figures-damaged", str(figures)):
        run.resume(folder)
    for lost in (figures, folder / "folds.json"):  # the fold's model is asked again
        lost.unlink()
    run.resume(folder)
    assert_same_folds(folder, finished)
    predictions = folder / "out_of_fold.safetensors"
    predictions.write_bytes(predictions.read_bytes()[:-100])
    with refused("training.predictions-damaged", predictions.name):
        OutOfFold.read(folder)


def test_failing_before_a_model_leaves_no_folder_but_what_was_there(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(folds, "fit", fail)
    with pytest.raises(OSError, match="no space left"):
        run.train(in_folds(data), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    fold = tmp_path / "run" / "fold-1"
    fold.mkdir(parents=True)
    (fold.parent / "recipe.toml").write_text("of an earlier run")
    (fold / "notes.txt").write_text("precious")
    with pytest.raises(OSError, match="no space left"):
        run.train(in_folds(data), tmp_path / "run", force=True)
    assert (fold / "notes.txt").read_text() == "precious"


@pytest.mark.usefixtures("no_pages")
def test_force_removes_the_earlier_folds_and_without_val_images_the_last_epoch_is_kept(
    finished: Path, data: Path, tmp_path: Path
) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    (folder / "thesis.txt").write_text("precious")
    for number in (2, None):
        run.train(in_folds(data, folds=number, split=(1.0, 0.0, 0.0)), folder, force=True)
        assert [set(split_of(own).splits) for own in fold_folders(folder)] == [{"train", "test"}] * (number or 0)
        assert (folder / "thesis.txt").read_text() == "precious"
        for name in ("folds.json", "out_of_fold.safetensors"):
            assert (folder / name).is_file() == bool(number)
        assert set(split_of(folder).splits) == {"train"}


def test_a_fold_is_continued_with_its_cross_validation_alone(finished: Path, data: Path, tmp_path: Path) -> None:
    whole = runs.copy_of(finished, tmp_path / "run")
    for name in ("evaluation.json", "report.html"):
        (whole / "fold-2" / name).unlink()
    with refused("training.run-kind", str(whole)):
        run.resume(whole / "fold-2")
    with exclusive_in(whole):
        notes = " ".join(vitkit.predict(whole / "fold-2", data / "red" / "img1.png").notes)
    assert f"{whole / 'fold-2'} is still being trained" in notes


def test_what_cannot_be_divided_into_folds_is_refused(data: Path, tmp_path: Path) -> None:
    for part in ("train", "val"):
        shutil.copytree(data, tmp_path / "split" / part)
    photos = pictures.folder(tmp_path / "photos", {"a": 2, "b": 1})
    for source, number, code in (
        (tmp_path / "split", 3, "training.already-split"),
        (data, 8, "data.folds-invalid"),
        (photos, 2, "training.class-alone"),
    ):
        with refused(code):
            run.train(in_folds(source, folds=number), tmp_path / "run")
        assert not (tmp_path / "run").exists()


# The model that it ends with: trained on all images, calibrated by models that had not seen them.


def final_of(folder: Path) -> dict[str, Any]:
    return dict(figures_of_folds(folder)["final"])


def predictions_of_folds(folder: Path) -> dict[str, dict[str, str]]:
    """The row of predictions.csv of each image, from the fold that tested it."""
    rows: dict[str, dict[str, str]] = {}
    for fold in fold_folders(folder):
        with (fold / "predictions.csv").open(newline="") as text:
            rows |= {row["path"]: row for row in csv.DictReader(text)}
    return rows


@pytest.mark.usefixtures("no_pages")
def test_it_ends_after_the_median_of_the_best_epochs_in_the_same_schedule(tmp_path: Path) -> None:
    """With shuffled labels, the best epochs differ between folds."""
    data = runs.shuffled(runs.photos(tmp_path / "photos", images=9, noise=90), seed=0)
    fields = {"folds": 3, "epochs": 4, "batch_size": 8, "lr": 0.01, "warmup": 0.0, "monitor": "val_loss"}
    folder = run.train(in_folds(data, **fields), tmp_path / "run")
    best = [load(fold).provenance["metrics"]["epoch"] + 1 for fold in fold_folders(folder)]
    final = final_of(folder)
    assert (final["best_epochs"], final["epochs"]) == (best, sorted(best)[1])
    rows, of_fold = runs.metrics(folder), runs.metrics(folder / "fold-1")
    assert len(rows) == final["epochs"] < len(of_fold) == 4, "the case is chosen so that an epoch is left out"
    assert load(folder).provenance["metrics"]["epoch"] == final["epochs"] - 1
    for own, other in zip(rows, of_fold, strict=False):  # the rate is that of the same part of the schedule
        assert own["lr"] == pytest.approx(other["lr"], abs=0.002)


def test_it_is_trained_on_every_image_and_has_the_predictions_of_the_folds_that_tested_them(finished: Path) -> None:
    """At the temperature of its fold, each image has the confidence in that fold's predictions.csv."""
    predictions, reported = OutOfFold.read(finished), predictions_of_folds(finished)
    assert predictions is not None and predictions.folds == 3
    table, record = split_of(finished), load(finished).provenance
    assert set(table.splits) == {"train"} and len(table) == final_of(finished)["images"] == 21
    assert set(table.paths) == reported.keys() == set(predictions.paths)
    assert record["recipe"]["folds"] is None
    models = {path: load(fold) for fold in fold_folders(finished) for path in split_of(fold).of_split("test").paths}
    for path, label, logits in zip(predictions.paths, predictions.labels, predictions.logits, strict=True):
        p = softmax(logits.astype(np.float64) / models[path].temperature)
        assert predictions.classes[int(p.argmax())] == reported[path]["predicted"]
        assert predictions.classes[int(label)] == reported[path]["label"]
        assert p.max() == pytest.approx(float(reported[path]["confidence"]), abs=2e-6)


def test_its_temperature_and_promises_are_fitted_on_them(finished: Path) -> None:
    classifier, predictions = load(finished), OutOfFold.read(finished)
    assert predictions is not None and classifier.held_out is not None
    logits = predictions.logits.astype(np.float64)
    fitted = calibrate(logits, predictions.labels, np.zeros(logits.shape[1]))
    assert classifier.temperature == pytest.approx(fitted.temperature, rel=1e-4)
    assert final_of(finished)["temperature"] == classifier.temperature
    stored = classifier.held_out.held_out
    expected = HeldOut.from_probabilities(softmax(logits / classifier.temperature, axis=1), predictions.labels)
    for name in ("label", "predicted"):
        assert (getattr(stored, name) == getattr(expected, name)).all()
    np.testing.assert_allclose(stored.rest, expected.rest, atol=1e-5)
    assert (stored.folds, stored.chosen) == (3, ("temperature by log loss",))


def test_a_balanced_training_is_corrected_as_that_of_its_folds(data: Path, tmp_path: Path) -> None:
    fewer = runs.copy_of(data, tmp_path / "photos")
    for i in range(3, 8):
        (fewer / "red" / f"img{i}.png").unlink()
    folder = run.train(in_folds(fewer, balance="loss"), tmp_path / "run")
    balance = load(folder).provenance["balance"]
    assert balance["balance"] == "loss" and balance["counts"] == [7, 7, 2] and any(balance["in_head"])
    predictions, reported = OutOfFold.read(folder), predictions_of_folds(folder)
    for fold in fold_folders(folder):
        model, tested = load(fold), split_of(fold).of_split("test").paths
        shift = np.array(model.provenance["balance"]["in_head"])
        for i in (predictions.paths.index(path) for path in tested):
            z = (predictions.logits[i] + shift) / model.temperature
            assert predictions.classes[int(z.argmax())] == reported[predictions.paths[i]]["predicted"]


@pytest.mark.usefixtures("no_pages")
def test_several_classes_get_thresholds(tmp_path: Path) -> None:
    classifier = load(run.train(in_folds(runs.shared_overlaid(), monitor="val_loss"), tmp_path / "run"))
    assert classifier.thresholds is not None and classifier.thresholds != (0.5,) * 3
    assert classifier.trust is None


def test_terminal_page_and_card_have_the_figures_of_all_images_and_say_whose_they_are(finished: Path) -> None:
    told, log = figures_of_folds(finished)["accuracy"], (finished / "log.txt").read_text()
    page, card = (finished / "report.html").read_text(), model_card_text("run", load(finished), "0", finished)
    whose = "the final model was trained on all 21 images"
    for text in (log.splitlines()[-1], vitkit.TrainingRun(finished).headline.words, page, card):
        assert whose in text
    assert f"(95 %: {interval_text(told['interval_95'])}) over 3 folds" in log
    for text in (page, card):
        assert f"{100 * told['mean']:.1f} %" in text
    links = re.findall(r'(?:src|href)="(?!data:)([^"]*)"', page)
    assert {f"fold-{number}/report.html" for number in (1, 2, 3)} <= set(links)
    assert all((finished / link).is_file() for link in links), "relative, so that the folder can be moved"
    result = vitkit.evaluate(finished)
    assert result.headline.value is None
    assert any("over 3 folds" in note for note in result.notes), "the figures of the folds instead"


def test_it_predicts_with_promises_that_say_what_they_rest_on(finished: Path, data: Path) -> None:
    notes = " ".join(vitkit.predict(finished, data, promises=vitkit.Promises(coverage=0.9)).notes)
    assert "sets by 21 cross-validated images" in notes and "has no guarantee" in notes
    with refused("inference.images-too-few"):
        vitkit.predict(finished, data, promises=vitkit.Promises(accuracy=0.99))


@pytest.mark.parametrize(
    ("name", "code"), [("split.json", "data.run-file-missing"), ("fold-2/split.json", "training.fold-missing")]
)
def test_a_cross_validation_without_its_images_is_refused_before_it_trains(
    finished: Path, tmp_path: Path, name: str, code: str
) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    for lost in (name, "fold-1/report.html", "model.safetensors"):
        (folder / lost).unlink()
    before = set(folder.rglob("[!.]*"))
    with refused(code):
        run.resume(folder)
    assert set(folder.rglob("[!.]*")) == before


@pytest.mark.usefixtures("no_pages")
def test_shuffled_labels_are_not_predicted_better_than_by_chance(tmp_path: Path) -> None:
    """The pooled predictions that calibrate the final model are honest: their accuracy is that of chance."""
    data = runs.shuffled(runs.photos(tmp_path / "photos", images=20, noise=200), 0)
    predictions = OutOfFold.read(run.train(in_folds(data, batch_size=8), tmp_path / "run"))
    assert predictions is not None
    right = predictions.logits.argmax(axis=1) == predictions.labels
    assert abs(right.mean() - 1 / 3) < 3 * (2 / 9 / len(right)) ** 0.5
