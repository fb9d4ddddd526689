"""`--method auto` tries a head on frozen features before it trains the whole model on medium numbers of images."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import binomtest

import runs
from hearing import heard
from vitkit.data import split_from_file
from vitkit.training import FeatureStore, Recipe, prepared, train
from vitkit.training.stages import resolve as selection

EACH = 58  # photographs of each class, of which 40 are trained on


@pytest.fixture(scope="module")
def easy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.photos(tmp_path_factory.mktemp("easy") / "photos", images=EACH, noise=30)


@pytest.fixture(scope="module")
def hard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures whose classes say nothing about them."""
    root, rng = tmp_path_factory.mktemp("hard") / "photos", np.random.default_rng(0)
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        for i in range(EACH):
            Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(root / name / f"{i}.png")
    return root


def resolved(data: Path, start: Path, source: str = "", **fields: Any) -> Any:
    asked = {"data": str(data), "weights": str(start), "workers": 0, "precision": "float32", **fields}
    return prepared(Recipe.of(asked, source), (), chooses_method=True)


@pytest.fixture(scope="module")
def chosen(easy: Path, start: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run that chose its method, and what it said."""
    lines: list[str] = []
    asked = Recipe(data=str(easy), weights=str(start), workers=0, precision="float32")
    with heard(lines.append):
        return train(asked, tmp_path_factory.mktemp("chosen") / "run"), lines


def test_a_head_that_is_right_nearly_always_becomes_the_model(chosen: tuple[Path, list[str]], easy: Path) -> None:
    folder, lines = chosen
    assert Recipe.load(folder / "recipe.toml").method == "probe"
    assert any("100.0 % of 120 training images" in line for line in lines)
    assert not any("enough to fine-tune" in line for line in lines)
    assert sum(line.startswith("method ") for line in lines) == 1
    assert (folder / "evaluation.json").is_file() and not (folder / "checkpoints").exists()
    assert json.loads((folder / "request.json").read_text()).keys() == {"data", "weights", "workers", "precision"}
    assert resolved(easy, folder).recipe.method == "full", "weights that know the photographs are not asked"


def test_its_test_images_are_those_that_fine_tuning_would_have(
    chosen: tuple[Path, list[str]], easy: Path, start: Path
) -> None:
    full = prepared(Recipe(data=str(easy), weights=str(start), method="full"), ())
    table = split_from_file(chosen[0] / "split.json")
    assert set(table.of_split("test").paths) == set(full.parts[0].images.table.of_split("test").paths) != set()
    assert "val" not in table.splits


def test_a_head_that_is_often_wrong_does_not(hard: Path, start: Path) -> None:
    chosen = resolved(hard, start)
    assert chosen.recipe.method == "full"
    assert any("is right for only" in reason for reason in chosen.reasons)


def test_shuffled_labels_are_predicted_by_chance_where_the_method_is_chosen(hard: Path, start: Path) -> None:
    full = prepared(Recipe(data=str(hard), weights=str(start), method="full", workers=0), ())
    part = full.parts[0].images
    reached = selection.probe_accuracy(FeatureStore(full.recipe, full.blueprint.weights), part.table, part.groups)
    assert reached.interval[0] <= 0.5 <= reached.interval[1] and reached.images == 80


@pytest.mark.parametrize(
    ("fields", "source"),
    [({"epochs": 2}, ""), ({"folds": 2}, "mine.toml"), ({"lora_rank": 8}, "mine.toml")],
    ids=["the user sets epochs", "every image is tested", "a field that nothing needs"],
)
def test_it_is_tried_only_where_it_may_become_the_model(
    easy: Path, start: Path, fields: dict[str, Any], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []
    measure = selection.probe_accuracy
    monkeypatch.setattr(selection, "probe_accuracy", lambda *args: tried.append(args) or measure(*args))
    chosen = resolved(easy, start, source, **fields)
    assert (chosen.recipe.method, bool(tried)) == (("probe", True) if "lora_rank" in fields else ("full", False))


@pytest.mark.parametrize("fields", [{"method": "full"}, {"weights": "none"}], ids=["named", "without weights"])
def test_nothing_is_tried_where_there_is_no_choice(
    easy: Path, start: Path, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(selection, "probe_accuracy")
    (part,) = resolved(easy, start, **fields).parts
    assert len(part.images.table.of_split("test")) > 0


def test_the_time_of_a_training_may_be_limited_where_the_method_is_chosen(start: Path, tmp_path: Path) -> None:
    few = runs.photos(tmp_path / "photos", images=8, noise=30)
    recipe = Recipe(data=str(few), weights=str(start), workers=0, precision="float32", time="60s")
    lines: list[str] = []
    with heard(lines.append):
        folder = train(recipe, tmp_path / "run")
    assert any("time acts on training steps" in line for line in lines)
    assert json.loads((folder / "request.json").read_text())["time"] == "60s"


# --- The cross-validation of a linear probe that decides between a head and fine-tuning ---------------


def right(x: torch.Tensor, y: torch.Tensor, parts: int) -> torch.Tensor:
    fold_of = torch.arange(len(y)) % parts
    found = torch.zeros(len(y), dtype=torch.bool)
    for part in range(parts):
        own = selection._right_of_part(x, y, fold_of, part, 4)
        assert not (own & (fold_of != part)).any()
        found |= own
    return found


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_an_image_is_not_judged_by_a_probe_that_knows_it(parts: int) -> None:
    """Features that name each image, and labels by lot: who has seen the label knows it, and nobody else does."""
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.permutation(np.arange(240) % 4))
    x = torch.eye(240) + 0.01 * torch.from_numpy(rng.normal(size=(240, 240)).astype(np.float32))
    low, high = binomtest(int(right(x, y, parts).sum()), 240).proportion_ci(0.999)
    assert low < 0.25 < high


def test_features_that_tell_the_classes_apart_are_right() -> None:
    y = torch.arange(200) % 4
    x = torch.eye(4)[y] + 0.1 * torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    assert right(x, y, 5).all()
