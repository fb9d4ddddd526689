"""`class_indices.json` beside a checkpoint, as many training scripts write it, names its classes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tiny
from vitkit.model import VisionTransformer, config_for
from vitkit.weights import catalog as classes
from vitkit.weights import class_names, load, unique

NAMES = ("daisy", "dandelion", "roses")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    model = tiny.randomise(VisionTransformer(config_for("vit_micro_patch8_16", 3)))
    torch.save(model.state_dict(), tmp_path / "model.pth")
    return tmp_path / "model.pth"


@pytest.mark.parametrize(
    "written",
    [
        {"0": "daisy", "1": "dandelion", "2": "roses"},
        {"daisy": 0, "dandelion": 1, "roses": 2},
        {"2": "roses", "1": "dandelion", "0": "daisy"},
        {"roses": 2, "daisy": 0, "dandelion": 1},
    ],
    ids=str,
)
def test_it_is_read_in_both_directions_and_the_report_says_so(checkpoint: Path, written: dict[str, object]) -> None:
    (checkpoint.parent / "class_indices.json").write_text(json.dumps(written))
    classifier = load(checkpoint)
    assert classifier.classes == NAMES
    assert classifier.report is not None
    assert "classes" not in classifier.report.assumed
    assert "the class names are those of class_indices.json next to the weights" in classifier.report.notes


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"0": "daisy", "1": "roses"}, "has 2 names for 3 classes"),
        ({str(i): f"class {i}" for i in range(4)}, "has 4 names for 3 classes"),
        ({"1": "daisy", "2": "dandelion", "3": "roses"}, "has no name for each class number"),
        ({"daisy": 0, "dandelion": 0, "roses": 2}, "has no name for each class number"),
        ({"daisy": "a", "dandelion": "b", "roses": "c"}, "has no name for each class number"),
        (["daisy", "dandelion", "roses"], "has no name for each class number"),
        ("{", "has no name for each class number"),
    ],
    ids=str,
)
def test_one_that_does_not_fit_is_passed_over_and_said_to_be(checkpoint: Path, written: object, said: str) -> None:
    text = written if isinstance(written, str) else json.dumps(written)
    (checkpoint.parent / "class_indices.json").write_text(text)
    classifier = load(checkpoint)
    assert classifier.classes == ("0", "1", "2")
    assert classifier.report is not None
    assumed = classifier.report.assumed["classes"]
    assert assumed.startswith("numbers") and said in assumed
    assert f"{checkpoint.parent / 'class_indices.json'} was ignored" in assumed, "commands show what is assumed"


def test_names_that_are_given_come_first(checkpoint: Path) -> None:
    (checkpoint.parent / "class_indices.json").write_text(json.dumps(dict(enumerate(NAMES))))
    assert load(checkpoint, classes=("a", "b", "c")).classes == ("a", "b", "c")
    assert load(checkpoint, 5).classes == ("0", "1", "2", "3", "4"), "another head has other classes"


def test_the_classes_of_imagenet_21k_have_wordnets_names_in_googles_order() -> None:
    from timm.data import ImageNetInfo

    names, told = class_names(21843)
    theirs = ImageNetInfo("imagenet21k_goog")
    assert list(names) == [theirs.index_to_description(i).partition(",")[0].strip() for i in range(21843)]
    assert "ImageNet-21k's names" in told
    assert len(set(unique(names))) == 21843
    licence = Path(classes.__file__).with_name("imagenet21k_classes.LICENSE").read_text(encoding="utf-8")
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in licence
