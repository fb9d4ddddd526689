"""`vitkit explain --style paper`: Figure 6 of the paper, input and attention of many photographs."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from refusals import refused
from vitkit import Classifier, Preprocess, VisionTransformer
from vitkit.explanation.draw import masked


@pytest.fixture
def classifier() -> Classifier:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    return Classifier(VisionTransformer(**sizes, num_classes=3), ("a", "b", "c"), Preprocess(size=32))


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(4):
        pixels = draw.integers(0, 255, (40 + 10 * i, 50, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i}.png")
    return tmp_path / "photos"


def test_the_photograph_is_multiplied_by_the_map_and_black_where_nothing_was_seen() -> None:
    photograph = Image.new("RGB", (40, 20), (200, 100, 50))
    values = np.array([[0.0, 2.0]], np.float32)
    result = np.asarray(masked(photograph, values, (0, 0, 40, 20)), np.float64)
    assert (result[:, 0] == 0).all() and (result[:, -1] == (200, 100, 50)).all()
    middle = result[0, 19:21, 0].mean() / 200  # between the centres of the patches the map is interpolated
    assert middle == pytest.approx(0.5, abs=0.02)
    assert (masked(photograph, np.array([[-1.0, -2.0]], np.float32), (0, 0, 40, 20)).getextrema()[0]) == (0, 0)
    result = np.asarray(masked(Image.new("RGB", (40, 20), "white"), np.ones((2, 2), np.float32), (10, 0, 30, 20)))
    assert (result[:, 10:30] == 255).all() and not result[:, :10].any() and not result[:, 30:].any()


@pytest.mark.usefixtures("drawn_pictures")
def test_the_sheet_is_a_png_an_svg_and_a_pdf_of_the_first_images(
    classifier: Classifier, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitkit.verbs.explain._MAX_IN_SHEET", 2)
    Image.new("RGB", (3000, 3), "red").save(photographs / "0.png")  # a line has its place, too
    result = vitkit.explain(classifier, photographs, tmp_path / "out", style="paper")
    assert isinstance(result, vitkit.Explanations) and result.method == "rollout"
    assert result.sheet == tmp_path / "out" / "attention.png" and result.to_dict()["sheet"] == str(result.sheet)
    with Image.open(result.sheet) as sheet:
        assert sheet.width > 400
    svg = (tmp_path / "out" / "attention.svg").read_text(encoding="utf-8")
    assert svg.count("<image") == 2 * 2 and "</svg>" in svg
    assert (tmp_path / "out" / "attention.pdf").read_bytes().startswith(b"%PDF")
    page = unescape((tmp_path / "out" / "index.html").read_text(encoding="utf-8"))
    assert page.index("as in the paper's Figure 6") < page.index("0.png")
    assert "(the first 2 of 4 images)" in page and len(re.findall("<figure>", page)) == 4


def test_another_single_map_can_be_chosen_and_without_the_style_there_is_no_sheet(
    classifier: Classifier, photographs: Path, tmp_path: Path
) -> None:
    for method in ("heads", "all"):
        with refused("verbs.option-conflict", method):
            vitkit.explain(classifier, photographs, tmp_path / "none", style="paper", method=method)
    assert not (tmp_path / "none").exists()
    picture = photographs / "0.png"
    result = vitkit.explain(classifier, picture, tmp_path / "out", style="paper", method="raw", layer=0)
    assert isinstance(result, vitkit.Explanations) and result.method == "raw" and result.sheet is not None
    result = vitkit.explain(classifier, picture, tmp_path / "plain")
    assert isinstance(result, vitkit.Explanations) and (result.method, result.sheet) == ("gradient", None)
    assert not (tmp_path / "plain" / "attention.png").exists()
