"""Rows of a CSV file that people make by hand or in a spreadsheet, each with the number of its line."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from vitkit.data.walk import SUFFIXES
from vitkit.errors import VitkitError
from vitkit.text.cells import JOINT


@dataclass(frozen=True)
class CsvRows:
    """What is in a CSV file.

    Attributes:
        titles: the titles of the columns, as they stand there.
        columns: what each of them is.
        delimiter: a comma, a semicolon or a tab, or what the file names by `sep=`.
        rows: the number of the line that each begins in, and its cells by column; none is empty throughout.
    """

    titles: tuple[str, ...]
    columns: tuple[str, ...]
    delimiter: str
    rows: tuple[tuple[int, dict[str, str]], ...]


def read_rows(
    name: str, text: TextIO, known: Mapping[str, str], needed: Sequence[str], may: str, *, joins: Collection[str] = ()
) -> CsvRows:
    """Read the rows of a list; its delimiter is the commonest in the header, or that of a first line `sep=;`.

    Columns without a title at the end, as spreadsheets leave them, are passed over where all of their cells are empty.

    Args:
        name: what the user called it.
        text: the text of the file.
        known: what a column is by its title in small letters; others keep their titles.
        needed: columns that must be there; the first of them holds paths.
        may: what else may be there, for people.
        joins: titles, in small letters, of columns whose cells may hold several names, so that a cell too many may be
            one of them.

    Raises:
        VitkitError: a column is missing or there twice, or a quote is not closed; the message has the line.
    """
    header, first = text.readline(), 2
    named = SEPARATOR.fullmatch(header)
    if named is not None:
        header, first = text.readline(), 3
    delimiter = named[1] if named is not None else max(",;\t", key=header.count)
    written = [title.strip() for title in next(csv.reader([header], delimiter=delimiter, strict=True), [])]
    titles = _without_last_empty(written)
    columns = [known.get(title.lower(), title) for title in titles]
    if not set(needed) <= set(columns) or len(set(columns)) < len(columns):
        raise VitkitError(f"{name} needs the columns {' and '.join(needed)}, each once{may}; it has: {header.strip()}")
    lines = [row for row in _numbered(name, text, delimiter, first) if any(row[1])]
    _check_quotes(name, columns, delimiter, lines)
    if len(titles) < len(written):
        _check_untitled(name, columns, lines)
    elif delimiter == JOINT or any(title.lower() in joins for title in titles):
        _check_width(name, columns, lines)
    rows = tuple((line, dict(zip(columns, row, strict=False))) for line, row in lines)
    return CsvRows(tuple(titles), tuple(columns), delimiter, rows)


SEPARATOR = re.compile(r"sep=(.)\s*", re.IGNORECASE)  # how a file tells a spreadsheet its delimiter


def refuse_encoding(name: str, data: bytes) -> None:
    """Refuse what spreadsheets save as Unicode text, in units of two or four bytes.

    Args:
        name: what the user called the file.
        data: its beginning.

    Raises:
        VitkitError: it is in UTF-16 or UTF-32.
    """
    head = data[:64]
    is_wide = head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")) or head.count(b"\0") > len(head) // 2
    if is_wide or head.startswith((b"\xff\xfe", b"\xfe\xff")) or 3 * head.count(b"\0") > len(head):
        raise VitkitError(
            f"{name} is no CSV file in UTF-8, but in UTF-{32 if is_wide else 16}: save it as CSV in UTF-8"
        )


def _without_last_empty(titles: Sequence[str]) -> list[str]:
    named = max((place for place, title in enumerate(titles, start=1) if title), default=0)
    return list(titles[:named])


def _numbered(name: str, text: Iterable[str], delimiter: str, first: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows below the header, which starts in line `first`, with the number of their first lines."""
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    line = first
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + first
    except csv.Error as error:
        raise VitkitError(
            f"{name} is no CSV file from line {line} on: {error}; is there a quote too many, or one not closed?"
        ) from error


def _check_quotes(name: str, columns: Sequence[str], delimiter: str, lines: Iterable[tuple[int, list[str]]]) -> None:
    """Refuse a cell of several lines that look like rows: a quote that is not closed has swallowed them."""
    place = columns.index("path")
    for line, cells in lines:
        if "\n" not in (joined := "".join(cells)) and "\r" not in joined:
            continue
        swallowed = [part for cell in cells for part in cell.splitlines()[1:]]
        is_short = bool(swallowed) and len(cells) < len(columns)
        for part in swallowed:
            inner = part.split(delimiter)
            is_row = len(inner) >= len(columns) and Path(inner[place].strip(' "')).suffix.lower() in SUFFIXES
            if is_short or is_row:
                raise VitkitError(f"{name}, line {line}: a quote is not closed, and takes the rows below into its cell")


def _check_untitled(name: str, columns: Sequence[str], lines: Iterable[tuple[int, Sequence[str]]]) -> None:
    """Refuse rows that say something in a column without a title."""
    for line, cells in lines:
        if beyond := [cell for cell in cells[len(columns) :] if cell.strip()]:
            raise VitkitError(f"{name}, line {line}: {beyond[0]!r} is in a column without a title: give it one")


def _check_width(name: str, columns: Sequence[str], lines: Iterable[tuple[int, Sequence[str]]]) -> None:
    """Refuse rows with more cells than the header: they are classes that would be lost."""
    for line, cells in lines:
        if any(cells[len(columns) :]):
            wide = f"{len(cells)} cells for {len(columns)} columns"
            raise VitkitError(f'{name}, line {line}: {wide}; put several classes between quotes: "cat;dog"')
