"""`vitkit.info`, beside `vitkit info`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vitkit
from cli.conftest import vitkit as command
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess

__all__ = ["command"]

NAME = "vit_micro_patch4_16"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16)), provenance={"seed": 3}).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("flags", [{}, {"shapes": True}, {"image_size": 32}])
def test_function_and_command_agree_on_a_name(command: Any, flags: dict[str, Any]) -> None:
    words = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", value)]
    words = [word for word in words if word is not True]
    found = vitkit.info(NAME, **flags)
    assert command("info", NAME, *words).out == "".join(f"{line}\n" for line in found.lines())
    assert json.loads(command("info", NAME, *words, "--json").out) == json.loads(json.dumps(found.to_dict()))


def test_function_and_command_agree_on_a_folder(command: Any, folder: Path) -> None:
    found = vitkit.info(folder)
    assert command("info", folder).out == "".join(f"{line}\n" for line in found.lines())
    assert json.loads(command("info", folder, "--json").out) == json.loads(json.dumps(found.to_dict()))
    assert found.origin is not None
    assert found.origin.classes == tuple("abcdefg")


def test_a_classifier_in_memory_is_described_as_its_folder_is(folder: Path) -> None:
    ours, loaded = vitkit.info(vitkit.load(folder)), vitkit.info(folder)
    assert ours.lines()[1:] == loaded.lines()[1:]
    built = Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16)))
    assert "weights" not in vitkit.info(built).lines()
    assert vitkit.info(built).cost == ours.cost


def test_a_description_that_an_editor_saved_with_a_byte_order_mark_is_read(folder: Path) -> None:
    before, file = vitkit.info(folder), folder / "model.json"
    file.write_text(file.read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert vitkit.info(folder).lines() == before.lines()


def test_what_is_no_choice_is_refused(folder: Path) -> None:
    with pytest.raises(vitkit.VitkitError, match="--image-size must be at least 1, not 0"):
        vitkit.info(NAME, image_size=0)
    with pytest.raises(
        vitkit.VitkitError, match="the size, heads and preprocessing of a classifier in memory are fixed"
    ):
        vitkit.info(vitkit.load(folder), heads=2)


def test_the_cost_is_told_in_a_line() -> None:
    found = vitkit.info("vit_base_patch16_224")
    assert found.cost.parameters == 86_567_656
    assert repr(found) == f"<Info: vit_base_patch16_224, 86,567,656 parameters, {found.cost.gmacs:.3f} GMACs>"
    assert "86,567,656" in found._repr_html_()
