"""What a notebook shows of a result: one line, a few bars, or the pictures."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from vitkit import Classifier, Prediction, Preprocess, VisionTransformer


@pytest.fixture
def classifier() -> Classifier:
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}
    return Classifier(VisionTransformer(**sizes), ("<b>", "b", "c"), Preprocess(size=32))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8)).save(tmp_path / "<i>.png")
    return tmp_path / "<i>.png"


class _Tags(HTMLParser):
    """The tags of a page, each opened and closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.seen: list[str] = []
        self.feed(page)
        assert self.opened == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag != "img":
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag


def test_a_classifier_is_one_line(classifier: Classifier) -> None:
    line = "<Classifier: 2 layers, 2 heads, 32 pixels; 3 classes: <b>, b, c>"
    assert repr(classifier) == line
    assert _Tags(classifier._repr_html_()).seen == ["div"]
    classifier.provenance |= {"data": "flowers", "metrics": {"epoch": 3, "val_acc": 0.98765}}
    assert repr(classifier) == f"{line[:-1]}; trained on flowers; validation accuracy 0.988>"


def test_a_prediction_has_a_bar_for_each_class(classifier: Classifier, picture: Path) -> None:
    (prediction,) = classifier.predict([picture])
    page = prediction._repr_html_()
    assert _Tags(page).seen.count("tr") == 3
    widths = [float(width) for width in re.findall(r"width: ([\d.]+)%", page)]
    assert widths == [round(100 * confidence, 1) for _, confidence in prediction.ranking[:5]]
    assert "<i>" not in page and "&lt;b&gt;" in page


def test_an_unreadable_image_has_its_reason() -> None:
    assert Prediction("a&b.jpg", error="damaged")._repr_html_() == "<div><b>a&amp;b.jpg</b>: damaged</div>"


@pytest.mark.parametrize("method", ["gradient", "heads", "all"])
def test_an_explanation_shows_the_photograph_and_each_map(classifier: Classifier, picture: Path, method: str) -> None:
    explanation = classifier.explain(picture, method)
    page = explanation._repr_html_()
    shown = list(explanation.maps) + (["heads"] if explanation.heads is not None else [])
    assert re.findall(r'alt="(\w[^"]*)"', page) == ["photograph", *shown]
    images = [Image.open(io.BytesIO(base64.b64decode(data))) for data in re.findall(r"jpeg;base64,([^\"]+)", page)]
    assert {image.format for image in images} == {"JPEG"} and len({image.size for image in images}) == 1
    assert _Tags(page).seen.count("img") == 1 + len(shown)
    assert repr(explanation).startswith("<Explanation: <i>.png: ") and "array" not in repr(explanation)


def test_results_of_verbs_are_their_lines() -> None:
    info = vitkit.info("vit_tiny_patch16_224")
    assert _Tags(info._repr_html_()).seen == ["pre"]
