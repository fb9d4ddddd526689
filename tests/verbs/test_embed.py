"""`vitkit.embed`: what `vitkit embed` does, from Python."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitkit as package
from photos import fingerprint, noise, save
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.weights import load


@pytest.fixture
def model(tmp_path: Path) -> Path:
    classifier = Classifier(build(image_size=(16, 16)), tuple("abcdefg"), Preprocess(size=(16, 16)))
    classifier.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for i, name in enumerate(("0.png", "1, =b.png", "2.png", "3.png", "4\nlines.png")):
        save(noise(30, 20, seed=i), tmp_path / "pictures" / name)
    (tmp_path / "pictures" / "broken.png").write_bytes(b"no picture")
    return tmp_path / "pictures"


def test_function_and_command_agree(vitkit: Any, model: Path, pictures: Path, tmp_path: Path) -> None:
    own, other = tmp_path / "own.npz", tmp_path / "other.npz"
    found = package.embed(model, pictures, out=own, what="patches")
    outcome = vitkit("embed", model, pictures, "--what", "patches", "-o", other)
    assert outcome.out == f"{found.lines()[0].removesuffix(str(own))}{other}\n"
    with np.load(own) as first, np.load(other) as second:
        assert first.files == second.files
        assert all(np.array_equal(first[name], second[name]) for name in first.files)
        assert np.array_equal(first["features"], found.features)
        assert tuple(first["paths"]) == found.paths
    assert len(found) == 5
    assert found.errors == {str(pictures / "broken.png"): "not an image"}
    found = package.embed(load(model), [pictures], near=pictures / "0.png", top=3)
    outcome = vitkit("embed", model, pictures, "--near", pictures / "0.png", "--top", 3)
    assert outcome.out == "".join(f"{line}\n" for line in found.lines())
    assert found.nearest[0] == (str(pictures / "0.png"), pytest.approx(1, abs=1e-6))
    unit = found.features / np.linalg.norm(found.features, axis=1, keepdims=True)
    cosines = unit @ unit[found.paths.index(str(pictures / "0.png"))]
    assert sorted(own for _, own in found.nearest) == pytest.approx(sorted(cosines)[-3:])
    assert repr(found) == "<Embeddings: 6 images (1 unreadable), eager, float32: 5x32 features>"
    assert package.embed(model, pictures / "0.png").lines() == []
    assert np.array_equal(json.loads(json.dumps(found.to_dict()))["features"], found.features)


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
    assert [Path(path).name for path in arrays["paths"]] == sorted(path.name for path in pictures.glob("[0-9]*"))
    assert Path(arrays["unreadable"][0]).name == "broken.png"
    assert len(arrays["errors"]) == 1
    classifier = load(model)
    batch = torch.stack([classifier.read(path) for path in arrays["paths"]])
    with torch.no_grad():
        tokens = classifier.model.forward_features(batch)
    expected = {"head": tokens[:, 0], "class": tokens[:, 0], "mean": tokens[:, 1:].mean(1), "patches": tokens[:, 1:]}
    np.testing.assert_allclose(arrays["features"], expected[what].numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ("", "cli.option-missing", "--out FILE.npz"),
        ("-o f.csv", "verbs.out-suffix", ".npz"),
        ("-o pictures/f.npz", "verbs.out-in-source", "pictures"),
        ("--near nowhere.png", "verbs.file-missing", "--near nowhere.png"),
        ("--near pictures/broken.png", "verbs.images-unreadable", "--near pictures/broken.png"),
        ("--near pictures/0.png --what patches", "verbs.option-conflict", "--near"),
    ],
)
def test_mistakes_end_in_a_line(
    vitkit: Any, model: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, code: str, named: str
) -> None:
    monkeypatch.chdir(model.parent)
    vitkit("embed", "model", "pictures", *arguments.split()).refused(code, named)


def test_a_model_without_a_class_token_says_so(tmp_path: Path, pictures: Path, vitkit: Any) -> None:
    source = Classifier(build(image_size=(16, 16), pool="gap"), tuple("abcdefg"), Preprocess(size=(16, 16)))
    source.save(tmp_path / "gap")
    outcome = vitkit("embed", tmp_path / "gap", pictures, "--what", "class", "-o", tmp_path / "f.npz")
    outcome.refused("model.tokens-missing")
