"""`vitkit embed`: features of images and their nearest neighbours, from the pixels that predictions are made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from photos import fingerprint, noise, save
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.weights import load


@pytest.fixture
def model(tmp_path: Path) -> Path:
    source = Classifier(build(image_size=(16, 16)), tuple("abcdefg"), Preprocess(size=(16, 16)))
    source.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for i in range(5):
        save(noise(30, 20, seed=i), tmp_path / "pictures" / f"{i}.png")
    (tmp_path / "pictures" / "broken.png").write_bytes(b"no picture")
    return tmp_path / "pictures"


@pytest.mark.parametrize(
    ("what", "shape"), [("head", (5, 32)), ("class", (5, 32)), ("mean", (5, 32)), ("patches", (5, 16, 32))]
)
def test_features_are_the_models_tokens(vitkit: Any, model: Path, pictures: Path, what: Any, shape: Any) -> None:
    before = fingerprint(pictures)
    outcome = vitkit("embed", model, pictures, "--what", what, "-o", model.parent / "f.npz", "--batch-size", 2)
    assert outcome.code == 0
    assert "6 images (1 unreadable), eager, float32" in outcome.out
    assert fingerprint(pictures) == before
    with np.load(model.parent / "f.npz") as saved:
        arrays = dict(saved)
    assert arrays["features"].shape == shape
    assert arrays["features"].dtype == np.float32
    assert [Path(path).name for path in arrays["paths"]] == [f"{i}.png" for i in range(5)]
    assert Path(arrays["unreadable"][0]).name == "broken.png"
    assert len(arrays["errors"]) == 1
    classifier = load(model)
    batch = torch.stack([classifier.read(path) for path in arrays["paths"]])
    with torch.no_grad():
        tokens = classifier.model.forward_features(batch)
    expected = {"head": tokens[:, 0], "class": tokens[:, 0], "mean": tokens[:, 1:].mean(1), "patches": tokens[:, 1:]}
    np.testing.assert_allclose(arrays["features"], expected[what].numpy(), atol=1e-5)


def test_the_heads_features_give_the_predictions(model: Path, pictures: Path) -> None:
    classifier = load(model)
    images = torch.stack([classifier.read(pictures / f"{i}.png") for i in range(5)])
    features = classifier.features(images)
    with torch.inference_mode():
        assert torch.allclose(classifier.model.head(features), classifier.logits(images), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "--out FILE.npz"),
        (("-o", "f.csv"), "must end in .npz"),
        (("-o", "nowhere/f.npz"), "there is no folder"),
        (("-o", "taken.npz"), "exists"),
        (("--near", "nowhere.png"), "no such file"),
        (("--near", "pictures/broken.png"), "--near pictures/broken.png"),
        (("--near", "pictures/0.png", "--what", "patches"), "not patches"),
    ],
)
def test_mistakes_end_in_a_line(
    vitkit: Any, model: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, complaint: str
) -> None:
    monkeypatch.chdir(model.parent)
    Path("taken.npz").write_bytes(b"")
    outcome = vitkit("embed", "model", "pictures", *arguments)
    assert outcome.code == 2
    assert complaint in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_no_readable_image_is_an_error(vitkit: Any, model: Path, pictures: Path) -> None:
    outcome = vitkit("embed", model, pictures / "broken.png", "-o", model.parent / "f.npz")
    assert outcome.code == 2
    assert "none of the 1 images can be read" in outcome.err
    assert not (model.parent / "f.npz").exists()


def test_a_model_without_a_class_token_says_so(tmp_path: Path, pictures: Path, vitkit: Any) -> None:
    source = Classifier(build(image_size=(16, 16), pool="gap"), tuple("abcdefg"), Preprocess(size=(16, 16)))
    source.save(tmp_path / "gap")
    outcome = vitkit("embed", tmp_path / "gap", pictures, "--what", "class", "-o", tmp_path / "f.npz")
    assert outcome.code == 2
    assert "no class token" in outcome.err
