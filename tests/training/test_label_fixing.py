"""Who accepts what a model proposes for test pictures gets the figure of the labels of before in front of the other."""

from __future__ import annotations

import csv
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
from vitkit.data import EXCLUDED, Edit, ImageTable, add_edits, read_source, split_from_file
from vitkit.data.seen import UNLABELLED
from vitkit.data.table import Proposal
from vitkit.errors import VitkitError
from vitkit.evaluation import (
    LabelError,
    describe_proposals,
    from_features,
    write_label_errors,
)
from vitkit.evaluation.evaluator import evaluate_before, proposal_figures
from vitkit.system import EVALUATION, LABEL_ERRORS, PREDICTIONS, REPORT
from vitkit.training import train
from vitkit.weights import load

FIELDS: dict[str, Any] = {"epochs": 1, "split": (0.4, 0.2, 0.4)}


def rows_of(run: Path) -> list[dict[str, str]]:
    with (run / PREDICTIONS).open(newline="") as text:
        return list(csv.DictReader(text))


def figures_of(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / EVALUATION).read_text()))


def accepted(run: Path) -> dict[str, str]:
    """What the run's model says of each test picture that it has wrong, as the list of its doubts suggests it."""
    wrong = {row["path"]: row for row in rows_of(run) if row["label"] != row["predicted"]}
    write_label_errors(
        run / LABEL_ERRORS, [LabelError(path, row["label"], row["predicted"], 0.9, 0.1) for path, row in wrong.items()]
    )
    return {path: row["predicted"] for path, row in wrong.items()}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on pictures of nothing that can be learned, which is wrong about two thirds of them."""
    root = tmp_path_factory.mktemp("fixing")
    data = runs.photos(root / "photos", images=16, noise=2000.0)
    return train(runs.quick(data, **FIELDS), root / "runs" / "first", say=lambda _: None)


@pytest.fixture(scope="module")
def second(first: Path) -> tuple[Path, dict[str, str], list[str]]:
    """A run after all its proposals were accepted, but for two pictures that were left out; and what it said."""
    root, proposals = first.parents[1], accepted(first)
    edits = [Edit(path, label) for path, label in list(proposals.items())[2:]]
    add_edits(root / "labels.csv", [*edits, *(Edit(path, EXCLUDED) for path in list(proposals)[:2])])
    said: list[str] = []
    recipe = runs.quick(root / "photos", labels=str(root / "labels.csv"), split_from=str(first), **FIELDS)
    return train(recipe, root / "runs" / "second", say=said.append), proposals, said


def accuracy(rows: list[dict[str, str]], column: str) -> float:
    known = [row for row in rows if row[column]]
    return sum(row[column] == row["predicted"] for row in known) / len(known)


def test_the_figure_in_front_is_that_of_the_labels_of_before(
    first: Path, second: tuple[Path, dict[str, str], list[str]]
) -> None:
    run, proposals, said = second
    rows, numbers = rows_of(run), figures_of(run)
    before = {row["path"]: row["label"] for row in rows_of(first)}
    assert {row["path"]: row["label"] for row in rows} == before, "those that are left out are tested too"
    now = {path: label for path, label in before.items() if path not in list(proposals)[:2]}
    now |= dict(list(proposals.items())[2:]) | dict.fromkeys(list(proposals)[:2], "")
    assert {row["path"]: row["label_now"] for row in rows} == now
    assert numbers["accuracy"] == pytest.approx(accuracy(rows, "label"))
    assert numbers["images"] == len(before)
    assert numbers["with_proposals"]["accuracy"] == pytest.approx(accuracy(rows, "label_now"))
    assert numbers["with_proposals"]["images"] == len(before) - 2
    told = numbers["proposed"]
    assert (told["changed"], told["left_out"], told["by"]) == (len(proposals) - 2, 2, ["first"])
    assert set(told["paths"]) == set(proposals)
    note = describe_proposals(numbers)
    assert note is not None and f"{len(proposals) - 2} labels changed, 2 images left out" in note
    assert f"note: {note}" in said
    assert f") on {len(before)} test images (with the original labels of" in said[-1]
    page = (run / REPORT).read_text()
    assert "with the original labels of" in page and "among the test images, as a model proposed (first)" in page
    assert "left out, as a model proposed" in page


def test_the_run_is_evaluated_again_to_the_same_figures(second: tuple[Path, dict[str, str], list[str]]) -> None:
    run, *_ = second
    numbers, found = figures_of(run), vitkit.evaluate(run)
    assert {name: found.figures[name] for name in numbers if name != "label_errors"} == {
        name: value for name, value in numbers.items() if name != "label_errors"
    }
    assert describe_proposals(numbers) in found.notes
    assert "with the original labels of" in repr(found)


def test_moved_photographs_are_found_again(second: tuple[Path, dict[str, str], list[str]], tmp_path: Path) -> None:
    run, *_ = second
    for i, path in enumerate(sorted((run.parents[1] / "photos").rglob("*.png"))):
        shutil.copy(path, tmp_path / f"{i}.png")
    found = vitkit.evaluate(run, data_root=tmp_path)
    assert found.accuracy == figures_of(run)["accuracy"]
    assert found.figures["proposed"]["left_out"] == 2


def test_a_model_is_not_judged_by_its_own_proposals(first: Path, tmp_path: Path) -> None:
    """By a label file, and in data whose pictures were moved into the classes that it says."""
    own, proposals = figures_of(first), accepted(first)
    add_edits(tmp_path / "labels.csv", [Edit(path, label) for path, label in proposals.items()])
    found = vitkit.evaluate(first, labels=tmp_path / "labels.csv")
    assert found.accuracy == own["accuracy"]
    assert found.figures["with_proposals"]["accuracy"] == 1
    data = Path(shutil.copytree(first.parents[1] / "photos", tmp_path / "photos"))
    for path, label in proposals.items():
        (data / path).rename(data / label / f"moved-{Path(path).name}-{Path(path).parent}.png")
    moved = vitkit.evaluate(first, data, split="all")
    assert moved.figures["proposed"]["changed"] == len(proposals)
    assert moved.figures["without_seen"]["accuracy"] == own["accuracy"]
    marked = tmp_path / "marked.csv"
    add_edits(marked, [Edit(path, "red", proposed_by="another") for path in proposals])
    assert vitkit.evaluate(first, labels=marked).accuracy == own["accuracy"]


def test_labels_that_no_model_proposed_are_the_test(first: Path, tmp_path: Path) -> None:
    proposals = accepted(first)
    other = {
        path: next(n for n in runs.COLOURS if n not in (label, Path(path).parts[0]))
        for path, label in proposals.items()
    }
    add_edits(tmp_path / "labels.csv", [Edit(path, label) for path, label in other.items()])
    found = vitkit.evaluate(first, labels=tmp_path / "labels.csv")
    assert "proposed" not in found.figures
    assert found.accuracy == figures_of(first)["accuracy"]  # what was wrong is wrong still


def test_a_class_that_proposals_have_emptied_counts_as_mistakes(first: Path) -> None:
    root = first.parents[1]
    table = split_from_file(first / "split.json")
    red = [path for i, path in enumerate(table.paths) if table.name_of(i) == "red"]
    add_edits(root / "emptied.csv", [Edit(path, "blue", "red", proposed_by="first") for path in red])
    recipe = runs.quick(root / "photos", labels=str(root / "emptied.csv"), split_from=str(first), **FIELDS)
    run = train(recipe, root / "runs" / "emptied", say=lambda _: None)
    numbers = figures_of(run)
    assert numbers["per_class"]["red"]["recall"] == 0 and numbers["per_class"]["red"]["support"] > 0
    assert set(numbers["with_proposals"]) >= {"accuracy", "intervals_95"}
    assert numbers["accuracy"] == pytest.approx(accuracy(rows_of(run), "label"))
    assert vitkit.evaluate(run).accuracy == numbers["accuracy"]


def test_where_no_label_is_left_that_no_model_proposed_it_is_said(first: Path, tmp_path: Path) -> None:
    heap = tmp_path / "heap"
    heap.mkdir()
    edits = []
    for path in sorted((first.parents[1] / "photos").rglob("*.png")):
        shutil.copy(path, heap / f"{path.parent.name}-{path.name}")
        edits.append(Edit(f"{path.parent.name}-{path.name}", path.parent.name, proposed_by="first"))
    add_edits(tmp_path / "labels.csv", edits)
    found = vitkit.evaluate(first, heap, labels=tmp_path / "labels.csv")
    assert any("no label is left that a model did not propose" in note for note in found.notes)


@pytest.mark.parametrize("known", [True, False])
def test_if_only_images_that_were_left_out_can_be_read(first: Path, tmp_path: Path, known: bool) -> None:
    """Their labels of before count; if there are none, there is nothing to evaluate."""
    data = shutil.copytree(first.parents[1] / "photos", tmp_path / "photos")
    kept = sorted(path.name for path in (data / "red").iterdir())[:3]
    table = read_source(data)
    table = table.take([i for i, path in enumerate(table.paths) if path in [f"red/{name}" for name in kept]])
    for name in kept:
        (data / "red" / name).write_bytes(b"\x89PNG\r\n\x1a\n")
    left_out = [f"{name}/img{i}.png" for name in ("blue", "green") for i in range(1, 9)]
    before = {path: path.split("/")[0] if known else UNLABELLED for path in left_out}
    proposals = [Proposal(path, label, "first", "all") for path, label in before.items()]
    model = load(first)
    if not known:
        with pytest.raises(VitkitError, match="no readable image"):
            evaluate_before(model, table, "all", proposals)
        return
    evaluated = evaluate_before(model, table, "all", proposals)
    assert evaluated.now is None and dict.fromkeys(evaluated.before.paths) == dict.fromkeys(left_out)
    assert [evaluated.before.label_of(i) for i in range(len(left_out))] == list(before.values())
    figures = proposal_figures(evaluated, None)
    assert (figures["proposed"]["left_out"], figures["with_proposals"]) == (len(left_out), {})
    assert "16 images left out" in str(describe_proposals({"split": "all", **figures}))


def test_images_of_several_classes(tmp_path: Path) -> None:
    for split, images in (("train", 10), ("val", 4)):
        runs.photos(tmp_path / "data" / split, images=images, noise=60.0, seed=images)
    listed = runs.several(tmp_path / "data")
    table = vitkit.train(
        listed, out=tmp_path / "runs" / "first", logger="none", say=lambda _: None, **runs.quick_fields()
    )
    paths = split_from_file(table.folder / "split.json").of_split("val").paths
    add_edits(
        tmp_path / "labels.csv",
        [Edit(paths[0], "b;c", proposed_by="first"), Edit(paths[1], EXCLUDED, proposed_by="first")],
    )
    before = vitkit.evaluate(table.folder)
    after = vitkit.evaluate(table.folder, labels=tmp_path / "labels.csv")
    assert after.accuracy == before.accuracy and after.figures["images"] == before.figures["images"]
    assert after.figures["proposed"]["changed"] == after.figures["proposed"]["left_out"] == 1
    assert after.figures["with_proposals"]["images"] == before.figures["images"] - 1


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
