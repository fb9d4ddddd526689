"""Who changes test labels after seeing mistakes gets the figure with the earlier labels in front of the other."""

import csv
import html
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import runs
import vitkit
from once import once
from refusals import refused
from vitkit.data import EXCLUDED, Edit, ImageTable, add_edits, split_from_file
from vitkit.evaluation import describe_labels, from_features
from vitkit.system import EVALUATION, PREDICTIONS, REPORT
from vitkit.training import train

FIELDS: dict[str, Any] = {"epochs": 1, "split": (0.4, 0.2, 0.4)}


def rows_of(run: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((run / PREDICTIONS).read_text().splitlines()))


def figures_of(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / EVALUATION).read_text()))


def mistakes(run: Path) -> dict[str, str]:
    """What the run's model says of each test picture that it has wrong."""
    return {row["path"]: row["predicted"] for row in rows_of(run) if row["label"] != row["predicted"]}


@pytest.fixture(scope="module")
def first() -> Path:
    """A run on pictures of nothing that can be learned, which is wrong about two thirds of them."""

    def make(root: Path) -> None:
        data = runs.photos(root / "photos", images=16, noise=2000.0)
        train(runs.quick(data, **FIELDS), root / "runs" / "first")

    return once("fixing", make) / "runs" / "first"


@pytest.fixture(scope="module")
def second(first: Path) -> Path:
    """A run after all mistakes became labels, but for two pictures that were left out."""

    def make(root: Path) -> None:
        root.mkdir()
        wrong = list(mistakes(first).items())
        edits = [*(Edit(path, label) for path, label in wrong[2:]), *(Edit(path, EXCLUDED) for path, _ in wrong[:2])]
        add_edits(root / "labels.csv", edits)
        photos = first.parents[1] / "photos"
        recipe = runs.quick(photos, labels=str(root / "labels.csv"), split_from=str(first), **FIELDS)
        (root / "said.txt").write_text(runs.told(recipe, root / "second")[1])

    return once("fixed", make) / "second"


def accuracy(rows: list[dict[str, str]], column: str) -> Any:
    return pytest.approx(sum(row[column] == row["predicted"] for row in rows) / len(rows))


def test_the_figure_in_front_is_of_earlier_labels(first: Path, second: Path) -> None:
    run, wrong, said = second, mistakes(first), (second.parent / "said.txt").read_text()
    rows, numbers, left_out = rows_of(run), figures_of(run), list(wrong)[:2]
    before = {row["path"]: row["label"] for row in rows_of(first)}
    then = {path: label for path, label in before.items() if path not in left_out}
    assert {row["path"]: row["label"] for row in rows} == then
    assert {row["path"]: row["label_now"] for row in rows} == {p: wrong.get(p, label) for p, label in then.items()}
    assert numbers["accuracy"] == accuracy(rows, "label")
    assert numbers["with_labels_now"]["accuracy"] == accuracy(rows, "label_now")
    assert numbers["relabelled"]["runs"] == ["first"]
    assert set(numbers["relabelled"]["paths"]) == wrong.keys() - set(left_out)
    missing = numbers["missing_tests"]
    assert (missing["images"], missing["right"], missing["runs"]) == (2, 0, ["first"])
    headline = vitkit.TrainingRun(run).headline
    assert headline.images == len(before)
    assert headline.value == pytest.approx(numbers["accuracy"] * len(rows) / len(before)), "both had been wrong"
    assert headline.interval is not None and headline.interval[0] < headline.value < headline.interval[1]
    note = describe_labels(numbers)
    assert note is not None and f"note: {note}" in said.splitlines()
    words = f"{len(wrong) - 2} labels have changed since first, and the earlier ones count; with today's labels"
    for text in (note, said.splitlines()[-1], html.unescape((run / REPORT).read_text())):
        assert words in text
    assert said.splitlines()[-1].startswith(f"accuracy {headline.value:.4f}")


def test_the_run_is_evaluated_again_to_the_same_figures(first: Path, second: Path, tmp_path: Path) -> None:
    numbers, found = figures_of(second), vitkit.evaluate(second)
    assert all(found.figures[name] == value for name, value in numbers.items() if name != "label_errors")
    assert describe_labels(numbers) in found.notes
    for i, path in enumerate(sorted((first.parents[1] / "photos").rglob("*.png"))):
        shutil.copy(path, tmp_path / f"{i}.png")
    moved = vitkit.evaluate(second, data_root=tmp_path).figures
    assert moved["headline"]["value"] == numbers["headline"]["value"]
    assert moved["missing_tests"]["images"] == 2


@pytest.mark.parametrize("way", ["labels", "left out", "deleted", "moved"])
def test_no_run_is_judged_by_labels_changed_after_its_mistakes(first: Path, tmp_path: Path, way: str) -> None:
    own, wrong = figures_of(first)["headline"], mistakes(first)
    root = runs.copy_of(first.parents[1], tmp_path / "work")
    data, run = root / "photos", root / "runs" / "first"
    stored = json.loads((run / "split.json").read_text())
    (run / "split.json").write_text(json.dumps({**stored, "root": str(data)}))
    asked: dict[str, Any] = {"data": data, "split": "all"}
    if way in ("labels", "left out"):
        asked = {"labels": root / "given.csv"}
        add_edits(root / "given.csv", [Edit(path, new if way == "labels" else EXCLUDED) for path, new in wrong.items()])
    for path, label in wrong.items():
        if way == "moved":
            (data / path).rename(data / label / f"moved-{Path(path).name}-{Path(path).parent}.png")
        elif way == "deleted":
            (data / path).unlink()
    found = vitkit.evaluate(run, **asked).figures["headline"]
    assert found["value"] == pytest.approx(own["value"])
    assert found["caveats"]


def test_a_class_that_proposals_have_emptied_counts_as_mistakes(first: Path, tmp_path: Path) -> None:
    table, emptied = split_from_file(first / "split.json"), tmp_path / "emptied.csv"
    red = [path for i, path in enumerate(table.paths) if table.name_of(i) == "red"]
    add_edits(emptied, [Edit(path, "blue", "red", proposed_by="first") for path in red])
    recipe = runs.quick(first.parents[1] / "photos", labels=str(emptied), split_from=str(first), **FIELDS)
    run = train(recipe, tmp_path / "run")
    numbers = figures_of(run)
    assert numbers["per_class"]["red"]["recall"] == 0 and numbers["per_class"]["red"]["support"] > 0
    assert set(numbers["with_labels_now"]) >= {"accuracy", "intervals_95"}
    assert numbers["accuracy"] == accuracy(rows_of(run), "label")
    assert vitkit.evaluate(run).accuracy == numbers["accuracy"]


def test_where_no_label_is_left_that_no_model_proposed_there_is_no_figure(first: Path, tmp_path: Path) -> None:
    heap, edits = tmp_path / "heap", []
    heap.mkdir()
    for path in sorted((first.parents[1] / "photos").rglob("*.png")):
        name = f"{path.parent.name}-{path.name}"
        (heap / name).write_bytes(path.read_bytes() + b" ")  # pictures that no run knows
        edits.append(Edit(name, path.parent.name, proposed_by="first"))
    add_edits(tmp_path / "labels.csv", edits)
    with refused("evaluation.labels-proposed"):
        vitkit.evaluate(first, heap, labels=tmp_path / "labels.csv")


def test_images_of_several_classes(tmp_path: Path) -> None:
    for split, images in (("train", 10), ("val", 4)):
        runs.photos(tmp_path / "data" / split, images=images, noise=60.0, seed=images)
    recipe = runs.quick(runs.several(tmp_path / "data"), epochs=1)
    run, labels = train(recipe, tmp_path / "runs" / "first"), tmp_path / "labels.csv"
    paths = split_from_file(run / "split.json").of_split("val").paths
    add_edits(labels, [Edit(paths[i], new, proposed_by="first") for i, new in enumerate(("b;c", EXCLUDED))])
    before, after = vitkit.evaluate(run).figures, vitkit.evaluate(run, labels=labels).figures
    assert after["headline"]["value"] == pytest.approx(before["headline"]["value"])
    assert after["headline"]["images"] == before["images"]
    assert len(after["relabelled"]["paths"]) == after["missing_tests"]["images"] == 1


def test_labels_of_test_images_teach_no_suggestion() -> None:
    """They would come into the training by what is suggested for others: labels drawn by lot came to 0.38 of 0.20."""
    rng = np.random.default_rng(0)
    n = 300
    right = rng.integers(0, 3, n)
    features = torch.from_numpy((rng.normal(size=(n, 8)) + 4 * np.eye(8)[right]).astype(np.float32))
    labels = torch.from_numpy(np.where(rng.random(n) < 0.2, rng.integers(0, 3, n), right))
    splits = tuple(rng.permutation(["train"] * 180 + ["val"] * 30 + ["test"] * 90).tolist())
    table = ImageTable("t", Path(), tuple("abc"), tuple(map(str, range(n))), tuple(labels.tolist()), splits)
    held_out = np.array([own == "test" for own in splits])

    def suggested(table: ImageTable, labels: torch.Tensor) -> Mapping[str, tuple[str, float]]:
        found = from_features(table, features, labels)
        return {own.path: (own.suggested, own.score) for own in found if not held_out[int(own.path)]}

    other = labels.clone()
    other[held_out] = torch.from_numpy(rng.integers(0, 3, int(held_out.sum())))
    assert len(suggested(table, labels)) > 10
    assert suggested(table, labels) == suggested(replace(table, labels=tuple(other.tolist())), other)
