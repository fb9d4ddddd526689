"""Trained again with corrected labels: what was not touched stays where it was, no copy is in two splits, and who
changes test labels after seeing mistakes gets the figure with the earlier labels in front of the other."""

import csv
import html
import json
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ImageOps

import runs
import vitkit
from once import once
from photos import save, scene
from refusals import refused
from vitkit.data import (
    EXCLUDED,
    Edit,
    ImageTable,
    add_edits,
    examine,
    labels_of,
    make_record,
    read_corrected,
    renaming,
    split_from_file,
    undo_edits,
)
from vitkit.evaluation import describe_labels, from_features
from vitkit.system import EVALUATION, PREDICTIONS, REPORT
from vitkit.training import Inputs, Recipe, RunImages, assign_splits, resume, train
from vitkit.weights import load


def correct(place: Path) -> None:
    """A run with a label file, and what it said."""
    place.mkdir()
    data = runs.shared_photos()
    edits = [Edit("red/img1.png", "blue", "red"), Edit(str(data / "red" / "img2.png"), EXCLUDED, "red")]
    edits += [Edit(f"green/img{number}.png", "gold", "green") for number in (1, 2, 3)]
    add_edits(place / "labels.csv", [*edits, Edit("none.png", "red")])
    fields = runs.quick_fields(epochs=1, logger="none", labels=str(place / "labels.csv"))
    (place / "said.txt").write_text(runs.followed(data, place / "run", **fields)[1])


@pytest.fixture(scope="module")
def corrected() -> Path:
    return once("corrected", correct) / "run"


def test_a_run_learns_the_corrected_labels_and_says_so(corrected: Path) -> None:
    folder, said, labels = corrected, (corrected.parent / "said.txt").read_text(), corrected.parent / "labels.csv"
    table = split_from_file(folder / "split.json")
    own = dict(labels_of(table))
    assert own["red/img1.png"] == "blue" and "red/img2.png" not in own
    assert table.counts() == {"blue": 13, "gold": 3, "green": 9, "red": 10}
    assert load(folder).classes == ("blue", "gold", "green", "red")
    assert "4 pictures with another label, 1 picture left out" in said and "none.png" in said
    assert (folder / "labels.csv").read_bytes() == labels.read_bytes()
    assert load(folder).provenance["recipe"]["labels"] == "labels.csv", "not where it lay"
    found = vitkit.evaluate(folder, split="train")
    names = [found.evaluation.classes[label] for label in found.evaluation.labels]
    assert dict(zip(found.evaluation.paths, names, strict=True)).items() <= own.items()


def test_an_interrupted_run_goes_on_without_its_label_file(corrected: Path, tmp_path: Path) -> None:
    """What it was to learn is in its folder."""
    folder = runs.copy_of(corrected, tmp_path / "run")
    recipe = Recipe.load(folder / "recipe.toml")
    (folder / "recipe.toml").write_text(recipe.replace(epochs=2, labels=str(tmp_path / "gone.csv")).to_toml())
    resume(folder)
    assert split_from_file(folder / "split.json") == split_from_file(corrected / "split.json")
    assert len(runs.metrics(folder)) == 2


def test_evaluating_with_a_label_file(corrected: Path, data: Path, tmp_path: Path) -> None:
    folder, more = corrected, tmp_path / "more.csv"
    held = split_from_file(folder / "split.json").of_split("test")
    before = vitkit.evaluate(folder)
    add_edits(more, [Edit(held.paths[0], EXCLUDED), Edit(held.paths[1], "gold"), Edit(held.paths[2], "gold")])
    after = vitkit.evaluate(folder, labels=more)
    assert after.figures["images"] == before.figures["images"] - 1
    names = [after.evaluation.classes[label] for label in after.evaluation.labels]
    assert names[:2] == [held.name_of(1), held.name_of(2)], "those that the run was tested with"
    same = vitkit.evaluate(folder, labels=corrected.parent / "labels.csv")  # by which it was trained
    assert same.figures["accuracy"] == before.figures["accuracy"]
    other = vitkit.evaluate(folder, data, labels=more, split="all")
    assert other.figures["with_seen"]["images"] == 35
    add_edits(more, [Edit(held.paths[3], "unheard of")])
    with refused("evaluation.class-unknown", "unheard of"):
        vitkit.evaluate(folder, labels=more)
    with refused("training.field-refused", "labels"):
        vitkit.train(vitkit.Datasets(train=[]), vitkit.Recipe(labels=str(more)))


@dataclass
class Workshop:
    """A folder of pictures, the label file of who works on it, and what the test knows of both."""

    root: Path
    labels: Path
    random: random.Random
    shown: dict[str, tuple[int, bool, int]] = field(default_factory=dict)  # scene, whether mirrored, number of the file
    scenes: int = 0

    def save(self, folder: str, number: int, *, mirrored: bool = False, side: int = 32) -> None:
        picture, file = scene(number, side), len(self.shown) + 1
        save(ImageOps.mirror(picture) if mirrored else picture, self.root / folder / f"{file}.png")
        self.shown[f"{folder}/{file}.png"] = number, mirrored, file

    def table(self) -> ImageTable:
        return read_corrected(self.root, self.labels)

    def picture(self) -> str:
        return self.random.choice(sorted(self.shown))

    def add(self) -> None:
        """A new scene, or a copy of one that is there: resized, mirrored or the same file again."""
        number, mirrored, _ = self.shown[self.picture()]
        folder, kind = self.random.choice("abc"), self.random.randrange(4)
        if kind == 0:
            self.scenes += 1
            self.save(folder, self.scenes)
        else:
            self.save(folder, number, mirrored=mirrored == (kind == 1), side=self.random.choice([32, 48, 64]))

    def relabel(self) -> None:
        add_edits(self.labels, [Edit(self.picture(), self.random.choice(["a", "b", "c", "d"]))])

    def exclude(self) -> None:
        if len(self.table()) > 25:
            add_edits(self.labels, [Edit(self.picture(), EXCLUDED)])

    def move(self) -> None:
        before = self.picture()
        after = f"{self.random.choice('abc')}/moved-{before.rpartition('/')[2]}"
        (self.root / before).rename(self.root / after)
        self.shown[after] = self.shown.pop(before)

    def rename(self) -> None:
        table = self.table()
        old, new = self.random.choice(table.classes), self.random.choice(["a", "b", "c", "d", "e"])
        if old != new and len(table.classes) > 2:
            add_edits(self.labels, renaming(labels_of(table), old, new))

    def edit(self) -> None:
        undo = partial(undo_edits, self.labels)
        doing = [self.add, self.exclude, self.move, self.relabel, self.rename, undo]
        self.random.choices(doing, weights=[5, 3, 3, 6, 1, 2])[0]()


def again(work: Workshop, folder: Path, before: Path | None) -> RunImages:
    """What `vitkit train --split-from BEFORE --labels FILE` writes down before it trains."""
    recipe = runs.quick(work.root, labels=str(work.labels), split_from=None if before is None else str(before))
    diagnosis = examine(work.table())
    nothing = make_record([], [], [], is_whole=True)
    own = assign_splits(RunImages(diagnosis.table, diagnosis.facts, diagnosis.twins), recipe, nothing)
    folder.mkdir()
    Inputs.of(own, nothing, []).write(folder, recipe)
    return own.images


def placed(work: Workshop, images: RunImages) -> dict[int, tuple[str, str | None]]:
    """The label and the split of each file by its number."""
    table = images.table
    return {work.shown[path][2]: (table.name_of(i), table.splits[i]) for i, path in enumerate(table.paths)}


def leaks(work: Workshop, images: RunImages) -> Iterator[tuple[str, str]]:
    """Pairs of files in different splits that show one scene: alike, or mirrored and in one class."""
    table = images.table
    rows = [(work.shown[path], table.name_of(i), table.splits[i], path) for i, path in enumerate(table.paths)]
    for k, ((number, mirrored, _), label, split, path) in enumerate(rows):
        for (other, turned, _), label_of_other, split_of_other, place in rows[:k]:
            if number == other and split != split_of_other and (mirrored == turned or label == label_of_other):
                yield path, place


@pytest.mark.parametrize("most", [30, pytest.param(500, marks=pytest.mark.accept)])
def test_over_edits_no_untouched_picture_moves_and_no_copy_leaks(tmp_path: Path, most: int) -> None:
    """Edit, train again, and look, again and again."""
    work = Workshop(tmp_path / "photos", tmp_path / "labels.csv", random.Random(0))
    for name in ("a", "b", "c"):
        for _ in range(9):
            work.scenes += 1
            work.save(name, work.scenes)
    add_edits(work.labels, [Edit(work.picture(), "a")])
    run = tmp_path / "run-0"
    images = again(work, run, None)
    before, edits, untouched = placed(work, images), 0, 0
    while edits < most:
        for _ in range(work.random.randint(1, 3)):
            work.edit()
            edits += 1
        run, last = tmp_path / f"run-{edits}", run
        images = again(work, run, last)
        assert list(leaks(work, images)) == [], f"after {edits} edits"
        after = placed(work, images)
        wanted = {work.shown[path][2]: label for path, label in labels_of(work.table())}
        for file in before.keys() & wanted.keys():
            if wanted[file] == before[file][0]:
                untouched += 1
                assert after[file] == before[file], f"after {edits} edits"
        before = after
    assert {split for _, split in after.values()} == {"train", "val", "test"}
    assert untouched > 7 * most


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
