"""What a notebook shows of a result: one line, a few bars, or the pictures."""

import base64
import io
import re
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import blank
import runs
import vitkit
from vitkit import Classifier, Prediction, Preprocess, VisionTransformer
from vitkit.reporting import plots
from vitkit.system.progress import NotebookBar, display_of_notebook


@pytest.fixture
def classifier() -> Classifier:
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}
    return Classifier(VisionTransformer(**sizes), ("<b>", "b", "c"), Preprocess(size=32))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8)).save(tmp_path / "<i>.png")
    return tmp_path / "<i>.png"


def test_a_classifier_is_one_line_and_a_prediction_has_bars(classifier: Classifier, picture: Path) -> None:
    line = "<Classifier: 2 layers, 2 heads, 32 pixels; 3 classes: <b>, b, c>"
    assert repr(classifier) == line
    assert "<b>" not in classifier._repr_html_()
    classifier.provenance |= {"data": "flowers", "metrics": {"epoch": 3, "val_acc": 0.98765}}
    assert repr(classifier) == f"{line[:-1]}; trained on flowers; validation accuracy 0.988>"
    (prediction,) = classifier.predict([picture])
    page = prediction._repr_html_()
    assert page.count("<tr") == page.count("</tr>") == 3
    widths = [float(width) for width in re.findall(r"width: ([\d.]+)%", page)]
    assert widths == [round(100 * confidence, 1) for _, confidence in prediction.ranking[:5]]
    assert "<i>" not in page and "&lt;b&gt;" in page
    assert Prediction("a&b.jpg", error="damaged")._repr_html_() == "<div><b>a&amp;b.jpg</b>: damaged</div>"


def test_an_explanation_shows_the_photograph_and_each_map(classifier: Classifier, picture: Path) -> None:
    explanation = classifier.explain(picture, "all")
    page = explanation._repr_html_()
    shown = list(explanation.maps) + (["heads"] if explanation.heads is not None else [])
    assert re.findall(r'alt="(\w[^"]*)"', page) == ["photograph", *shown]
    images = [Image.open(io.BytesIO(base64.b64decode(data))) for data in re.findall(r"jpeg;base64,([^\"]+)", page)]
    assert {image.format for image in images} == {"JPEG"} and len({image.size for image in images}) == 1
    assert page.count("<img") == 1 + len(shown)
    assert repr(explanation).startswith("<Explanation: <i>.png: ") and "array" not in repr(explanation)


class _Display:
    """A stand-in for `IPython.display`, which keeps what it was asked to show."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, object]] = []
        self.HTML, self.Image = (lambda html: ("html", html)), (lambda data: ("image", data))
        self.update = self.shown.append

    def display(self, content: tuple[str, object], display_id: bool) -> "_Display":
        assert display_id
        self.shown.append(content)
        return self


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> _Display:
    """IPython as it is in the kernel of a notebook."""
    display = _Display()
    module = ModuleType("IPython")
    module.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    module.display = display  # type: ignore[attr-defined]
    module.version_info = (9, 0)  # type: ignore[attr-defined]  # matplotlib looks at it
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return display


def test_a_training_in_a_notebook_has_a_bar_and_live_curves(
    notebook: _Display, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Figure, "savefig", blank._savefig)  # of all pictures, only the curves are drawn
    monkeypatch.setattr(plots, "curves", blank._PLOTS["curves"])
    run = vitkit.train(runs.shared_photos(), vitkit.Recipe(**runs.quick_fields(epochs=2)), out=tmp_path / "run")
    pictures = [data for kind, data in notebook.shown if kind == "image"]
    assert len(pictures) == len(run.rows()), "one a epoch"
    assert len(set(pictures)) == len(pictures) and all(data.startswith(b"\x89PNG") for data in pictures)
    bars = [html for kind, html in notebook.shown if kind == "html"]
    assert any("<progress value=" in html and "reading" in html for html in bars)
    assert bars[-1] == "", "the bar disappears"


def test_a_bar_says_how_long_it_takes(notebook: _Display, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with NotebookBar(notebook) as bar:
        bar("reading <a>", 1, 200)
        bar("reading <a>", 2, 200)  # too soon
        now = 110.0
        bar("reading <a>", 20, 200)
        bar("counting", 5, None)
    texts = [re.sub("<[^>]*>", "", html).strip() for _, html in notebook.shown]
    assert texts == ["reading &lt;a&gt; 1/200", "reading &lt;a&gt; 20/200, 1 min 30 s left", "counting 5", ""]


@pytest.mark.usefixtures("drawn_pictures")
def test_a_checkup_shows_its_findings_and_a_picture_and_progress_that_is_received_elsewhere_no_bar(
    notebook: _Display, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, received = runs.shared_photos(), []
    vitkit.doctor(photos, progress=lambda *report: received.append(report))
    assert received and notebook.shown == []
    page = vitkit.doctor(photos)._repr_html_()
    assert notebook.shown
    assert page.count("<img") == 1 and "Nothing wrong was found." in page
    assert re.findall(r"<td>(\w+)</td><td[^>]*>(\d+)</td>", page) == [(name, "12") for name in runs.COLOURS]
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", SimpleNamespace)
    assert display_of_notebook() is None, "a terminal with IPython is no notebook"
