"""Trained again with corrected labels: what was not touched stays where it was, and no copy is in two splits."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
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
from vitkit.training import Inputs, Recipe, RunImages, assign_splits, resume
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
    own = assign_splits(RunImages.of(diagnosis), recipe, nothing)
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
