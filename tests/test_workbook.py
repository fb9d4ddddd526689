"""Workbooks, read back as the standard says, by another parser than the writer's."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitkit.errors import VitkitError
from vitkit.text import workbook

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def read(file: Path) -> list[dict[str, Any]]:
    """The cells of each row by their column's letters."""
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        sheet = ElementTree.fromstring(archive.read("xl/worksheets/sheet1.xml"))
        for name in archive.namelist():
            ElementTree.fromstring(archive.read(name))
    rows = []
    for row in sheet.iter(f"{MAIN}row"):
        cells: dict[str, Any] = {}
        for cell in row:
            assert cell.find(f"{MAIN}f") is None, "a formula"
            text = cell.find(f"{MAIN}is/{MAIN}t")
            value = cell.findtext(f"{MAIN}v")
            letters = str(cell.get("r")).rstrip("0123456789")
            cells[letters] = decoded(text.text or "") if text is not None else float(str(value))
        rows.append(cells)
    return rows


def decoded(text: str) -> str:
    return re.sub("_x([0-9A-Fa-f]{4})_", lambda match: chr(int(match[1], 16)), text)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.text(max_size=20), st.none() | st.floats(0, 1)), max_size=4))
def test_every_text_and_number_comes_back(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    file = tmp_path_factory.mktemp("book") / "a.xlsx"
    rows = [*rows, ("=1+1", 0.5), ("_x0041_", None), ("a\x07\nb & <c>", 1.0), ("\r\t ", 0.25)]
    workbook.write_workbook(file, ("path", "confidence"), rows)
    expected = [{"A": text, **({} if number is None else {"B": number})} for text, number in rows]
    assert read(file) == [{"A": "path", "B": "confidence"}, *expected]


def test_a_file_name_that_is_not_utf_8_is_written_so_that_it_can_be_recognised(tmp_path: Path) -> None:
    workbook.write_workbook(tmp_path / "a.xlsx", ["path"], [["caf\udce9.jpg"]])
    assert read(tmp_path / "a.xlsx")[1] == {"A": "caf\\udce9.jpg"}


def test_more_rows_than_a_sheet_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbook, "ROWS", 3)
    workbook.write_workbook(tmp_path / "a.xlsx", ["path"], [["a"], ["b"]])
    with pytest.raises(VitkitError, match="at most 2 rows"):
        workbook.write_workbook(tmp_path / "b.xlsx", ["path"], [["a"], ["b"], ["c"]])
    assert [file.name for file in tmp_path.iterdir()] == ["a.xlsx"]
    assert len(read(tmp_path / "a.xlsx")) == 3


def test_columns_have_the_letters_of_spreadsheets() -> None:
    assert [workbook._column(number) for number in (1, 26, 27, 52, 703)] == ["A", "Z", "AA", "AZ", "AAA"]
