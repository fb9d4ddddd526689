"""Weights test nothing that they have seen: what a run was trained on is known again in any form, and said."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageOps

import runs
import vitkit
from once import once
from photos import save, scene
from refusals import refused
from vitkit.data import PictureRecord, read_contents, split_from_file
from vitkit.reporting import data_of_report
from vitkit.training import run
from vitkit.verbs import TrainingRun
from vitkit.weights import load, write

CLASSES = ("a", "b", "c")


def scenes(root: Path, start: int = 0, each: int = 10) -> Path:
    for number, name in enumerate(CLASSES):
        for i in range(each):
            save(scene(1000 * number + start + i), root / name / f"{start + i}.png")
    return root


def train(data: Path, folder: Path, **fields: Any) -> tuple[Path, str]:
    return runs.told(runs.quick(data, **{"epochs": 1, "method": "scratch", **fields}), folder)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What images serve for is settled before anything is trained: nothing is."""
    monkeypatch.setattr(run, "TRAINING", replace(run.TRAINING, fit=lambda _: None, conclude=()))
    monkeypatch.setattr(run, "discard_if_empty", lambda _: None)


def go_on(data: Path, weights: Path, folder: Path, **fields: Any) -> tuple[Path, str]:
    return train(data, folder, **{"weights": str(weights), "model": None, "method": "probe-sgd", "seed": 7, **fields})


@pytest.fixture(scope="module")
def first() -> Path:
    """A run from nothing on 30 scenes: 21 to train, 3 to validate, 6 to test."""
    return once("lineage", lambda place: train(scenes(place / "photos"), place / "runs" / "first")) / "runs" / "first"


@pytest.fixture(scope="module")
def data(first: Path) -> Path:
    return first.parents[1] / "photos"


def roles(folder: Path) -> dict[str, str]:
    """The split of each content of a run."""
    contents, table = read_contents(folder / "split.json"), split_from_file(folder / "split.json")
    return {contents[path]: str(split) for path, split in zip(table.paths, table.splits, strict=True)}


def record(folder: Path) -> PictureRecord:
    return PictureRecord.from_bytes((folder / "pictures.npz").read_bytes(), folder)


def test_a_run_records_every_picture_with_its_split(first: Path) -> None:
    own = record(first)
    assert {digest.hex(): role for digest, role in own.role_of().items()} == roles(first)
    assert own.is_whole and own.seen == 24
    assert load(first).pictures == (first / "pictures.npz").read_bytes()


@pytest.mark.parametrize("name", ["model.npz", "model.safetensors", "hf"])
def test_every_layout_carries_the_record(first: Path, tmp_path: Path, name: str) -> None:
    to: Any = {"model.npz": "npz", "hf": "hf"}.get(name, "timm")
    write(load(first), tmp_path / name, to)
    assert load(tmp_path / name).pictures == load(first).pictures


def test_what_weights_do_not_allow_is_refused(data: Path, first: Path, tmp_path: Path) -> None:
    own = runs.copy_of(first, tmp_path / "own")
    with refused("training.out-overwrites", str(own)):
        run.train(runs.quick(data, weights=str(own), model=None, method="probe-sgd"), own, force=True)
    assert load(own).classes == load(first).classes
    with refused("training.images-seen", "24 of the 30"):
        go_on(data, first, tmp_path / "folds", folds=3)
    with refused("training.fields-conflict", "split_from"):
        runs.quick(data, split_from="x", folds=2)
    with refused("weights.source-missing", "nothing"):
        train(data, tmp_path / "run", split_from=str(tmp_path / "nothing"))
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


@pytest.mark.usefixtures("settled")
def test_added_photographs_alone_are_dealt(data: Path, first: Path, tmp_path: Path) -> None:
    second, said = go_on(scenes(runs.copy_of(data, tmp_path / "more"), start=500), first, tmp_path / "second")
    assert "30 of 60 images are known" in said
    assert roles(first).items() <= roles(second).items()
    counts = [list(roles(second).values()).count(name) for name in ("train", "val", "test")]
    assert counts == [42, 6, 12]  # the exact parts of 60


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(("suffix", "side", "is_mirrored"), [(".png", 32, True), (".jpg", 48, False)])
def test_copies_in_any_form_keep_the_split_of_the_weights(
    data: Path, first: Path, tmp_path: Path, suffix: str, side: int, is_mirrored: bool
) -> None:
    for file in data.rglob("*.png"):
        picture = Image.open(file).resize((side, side))
        place = tmp_path / "photos" / file.relative_to(data).with_name(f"new-{file.stem}{suffix}")
        save(ImageOps.mirror(picture) if is_mirrored else picture, place)
    second, said = go_on(tmp_path / "photos", first, tmp_path / "second")
    assert "(21 train, 3 val, 6 test)" in said
    before, after = split_from_file(first / "split.json"), split_from_file(second / "split.json")
    own = {Path(path).with_suffix(""): split for path, split in zip(before.paths, before.splits, strict=True)}
    for path, split in zip(map(Path, after.paths), after.splits, strict=True):
        assert split == own[path.with_name(path.stem.removeprefix("new-"))]


def test_data_that_come_split_are_a_problem_and_have_a_second_figure(data: Path, first: Path, tmp_path: Path) -> None:
    before = roles(first)
    by_digest = {digest: path for path, digest in read_contents(first / "split.json").items()}
    for number, path in enumerate(by_digest[digest] for digest in sorted(by_digest)):
        folder = tmp_path / "split" / ("test" if number % 2 else "train") / Path(path).parent
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(data / path, folder)
    second, said = go_on(tmp_path / "split", first, tmp_path / "second")
    tests = {digest for digest, role in roles(second).items() if role == "test"}
    seen = {digest for digest in tests if before[digest] != "test"}
    assert f"problem: {first.name} had seen {len(seen)} of the {len(tests)} test images" in said
    numbers = json.loads((second / "evaluation.json").read_text())
    assert numbers["seen"]["images"] == len(seen) == len(numbers["seen"]["paths"])
    assert numbers["seen"]["trained_on"] == len([digest for digest in tests if before[digest] == "train"])
    rest = len(tests) - len(seen)
    assert numbers["without_seen"]["images"] == numbers["images"] == rest
    assert numbers["accuracy"] == numbers["without_seen"]["accuracy"] != numbers["with_seen"]["accuracy"]
    with (second / "predictions.csv").open(encoding="utf-8", newline="") as text:
        answers = {row["path"]: row["label"] == row["predicted"] for row in csv.DictReader(text)}
    assert len(answers) == len(tests), "of all test images, so that others may choose"
    judged = [right for path, right in answers.items() if path not in numbers["seen"]["paths"]]
    assert numbers["accuracy"] == pytest.approx(sum(judged) / rest)
    assert f"on {rest} test images (without {len(seen)} that the weights had seen; with them" in said
    assert TrainingRun(second).accuracy == vitkit.evaluate(second).accuracy == numbers["accuracy"]
    assert f"accuracy on {rest} test images" in (second / "report.html").read_text()
    assert len(data_of_report(second / "report.html")["images"]["path"]) == rest
    assert record(second).role_of().keys() == record(first).role_of().keys()
    assert all(record(second).role_of()[bytes.fromhex(digest)] != "test" for digest in seen)


def test_other_pictures_are_drawn_anew_and_the_record_grows(first: Path, tmp_path: Path) -> None:
    second, said = go_on(scenes(tmp_path / "others", start=700), first, tmp_path / "second")
    assert "known from" not in said
    assert len(record(second)) == 60
    assert roles(first).items() <= {d.hex(): role for d, role in record(second).role_of().items()}.items()


@pytest.mark.usefixtures("settled")
def test_a_new_copy_of_two_splits_is_left_out_and_named(data: Path, first: Path, tmp_path: Path) -> None:
    more, table = runs.copy_of(data, tmp_path / "more"), split_from_file(first / "split.json")
    of_split = dict(row for row in zip(table.splits, table.paths, strict=True) if row[1].startswith("a/"))
    for path in (of_split["train"], of_split["test"]):
        Image.open(data / path).save(more / "a" / f"again-{Path(path).stem}.jpg", quality=95)
    shutil.copy(data / of_split["train"], more / "a" / "bridge-1.png")
    second, said = train(more, tmp_path / "second", split_from=str(first), group_by=r"(bridge|again)-")
    assert "2 new or relabelled images are copies of pictures in different splits" in said and "again-" in said
    assert roles(first).items() <= roles(second).items()


def tear(place: Path) -> None:
    """Given splits, in which each scene has two pictures. Scenes 0 and 1 are torn between train and test."""
    root = place / "photos"
    for label, letter in enumerate(("a", "b")):
        scenes = {"train": range(8), "val": (20, 21), "test": (0, 1, 10, 11)}
        for number, (split, own) in enumerate((name, own) for name in scenes for own in scenes[name]):
            for view in range(2):
                picture = scene(1000 * label + 10 * number + view)
                save(picture, root / split / letter / f"{letter}{own}-{split}{view}.png")
    shutil.copy(root / "test" / "a" / "a10-test0.png", root / "test" / "b" / "b10-again.png")  # a label is wrong
    (root / "test" / "a" / "a12-test0.png").write_bytes(b"no picture")
    _, said = train(root, place / "run", group_by=r"([ab]\d+)-")
    (place / "said.txt").write_text(said)


@pytest.fixture(scope="module")
def torn() -> Path:
    return once("torn", tear) / "photos"


@pytest.fixture(scope="module")
def flattered(torn: Path) -> tuple[Path, str]:
    return torn.parent / "run", (torn.parent / "said.txt").read_text()


def test_images_of_scenes_that_are_trained_on_do_not_count_and_problems_reach_every_headline(flattered: Any) -> None:
    folder, said = flattered
    evaluated, stored = vitkit.evaluate(folder), TrainingRun(folder).evaluation
    assert "4 scenes or groups are in more than one of the data's own splits" in said
    assert stored["figures"] == evaluated.figures
    for numbers in (stored, evaluated.figures):
        assert (numbers["images"], numbers["seen"]["images"], numbers["with_seen"]["images"]) == (9, 8, 17)
        assert {Path(path).name.split("-")[0] for path in numbers["seen"]["paths"]} == {"a0", "a1", "b0", "b1"}
    told = (
        "1 picture is in more than one class, and one label at most is right",
        "1 of the 18 test images cannot be read and does not count",
        "of them independent, the others being copies or of the same scenes",
    )
    lines = (said.splitlines()[-1], TrainingRun(folder).lines()[1], evaluated.lines()[-1])
    assert all(text in line for line in lines for text in told)


def test_what_weights_without_a_record_saw_is_unknown(flattered: tuple[Path, str], torn: Path, tmp_path: Path) -> None:
    classifier = load(flattered[0])
    classifier.pictures = None
    write(classifier, tmp_path / "plain.npz", "npz")
    fields = {"weights": str(tmp_path / "plain.npz"), "model": None, "method": "probe-sgd"}
    folder, said = train(torn, tmp_path / "second", **fields)
    evaluated = vitkit.evaluate(folder)
    assert TrainingRun(folder).evaluation["seen"] is evaluated.figures["seen"] is None
    for line in (said.splitlines()[-1], evaluated.lines()[-1]):
        assert "had seen these images before is not recorded" in line


def test_the_models_own_answers_are_no_labels(flattered: tuple[Path, str], torn: Path, tmp_path: Path) -> None:
    folder, answers = flattered[0], tmp_path / "answers.csv"
    vitkit.predict(folder, torn / "train", out=answers)
    with refused("data.list-of-predictions", "answers.csv"):
        vitkit.evaluate(folder, answers)
    with refused("data.columns-unexpected", "confidence"):
        vitkit.evaluate(folder, labels=answers)
    photos = [torn / "train" / "a" / f"a{scene}-train0.png" for scene in range(4)]
    rows = [f"{row.path},{row.label}\n" for row in vitkit.predict(folder, photos)]
    (tmp_path / "alone.csv").write_text("path,label\n" + "".join(rows))
    told = "every label equals the prediction, as if the labels had been made from predictions of this model"
    assert told in vitkit.evaluate(folder, tmp_path / "alone.csv").lines()[-1]
    assert told not in vitkit.evaluate(folder, torn / "train").headline.words


def test_copies_within_other_data_are_told(flattered: tuple[Path, str], tmp_path: Path) -> None:
    for number in range(12):
        for letter in "ab":
            save(scene(9000 + (number // 4) + 100 * (letter == "b")), tmp_path / letter / f"{number}.png")
    assert vitkit.evaluate(flattered[0], tmp_path).figures["independent_groups"] == 6
