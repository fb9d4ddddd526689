"""Images in a list: a CSV file with the columns path (as seen from its own folder), label and, if wanted, split."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitkit.data.csv_rows import read_rows, refuse_encoding
from vitkit.data.layout import LayoutName
from vitkit.data.splitnames import split_of_word
from vitkit.data.table import ImageTable, Row, number_sets, refuse_twins, table_of
from vitkit.errors import VitkitError
from vitkit.text.cells import JOINT, restored

_COLUMNS = {  # of a CSV file, by what people call them
    **dict.fromkeys(("path", "file", "filename", "image"), "path"),
    **dict.fromkeys(("label", "class", "labels"), "label"),
    "split": "split",
}


def read(name: str, file: Path, _: LayoutName = "auto") -> ImageTable:
    """The images of a list, whose delimiter is what its header has most of."""
    with file.open("rb") as data:
        refuse_encoding(name, data.read(64))
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:  # spreadsheets begin with a byte order mark
            found = read_rows(name, text, _COLUMNS, ("path", "label"), " (and may have split)", joins=("labels",))
    except (UnicodeDecodeError, csv.Error) as error:
        raise VitkitError(f"{name} is no CSV file in UTF-8: {error}") from error
    is_multi = "labels" in map(str.lower, found.titles) or any(
        len(_names(restored(own.get("label", "").strip()))) > 1 for _, own in found.rows
    )
    rows = [_csv_row(name, line, own, may_be_empty=is_multi) for line, own in found.rows]
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
    refuse_twins(name, classes, rows)
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


def _csv_row(name: str, line: int, cells: dict[str, str], *, may_be_empty: bool) -> Row:
    path, label, split = (restored(cells.get(column, "").strip()) for column in ("path", "label", "split"))
    if not path or not (label or may_be_empty):
        raise VitkitError(f"{name}, line {line}: {'path' if not path else 'label'} is empty")
    if "\0" in path:
        raise VitkitError(f"{name}, line {line}: no path has a null byte: {path!r}")
    if split and split_of_word(split) is None:
        raise VitkitError(f"{name}, line {line}: split must be train, val or test, not {split!r}")
    return path, label, split_of_word(split)
