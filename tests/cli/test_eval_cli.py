"""`vitkit eval`: the numbers of the Python API, for people and for programs."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from photos import fingerprint
from vitkit.data import read_source, split_from_file
from vitkit.evaluation import Evaluation, evaluate
from vitkit.evaluation.figures import figures
from vitkit.text import interval_text
from vitkit.weights import load


@pytest.fixture(scope="module")
def expected(trained: Path) -> Evaluation:
    return evaluate(load(trained), split_from_file(trained / "split.json"), "test")


def test_json_has_pythons_numbers(vitkit: Any, trained: Path, expected: Evaluation) -> None:
    numbers = json.loads(vitkit("eval", trained, "--json").out)
    assert {name: numbers[name] for name in expected.summary()} == expected.summary()
    assert next(iter(numbers)) == "accuracy"
    further = ("seen", "promises", "unknown", "headline")
    assert numbers.keys() == {*load(trained).computation, *further, *figures(expected)}
    assert (numbers["backend"], numbers["precision"]) == ("eager", "float32")
    assert (numbers["headline"]["value"], numbers["headline"]["caveats"]) == (expected.accuracy, [])
    assert numbers["per_class"] == figures(expected)["per_class"]
    assert (numbers["split"], numbers["images"]) == ("test", 6)


def test_text_has_pythons_numbers(vitkit: Any, trained: Path, expected: Evaluation) -> None:
    outcome = vitkit("eval", trained)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0].startswith("6 test images of ")
    bounds = figures(expected)["intervals_95"]
    for name in ("accuracy", "macro_f1", "loss"):
        assert f"{name:18} {getattr(expected, name):.4f} (95 %: {interval_text(bounds[name])})" in lines
    for name, row in expected.per_class().items():
        words = [f"{row['precision']:.3f}", f"{row['recall']:.3f}", f"{row['f1']:.3f}", str(row["support"])]
        assert [name, *words] in [line.split() for line in lines]


@pytest.mark.parametrize(("split", "images"), [("train", 27), ("val", 3), ("test", 6), ("all", 36)])
def test_split_chooses_the_images(vitkit: Any, trained: Path, split: str, images: int) -> None:
    numbers = json.loads(vitkit("eval", trained, "--split", split, "--json").out)
    counted = numbers.get("with_seen", numbers)
    assert (numbers["split"], counted["images"]) == (split, images)
    assert numbers["images"] == {"all": 6}.get(split, images), (
        "of all images, those that the weights had not seen count"
    )
    kinds = [own["kind"] for own in numbers["headline"]["caveats"]]
    assert kinds == {"train": ["trained_on"], "val": ["chosen_on", "baseline"], "test": [], "all": ["seen"]}[split]


def test_other_data_may_be_split_in_any_usual_way(vitkit: Any, trained: Path, data: Path, tmp_path: Path) -> None:
    for split in ("Validation", "Testing"):
        for name in ("green", "red", "blue") if split == "Testing" else ("red", "blue"):
            shutil.copytree(data / name, tmp_path / "photos" / split / name)
    numbers = json.loads(vitkit("eval", trained, tmp_path / "photos", "--json").out)
    assert (numbers["split"], numbers["with_seen"]["images"]) == ("test", 36)
    outcome = vitkit("eval", trained, tmp_path / "photos", "--layout", "classes")
    assert outcome.code == 2, "Testing is no class of the model"
    outcome = vitkit("eval", trained, "--layout", "classes")
    assert outcome.code == 2
    assert "--layout classes applies to the folders of DATA" in outcome.err


def test_other_data_need_only_some_of_the_classes(vitkit: Any, trained: Path, data: Path, tmp_path: Path) -> None:
    for name in ("green", "red"):
        shutil.copytree(data / name, tmp_path / "photos" / name)
    outcome = vitkit("eval", trained, tmp_path / "photos", "--json")
    numbers = json.loads(outcome.out)
    assert numbers["accuracy"] == evaluate(load(trained), read_source(tmp_path / "photos"), "all").accuracy
    assert numbers["per_class"]["blue"]["support"] == 0
    assert numbers["absent_classes"] == ["blue"]
    (line,) = [
        line.split() for line in vitkit("eval", trained, tmp_path / "photos").out.splitlines() if "blue " in line
    ]
    assert (line[2], line[4]) == ("-", "0"), "recall, and the number of images"
    assert "no image of 1 of the model's 3 classes: blue" in outcome.err
    assert "means over the 2 that occur" in outcome.err


def test_classes_that_the_model_does_not_know_are_all_named(
    vitkit: Any, trained: Path, data: Path, tmp_path: Path
) -> None:
    for name in ("red", "pink", "teal"):
        shutil.copytree(data / "red", tmp_path / "photos" / name)
    outcome = vitkit("eval", trained, tmp_path / "photos", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "does not know: pink, teal (it knows blue, green, red)" in outcome.err
    assert not (tmp_path / "out").exists()


def test_an_unreadable_image_is_counted_and_named(vitkit: Any, trained: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "photos")
    (tmp_path / "photos" / "red" / "text.jpg").write_text("not a picture")
    numbers = json.loads(vitkit("eval", trained, tmp_path / "photos", "--json").out)
    assert (numbers["with_seen"]["images"], numbers["unreadable"]) == (36, 1)
    assert "left out red/text.jpg: not an image" in vitkit("eval", trained, tmp_path / "photos").out


# --- A folder of results -----------------------------------------------------------------------------


def test_out_has_the_report_the_figures_and_every_prediction(
    vitkit: Any, trained: Path, expected: Evaluation, tmp_path: Path
) -> None:
    outcome = vitkit("eval", trained, "--out", tmp_path / "new" / "out")
    assert (outcome.code, outcome.err) == (0, "")
    folder = tmp_path / "new" / "out"
    assert sorted(path.name for path in folder.iterdir()) == ["evaluation.json", "predictions.csv", "report.html"]
    assert str(folder / "report.html") in outcome.out
    numbers = json.loads((folder / "evaluation.json").read_text())
    assert numbers == json.loads(vitkit("eval", trained, "--json").out)
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["path", "label", "predicted", "confidence"]
    assert [row["path"] for row in rows] == list(expected.paths)
    assert [row["label"] for row in rows] == [expected.classes[i] for i in expected.labels]
    assert [row["predicted"] for row in rows] == [expected.classes[i] for i in expected.predicted]
    assert [float(row["confidence"]) for row in rows] == pytest.approx(
        expected.probabilities.max(axis=1).tolist(), abs=1e-6
    )


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("inner", ["", "out", "red", "red/out"])
def test_nothing_is_written_among_the_photographs(
    vitkit: Any, trained: Path, data: Path, is_named: bool, inner: str
) -> None:
    before = fingerprint(data)
    outcome = vitkit("eval", trained, *([data] if is_named else []), "--out", data / inner, "--force")
    assert outcome.code == 2
    assert "nothing is written next to the photographs" in outcome.err
    assert fingerprint(data) == before


def test_a_folder_with_something_in_it_is_written_to_by_force_alone(vitkit: Any, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    outcome = vitkit("eval", trained, "--out", tmp_path)
    assert outcome.code == 2
    assert "is not empty" in outcome.err and "--force" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert vitkit("eval", trained, "--out", tmp_path, "--force").code == 0
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_out_that_is_a_file_is_refused(vitkit: Any, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    outcome = vitkit("eval", trained, "--out", tmp_path / "file", "--force")
    assert (outcome.code, "is a file; choose a folder" in outcome.err) == (2, True)
