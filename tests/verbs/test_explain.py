"""`vitkit.explain`, beside `vitkit explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

import vitkit
from cli.conftest import vitkit as command
from photos import noise, save
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess

__all__ = ["command"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explain") / "model"
    Classifier(build(image_size=(16, 16)), tuple("abcdefg"), Preprocess(size=(16, 16))).save(folder)
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for seed, place in enumerate(("one/a.png", "two/a.png")):
        save(noise(30, 20, seed=seed), tmp_path / "pictures" / place)
    (tmp_path / "pictures" / "broken.png").write_bytes(b"no picture")
    return tmp_path / "pictures"


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def numbers(folder: Path) -> dict[str, Any]:
    return {
        f"{path.relative_to(folder)} {name}": array
        for path in sorted(folder.rglob("*.npz"))
        for name, array in np.load(path).items()
    }


@pytest.mark.parametrize(("flags", "words"), [({"target": 2}, ["--target", "2"]), ({"anatomy": True}, ["--anatomy"])])
def test_function_and_command_agree(
    command: Any, folder: Path, pictures: Path, tmp_path: Path, flags: Any, words: list[str]
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    found = vitkit.explain(folder, pictures, ours, **flags)
    said = command("explain", folder, pictures, "-o", theirs, *words)
    assert said.out == "".join(f"{line}\n" for line in found.lines()).replace(str(ours), str(theirs))
    assert said.code == 0
    written, other = content(ours), content(theirs)
    assert written.keys() == other.keys()
    assert {name for name in written if written[name] != other[name] and not name.endswith(".npz")} == set()
    first, second = numbers(ours), numbers(theirs)
    assert first.keys() == second.keys()
    assert all(
        np.array_equal(first[name], second[name], equal_nan=array.dtype.kind == "f") for name, array in first.items()
    )


def test_explanations_say_what_became_of_each_image(folder: Path, pictures: Path, tmp_path: Path) -> None:
    found = vitkit.explain(vitkit.load(folder), [pictures / "one", pictures / "broken.png"], tmp_path / "out")
    assert isinstance(found, vitkit.Explanations)
    assert (found.is_empty, list(found.unreadable)) == (False, [str(pictures / "broken.png")])
    (place,) = found.explained.values()
    assert (place / "maps.npz").is_file()
    assert repr(found) == f"<Explanations: 2 images (1 unreadable), gradient: {tmp_path / 'out' / 'index.html'}>"
    assert json.loads(json.dumps(found.to_dict()))["explained"] == {str(pictures / "one" / "a.png"): str(place)}
    assert "broken.png: not an image" in found._repr_html_()


def test_notes_are_told_and_kept(command: Any, pictures: Path, tmp_path: Path) -> None:
    bare, told = tmp_path / "bare.safetensors", list[str]()
    save_file(build(image_size=(16, 16), hidden_size=64, heads=1).state_dict(), bare)
    found = vitkit.explain(bare, pictures / "one", tmp_path / "ours", note=told.append)
    assert tuple(told) == found.notes
    said = command("explain", bare, pictures / "one", "-o", tmp_path / "theirs")
    assert said.err.splitlines() == [f"note: {line}" for line in told] != []


def test_nothing_to_explain_is_said(command: Any, folder: Path, pictures: Path, tmp_path: Path) -> None:
    found = vitkit.explain(folder, pictures / "broken.png", tmp_path / "ours")
    assert isinstance(found, vitkit.Explanations)
    assert (found.is_empty, found.page) == (True, None)
    said = command("explain", folder, pictures / "broken.png", "-o", tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()
    assert (said.code, said.out) == (1, "".join(f"{line}\n" for line in found.lines()))


def test_an_anatomy_has_the_numbers_of_its_figures(folder: Path, tmp_path: Path) -> None:
    found = vitkit.explain(folder, out=tmp_path / "out", anatomy=True)
    assert isinstance(found, vitkit.Anatomy)
    assert found.arrays["positions"].shape == (4, 4, 4, 4)
    assert json.loads(json.dumps(found.to_dict()))["figures"] == ["filters", "positions"]
    assert repr(found) == f"<Anatomy: filters, positions: {tmp_path / 'out' / 'index.html'}>"
