"""Views of a picture: what they show, and what becomes of probabilities that are averaged over them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.v2.functional import five_crop

import vitkit as package
from refusals import refused
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess, Views
from vitkit.exporting import Pictures, export, load_exported

EXACT = package.Compute(backend="eager", precision="float32")


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def model() -> Classifier:
    return Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16), crop_pct=0.75), temperature=0.5)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven classes of three pictures each."""
    root = tmp_path_factory.mktemp("photographs")
    for i, name in enumerate("abcdefg"):
        (root / name).mkdir()
        for j in range(3):
            picture(30, 20, 10 * i + j).save(root / name / f"{j}.png")
    return root


@settings(max_examples=30)
@given(st.integers(12, 60), st.integers(12, 60), st.sampled_from(["crop", "squash_crop"]), st.floats(0.4, 1.0))
def test_crops_are_the_centre_and_torchvisions_corners(width: int, height: int, fit: Any, crop_pct: float) -> None:
    preprocess, image = Preprocess(size=(12, 16), fit=fit, crop_pct=crop_pct), picture(width, height)
    centre, *corners = preprocess.crops(image)
    full_h, full_w, *_ = preprocess._placement(width, height)
    resized = image.resize((full_w, full_h), Image.Resampling.BICUBIC)
    assert centre.tobytes() == preprocess.resize(image).tobytes()
    expected = five_crop(resized, [12, 16])[:4]
    assert [crop.tobytes() for crop in corners] == [crop.tobytes() for crop in expected]


def test_a_very_long_picture_is_cropped_without_resampling_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    preprocess, image = Preprocess(size=(12, 16), crop_pct=0.75), picture(160, 30)
    whole = preprocess.crops(image)
    monkeypatch.setattr("vitkit.data.preprocess.MAX_PIXELS", 100)
    for crop, part in zip(whole, preprocess.crops(image), strict=True):
        assert crop.size == part.size
        assert np.abs(np.asarray(crop, float) - np.asarray(part, float)).mean() < 12  # other pixels only at the edges


@pytest.mark.parametrize("names", ["flip", "crops", "flip,crops"])
def test_the_mean_is_that_of_each_view_alone(model: Classifier, names: str) -> None:
    image, views = picture(30, 20), Views.of(names)
    shown = views.pixels(image, model.preprocess)
    assert shown.shape == (views.count, 3, 12, 16)
    np.testing.assert_array_equal(shown[0], model.preprocess(image))
    each = np.stack([model.answer(view[None])[0] for view in shown])
    ((_, row),) = model.with_views(names).stream(image)
    np.testing.assert_allclose(row, each.mean(axis=0), atol=1e-6)
    assert np.abs(each - each[0]).max() > 1e-4  # the views differ, so that the test can fail


def test_a_symmetric_picture_is_predicted_as_without_its_mirror_image(model: Classifier) -> None:
    half = np.asarray(picture(18, 24))
    symmetric = Image.fromarray(np.concatenate([half, half[:, ::-1]], axis=1))
    plain = Image.new("RGB", (40, 30), (90, 140, 30))  # all of its views are the same
    for image, names in ((symmetric, "flip"), (plain, "flip,crops")):
        ((_, alone),), ((_, mean),) = model.stream(image), model.with_views(names).stream(image)
        np.testing.assert_allclose(mean, alone, rtol=1e-5, atol=1e-7)
    image = picture(36, 24)  # whose margins are even, so that the crop is symmetric, too
    both = [image, image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    (_, one), (_, mirrored) = model.with_views("flip").stream(both)
    np.testing.assert_allclose(one, mirrored, rtol=1e-5, atol=1e-7)


def test_many_pictures_come_in_order_whatever_the_backend(model: Classifier, photographs: Path, tmp_path: Path) -> None:
    files = sorted(map(str, photographs.glob("*/*.png")))
    averaging = model.with_views("flip,crops")
    alone = [next(averaging.stream(file)) for file in files]
    for classifier in (averaging, averaging.use("eager", "float32")):
        for (path, row), (other, expected) in zip(classifier.stream(files, batch_size=8), alone, strict=True):
            assert path == other
            np.testing.assert_allclose(row, expected, atol=1e-5)
    export(model, tmp_path / "model.xml", Pictures("some", tuple(files[:4])))
    exported = load_exported(tmp_path / "model.xml").with_views("flip,crops").use(precision="float32")
    for (_, row), (_, expected) in zip(exported.stream(files), alone, strict=True):
        np.testing.assert_allclose(row, expected, atol=1e-4)
    pixels = np.asarray(Image.open(files[0]))  # an exported file takes pictures in memory, too
    (expected,), (found,) = (package.predict(tmp_path / "model.xml", one) for one in (files[0], pixels))
    assert (found.label, found.confidence) == (expected.label, expected.confidence)


def test_names_and_models_without_such_views_are_refused(model: Classifier, photographs: Path) -> None:
    for names in ("", "flip,flip", "flip crops"):
        with refused("data.views-invalid"):
            model.with_views(names)
    padded = Classifier(model.model, model.classes, Preprocess(size=(12, 16), fit="pad"))
    assert padded.with_views("flip").views == Views(flip=True, crops=False)
    with refused("data.views-unsuited"):
        padded.with_views("crops")
    one_way = Classifier(model.model, model.classes, model.preprocess, provenance={"recipe": {"hflip": False}})
    assert one_way.with_views("crops").views is not None
    with refused("data.views-unsuited"):
        one_way.with_views("flip")
    for promise in ({"coverage": 0.9}, {"unknown": 0.1}):
        with refused("classifier.views-uncalibrated"):
            package.predict(model, photographs, tta="flip", promises=package.Promises(**promise), compute=EXACT)
    with refused("classifier.views-uncalibrated"):
        package.evaluate(model, photographs, promises=package.Promises(coverage=0.9), tta="flip")


def test_predict_averages_and_says_so(model: Classifier, photographs: Path) -> None:
    result = package.predict(model, photographs, tta="flip", compute=EXACT)
    assert "mean of 2 views (flip)" in result.computed
    expected = [max(row) for _, row in model.with_views("flip").stream(sorted(map(str, photographs.glob("*/*.png"))))]
    assert [row.confidence for row in result] == pytest.approx(expected, abs=1e-5)


def test_an_evaluation_reports_gain_and_cost(model: Classifier, photographs: Path, tmp_path: Path) -> None:
    plain = package.evaluate(model, photographs, compute=EXACT)
    result = package.evaluate(model, photographs, tta="flip,crops", out=tmp_path / "out", compute=EXACT)
    entry = result.figures["tta"]
    assert (entry["views"], entry["per_image"]) == ("flip,crops", 10)
    assert entry["plain"]["accuracy"] == plain.accuracy
    assert entry["gain"]["accuracy"] == pytest.approx(result.accuracy - plain.accuracy)
    assert entry["gain"]["gained"] - entry["gain"]["lost"] == round(21 * (result.accuracy - plain.accuracy))
    low, high = entry["gain"]["interval_95"]
    assert low <= entry["gain"]["accuracy"] <= high and low < high
    assert "tta" in [caveat.kind for caveat in result.headline.caveats]
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["tta"] == entry
    assert "10 views of each image (flip,crops)" in (tmp_path / "out" / "report.html").read_text()
