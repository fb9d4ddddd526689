"""Tables and pictures of results for pandas, LaTeX and print, the sizes of models, the data of the paper's recipes."""

import csv
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

import runs
import vitkit
from refusals import refused
from tiny import some
from vitkit.model.build import build, config_of
from vitkit.verbs.models import count_parameters
from vitkit.verbs.result import csv_table, latex_table, latex_text


class Results(dict[str, Any]):
    """One result of each verb, made when it is first asked for."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self.place, self.run = place, str(runs.shared_run())  # before a test asks for drawn pictures

    def __missing__(self, name: str) -> Any:
        self[name] = MADE[name](runs.shared_photos(), self.run, self.place / name)
        return self[name]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(tmp_path_factory.mktemp("tables"))


TWO = "vit_micro_patch8_16@none,vit_micro_patch4_16@none"
EPOCHS = vitkit.Recipe(**runs.quick_fields(epochs=2))
QUICK = vitkit.Recipe(epochs=1, workers=0, image_size=16, model_fields=runs.SIZE)
MADE: dict[str, Callable[[Path, str, Path], Any]] = {
    "training": lambda photos, _, out: vitkit.train(photos, EPOCHS, out=out),
    "evaluation": lambda photos, run, out: vitkit.evaluate(run),
    "predictions": lambda photos, run, out: vitkit.predict(run, photos),
    "checkup": lambda photos, run, out: vitkit.doctor(photos),
    "comparison": lambda photos, run, out: vitkit.compare(photos, TWO, QUICK, seeds=1, out=out),
    "lab": lambda photos, run, out: vitkit.lab("attention-distance", data=str(photos), model=run, out=out),
    "few-shot": lambda photos, run, out: vitkit.lab("few-shot", str(photos), model=run, seeds=1, out=out),
    "pretraining": lambda photos, _, out: vitkit.pretrain(
        photos, vitkit.Recipe(**runs.quick_fields(epochs=2)), out=out
    ),
    "speed": lambda _, run, out: vitkit.bench(run, batch_sizes=1, rounds=1, backends="eager", precisions="float32"),
    "models": lambda *_: vitkit.models("vit_tiny"),
    "weights": lambda *_: vitkit.models("deit", weights=True),
}
LAB = {"Patch filters": "left", "Position embeddings": "centre", "Attention distance": "right"}


@pytest.mark.parametrize("name", MADE)
def test_a_table_has_the_same_keys_in_each_row_and_is_set_by_latex(results: Results, name: str) -> None:
    rows = results[name].rows()
    assert rows
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    text = results[name].to_latex(caption="Results of 5 % & more", label="tab:results")
    lines = text.splitlines()
    assert sum(line.endswith(r"\\") for line in lines) == len(rows) + 1
    assert all(len(re.split(r"(?<!\\)&", line)) == len(rows[0]) for line in lines if line.endswith(r"\\"))
    assert r"\caption{Results of 5 \% \& more}" in lines and r"\label{tab:results}" in lines


def test_the_tables_say_what_the_results_say(results: Results, tmp_path: Path) -> None:
    epochs = results["training"].rows()
    assert [row["epoch"] for row in epochs] == [0, 1]
    assert {"train_acc", "val_acc"} <= epochs[0].keys()
    per_class = results["evaluation"].figures["per_class"]
    assert {row["class"]: row["recall"] for row in results["evaluation"].rows()} == {
        name: row["recall"] for name, row in per_class.items()
    }
    assert [row["path"] for row in results["predictions"].rows()] == [row.path for row in results["predictions"]]
    assert {row["class"]: row["images"] for row in results["checkup"].rows()} == dict.fromkeys(runs.COLOURS, 12)
    losses = [row["train_loss"] for row in results["pretraining"].rows()]
    assert len(losses) == 2 and losses == [row["train_loss"] for row in results["pretraining"].metrics]
    assert [(row["batch"], row["precision"]) for row in results["speed"].rows()] == [(1, "float32")]
    tex = results["comparison"].save(tmp_path / "comparison.tex").read_text(encoding="utf-8")
    assert tex == results["comparison"].to_latex()
    with results["evaluation"].save(tmp_path / "classes.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == [row["class"] for row in results["evaluation"].rows()]
    assert [float(row["recall"]) for row in rows] == [row["recall"] for row in results["evaluation"].rows()]
    best = results["comparison"].rows()[0]
    assert best["low"] <= best["accuracy"] <= best["high"]


def test_pandas_gets_the_rows_or_is_named_if_missing(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = results["comparison"].to_pandas()
    assert list(frame["name"]) == [model["name"] for model in results["comparison"].models]
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    assert results["evaluation"].to_pandas() == results["evaluation"].rows()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refused("verbs.package-missing", "pip install pandas"):
        results["evaluation"].to_pandas()
    with refused("verbs.table-missing", "export"):
        vitkit.Result("export", ["a line"], {}).rows()


PICTURES = {
    "training": {"Curves"},
    "evaluation": {"Confusion", "Confidence and accuracy", "ROC and precision-recall"},
    "checkup": {"Images per class", "Sizes"},
    "comparison": {"Accuracy by epoch", "Accuracy by computation"},
    "lab": {f"{what} (Figure 7, {where})" for what, where in LAB.items()},
    "few-shot": {"Accuracy by images per class"},
    "pretraining": {"Loss by epoch"},
    "speed": {"Images per second"},
}


@pytest.mark.usefixtures("drawn_pictures")
@pytest.mark.parametrize("name", some(PICTURES, {"evaluation", "speed"}))
def test_each_picture_is_saved_in_each_format(results: Results, name: str, tmp_path: Path) -> None:
    result = results[name]
    assert result.pictures().keys() == PICTURES[name]
    for caption in result.pictures():
        svg = result.save(tmp_path / "picture.svg", caption).read_text(encoding="utf-8")
        assert "</svg>" in svg and ("<text" in svg) == (caption.split()[0] != "Patch" or "components" in svg)
    with Image.open(result.save(tmp_path / "picture.png", caption)) as picture:
        assert min(picture.size) > 300 and len(picture.getcolors(2**24) or ()) > 2
    assert result.save(tmp_path / "picture.pdf", caption).read_bytes().startswith(b"%PDF")
    again = result.save(tmp_path / "again.svg", caption).read_text(encoding="utf-8")
    assert again == svg, "the same bytes each time"


@pytest.mark.usefixtures("drawn_pictures")
def test_latex_pictures_have_serif_text_and_a_figure_can_hold_several(results: Results, tmp_path: Path) -> None:
    plain = results["evaluation"].save(tmp_path / "plain.svg").read_text(encoding="utf-8")
    serif = results["evaluation"].save(tmp_path / "serif.svg", fonts="latex").read_text(encoding="utf-8")
    assert "'STIXGeneral', 'STIX Two Text', 'Times New Roman'" in serif and "STIXGeneral" not in plain
    assert all(name in serif for name in runs.COLOURS), "class names stay text"
    figure = Figure(layout="constrained")
    left, right = figure.subfigures(1, 2)
    (confusion,) = results["evaluation"].plot(figure=left)
    (classes,) = results["checkup"].plot("Images per class", figure=right)
    assert {confusion, classes} == set(figure.axes) and confusion.get_xlabel() == "predicted"
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")


@pytest.mark.usefixtures("drawn_pictures")
def test_a_notebook_shows_what_is_plotted(results: Results) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    loss, accuracy = results["training"].plot()
    assert pyplot.get_fignums() == [loss.figure.number], "it is a figure of pyplot"
    assert (loss.get_title(), accuracy.get_title()) == ("Loss", "Accuracy")
    pyplot.close("all")


@pytest.mark.parametrize(
    ("name", "target", "options", "code", "named"),
    [
        ("checkup", "a.svg", {"picture": "Sises"}, "text.picture-missing", "Images per class"),
        ("checkup", "a.docx", {}, "text.suffix-wrong", ".pdf"),
        ("checkup", "a.svg", {"fonts": "comic"}, "text.value-wrong", "comic"),
    ],
)
def test_what_cannot_be_saved_is_refused_and_nothing_is_written(
    results: Results, tmp_path: Path, name: str, target: str, options: Any, code: str, named: str
) -> None:
    with refused(code, named):
        results[name].save(tmp_path / target, **options)
    assert list(tmp_path.iterdir()) == []


def unescaped(text: str) -> str:
    """What LaTeX prints for text that `latex_text` wrote."""
    words = {"asciitilde": "~", "asciicircum": "^", "backslash": "\\", "less": "<", "greater": ">", "bar": "|"}
    words["quotedbl"] = '"'
    return re.sub(r"\\text(\w+)\{\}|\\(.)", lambda match: words[match[1]] if match[1] else match[2], text)


@settings(max_examples=50)
@given(st.text())
def test_text_is_set_as_it_is(text: str) -> None:
    written = latex_text(text)
    assert unescaped(written) == " ".join(text.split())
    assert not re.search(r"(?<!\\)[&%$#_]", written)


def test_cells_of_all_kinds() -> None:
    rows = [
        {"name": "a_b", "part": 0.123456, "n": 1000, "none": None},
        {"name": "50 %", "part": float("nan"), "n": 2, "none": [1, "x"]},
    ]
    table = latex_table(rows)
    assert table.startswith(r"\begin{tabular}{lrrl}")
    for line in (r"name & part & n & none \\", r"a\_b & 0.1235 & 1000 &  \\", r"50 \% &  & 2 & 1, x \\"):
        assert line in table.splitlines()
    argument = latex_table([{"[n": "[x]"}, {"[n": "*"}])
    assert r"{}[x] \\" in argument and r"{}* \\" in argument, "no argument of the row before"
    assert csv_table([{"class": "=1+1", "n": -1}]) == "class,n\r\n'=1+1,-1\r\n", "no formula"


@pytest.mark.accept  # LaTeX is larger than all that the other tests need
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
def test_latex_compiles_it(results: Results, tmp_path: Path) -> None:
    tables = "".join(results[name].to_latex(caption=name) for name in MADE)
    head = r"\documentclass{article}\usepackage{booktabs}\usepackage[T1]{fontenc}\begin{document}"
    (tmp_path / "a.tex").write_text(head + tables + r"\end{document}")
    command = ["pdflatex", "-interaction=nonstopmode", "a.tex"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0


@pytest.mark.accept
def test_the_parameters_in_the_list_are_those_of_the_models() -> None:
    names = vitkit.models().names
    assert len(names) > 100
    with torch.device("meta"):
        for name in names:
            config = config_of(name)
            if config.num_classes != 1000 and "base" not in name:
                continue
            assert count_parameters(config) == sum(p.numel() for p in build(config).parameters()), name
