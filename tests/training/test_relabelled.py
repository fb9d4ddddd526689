"""Test images keep the labels that they had in the run that the split or the weights come from."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import runs
from photos import noise, save
from refusals import refused
from vitkit.data import (
    EXCLUDED,
    Edit,
    ImageTable,
    add_edits,
    changes_since_run,
    images_of_run,
    labels_of,
    move_run,
    read_changes,
    read_corrected,
    read_source,
    renaming,
    split_from_file,
)
from vitkit.data.seen import UNLABELLED
from vitkit.training import Inputs, Recipe, SplitImages, prepared


class Work:
    """Photographs, and runs of them that begin and do not train."""

    def __init__(self, root: Path) -> None:
        self.root, self.labels = root, root / "labels.csv"
        self.photos = runs.photos(root / "photos", images=10, noise=60.0)

    def begin(self, name: str, *, split_from: str | None = None, out: str = "runs", **fields: Any) -> SplitImages:
        """What `vitkit train` settles, and writes down before it trains."""
        before = None if split_from is None else str(self.root / "runs" / split_from)
        labels = str(self.labels) if self.labels.exists() else None
        asked = {"data": str(self.photos), "labels": labels, "split_from": before, "split": (0.5, 0.1, 0.4)}
        settled = prepared(Recipe(**runs.quick_fields(**{**asked, **fields})), [self.root / out])
        for number, own in enumerate(settled.parts):
            folder = self.root / "runs" / name / (f"fold-{number + 1}" if len(settled.parts) > 1 else "")
            folder.mkdir(parents=True)
            Inputs.of(own, settled.seen_before, []).write(folder, settled.recipe)
        return settled.parts[0]

    def predict(self, name: str, predicted: dict[str, str]) -> None:
        """What a run writes about its test images; it predicts those that are not named correctly."""
        given = labels_of(self.table(name).of_split("test"))
        rows = [f"{path},{label},{predicted.get(path, label)},0.9\n" for path, label in given]
        file = self.root / "runs" / name / "predictions.csv"
        file.write_text("path,label,predicted,confidence\n" + "".join(rows))

    def table(self, name: str) -> ImageTable:
        return split_from_file(self.root / "runs" / name / "split.json")

    def of_split(self, name: str, split: str) -> list[str]:
        """The red photographs that a run has in a split."""
        return [path for path, label in labels_of(self.table(name).of_split(split)) if label == "red"]


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


def before(own: SplitImages) -> dict[str, str]:
    return {item.path: item.before for item in own.earlier.changed}


def proposed(work: Work, *edits: Edit) -> tuple[ImageTable, dict[str, str]]:
    work.labels.unlink(missing_ok=True)
    add_edits(work.labels, edits)
    table = read_corrected(work.photos, work.labels)
    return table, {own.path: own.before for own in table.earlier}


def test_the_label_before_the_first_proposal_is_known_after_several(work: Work) -> None:
    one, two, three, four = (f"red/img{i}.png" for i in range(1, 5))
    table, found = proposed(
        work,
        Edit(one, "green", "red"),  # a person, before any model
        Edit(one, "blue", "green", proposed_by="first"),
        Edit(one, "red", "blue", proposed_by="second"),
        Edit(two, "blue", "red", proposed_by="first"),
        Edit(two, "red", "blue"),  # taken back by a person
        Edit(three, "blue", "red", proposed_by="first"),
        Edit(three, "green", "blue"),  # the model's, changed by a person
        Edit(four, "green", "red"),
    )
    assert found == {one: "green", three: "red"}
    assert table.corrections[0] == "labels.csv: 2 pictures with another label (2 proposed by a model)"


def test_a_class_that_was_renamed_since_is_known_by_its_name_of_now(work: Work) -> None:
    rows = [Edit("red/img1.png", "blue", "red", proposed_by="first")]
    add_edits(work.labels, rows)
    rows += renaming(labels_of(read_corrected(work.photos, work.labels)), "red", "crimson")
    assert proposed(work, *rows)[1] == {"red/img1.png": "crimson"}
    rows += renaming(labels_of(read_corrected(work.photos, work.labels)), "crimson", "blue")
    assert proposed(work, *rows)[1] == {}, "both are one class now"


def test_photographs_of_several_classes(tmp_path: Path) -> None:
    for i in range(4):
        save(noise(seed=i), tmp_path / f"{i}.png")
    (tmp_path / "data.csv").write_text('path,labels\n0.png,"a;b"\n1.png,b\n2.png,\n3.png,a\n')
    proposals = ("0.png", "b;c", "a;b"), ("1.png", ";", "b"), ("2.png", "a", ";")
    edits = [Edit(*own, proposed_by="first") for own in proposals]
    add_edits(tmp_path / "labels.csv", [*edits, Edit("1.png", "b", ";"), Edit("3.png", "a;c", "a")])
    table = read_corrected(tmp_path / "data.csv", tmp_path / "labels.csv")
    assert {own.path: own.before for own in table.earlier} == {"0.png": "a;b", "2.png": ";"}


@pytest.mark.parametrize("how", ["new split", "split of the run", "folds", "given splits"])
def test_a_photograph_without_a_persons_label_is_never_tested(work: Work, how: str) -> None:
    """The first class is no label that somebody gave, however the photographs are split."""
    photos, work.photos = work.photos, work.root / "heap"
    heap, paths = work.photos, list[str]()
    if how == "given splits":
        for split in ("train", "test"):
            runs.photos(heap / split, images=6, noise=60.0, seed=len(split))
            (heap / split / "unlabelled").mkdir()
            for name in runs.COLOURS:
                paths.append(f"{split}/unlabelled/{name}.png")
                (heap / split / name / "img5.png").rename(heap / paths[-1])
    else:
        heap.mkdir()
        for path in sorted(photos.rglob("*.png")):
            name = f"{path.parent.name}-{path.name}"
            shutil.copy(path, heap / name)
            if int(path.stem.removeprefix("img")) > 6:
                paths.append(name)
            else:
                add_edits(work.labels, [Edit(name, path.parent.name)])
        if how == "split of the run":
            work.begin("first")
    add_edits(work.labels, [Edit(path, "blue", proposed_by="first") for path in paths])
    more: dict[str, Any] = {"folds": 3, "split": (0.7, 0.3, 0.0)} if how == "folds" else {}
    work.begin("second", out="elsewhere", split_from="first" if how == "split of the run" else None, **more)
    files = sorted((work.root / "runs" / "second").rglob("split.json"))
    assert len(files) == (3 if how == "folds" else 1)
    for file in files:
        table = split_from_file(file)
        split_of = dict(zip(table.paths, table.splits, strict=True))
        assert {split_of.get(path) for path in paths} <= {"train", None}
        assert any(split_of.get(path) == "train" for path in paths)
        assert {item.before for item in read_changes(file.parent).changed} == {UNLABELLED}


@pytest.mark.parametrize("way", ["label file", "moved files"])
def test_a_test_label_that_was_changed_counts_as_it_was(work: Work, way: str) -> None:
    work.begin("first")
    one, two, *_ = work.of_split("first", "test")
    if way == "label file":
        add_edits(work.labels, [Edit(one, "blue"), Edit(two, "green")])
    else:
        for path, place in ((one, "blue/moved.png"), (two, "green/moved.png")):
            (work.photos / path).rename(work.photos / place)
        one, two = "blue/moved.png", "green/moved.png"
    own = work.begin("second", split_from="first")
    assert before(own) == {one: "red", two: "red"}
    assert {item.by for item in own.earlier.changed} == {"first"}
    assert read_changes(work.root / "runs" / "second") == own.earlier


def test_the_third_round_knows_the_labels_of_the_first(work: Work) -> None:
    """With another label file in each round, and files that are renamed in between."""
    work.begin("first")
    one, two, three, *_ = work.of_split("first", "test")
    add_edits(work.labels, [Edit(path, "blue") for path in (one, two, three)])
    work.begin("second", split_from="first")
    (work.photos / one).rename(work.photos / "red" / "renamed.png")
    work.labels.unlink()
    add_edits(work.labels, [Edit("red/renamed.png", "green"), Edit(two, "red"), Edit(three, "blue")])
    third = work.begin("third", split_from="second")
    assert before(third) == {"red/renamed.png": "red", three: "red"}
    shutil.rmtree(work.root / "runs" / "first")
    assert {item.by for item in third.earlier.changed} == {"first"}
    assert before(work.begin("fourth", split_from="third")) == before(third)


@pytest.mark.parametrize("new", ["crimson", "blue"])
def test_a_class_that_was_renamed_or_merged_is_no_change(work: Work, new: str) -> None:
    work.begin("first")
    one, *_ = work.of_split("first", "test")
    edits = renaming(labels_of(read_source(work.photos)), "red", new)
    add_edits(work.labels, [*edits, Edit(one, "green")])
    assert before(work.begin("second", split_from="first")) == {one: new}


@pytest.mark.parametrize("way", ["another purpose", "a class is removed", "others"])
def test_other_photographs_or_for_another_purpose_are_neither_compared_nor_missed(work: Work, way: str) -> None:
    work.begin("first")
    work.predict("first", {})
    every, rng = labels_of(read_source(work.photos)), random.Random(0)
    if way == "another purpose":
        add_edits(work.labels, [Edit(path, rng.choice(["cat", "dog"])) for path, _ in every])
    elif way == "a class is removed":
        add_edits(work.labels, [Edit(path, EXCLUDED) for path, label in every if label == "red"])
    else:
        work.photos = runs.photos(work.root / "others", images=10, noise=60.0, seed=5)
    earlier = work.begin("second", split_from="first").earlier
    assert earlier.changed == earlier.missing == ()


@pytest.mark.parametrize("way", ["label file", "deleted", "shorter list"])
def test_missing_test_photographs_count_as_the_run_predicted_them(work: Work, way: str) -> None:
    work.begin("first")
    one, two, *_ = work.of_split("first", "test")
    work.predict("first", {one: "blue"})
    if way == "label file":
        add_edits(work.labels, [Edit(one, EXCLUDED), Edit(two, EXCLUDED)])
    elif way == "deleted":
        (work.photos / one).unlink()
        (work.photos / two).unlink()
    else:
        rows = [f"{path},{label}" for path, label in labels_of(read_source(work.photos)) if path not in (one, two)]
        (work.photos / "list.csv").write_text("\n".join(["path,label", *rows]))
        work.photos = work.photos / "list.csv"
    own = work.begin("second", split_from="first")
    missing = {(item.label, item.predicted, item.run) for item in own.earlier.missing}
    assert missing == {("red", "blue", "first"), ("red", "red", "first")}
    work.predict("second", {})
    assert set(work.begin("third", split_from="second").earlier.missing) == set(own.earlier.missing)


def test_labels_that_a_run_proposed_keep_its_split_and_folds_are_refused(work: Work) -> None:
    """What it learned from its training pictures is in the labels of others now: they can test nothing."""
    work.begin("first")
    rows = [Edit(path, "blue", "red", proposed_by="first") for path in work.of_split("first", "train")[:3]]
    add_edits(work.labels, rows)
    work.begin("second", seed=7)
    first, second = (dict(zip(own.paths, own.splits, strict=True)) for own in map(work.table, ("first", "second")))
    assert first == second
    with refused("training.folds-untestable", "first"):
        work.begin("folds", folds=3, split=(0.7, 0.3, 0.0))


def test_without_a_run_at_hand_the_label_file_tells_the_label_before(work: Work) -> None:
    one, two, *_ = [path for path, label in labels_of(read_source(work.photos)) if label == "red"]
    work.labels.write_text(f"path,label,suggested,score\n{one},blue,blue,0.9\n{two},green,blue,0.8\n")
    own = work.begin("second", out="elsewhere")
    assert before(own) == {one: "red"}
    assert [item.by for item in own.earlier.changed] == ["labels.csv"]


def test_what_a_run_keeps_is_found_where_its_photographs_are_now(work: Work) -> None:
    work.begin("first")
    add_edits(work.labels, [Edit(work.of_split("first", "test")[0], "blue", "red", proposed_by="first")])
    work.begin("second", split_from="first")
    folder, moved = work.root / "runs" / "second", work.root / "elsewhere"
    for i, path in enumerate(sorted(work.photos.rglob("*.png"))):
        (moved / path.parent.name).mkdir(parents=True, exist_ok=True)
        path.rename(moved / path.parent.name / f"{i}.png")
    for place in (moved, None):
        (item,) = changes_since_run(folder, images_of_run(folder / "split.json", place)).changed
        assert item.before == "red" and (moved / item.path).is_file()
        move_run(folder / "split.json", moved)


def test_a_damaged_list_of_earlier_labels_is_refused(work: Work) -> None:
    for content in ('[{"path": 1}]', '{"changed": []}', '{"changed": [], "missing": [{"a": 1}]}'):
        (work.root / "earlier_labels.json").write_text(content)
        with refused("data.run-damaged", "earlier_labels.json"):
            read_changes(work.root)
