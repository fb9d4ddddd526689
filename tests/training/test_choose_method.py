"""`--method auto` tries a head on frozen features before it trains the whole model on medium numbers of images."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

import photos as pictures
import runs
from once import once
from vitkit.data import split_from_file
from vitkit.training import FeatureStore, Recipe, prepared
from vitkit.training.stages import resolve as selection

pytestmark = pytest.mark.usefixtures("two_penalties")
EACH = 58  # photographs of each class, of which 40 are trained on


@pytest.fixture(scope="module")
def easy() -> Path:
    return once("choose-method-easy", lambda place: runs.photos(place, images=EACH, noise=30))


@pytest.fixture(scope="module")
def hard() -> Path:
    """Pictures whose classes say nothing about them."""
    return once("choose-method-hard", lambda place: pictures.folder(place, dict.fromkeys("ab", EACH), 16, 16))


def fields(data: Path, start: Path, **more: Any) -> dict[str, Any]:
    return {"data": str(data), "weights": str(start), "workers": 0, "precision": "float32", **more}


def resolved(data: Path, start: Path, source: str = "", **more: Any) -> Any:
    return runs.chosen(Recipe.of(fields(data, start, **more), source))


def test_a_head_that_is_right_nearly_always_becomes_the_model(easy: Path, start: Path, tmp_path: Path) -> None:
    folder, said = runs.told(Recipe(**fields(easy, start)), tmp_path / "run")
    lines = said.splitlines()
    assert Recipe.load(folder / "recipe.toml").method == "probe"
    assert any("100.0 % of 120 training images" in line for line in lines)
    assert sum(line.startswith("method ") for line in lines) == 1
    assert (folder / "evaluation.json").is_file() and not (folder / "checkpoints").exists()
    assert json.loads((folder / "request.json").read_text()).keys() == {"data", "weights", "workers", "precision"}
    assert resolved(easy, folder).recipe.method == "full", "weights that know the photographs are not asked"
    full = prepared(Recipe(**fields(easy, start, method="full"))).parts[0].images.table
    table = split_from_file(folder / "split.json")
    assert set(table.of_split("test").paths) == set(full.of_split("test").paths) != set()
    assert "val" not in table.splits


def test_shuffled_labels_are_predicted_by_chance_so_that_the_head_does_not(hard: Path, start: Path) -> None:
    assert resolved(hard, start).recipe.method == "full"
    full = prepared(Recipe(**fields(hard, start, method="full")))
    part = full.parts[0].images
    _, interval, images = selection.probe_accuracy(
        FeatureStore(full.recipe, full.blueprint.weights), part.table, part.groups
    )
    assert interval[0] <= 0.5 <= interval[1] and images == 80


@pytest.mark.parametrize(
    ("given", "source", "method"),
    [
        ({"epochs": 2}, "", "full"),
        ({"folds": 2}, "mine.toml", "full"),  # every image is tested
        ({"method": "full"}, "", "full"),
        ({"weights": "none"}, "", "scratch"),
        ({"lora_rank": 8}, "mine.toml", "probe"),  # a field that nothing needs
    ],
)
def test_it_is_tried_only_where_it_may_become_the_model(
    easy: Path, start: Path, given: dict[str, Any], source: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []
    measure = selection.probe_accuracy
    monkeypatch.setattr(selection, "probe_accuracy", lambda *args: tried.append(args) or measure(*args))
    assert resolved(easy, start, source, **given).recipe.method == method
    assert bool(tried) == (method == "probe")


def test_the_time_of_a_training_may_be_limited_where_the_method_is_chosen(start: Path, tmp_path: Path) -> None:
    folder, said = runs.told(Recipe(**fields(runs.shared_few(), start, time="60s")), tmp_path / "run")
    assert "time acts on training steps" in said
    assert json.loads((folder / "request.json").read_text())["time"] == "60s"


@pytest.mark.parametrize("parts", [2, 3])
def test_an_image_is_not_judged_by_a_probe_that_knows_it(parts: int) -> None:
    """Features that name each image, and labels by lot: who has seen the label knows it, and nobody else does."""
    rng = np.random.default_rng(0)
    y, fold_of = torch.from_numpy(rng.permutation(np.arange(240) % 4)), torch.arange(240) % parts
    x = torch.eye(240) + 0.01 * torch.from_numpy(rng.normal(size=(240, 240)).astype(np.float32))
    own = [selection._correct_in_fold(x, y, fold_of, part, 4) for part in range(parts)]
    assert not any((right & (fold_of != part)).any() for part, right in enumerate(own))
    low, high = binomtest(int(torch.stack(own).sum()), 240).proportion_ci(0.999)
    assert low < 0.25 < high
