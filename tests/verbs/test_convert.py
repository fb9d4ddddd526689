"""`vitkit.convert`, beside `vitkit convert`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import vitkit
from cli.conftest import vitkit as command
from photos import fingerprint, noise, save
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.weights import load

__all__ = ["command"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = build(image_size=(16, 16))
    Classifier(model, tuple("abcdefg"), Preprocess(size=(16, 16)), temperature=1.7).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(("name", "to"), [("out", None), ("out.npz", None), ("out", "timm")])
def test_function_and_command_agree(command: Any, folder: Path, tmp_path: Path, name: str, to: Any) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for own in (ours, theirs):
        own.mkdir()
    found = vitkit.convert(folder, ours / name, to=to, num_classes=None)
    said = command("convert", folder, theirs / name, *([] if to is None else ["--to", to]))
    assert said.out == "".join(f"{line}\n" for line in found.lines()).replace(str(ours), str(theirs))
    assert (found.temperature is None) == (found.to == "folder")
    assert repr(found) == f"<convert: written and read back, every number the same: {ours / name}>"
    assert json.loads(json.dumps(found.to_dict()))["temperature"] == (None if found.to == "folder" else 1.7)
    assert ("divided by the temperature, 1.700" in found._repr_html_()) == (found.to != "folder")
    written, other = (sorted(p for p in own.rglob("*") if p.is_file()) for own in (ours, theirs))
    assert [p.relative_to(ours) for p in written] == [p.relative_to(theirs) for p in other]
    assert [p.read_bytes() for p in written] == [p.read_bytes() for p in other]


@pytest.mark.parametrize(("to", "is_shifted"), [("timm", True), ("hf", False), ("folder", False)])
def test_a_crop_that_a_layout_cannot_express_to_the_pixel_is_told(tmp_path: Path, to: Any, is_shifted: bool) -> None:
    preprocess = Preprocess(size=(16, 16), fit="squash_crop", crop_pct=16 / 19, floor_crop=True)
    Classifier(build(image_size=(16, 16)), tuple("abcdefg"), preprocess).save(tmp_path / "model")
    found = vitkit.convert(tmp_path / "model", tmp_path / "out", to=to)
    assert found.is_crop_shifted == any("one pixel further" in line for line in found.lines()) == is_shifted
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8))
    again = vitkit.load(tmp_path / "out").preprocess
    assert np.array_equal(again(picture), preprocess(picture)) != is_shifted


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A DeiT-like file: timm's names, wrapped."""
    path = tmp_path / "weights.pth"
    torch.save({"model": build(image_size=(16, 16)).state_dict(), "epoch": 3}, path)
    return path


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    return save(noise(40, 30), tmp_path / "photo.png")


def test_a_new_head_and_other_pixels(command: Any, checkpoint: Path, tmp_path: Path) -> None:
    flags = ("--heads", 4, "--num-classes", 3, "--preprocess", "google")
    outcome = command("convert", checkpoint, tmp_path / "out", *flags)
    assert "new head.weight: 3 classes, zero until it is trained" in outcome.out
    assert "assumed preprocess" not in outcome.out
    again = load(tmp_path / "out")
    assert again.classes == ("0", "1", "2")
    assert (again.preprocess.fit, again.preprocess.mean) == ("squash", (0.5, 0.5, 0.5))


def test_a_new_head_or_size_has_none_of_the_figures_and_promises_of_before(
    command: Any, trained: Path, tmp_path: Path
) -> None:
    assert "validation accuracy" in repr(load(trained)) and load(trained).held_out is not None
    assert command("convert", trained, tmp_path / "head", "--num-classes", "2").code == 0
    again = load(tmp_path / "head")
    assert again.classes == ("0", "1") and again.held_out is None
    assert "validation accuracy" not in repr(again) and "trained on" in repr(again)
    larger = load(trained, image_size=32)
    assert larger.report is not None
    assert any("the images have another size than in the training" in line for line in larger.report.lines())
    larger.save(tmp_path / "out")
    again = load(tmp_path / "out")
    assert again.held_out is None and again.temperature == load(trained).temperature
    command("predict", tmp_path / "out", trained, "--coverage", "0.5").refused("inference.record-missing", "--coverage")


@pytest.mark.parametrize(("first", "second"), [("folder", "timm"), ("hf", "folder")])
def test_a_folder_is_replaced_whole(command: Any, trained: Path, tmp_path: Path, first: str, second: str) -> None:
    assert command("convert", trained, tmp_path / "alone", "--to", second).code == 0
    assert command("convert", trained, tmp_path / "out", "--to", first, "--num-classes", "2").code == 0
    outcome = command("convert", trained, tmp_path / "out", "--to", second, "--force")
    assert outcome.code == 0, outcome.err
    alone, again = load(tmp_path / "alone"), load(tmp_path / "out")
    assert again.classes == alone.classes and again.preprocess == alone.preprocess
    found, expected = ({path.name for path in (tmp_path / name).iterdir()} for name in ("out", "alone"))
    assert found == expected


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ("nowhere.pth out", "weights.source-missing", "nowhere.pth"),
        ("weights.pth photo.png", "verbs.out-exists", "photo.png"),
        ("weights.pth photos --force", "verbs.out-not-empty", "photos"),
        ("weights.pth out --to npz", "verbs.out-suffix", ".npz"),
        ("weights.pth out --heads 5", "model.size-not-divisible", "heads 5"),
        ("photo.png out", "weights.format-unknown", "photo.png"),
    ],
)
def test_mistakes_end_in_a_line_and_leave_nothing(
    command: Any, checkpoint: Path, photo: Path, monkeypatch: Any, arguments: str, code: str, named: str
) -> None:
    place = checkpoint.parent
    save(noise(), place / "photos" / "a.png")
    monkeypatch.chdir(place)
    before = fingerprint(place)
    command("convert", *arguments.split()).refused(code, named)
    assert fingerprint(place) == before


def test_what_does_not_fit_is_named_unless_partial_is_allowed(command: Any, tmp_path: Path) -> None:
    state = {**build(image_size=(16, 16)).state_dict(), "blocks.0.attn.odd.weight": torch.ones(8)}
    del state["blocks.1.mlp.fc2.weight"]
    save_file(state, tmp_path / "odd.safetensors")
    asked = ("convert", tmp_path / "odd.safetensors", tmp_path / "out", "--heads", 4)
    command(*asked).refused("weights.tensors-unfit", "blocks.1.mlp.fc2.weight", "blocks.0.attn.odd.weight")
    outcome = command(*asked, "--allow-partial")
    assert outcome.code == 0
    assert "missing blocks.1.mlp.fc2.weight" in outcome.out
    assert "left over blocks.0.attn.odd.weight" in outcome.out
