"""Images in a list: a CSV file with the columns path (as seen from its own folder), label and, if wanted, split."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from vitkit.data.layout import LayoutName
from vitkit.data.sources import ImageTable, Row, number_sets, table_of
from vitkit.data.splitnames import split_of_word
from vitkit.data.walk import SUFFIXES
from vitkit.errors import VitkitError
from vitkit.text.cells import JOINT, restored

_COLUMNS = {  # of a CSV file, by what people call them
    **dict.fromkeys(("path", "file", "filename", "image"), "path"),
    **dict.fromkeys(("label", "class", "labels"), "label"),
    "split": "split",
}


def read(name: str, file: Path, _: LayoutName = "auto") -> ImageTable:
    """The images of a list, whose delimiter is what its header has most of."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:  # spreadsheets begin with a byte order mark
            header = text.readline()
            delimiter = max(",;\t", key=header.count)
            titles = [title.strip() for title in next(csv.reader([header], delimiter=delimiter, strict=True), [])]
            columns = [_COLUMNS.get(title.lower(), title) for title in titles]
            is_multi = "labels" in map(str.lower, titles)
            if not {"path", "label"} <= set(columns) or len(set(columns)) < len(columns):
                raise VitkitError(
                    f"{name} needs the columns path and label (and may have split); it has: {header.strip()}"
                )
            lines = [own for own in _numbered(name, text, delimiter) if any(own[1])]
            _check_quotes(name, columns, delimiter, lines)
            if is_multi or delimiter == JOINT:
                _check_width(name, columns, lines)
            cells = [(line, dict(zip(columns, own, strict=False))) for line, own in lines]
            is_multi = is_multi or any(len(_names(restored(own.get("label", "").strip()))) > 1 for _, own in cells)
            rows = [_csv_row(name, line, own, may_be_empty=is_multi) for line, own in cells]
    except (UnicodeDecodeError, csv.Error) as error:
        raise VitkitError(f"{name} is no CSV file in UTF-8: {error}") from error
    if not rows:
        raise VitkitError(f"{name} names no images: it has no rows below its header")
    without = sum(row[2] is None for row in rows)
    if 0 < without < len(rows):
        raise VitkitError(f"{name}: {without} of {len(rows)} rows have no split; give it to all of them or to none")
    table = _to_multi_table(name, file.parent, rows) if is_multi else table_of(name, file.parent, rows)
    parents = {table.file(i).parent for i in range(len(table))}
    return replace(table, folders=tuple({parent.resolve() for parent in parents}))


def _to_multi_table(name: str, root: Path, rows: Sequence[Row]) -> ImageTable:
    own = [sorted(_names(row[1])) for row in rows]
    classes = tuple(sorted({label for labels in own for label in labels}))
    if not classes:
        raise VitkitError(f"{name} names no classes: every label is empty")
    index = {label: i for i, label in enumerate(classes)}
    sets, labels = number_sets([tuple(index[label] for label in labels) for labels in own])
    return ImageTable(
        name=name,
        root=root.resolve(),
        classes=classes,
        paths=tuple(row[0] for row in rows),
        labels=labels,
        splits=tuple(row[2] for row in rows),
        sets=sets,
    )


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(JOINT)} - {""}


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


def _csv_row(name: str, line: int, cells: dict[str, str], *, may_be_empty: bool) -> Row:
    path, label, split = (restored(cells.get(column, "").strip()) for column in ("path", "label", "split"))
    if not path or not (label or may_be_empty):
        raise VitkitError(f"{name}, line {line}: {'path' if not path else 'label'} is empty")
    if "\0" in path:
        raise VitkitError(f"{name}, line {line}: no path has a null byte: {path!r}")
    if split and split_of_word(split) is None:
        raise VitkitError(f"{name}, line {line}: split must be train, val or test, not {split!r}")
    return path, label, split_of_word(split)
