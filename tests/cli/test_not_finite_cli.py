"""What the commands do with numbers that are not finite."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import photos
import runs
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import NOT_FINITE
from vitkit.exporting import card as seal

HUGE = 3e38  # a float32 number whose sums are none


def classifier(huge: str | None, classes: tuple[str, ...] = ("blue", "green", "red")) -> Classifier:
    """A tiny one, with a tensor of such numbers."""
    model = build(num_classes=len(classes))
    if huge is not None:
        with torch.no_grad():
            model.get_parameter(huge).fill_(HUGE)
    return Classifier(model, classes, Preprocess(size=(12, 16)))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    return photos.save(photos.noise(16, 12), tmp_path / "one.png")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    classifier("head.weight").save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_predict_writes_a_row_with_the_reason(vitkit: Any, model: Path, picture: Path, suffix: str) -> None:
    out = picture.with_name(f"out.{suffix}")
    assert vitkit("predict", model, picture, "-o", out, "--reject", 0.5, "--top", 2).code == 1  # every row failed
    text = out.read_text(encoding="utf-8")
    row = next(csv.DictReader(io.StringIO(text))) if suffix == "csv" else json.loads(text)
    assert (row["path"], row["label"] or None, row["confidence"] or None) == (str(picture), None, None)
    assert row["error"] == NOT_FINITE
    assert "nan" not in text.casefold().replace("nan or", "")


def test_eval_explain_and_embed_say_it(vitkit: Any, model: Path, tmp_path: Path, picture: Path) -> None:
    data = runs.photos(tmp_path / "photos")
    outcome = vitkit("eval", model, data, "--json")
    assert outcome.code == 2 and outcome.out == "" and "not finite" in outcome.err
    outcome = vitkit("explain", model, picture, "-o", tmp_path / "explained")
    assert outcome.code == 1 and "(1 unreadable)" in outcome.out
    classifier("norm.weight").save(tmp_path / "spoilt")
    outcome = vitkit("embed", tmp_path / "spoilt", picture, "-o", tmp_path / "features.npz")
    assert outcome.code == 2 and NOT_FINITE in outcome.err


def test_an_exported_file_with_a_spoilt_weight(vitkit: Any, tmp_path: Path, picture: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    classifier(None).save(tmp_path / "model")
    file = tmp_path / "model.onnx"
    assert vitkit("export", tmp_path / "model", "-o", file).code == 0
    stored = onnx.load(file)
    for weight in stored.graph.initializer:
        values = onnx.numpy_helper.to_array(weight)
        if values.dtype == np.float32 and values.size > 1:
            weight.CopyFrom(onnx.numpy_helper.from_array(np.full_like(values, np.nan), weight.name))
    file.write_bytes(seal.sealed(stored.SerializeToString()))
    outcome = vitkit("predict", file, picture)
    assert outcome.code == 1 and NOT_FINITE in outcome.out
