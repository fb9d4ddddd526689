"""Cross-validation: folds are runs of their own, their mean has its interval, and no crash or Ctrl-C loses a fold."""

import json
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.stats import binomtest
from sklearn.metrics import balanced_accuracy_score

import photos as pictures
import runs
import vitkit
from hearing import heard
from vitkit.data import split_from_file
from vitkit.errors import Interrupted, VitkitError
from vitkit.evaluation import Evaluation, MultiEvaluation, evaluate, fold_intervals
from vitkit.system import exclusive_in, reporting_to
from vitkit.text import interval_text
from vitkit.training import Recipe, run
from vitkit.training import cross_validation as folds
from vitkit.weights import load

MEASURES = ("accuracy", "balanced_accuracy", "loss")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.photos(tmp_path_factory.mktemp("folds-data") / "photos", images=7)


def cross_validate(recipe: Recipe, folder: Path, **options: Any) -> tuple[Path, str]:
    lines: list[str] = []
    with heard(lines.append):
        return run.train(recipe, folder, **options), "\n".join(lines)


def recipe_for(data: Path, **fields: Any) -> Recipe:
    return runs.quick(data, **{"epochs": 2, "batch_size": 4, "folds": 3, **fields})


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three folds that tests may read but not change."""
    before = pictures.fingerprint(data)
    folder, said = cross_validate(recipe_for(data), tmp_path_factory.mktemp("folds") / "run")
    assert [line for line in said.splitlines() if line.startswith("fold ")] == [f"fold {k} of 3" for k in (1, 2, 3)]
    assert pictures.fingerprint(data) == before
    return folder


def fold_folders(folder: Path) -> list[Path]:
    return sorted(folder.glob("fold-*"))


# --- What it leaves --------------------------------------------------------------------------------


def test_each_fold_is_a_run_that_predicts(finished: Path, data: Path) -> None:
    assert [folder.name for folder in fold_folders(finished)] == ["fold-1", "fold-2", "fold-3"]
    for folder in fold_folders(finished):
        classifier = load(folder)
        assert classifier.classes == ("blue", "green", "red")
        (prediction,) = classifier.predict(data / "red" / "img1.png")
        assert prediction.label in classifier.classes
        assert (folder / "report.html").is_file()
        assert len(runs.metrics(folder)) == 2
        own = Recipe.load(folder / "recipe.toml")
        assert own.folds is None
        assert own == recipe_for(data).replace(folds=None, method=own.method, head_from=own.head_from)
    own = Recipe.load(finished / "recipe.toml")
    assert own == recipe_for(data, method=own.method, head_from=own.head_from)
    log = (finished / "log.txt").read_text()
    assert "fold 3 of 3" in log and "over 3 folds" in log
    assert [path.name for path in finished.rglob("*") if path.name.startswith(".")] == []


def test_every_image_is_tested_once_and_never_trained_on_there(finished: Path) -> None:
    tables = [split_from_file(folder / "split.json") for folder in fold_folders(finished)]
    tested = Counter(path for table in tables for path in table.of_split("test").paths)
    assert set(tested.values()) == {1}
    assert len(tested) == 21
    for table in tables:
        assert len(set(table.paths)) == len(table) == 21
        assert Counter(table.of_split("test").labels).keys() == {0, 1, 2}
        assert set(Counter(table.of_split("test").labels).values()) <= {2, 3}
        assert Counter(table.of_split("val").labels) == {0: 1, 1: 1, 2: 1}


def evaluations_of(finished: Path) -> list[Evaluation]:
    return [evaluate(load(folder), split_from_file(folder / "split.json"), "test") for folder in fold_folders(finished)]


def test_folds_json_has_what_each_fold_measured_and_the_figures_of_all_images(finished: Path) -> None:
    told = json.loads((finished / "folds.json").read_text())
    own = evaluations_of(finished)
    assert [result["images"] for result in told["folds"]] == [len(outcome.labels) for outcome in own]
    for name in MEASURES:
        assert [result[name] for result in told["folds"]] == pytest.approx([getattr(o, name) for o in own], rel=1e-5)
        low, high = told[name]["interval_95"]
        assert low < told[name]["mean"] < high
    for name in ("accuracy", "loss"):  # means over images
        weighted = np.average([getattr(o, name) for o in own], weights=[len(o.labels) for o in own])
        assert told[name]["mean"] == pytest.approx(weighted, rel=1e-5)
    labels, said = (np.concatenate([getattr(o, name) for o in own]) for name in ("labels", "predicted"))
    assert told["balanced_accuracy"]["mean"] == pytest.approx(balanced_accuracy_score(labels, said))
    assert {"macro_f1", "brier", "ece"} <= told.keys()


def test_the_report_shows_every_fold_and_the_figures_of_all_images(finished: Path) -> None:
    told, page = json.loads((finished / "folds.json").read_text()), (finished / "report.html").read_text()
    for number, result in enumerate(told["folds"], start=1):
        assert f'href="fold-{number}/report.html"' in page
        assert f"{result['loss']:.4f}" in page
    assert f"{told['loss']['mean']:.4f} (95 %: {interval_text(told['loss']['interval_95'], 4)})" in page
    accuracy, bounds = told["accuracy"]["mean"], [100 * end for end in told["accuracy"]["interval_95"]]
    assert f"{100 * accuracy:.1f} %</span> accuracy" in page and f"(95 %: {interval_text(bounds, 1)})" in page
    assert "±" not in page
    assert (
        f"(95 %: {interval_text(told['accuracy']['interval_95'])}) over 3 folds" in (finished / "log.txt").read_text()
    )
    links = re.findall(r'(?:src|href)="(?!data:)([^"]*)"', page)
    assert all((finished / link).is_file() for link in links), "relative, so that the folder can be moved"
    assert "http:" not in page and "https:" not in page


# --- Intervals --------------------------------------------------------------------------------------


def folds_with(right: Sequence[Sequence[bool]], groups: Sequence[tuple[int, ...]] | None = None) -> list[Evaluation]:
    """Folds whose images are answered rightly or not, of two classes by turns."""
    made = []
    for number, own in enumerate(right):
        labels = np.arange(len(own)) % 2
        sure = np.where(own, 0.9, 0.2)
        rows = np.stack([np.where(labels == 0, sure, 1 - sure), np.where(labels == 1, sure, 1 - sure)], axis=1)
        paths = tuple(f"{number}-{i}" for i in range(len(own)))
        of_fold = () if groups is None else groups[number]
        made.append(Evaluation("test", ("a", "b"), paths, labels, rows.astype(np.float32), groups=of_fold))
    return made


def test_sixty_right_answers_are_no_certainty() -> None:
    """It was printed as 1.0000 ± 0.0000."""
    found = folds.figures_of_folds(folds_with([[True] * 12] * 5))
    low, high = found["accuracy"].interval or (0, 0)
    assert found["accuracy"].mean == high == 1 and 0.88 < low < 0.95
    assert str(found["accuracy"]) == f"1.0000 (95 %: {interval_text((low, high), 4)})"


RIGHT = st.lists(st.lists(st.booleans(), min_size=2, max_size=12), min_size=2, max_size=6)


@given(right=RIGHT)
@settings(max_examples=60)
def test_an_interval_lies_between_nothing_and_all_and_is_never_empty(right: list[list[bool]]) -> None:
    own = folds_with(right)
    found = folds.figures_of_folds(own)
    whole = [own for fold in right for own in fold]
    assert found["accuracy"].mean == pytest.approx(np.mean(whole))
    for name, most in (("accuracy", 1), ("balanced_accuracy", 1), ("macro_f1", 1), ("brier", 2), ("loss", np.inf)):
        mean, (low, high) = found[name].mean, found[name].interval or (1, 0)
        assert 0 <= low <= mean <= high <= most and low < high
    plain = binomtest(sum(whole), len(whole)).proportion_ci()
    low, high = found["accuracy"].interval or (1, 0)
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


@pytest.mark.parametrize("number", [2, pytest.param(5, marks=pytest.mark.accept), 10])
@pytest.mark.parametrize(("images", "apart"), [(50, 2.6), (100, 1.3)])
def test_their_intervals_hold_what_such_trainings_give_on_average(number: int, images: int, apart: float) -> None:
    """A few of the settings of benchmarks/coverage.py; Student's interval of the folds held .98 in .64 of them."""
    rng = np.random.default_rng(0)
    drawn = [cross_validated(rng, images, number, apart) for _ in range(300)]
    true = np.mean([own.accuracy for one in drawn for own in one])
    bounds = [fold_intervals(one)["accuracy"] for one in drawn]
    assert np.mean([low <= true <= high for low, high in bounds]) >= 0.93


@pytest.mark.parametrize("number", [2, 5])
def test_with_permuted_labels_their_intervals_hold_chance(number: int) -> None:
    drawn = [cross_validated(np.random.default_rng(seed), 60, number, 0.0) for seed in range(20)]
    for name in ("accuracy", "balanced_accuracy"):
        bounds = [fold_intervals(one)[name] for one in drawn]
        assert sum(low <= 0.5 <= high for low, high in bounds) >= 18


def test_folds_that_differ_by_more_than_their_images_widen_the_interval() -> None:
    alike = folds_with([[True] * 40 + [False] * 10] * 4)
    apart = folds_with([[True] * 50, [True] * 50, [True] * 50, [True] * 10 + [False] * 40])
    widths = []
    for own in (alike, apart):
        low, high = fold_intervals(own)["accuracy"]
        widths.append(high - low)
    assert widths[1] > 2 * widths[0]


def test_copies_count_as_one_image_in_the_interval_of_folds() -> None:
    rng = np.random.default_rng(0)
    right = [list(map(bool, rng.random(20) < 0.8)) for _ in range(3)]
    once = fold_intervals(folds_with(right))["accuracy"]
    twice = [[own for own in fold for _ in (0, 1)] for fold in right]
    groups = [tuple(int(i // 2) for i in range(40))] * 3  # the same numbers in every fold, of other pictures
    aware = fold_intervals(folds_with(twice, groups))["accuracy"]
    unaware = fold_intervals(folds_with(twice))["accuracy"]
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
    assert (found["accuracy"].mean, found["hamming_loss"].mean, found["micro_f1"].mean) == (1, 0, 1)
    low, high = found["accuracy"].interval or (1, 0)
    assert 0.8 < low < high == 1 and found["loss"].interval is None
    assert found["loss"].mean == pytest.approx(np.mean([own.loss for own in made]))


# --- Copies and scenes -----------------------------------------------------------------------------


def test_copies_and_scenes_are_kept_in_one_fold(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = runs.copy_of(data, tmp_path / "photos")
    shutil.copy(source / "red" / "img1.png", source / "red" / "img3_copy.png")  # joins two scenes
    settled: list[Path] = []
    monkeypatch.setattr(run, "FOLDS", replace(run.FOLDS, fit=lambda own: settled.append(own.folder)))
    monkeypatch.setattr(run, "discard_if_empty", lambda folder: None)
    cross_validate(recipe_for(source, group_by=r"\w+/img[12]\.|img\d"), tmp_path / "run")
    (folder,) = settled
    for own in fold_folders(folder):
        table = split_from_file(own / "split.json")
        where = dict(zip(table.paths, table.splits, strict=True))
        assert where["red/img1.png"] == where["red/img3_copy.png"]
        assert len({where[f"{name}/img3.png"] for name in runs.COLOURS} | {where["red/img3_copy.png"]}) == 1
        assert len({where[f"{name}/img5.png"] for name in runs.COLOURS}) == 1


# --- Interruptions ---------------------------------------------------------------------------------


def interrupt_in(fold: Path) -> Callable[[str, int, int], None]:
    """A progress that sends SIGINT to its own process once the fold before this one is done."""
    before = fold.with_name(f"fold-{int(fold.name[-1]) - 1}")

    def progress(what: str, done: int, total: int) -> None:
        if what.startswith("epoch") and (before / "report.html").is_file():
            os.kill(os.getpid(), signal.SIGINT)

    return progress


@pytest.fixture(scope="module")
def interrupted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder, lines = tmp_path_factory.mktemp("folds") / "stopped", list[str]()
    with pytest.raises(Interrupted), reporting_to(interrupt_in(folder / "fold-2")), heard(lines.append):
        run.train(recipe_for(data), folder)
    return folder, lines


def test_ctrl_c_in_the_second_fold_keeps_the_first(interrupted: tuple[Path, list[str]], finished: Path) -> None:
    folder, lines = interrupted
    assert lines[-1] == f"to continue: vitkit train --resume {folder}"
    runs.assert_same_weights(folder / "fold-1", finished / "fold-1")
    assert not (folder / "folds.json").exists()


def test_a_resume_goes_on_in_its_fold(interrupted: tuple[Path, list[str]], finished: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(interrupted[0], tmp_path / "run")
    kept = (folder / "fold-1" / "model.safetensors").stat().st_mtime_ns
    lines: list[str] = []
    with heard(lines.append):
        run.resume(folder)
    assert "fold 1 of 3" not in lines
    assert (folder / "fold-1" / "model.safetensors").stat().st_mtime_ns == kept
    assert_same_folds(folder, finished)


def assert_same_folds(folder: Path, other: Path) -> None:
    for name in ("fold-1", "fold-2", "fold-3", "."):
        runs.assert_same_weights(folder / name, other / name)
    assert json.loads((folder / "folds.json").read_text()) == json.loads((other / "folds.json").read_text())


def test_folds_that_a_killed_process_left_are_gone_on_with(finished: Path, tmp_path: Path) -> None:
    """As the folder is after SIGKILL in the second fold: one done, one begun, one settled but not begun."""
    folder = runs.copy_of(finished, tmp_path / "run")
    (folder / "folds.json").unlink()
    (folder / "report.html").unlink()
    for fold in ("fold-2", "fold-3"):
        for path in (folder / fold).iterdir():
            if path.name not in ("recipe.toml", "split.json", "pictures.npz", "findings.json", "class_indices.json"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    (folder / "fold-2" / ".model.json.1.tmp").write_text("half")
    run.resume(folder)
    assert_same_folds(folder, finished)
    assert not (folder / "fold-2" / ".model.json.1.tmp").exists()


def test_a_finished_cross_validation_may_be_resumed_without_harm(finished: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    lines: list[str] = []
    with heard(lines.append):
        run.resume(folder)
    assert not any(line.startswith("fold ") for line in lines)
    assert_same_folds(folder, finished)
    (folder / "folds.json").unlink()  # the folds' models are asked again
    with heard(lines.append):
        run.resume(folder)
    assert_same_folds(folder, finished)
    (folder / "folds.json").write_text('{"accuracy": {"mean": "x", "interval_95": null}}')
    with heard(lines.append):
        run.resume(folder)
    assert_same_folds(folder, finished)


def test_a_fold_whose_folder_is_gone_is_named(finished: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    shutil.rmtree(folder / "fold-2")
    with pytest.raises(VitkitError, match=r"fold-2 contains no run.*--force"):
        run.resume(folder)
    assert load(folder / "fold-1").classes


def test_failing_before_a_model_leaves_no_folder(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(folds, "fit", fail)
    with pytest.raises(OSError, match="no space left"):
        cross_validate(recipe_for(data), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


# --- Over an earlier run ---------------------------------------------------------------------------


def test_force_keeps_a_file_of_the_user_in_a_fold(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    monkeypatch.setattr(folds, "fit", lambda run: (_ for _ in ()).throw(KeyboardInterrupt))
    (folder / "fold-1").mkdir(parents=True)
    for name in ("recipe.toml", "split.json"):
        (folder / name).write_text("of an earlier run")
    (folder / "fold-1" / "recipe.toml").write_text("of an earlier run")
    (folder / "fold-1" / "notes.txt").write_text("precious")
    with pytest.raises(KeyboardInterrupt):
        cross_validate(recipe_for(data), folder, force=True)
    assert (folder / "fold-1" / "notes.txt").read_text() == "precious"


@pytest.mark.parametrize("fields", [{"folds": 2}, {"folds": None}], ids=["fewer folds", "no folds"])
def test_force_removes_the_earlier_folds(finished: Path, data: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    (folder / "thesis.txt").write_text("precious")
    cross_validate(recipe_for(data, epochs=1, **fields), folder, force=True)
    expected = {"fold-1", "fold-2"} if fields["folds"] else set()
    assert {path.name for path in fold_folders(folder)} == expected
    assert (folder / "folds.json").is_file() == bool(expected)
    assert (folder / "thesis.txt").read_text() == "precious"
    assert (folder / "out_of_fold.safetensors").is_file() == bool(expected)
    assert set(split_from_file(folder / "split.json").splits) == ({"train"} if expected else {"train", "val", "test"})


# --- What is refused -------------------------------------------------------------------------------


def test_a_fold_is_continued_with_its_cross_validation_alone(finished: Path, data: Path, tmp_path: Path) -> None:
    whole = shutil.copytree(finished, tmp_path / "run")
    for name in ("evaluation.json", "report.html"):
        (whole / "fold-2" / name).unlink()
    with pytest.raises(VitkitError, match="is a fold of a cross-validation: continue that with vitkit train --resume"):
        run.resume(whole / "fold-2")
    picture = next(data.glob("*/*.png"))

    def noted(fold: str) -> str:
        return " ".join(vitkit.predict(whole / fold, picture).notes)

    assert noted("fold-2").endswith(f"continue it with vitkit train --resume {whole}")
    with exclusive_in(whole):
        assert f"{whole / 'fold-2'} is still being trained" in noted("fold-2")
        assert "trained" not in noted("fold-1")


def test_damaged_figures_of_a_fold_are_computed_again_as_the_message_says(finished: Path, tmp_path: Path) -> None:
    whole = shutil.copytree(finished, tmp_path / "run")
    figures = whole / "fold-2" / "evaluation.json"
    expected = json.loads(figures.read_text())
    figures.write_text('{"accuracy": "much"}')
    with pytest.raises(VitkitError, match=re.escape(f"vitkit train --resume {whole}") + "$"):
        run.resume(whole)
    figures.unlink()
    run.resume(whole)
    assert json.loads(figures.read_text())["accuracy"] == expected["accuracy"]


def test_what_cannot_be_divided_into_folds_is_refused(data: Path, tmp_path: Path) -> None:
    for part in ("train", "val"):
        shutil.copytree(data, tmp_path / "split" / part)
    photos = pictures.folder(tmp_path / "photos", {"a": 2, "b": 1})
    for source, number, said in (
        (tmp_path / "split", 3, r"is already split.*--folds"),
        (data, 8, "folds must be between 2 and 7"),
        (photos, 2, r"with 3 images, fold [12] would be trained on one class alone"),
    ):
        with pytest.raises(VitkitError, match=said):
            cross_validate(recipe_for(source, folds=number), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_folds_without_val_images_keep_the_last_epoch(data: Path, tmp_path: Path) -> None:
    folder, _ = cross_validate(recipe_for(data, epochs=1, folds=2, split=(1.0, 0.0, 0.0)), tmp_path / "run")
    for own in fold_folders(folder):
        assert Counter(split_from_file(own / "split.json").splits).keys() == {"train", "test"}
    assert sum(result["images"] for result in json.loads((folder / "folds.json").read_text())["folds"]) == 21


def test_two_folds_of_a_class_with_one_image_say_where_it_cannot_be_learned(data: Path, tmp_path: Path) -> None:
    source = runs.copy_of(data, tmp_path / "photos")
    (source / "lonely").mkdir()
    Image.effect_noise((16, 16), 90).convert("RGB").save(source / "lonely" / "one.png")
    folder, said = cross_validate(recipe_for(source, epochs=1, folds=2), tmp_path / "run")
    findings = [(own / "findings.json").read_text() for own in fold_folders(folder)]
    assert "lonely (1)" in said
    assert sum("none of them in train or val, so the model cannot learn it" in text for text in findings) == 1


def test_a_limit_cuts_training_images_of_folds(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FOLDS", replace(run.FOLDS, fit=lambda _: None))  # what is trained on is settled before
    cross_validate(recipe_for(data), tmp_path / "all")
    cross_validate(recipe_for(data, max_images=6), tmp_path / "some")
    for number in (1, 2, 3):
        whole, some = (split_from_file(tmp_path / name / f"fold-{number}" / "split.json") for name in ("all", "some"))
        assert some.of_split("train").counts() == {"blue": 2, "green": 2, "red": 2}
        assert set(some.of_split("train").paths) < set(whole.of_split("train").paths)
        for name in ("val", "test"):
            assert some.of_split(name).paths == whole.of_split(name).paths != ()
