"""Files that take pixels, and the instructions for apps next to a file."""

import hashlib
import json
import math
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import openvino
import pytest
import torch
from PIL import Image

import vitkit
from photos import noise
from refusals import refused
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.exporting import Card, load_exported
from vitkit.exporting.card import instructions
from vitkit.inference.backends import graphs

SCALE = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
THRESHOLDS = (0.5,) * 7


def classifier(thresholds: tuple[float, ...] | None = None, **preprocess: Any) -> Classifier:
    model = build(layers=1)
    pixels = Preprocess(size=model.config.image_size, **(SCALE | preprocess))
    return Classifier(model, tuple("abcdefg"), pixels, temperature=1.7, thresholds=thresholds)


@pytest.mark.parametrize(
    ("suffix", "thresholds"),
    [
        (".onnx", None),
        (".xml", THRESHOLDS),
        pytest.param(".pte", None, marks=pytest.mark.accept),
        *([(".tflite", None)] if find_spec("litert_torch") else []),
    ],
)
def test_a_file_that_takes_pixels_predicts_as_the_model(
    suffix: str, thresholds: tuple[float, ...] | None, tmp_path: Path
) -> None:
    ours, path = classifier(thresholds, fit="pad"), tmp_path / f"a{suffix}"  # whose border has the mean colour
    vitkit.export(ours, out=path, with_preprocess=True)
    theirs = load_exported(path)
    assert theirs.runner.takes_pixels
    assert theirs.preprocess == ours.preprocess
    noise(50, 40).save(photo := str(tmp_path / "a.png"))
    found, expected = (vitkit.predict(model, photo).rows()[0]["confidence"] for model in (theirs, ours))
    assert found == pytest.approx(expected, abs=1e-5)
    if suffix not in (".onnx", ".xml"):  # instructions for apps lie beside it
        guide = json.loads(path.with_name(f"a{suffix}.json").read_text(encoding="utf-8"))
        assert guide["model"] == {"file": f"a{suffix}", "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        assert (guide["input"]["name"], guide["output"]["name"]) == ("pixels", "probabilities")
        return
    pictures = [noise(*ours.preprocess.size[::-1]), noise(*ours.preprocess.size[::-1]).rotate(180)]
    pixels = np.stack([np.asarray(picture) for picture in pictures])
    if suffix == ".onnx":  # the runtime alone
        (alone,) = onnxruntime.InferenceSession(path).run(["probabilities"], {"pixels": pixels})
    else:
        exact = {"INFERENCE_PRECISION_HINT": "f32"}  # OpenVINO computes in bfloat16 where the processor can
        alone = openvino.compile_model(path, "CPU", exact)({"pixels": pixels})["probabilities"]
    prepared = torch.from_numpy(np.stack([ours.preprocess(picture) for picture in pictures]))
    assert alone == pytest.approx(ours.probabilities(prepared).numpy(), abs=1e-5)


@pytest.mark.parametrize(
    ("name", "wrong", "code"),
    [
        ("std", (0.225, 0.224, 0.229), "exporting.logits-differ"),
        ("temperature", 1.0, "exporting.probabilities-differ"),
    ],
)
def test_a_wrong_normalisation_in_the_file_is_refused(
    name: str, wrong: Any, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = graphs._FromPixels.__init__

    def other(self: Any, module: Any, pixels: Any) -> None:
        plain(self, module, replace(pixels, **{name: wrong}))

    monkeypatch.setattr(graphs._FromPixels, "__init__", other)
    with refused(code):
        vitkit.export(classifier(), out=tmp_path / "a.xml", with_preprocess=True)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_or_would_write_over_a_file_of_the_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any]
    for options in ({"out": "a.html"}, {"out": "a.coreml"}, {"out": "a.onnx", "precision": "int8"}):
        with refused("verbs.option-conflict"):
            vitkit.export(classifier(), with_preprocess=True, **options)
    with refused("exporting.precision-unsupported"):
        vitkit.export(classifier(), out="a.tensorrt", precision="float16")
    (tmp_path / "a.pte.json").write_text("mine")
    for force in (False, True):
        with refused("exporting.file-exists", "a.pte.json"):
            vitkit.export(classifier(), out="a.pte", force=force)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("size", [(50, 40), (33, 71), (300, 31)])
@pytest.mark.parametrize(
    ("fit", "floor_crop"), [("crop", False), ("crop", True), ("squash_crop", True), ("squash", False), ("pad", False)]
)
def test_an_app_that_follows_the_instructions_prepares_the_same_values(
    fit: Any, size: tuple[int, int], floor_crop: bool
) -> None:
    """Written from the sentences alone, without a look at how vitkit does it."""
    ours = classifier(fit=fit, interpolation="bilinear", floor_crop=floor_crop)
    picture = noise(*size)
    guide = json.loads(instructions(Card.from_classifier(ours, "float32")))
    _decode, resize, *rest = guide["steps"]
    height, width = map(int, re.search(r"(\d+)x(\d+) pixels", resize).groups())  # type: ignore[union-attr]
    if "covers" in resize or "fits" in resize:
        larger, rounded = (max, int) if "covers" in resize else (min, round)
        scale = larger(height / picture.height, width / picture.width)
        height, width = (max(1, rounded(side * scale + 1e-9)) for side in (picture.height, picture.width))
    assert "bilinear" in resize
    resized = picture.resize((width, height), Image.Resampling.BILINEAR)
    _, _, h, w = guide["input"]["shape"]
    if rest[0].startswith("Cut out"):
        left, top = (width - w) / 2, (height - h) / 2
        left, top = (math.floor(side) if "rounded down" in rest[0] else round(side) for side in (left, top))
        resized = resized.crop((left, top, left + w, top + h))
    if rest[0].startswith("Centre it"):
        canvas = Image.new("RGB", (w, h), tuple(map(int, re.findall(r"\d+", rest[0].partition("colour")[2]))))
        canvas.paste(resized, ((w - width) // 2, (h - height) // 2))
        resized = canvas
    mean, std = (np.array(guide["preprocess"][name]) for name in ("mean", "std"))
    values = ((np.asarray(resized) / 255 - mean) / std).transpose(2, 0, 1)
    assert values == pytest.approx(ours.preprocess(picture), abs=1e-5)


def test_the_instructions_say_what_to_do_with_the_answer() -> None:
    guide = json.loads(instructions(Card.from_classifier(classifier(), "float32")))
    pixels = {"dtype": "float32", "layout": "NCHW", "channels": "RGB"}
    assert guide["input"] == {"name": "images", "shape": [1, 3, 12, 16], **pixels}
    assert guide["output"] == {"name": "logits", "activation": "softmax", "temperature": 1.7}
    taking = json.loads(instructions(Card.from_classifier(classifier((0.3,) * 7), "float32"), takes_pixels=True))
    assert taking["input"]["shape"] == [1, 12, 16, 3]
    assert taking["output"] == {"name": "probabilities", "thresholds": [0.3] * 7}
    assert not any("mean" in step or "Divide" in step for step in taking["steps"])
