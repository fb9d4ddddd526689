"""Layouts of folders as people and archives make them: each is understood, or refused; none becomes a silly classifier.

A layout is written as its image files. What is understood is written as the images of each class in each split.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refusals import refused
from vitkit.data import ImageTable, LayoutName, read_source
from vitkit.errors import VitkitError


def planted(root: Path, folders: dict[str, int]) -> Path:
    """So many empty image files in each folder."""
    for folder, images in folders.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for i in range(images):
            (root / folder / f"{i}.jpg").touch()
    return root


def found(table: ImageTable) -> dict[tuple[str | None, str], int]:
    return dict(Counter((split, table.name_of(i)) for i, split in enumerate(table.splits)))


def both(*splits: tuple[str, str], test: int = 2) -> dict[str, int]:
    """cat and dog in each of these (folder, split) pairs, train with 5 images of a class."""
    return {f"{folder}/{name}": 5 if split == "train" else test for folder, split in splits for name in ("cat", "dog")}


def of(*splits: str) -> dict[tuple[str | None, str], int]:
    return {(split, name): 5 if split == "train" else 2 for split in splits for name in ("cat", "dog")}


AS_CLASSES = {  # each folder is a class, with all that is in it
    "classes": {"cat": 5, "dog": 5},
    "classes of nested folders": {"cat/2023/may": 2, "cat/indoors": 3, "dog/park": 5},
    "class folders with images and folders": {"cat": 4, "cat/more": 1, "dog": 4, "dog/more": 1},
    "a class called train": {"bus": 3, "car": 3, "train": 3},
    "classes that contain such words": {"trainer": 3, "contest": 3, "device": 3, "test_val": 3, "test tubes": 1},
    "a class called train, of nested folders": {"bus/city": 3, "car/sports": 3, "train/steam": 2, "train/diesel": 1},
    "a class called train, with images and folders": {"bus": 3, "train": 2, "train/steam": 1},
}
INTEL = both(("seg_train/seg_train", "train"), ("seg_test/seg_test", "test")) | {"seg_pred/seg_pred": 7}
IN_SPLITS = {  # cat and dog in train and in test
    "capitals": both(("Training", "train"), ("Testing", "test")),
    "train and eval": both(("train", "train"), ("eval", "test")),
    "Intel Image": INTEL,
    "twice in a wrapper": both(("archive/training_set/training_set", "train"), ("archive/test_set/test_set", "test")),
    "words between": both(("Train Images", "train"), ("Test Images", "test")),
    "a name of its own": both(("pets_train", "train"), ("pets_test", "test")),
    "trainval": both(("trainval", "train"), ("test", "test")),
    "images within": both(("train/images", "train"), ("test/images", "test")),
    "nested classes": {"train/cat/a": 3, "train/cat/b": 2, "train/dog": 5, "test/cat/c": 2, "test/dog": 2},
    "images in every class": {"train/cat/images": 5, "train/dog/img": 5, "test/cat/images": 2, "test/dog": 2},
}
UNDERSTOOD: dict[str, tuple[dict[str, int], dict[tuple[str | None, str], int]]] = {
    **{
        name: (folders, dict(sum((Counter({(None, own.split("/")[0]): n}) for own, n in folders.items()), Counter())))
        for name, folders in AS_CLASSES.items()
    },
    **{name: (folders, of("train", "test")) for name, folders in IN_SPLITS.items()},
    "classes in a wrapper": ({"pets/cat": 5, "pets/dog": 5}, {(None, "cat"): 5, (None, "dog"): 5}),
    "train, valid, test": (both(("train", "train"), ("valid", "val"), ("test", "test")), of("train", "val", "test")),
    "train, eval and test": (both(("train", "train"), ("eval", "val"), ("test", "test")), of("train", "val", "test")),
    "chest x-ray": (both(("x/train", "train"), ("x/val", "val")) | {"x/__MACOSX/train/cat": 3}, of("train", "val")),
    "train and unlabelled test": (both(("train", "train")) | {"test": 9}, of("train")),
    "tiny-imagenet": ({"train/cat/images": 5, "train/dog/images": 5, "val/images": 4, "test/images": 4}, of("train")),
    "ASL alphabet": (both(("asl_train/asl_train", "train")) | {"asl_test/asl_test": 9}, of("train")),
    "test alone": (both(("test", "test")), of("test")),
    "a class train within splits": (
        {"train/bus": 5, "train/train": 5, "val/bus": 2, "val/train": 2},
        {("train", "bus"): 5, ("train", "train"): 5, ("val", "bus"): 2, ("val", "train"): 2},
    ),
}
LABELLED = ("cat", "dog")
UNCLEAR: dict[str, dict[str, int]] = {  # layouts that could be read in more than one way
    "folds": {f"fold{k}/{name}": 3 for k in (1, 2) for name in LABELLED},
    "folds in capitals": {"a/Cat": 3, "a/Dog": 3, "b/cat": 3, "b/dog": 3},
    "folds deeper down": {"a/x/cat": 1, "a/x/dog": 1, "b/y/cat": 1, "b/y/dog": 1},
    "folds beside a sample": {"a/cat": 1, "a/dog": 1, "b/cat": 1, "b/dog": 1, "sample": 4},
    "a test split by another name": both(("train", "train"), ("holdout", "test")),
    "classes by another name": {"training": 3, "testing": 3},
    "splits without class folders": {"train": 3, "val": 3, "test": 3},
    "splits of each class, side by side": {f"{name}_{split}": 3 for name in LABELLED for split in ("train", "test")},
    "test with classes, train without": both(("test", "test")) | {"train": 9},
    "train twice": both(("train", "train"), ("training", "train"), ("test", "test")),
    "side by side": both(("a/train", "train"), ("a/test", "test"), ("b/train", "train"), ("b/test", "test")),
    "splits in a split": both(("train/train", "train"), ("train/val", "val"), ("test", "test")),
    "other classes in test": {"train/cat": 3, "train/dog": 3, "test/bus": 3, "test/car": 3},
    "class first": {"cat/train": 5, "dog/train": 5, "cat/test": 2, "dog/test": 2},
    "classes by year": {f"{name}/{year}": 2 for name in LABELLED for year in (2023, 2024)},
}
ALIKE = {  # class names of two splits that differ only in spelling
    "accents": {"train/caf\u00e9": 3, "train/dog": 3, "test/cafe\u0301": 3, "test/dog": 3},
    "a space at the end": {"train/cat ": 3, "train/dog": 3, "test/cat": 3, "test/dog": 3},
    "capitals": {"train/Cat": 3, "train/dog": 3, "test/cat": 3, "test/dog": 3},
}
ONE_CLASS = {
    "one class that is a wrapper": {"images/cat": 3, "images/dog": 3, "notes": 0},
    "YOLO": {"train/images": 5, "train/labels": 0, "val/images": 2, "val/labels": 0},
}
REFUSED = {
    "test twice": (both(("train", "train"), ("test", "test"), ("testing", "test")), "data.splits-twice"),
    **{name: (folders, "data.layout-ambiguous") for name, folders in UNCLEAR.items()},
    **{name: (folders, "data.classes-alike") for name, folders in ALIKE.items()},
    **{name: (folders, "data.class-single") for name, folders in ONE_CLASS.items()},
}


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_what_is_understood_has_exactly_these_classes_splits_and_images(name: str, tmp_path: Path) -> None:
    folders, expected = UNDERSTOOD[name]
    table = read_source(planted(tmp_path, folders))
    assert found(table) == expected
    assert all(table.file(i).is_file() for i in range(len(table)))
    assert table.layout.startswith("folders read as ")
    assert "\n" not in table.layout


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused(name: str, tmp_path: Path) -> None:
    folders, code = REFUSED[name]
    with refused(code, str(tmp_path)):
        read_source(planted(tmp_path, folders))


@pytest.mark.parametrize(
    ("folders", "asked", "expected"),
    [
        ({"train": 3, "test": 2}, "classes", {(None, "train"): 3, (None, "test"): 2}),
        (UNCLEAR["folds"], "classes", {(None, "fold1"): 6, (None, "fold2"): 6}),
        (UNCLEAR["classes by year"], "classes", {(None, "cat"): 4, (None, "dog"): 4}),
        ({"bus": 3, "train/steam": 3, "train/diesel": 2}, "classes", {(None, "bus"): 3, (None, "train"): 5}),
        ({"bus": 3, "train/steam": 3, "train/diesel": 2}, "splits", {("train", "steam"): 3, ("train", "diesel"): 2}),
        ({"train/a": 3, "train/b": 2, "test/c": 1}, "splits", {("train", "a"): 3, ("train", "b"): 2, ("test", "c"): 1}),
    ],
)
def test_the_layout_can_be_said(
    tmp_path: Path, folders: dict[str, int], asked: LayoutName, expected: dict[Any, int]
) -> None:
    assert found(read_source(planted(tmp_path, folders), layout=asked)) == expected
    with refused("data.splits-missing"):
        read_source(planted(tmp_path / "other", {"cat": 2, "dog": 2}), layout="splits")


def test_the_line_says_what_is_where_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    table = read_source(planted(tmp_path / "intel", INTEL))
    assert "left out: seg_pred/" in table.layout
    assert table.ignored == {"folder seg_pred beside the splits": 1}
    wrapped = read_source(planted(tmp_path / "wrapped", {"pets/cat": 1, "pets/dog": 2}))
    assert wrapped.layout.endswith("in pets/") and wrapped.root == tmp_path / "wrapped"


@given(
    folders=st.dictionaries(
        st.lists(st.sampled_from(["train", "test", "val", "cat", "dog", "fold1", "fold2"]), min_size=1, max_size=3).map(
            "/".join
        ),
        st.integers(1, 2),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=60)
def test_no_split_becomes_a_class_as_well(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, int]) -> None:
    """Whatever the folders: understood or refused, every image in one class, and no two splits as classes."""
    root = planted(tmp_path_factory.mktemp("any"), folders)
    try:
        table = read_source(root)
    except VitkitError:
        return
    assert len(set(table.paths)) == len(table)
    assert len({"train", "test", "val"} & set(table.classes)) < 2
    assert not {"fold1", "fold2"} <= set(table.classes) or not all(
        any(f"fold{k}/{name}" in path for path in table.paths) for k in (1, 2) for name in ("cat", "dog")
    )
    given = {split for split in table.splits if split is not None}
    for path, split in zip(table.paths, table.splits, strict=True):
        if given:
            assert split in path.split("/"), (path, split)
