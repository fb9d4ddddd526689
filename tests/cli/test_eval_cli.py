"""`vitkit eval`: the numbers of the Python API, for people and for programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from vitkit.data.source import read_source
from vitkit.data.split import split_from_file
from vitkit.evaluate.metrics import Evaluation, evaluate
from vitkit.weights import load


@pytest.fixture(scope="module")
def expected(trained: Path) -> Evaluation:
    return evaluate(load(trained), split_from_file(trained / "split.json"), "test")


def test_json_alone_is_on_stdout_and_accuracy_comes_first(vitkit: Any, trained: Path, expected: Evaluation) -> None:
    outcome = vitkit("eval", trained, "--json")
    numbers = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (0, "")
    assert next(iter(numbers.items())) == ("accuracy", expected.accuracy)
    assert 0 <= numbers["accuracy"] <= 1


def test_json_has_pythons_numbers(vitkit: Any, trained: Path, expected: Evaluation) -> None:
    numbers = json.loads(vitkit("eval", trained, "--json").out)
    assert {name: numbers[name] for name in expected.summary()} == expected.summary()
    assert numbers["per_class"] == expected.per_class()
    assert (numbers["split"], numbers["images"]) == ("test", 6)


def test_text_has_pythons_numbers(vitkit: Any, trained: Path, expected: Evaluation) -> None:
    outcome = vitkit("eval", trained)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0].startswith("6 test images of ")
    assert f"accuracy           {expected.accuracy:.4f}" in lines
    assert f"loss               {expected.loss:.4f}" in lines
    for name, row in expected.per_class().items():
        words = [f"{row['precision']:.3f}", f"{row['recall']:.3f}", f"{row['f1']:.3f}", str(row["support"])]
        assert [name, *words] in [line.split() for line in lines]


@pytest.mark.parametrize(("split", "images"), [("train", 27), ("val", 3), ("test", 6), ("all", 36)])
def test_split_chooses_the_images(vitkit: Any, trained: Path, split: str, images: int) -> None:
    numbers = json.loads(vitkit("eval", trained, "--split", split, "--json").out)
    assert (numbers["split"], numbers["images"]) == (split, images)


def test_other_data_are_evaluated_whole(vitkit: Any, trained: Path, data: Path) -> None:
    numbers = json.loads(vitkit("eval", trained, data, "--json").out)
    assert (numbers["split"], numbers["images"]) == ("all", 36)
    assert numbers["accuracy"] == evaluate(load(trained), read_source(data), "all").accuracy


def test_other_data_need_only_some_of_the_classes(vitkit: Any, trained: Path, data: Path, tmp_path: Path) -> None:
    for name in ("green", "red"):
        shutil.copytree(data / name, tmp_path / "photos" / name)
    numbers = json.loads(vitkit("eval", trained, tmp_path / "photos", "--json").out)
    assert numbers["accuracy"] > 0.8
    assert numbers["per_class"]["blue"]["support"] == 0


def test_an_unreadable_image_is_counted_and_named(vitkit: Any, trained: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "photos")
    (tmp_path / "photos" / "red" / "text.jpg").write_text("not a picture")
    numbers = json.loads(vitkit("eval", trained, tmp_path / "photos", "--json").out)
    assert (numbers["images"], numbers["unreadable"]) == (36, 1)
    assert "left out red/text.jpg: not an image" in vitkit("eval", trained, tmp_path / "photos").out
