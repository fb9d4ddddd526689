"""Tables of results for pandas and LaTeX, the sizes of models, and the data of the paper's recipes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import runs
import vitkit
from vitkit.errors import VitkitError
from vitkit.experiments.training_plan import job_of
from vitkit.model.build import build, config_of
from vitkit.verbs.models import count_parameters
from vitkit.verbs.result import latex_table, latex_text

RECIPES = Path(vitkit.__file__).parent / "recipes"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("tables")
    photos = runs.photos(place / "photos")
    run = vitkit.train(photos, **runs.quick_fields(), out=place / "run", say=lambda line: None)
    models = "vit_micro_patch8_16@none,vit_micro_patch4_16@none"
    quick = {"epochs": 1, "seeds": 1, "workers": 0, "image_size": 16, "say": lambda line: None}
    return {
        "training": run,
        "evaluation": vitkit.evaluate(place / "run"),
        "predictions": vitkit.predict(place / "run", photos),
        "checkup": vitkit.doctor(photos),
        "plan": vitkit.plan("vit_tiny_patch16_224", others=["vit_small_patch16_224"], images=1000),
        "comparison": vitkit.compare(photos, models, out=place / "compared", **quick),
        "lab": vitkit.lab("attention-distance", data=str(photos), model=str(place / "run"), out=place / "lab"),
        "models": vitkit.models("vit_tiny"),
        "weights": vitkit.models("deit", weights=True),
    }


NAMES = ("training", "evaluation", "predictions", "checkup", "plan", "comparison", "lab", "models", "weights")


@pytest.mark.parametrize("name", NAMES)
def test_a_table_has_the_same_keys_in_each_row_and_is_set_by_latex(results: dict[str, Any], name: str) -> None:
    rows = results[name].rows()
    assert rows
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    text = results[name].to_latex(caption="Results of 5 % & more", label="tab:results")
    lines = text.splitlines()
    assert sum(line.endswith(r"\\") for line in lines) == len(rows) + 1
    assert all(len(re.split(r"(?<!\\)&", line)) == len(rows[0]) for line in lines if line.endswith(r"\\"))
    assert r"\caption{Results of 5 \% \& more}" in lines and r"\label{tab:results}" in lines


def test_the_tables_say_what_the_results_say(results: dict[str, Any]) -> None:
    epochs = results["training"].rows()
    assert [row["epoch"] for row in epochs] == [0, 1, 2]
    assert {"train_acc", "val_acc"} <= epochs[0].keys()
    per_class = results["evaluation"].figures["per_class"]
    assert {row["class"]: row["recall"] for row in results["evaluation"].rows()} == {
        name: row["recall"] for name, row in per_class.items()
    }
    assert [row["path"] for row in results["predictions"].rows()] == [row.path for row in results["predictions"]]
    assert {row["class"]: row["images"] for row in results["checkup"].rows()} == dict.fromkeys(runs.COLOURS, 12)
    assert [row["parameters"] for row in results["plan"].rows()] == [5_717_416, 22_050_664]
    best = results["comparison"].rows()[0]
    assert best["low"] <= best["accuracy"] <= best["high"]


def test_pandas_gets_the_rows_and_is_named_where_it_is_missing(
    results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    assert results["evaluation"].to_pandas() == results["evaluation"].rows()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(VitkitError, match=r"to_pandas requires pandas \(pip install pandas\)"):
        results["evaluation"].to_pandas()
    with pytest.raises(VitkitError, match="Export has no table"):
        vitkit.Export.rows(vitkit.Export.__new__(vitkit.Export))


def test_real_pandas(results: dict[str, Any]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = results["comparison"].to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["name"]) == [model["name"] for model in results["comparison"].models]


def unescaped(text: str) -> str:
    """What LaTeX prints for text that `latex_text` wrote."""
    words = {"asciitilde": "~", "asciicircum": "^", "backslash": "\\", "less": "<", "greater": ">", "bar": "|"}
    words["quotedbl"] = '"'
    return re.sub(r"\\text(\w+)\{\}|\\(.)", lambda match: words[match[1]] if match[1] else match[2], text)


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
    assert latex_table(rows).splitlines()[2:6] == [
        r"name & part & n & none \\",
        r"\midrule",
        r"a\_b & 0.1235 & 1000 &  \\",
        r"50 \% &  & 2 & 1, x \\",
    ]
    assert latex_table(rows).startswith(r"\begin{tabular}{lrrl}")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
def test_latex_compiles_it(results: dict[str, Any], tmp_path: Path) -> None:
    tables = "".join(results[name].to_latex(caption=name) for name in NAMES)
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


def test_the_list_is_the_papers_table_1() -> None:
    sizes = {row["name"]: row for row in vitkit.models("patch16_224").rows()}
    for name, (layers, hidden, mlp, heads, millions) in {
        "vit_base_patch16_224": (12, 768, 3072, 12, 86),
        "vit_large_patch16_224": (24, 1024, 4096, 16, 307),
    }.items():
        row = sizes[name]
        assert (row["layers"], row["hidden_size"], row["mlp_size"], row["heads"]) == (layers, hidden, mlp, heads)
        assert row["parameters"] / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("recipe", [path.stem for path in sorted(RECIPES.glob("paper-*[!b].toml"))])
def test_a_recipe_of_the_paper_knows_its_images(recipe: str) -> None:
    job = job_of(recipe, {}, None, None)
    command = re.search(r"vitkit plan \S+ --images (\d+) --classes (\d+)", (RECIPES / f"{recipe}.toml").read_text())
    if command is not None:
        assert (job.images, job.config.num_classes) == (int(command[1]), int(command[2]))
    assert any("as in the paper" in note for note in job.notes)
    assert job_of(recipe, {}, 500, None).images == 500
    assert job_of(recipe, {"data": "digits"}, None, None).images != job.images, "the caller's data has its number"
