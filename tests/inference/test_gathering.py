"""Rows survive: any file name, and being cut short at any byte."""

import csv
import io
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refusals import refused
from vitkit.inference import (
    FORMATS,
    Columns,
    Csv,
    Prediction,
    Row,
    RowFormat,
    WrittenRows,
    appending_rows,
    partial_of,
    read_rows,
    written_rows,
)  # fmt: skip
from vitkit.text import restored

CLASSES = ("daisy", 'a "rose", red', "été\n図", "$")
NAMES = [
    *("a.png", "with, comma.png", 'with "quotes".png', "two\nlines.png", 'a\n"b\n",\n.png', "return\r.png"),
    *(os.fsdecode(b"not utf-8 \xff\xfe\n.png"), "図 été \u2028.png", "", '"', "z.png"),
]


def predictions(paths: Sequence[str], seed: int = 0) -> list[Prediction]:
    """For each path something else; every fourth cannot be read."""
    random = np.random.default_rng(seed)
    made = []
    for i, path in enumerate(paths):
        p = np.sort(random.dirichlet(np.ones(len(CLASSES))))[::-1]
        ranking = tuple(zip(random.permutation(CLASSES).tolist(), p.tolist(), strict=True))
        made.append(
            Prediction(path, error='damaged ("x",\n1)') if i % 4 == 3 else Prediction(path, *ranking[0], ranking)
        )
    return made


COMPUTATION = {"backend": "eager", "precision": "float32", "plan": ""}


def write(out: Path, form: RowFormat, made: Sequence[Prediction], stock: WrittenRows | None = None) -> list[str]:
    """Everything that is missing; the paths that were computed."""
    paths = [prediction.path for prediction in made]
    stock = stock or WrittenRows(paths)
    by_path = {prediction.path: prediction for prediction in made}
    with appending_rows(out, form, paths, stock, COMPUTATION) as add:
        for path in stock.missing:
            add(by_path[path])
    assert not partial_of(out).exists()
    return list(stock.missing)


def rows(file: Path, form: RowFormat) -> list[Row]:
    return [row for _, row in read_rows(file, form)]


FORMS = {
    f"{suffix[1:]} {columns.top} {columns.reject}": (f"rows{suffix}", FORMATS[suffix](columns))
    for suffix in FORMATS
    for columns in (Columns(), Columns(3), Columns(1, 0.6), Columns(2, 0.5))
}
every_form = pytest.mark.parametrize(("name", "form"), FORMS.values(), ids=FORMS)


@every_form
def test_a_row_is_read_as_it_was_written(tmp_path: Path, name: str, form: RowFormat) -> None:
    made = predictions(NAMES)
    write(tmp_path / name, form, made)
    for row, prediction in zip(rows(tmp_path / name, form), made, strict=True):
        assert (row.path, row.name) == (prediction.path, prediction.label)
        assert row.confidence == pytest.approx(prediction.confidence, abs=1e-6)
        reject = form.columns.reject
        assert row.is_rejected == (reject is not None and prediction.error is None and prediction.confidence < reject)


@pytest.mark.parametrize("reject", [None, 0.6])
def test_other_readers_of_csv_read_the_same(tmp_path: Path, reject: float | None) -> None:
    form = FORMATS[".csv"](Columns(2, reject))
    made = predictions(NAMES)
    write(tmp_path / "rows.csv", form, made)
    text = (tmp_path / "rows.csv").read_bytes().decode("utf-8", "surrogateescape")
    found = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [restored(row["path"]) for row in found] == NAMES
    for row, prediction in zip(found, made, strict=True):
        is_rejected = reject is not None and (prediction.confidence or 1) < reject
        assert row["label"] == ("" if is_rejected else prediction.label or "")
        assert row.get("rejected", "") == (prediction.label if is_rejected else "")
        assert row["error"] == (prediction.error or "")
        assert row["label_2"] == (prediction.ranking[1][0] if prediction.ranking else "")


def test_every_json_line_is_utf8_and_names_its_file(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", FORMATS[".jsonl"](Columns(1, 0.6)), predictions(NAMES))
    lines = (tmp_path / "rows.jsonl").read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    found = [json.loads(line) for line in lines]
    assert [row["path"] for row in found] == NAMES
    assert os.fsencode(found[6]["path"]) == b"not utf-8 \xff\xfe\n.png"
    assert [row["label"] is None for row in found] == [row["rejected"] is not None or "error" in row for row in found]


# No file name has a NUL in it.
file_names = st.binary(min_size=1, max_size=12).map(lambda name: os.fsdecode(name.replace(b"\0", b"\n")))


@given(
    names=st.lists(st.one_of(file_names, st.text('",\r\n a', min_size=1, max_size=6)), unique=True, max_size=6),
    form=st.sampled_from(sorted(FORMS)),
    where=st.floats(0, 1),
)
def test_any_names_cut_anywhere_are_completed(names: list[str], form: str, where: float) -> None:
    file, written = FORMS[form]
    made = predictions(names)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, file)
        write(out, written, made)
        whole, ends = out.read_bytes(), [span.stop for span, _ in read_rows(out, written)]
        anywhere = int(where * len(whole))
        for cut in (anywhere, *(end + near for end in ends[-1:] for near in (-1, 0))):
            out.unlink()
            partial_of(out).write_bytes(whole[:cut])
            stock = written_rows(out, written, names)
            assert list(stock.missing) == names[sum(end <= cut for end in ends) :]
            write(out, written, made, stock)
            assert out.read_bytes() == whole
        assert [row.path for row in rows(out, written)] == names


@every_form
@pytest.mark.parametrize("there", [[10], [9, 2, 5], list(range(11))[::-1]], ids=str)
def test_what_is_missing_is_put_in_its_place(tmp_path: Path, name: str, form: RowFormat, there: list[int]) -> None:
    made = predictions(NAMES)
    write(tmp_path / "whole", form, made)
    out = tmp_path / name
    write(out, form, [made[i] for i in there])
    stock = written_rows(out, form, NAMES)
    computed = write(out, form, made, stock)
    assert computed == [path for i, path in enumerate(NAMES) if i not in there]
    assert out.read_bytes() == (tmp_path / "whole").read_bytes()
    assert stock.tally.images == len(there)
    assert stock.tally.unreadable == sum(i % 4 == 3 for i in there)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "whole"])


def test_a_partial_file_goes_before_a_finished_one_and_its_rows_count_once(tmp_path: Path) -> None:
    form, out, made = FORMATS[".csv"](Columns()), tmp_path / "rows.csv", predictions(NAMES)
    write(out, form, made)
    whole, first = out.read_bytes(), next(read_rows(out, form))[0]
    partial_of(out).write_bytes(whole[: first.stop] + whole[first])
    stock = written_rows(out, form, NAMES)
    assert (stock.file, stock.tally.images) == (partial_of(out), 1)
    write(out, form, made, stock)
    assert out.read_bytes() == whole


def test_a_block_that_fails_keeps_its_rows_and_the_finished_file(tmp_path: Path) -> None:
    form, out, made = FORMATS[".csv"](Columns()), tmp_path / "rows.csv", predictions(NAMES)
    with pytest.raises(RuntimeError), appending_rows(out, form, NAMES, WrittenRows(NAMES), COMPUTATION):
        raise RuntimeError  # before the first row
    assert list(tmp_path.iterdir()) == []
    out.write_text("precious")
    with pytest.raises(RuntimeError), appending_rows(out, form, NAMES, WrittenRows(NAMES), COMPUTATION) as add:
        add(made[0])
        raise RuntimeError
    assert out.read_text() == "precious"
    assert [row.path for row in rows(partial_of(out), form)] == NAMES[:1]


def refused_and_kept(code: str, out: Path, form: RowFormat, names: Sequence[str] = NAMES) -> None:
    before = out.read_bytes()
    with refused(code):
        written_rows(out, form, names)
    assert out.read_bytes() == before


def test_rows_of_other_columns_or_another_threshold_are_refused_and_kept(tmp_path: Path) -> None:
    for name, (_, form) in FORMS.items():
        for other in FORMS.keys() - {name}:
            write(tmp_path / "rows", FORMS[other][1], predictions(NAMES))
            refused_and_kept("inference.rows-differ", tmp_path / "rows", form)
            (tmp_path / "rows").unlink()
    for was, now in ((0.6, 0.3), (0.3, 0.6), (0.0, 1.0), (1.0, 0.0)):
        write(tmp_path / f"{was}.csv", Csv(Columns(1, was)), predictions(NAMES))
        refused_and_kept("inference.rows-differ", tmp_path / f"{was}.csv", Csv(Columns(1, now)))


def test_a_confidence_that_is_rounded_to_the_threshold_fits_either_way() -> None:
    columns = Columns(1, 0.5)
    assert columns.is_consistent_with(Row("a", "x", 0.5, is_rejected=True))
    assert columns.is_consistent_with(Row("a", "x", 0.5, is_rejected=False))
    assert not columns.is_consistent_with(Row("a", "x", 0.501, is_rejected=True))


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    "content",
    [
        *(b"precious\n", b"\xff\xd8\xff", b"path,label\n", b"path,label,confidence,error\na,b,high,\n"),
        b'path,label,confidence,error\n"a"b,c,0.5,\n',
        b'{"path": "a", "label": "x", "confidence": 0.5}\n[1]\n',
    ],
)
def test_what_is_no_file_of_rows_is_refused_and_kept(tmp_path: Path, suffix: str, content: bytes) -> None:
    out = tmp_path / f"rows{suffix}"
    out.write_bytes(content)
    refused_and_kept("inference.rows-differ", out, FORMATS[suffix](Columns()), ["a"])


def test_a_class_of_probability_zero_stays_among_the_first() -> None:
    form = Csv(Columns(top=3))
    assert form.decode("1.png,a,1.000000,,b,0.000000,,\n").top == (("a", 1.0), ("b", 0.0))


def test_a_row_of_an_image_that_is_not_asked_about_is_refused(tmp_path: Path) -> None:
    out, form = tmp_path / "rows.csv", FORMATS[".csv"](Columns())
    write(out, form, predictions(NAMES))
    refused_and_kept("inference.row-unexpected", out, form, NAMES[:-1])
