"""Read the rows of a CSV file that was written by hand or by a spreadsheet, with their line numbers."""

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
    """The content of a CSV file.

    Attributes:
        titles: the titles of the columns, as in the file.
        columns: the standard name of each column (`known` of `read_rows`); an unknown title is kept as the name.
        delimiter: a comma, a semicolon, a tab, or the character that the file declares by `sep=`.
        rows: for each non-empty row, the number of its first line, and a dictionary of its cells by column.
    """

    titles: tuple[str, ...]
    columns: tuple[str, ...]
    delimiter: str
    rows: tuple[tuple[int, dict[str, str]], ...]


def read_rows(
    name: str, text: TextIO, known: Mapping[str, str], needed: Sequence[str], may: str, *, joins: Collection[str] = ()
) -> CsvRows:
    """Read the rows of a CSV file.

    The delimiter is the most frequent candidate in the header, unless the first line declares it (`sep=;`).
    Spreadsheets may leave columns without a title at the end; these are ignored if all of their cells are empty.

    Args:
        name: the name of the file, for messages.
        text: the text of the file.
        known: a mapping from titles in lower case to standard column names. Other columns keep their titles as names.
        needed: columns that the file must have; the first of them contains paths.
        may: the part of an error message that names the optional columns.
        joins: the titles, in lower case, of columns whose cells may contain several names. If the file has such a
            column, excess cells are an error, since they may be names without quotes.

    Raises:
        VitkitError: a column is missing or occurs twice, or a quote is not closed; the message names the line.
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


SEPARATOR = re.compile(r"sep=(.)\s*", re.IGNORECASE)  # the line by which a file states its delimiter


def refuse_encoding(name: str, data: bytes) -> None:
    """Refuse a file in UTF-16 or UTF-32, which spreadsheets save as "Unicode text".

    Args:
        name: the name of the file, for messages.
        data: the first bytes of the file.

    Raises:
        VitkitError: the bytes are UTF-16 or UTF-32.
    """
    head = data[:64]
    is_wide = head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")) or head.count(b"\0") > len(head) // 2
    if is_wide or head.startswith((b"\xff\xfe", b"\xfe\xff")) or 3 * head.count(b"\0") > len(head):
        raise VitkitError(
            f"{name} is not a CSV file in UTF-8, but in UTF-{32 if is_wide else 16}: save it as CSV in UTF-8"
        )


def _without_last_empty(titles: Sequence[str]) -> list[str]:
    named = max((place for place, title in enumerate(titles, start=1) if title), default=0)
    return list(titles[:named])


def _numbered(name: str, text: Iterable[str], delimiter: str, first: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows below the header, each with the number of its first line; the first row is in line `first`."""
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    line = first
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + first
    except csv.Error as error:
        raise VitkitError(
            f"{name} is not a CSV file from line {line} on: {error}; is there a quote too many, or one not closed?"
        ) from error


def _check_quotes(name: str, columns: Sequence[str], delimiter: str, lines: Iterable[tuple[int, list[str]]]) -> None:
    """Refuse a cell that contains further rows of the file, because a quote is not closed."""
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
                raise VitkitError(f"{name}, line {line}: a quote is not closed, so its cell contains the rows below")


def _check_untitled(name: str, columns: Sequence[str], lines: Iterable[tuple[int, Sequence[str]]]) -> None:
    """Refuse rows with text in a column that has no title."""
    for line, cells in lines:
        if beyond := [cell for cell in cells[len(columns) :] if cell.strip()]:
            raise VitkitError(f"{name}, line {line}: {beyond[0]!r} is in a column without a title: give it one")


def _check_width(name: str, columns: Sequence[str], lines: Iterable[tuple[int, Sequence[str]]]) -> None:
    """Refuse rows with more cells than the header, since the excess cells may be classes that would be lost."""
    for line, cells in lines:
        if any(cells[len(columns) :]):
            wide = f"{len(cells)} cells for {len(columns)} columns"
            raise VitkitError(f'{name}, line {line}: {wide}; put several classes between quotes: "cat;dog"')
