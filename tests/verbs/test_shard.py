"""`--shard i/n`: an ordinary output for a part of the images, which together are those of one command."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import photos
import vitkit as package
from refusals import refused
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.verbs.inputs import select_shard

EXACT = package.Compute(backend="eager", precision="float32")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    classifier = Classifier(build(image_size=(16, 16), num_classes=2), ("blue", "red"), Preprocess(size=(16, 16)))
    classifier.save("model")
    for i in range(10):
        photos.save(photos.noise(20, 24, seed=i), tmp_path / "photos" / ("red", "blue")[i % 2] / f"{i}.png")
    (tmp_path / "photos" / "red" / "broken.png").write_text("no picture")
    return tmp_path


@given(st.integers(1, 50), st.data())
def test_parts_are_all_items_in_their_order(images: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, images))
    parts = [select_shard(range(images), f"{number}/{count}") for number in range(1, count + 1)]
    assert [item for part in parts for item in part] == list(range(images))
    assert {len(part) for part in parts} <= {images // count, images // count + 1}
    for text in ("0/3", f"{count + 1}/{count}", "1/0", "1", "1/2\n"):
        with refused("verbs.option-invalid", "--shard"):
            select_shard(range(images), text)


def test_the_rows_of_all_parts_are_those_of_one_command(here: Path) -> None:
    whole = list(package.predict("model", "photos", out="rows.csv", top=2, compute=EXACT))
    rows = []
    for number in (1, 2, 3):
        name = f"rows-{number}.csv"
        rows += list(package.predict("model", "photos", out=name, top=2, shard=f"{number}/3", compute=EXACT))
    assert [row[:2] for row in rows] == [row[:2] for row in whole]
    confidences = [[row.confidence for row in each if row.error is None] for each in (rows, whole)]
    assert confidences[0] == pytest.approx(confidences[1], abs=2e-6)


def test_a_part_is_resumed_and_kept_like_any_file_and_none_is_empty(vitkit: Any, here: Path) -> None:
    flags = ("predict", "model", "photos", "--shard", "2/2", "-o", "rows.csv")
    assert vitkit(*flags).code == 1  # one is no picture
    lines = Path("rows.csv").read_text().splitlines(keepends=True)
    assert len(lines) == 7
    vitkit(*flags).refused("verbs.out-exists", "rows.csv")
    Path("rows.csv").rename("rows.csv.partial")
    Path("rows.csv.partial").write_text("".join(lines[:3]))
    assert vitkit(*flags, "--resume").code == 1 and Path("rows.csv").read_text().splitlines(keepends=True) == lines
    for command in (("predict", "model", "photos"), ("embed", "model", "photos", "-o", "x.npz")):
        vitkit(*command, "--shard", "12/12").refused("verbs.option-invalid", "--shard 12/12", "11 images")
    assert vitkit("predict", "model", "photos/red/broken.png", "--shard", "1/1").code == 1  # as in a part of many


def test_features_of_all_parts_are_those_of_one_command(here: Path) -> None:
    whole = package.embed("model", "photos")
    parts = [package.embed("model", "photos", out=f"{i}.npz", shard=f"{i}/2") for i in (1, 2)]
    assert tuple(path for part in parts for path in part.paths) == whole.paths
    joined = np.concatenate([np.load(f"{i}.npz")["features"] for i in (1, 2)])
    np.testing.assert_allclose(joined, whole.features, rtol=1e-5, atol=1e-6)  # batches of other sizes round otherwise
    with refused("verbs.option-conflict", "near"):
        package.embed("model", "photos", shard="1/2", near="photos/red/0.png")
