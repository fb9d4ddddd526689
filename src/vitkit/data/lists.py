"""Read lists of images: CSV files with the path and the classes of each image, and possibly its split and its group.

Lists come from many programs, so columns are recognised by their titles and by their cells. Whatever could change the
result is either read or refused: `find_splits` finds the column with the splits under any title, and `_find_separator`
the mark between the classes of an image. The table of a list names every column that is not read
(`ImageTable.overlooked`).
"""

from __future__ import annotations

import ast
import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from vitkit.data.labels import TITLES, CsvRows, read_rows, refuse_encoding
from vitkit.data.layout import LayoutName, split_of_folder
from vitkit.data.table import MULTI_LABEL, SINGLE_LABEL, ImageTable, refuse_lookalikes
from vitkit.errors import VitkitError
from vitkit.system.files import open_regular
from vitkit.text.cells import JOINT, listed, plural, restored

_EXPECTED = "path and label, each once (and may have split and group), or path and a column of 0 and 1 for each class"
_SPLIT_TITLES = frozenset(  # titles, without spaces and underscores, of columns that contain only splits
    ("subset", "partition", "usage", "traintest", "testtrain", "trainvaltest", "trainvalidtest", "traindevtest", "tvt")
)
# Titles of columns that may contain splits, but also something else.
_VAGUE_TITLES = frozenset(("set", "dataset", "imageset", "phase", "mode", "stage", "fold", "role", "purpose"))
_GROUP_TITLES = ("group", "groups", "groupid", "patient", "patientid", "subjectid", "caseid", "lesionid")  # best first
_NO_LABEL_WORDS = frozenset(("nan", "na", "n/a", "null", "none", "-1", "-", "?", "unlabeled", "unlabelled"))
_SEPARATORS = ("|", ",", "/", "+", "&", ":", " and ", "_and_", "\t", "\n", "、", "~", " ", "-", "_")
_SPLITS = {  # words in cells, in addition to those in folder names; the first two lines are Kaggle's
    **dict.fromkeys(("public", "publictest"), "eval"),
    **dict.fromkeys(("private", "privatetest"), "test"),
    **dict.fromkeys(("tr", "trn"), "train"),
    **dict.fromkeys(("va", "vld"), "val"),
    **dict.fromkeys(("te", "tst"), "test"),
}
_YES_NO = {
    **dict.fromkeys(("1", "1.0", "true", "t", "yes", "y"), True),
    **dict.fromkeys(("0", "0.0", "false", "f", "no", "n"), False),
}
_SPLIT_PREFIXES = frozenset(("is", "in", "for", "used"))  # words before the split in titles such as is_train
_ROBOFLOW_LIST = "_classes.csv"  # Roboflow's list, in the folder of the images


class _Labels(NamedTuple):
    names: Sequence[Sequence[str]]  # the names of the classes of each image
    is_multi: bool  # whether an image may have several classes
    note: str = ""  # how the labels were read, for users


def read_list(name: str, file: Path, _: LayoutName = "auto") -> ImageTable:
    """Read the table of the images in a CSV file.

    The columns path and label may have other titles (`labels.TITLES`); instead of label, there may be a column of 0 and
    1 for each class. A column with splits may have any title (`find_splits`). Images with the same cell in the column
    group stay in one split.
    """
    rows = _read_rows(name, file)
    split_columns, splits = find_splits(name, rows)
    rest = [column for column in rows.columns if column not in ("path", "label", *split_columns)]
    by_title = {_letters(column): column for column in reversed(rest)}  # the first column of each title
    group_column = next((by_title[title] for title in _GROUP_TITLES if title in by_title), None)
    rest = [column for column in rest if column != group_column]
    labels = _read_labels(name, rows, rest)
    paths = []
    for line, cells in rows.rows:
        path = _cell(cells, "path")
        paths.append(path)
        if not path:
            raise VitkitError("data.path-empty", f"{name}, line {line}: path is empty")
        if "\0" in path:
            raise VitkitError("data.null-byte", f"{name}, line {line}: paths must not contain a null byte: {path!r}")
    table = _table_of(name, file.parent, paths, labels, splits)
    groups = {}
    if group_column is not None:
        for path, cells in zip(paths, (cells for _, cells in rows.rows), strict=True):
            if group := _cell(cells, group_column):
                groups[path] = group
        if len(groups) == len(set(paths)) > 1 and len(set(groups.values())) == 1:
            raise VitkitError(
                "data.groups-all-one",
                f"{name}: all rows have the same {group_column}, so the images cannot be split: remove this column",
            )
    notes = [
        f"splits read from {_columns_in_words(split_columns)}" if split_columns not in ((), ("split",)) else "",
        labels.note,
        f"images with the same {group_column!r} stay in one split" if groups else "",
    ]
    overlooked = ""
    if rest and "label" in rows.columns:  # without a column label, each of the other columns is a class
        unread = listed([column or "(without a title)" for column in rest], 20)
        overlooked = f"{plural(len(rest), 'column is', 'columns are')} not read: {unread}"
        if folds := [column for column in rest if "fold" in column.lower()]:
            advice = "write train, val and test into a column split"
            overlooked += f"; {folds[0]} does not tell which images are test images: {advice}"
    parents = {(table.root / path).parent for path in table.paths}
    return replace(
        table,
        folders=tuple({parent.resolve() for parent in parents}),
        groups=groups,
        layout="; ".join(filter(None, notes)),
        overlooked=(overlooked,) if overlooked else (),
    )


def read_lists_of_splits(name: str, root: Path) -> ImageTable | None:
    """Read the lists `_classes.csv` that Roboflow puts beside the images of each split.

    Return None if the folder does not contain such lists. A single list beside the images is read without splits.
    """
    if (root / _ROBOFLOW_LIST).is_file():
        return read_list(name, root / _ROBOFLOW_LIST)
    files = {file: split_of_folder(file.parent.name) for file in sorted(root.glob(f"*/{_ROBOFLOW_LIST}"))}
    if not files or None in files.values():
        return None
    tables = [replace(read_list(f"{name}/{file.parent.name}/{_ROBOFLOW_LIST}", file), name=name) for file in files]
    folders = [file.parent.name for file in files]
    split_names = [split_and_words[0] for split_and_words in files.values() if split_and_words is not None]
    eval_split = "val" if "test" in split_names else "test"  # the meaning of a folder named `eval`
    paths: list[str] = []
    names: list[list[str]] = []
    splits: list[str | None] = []
    for folder, split, table in zip(folders, split_names, tables, strict=True):
        paths += [f"{folder}/{path}" for path in table.paths]
        names += [[table.classes[k] for k in table.classes_of(i)] for i in range(len(table))]
        splits += [eval_split if split == "eval" else split] * len(table)
    return replace(
        _table_of(name, root, paths, _Labels(names, any(table.sets for table in tables)), splits),
        folders=(root.resolve(),),
        layout=f"splits read from {_ROBOFLOW_LIST} in {'/, '.join(folders)}/; {tables[0].layout}",
        overlooked=tuple(dict.fromkeys(line for table in tables for line in table.overlooked)),
    )


def _read_rows(name: str, file: Path) -> CsvRows:
    try:
        with open(file, "rb", opener=open_regular) as data:
            refuse_encoding(name, data.read(64))
        # Spreadsheets write a byte order mark.
        with open(file, encoding="utf-8-sig", newline="", opener=open_regular) as text:
            rows = read_rows(name, text, TITLES, ("path",), _EXPECTED)
    except (UnicodeDecodeError, csv.Error) as error:
        raise VitkitError("data.csv-damaged", f"{name} is not a CSV file in UTF-8: {error}") from error
    except OSError as error:
        raise VitkitError("data.list-unreadable", f"{name} cannot be read: {error.strerror or error}") from error
    if {"confidence", "error"} <= set(rows.columns):
        raise VitkitError(
            "data.list-of-predictions",
            f"{name} is a table of `vitkit predict`, whose labels are a model's answers: they do not show how often a "
            "model is right. Correct them, and keep only the columns path and label",
        )
    if not rows.rows:
        raise VitkitError("data.images-missing", f"{name} contains no images: it has no rows after its header")
    return rows


def _cell(cells: Mapping[str, str], column: str) -> str:
    return restored(cells.get(column, "").strip())


def _letters(title: str) -> str:
    return re.sub(r"[\W_]+", "", title.lower())


def _columns_in_words(titles: Sequence[str]) -> str:
    return f"the column{'s' * (len(titles) > 1)} {', '.join(map(repr, titles))}"


# --- Splits and groups ----------------------------------------------------------------------------------------


def find_splits(name: str, rows: CsvRows) -> tuple[tuple[str, ...], list[str | None]]:
    """Find the splits of the rows. Return the titles of the columns that contain them, and the split of each row.

    A column contains splits if all of its cells are words for splits, or if its title says so. Splits may also be given
    by columns of yes and no, such as is_train. Without such columns, no row has a split. Raise VitkitError if columns
    contradict each other, or if only some of the rows have a split.
    """
    found: dict[tuple[str, ...], list[str | None]] = {}
    for column in rows.columns:
        if column not in ("path", "label") and (splits := _splits_in_column(name, rows, column)) is not None:
            found[(column,)] = splits
    if flags := _flag_columns(name, rows):
        # A row without any yes is in the first split that has no column.
        rest = next((split for split in ("train", "test", "val") if split not in flags.values()), None)
        splits = []
        for line, cells in rows.rows:
            chosen = [split for column, split in flags.items() if _YES_NO.get(_cell(cells, column).lower())]
            if len(chosen) > 1 or (not chosen and rest is None):
                raise VitkitError(
                    "data.split-invalid",
                    f"{name}, line {line}: {_columns_in_words([*flags])} must contain one 1, not {len(chosen)}",
                )
            splits.append(chosen[0] if chosen else rest)
        found[tuple(flags)] = splits
    if not found:
        return (), [None] * len(rows.rows)
    (titles, splits), *others = sorted(found.items(), key=lambda item: item[0] != ("split",))  # `split` comes first
    for other_titles, other_splits in others:
        for (line, _), split, other in zip(rows.rows, splits, other_splits, strict=True):
            if split != other:
                raise VitkitError(
                    "data.splits-conflict",
                    f"{name}, line {line}: {_columns_in_words((*titles, *other_titles))} give different splits "
                    f"({split} and {other}): keep one of them",
                )
    if 0 < (without := splits.count(None)) < len(splits):
        raise VitkitError(
            "data.split-missing",
            f"{name}: {without} of {len(splits)} rows have no split; give it to all of them or to none",
        )
    return tuple(column for columns in found for column in columns), splits


def _splits_in_column(name: str, rows: CsvRows, column: str) -> list[str | None] | None:
    """Return the split of each row if a column contains splits; otherwise None."""
    words = [_cell(cells, column) for _, cells in rows.rows]
    split_of: dict[str, str | None] = {}
    for word in filter(None, dict.fromkeys(words)):
        split, other_words = split_of_folder(word) or (None, ())
        split_of[word] = _SPLITS.get(_letters(word)) or (None if other_words else split)
    known, title = set(split_of.values()) - {None}, _letters(column)
    title_is_clear = "split" in title or title in _SPLIT_TITLES
    if not split_of or not (title_is_clear or len(known) > 1 or (known and title in _VAGUE_TITLES)):
        return None
    if other := [word for word in split_of if split_of[word] is None]:
        if not title_is_clear and len(known) < 2:
            return None
        line, _ = rows.rows[words.index(other[0])]
        raise VitkitError(
            "data.split-invalid",
            f"{name}, line {line}: {column} must be train, val or test, not {other[0]!r}; rename the column if it does "
            "not tell the split",
        )
    split_of |= {word: "val" if "test" in known else "test" for word in split_of if split_of[word] == "eval"}
    return [split_of.get(word) for word in words]


def _flag_columns(name: str, rows: CsvRows) -> dict[str, str]:
    """Return the split of each column whose cells are yes or no, and whose title names a split, such as is_train."""
    flags: dict[str, str] = {}
    has_prefix = False  # whether a title is clear
    for column in rows.columns:
        split, other_words = split_of_folder(column) or (None, ())
        cells = {_cell(cells, column).lower() for _, cells in rows.rows}
        if split is not None and set(other_words) <= _SPLIT_PREFIXES and cells <= {*_YES_NO, ""} and cells != {""}:
            flags[column] = "test" if split == "eval" else split
            has_prefix |= bool(other_words)
    if len(set(flags.values())) < len(flags):
        named = _columns_in_words([*flags])
        raise VitkitError("data.splits-twice", f"{name}: {named} tell the same split: keep one of them")
    if len(flags) == 1 and not has_prefix:
        (column,) = flags
        raise VitkitError(
            "data.column-ambiguous",
            f"{name}: the column {column!r} may tell the split or something else: if it tells the split, call it "
            f"is_{flags[column]}; otherwise rename it",
        )
    return flags


# --- Labels -----------------------------------------------------------------------------------------------------


def _read_labels(name: str, rows: CsvRows, rest: Sequence[str]) -> _Labels:
    """Read the column label, whose cells may join several names, or else the columns of 0 and 1 for each class."""
    if "label" not in rows.columns:
        flags = [[_cell(cells, column) for column in rest] for _, cells in rows.rows]
        if len(rest) < 2 or not {flag for row in flags for flag in row} <= {"0", "1", "0.0", "1.0"}:
            raise VitkitError(
                "data.columns-missing",
                f"{name} needs the columns {_EXPECTED}; it has: {rows.delimiter.join(rows.titles):.200}",
            )
        names = [[column for column, flag in zip(rest, row, strict=True) if flag.startswith("1")] for row in flags]
        note = f"labels read from {len(rest)} columns of 0 and 1: {listed(rest, 20)}"
        return _Labels(names, any(len(row) != 1 for row in names), note)
    is_declared = any(title.lower() == "labels" for title in rows.titles)
    cells = [_cell(row, "label") for _, row in rows.rows]
    if (lists := _parse_lists(name, rows, cells)) is not None:
        is_multi = is_declared or any(len(row) != 1 for row in lists)
        return _Labels(lists, is_multi, "labels read as lists" if is_multi else "")
    names = [MULTI_LABEL.names_in(cell) for cell in cells]
    is_multi = is_declared or any(len(set(row)) > 1 for row in names)
    if not is_multi:
        if "" in cells:
            line, _ = rows.rows[cells.index("")]
            raise VitkitError("data.label-missing", f"{name}, line {line}: label is empty")
        names = [[cell] for cell in cells]
    is_joined, labels = any(len(row) > 1 for row in names), {label for row in names for label in row}
    separator, note = _find_separator(name, labels, is_declared=is_declared, is_joined=is_joined)
    if separator is None:
        suspicious = sorted(label for label in labels if label.lower() in _NO_LABEL_WORDS)
        warning = f"{suspicious[0]!r} is read as a class: remove the rows without a label" if suspicious else ""
        return _Labels(names, is_multi, "; ".join(filter(None, (note, warning))))
    if is_joined:
        raise VitkitError(
            "data.label-invalid", f"{name}: labels join classes by {JOINT!r} and by {separator!r}: use {JOINT!r} only"
        )
    parts = [[part.strip() for label in row for part in label.split(separator)] for row in names]
    return _Labels([list(filter(None, row)) for row in parts], is_multi=True, note=f"labels split at {separator!r}")


def _parse_lists(name: str, rows: CsvRows, cells: Sequence[str]) -> list[list[str]] | None:
    """Return the names in cells such as ['cat', 'dog']; None if the cells are not written as lists."""
    are_lists = [cell[:1] + cell[-1:] in ("[]", "()", "{}") for cell in cells if cell]
    # Parentheses and braces also occur in the names of classes, so they need to be in every cell.
    if not any(are_lists) or (not all(are_lists) and not any(cell.startswith("[") for cell in cells)):
        return None
    if not all(are_lists):
        row = next(i for i, cell in enumerate(cells) if cell and cell[0] not in "[({")
        raise VitkitError(
            "data.label-invalid",
            f"{name}, line {rows.rows[row][0]}: the label {cells[row]!r:.80} is no list, but other labels are: join "
            f"names by {JOINT!r}, as in cat;dog",
        )
    names = []
    for (line, _), cell in zip(rows.rows, cells, strict=True):
        try:
            value = ast.literal_eval(cell or "[]")
            items = [] if isinstance(value, dict) else [str(item).strip() for item in value]
            is_plain = not isinstance(value, dict) and all(isinstance(item, str | int | float) for item in value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # names without quotes
            items = list(filter(None, (part.strip(" '\"") for part in cell[1:-1].split(","))))
            is_plain = not any(  # dictionaries, lists of lists, and numbers with spaces between them
                re.search(r"[:\[{]", item) or re.fullmatch(r"[\d.]+(\s+[\d.]+)+", item) for item in items
            )
        is_joined = re.search(r"""(['"])\s+\1""", cell)  # NumPy writes no commas, and Python joins such strings
        if not is_plain or is_joined or len(set(items)) < len(items):  # equal items may be a 0 or 1 for each class
            raise VitkitError(
                "data.label-invalid",
                f"{name}, line {line}: the label {cell!r:.80} is not a list of different names between commas: join "
                f"names by {JOINT!r}, as in cat;dog",
            )
        names.append(items)
    return names


def _find_separator(name: str, labels: set[str], *, is_declared: bool, is_joined: bool) -> tuple[str | None, str]:
    """Return the mark, other than `;`, at which labels are to be split (or None), and a note about labels with a mark.

    `is_declared` is whether the title of the column says that a label may contain several classes. `is_joined` is
    whether some rows join classes by `;`; other characters are then probably parts of names. Raise VitkitError if
    labels seem to join other labels by a mark that may be a part of their names.
    """
    note = ""
    for mark in "|," if is_joined else _SEPARATORS:
        parts = {label: [part.strip() for part in label.split(mark) if part.strip()] for label in labels}
        joined = sorted(label for label in labels if len(parts[label]) > 1)
        whole = [label for label in joined if labels.issuperset(parts[label])]  # whose parts are labels, too
        is_certain = bool(joined) and whole == joined
        if joined and not is_joined and (mark == "|" or (mark == "," and is_declared)):
            return mark, ""
        if is_certain and (mark in "|," or (mark == " " and is_declared)):
            return mark, ""
        if is_certain or (whole and (mark in "|,/+&" or (mark == " " and is_declared))):
            raise VitkitError(
                "data.label-invalid",
                f"{name}: the label {whole[0]!r} joins other labels by {mark!r}: join several classes by {JOINT!r}, as "
                f"in {JOINT.join(parts[whole[0]])}, or write the name of one class without {mark!r}",
            )
        uses = Counter(part for label in labels for part in set(parts[label]))
        if joined and all(uses[part] > 1 for label in joined for part in parts[label]):
            note = f"labels such as {joined[0]!r} are read as one name each, not as several joined by {mark!r}"
    return None, note


def _table_of(name: str, root: Path, paths: Sequence[str], labels: _Labels, splits: Sequence[str | None]) -> ImageTable:
    names_of_rows = [sorted(set(names)) for names in labels.names]
    classes = tuple(sorted({label for names in names_of_rows for label in names}))
    if not classes:
        raise VitkitError("data.classes-missing", f"{name} contains no classes: every label is empty")
    refuse_lookalikes(
        name, classes, [(path, JOINT.join(names), None) for path, names in zip(paths, labels.names, strict=True)]
    )
    index = {label: i for i, label in enumerate(classes)}
    task = MULTI_LABEL if labels.is_multi else SINGLE_LABEL
    sets, numbers = task.encode([tuple(index[label] for label in names) for names in names_of_rows])
    return ImageTable(name, root.resolve(), classes, tuple(paths), numbers, tuple(splits), sets=sets)
