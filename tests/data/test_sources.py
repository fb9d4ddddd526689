"""Which files are images, of which class and split; and what is said when there are none."""

import csv
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import runs
from photos import folder, noise, save
from refusals import refused
from vitkit.data import (
    SUFFIXES,
    SearchLog,
    examine,
    find_images,
    read_source,
)
from vitkit.data.storage import walk
from vitkit.text import restored
from vitkit.training import train


def test_a_folder_of_class_folders(tmp_path: Path) -> None:
    table = read_source(folder(tmp_path / "pets", {"dog": 3, "cat": 2}))
    assert table.classes == ("cat", "dog")
    assert table.paths == ("cat/cat_0.png", "cat/cat_1.png", "dog/dog_0.png", "dog/dog_1.png", "dog/dog_2.png")
    assert table.labels == (0, 0, 1, 1, 1) and table.counts() == {"cat": 2, "dog": 3}
    assert set(table.splits) == {None} and table.ignored == {}
    assert all(table.file(i).is_file() for i in range(5)) and table.root.is_absolute()
    assert set(SUFFIXES) >= {".jpg", ".jpeg", ".png", ".webp", ".heic"}
    names = ["2", "10", "b", "B", "a b", "a-b", "a_b", "🐈", "猫", "Ärger"]
    assert read_source(folder(tmp_path / "names", dict.fromkeys(names, 1))).classes == tuple(sorted(names))
    some = table.take([3, 0])
    assert (some.paths, some.classes) == (("dog/dog_1.png", "cat/cat_0.png"), ("cat", "dog"))
    small = table.take([4]).compact()  # without the classes that have no rows
    assert (small.paths, small.classes, small.labels) == (("dog/dog_2.png",), ("dog",), (0,))


@given(
    files=st.dictionaries(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["", "deep/"]), st.text("xyz", min_size=1, max_size=3)),
        st.sampled_from([".png", ".JPG", ".txt", ".json", "", ".npy"]),
        max_size=12,
    ),
    hidden=st.sets(st.sampled_from(["a/.DS_Store", "b/.x.png", "a/._y.jpg", "c/deep/.z"])),
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_images_and_ignored_files_add_up_to_what_is_on_disk(
    tmp_path_factory: pytest.TempPathFactory, files: dict[tuple[str, str, str], str], hidden: set[str]
) -> None:
    root = tmp_path_factory.mktemp("d")
    made = [f"{c}/{deep}{stem}{end}" for (c, deep, stem), end in files.items()]
    for path in ["a/must.png", "b/must.png", *hidden, *made]:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    table = read_source(root)
    on_disk = sum(path.is_file() for path in root.rglob("*"))
    assert len(table) + sum(table.ignored.values()) == on_disk
    assert table.ignored.get("hidden", 0) + table.ignored.get("system file", 0) == len(hidden)
    assert sum(table.counts().values()) == len(table)
    assert len(set(table.paths)) == len(table)


def test_a_folder_without_classes_is_refused(tmp_path: Path) -> None:
    with refused("data.source-missing", str(tmp_path / "none")):
        read_source(tmp_path / "none")
    with refused("data.images-missing", str(tmp_path)):
        read_source(tmp_path)
    save(noise(), tmp_path / "0.png")
    with refused("data.images-missing", str(tmp_path)):
        read_source(tmp_path)
    save(noise(), tmp_path / "cat" / "0.png")
    with refused("data.class-single", str(tmp_path)):
        read_source(tmp_path)


def csv_file(path: Path, text: str, encoding: str = "utf-8") -> Path:
    """A list of images, of which a/1.png, a/2.png, b/1.png and b/2.png lie beside it."""
    folder(path.parent, {"a": 2, "b": 2})
    path.write_bytes(text.encode(encoding))
    return path


ROWS = ("a/a_0.png", "one"), ("a/a_1.png", "one"), ("b/b_0.png", "two"), ("b/b_1.png", "two")


def lines(header: str, delimiter: str = ",") -> str:
    return "\n".join([header, *(delimiter.join(row) for row in ROWS)]) + "\n"


def assert_rows(file: Path) -> None:
    table = read_source(file)
    assert [(table.paths[i], table.classes[table.labels[i]]) for i in range(4)] == list(ROWS)
    assert table.classes == ("one", "two")
    assert set(table.splits) == {None}
    assert all(table.file(i).is_file() for i in range(4))


@pytest.mark.parametrize(
    ("delimiter", "encoding", "end"),
    [(",", "utf-8", "\r\n"), (";", "utf-8-sig", "\r\n"), ("\t", "utf-8-sig", "\n")],
)
def test_a_csv_as_any_spreadsheet_writes_it(tmp_path: Path, delimiter: str, encoding: str, end: str) -> None:
    text = lines(delimiter.join(["path", "label"]), delimiter).replace("\n", end)
    assert_rows(csv_file(tmp_path / "all.csv", text, encoding))
    assert_rows(csv_file(tmp_path / "all.TSV", text.rstrip(), encoding))
    for header in ("file,class", "filename,Label", "image,CLASS", " FILE ,class"):
        assert_rows(csv_file(tmp_path / "all.csv", lines(header)))
    rows = "\n".join(f"7,{label},{path},x" for path, label in ROWS)  # among other columns, and lines of empty cells
    assert_rows(csv_file(tmp_path / "more.csv", f"id,label,path,notes\n{rows}\n\n,,,\n"))
    (tmp_path / "data.csv").write_text("path;label;split;;\r\n1.jpg;ant;train;;\r\n2.jpg;bee;val;;\r\n")
    table = read_source(tmp_path / "data.csv")  # with what Excel leaves around its columns
    assert (table.paths, table.classes, table.splits) == (("1.jpg", "2.jpg"), ("ant", "bee"), ("train", "val"))


def test_paths_are_seen_from_the_csvs_own_folder_or_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "photos", {"a": 1, "b": 1})
    (tmp_path / "lists").mkdir()
    rows = f"../photos/a/a_0.png,a\n{tmp_path}/photos/b/b_0.png,b\n"
    (tmp_path / "lists" / "all.csv").write_text("path,label\n" + rows)
    monkeypatch.chdir(tmp_path)
    table = read_source("lists/all.csv")
    monkeypatch.chdir("/")
    assert all(table.file(i).is_file() for i in range(2))
    assert set(table.folders) == {tmp_path / "photos" / "a", tmp_path / "photos" / "b"}
    assert table.lies_among(tmp_path / "photos" / "a" / "runs")
    assert not table.lies_among(tmp_path / "lists" / "runs")
    with refused("training.out-among-images"):
        train(runs.quick(tmp_path / "lists" / "all.csv", epochs=1), tmp_path / "photos" / "a" / "run")
    assert not (tmp_path / "photos" / "a" / "run").exists()


@pytest.mark.parametrize(("label", "is_conflict"), [("one", False), ("two", True)])
def test_missing_files_cannot_be_read_and_an_image_that_a_csv_names_twice_is_a_copy_of_itself(
    tmp_path: Path, label: str, is_conflict: bool
) -> None:
    text = lines("path,label") + f"a/a_0.png,{label}\na/gone.png,one\na,two\n"
    found = examine(read_source(csv_file(tmp_path / "all.csv", text)))
    assert found.unreadable == {"a/gone.png": "no such file", "a": "a folder, not a file"}
    assert len(found.table) == 5
    assert [(own.images, own.kind, own.is_conflict) for own in found.copies] == [((0, 4), "exact", is_conflict)]


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        ("a/a_0.png,one\nb/b_0.png,two\n", "data.columns-missing", ""),
        ("label\none\n", "data.columns-missing", "label"),
        ("path,label\n\n,\n", "data.images-missing", ""),
        ("path,label\na/a_0.png,one\nb/b_0.png\n", "data.label-missing", "line 3"),
        ("path,label\n\n,two\n", "data.path-empty", "line 3"),
        ("path,label\na/a_0.png,one\na/\0.png,two\n", "data.null-byte", "line 3"),
        ("path,label,class\na/a_0.png,one,7\nb/b_0.png,two,8\n", "data.columns-missing", "class"),
        ("path,label\na/a_0.png,one\na/a_1.png,one\n", "data.class-single", "'one'"),
        ("path,label\na/a_0.png," + "x" * 200_000 + "\n", "data.csv-damaged", ""),
        ("path,label\nä.png,ö\n".encode("latin-1"), "data.csv-damaged", ""),
        ("path,label\n1.jpg,ant\n".encode("utf-16"), "data.csv-encoding", "UTF-16"),
    ],
)
def test_a_csv_that_cannot_be_meant_is_refused_by_its_line(
    tmp_path: Path, text: str | bytes, code: str, named: str
) -> None:
    file = csv_file(tmp_path / "all.csv", "")
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with refused(code, "all.csv", named):
        read_source(file)


@given(
    rows=st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1).filter(str.strip),
            st.sampled_from(["a", "b b", 'c"c', "d,d", "e;e"]),
        ),
        min_size=2,
    ).filter(lambda own: len({label for _, label in own}) > 1)
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_what_csv_writers_write_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    file = tmp_path_factory.mktemp("csv") / "all.csv"
    with file.open("w", encoding="utf-8", newline="") as text:
        csv.writer(text).writerows([("path", "label"), *rows])
    table = read_source(file)
    assert [(table.paths[i], table.classes[table.labels[i]]) for i in range(len(table))] == [
        (restored(path.strip()), label)
        for path, label in rows  # a quote before = is that of a spreadsheet
    ]


def test_what_is_passed_over_is_counted_by_its_reason(tmp_path: Path) -> None:
    folder(tmp_path, {"a": 2, "b": 2})
    for name in ("a/.DS_Store", "a/Thumbs.db", "b/desktop.ini", "b/._b_0.png", "a/.hidden.png", "a/notes.txt", "x.csv"):
        (tmp_path / name).touch()
    save(noise(), tmp_path / "b" / "__MACOSX" / "b_0.png")
    save(noise(), tmp_path / ".git" / "a.png")
    table = read_source(tmp_path)
    assert table.classes == ("a", "b") and len(table) == 4
    files = {"system file": 4, "hidden": 1, "not an image format": 1, "outside the class folders": 1}
    assert table.ignored == files | {"folder __MACOSX": 1, "folder .git": 1}


def test_class_folders_without_images_are_told_unless_another_split_has_some(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", {"a": 1, "b": 1, "zero": 0, "empty": 0})
    (one / "zero" / "notes.txt").touch()
    table = read_source(one)
    assert (table.empty, table.classes) == (("empty", "zero"), ("a", "b"))
    folder(tmp_path / "two" / "train", {"a": 2, "b": 2, "c": 0})
    folder(tmp_path / "two" / "val", {"a": 1, "b": 0, "c": 0})
    assert read_source(tmp_path / "two").empty == ("c",)


def test_pipes_devices_and_dangling_links_are_unreadable_and_never_opened(tmp_path: Path) -> None:
    folder(tmp_path, {"a": 2, "b": 2})
    os.mkfifo(tmp_path / "a" / "pipe.png")
    (tmp_path / "b" / "null.jpg").symlink_to("/dev/zero")
    (tmp_path / "a" / "gone.png").symlink_to("nowhere.png")
    diagnosis = examine(read_source(tmp_path, follow_links=True))
    reasons = {"a/pipe.png": "not a regular file", "b/null.jpg": "not a regular file", "a/gone.png": "no such file"}
    assert diagnosis.unreadable == reasons
    assert len(diagnosis.table) == 4
    os.mkfifo(tmp_path / "pipe.csv")
    with refused("data.list-unreadable"):
        read_source(tmp_path / "pipe.csv")


def test_a_loop_of_links_ends_and_no_image_is_found_twice(tmp_path: Path) -> None:
    cats = folder(tmp_path / "pets", {"cat": 2, "dog": 1}) / "cat"
    (cats / "self").symlink_to(cats)
    (cats / "up").symlink_to(tmp_path / "pets")
    table = read_source(tmp_path / "pets")
    assert [path for path in table.paths if path.startswith("cat/cat_")] == ["cat/cat_0.png", "cat/cat_1.png"]
    found = [os.path.realpath(table.file(i)) for i in range(len(table)) if table.labels[i] == 0]
    assert len(set(found)) == len(found)
    for one, other in ("pq", "qp"):
        save(noise(), tmp_path / "two" / one / "a.png")
        (tmp_path / "two" / one / "other").symlink_to(tmp_path / "two" / other)
    assert len(list(walk(tmp_path / "two"))) == 2
    (tmp_path / "two" / "z").symlink_to(tmp_path / "two" / "p")
    assert len(list(walk(tmp_path / "two"))) == 2


def test_links_out_of_the_folder_are_left_out_or_followed_on_request_but_not_upwards(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", {"cat": 2, "dog": 1})
    folder(tmp_path, {"private": 2})
    (data / "owl").symlink_to(tmp_path / "private")
    (data / "cat" / "one.png").symlink_to(tmp_path / "private" / "private_0.png")
    (data / "dog" / "all").symlink_to("/")
    table, overlooked = read_source(data), SearchLog()
    assert table.counts() == {"cat": 2, "dog": 1}
    (line,) = table.overlooked
    assert "3 links" in line and "cat/one.png, dog/all, owl" in line and "--follow-links" in line
    assert len(find_images([str(data)], overlooked)) == len(overlooked.links) == 3
    table = read_source(data, follow_links=True)
    assert table.counts() == {"cat": 3, "dog": 1, "owl": 2}
    (line,) = table.overlooked
    assert "dog/all" in line and "owl" not in line
    assert len(find_images([str(data)], SearchLog(follow_links=True))) == 6


def test_the_data_folder_may_be_a_link_and_a_relative_path_and_a_class_a_link_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path / "real", {"dog": 1})
    folder(tmp_path / "real" / ".store", {"kitten": 2})
    (tmp_path / "real" / "cat").symlink_to(tmp_path / "real" / ".store" / "kitten")
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    table = read_source("link")
    assert table.name == "link" and table.counts() == {"cat": 2, "dog": 1}
    folder(tmp_path / "digits", {"one": 1, "two": 1})
    assert read_source("digits").classes == ("one", "two"), "a folder comes before the named data"
    monkeypatch.chdir("/")
    assert table.file(0).is_file(), "the root no longer depends on where we stand"


def test_images_of_folders_and_patterns_are_found_in_natural_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["1.png", "img1.jpg", "img2.png", "img10.png", "odd[1].png", "sub/img3.png", "²a.png"]
    for name in (*names, "notes.txt", ".hidden.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert find_images([str(tmp_path)]) == [f"{tmp_path}/{name}" for name in names]
    assert find_images(["i*"]) == names[1:4] and find_images(["**/*3.png"]) == ["sub/img3.png"]
    for named in (["notes.txt", "./img2.png", "odd[1].png"], ["img10.png", "img10.png"]):  # as they are named
        assert find_images(named) == named
    for source in ("none.png", "none/", "*.gif"):
        with refused("data.source-missing", source):
            find_images(["img1.jpg", source])


TWINS = [
    ("U+200B", "daisy", "daisy\u200b"),
    ("U+3164", "daisy", "daisy\u3164"),
    ("U+00A0", "red tulip", "red\u00a0tulip"),
    ("U+0301", "caf\u00e9", "cafe\u0301"),
]


@pytest.mark.parametrize(("apart", "one", "other"), TWINS)
def test_classes_that_look_the_same_are_refused(tmp_path: Path, apart: str, one: str, other: str) -> None:
    folder(tmp_path / "photos", {one: 2, other: 2, "rose": 2})
    (tmp_path / "list.csv").write_text(f"path,label\na.png,{one}\nb.png,rose\nc.png,{other}\n", encoding="utf-8")
    (tmp_path / "sets.csv").write_text(f"path,labels\na.png,{one};rose\nc.png,{other}\n", encoding="utf-8")
    for data in ("photos", "list.csv", "sets.csv"):
        with refused("data.classes-alike", apart):
            read_source(tmp_path / data)
