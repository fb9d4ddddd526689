"""Tables and pictures of results for pandas, LaTeX and print, the sizes of models, the data of the paper's recipes."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

import runs
import vitkit
from refusals import refused
from vitkit.model.build import build, config_of
from vitkit.verbs.models import count_parameters
from vitkit.verbs.result import csv_table


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One result of each verb."""
    photos, run, out = runs.shared_photos(), str(runs.shared_run()), tmp_path_factory.mktemp("tables")
    epochs = vitkit.Recipe(**runs.quick_fields(epochs=2))
    return {
        "training": vitkit.train(photos, epochs, out=out / "run"),
        "evaluation": vitkit.evaluate(run),
        "predictions": vitkit.predict(run, photos),
        "checkup": vitkit.doctor(photos),
        "comparison": vitkit.compare(photos, TWO, QUICK, seeds=1, out=out / "compared"),
        "lab": vitkit.lab("attention-distance", data=str(photos), model=run, out=out / "lab"),
        "few-shot": vitkit.lab("few-shot", str(photos), model=run, seeds=1, out=out / "few"),
        "pretraining": vitkit.pretrain(photos, epochs, out=out / "pretrained"),
        "speed": vitkit.bench(run, batch_sizes=1, rounds=1, backends="eager", precisions="float32"),
        "models": vitkit.models("vit_tiny"),
        "weights": vitkit.models("deit", weights=True),
    }


TWO = "vit_micro_patch8_16@none,vit_micro_patch4_16@none"
QUICK = vitkit.Recipe(epochs=1, workers=0, image_size=16, model_fields=runs.SIZE)
LAB = {"Patch filters": "left", "Position embeddings": "centre", "Attention distance": "right"}


def test_a_table_has_the_same_keys_in_each_row(results: dict[str, Any]) -> None:
    for name, result in results.items():
        rows = result.rows()
        assert rows and {tuple(row) for row in rows} == {tuple(rows[0])}, name


def test_the_tables_say_what_the_results_say(results: dict[str, Any], tmp_path: Path) -> None:
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
    with results["evaluation"].save(tmp_path / "classes.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == [row["class"] for row in results["evaluation"].rows()]
    assert [float(row["recall"]) for row in rows] == [row["recall"] for row in results["evaluation"].rows()]
    best = results["comparison"].rows()[0]
    assert best["low"] <= best["accuracy"] <= best["high"]
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
def test_each_picture_is_saved_in_each_format(results: dict[str, Any], tmp_path: Path) -> None:
    assert {name: set(results[name].pictures()) for name in PICTURES} == PICTURES
    for caption in results["evaluation"].pictures():
        svg = results["evaluation"].save(tmp_path / "picture.svg", caption).read_text(encoding="utf-8")
        assert "</svg>" in svg and "<text" in svg
    result = results["speed"]
    with Image.open(result.save(tmp_path / "picture.png")) as picture:
        assert min(picture.size) > 300 and len(picture.getcolors(2**24) or ()) > 2
    assert result.save(tmp_path / "picture.pdf").read_bytes().startswith(b"%PDF")
    first, again = (result.save(tmp_path / f"{name}.svg").read_text(encoding="utf-8") for name in ("first", "again"))
    assert again == first, "the same bytes each time"


@pytest.mark.usefixtures("drawn_pictures")
def test_pictures_have_fonts_of_matplotlib_and_a_figure_can_hold_several(
    results: dict[str, Any], tmp_path: Path
) -> None:
    plain = results["evaluation"].save(tmp_path / "plain.svg").read_text(encoding="utf-8")
    with rc_context({"font.family": "STIXGeneral"}):
        serif = results["evaluation"].save(tmp_path / "serif.svg").read_text(encoding="utf-8")
    assert "STIXGeneral" in serif and "STIXGeneral" not in plain
    assert all(name in serif for name in runs.COLOURS), "class names stay text"
    figure = Figure(layout="constrained")
    left, right = figure.subfigures(1, 2)
    (confusion,) = results["evaluation"].plot(figure=left)
    (classes,) = results["checkup"].plot("Images per class", figure=right)
    assert {confusion, classes} == set(figure.axes) and confusion.get_xlabel() == "predicted"
    figure.savefig(io.BytesIO(), format="png")


@pytest.mark.usefixtures("drawn_pictures")
def test_a_notebook_shows_what_is_plotted(results: dict[str, Any]) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    loss, accuracy = results["training"].plot()
    assert pyplot.get_fignums() == [loss.figure.number], "it is a figure of pyplot"
    assert (loss.get_title(), accuracy.get_title()) == ("Loss", "Accuracy")
    pyplot.close("all")


def test_what_cannot_be_saved_is_refused_and_nothing_is_written(results: dict[str, Any], tmp_path: Path) -> None:
    for target, options, code, named in (
        ("a.svg", {"picture": "Sises"}, "text.picture-missing", "Images per class"),
        ("a.docx", {}, "text.suffix-wrong", ".pdf"),
    ):
        with refused(code, named):
            results["checkup"].save(tmp_path / target, **options)
    assert list(tmp_path.iterdir()) == []


def test_text_is_no_formula() -> None:
    assert csv_table([{"class": "=1+1", "n": -1}]) == "class,n\r\n'=1+1,-1\r\n"


@pytest.mark.accept
def test_the_parameters_in_the_list_are_those_of_the_models() -> None:
    names = vitkit.models().names
    assert len(names) > 100
    with torch.device("meta"):
        for name in names:
            config = config_of(name)
            if config.num_classes == 1000 or "base" in name:
                assert count_parameters(config) == sum(p.numel() for p in build(config).parameters()), name
