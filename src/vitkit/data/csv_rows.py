"""Rows of a CSV file that people make by hand or in a spreadsheet, each with the number of its line."""

from __future__ import annotations

import csv
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
        titles: of the columns, as they stand there.
        columns: what each of them is.
        delimiter: a comma, a semicolon or a tab.
        rows: the number of the line that each begins in, and its cells by column; none is empty throughout.
    """

    titles: tuple[str, ...]
    columns: tuple[str, ...]
    delimiter: str
    rows: tuple[tuple[int, dict[str, str]], ...]


def read_rows(
    name: str, text: TextIO, known: Mapping[str, str], needed: Sequence[str], may: str, *, joins: Collection[str] = ()
) -> CsvRows:
    """The rows of a list, whose delimiter is what its header has most of.

    Args:
        name: what the user called it.
        text: of the file.
        known: what a column is by its title in small letters; others keep their titles.
        needed: columns that must be there; the first of them holds paths.
        may: what else may be there, for people.
        joins: titles, in small letters, of columns whose cells may hold several names, so that a cell too many may be
            one of them.

    Raises:
        VitkitError: a column is missing or there twice, or a quote is not closed; the message has the line.
    """
    header = text.readline()
    delimiter = max(",;\t", key=header.count)
    titles = [title.strip() for title in next(csv.reader([header], delimiter=delimiter, strict=True), [])]
    columns = [known.get(title.lower(), title) for title in titles]
    if not set(needed) <= set(columns) or len(set(columns)) < len(columns):
        raise VitkitError(f"{name} needs the columns {' and '.join(needed)}{may}; it has: {header.strip()}")
    lines = [own for own in _numbered(name, text, delimiter) if any(own[1])]
    _check_quotes(name, columns, delimiter, lines)
    if delimiter == JOINT or any(title.lower() in joins for title in titles):
        _check_width(name, columns, lines)
    rows = tuple((line, dict(zip(columns, own, strict=False))) for line, own in lines)
    return CsvRows(tuple(titles), tuple(columns), delimiter, rows)


def _numbered(name: str, text: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows below the header with the number of the line that each begins in."""
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    line = 2
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + 2
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


def _check_width(name: str, columns: Sequence[str], lines: Iterable[tuple[int, Sequence[str]]]) -> None:
    """Refuse rows with more cells than the header: they are classes that would be lost."""
    for line, cells in lines:
        if any(cells[len(columns) :]):
            wide = f"{len(cells)} cells for {len(columns)} columns"
            raise VitkitError(f'{name}, line {line}: {wide}; put several classes between quotes: "cat;dog"')
