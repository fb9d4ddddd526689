"""`vitkit.embed`: what `vitkit embed` does, from Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitkit as package
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import VitkitError
from vitkit.weights import load


@pytest.fixture
def model(tmp_path: Path) -> Path:
    classifier = Classifier(build(image_size=(16, 16)), tuple("abcdefg"), Preprocess(size=(16, 16)))
    classifier.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def photos(data: Path, tmp_path: Path) -> Path:
    """Photographs, one of them with a name that needs quotes, and a file that is none."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, i in (("a.png", 1), ("=b, c.png", 2), ("two\nlines.png", 3)):
        (folder / name).write_bytes((data / "red" / f"img{i}.png").read_bytes())
    (folder / "broken.png").write_text("not a picture")
    return folder


@pytest.mark.parametrize("what", ["head", "patches"])
def test_function_and_command_write_the_same_arrays(
    vitkit: Any, model: Path, photos: Path, tmp_path: Path, what: Any
) -> None:
    own, other = tmp_path / "own.npz", tmp_path / "other.npz"
    found = package.embed(model, photos, out=own, what=what)
    outcome = vitkit("embed", model, photos, "--what", what, "-o", other)
    assert outcome.out == f"{found.lines()[0].removesuffix(str(own))}{other}\n"
    with np.load(own) as first, np.load(other) as second:
        assert first.files == second.files
        assert all(np.array_equal(first[name], second[name]) for name in first.files)
        assert np.array_equal(first["features"], found.features)
        assert tuple(first["paths"]) == found.paths
    assert len(found) == 3
    assert found.errors == {str(photos / "broken.png"): "not an image"}


def test_function_and_command_find_the_same_images(vitkit: Any, model: Path, photos: Path) -> None:
    found = package.embed(load(model), [photos], near=photos / "a.png", top=3)
    outcome = vitkit("embed", model, photos, "--near", photos / "a.png", "--top", 3)
    assert outcome.out == "".join(f"{line}\n" for line in found.lines())
    assert found.nearest[0] == (str(photos / "a.png"), pytest.approx(1, abs=1e-6))
    unit = found.features / np.linalg.norm(found.features, axis=1, keepdims=True)
    assert sorted(own for _, own in found.nearest) == pytest.approx(
        sorted(unit @ unit[found.paths.index(str(photos / "a.png"))])
    )


def test_embeddings_are_shown_in_a_line_and_in_a_notebook(model: Path, photos: Path) -> None:
    found = package.embed(model, photos, near=photos / "a.png")
    assert repr(found) == "<Embeddings: 4 images (1 unreadable), eager, float32: 3x32 features>"
    assert found._repr_html_().count("<tr>") == 4
    assert package.embed(model, photos / "a.png").lines() == []
    assert np.array_equal(json.loads(json.dumps(found.to_dict()))["features"], found.features)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"what": "tokens"}, "--what 'tokens' is none of head, class, mean, patches"),
        ({"top": 0, "near": "photos/a.png"}, "--top must be at least 1"),
        ({"batch_size": 0}, "--batch-size must be at least 1"),
        ({"out": "photos/f.npz"}, "next to the photographs"),
    ],
)
def test_what_cannot_be_is_refused(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(VitkitError, match=told):
        package.embed(model, "photos", **values)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "photos"]
