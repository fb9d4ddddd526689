"""`vitkit.explain`, beside `vitkit explain`."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

import vitkit
from cli.conftest import vitkit as command
from photos import fingerprint, noise, save
from tiny import VARIETY, build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess

__all__ = ["command"]


def saved(path: Path, classes: tuple[str, ...] = tuple("abcdefg"), **fields: Any) -> Path:
    model = build(**{"image_size": (16, 16), **fields})
    Classifier(model, classes[: model.config.num_classes], Preprocess(size=model.config.image_size)).save(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("explain") / "model")


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    for place in ("one/a b&c.png", "one/same.png", "two/same.png"):
        save(noise(30, 20, seed=len(place)), tmp_path / "pictures" / place)
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


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path / "model")


def test_function_and_command_agree_and_every_image_has_a_page(
    command: Any, folder: Path, photographs: Path, tmp_path: Path
) -> None:
    before, ours, theirs = fingerprint(photographs), tmp_path / "ours", tmp_path / "theirs"
    found = vitkit.explain(folder, photographs, ours, target=2)
    said = command("explain", folder, photographs, "-o", theirs, "--target", "2")
    assert said.out == "".join(f"{line}\n" for line in found.lines()).replace(str(ours), str(theirs))
    assert said.code == 0 and f"{photographs / 'broken.png'}: not an image" in said.out
    assert fingerprint(photographs) == before
    written, other = content(ours), content(theirs)
    assert written.keys() == other.keys()
    assert {name for name in written if written[name] != other[name] and not name.endswith(".npz")} == set()
    first, second = numbers(ours), numbers(theirs)
    assert first.keys() == second.keys()
    assert all(
        np.array_equal(first[name], second[name], equal_nan=array.dtype.kind == "f") for name, array in first.items()
    )
    assert isinstance(found, vitkit.Explanations)
    assert (found.is_empty, list(found.unreadable)) == (False, [str(photographs / "broken.png")])
    assert repr(found) == f"<Explanations: 4 images (1 unreadable), gradient: {ours / 'index.html'}>"
    assert json.loads(json.dumps(found.to_dict()))["explained"].keys() == found.explained.keys()
    places = ["one/a b&c.png", "one/same.png", "two/same.png"]
    assert list(found.explained.values()) == [ours / "images" / place for place in places]
    page = (ours / "index.html").read_text(encoding="utf-8")
    links = [unquote(unescape(link)) for link in re.findall(r'href="([^"]+)"', page)]
    assert links == [f"images/{place}/index.html" for place in places]
    for place in places:
        assert {path.name for path in (ours / "images" / place).iterdir()} == {"gradient.png", "maps.npz", "index.html"}


def test_where_nothing_can_be_read_nothing_is_written(command: Any, model: Path, photographs: Path) -> None:
    said = command("explain", model, photographs / "broken.png", "-o", model.parent / "out")
    assert said.code == 1 and not (model.parent / "out").exists()


def test_the_explained_class_can_be_named_or_numbered(command: Any, model: Path, photographs: Path) -> None:
    maps = []
    for target in ("c", "2", "e"):
        out = model.parent / target
        assert command("explain", model, photographs / "one" / "same.png", "-o", out, "--target", target).code == 0
        with np.load(out / "images" / "same.png" / "maps.npz") as arrays:
            maps.append((str(arrays["target"]), arrays["gradient"]))
    assert [name for name, _ in maps] == ["c", "c", "e"]
    np.testing.assert_array_equal(maps[0][1], maps[1][1])
    assert np.abs(maps[0][1] - maps[2][1]).max() > 0


def test_what_is_there_is_kept_unless_forced(command: Any, model: Path, photographs: Path) -> None:
    out = model.parent / "out"
    out.mkdir()
    arguments = ("explain", model, photographs / "one", "-o", out)
    assert command(*arguments).code == 0, "an empty folder will do"
    before = fingerprint(out)
    command(*arguments, "--method", "raw").refused("verbs.out-not-empty", "--force")
    assert fingerprint(out) == before
    assert command(*arguments, "--method", "raw", "--force").code == 0
    assert (out / "images" / "same.png" / "raw.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ("pictures", "verbs.out-missing", "--out DIR"),
        ("pictures -o pictures/out", "verbs.out-in-source", "pictures/out"),
        ("album/1.png -o album/maps", "verbs.out-in-source", "album/maps lies in album"),
        ("pictures -o out --target z", "explanation.class-missing", "'z'"),
        ("pictures -o out --layer 1", "explanation.layer-unused", "--layer"),
        ("pictures -o out --anatomy --method raw", "cli.option-conflict", "--method"),
    ],
)
def test_mistakes_end_in_a_line(
    command: Any, model: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, code: str, named: str
) -> None:
    monkeypatch.chdir(model.parent)
    for name in ("1.png", "2.png"):
        save(noise(), Path("album") / name)
    (photographs / "broken.png").unlink()
    before = fingerprint(model.parent)
    command("explain", "model", *arguments.split()).refused(code, named)
    assert fingerprint(model.parent) == before


STILL = {"filters", "positions"}
MOVED = {"attention_distance", "token_norms"}


def drawn_in(out: Path) -> set[str]:
    return {path.stem for path in out.glob("*.png")}


def test_anatomy_without_images_is_what_needs_none(model: Path) -> None:
    out = model.parent / "out"
    found = vitkit.anatomy(model, out=out)
    assert any("no SRC: filters and positions only" in line for line in found.lines())
    assert json.loads(json.dumps(found.to_dict()))["figures"] == ["filters", "positions"]
    assert drawn_in(out) == STILL
    with np.load(out / "anatomy.npz") as arrays:
        assert set(arrays) == STILL
        assert arrays["positions"].shape == (4, 4, 4, 4)


def test_anatomy_with_images_has_every_figure_of_some_of_many(
    command: Any, model: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(2):
        save(noise(30, 20, seed=9 + i), photographs / "one" / f"more{i}.png")
    (photographs / "broken.png").unlink()
    out, before = model.parent / "out", fingerprint(photographs)
    monkeypatch.setattr("vitkit.verbs.anatomy._MAX_IMAGES", 4)
    outcome = command("explain", model, photographs, "--anatomy", "-o", out)
    assert outcome.code == 0
    assert "4 images of 5, evenly spread" in outcome.out
    assert drawn_in(out) == STILL | MOVED
    assert (out / "index.html").read_text(encoding="utf-8").count("<img") == 4
    assert fingerprint(photographs) == before


def test_what_a_model_lacks_is_a_line_and_the_rest_is_drawn(command: Any, tmp_path: Path, photographs: Path) -> None:
    model = saved(tmp_path / "model", **VARIETY["relative shared"], num_classes=0)
    command("explain", model, photographs / "one", "-o", tmp_path / "out").refused("explanation.head-missing")
    outcome = command("explain", model, photographs, "--anatomy", "-o", tmp_path / "out")
    assert outcome.code == 0
    assert "no positions: the model has relative positions" in outcome.out
    assert "broken.png: not an image" in outcome.out
    assert drawn_in(tmp_path / "out") == {"filters", "attention_distance", "token_norms"}


def test_an_anatomy_with_nothing_to_show_is_refused(command: Any, model: Path, photographs: Path) -> None:
    out = model.parent / "out"
    hybrid = saved(model.parent / "hybrid", stem=(1,), image_size=(32, 32), position="none", patch_size=1)
    command("explain", hybrid, "--anatomy", "-o", out).refused("verbs.figures-missing")
    outcome = command("explain", model, photographs / "broken.png", "--anatomy", "-o", out)
    outcome.refused("verbs.images-unreadable")
    assert not out.exists()
