"""What people said of labels is kept exactly, whatever files and classes are called, or refused with its line."""

import os
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from refusals import refused
from vitkit.data import EXCLUDED, Edit, add_edits, labels_so_far, read_labels, renaming, undo_edits


def written(tmp_path: Path, content: str | bytes) -> Path:
    file = tmp_path / "labels.csv"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def pairs(file: Path) -> list[tuple[str, str]]:
    return [(own.path, own.label) for own in read_labels(file).edits]


@pytest.mark.parametrize(
    "content",
    [
        "\ufeffpath;label\r\na/1.jpg;rose\r\nb/2.jpg;\r\n",  # Excel where the comma is a decimal mark
        "path\tlabel\na/1.jpg\trose\nb/2.jpg\t\n",
        'Path,Label\n"a/1.jpg","rose"\n\n"b/2.jpg",""\n',
        "path,label,previous,when\na/1.jpg,rose,tulip,2026-11-22\nb/2.jpg,,rose,\n",
        "label,file\nrose,a/1.jpg\n,b/2.jpg",
        "path,label,,\r\na/1.jpg,rose,,\r\nb/2.jpg,,,\r\n",  # Excel, after columns were emptied
        "path;label;;\na/1.jpg;rose;;\nb/2.jpg;;;\n",
    ],
)
def test_what_people_and_spreadsheets_write(tmp_path: Path, content: str) -> None:
    assert pairs(written(tmp_path, content)) == [("a/1.jpg", "rose"), ("b/2.jpg", EXCLUDED)]


@pytest.mark.parametrize(
    ("content", "code", "named"),
    [
        ("path\n1.jpg\n", "data.columns-missing", ""),
        ("path,label,label\n1.jpg,a,b\n", "data.columns-missing", ""),
        ("path;label\n1.jpg;a\n;b\n", "data.path-empty", "line 3"),
        ("path,label\n1.jpg,a\n2.jpg\n", "data.label-missing", "line 3"),
        ('path,label\n1.jpg,a\n"2.jpg,b\n3.jpg,c\n', "data.csv-damaged", "line 3"),
        ('path,label\n1.jpg,"a\n2.jpg,b\n3.jpg,c"\n', "data.csv-quote", "line 2"),
        ("path,label,,\n1.jpg,a,,rose\n", "data.cells-too-many", "line 2"),
        ("path,label\n1.jpg,caf\xe9\n".encode("latin-1"), "data.csv-encoding", "line 2"),
        ("path,label\n1.jpg,a\n".encode("utf-16-le"), "data.csv-encoding", "UTF-16"),
        ("path,label\n1.jpg,a\n".encode("utf-32"), "data.csv-encoding", "UTF-32"),
        ("path,label\n1.jpg,a\x00b\n", "data.null-byte", "line 2"),
        ("path,label,confidence,error\n1.jpg,a,0.9,\n", "data.columns-unexpected", "'confidence', 'error'"),
        # A copy of half a file, beside which nothing tells that it was cut off.
        ("path,label,previous,when,proposed_by\n1.jpg,a,,,\n2.jpg,ros", "data.labels-cut-off", "line 3"),
    ],
)
def test_what_is_unclear_is_refused_with_its_line(tmp_path: Path, content: str | bytes, code: str, named: str) -> None:
    with refused(code, named):
        read_labels(written(tmp_path, content))


def test_what_is_no_file_is_refused_and_pipes_are_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    os.mkfifo(file)
    for other in (file, tmp_path / "none.csv", tmp_path):
        with refused("data.labels-unreadable", str(other)):
            read_labels(other)
    with refused("data.labels-unreadable"):
        add_edits(file, [Edit("1", "a")])
    assert labels_so_far(tmp_path / "none.csv").edits == ()


def test_names_that_look_like_formulas_or_commands_are_kept_and_harmless(tmp_path: Path) -> None:
    names = ["=SUM(A1)", "@x", "-1", "'a", "a\tb", "\x1b]0;x\x07", 'say "hi"', "a;b,c", "line\nend", "<script>"]
    add_edits(tmp_path / "labels.csv", [Edit(f"{name}.jpg", name) for name in names])
    assert pairs(tmp_path / "labels.csv") == [(f"{name}.jpg", name) for name in names]
    text = (tmp_path / "labels.csv").read_text()
    assert "\x1b" not in text
    assert "\n=SUM" not in text


def test_undo_takes_back_what_was_done_at_once(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    add_edits(file, [Edit("1.jpg", "a")])
    add_edits(file, [Edit("2.jpg", "b", "a"), Edit("3.jpg", "b", "a")])
    add_edits(file, [Edit("4.jpg", EXCLUDED, "a")])
    assert [own.path for own in undo_edits(file)] == ["4.jpg"]
    undone = undo_edits(file)
    assert [own.path for own in undone] == ["2.jpg", "3.jpg"]
    add_edits(file, undone)  # done again, as it was
    assert [own.path for own in undo_edits(file)] == ["2.jpg", "3.jpg"]
    assert pairs(file) == [("1.jpg", "a")]
    undo_edits(file)
    assert undo_edits(file) == undo_edits(tmp_path / "none.csv") == ()
    written(tmp_path, "path,label\n1.jpg,a\n2.jpg,b\n")  # rows by hand are undone one by one
    assert undo_edits(file) == (Edit("2.jpg", "b"),)
    assert pairs(file) == [("1.jpg", "a")]


def test_threads_that_add_at_a_time_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: [add_edits(file, [Edit(f"{i}-{n}.jpg", "a")]) for n in range(5)], range(4)))
    assert sorted(own for own, _ in pairs(file)) == sorted(f"{i}-{n}.jpg" for i in range(4) for n in range(5))
    moments = [own.when for own in read_labels(file).edits]
    assert len(set(moments)) == len(moments)


def test_a_name_that_cannot_be_kept_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    add_edits(file, [Edit("1.jpg", "a"), Edit("caf\udce9.jpg", "a")])  # a name of a file that is no UTF-8
    before = file.read_bytes()
    assert read_labels(file).edits[-1].path == "caf\udce9.jpg"
    with refused("data.csv-quote"):
        add_edits(file, [Edit("x\ny.jpg,a,b,c,d", "a")])  # looks like a row that a quote has swallowed
    assert file.read_bytes() == before
    assert [own.name for own in tmp_path.iterdir()] == ["labels.csv"]


@pytest.mark.parametrize(
    "content",
    [
        "\ufeffpath;label;previous;when;proposed_by\r\na/1.jpg;rose;;;\r\n",
        "path,label,previous,when\na/1.jpg,rose,tulip,2026-11-22",
        'path,label,previous,when,proposed_by\na/1.jpg,rose,"a ""b""",,\n',
    ],
)
def test_rows_are_added_to_a_file_of_any_form(tmp_path: Path, content: str) -> None:
    file = written(tmp_path, content)
    before = read_labels(file).edits
    for name in ("b/2.jpg", "b/3.jpg"):
        add_edits(file, [Edit(name, "tulip", proposed_by="run-1")])
    after = read_labels(file)
    assert after.edits[: len(before)] == before
    assert [own[:2] for own in after.edits[len(before) :]] == [("b/2.jpg", "tulip"), ("b/3.jpg", "tulip")]
    assert [own.proposed_by for own in after.edits] == ["", "run-1", "run-1"]


def test_rows_are_appended_through_a_link(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.symlink_to("shared.csv")
    add_edits(file, [Edit("1.jpg", "a"), Edit("x\ny.jpg", "a")])
    before = file.read_bytes()
    (made,) = add_edits(file, [Edit("2.jpg", "b", "a", proposed_by="run-1")])
    assert file.read_bytes().startswith(before) and file.is_symlink()
    assert read_labels(file).edits[-1] == made


def test_a_full_disk_leaves_the_rows_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "labels.csv"
    add_edits(file, [Edit("1.jpg", "a")])
    before = file.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        add_edits(file, [Edit("2.jpg", "b")])
    assert file.read_bytes() == before
    assert [own.name for own in tmp_path.iterdir()] == ["labels.csv"]


def test_processes_that_add_and_one_that_reads_meet_whole_steps(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    add_edits(file, [Edit("first.jpg", "a")])

    def write(name: str) -> None:
        for n in range(10):
            add_edits(file, [Edit(f"{name}-{n}-{i}.jpg", "a" * 200) for i in range(30)])

    writers = [get_context("fork").Process(target=write, args=(name,)) for name in "ab"]
    for process in writers:
        process.start()
    while any(process.is_alive() for process in writers):
        assert len(read_labels(file).edits) % 30 == 1
    assert [process.exitcode for process in writers] == [0, 0]
    assert len(read_labels(file).edits) == 1 + 2 * 10 * 30


def test_rows_of_others_are_not_undone(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    mine = [*add_edits(file, [Edit("1.jpg", "a")]), *add_edits(file, [Edit("2.jpg", "a"), Edit("3.jpg", "a")])]
    (theirs,) = add_edits(file, [Edit("2.jpg", "b")])
    assert undo_edits(file, mine.__contains__) == tuple(mine[1:])
    assert read_labels(file).edits == (mine[0], theirs)
    assert undo_edits(file, mine.__contains__) == (mine[0],)
    assert undo_edits(file, mine.__contains__) == ()
    assert read_labels(file).edits == (theirs,)


def test_who_proposed_a_label_survives_a_spreadsheet_and_is_known_of_edited_doubts(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    add_edits(file, [Edit("1.jpg", "a", proposed_by="run-1"), Edit("2.jpg", "b")])
    text = file.read_text().replace(",", ";").replace("\n", "\r\n")
    again = written(tmp_path, f"\ufeff{text}3.jpg;c\r\n".replace("proposed_by", "Proposed_By"))
    assert [own.proposed_by for own in read_labels(again).edits] == ["run-1", "", ""]
    rows = "1.jpg,b,b,0.9\n2.jpg,,b,0.9\n3.jpg,c,b,0.9\n4.jpg,a,b,0.9\n5.jpg,d,,\n"
    doubts = written(tmp_path, f"path,label,suggested,score\n{rows}")
    assert read_labels(doubts).has_suspects
    with refused("data.labels-read-only"):
        add_edits(doubts, [Edit("1.jpg", "b")])
    assert doubts.read_text().endswith(rows)
    assert [own.proposed_by for own in read_labels(doubts).edits] == ["labels.csv", "labels.csv", "", "", ""]


def test_a_class_is_renamed_or_merged_by_rows() -> None:
    labels = [("1.jpg", "a"), ("2.jpg", "b"), ("3.jpg", "a")]
    assert renaming(labels, "a", "c") == [Edit("1.jpg", "c", "a"), Edit("3.jpg", "c", "a")]
    assert renaming(labels, "a", "b") == [Edit("1.jpg", "b", "a"), Edit("3.jpg", "b", "a")]
    assert renaming([("1.jpg", "a;b"), ("2.jpg", "b"), ("3.jpg", ";")], "a", "b") == [Edit("1.jpg", "b", "a;b")]
    assert renaming([("1.jpg", "a;b")], "a;b", "c") == [Edit("1.jpg", "c", "a;b")]  # a class of that very name
    with refused("data.class-missing", "'z'"):
        renaming(labels, "z", "c")
    with refused("data.class-name-empty"):
        renaming(labels, "a", " ")
