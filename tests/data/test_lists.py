"""Lists as other programs write them: what could change the result is read, or refused with what to do."""

from pathlib import Path

import pytest

import runs
import vitkit
from photos import noise, save
from refusals import refused
from vitkit.data import ImageTable, examine, read_source, split_from_file
from vitkit.training import train

NAMES = [f"img/{i}.png" for i in range(6)]
CLASSES = ["cat", "dog", "owl"]


def listed(folder: Path, header: str, *cells: str, suffix: str = "csv") -> Path:
    """A list of six pictures in the folder img, which exist, with `cells` after the path of each."""
    for i, name in enumerate(NAMES):
        if not (folder / name).exists():
            save(noise(seed=i), folder / name)
    mark = "\t" if suffix == "tsv" else ","
    lines = [header, *(mark.join([NAMES[i], row]) for i, row in enumerate(cells))]
    (folder / f"list.{suffix}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / f"list.{suffix}"


def with_column(folder: Path, title: str, values: list[str], suffix: str = "csv") -> Path:
    mark = "\t" if suffix == "tsv" else ","
    rows = [f"{CLASSES[i % 3]}{mark}{value}" for i, value in enumerate(values)]
    return listed(folder, mark.join(["path", "label", title]), *rows, suffix=suffix)


def labels_of(table: ImageTable) -> list[str]:
    return [table.name_of(i) for i in range(len(table))]


@pytest.mark.parametrize(
    ("title", "values", "code", "named"),
    [
        ("split", ["train", "test", "extra"] * 2, "data.split-invalid", "line 4"),
        ("split", ["train", "seg_test"] * 3, "data.split-invalid", "line 3"),
        ("split", ["train", "test", "", "", "", ""], "data.split-missing", "4 of 6"),
        *(
            (title, values, "data.column-ambiguous", title)
            for title, values in (
                ("data_split", ["0", "1", "2"] * 2),
                ("Usage", ["Training", "PublicTest"] * 3),
                ("phase", ["train", "test", "extra"] * 2),
                ("is_training_image", ["True", "False"] * 3),
                ("test", ["0", "1"] * 3),
            )
        ),
    ],
)
def test_splits_that_are_not_understood_are_refused(
    tmp_path: Path, title: str, values: list[str], code: str, named: str
) -> None:
    with refused(code, named):
        read_source(with_column(tmp_path, title, values))


@pytest.mark.parametrize(
    ("values", "splits"),
    [
        (["TRAIN", "dev", "eval"], ("train", "val", "test")),
        (["train", "eval", "test"], ("train", "val", "test")),
        (["train_set", "Validation Set", "Testing"], ("train", "val", "test")),
        ([""], (None,)),
    ],
)
def test_a_column_of_splits_is_read(tmp_path: Path, values: list[str], splits: tuple[str | None, ...]) -> None:
    times = 6 // len(values)
    table = read_source(with_column(tmp_path, "Split", values * times, "tsv"))
    assert table.splits == splits * times and table.overlooked == ()


UNREAD = {
    "fold": ["0", "1", "2"] * 2,
    "notes": ["test", "blurred", "", "", "", ""],
    "mode": ["train", "bus", "tram"] * 2,
    "vehicle": ["train"] * 6,
}


@pytest.mark.parametrize("title", UNREAD)
def test_columns_that_are_not_read_are_named(tmp_path: Path, title: str) -> None:
    table = read_source(with_column(tmp_path, f"{title},score", [f"{value},1" for value in UNREAD[title]]))
    assert set(table.splits) == {None}
    (line,) = table.overlooked
    assert f"{title}, score" in line
    assert any(line in str(finding) for finding in examine(table).findings)


@pytest.mark.parametrize(
    ("titles", "cells"),
    [
        ("phase", ["tr", "te"] * 3),
        ("set", ["training", "PublicTest", "PrivateTest"] * 2),
        ("set", ["train"] * 6),
        ("train_test", ["1", "0"] * 3),
        ("split,is_test", [",1", ",0"] * 3),
    ],
)
def test_a_column_that_may_tell_the_splits_is_never_only_noted(tmp_path: Path, titles: str, cells: list[str]) -> None:
    with refused("data.column-ambiguous", "may tell the splits"):
        read_source(with_column(tmp_path, titles, cells))


COMBINED = [["scab"], ["scab", "rust"], ["rust"], ["healthy"], ["scab", "rust"]]


def test_labels_joined_by_semicolons_are_split(tmp_path: Path) -> None:
    table = read_source(listed(tmp_path, "path,labels", *(";".join(names) for names in COMBINED)))
    assert labels_of(table) == ["scab", "rust;scab", "rust", "healthy", "rust;scab"]


@pytest.mark.parametrize("joint", [" ", "/", " & ", "-", "_and_", "\t", "、", ", ", "|"])
def test_labels_that_may_be_joined_or_single_names_are_refused_with_the_separator(tmp_path: Path, joint: str) -> None:
    for title in ("label", "labels"):
        with refused("data.label-invalid", repr(joint)[1:-1].strip(), "scab;rust"):
            read_source(listed(tmp_path, f"path,{title}", *(f'"{joint.join(names)}"' for names in COMBINED)))


def test_other_marks_of_several_classes_are_refused(tmp_path: Path) -> None:
    for label in ("['scab', 'rust']", "('scab', 'rust')", "{'scab': 1, 'rust': 0}", "[1, 0, 1]", "[scab]"):
        with refused("data.label-invalid", "line 3", repr(label)):
            read_source(listed(tmp_path, "path,label", "rust", f'"{label}"'))
    for cells, named in ((("a;b", "a|b", "a", "b"), "'|'"), (("a|b", "c"), "'|'"), (('"a,b"', "c"), "','")):
        with refused("data.label-invalid", "';'", named):
            read_source(listed(tmp_path, "path,labels", *cells))


def test_a_word_for_no_label_is_told(tmp_path: Path) -> None:
    table = read_source(listed(tmp_path, "path,label", "cat", "-1", "dog", "-1"))
    assert labels_of(table) == ["cat", "-1", "dog", "-1"] and "'-1' is read as a class" in table.layout


def test_names_with_such_characters_stay_whole(tmp_path: Path) -> None:
    for labels in (
        *(("golden retriever", "red panda", "panda"), ("tench, Tinca tinca", "shark, great white", "ray")),
        *(("w/o", "black/white", "and/or"), ("tiger", "shark", "tiger shark", "great white")),
        ("cat (black)", "(dog)", "owl"),
    ):
        table = read_source(listed(tmp_path, "path,label", *(f'"{label}"' for label in labels)))
        assert labels_of(table) == list(labels) and table.layout == ""


def test_a_column_of_0_and_1_for_each_class_is_read(tmp_path: Path) -> None:
    single = read_source(listed(tmp_path, "image,MEL,NV,split", "1.0,0.0,train", "0.0,1.0,test"))
    assert (labels_of(single), single.sets, single.splits) == (["MEL", "NV"], (), ("train", "test"))
    assert "2 columns of 0 and 1" in single.layout
    several = read_source(listed(tmp_path, "filename, cat, dog", "1, 1", "0, 0", "0, 1"))
    assert labels_of(several) == ["cat;dog", "", "dog"]


def test_of_several_columns_of_groups_the_one_called_group_is_read(tmp_path: Path) -> None:
    for titles in ("patient_id,group", "group,patient_id", "lesion_id,group"):
        table = read_source(with_column(tmp_path, titles, ["1,1" if i < 3 else "2,2" for i in range(6)]))
        assert "'group' stay in one split" in table.layout and "not read" in table.overlooked[0]
    for title in ("patient", "Lesion ID", "case_id"):
        alone = read_source(with_column(tmp_path, title, ["7", "7", "8", "8", "9", "9"]))
        assert set(alone.groups.values()) == set("789")


def test_a_group_column_keeps_images_in_one_split(tmp_path: Path) -> None:
    table = read_source(with_column(tmp_path, "patient_id,split", ["7,train", "7,test", *["8,train"] * 4]))
    assert table.groups == dict(zip(NAMES, ["7", "7", "8", "8", "8", "8"], strict=True))
    findings = [str(finding) for finding in examine(table).findings]
    assert any("in more than one of the data's own splits" in finding for finding in findings)
    with refused("data.groups-all-one"):
        read_source(with_column(tmp_path, "group", ["x"] * 6))
    vitkit.shard(with_column(tmp_path, "group", ["a", "a", "b", "b", "", ""]), tmp_path / "shards")
    assert read_source(tmp_path / "shards").groups == dict(zip(NAMES[:4], "aabb", strict=True))


def test_groups_stay_together_in_splits_and_count_in_intervals(tmp_path: Path) -> None:
    photos = runs.photos(tmp_path / "photos", images=12)
    rows = [
        f"{path.relative_to(tmp_path)},{path.parent.name},{i % 12 // 2}"
        for i, path in enumerate(sorted(photos.rglob("*.png")))
    ]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,group", *rows]) + "\n")
    run = train(runs.quick(tmp_path / "list.csv", epochs=1), tmp_path / "run")
    table = split_from_file(run / "split.json")
    groups = read_source(tmp_path / "list.csv").groups
    splits: dict[str, set[str | None]] = {}
    for path, split in zip(table.paths, table.splits, strict=True):
        splits.setdefault(groups[path], set()).add(split)
    assert len(splits) == 6 and all(len(each) == 1 for each in splits.values())
    (tmp_path / "other").mkdir()
    for name in ("photos", "list.csv"):
        (tmp_path / name).rename(tmp_path / "other" / name)
    figures = vitkit.evaluate(run, tmp_path / "other" / "list.csv").figures
    assert figures["independent_groups"] == sum(each == {"test"} for each in splits.values())
