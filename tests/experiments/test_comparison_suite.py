"""Comparisons on several data sets: each is an ordinary comparison, and the table is made of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

import runs
import vitkit
from vitkit.errors import Interrupted, VitkitError
from vitkit.experiments import Comparison, ComparisonSuite
from vitkit.experiments import compare as costs
from vitkit.experiments.comparison_suite import figures_of

A, B = "vit_micro_patch8_16", "vit_micro_patch4_16"
OF_ANY_MODEL: dict[str, Any] = {name: value for name, value in runs.QUICK.items() if name not in ("model", "epochs")}
FIELDS: dict[str, Any] = {**OF_ANY_MODEL, "epochs": 1, "model_fields": runs.SIZE, "seeds": 1}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("several")
    return [str(runs.photos(root / name, images=10, seed=seed)) for seed, name in enumerate(("photos", "others"))]


@pytest.fixture(scope="module")
def found(folders: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[ComparisonSuite, list[str]]:
    """Stopped by a signal after the second run, and continued."""
    out, said = tmp_path_factory.mktemp("suite") / "out", []

    def stop(line: str) -> None:
        said.append(line)
        if line.startswith("photos: run 2 of 2"):
            raise Interrupted(2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "ROUNDS", 1)
        with pytest.raises(Interrupted):
            vitkit.compare(folders, [A, B], out=out, say=stop, **FIELDS)
        result = vitkit.compare(resume=True, out=out, say=said.append)
    assert isinstance(result, ComparisonSuite)
    return result, said


def test_the_cells_are_those_of_the_comparisons(found: tuple[ComparisonSuite, list[str]]) -> None:
    result, said = found
    assert result.figures == json.loads((result.folder / "suite.json").read_text())
    assert "photos: 2 of 2 runs are finished already" in said
    for data, folder in result.figures["folders"].items():
        single = json.loads((result.folder / folder / "comparison.json").read_text())
        for model in single["models"]:
            row = next(row for row in result.rows() if (row["model"], row["data"]) == (model["name"], data))
            assert row["accuracy"] == model["accuracy"]
            assert [row["low"], row["high"]] == model["interval"]
    with (result.folder / "suite.csv").open(encoding="utf-8", newline="") as file:
        assert [(row["model"], row["data"]) for row in csv.DictReader(file)] == [
            (model, data) for model in (A, B) for data in ("photos", "others")
        ]


@pytest.mark.parametrize(("images", "rates"), [(5, (0.8, 0.8)), (20, (0.9, 0.9)), (50, (0.99, 0.5)), (10, (0.85,) * 4)])
def test_the_interval_of_a_mean_covers_the_true_mean(images: int, rates: tuple[float, ...]) -> None:
    """Over 1000 simulated comparisons of a model with known accuracies, whose own intervals are Clopper's."""
    rng, covered = np.random.default_rng(0), 0
    ends = [binomtest(right, images).proportion_ci() for right in range(images + 1)]
    labels = [f"data {i}" for i in range(len(rates))]
    for _ in range(1000):
        contents = []
        for rate in rates:
            right = int(rng.binomial(images, rate))
            model = {"name": "a", "accuracy": right / images, "interval": [ends[right].low, ends[right].high]}
            contents.append({"models": [{**model, "runs": [{"training_flops": None}]}], "pairs": [], "seeds": [0]})
        (row,) = figures_of(labels, contents)["models"]
        low, high = row["mean"]["interval"]
        assert 0 <= low <= row["mean"]["accuracy"] <= high <= 1
        covered += low <= sum(rates) / len(rates) <= high
    assert covered > 930


def test_significant_differences_are_counted() -> None:
    def content(better: str | None) -> dict[str, Any]:
        models = [
            {"name": name, "accuracy": 0.5, "interval": [0.4, 0.6], "runs": [{"training_flops": 1.0}]} for name in "abc"
        ]
        pairs = [{"a": "a", "b": "b", "better": {"recipe": None, "trained": better}}]
        return {"models": models, "pairs": pairs, "seeds": [0]}

    labels = ["x", "y"]
    none = figures_of(labels, [content(None), content(None)])["sentences"]
    assert none[0].startswith("on none of these data sets is a model significantly better than another")
    first, second, *_ = figures_of(labels, [content("a"), content("b")])["sentences"]
    assert first.startswith("a is significantly better than another model in 1 and worse in 1 of 4 comparisons")
    assert second.startswith("b is significantly better than another model in 1 and worse in 1 of 4 comparisons")


def test_means_and_ranks_are_over_the_data_sets(found: tuple[ComparisonSuite, list[str]]) -> None:
    result, _ = found
    for model in result.figures["models"]:
        cells = list(model["by_data"].values())
        assert model["mean"]["accuracy"] == pytest.approx(sum(cell["accuracy"] for cell in cells) / 2)
        assert model["mean"]["interval"][0] <= model["mean"]["accuracy"] <= model["mean"]["interval"][1]
        assert model["mean_rank"] == sum(cell["rank"] for cell in cells) / 2
    assert sum(model["mean_rank"] for model in result.figures["models"]) == 3, "of two models, with ties halved"


def test_what_each_training_costs_is_said_before_it_begins(found: tuple[ComparisonSuite, list[str]]) -> None:
    result, said = found
    first = next(place for place, line in enumerate(said) if "run 1 of" in line)
    (row,) = (line for line in said[:first] if line.startswith(A))
    planned = float(row.split()[2])
    (run,) = (
        run
        for model in json.loads((result.folder / "1-photos" / "comparison.json").read_text())["models"]
        for run in model["runs"]
        if model["name"] == A
    )
    assert planned == pytest.approx(run["training_flops"], rel=0.01)


def test_it_is_shown(found: tuple[ComparisonSuite, list[str]]) -> None:
    result, _ = found
    page, text = result.report.read_text(encoding="utf-8"), "\n".join(result.lines())
    assert "1-photos/comparison.html" in page and "data:image/svg+xml" in page
    assert "mean ranks are not tested: this requires 3 models and 5 data sets, and there are 2 and 2" in text
    assert "not over other data sets" in text
    assert "<table>" in result._repr_html_()


def test_one_data_set_in_a_list_is_an_ordinary_comparison(folders: list[str]) -> None:
    with pytest.raises(VitkitError, match="no models: vitkit compare DATA --models"):
        vitkit.compare(folders[:1])
    assert not issubclass(ComparisonSuite, Comparison)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"models": None}, "no models: vitkit compare DATA DATA --models"),
        ({"twice": True}, "a data set is given twice"),
        ({"models": ["no_such_model"]}, "photos: no_such_model"),
        ({"folds": 3}, "folds cannot be set for a comparison"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    folders: list[str], tmp_path: Path, arguments: dict[str, Any], expected: str
) -> None:
    rest = {"models": [A], **arguments}
    twice = [folders[0], f"{folders[0]}/../{Path(folders[0]).name}"]  # the same folder
    data = twice if rest.pop("twice", False) else folders
    with pytest.raises(VitkitError, match=expected):
        vitkit.compare(data, out=tmp_path / "out", say=lambda _: None, **{**FIELDS, **rest})
    assert not (tmp_path / "out").exists()
