"""Models are compared on images that none of their weights had seen, or not at all."""

import csv
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runs
import vitkit
from photos import scene
from refusals import refused
from vitkit.experiments import comparison_images
from vitkit.experiments.compare import compare
from vitkit.training import run

MODEL = "vit_micro_patch8_16"
SMALL: dict[str, Any] = {"model_fields": {**runs.SIZE, "layers": 1}}
OF_ANY_MODEL = {name: value for name, value in runs.QUICK.items() if name not in ("model", "weights", "epochs")} | SMALL
FIELDS: dict[str, Any] = {**OF_ANY_MODEL, "epochs": 1, "method": "full", "lp_ft": False}
CLASSES = ("a", "b", "c")


def scenes(root: Path, numbers: Iterable[int], side: int = 32) -> Path:
    """Pictures in class folders that mean nothing; of one number there is one picture in each class."""
    for place, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in numbers:
            scene(1000 * place + number, side).save(root / name / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data that come split, with 36 test images."""
    root = tmp_path_factory.mktemp("judging") / "photos"
    for name, numbers in (("train", range(10)), ("val", range(10, 13)), ("test", range(20, 32))):
        scenes(root / name, numbers)
    return root


@pytest.fixture(scope="module")
def seen(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained on 12 of the 36 test images."""
    root = tmp_path_factory.mktemp("seen")
    own = {"data": str(scenes(root / "photos", range(20, 24))), "split": (1.0, 0.0, 0.0)}
    return run.train(vitkit.Recipe(**{**runs.QUICK, **SMALL, "epochs": 1, **own}), root / "run")


@pytest.fixture(scope="module")
def found(data: Path, seen: Path, tmp_path_factory: pytest.TempPathFactory) -> vitkit.Result:
    out = tmp_path_factory.mktemp("compared") / "out"
    return compare(data, [f"{MODEL}@{seen}", f"{MODEL}@none"], vitkit.Recipe(**FIELDS), seeds=2, out=out)


def answers(folder: Path) -> dict[str, bool]:
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as text:
        return {row["path"]: row["label"] == row["predicted"] for row in csv.DictReader(text)}


def test_what_one_of_the_weights_had_seen_judges_none_of_the_models(found: vitkit.Result, seen: Path) -> None:
    name = f"{MODEL}@{seen.name}"
    figures = json.loads((found.folder / "comparison.json").read_text())
    assert (figures["test_images"], figures["left_out"]) == (24, {"images": 12, "seen": {name: 12}})
    known = {f"test/{own}/{number}.png" for own in CLASSES for number in range(20, 24)}
    for model in figures["models"]:
        for own in model["runs"]:
            right = [is_right for path, is_right in answers(found.folder / own["folder"]).items() if path not in known]
            assert len(right) == own["images"] == 24
            assert own["accuracy"] == pytest.approx(sum(right) / 24)
        assert model["accuracy"] == pytest.approx(sum(own["accuracy"] for own in model["runs"]) / 2)
    first, second = (
        np.array([[own for path, own in sorted(answers(found.folder / each["folder"]).items()) if path not in known]
                  for each in model["runs"]])
        for model in figures["models"]
    )  # fmt: skip
    (pair,) = figures["pairs"]
    assert pair["difference"] == pytest.approx(first.mean() - second.mean())
    # The other model's own evaluation counts all test images: its log loss is of others than these.
    assert [own["loss"] is None for model in figures["models"] for own in model["runs"]] == [False, False, True, True]
    with (found.folder / "comparison.csv").open(encoding="utf-8", newline="") as text:
        rows = list(csv.DictReader(text))
    assert [row["images"] for row in rows] == ["24"] * 4
    assert [float(row["accuracy"]) for row in rows] == pytest.approx(
        [own["accuracy"] for model in figures["models"] for own in model["runs"]]
    )
    told = f"12 of 36 test images are left out for all models: {name} had seen 12"
    assert told in figures["findings"] and told in figures["notes"]
    assert told in found.lines() and told in found.report.read_text() and told in found._repr_html_()


def test_where_too_few_are_left_nothing_is_trained(data: Path, seen: Path, tmp_path: Path) -> None:
    for name in ("train", "val"):
        shutil.copytree(data / name, tmp_path / "photos" / name)
    scenes(tmp_path / "photos" / "test", range(20, 25))
    names = [f"{MODEL}@{seen}", f"{MODEL}@none"]
    with refused("experiments.test-images-few", "3 images", f"{MODEL}@{seen.name} had seen 12"):
        compare(tmp_path / "photos", names, vitkit.Recipe(**FIELDS), seeds=1, out=tmp_path / "out")
    assert not (tmp_path / "out" / "runs").exists()


def test_copies_across_given_splits_judge_nobody(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "photos")
    scenes(tmp_path / "photos" / "train", (20, 21))  # the same file
    scenes(tmp_path / "photos" / "train", (22,), side=64)  # the picture resized
    name = f"{MODEL}@none"
    left = compare(tmp_path / "photos", [name], vitkit.Recipe(**OF_ANY_MODEL, epochs=1), seeds=1, out=tmp_path / "out")
    assert left.figures["test_images"] == 27
    assert left.figures["left_out"] == {"images": 9, "seen": {name: 9}}
    (own,) = left.models[0]["runs"]
    evaluated = json.loads((left.folder / own["folder"] / "evaluation.json").read_text())
    assert (own["accuracy"], own["loss"]) == (evaluated["accuracy"], evaluated["loss"])
    assert evaluated["seen"]["images"] == 9


def test_images_that_chose_the_epoch_are_no_test_images(data: Path, tmp_path: Path) -> None:
    for name in ("train", "val"):
        shutil.copytree(data / name, tmp_path / "photos" / name)
    recipe = vitkit.Recipe(**OF_ANY_MODEL, epochs=1)
    left = compare(tmp_path / "photos", [f"{MODEL}@none"], recipe, seeds=1, out=tmp_path / "out")
    chosen = ["epoch by val_acc", "temperature by log loss"]
    assert (left.figures["split"], left.figures["chosen_on"]) == ("val", chosen)
    lines, page = "\n".join(left.lines()), left.report.read_text()
    for told in (lines, page, left._repr_html_()):
        assert "test images" not in told and "9 validation images" in told and "too optimistic" in told
        assert "flattered by selection: chosen on these images: epoch by val_acc" in told
    with (left.folder / "comparison.csv").open(encoding="utf-8", newline="") as text:
        assert all(row["split"] == "val" and "chosen on these images" in row["caveats"] for row in csv.DictReader(text))


def test_the_lab_leaves_out_what_was_seen(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "photos")
    scenes(tmp_path / "photos" / "train", range(20, 23), side=64)
    fields = {name: own for name, own in OF_ANY_MODEL.items() if name != "method"}
    recipe = vitkit.Recipe(epochs=1, weights="none", **fields)
    found = vitkit.lab("norm", tmp_path / "photos", recipe, seeds=1, model=MODEL, out=tmp_path / "lab")
    assert isinstance(found, vitkit.Result)
    assert (found.figures["test_images"], found.figures["left_out"]["images"]) == (27, 9)
    assert found.remarks[1].startswith("27 test images")
    assert any("9 of 36 test images are left out for all models" in line for line in found.lines())
    for own in found.figures["variants"]:
        evaluated = json.loads((tmp_path / "lab" / own["runs"][0]["folder"] / "evaluation.json").read_text())
        assert own["accuracy"] == own["runs"][0]["accuracy"] == pytest.approx(evaluated["accuracy"])


def test_few_shots_are_tested_on_images_that_the_weights_had_not_seen(data: Path, seen: Path, tmp_path: Path) -> None:
    found = vitkit.lab("few-shot", data, model=seen, seeds=1, out=tmp_path / "lab")
    assert any(line.startswith("24 test images of 3 classes") for line in found.lines())
    assert any("12 of 36 test images are left out" in line for line in found.lines())


def test_images_that_are_left_are_counted_once() -> None:
    own = comparison_images.ComparisonImages("test", 40, {"x": frozenset("abc"), "y": frozenset("cd")})
    assert own.remaining == 36
    assert own.to_dict() == {"images": 4, "seen": {"x": 3, "y": 2}}
    own.check()
    assert comparison_images.ComparisonImages("test", 8, {}).findings() == []
    comparison_images.ComparisonImages("test", 8, {}).check()  # few, but nothing had been seen
    comparison_images.ComparisonImages("test", 8, {"x": frozenset("abcd")}).check()  # few, but not because of these
    for held_out, seen in ((40, 21), (8, 5), (1, 1)):
        with refused("experiments.test-images-few", "x had seen"):
            comparison_images.ComparisonImages("test", held_out, {"x": frozenset(map(str, range(seen)))}).check()
    with refused("experiments.test-images-few", "3 of 3 are trained on"):  # which is not blamed on the weights
        comparison_images.ComparisonImages("all", 3, {"a": frozenset("xyz"), "b": frozenset("xyz")}).check()
