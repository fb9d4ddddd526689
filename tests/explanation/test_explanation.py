"""An explanation reads the pixels of a prediction, and lays its maps where the model saw them."""

import re
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from photos import save, smooth
from refusals import refused
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.data.decode import UnreadableImageError, decode
from vitkit.explanation import METHODS, explain_classes, find_class

CLASSES = ("rose", "tulip", "3", "daisy & <b>", "été", "top", "oak")
MAPS = [name for name in METHODS if name != "heads"]


def classifier(preprocess: dict[str, Any] | None = None, **fields: Any) -> Classifier:
    model = build(**fields)
    size = model.config.image_size
    return Classifier(model, CLASSES, Preprocess(**{"size": size, **(preprocess or {})}))


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    return save(smooth(60, 40), tmp_path / "photo.png")


def same(a: Image.Image, b: Image.Image) -> bool:
    """Whether two pictures have the same pixels, wherever they come from."""
    return (a.mode, a.size, a.tobytes()) == (b.mode, b.size, b.tobytes())


FITS = st.sampled_from(["crop", "pad", "squash", "squash_crop"])
SIDE = st.integers(20, 250)


@settings(max_examples=60)
@given(
    FITS, SIDE, SIDE, st.sampled_from([(32, 32), (24, 48), (48, 24)]), st.sampled_from([1.0, 0.9, 0.875]), st.booleans()
)
def test_the_box_is_where_each_pixel_of_the_input_comes_from(
    fit: Any, width: int, height: int, size: tuple[int, int], crop_pct: float, floor_crop: bool
) -> None:
    preprocess = Preprocess(
        size=size, fit=fit, crop_pct=crop_pct, floor_crop=floor_crop, interpolation="bilinear", mean=(0.0,) * 3
    )
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    picture = Image.fromarray(np.stack([x, y, np.full_like(x, 255)], axis=-1).astype(np.uint8))
    left, top, right, bottom = preprocess.box(width, height)
    wide, high = (right - left) / size[1], (bottom - top) / size[0]
    read = np.asarray(preprocess.resize(picture), dtype=float)
    x, y = np.meshgrid(left + (np.arange(size[1]) + 0.5) * wide, top + (np.arange(size[0]) + 0.5) * high)
    is_inside = (wide < x) & (x < width - wide) & (high < y) & (y < height - high)  # at the border is less to average
    is_inside &= read[..., 2] == 255  # neither padding nor its border
    is_inside[[0, 1, -2, -1]] = is_inside[:, [0, 1, -2, -1]] = False
    came_from = np.stack([x, y], axis=-1)[is_inside] - 0.5
    np.testing.assert_allclose(read[..., :2][is_inside], came_from, rtol=0, atol=0.75)


def watch(asked: Classifier, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The images (B, C, height, width) that the model is asked about from now on."""
    seen: list[torch.Tensor] = []
    inner = asked.probabilities
    monkeypatch.setattr(asked, "probabilities", lambda images: (seen.append(images.clone()), inner(images))[1])
    return seen


@pytest.mark.parametrize(("orientation", "size"), [(None, (60, 40)), (3, (400, 300)), (6, (400, 300))])
def test_the_pixels_are_those_of_a_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, orientation: int | None, size: tuple[int, int]
) -> None:
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    path = save(smooth(*size), tmp_path / "photo.jpg", exif=exif, quality=95)
    asked = classifier()
    seen = watch(asked, monkeypatch)
    found = asked.explain(path, "raw")
    assert torch.equal(seen[0][0], asked.read(path))
    assert same(found.photograph, decode(path)), "upright, in its own resolution"
    (prediction,) = asked.predict(path)
    assert (found.target, found.path) == (prediction.label, str(path))
    assert found.probability == pytest.approx(prediction.confidence, abs=1e-6)
    assert [name for name, _ in found.ranking] == [name for name, _ in prediction.ranking]
    path = save(smooth(60, 40), tmp_path / "photo.png", exif=exif)
    with Image.open(path) as picture:  # in memory, it is turned upright too
        assert same(asked.explain(picture, "raw").photograph, decode(path))


def test_the_box_of_a_photograph_that_prediction_decodes_smaller_is_in_its_own_pixels(tmp_path: Path) -> None:
    path = save(smooth(1603, 1201), tmp_path / "large.jpg")
    asked = classifier({"size": (12, 16)})
    assert decode(path, asked.preprocess.short_side).width < 800
    found = asked.explain(path, "raw")
    assert found.photograph.size == (1603, 1201)
    assert found.box == pytest.approx(asked.preprocess.box(1603, 1201), abs=8)


def test_a_picture_in_memory_is_read_as_a_file_of_it_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, grey = classifier(), smooth(40, 30).convert("L")
    pictures = [smooth(40, 30).convert(mode) for mode in ("RGB", "RGBA", "L", "P", "LA", "1", "CMYK", "YCbCr")]
    pictures += [grey.convert("I"), grey.convert("F"), Image.fromarray(np.asarray(grey).astype(np.uint16) * 50)]
    seen = watch(asked, monkeypatch)
    for i, picture in enumerate(pictures):
        found = asked.explain(picture, "raw")
        assert (found.path, found.photograph.size) == (None, (40, 30))
        if i < 2:
            assert same(found.photograph, smooth(40, 30))
            assert torch.equal(seen[i][0], torch.from_numpy(asked.preprocess(smooth(40, 30))))


def test_transparency_lands_on_white_in_memory_too(tmp_path: Path) -> None:
    clear = smooth(40, 30).convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(clear.size))
    palette = smooth(40, 30).quantize(8)
    palette.info["transparency"] = 0
    for picture, options in ((clear, {}), (palette, {"transparency": 0})):
        path = save(picture, tmp_path / "p.png", **options)
        assert same(classifier().explain(picture, "raw").photograph, decode(path))


def test_maps_are_the_methods_own_on_the_models_grid(photograph: Path) -> None:
    asked = classifier()
    found = asked.explain(photograph, "all", "daisy & <b>")
    assert list(found.maps) == MAPS
    for name, values in found.maps.items():
        assert (values.shape, values.dtype) == ((3, 4), np.float32)
        kind = {"target": 3} if METHODS[name].is_class_specific else {}
        expected = METHODS[name](asked.model, asked.read(photograph)[None], **kind)[0]
        np.testing.assert_allclose(values, expected.cpu().numpy(), atol=1e-6)
        alone = asked.explain(photograph, name, "daisy & <b>")
        np.testing.assert_allclose(alone.maps[name], values, atol=1e-6)
        assert alone.heads is None
    assert found.heads.shape == (3, 4, 3, 4)
    assert found.layers == (0, 1, 2)


def test_several_classes_at_once_are_explained_as_each_by_itself(photograph: Path) -> None:
    asked, targets = classifier(), ("oak", "rose", "oak")
    together = explain_classes(asked, photograph, targets, "all")
    assert not np.allclose(together[0].maps["gradient"], together[1].maps["gradient"])
    for target, found in zip(targets, together, strict=True):
        alone = asked.explain(photograph, "all", target)
        assert (found.target, found.probability) == (alone.target, alone.probability)
        assert found.maps.keys() == alone.maps.keys()
        for name, own in alone.maps.items():
            np.testing.assert_allclose(found.maps[name], own, atol=1e-6, rtol=1e-5)


def test_a_layer_can_be_named(photograph: Path) -> None:
    asked = classifier()
    every = asked.explain(photograph, "heads")
    for layer in (0, 1, -1):
        one = asked.explain(photograph, "heads", layer=layer)
        assert one.layers == (layer % 3,)
        np.testing.assert_allclose(one.heads[0], every.heads[layer], atol=1e-6)
        raw = asked.explain(photograph, "raw", layer=layer).maps["raw"]
        np.testing.assert_allclose(raw, one.heads[0].mean(axis=0), atol=1e-6)
    convolving = classifier(conv_layers=(1,)).explain(photograph, "heads")
    assert (convolving.layers, convolving.heads.shape) == ((0, 2), (2, 4, 3, 4)), "without heads to show"


def test_a_class_is_named_or_numbered() -> None:
    probabilities = np.array([0.1, 0.4, 0.1, 0.1, 0.1, 0.1, 0.1], dtype=np.float32)
    target: str | int
    for target, number in (("top", 1), ("rose", 0), ("été", 4), ("3", 2), (3, 3), ("0", 0), ("6", 6), (0, 0)):
        assert find_class(CLASSES, target, probabilities) == number, target
    for target in ("tulipp", "7", "-1", "", 7, -1, "²"):
        with refused("explanation.class-missing", "tulip" if target == "tulipp" else "0 to 6"):
            find_class(CLASSES, target, probabilities)


def test_what_cannot_be_explained_or_drawn_is_refused(photograph: Path, tmp_path: Path) -> None:
    headless = Classifier(build(num_classes=0), (), Preprocess(size=(12, 16)))
    asked = classifier()
    found = asked.explain(photograph, "raw")
    for ask, code in (
        (lambda: asked.explain(photograph, "lime"), "explanation.method-missing"),
        (lambda: asked.explain(photograph, "rollout", layer=0), "explanation.layer-unused"),
        (lambda: asked.explain(photograph, "heads", layer=3), "model.layer-missing"),
        (lambda: headless.explain(photograph), "explanation.head-missing"),
        (lambda: found.save(tmp_path / "out.jpg"), "text.suffix-wrong"),
        (lambda: found.overlay("rollout"), "explanation.map-missing"),
    ):
        with refused(code):
            ask()
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    with pytest.raises(UnreadableImageError, match="not an image"):
        asked.explain(tmp_path / "broken.jpg")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_folder_gets_everything(tmp_path: Path, photograph: Path) -> None:
    found = classifier(layers=2).explain(photograph, "all")
    assert found.save(tmp_path / "out") == tmp_path / "out"
    expected = {f"{method}.png" for method in MAPS}
    assert names(tmp_path / "out") == expected | {"heads", "heads.png", "methods.png", "maps.npz", "index.html"}
    assert names(tmp_path / "out" / "heads") == {f"layer-{layer}.jpg" for layer in found.layers}
    for method in MAPS:
        with Image.open(tmp_path / "out" / f"{method}.png") as picture:
            assert picture.size == (240, 160)
    with np.load(tmp_path / "out" / "maps.npz") as arrays:
        for method in MAPS:
            np.testing.assert_array_equal(arrays[method], found.maps[method])
        np.testing.assert_array_equal(arrays["heads"], found.heads)
        assert tuple(arrays["box"]) == found.box
        assert arrays["target"] == found.target
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert escape(found.target) in page
    assert not re.search(r'(src|href)="(?!data:|#)', page), "self-contained"
    for method in (*MAPS, "heads"):
        assert page.count(f'href="#{method}"') == page.count(f'<h2 id="{method}">') == 1


def test_one_method_gets_no_comparison_and_no_heads(tmp_path: Path, photograph: Path) -> None:
    asked, rest = classifier(layers=2), {"maps.npz", "index.html"}
    asked.explain(photograph, "rollout").save(tmp_path / "out")
    assert names(tmp_path / "out") == rest | {"rollout.png"}
    asked.explain(photograph, "heads").save(tmp_path / "heads")
    assert names(tmp_path / "heads") == rest | {"heads", "heads.png"}


@pytest.mark.usefixtures("drawn_pictures")
@pytest.mark.parametrize(
    ("method", "endings"), [("gradient", (".svg", ".npz", ".html", ".PNG")), ("heads", (".pdf",)), ("all", (".png",))]
)
def test_one_file_by_its_ending(tmp_path: Path, photograph: Path, method: str, endings: tuple[str, ...]) -> None:
    found = classifier(layers=2).explain(photograph, method)
    (tmp_path / "out").mkdir()
    for ending in endings:
        target = found.save(tmp_path / "out" / f"out{ending}")
        assert names(tmp_path / "out") == {f"out{ending}"}
        assert target.stat().st_size > 500
        target.unlink()
