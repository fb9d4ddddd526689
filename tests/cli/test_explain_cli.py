"""`vitkit explain`: a folder of pictures that an index leads to, and lines for what cannot be."""

from __future__ import annotations

import os
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from photos import fingerprint, noise, save
from tiny import VARIETY, build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess


def saved(path: Path, classes: tuple[str, ...] = tuple("abcdefg"), **fields: Any) -> Path:
    model = build(**{"image_size": (16, 16), **fields})
    Classifier(model, classes[: model.config.num_classes], Preprocess(size=model.config.image_size)).save(path)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path / "model")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for place in ("one/a b&c.png", "one/same.png", "two/same.png"):
        save(noise(30, 20, seed=len(place)), tmp_path / "pictures" / place)
    (tmp_path / "pictures" / "broken.png").write_bytes(b"no picture")
    return tmp_path / "pictures"


def links(page: Path) -> list[str]:
    return [unquote(unescape(link)) for link in re.findall(r'href="([^"]+)"', page.read_text(encoding="utf-8"))]


# --- Images -----------------------------------------------------------------------------------------


def test_every_image_has_a_page_that_the_index_leads_to(vitkit: Any, model: Path, pictures: Path) -> None:
    before, out = fingerprint(pictures), model.parent / "out"
    outcome = vitkit("explain", model, pictures, "-o", out)
    assert outcome.code == 0, outcome.err
    assert f"4 images (1 unreadable), gradient: {out / 'index.html'}" in outcome.out
    assert f"{pictures / 'broken.png'}: not an image" in outcome.out
    assert fingerprint(pictures) == before
    places = ["one/a b&c.png", "one/same.png", "two/same.png"]
    assert links(out / "index.html") == [f"images/{place}/index.html" for place in places]
    for place in places:
        assert {path.name for path in (out / "images" / place).iterdir()} == {"gradient.png", "maps.npz", "index.html"}
    assert "not an image" in (out / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("method", ["raw", "rollout", "gradient", "gradient-attention", "occlusion", "heads", "all"])
def test_each_method_is_drawn(vitkit: Any, model: Path, pictures: Path, method: str) -> None:
    out = model.parent / "out"
    assert vitkit("explain", model, pictures / "one" / "same.png", "-o", out, "--method", method).code == 0
    drawn = {path.name for path in (out / "images" / "same.png").iterdir()}
    assert f"{method}.png" in drawn or method == "all"
    assert ("methods.png" in drawn) == (method == "all")


def test_the_explained_class_can_be_named_or_numbered(vitkit: Any, model: Path, pictures: Path) -> None:
    maps = []
    for i, target in enumerate(("c", "2", "e")):
        out = model.parent / f"out{i}"
        assert vitkit("explain", model, pictures / "one" / "same.png", "-o", out, "--target", target).code == 0
        with np.load(out / "images" / "same.png" / "maps.npz") as arrays:
            maps.append((str(arrays["target"]), arrays["gradient"]))
    assert [name for name, _ in maps] == ["c", "c", "e"]
    np.testing.assert_array_equal(maps[0][1], maps[1][1])
    assert np.abs(maps[0][1] - maps[2][1]).max() > 0


def test_a_layer_can_be_named(vitkit: Any, model: Path, pictures: Path) -> None:
    out = model.parent / "out"
    image = pictures / "one" / "same.png"
    assert vitkit("explain", model, image, "-o", out, "--method", "heads", "--layer", "-2").code == 0
    with np.load(out / "images" / "same.png" / "maps.npz") as arrays:
        assert arrays["layers"].tolist() == [1]


def test_images_named_twice_are_explained_once(vitkit: Any, model: Path, pictures: Path) -> None:
    outcome = vitkit("explain", model, pictures / "one", f"{pictures}/o*/*.png", "-o", model.parent / "out")
    assert "2 images (0 unreadable)" in outcome.out


def test_a_name_that_is_not_utf8_is_explained(vitkit: Any, model: Path, pictures: Path) -> None:
    source = save(noise(30, 20), pictures / "odd" / "x.png").rename(pictures / "odd" / os.fsdecode(b"\xff.png"))
    out = model.parent / "out"
    assert vitkit("explain", model, source, "-o", out).code == 0
    assert (out / "images" / os.fsdecode(b"\xff.png") / "index.html").is_file()
    assert "%FF.png/index.html" in (out / "index.html").read_text(encoding="utf-8", errors="surrogateescape")


def test_what_is_there_is_kept_unless_forced(vitkit: Any, model: Path, pictures: Path) -> None:
    out = model.parent / "out"
    out.mkdir()
    arguments = ("explain", model, pictures / "one", "-o", out)
    assert vitkit(*arguments).code == 0, "an empty folder will do"
    before = fingerprint(out)
    outcome = vitkit(*arguments, "--method", "raw")
    assert (outcome.code, fingerprint(out)) == (2, before)
    assert "--force" in outcome.err
    assert vitkit(*arguments, "--method", "raw", "--force").code == 0
    assert (out / "images" / "same.png" / "raw.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("pictures",), "--out DIR"),
        (("-o", "out"), "no images to explain"),
        (("pictures", "-o", "pictures"), "lies in the source"),
        (("pictures", "-o", "pictures/out"), "lies in the source"),
        (("pictures", "-o", "taken.txt"), "is a file"),
        (("pictures/one/same.png", "-o", "pictures/one", "--force"), "next to the photographs"),
        (
            ("album/1.png", "-o", "album/maps"),
            "album/maps lies in album: nothing is written next to the photographs",
        ),
        (("album/images/3.png", "-o", "album", "--force"), "lies in album/images: nothing is written next"),
        (("nowhere.png", "-o", "out"), "no such file"),
        (("pictures", "-o", "out", "--target", "z"), "there is no class 'z'"),
        (("pictures", "-o", "out", "--layer", "1"), "uses all layers"),
        (("pictures", "-o", "out", "--method", "raw", "--layer", "3"), "no layer 3"),
        (("pictures", "-o", "out", "--anatomy", "--method", "raw"), "leave out --method"),
        (("pictures", "-o", "out", "--anatomy", "--target", "a"), "leave out --method, --style"),
    ],
)
def test_mistakes_end_in_a_line(
    vitkit: Any, model: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, complaint: str
) -> None:
    monkeypatch.chdir(model.parent)
    for name in ("1.png", "2.png", "images/3.png"):
        save(noise(), Path("album") / name)
    (pictures / "broken.png").unlink()
    Path("taken.txt").write_bytes(b"")
    before = fingerprint(model.parent)
    outcome = vitkit("explain", "model", *arguments)
    assert outcome.code == 2
    assert complaint in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert fingerprint(model.parent) == before


def test_pictures_cannot_land_in_a_folder_of_photographs_by_its_name(
    vitkit: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    save(noise(), Path("images/a.png"))
    outcome = vitkit("explain", "model", "images", "-o", ".", "--force")
    assert outcome.code == 2
    assert "lies in the source" in outcome.err


def test_a_model_without_a_head_is_refused_and_has_an_anatomy(vitkit: Any, tmp_path: Path, pictures: Path) -> None:
    headless = saved(tmp_path / "headless", num_classes=0)
    outcome = vitkit("explain", headless, pictures / "one", "-o", tmp_path / "out")
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
    assert "no head" in outcome.err
    assert vitkit("explain", headless, "--anatomy", "-o", tmp_path / "out").code == 0


def test_what_is_no_vision_transformer_is_refused(vitkit: Any, tmp_path: Path, pictures: Path) -> None:
    import torch
    from torchvision.models import resnet18

    torch.save(resnet18().state_dict(), tmp_path / "cnn.pth")
    (tmp_path / "exported.onnx").write_bytes(b"\x08\x08\x12\x07pytorch")
    for name in ("cnn.pth", "exported.onnx"):
        outcome = vitkit("explain", tmp_path / name, pictures, "-o", tmp_path / "out")
        assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
        assert name in outcome.err


# --- Anatomy ----------------------------------------------------------------------------------------

STILL = {"filters", "positions"}
MOVED = {"attention_distance", "attention_entropy", "token_norms", "layer_similarity"}


def figures(out: Path) -> set[str]:
    return {path.stem for path in out.glob("*.png")}


def test_anatomy_without_images_is_what_needs_none(vitkit: Any, model: Path) -> None:
    out = model.parent / "out"
    outcome = vitkit("explain", model, "--anatomy", "-o", out)
    assert outcome.code == 0
    assert "no SRC: filters and positions only" in outcome.out
    assert figures(out) == STILL
    assert "no SRC" in (out / "index.html").read_text(encoding="utf-8")
    with np.load(out / "anatomy.npz") as arrays:
        assert set(arrays) == STILL
        assert arrays["positions"].shape == (4, 4, 4, 4)


def test_anatomy_with_images_has_every_figure(vitkit: Any, model: Path, pictures: Path) -> None:
    save(noise(30, 20, seed=9), pictures / "one" / "fourth.png")
    out, before = model.parent / "out", fingerprint(pictures)
    outcome = vitkit("explain", model, pictures, "--anatomy", "-o", out)
    assert outcome.code == 0
    assert "4 images" in outcome.out
    assert "broken.png: not an image" in outcome.out
    assert "in the same row" in outcome.out
    assert figures(out) == STILL | MOVED
    page = (out / "index.html").read_text(encoding="utf-8")
    assert page.count("<img") == 6
    assert not re.search(r'(src|href)="(?!data:|#part-)', page)
    assert fingerprint(pictures) == before


def test_what_a_model_lacks_is_a_line_and_the_rest_is_drawn(vitkit: Any, tmp_path: Path, pictures: Path) -> None:
    model = saved(tmp_path / "model", **VARIETY["relative shared"])
    outcome = vitkit("explain", model, pictures, "--anatomy", "-o", tmp_path / "out")
    assert outcome.code == 0
    assert "no positions: the model has relative positions" in outcome.out
    assert "no layer_similarity: CKA compares layers over at least 4 images, not 3" in outcome.out
    assert figures(tmp_path / "out") == {"filters", "attention_distance", "attention_entropy", "token_norms"}


def test_an_anatomy_with_nothing_to_show_is_refused(vitkit: Any, tmp_path: Path) -> None:
    hybrid = saved(tmp_path / "model", stem=(1,), image_size=(32, 32), position="none", patch_size=1)
    outcome = vitkit("explain", hybrid, "--anatomy", "-o", tmp_path / "out")
    assert outcome.code == 2
    assert "feature map" in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_of_many_images_some_evenly_spread_are_read(
    vitkit: Any, model: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitkit.verbs.explain._MOST_IMAGES", 2)
    (pictures / "broken.png").unlink()
    outcome = vitkit("explain", model, pictures, "--anatomy", "-o", model.parent / "out")
    assert "2 images of 3, evenly spread" in outcome.out


def test_no_readable_image_for_an_anatomy_is_an_error(vitkit: Any, model: Path, pictures: Path) -> None:
    outcome = vitkit("explain", model, pictures / "broken.png", "--anatomy", "-o", model.parent / "out")
    assert outcome.code == 2
    assert "none of the 1 images can be read" in outcome.err
