"""`vitkit.convert`, beside `vitkit convert`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitkit
from cli.conftest import vitkit as command
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess

__all__ = ["command"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = build(image_size=(16, 16))
    Classifier(model, tuple("abcdefg"), Preprocess(size=(16, 16)), temperature=1.7).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(("name", "to"), [("out", None), ("out.npz", None), ("out.pth", None), ("out", "timm")])
def test_function_and_command_agree(command: Any, folder: Path, tmp_path: Path, name: str, to: Any) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for own in (ours, theirs):
        own.mkdir()
    found = vitkit.convert(folder, ours / name, to=to, num_classes=None)
    said = command("convert", folder, theirs / name, *([] if to is None else ["--to", to]))
    assert said.out == "".join(f"{line}\n" for line in found.lines()).replace(str(ours), str(theirs))
    assert (found.temperature is None) == (found.to == "folder")
    written, other = (sorted(p for p in own.rglob("*") if p.is_file()) for own in (ours, theirs))
    assert [p.relative_to(ours) for p in written] == [p.relative_to(theirs) for p in other]
    assert [p.read_bytes() for p in written] == [p.read_bytes() for p in other]


def test_a_conversion_is_shown_in_a_line(folder: Path, tmp_path: Path) -> None:
    found = vitkit.convert(str(folder), str(tmp_path / "out.npz"))
    assert repr(found) == f"<Conversion: written and read back, every number the same: {tmp_path / 'out.npz'}>"
    assert json.loads(json.dumps(found.to_dict()))["temperature"] == 1.7
    assert "divided by the temperature, 1.700" in found._repr_html_()


@pytest.mark.parametrize(("to", "is_shifted"), [("timm", True), ("hf", False), ("folder", False)])
def test_a_crop_that_a_layout_cannot_express_to_the_pixel_is_told(tmp_path: Path, to: Any, is_shifted: bool) -> None:
    preprocess = Preprocess(size=(16, 16), fit="squash_crop", crop_pct=16 / 19, floor_crop=True)
    Classifier(build(image_size=(16, 16)), tuple("abcdefg"), preprocess).save(tmp_path / "model")
    found = vitkit.convert(tmp_path / "model", tmp_path / "out", to=to)
    assert found.is_crop_shifted == any("one pixel further" in line for line in found.lines()) == is_shifted
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8))
    again = vitkit.load(tmp_path / "out").preprocess
    assert np.array_equal(again(picture), preprocess(picture)) != is_shifted


@pytest.mark.parametrize("name", ["out", "before"])
def test_a_folder_that_cannot_be_replaced_is_put_back(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    there = tmp_path / name
    vitkit.convert(folder, there)
    vitkit.convert(folder, there, force=True)
    content = (there / "model.json").read_bytes()
    replace = Path.replace

    def fails(self: Path, target: Path) -> Path:
        if target == there and self.name == name:
            raise PermissionError(13, "Permission denied", str(self))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(PermissionError):
        vitkit.convert(folder, there, num_classes=2, force=True)
    assert (there / "model.json").read_bytes() == content
    assert {path.name for path in tmp_path.iterdir()} == {"model", name}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"to": "keras"}, r"--to 'keras' is none of (?=.*folder)(?=.*npz)(?=.*timm)(?=.*hf)"),
        (
            {"preprocess": "mine"},
            r"preprocess 'mine' is none of (?=.*google)(?=.*augreg)(?=.*deit)(?=.*torchvision)(?=.*dinov2)",
        ),
        ({"num_classes": -1}, "--num-classes must be at least 0, not -1"),
        ({"heads": 0}, "--heads must be at least 1, not 0"),
    ],
)
def test_what_is_no_choice_is_refused(folder: Path, tmp_path: Path, options: Any, complaint: str) -> None:
    with pytest.raises(vitkit.VitkitError, match=complaint):
        vitkit.convert(folder, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
