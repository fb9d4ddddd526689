"""`vitkit.info`, beside `vitkit info`."""

import json
from pathlib import Path
from typing import Any

import pytest

import vitkit
from cli.conftest import vitkit as command
from refusals import refused
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.model import list_models

__all__ = ["command"]

NAME = "vit_micro_patch4_16"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16)), provenance={"seed": 3}).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("flags", [{"shapes": True}, {"image_size": 32}])
def test_function_and_command_agree_on_a_name(command: Any, flags: dict[str, Any]) -> None:
    words = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", value)]
    words = [word for word in words if word is not True]
    found = vitkit.info(NAME, **flags)
    assert command("info", NAME, *words).out == "".join(f"{line}\n" for line in found.lines())
    assert json.loads(command("info", NAME, *words, "--json").out) == json.loads(json.dumps(found.to_dict()))


def test_function_and_command_agree_on_a_folder_and_a_classifier_in_memory(command: Any, folder: Path) -> None:
    found = vitkit.info(folder)
    assert command("info", folder).out == "".join(f"{line}\n" for line in found.lines())
    assert json.loads(command("info", folder, "--json").out) == json.loads(json.dumps(found.to_dict()))
    assert found.origin.classes == tuple("abcdefg") and ", ".join("abcdefg") in command("info", folder).out
    described = json.loads(command("info", folder, "--json").out)
    assert (described["classes"], described["config"]["num_classes"]) == (list("abcdefg"), 7)
    assert described["preprocess"]["size"] == [12, 16]
    assert vitkit.info(vitkit.load(folder)).lines()[1:] == found.lines()[1:]
    built = Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16)))
    assert "weights" not in vitkit.info(built).lines()
    assert vitkit.info(built).cost == found.cost


def test_what_is_no_choice_is_refused(command: Any, folder: Path) -> None:
    with refused("text.value-outside", "image_size"):
        vitkit.info(NAME, image_size=0)
    with refused("verbs.model-in-memory"):
        vitkit.info(vitkit.load(folder), heads=2)
    command("models", "--weights", "resnet").refused("verbs.name-unknown", "resnet")


def test_models_lists_all_names_or_those_of_a_pattern(command: Any) -> None:
    assert json.loads(command("models", "--json").out) == list_models()
    lines = command("models").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list_models()
    for pattern in ("base", "*base*"):
        names = json.loads(command("models", pattern, "--json").out)
        assert names == [name for name in list_models() if "base" in name] != []
    out = command("models", "--weights", "augreg_best").out
    assert out.count("augreg_best") == 18 and "85.99" in out
    entries = json.loads(command("models", "--weights", "facebook/dinov2", "--json").out)
    assert {entry["licence"] for entry in entries} == {"Apache-2.0"}
    found, published = vitkit.models("vit_tiny"), vitkit.models("dinov2", weights=True)
    assert list(found.names) == vitkit.list_models("vit_tiny")
    assert found.names[0] in found._repr_html_() and f"{len(published.names)} published weights" in repr(published)
