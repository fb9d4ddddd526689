"""Weights test nothing that they have seen: what a run was trained on is known again in any form, and said."""

import csv
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from PIL import Image, ImageOps

import runs
import vitkit
from hearing import heard
from photos import scene
from vitkit.data import PictureRecord, read_contents, split_from_file
from vitkit.errors import VitkitError
from vitkit.reporting import data_of_report
from vitkit.training import run
from vitkit.verbs import TrainingRun
from vitkit.weights import checkpoint as read
from vitkit.weights import load, loading, write

CLASSES = ("a", "b", "c")
START = {"weights": "WEIGHTS", "model": None, "method": "probe-sgd", "epochs": 1}


def scenes(root: Path, start: int = 0, each: int = 10) -> Path:
    for number, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            scene(1000 * number + start + i).save(root / name / f"{start + i}.png")
    return root


def train(data: Path, folder: Path, **fields: Any) -> tuple[Path, str]:
    lines: list[str] = []
    recipe = runs.quick(data, **{"epochs": 1, "method": "scratch", **fields})
    with heard(lines.append):
        return run.train(recipe, folder), "\n".join(lines)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What images serve for is settled before anything is trained: nothing is."""
    monkeypatch.setattr(run, "TRAINING", replace(run.TRAINING, fit=lambda _: None, conclude=()))
    monkeypatch.setattr(run, "discard_if_empty", lambda _: None)


def go_on(data: Path, weights: Path, folder: Path, **fields: Any) -> tuple[Path, str]:
    return train(data, folder, **{**START, "weights": str(weights), "seed": 7, **fields})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scenes(tmp_path_factory.mktemp("lineage") / "photos")


@pytest.fixture(scope="module")
def first(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from nothing on 30 scenes: 21 to train, 3 to validate, 6 to test."""
    return train(data, tmp_path_factory.mktemp("lineage-runs") / "first")[0]


def roles(folder: Path) -> dict[str, str]:
    """The split of each content of a run."""
    contents = read_contents(folder / "split.json")
    table = split_from_file(folder / "split.json")
    return {contents[path]: str(split) for path, split in zip(table.paths, table.splits, strict=True)}


def record(folder: Path) -> PictureRecord:
    return PictureRecord.from_bytes((folder / "pictures.npz").read_bytes(), folder)


def changed(data: Path, target: Path, change: Callable[[Image.Image], Image.Image], suffix: str = ".png") -> Path:
    for file in data.rglob("*.png"):
        place = target / file.relative_to(data).with_name(f"new-{file.stem}{suffix}")
        place.parent.mkdir(parents=True, exist_ok=True)
        change(Image.open(file)).save(place)
    return target


FORMS: dict[str, Callable[[Path, Path], Path]] = {
    "renamed": lambda data, to: changed(data, to, lambda picture: picture),
    "re-encoded": lambda data, to: changed(data, to, lambda picture: picture, ".jpg"),
    "resized": lambda data, to: changed(data, to, lambda picture: picture.resize((48, 48))),
    "mirrored": lambda data, to: changed(data, to, ImageOps.mirror),
}


# --- The record ------------------------------------------------------------------------------------------------


def test_a_run_records_every_picture_with_its_split(first: Path) -> None:
    own = record(first)
    assert {digest.hex(): role for digest, role in own.role_of().items()} == roles(first)
    assert own.is_whole and own.seen == 24
    assert load(first).pictures == (first / "pictures.npz").read_bytes()


@pytest.mark.parametrize("name", ["model.npz", "model.safetensors", "model.pth", "timm", "hf", "folder"])
def test_every_layout_carries_the_record(first: Path, tmp_path: Path, name: str) -> None:
    to: Any = {"model.npz": "npz", "timm": "timm", "hf": "hf", "folder": "folder"}.get(name, "timm")
    write(load(first), tmp_path / name, to)
    heads = {"heads": load(first).model.config.heads} if name == "model.pth" else {}  # which it cannot say
    found = load(tmp_path / name, **heads).pictures
    assert found == load(first).pictures


def test_a_run_does_not_write_over_the_weights_that_it_begins_from(data: Path, first: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(first, tmp_path / "own"))
    with pytest.raises(VitkitError, match=r"would overwrite the weights .*: choose a new name"):
        run.train(runs.quick(data, **{**START, "weights": str(own), "epochs": 1}), own, force=True)
    assert load(own).classes == load(first).classes


# --- Planted leaks: none is silent -----------------------------------------------------------------------------


def test_another_seed_keeps_the_split_of_the_weights(data: Path, first: Path, tmp_path: Path) -> None:
    second, said = go_on(data, first, tmp_path / "second")
    assert roles(second) == roles(first)
    assert "30 of 30 images are known from" in said and "(21 train, 3 val, 6 test); 0 are new" in said
    assert json.loads((second / "evaluation.json").read_text())["seen"]["images"] == 0


def test_folds_from_weights_that_have_seen_the_pictures_are_refused(data: Path, first: Path, tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="has seen 24 of the 30 pictures: use other --weights"):
        go_on(data, first, tmp_path / "folds", folds=3)
    assert not (tmp_path / "folds").exists()


@pytest.mark.usefixtures("settled")
def test_added_photographs_alone_are_dealt(data: Path, first: Path, tmp_path: Path) -> None:
    more = scenes(Path(shutil.copytree(data, tmp_path / "more")), start=500, each=10)
    second, said = go_on(more, first, tmp_path / "second")
    assert "30 of 60 images are known" in said and "30 are new" in said
    assert roles(first).items() <= roles(second).items()
    counts = [list(roles(second).values()).count(name) for name in ("train", "val", "test")]
    assert counts == [42, 6, 12]  # the exact parts of 60


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("form", FORMS)
def test_copies_in_any_form_keep_the_split_of_the_weights(data: Path, first: Path, tmp_path: Path, form: str) -> None:
    second, said = go_on(FORMS[form](data, tmp_path / "photos"), first, tmp_path / "second")
    assert "30 of 30 images are known" in said and "(21 train, 3 val, 6 test)" in said
    before, after = split_from_file(first / "split.json"), split_from_file(second / "split.json")
    own = {
        (Path(path).parts[0], Path(path).stem): split for path, split in zip(before.paths, before.splits, strict=True)
    }
    for path, split in zip(after.paths, after.splits, strict=True):
        assert split == own[Path(path).parts[0], Path(path).stem.removeprefix("new-")]


@pytest.mark.usefixtures("settled")
def test_a_moved_class_keeps_its_pictures_splits(data: Path, first: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(data, tmp_path / "moved"))
    for file in list((moved / "a").iterdir())[:5]:
        file.rename(moved / "b" / f"was-a-{file.name}")
    second, _ = go_on(moved, first, tmp_path / "second")
    assert roles(second) == roles(first)


def test_data_that_come_split_are_a_problem_and_have_a_second_figure(data: Path, first: Path, tmp_path: Path) -> None:
    trained = [digest for digest, role in roles(first).items() if role == "train"]
    by_digest = {digest: path for path, digest in read_contents(first / "split.json").items()}
    for number, path in enumerate(by_digest[digest] for digest in sorted(by_digest)):
        folder = tmp_path / "split" / ("test" if number % 2 else "train") / Path(path).parent
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(data / path, folder)
    second, said = go_on(tmp_path / "split", first, tmp_path / "second")
    tests = {digest for digest, role in roles(second).items() if role == "test"}
    seen = {digest for digest, role in roles(first).items() if role != "test"} & tests
    assert f"problem: {first.name} had seen {len(seen)} of the {len(tests)} test images" in said
    numbers = json.loads((second / "evaluation.json").read_text())
    assert numbers["seen"]["images"] == len(seen) == len(numbers["seen"]["paths"])
    assert numbers["seen"]["trained_on"] == len(tests & set(trained))
    rest = len(tests) - len(seen)
    assert numbers["without_seen"]["images"] == numbers["images"] == rest
    assert numbers["accuracy"] == numbers["without_seen"]["accuracy"] != numbers["with_seen"]["accuracy"]
    with (second / "predictions.csv").open(encoding="utf-8", newline="") as text:
        answers = {row["path"]: row["label"] == row["predicted"] for row in csv.DictReader(text)}
    assert len(answers) == len(tests), "of all test images, so that others may choose"
    judged = [right for path, right in answers.items() if path not in numbers["seen"]["paths"]]
    assert numbers["accuracy"] == pytest.approx(sum(judged) / rest)
    caveat = f"(without {len(seen)} that the weights had seen; with them {numbers['with_seen']['accuracy']:.4f}"
    line = f"on {rest} test images {caveat}"
    assert line in said and line in TrainingRun(second).lines()[0]
    assert TrainingRun(second).accuracy == vitkit.evaluate(second).accuracy == numbers["accuracy"]
    page = (second / "report.html").read_text()
    assert f'<span class="figure">{100 * numbers["accuracy"]:.1f} %</span> accuracy on {rest} test images' in page
    assert len(data_of_report(second / "report.html")["images"]["path"]) == rest
    assert record(second).role_of().keys() == record(first).role_of().keys()
    assert all(record(second).role_of()[bytes.fromhex(digest)] != "test" for digest in seen)
    assert f"{len(seen)} of {len(tests)} images had been seen by the weights" in (second / "report.html").read_text()


def test_other_pictures_are_drawn_anew_and_the_record_grows(first: Path, tmp_path: Path) -> None:
    second, said = go_on(scenes(tmp_path / "others", start=700), first, tmp_path / "second")
    assert "known from" not in said and "had seen" not in said
    assert len(record(second)) == 60
    assert roles(first).items() <= {d.hex(): role for d, role in record(second).role_of().items()}.items()


# --- Keeping a split -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("settled")
def test_a_run_of_other_pictures_to_split_from_is_a_problem(data: Path, first: Path, tmp_path: Path) -> None:
    others = runs.photos(tmp_path / "photos", seed=5)
    _, said = train(others, tmp_path / "run", split_from=str(first))
    assert f"problem: no image is known from {first.name}: the images are divided anew" in said


@pytest.mark.usefixtures("settled")
def test_without_it_the_line_says_whose_test_pictures_are_trained_on(data: Path, first: Path) -> None:
    _, said = train(data, first.parent / "reseeded", seed=5)
    shutil.rmtree(first.parent / "reseeded")
    assert "of the 6 test images of" in said and f"--split-from {first} keeps its split" in said


def test_one_corrected_label_moves_no_other_picture(data: Path, first: Path, tmp_path: Path) -> None:
    corrected = Path(shutil.copytree(data, tmp_path / "corrected"))
    (corrected / "a" / "3.png").rename(corrected / "b" / "from-a.png")
    second, _ = train(corrected, tmp_path / "second", split_from=str(first), seed=9)
    assert roles(second) == roles(first)
    assert run.resume(second) == second


@pytest.mark.usefixtures("settled")
def test_a_new_copy_of_two_splits_is_left_out_and_named(data: Path, first: Path, tmp_path: Path) -> None:
    more = Path(shutil.copytree(data, tmp_path / "more"))
    table = split_from_file(first / "split.json")
    rows = [row for row in zip(table.splits, table.paths, strict=True) if row[1].startswith("a/")]
    one, other = (dict(rows)[name] for name in ("train", "test"))
    for path in (one, other):
        Image.open(data / path).save(more / "a" / f"again-{Path(path).stem}.jpg", quality=95)
    shutil.copy(data / one, more / "a" / "bridge-1.png")
    second, said = train(more, tmp_path / "second", split_from=str(first), group_by=r"(bridge|again)-")
    assert "2 new or relabelled images are copies of pictures in different splits" in said
    assert "again-" in said
    assert roles(first).items() <= roles(second).items()


@pytest.mark.usefixtures("settled")
def test_a_run_without_a_record_cannot_be_kept_to(data: Path, tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="split_from"):
        runs.quick(data, split_from="x", folds=2)
    with pytest.raises(VitkitError):
        train(data, tmp_path / "run", split_from=str(tmp_path / "nothing"))
    assert not (tmp_path / "run").exists()


# --- Label errors ----------------------------------------------------------------------------------------------


def test_label_errors_are_judged_by_weights_before_these_pictures(data: Path, first: Path, tmp_path: Path) -> None:
    other, _ = train(scenes(tmp_path / "others", start=800), tmp_path / "other")
    second, _ = go_on(data, other, tmp_path / "second")
    _, said = go_on(data, second, tmp_path / "third")
    assert f"label errors are searched with {other}, which had not seen these images" in said
    _, said = go_on(data, first, tmp_path / "fourth")
    assert "only held-out images are searched for label errors: the weights had been trained on the images" in said


# --- How often weights are read -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "timm"])
def test_a_run_reads_its_first_weights_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    data = runs.photos(tmp_path / "data")
    start = run.train(runs.quick(data, epochs=1, seed=5), tmp_path / "start")
    if kind == "timm":
        start = tmp_path / "start.pth"
        torch.save(runs.weights(tmp_path / "start"), start)
    files: list[Path] = []
    for name in ("read_torch", "read_safetensors"):
        original = getattr(read, name)
        spied = lambda path, original=original, **more: (files.append(path), original(path, **more))[1]  # noqa: E731
        monkeypatch.setattr(read, name, spied)
    other = runs.photos(tmp_path / "other", seed=3)
    asked = vitkit.Recipe(data=str(other), weights=str(start), method="full", epochs=1, workers=0)
    run.train(asked, tmp_path / "run")
    assert sum(path.is_relative_to(start) or path == start for path in files) == 1
    again = [path for path in files if path.is_relative_to(tmp_path / "run")]
    assert again == [], "and its own model never"


class LookOn:
    """Ends the training before its first step."""

    class EndError(Exception):
        """The training has come to its first step."""

    def on_fit_start(self, _: Any) -> None:
        raise self.EndError


def test_a_training_looks_at_its_weights_once(tmp_path: Path) -> None:
    start = run.train(runs.quick(runs.photos(tmp_path / "data"), epochs=1, seed=5), tmp_path / "start")
    other = runs.photos(tmp_path / "other", seed=3)
    looks: list[str] = []

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is loading.look.__code__:
            looks.append(event)

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        vitkit.train(
            other,
            vitkit.Recipe(weights=str(start), method="full"),
            hooks=vitkit.Hooks(callbacks=[LookOn()]),
            out=tmp_path / "run",
        )
    except LookOn.EndError:
        pass
    finally:
        sys.setprofile(before)
    assert len(looks) == 1
