"""Labels that a model proposed are known as such, round after round, whatever way they took into the data."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import runs
from photos import noise, save
from vitkit.data import (
    EXCLUDED,
    Edit,
    ImageTable,
    add_edits,
    images_of_run,
    labels_of,
    move_run,
    proposals_of_run,
    read_corrected,
    read_proposals,
    read_source,
    renaming,
    split_from_file,
)
from vitkit.data.seen import UNLABELLED
from vitkit.errors import VitkitError
from vitkit.evaluation import LabelError, write_label_errors
from vitkit.training import SplitImages, resolve, write_start


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
        settled = resolve(runs.quick_fields(**{**asked, **fields}), runs=[self.root / out])
        for number, own in enumerate(settled.parts):
            folder = self.root / "runs" / name / (f"fold-{number + 1}" if len(settled.parts) > 1 else "")
            folder.mkdir(parents=True)
            write_start(folder, settled.recipe, own, settled.before, [])
        return settled.parts[0]

    def doubt(self, name: str, suggested: dict[str, str]) -> None:
        """What a run lists in label_errors.csv."""
        label = dict(labels_of(split_from_file(self.root / "runs" / name / "split.json")))
        write_label_errors(
            self.root / "runs" / name / "label_errors.csv",
            [LabelError(path, label[path], other, 0.9, 0.1) for path, other in suggested.items()],
        )

    def of_split(self, name: str, split: str, label: str = "red") -> list[str]:
        """The photographs of a class that a run has in a split."""
        table = split_from_file(self.root / "runs" / name / "split.json")
        return [path for i, path in enumerate(table.paths) if (table.splits[i], table.name_of(i)) == (split, label)]


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


def before(own: SplitImages) -> dict[str, str]:
    return {proposal.path: proposal.before for proposal in own.proposals}


def marked(paths: Iterable[str], label: str, by: str = "first") -> list[Edit]:
    return [Edit(path, label, "red", proposed_by=by) for path in paths]


# --- The label file ----------------------------------------------------------------------------------------


def proposed(work: Work, *edits: Edit) -> tuple[ImageTable, dict[str, str]]:
    work.labels.unlink(missing_ok=True)
    add_edits(work.labels, edits)
    table = read_corrected(work.photos, work.labels)
    return table, {own.path: own.before for own in table.proposals}


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


def test_what_is_left_out_or_labelled_on_a_proposal_counts(work: Work) -> None:
    save(noise(32, 32, 5), work.photos / "new.png")
    _, found = proposed(
        work,
        Edit("red/img1.png", EXCLUDED, "red", proposed_by="first"),
        Edit("red/img2.png", EXCLUDED, "red"),
        Edit("new.png", "red", proposed_by="first"),
    )
    assert found == {"red/img1.png": "red", "new.png": UNLABELLED}


def test_a_class_that_was_renamed_since_is_known_by_its_name_of_now(work: Work) -> None:
    rows = [Edit("red/img1.png", "blue", "red", proposed_by="first")]
    add_edits(work.labels, rows)
    rows += renaming(labels_of(read_corrected(work.photos, work.labels)), "red", "crimson")
    assert proposed(work, *rows)[1] == {"red/img1.png": "crimson"}
    rows += [
        Edit(path, "blue", "crimson")
        for path, label in labels_of(read_corrected(work.photos, work.labels))
        if label == "crimson"
    ]
    assert proposed(work, *rows)[1] == {}, "both are one class now"


def test_photographs_of_several_classes(tmp_path: Path) -> None:
    for i in range(4):
        save(noise(seed=i), tmp_path / f"{i}.png")
    (tmp_path / "data.csv").write_text('path,labels\n0.png,"a;b"\n1.png,b\n2.png,\n3.png,a\n')
    add_edits(
        tmp_path / "labels.csv",
        [
            Edit("0.png", "b;c", "a;b", proposed_by="first"),
            Edit("1.png", ";", "b", proposed_by="first"),
            Edit("1.png", "b", ";"),
            Edit("2.png", "a", ";", proposed_by="first"),
            Edit("3.png", "a;c", "a"),
        ],
    )
    table = read_corrected(tmp_path / "data.csv", tmp_path / "labels.csv")
    assert {own.path: own.before for own in table.proposals} == {"0.png": "a;b", "2.png": ";"}


# --- Runs after one another --------------------------------------------------------------------------------


def test_rows_that_were_copied_by_hand_count_and_others_do_not(work: Work) -> None:
    work.begin("first")
    listed, other, third, free = work.of_split("first", "test")
    work.doubt("first", {listed: "blue", other: "blue", third: "blue"})
    add_edits(work.labels, [Edit(listed, "blue"), Edit(other, "green"), Edit(third, EXCLUDED), Edit(free, "blue")])
    own = work.begin("second", split_from="first")
    assert before(own) == {listed: "red", third: "red"}
    assert {proposal.path: proposal.split for proposal in own.proposals} == {listed: None, third: "test"}
    assert {proposal.by for proposal in own.proposals} == {"first"}


def test_an_edited_list_of_doubts_as_label_file_counts(work: Work) -> None:
    work.begin("first", out="elsewhere")
    one, two, *_ = work.of_split("first", "test")
    work.labels.write_text(f"path,label,suggested,score\n{one},blue,blue,0.9\n{two},green,blue,0.8\n")
    own = work.begin("second", out="elsewhere")  # no run is at hand that would tell
    assert before(own) == {one: "red"}
    assert [proposal.by for proposal in own.proposals] == ["labels.csv"]


def test_photographs_that_were_moved_into_the_suggested_class_count(work: Work) -> None:
    """There is no label file: what counts is the content."""
    work.begin("first")
    one, two, *_ = work.of_split("first", "test")
    work.doubt("first", {one: "blue", two: "blue"})
    (work.photos / one).rename(work.photos / "blue" / "moved.png")
    (work.photos / two).rename(work.photos / "green" / "moved.png")
    for split_from in ("first", None):
        assert before(work.begin(f"after-{split_from}", split_from=split_from)) == {"blue/moved.png": "red"}


def test_the_third_round_knows_the_labels_before_the_first(work: Work) -> None:
    """With another label file in each round, and files that are renamed in between."""
    work.begin("first")
    one, two, three, *_ = work.of_split("first", "test")
    work.doubt("first", {one: "blue", two: "blue", three: "blue"})
    add_edits(work.labels, [Edit(path, "blue") for path in (one, two, three)])
    work.begin("second", split_from="first")
    work.doubt("second", {one: "green", two: "red"})
    (work.photos / one).rename(work.photos / "red" / "renamed.png")
    work.labels.unlink()
    add_edits(work.labels, [Edit("red/renamed.png", "green"), Edit(two, "red"), Edit(three, "blue")])
    third = work.begin("third", split_from="second")
    assert before(third) == {"red/renamed.png": "red", three: "red"}, "of the second the label is what it was"
    shutil.rmtree(work.root / "runs" / "first")
    shutil.rmtree(work.root / "runs" / "second")
    work.doubt("third", {})
    assert before(work.begin("fourth", split_from="third")) == before(third)


def test_labels_by_another_rule_are_no_proposals(work: Work) -> None:
    """The same photographs with other classes of the same names: an earlier run says nothing of them."""
    work.begin("first")
    every = [path for path, _ in labels_of(read_source(work.photos))]
    work.doubt("first", dict.fromkeys(work.of_split("first", "test"), "blue"))
    rng = random.Random(0)
    add_edits(work.labels, [Edit(path, rng.choice(["red", "green", "blue"])) for path in every])
    assert before(work.begin("second")) == {}


def test_a_photograph_that_is_left_out_on_a_doubt_stays_in_the_test_and_in_no_other_split(work: Work) -> None:
    work.begin("first")
    (test, copied, *_), (train, *_) = work.of_split("first", "test"), work.of_split("first", "train")
    add_edits(work.labels, marked([test, copied, train], EXCLUDED))
    shutil.copy(work.photos / copied, work.photos / "blue" / "copy.png")  # the test's picture, learned elsewhere
    own = work.begin("second", split_from="first")
    assert {proposal.path: (proposal.before, proposal.split) for proposal in own.proposals} == {
        test: ("red", "test"),
        train: ("red", None),
    }
    assert {test, train} & set(own.images.table.paths) == set()


def test_without_a_run_at_hand_a_photograph_that_is_left_out_is_dealt_like_others(work: Work) -> None:
    paths = [path for path, label in labels_of(read_source(work.photos)) if label == "red"]
    add_edits(work.labels, marked(paths[:8], EXCLUDED))
    shares = [
        sum(proposal.split == "test" for proposal in work.begin(f"run-{seed}", seed=seed).proposals)
        for seed in range(6)
    ]
    assert 0 < sum(shares) < 6 * 8 and len(set(shares)) > 1
    folds = work.begin("folds", folds=3, split=(0.7, 0.3, 0.0))
    judged = [
        proposal.path
        for fold in (1, 2, 3)
        for proposal in read_proposals(work.root / "runs" / "folds" / f"fold-{fold}")
        if proposal.split == "test"
    ]
    assert sorted(judged) == sorted(paths[:8]), "each is tested once"
    assert len(folds.proposals) == 8


def test_labels_that_a_run_proposed_keep_its_split_and_folds_are_warned_of(work: Work) -> None:
    """What it learned from its training pictures is in the labels of others now: they can test nothing."""
    work.begin("first")
    train = work.of_split("first", "train")
    work.doubt("first", dict.fromkeys(train[:3], "blue"))
    add_edits(work.labels, [Edit(path, "blue") for path in train[:3]])
    first = split_from_file(work.root / "runs" / "first" / "split.json")
    own = work.begin("second", seed=7)
    assert dict(zip(own.images.table.paths, own.images.table.splits, strict=True)) == dict(
        zip(first.paths, first.splits, strict=True)
    )
    assert any("labels that first proposed contain what it has learned" in str(line) for line in own.findings)
    folds = work.begin("folds", folds=3, split=(0.7, 0.3, 0.0))
    assert any(
        "training images of first, which proposed" in str(line) and line.severity == "problem"
        for line in folds.findings
    )


def test_test_photographs_that_were_deleted_on_a_doubt_are_said(work: Work) -> None:
    work.begin("first")
    one, two, *_ = work.of_split("first", "test")
    work.doubt("first", {one: "blue", two: "blue"})
    (work.photos / one).unlink()
    own = work.begin("second", split_from="first")
    assert any("1 test image of first is missing whose label it had suspected" in str(line) for line in own.findings)


def test_what_a_run_keeps_is_found_where_its_photographs_are_now(work: Work) -> None:
    work.begin("first")
    test = work.of_split("first", "test")
    add_edits(work.labels, [*marked(test[:1], EXCLUDED), *marked(test[1:2], "blue")])
    work.begin("second", split_from="first")
    folder, moved = work.root / "runs" / "second", work.root / "elsewhere"
    for i, path in enumerate(sorted(work.photos.rglob("*.png"))):
        (moved / path.parent.name).mkdir(parents=True, exist_ok=True)
        path.rename(moved / path.parent.name / f"{i}.png")
    table = images_of_run(folder / "split.json", moved)
    found = {own.before: (moved / own.path).is_file() for own in proposals_of_run(folder, table)}
    assert found == {"red": True} and len(proposals_of_run(folder, table)) == 2
    assert all((moved / own.path).is_file() for own in proposals_of_run(folder, table))
    move_run(folder / "split.json", moved)
    assert all((moved / own.path).is_file() for own in read_proposals(folder))


def test_a_damaged_list_of_proposals_is_told(work: Work) -> None:
    (work.root / "proposals.json").write_text('[{"path": 1}]')
    with pytest.raises(VitkitError, match=r"proposals\.json is damaged"):
        read_proposals(work.root)


def test_other_photographs_are_not_missed(work: Work, tmp_path: Path) -> None:
    """Weights of a run go on to other data, where its photographs are not expected."""
    work.begin("first")
    work.doubt("first", dict.fromkeys(work.of_split("first", "test"), "blue"))
    work.photos = runs.photos(tmp_path / "others", images=10, noise=60.0, seed=5)
    own = work.begin("second", split_from="first")
    assert not any("no longer there" in str(line) for line in own.findings) and own.proposals == ()


def test_data_that_come_split_keep_their_split(work: Work) -> None:
    for split in ("train", "val", "test"):
        runs.photos(work.root / "split" / split, images=6, noise=60.0, seed=len(split))
    work.photos = work.root / "split"
    first = work.begin("first")
    train, test = (
        next(path for path in first.images.table.of_split(name).paths if "red" in path) for name in ("train", "test")
    )
    work.doubt("first", {train: "blue", test: "blue"})
    add_edits(work.labels, [Edit(train, "blue"), Edit(test, EXCLUDED)])
    own = work.begin("second")
    assert {proposal.path: (proposal.before, proposal.split) for proposal in own.proposals} == {
        train: ("red", None),
        test: ("red", "test"),
    }
    assert not any("its split is kept" in str(line) for line in own.findings)
