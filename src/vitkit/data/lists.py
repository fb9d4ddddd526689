"""Read lists of images: CSV files with the path and the classes of each image, and possibly its split and its group.

Lists come from many programs, so columns are recognised by their titles and by their cells. Whatever could change the
result is either read or refused: `splits_in` finds the column with the splits under any title, `_separator` finds the
mark between the classes of an image, and `_refuse_other_paths` finds files that a list calls by other paths. The table
of a list names every column that is not read (`ImageTable.overlooked`).
"""

from __future__ import annotations

import ast
import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path, PureWindowsPath
from typing import NamedTuple

from vitkit.data.file_names import SUFFIXES, why_ignored
from vitkit.data.labels import TITLES, CsvRows, read_rows, refuse_encoding
from vitkit.data.layout import LayoutName, split_of_folder
from vitkit.data.storage import is_there, walk
from vitkit.data.table import MULTI_LABEL, SINGLE_LABEL, ImageTable, refuse_lookalikes
from vitkit.errors import VitkitError
from vitkit.system.files import regular
from vitkit.text.cells import JOINT, listed, plural, restored

_EXPECTED = "path and label, each once (and may have split and group), or path and a column of 0 and 1 for each class"
_SPLIT_TITLES = frozenset(  # titles, without spaces and underscores, of columns that hold nothing but splits
    ("subset", "partition", "usage", "traintest", "testtrain", "trainvaltest", "trainvalidtest", "traindevtest", "tvt")
)
_VAGUE_TITLES = frozenset(("set", "dataset", "imageset", "phase", "mode", "stage", "fold", "role", "purpose"))
_GROUP_TITLES = ("group", "groups", "groupid", "patient", "patientid", "subjectid", "caseid", "lesionid")  # best first
_MISSING = frozenset(("nan", "na", "n/a", "null", "none", "-1", "-", "?", "unlabeled", "unlabelled"))
_SEPARATORS = ("|", ",", "/", "+", "&", ":", " and ", "_and_", "\t", "\n", "、", "~", " ", "-", "_")
_SPLITS = {  # cells, in addition to the words for folders; the first two are Kaggle's, and `eval` is val beside test
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
_SPLIT_PREFIXES = frozenset(("is", "in", "for", "used"))  # before the split in the title of a column of yes and no
_ROBOFLOW_LIST = "_classes.csv"  # Roboflow's list, in the folder of the images
_SEARCHED = 20_000  # files among which a path that does not exist is searched


class _Labels(NamedTuple):
    names: Sequence[Sequence[str]]  # of the classes of each image
    is_multi: bool  # whether an image may have several
    note: str = ""  # how the labels were read


def read_list(name: str, file: Path, _: LayoutName = "auto") -> ImageTable:
    """Read the table of the images in a CSV file.

    The columns path and label may have other titles (`labels.TITLES`); instead of label, there may be a column of 0 and
    1 for each class. A column with splits may have any title (`splits_in`). Images with the same cell in the column
    group stay in one split.
    """
    rows = _read_rows(name, file)
    split_column, splits = splits_in(name, rows)
    rest = [column for column in rows.columns if column not in ("path", "label", *split_column)]
    group_column = next((column for title in _GROUP_TITLES for column in rest if _plain(column) == title), None)
    rest = [column for column in rest if column != group_column]
    labels = _labels_in(name, rows, rest)
    paths = []
    for line, cells in rows.rows:
        paths.append(path := _cell(cells, "path"))
        if not path:
            raise VitkitError("data.path-empty", f"{name}, line {line}: path is empty")
        if "\0" in path:
            raise VitkitError("data.null-byte", f"{name}, line {line}: paths must not contain a null byte: {path!r}")
    table = _table_of(name, file.parent, paths, labels, splits)
    _refuse_other_paths(table)
    groups = {}
    if group_column is not None:
        found = ((path, _cell(cells, group_column)) for path, (_, cells) in zip(paths, rows.rows, strict=True))
        groups = {path: group for path, group in found if group}
        if len(groups) == len(set(paths)) > 1 and len(set(groups.values())) == 1:
            raise VitkitError(
                "data.groups-all-one",
                f"{name}: all rows have the same {group_column}, so the images cannot be split: remove this column",
            )
    notes = [
        *([f"splits read from {_quoted(split_column)}"] if split_column not in ((), ("split",)) else []),
        *filter(None, [labels.note]),
        *([f"images with the same {group_column!r} stay in one split"] if groups else []),
    ]
    overlooked = ""
    if rest and "label" in rows.columns:  # otherwise they are the classes
        unread = listed([column or "(without a title)" for column in rest], 20)
        overlooked = f"{plural(len(rest), 'column is', 'columns are')} not read: {unread}"
        if folds := [column for column in rest if "fold" in column.lower()]:
            overlooked += f"; {folds[0]} does not tell which images are test images: write train, val and test into a "
            overlooked += "column split"
    parents = {(table.root / path).parent for path in table.paths}
    return replace(
        table,
        folders=tuple({parent.resolve() for parent in parents}),
        groups=groups,
        layout="; ".join(notes),
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
    words = [named[0] for named in files.values() if named is not None]
    eval_split = "val" if "test" in words else "test"
    paths: list[str] = []
    names: list[list[str]] = []
    splits: list[str | None] = []
    for folder, word, table in zip(folders, words, tables, strict=True):
        paths += [f"{folder}/{path}" for path in table.paths]
        names += [[table.classes[k] for k in table.classes_of(i)] for i in range(len(table))]
        splits += [eval_split if word == "eval" else word] * len(table)
    return replace(
        _table_of(name, root, paths, _Labels(names, any(table.sets for table in tables)), splits),
        folders=(root.resolve(),),
        layout=f"splits read from {_ROBOFLOW_LIST} in {'/, '.join(folders)}/; {tables[0].layout}",
        overlooked=tuple(dict.fromkeys(line for table in tables for line in table.overlooked)),
    )


def _read_rows(name: str, file: Path) -> CsvRows:
    try:
        with open(file, "rb", opener=regular) as data:
            refuse_encoding(name, data.read(64))
        # Spreadsheets write a byte order mark.
        with open(file, encoding="utf-8-sig", newline="", opener=regular) as text:
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


def _plain(title: str) -> str:
    return re.sub(r"[\W_]+", "", title.lower())


def _quoted(titles: Sequence[str]) -> str:
    return f"the column{'s' * (len(titles) > 1)} {', '.join(map(repr, titles))}"


# --- Splits and groups ----------------------------------------------------------------------------------------


def splits_in(name: str, rows: CsvRows) -> tuple[tuple[str, ...], list[str | None]]:
    """Find the splits of the rows. Return the titles of the columns that hold them, and the split of each row.

    A column holds splits if all of its cells are words for splits, or if its title is one for splits. There may also be
    columns of yes and no for single splits, such as is_train. Without any of these, no row has a split.
    """
    found: dict[tuple[str, ...], list[str | None]] = {}
    for column in rows.columns:
        if column not in ("path", "label") and (splits := _splits_of_words(name, rows, column)) is not None:
            found[(column,)] = splits
    if flags := _flag_columns(name, rows):
        # A row without any yes is in the first split without a column.
        rest = next((split for split in ("train", "test", "val") if split not in flags.values()), None)
        splits = []
        for line, cells in rows.rows:
            named = [split for column, split in flags.items() if _YES_NO.get(_cell(cells, column).lower())]
            if len(named) > 1 or (not named and rest is None):
                raise VitkitError(
                    "data.split-invalid",
                    f"{name}, line {line}: {_quoted([*flags])} must contain one 1, not {len(named)}",
                )
            splits.append(named[0] if named else rest)
        found[tuple(flags)] = splits
    if not found:
        return (), [None] * len(rows.rows)
    (titles, splits), *others = sorted(found.items(), key=lambda item: item[0] != ("split",))
    for other, theirs in others:
        if (row := next((i for i, split in enumerate(splits) if split != theirs[i]), None)) is not None:
            raise VitkitError(
                "data.splits-conflict",
                f"{name}, line {rows.rows[row][0]}: {_quoted((*titles, *other))} give different splits "
                f"({splits[row]} and {theirs[row]}): keep one of them",
            )
    if 0 < (without := splits.count(None)) < len(splits):
        raise VitkitError(
            "data.split-missing",
            f"{name}: {without} of {len(splits)} rows have no split; give it to all of them or to none",
        )
    return tuple(column for columns in found for column in columns), splits


def _splits_of_words(name: str, rows: CsvRows, column: str) -> list[str | None] | None:
    words = [_cell(cells, column) for _, cells in rows.rows]
    meant: dict[str, str | None] = {}
    for word in filter(None, dict.fromkeys(words)):
        named = split_of_folder(word)
        meant[word] = _SPLITS.get(_plain(word)) or (named[0] if named is not None and not named[1] else None)
    known, plain = set(meant.values()) - {None}, _plain(column)
    is_of_splits = "split" in plain or plain in _SPLIT_TITLES
    if not meant or not (is_of_splits or len(known) > 1 or (known and plain in _VAGUE_TITLES)):
        return None
    if (other := next((word for word in meant if meant[word] is None), None)) is not None:
        if not is_of_splits and len(known) < 2:
            return None
        line = rows.rows[words.index(other)][0]
        raise VitkitError(
            "data.split-invalid",
            f"{name}, line {line}: {column} must be train, val or test, not {other!r}; rename the column if it does "
            "not tell the split",
        )
    eval_split = "val" if "test" in known else "test"
    return [eval_split if (split := meant.get(word)) == "eval" else split for word in words]


def _flag_columns(name: str, rows: CsvRows) -> dict[str, str]:
    """Return the columns of yes and no that tell whether a row is in a split, with these splits."""
    flags: dict[str, str] = {}
    is_clear = False
    for column in rows.columns:
        named = split_of_folder(column)
        cells = {_cell(cells, column).lower() for _, cells in rows.rows}
        if named is not None and set(named[1]) <= _SPLIT_PREFIXES and cells <= {*_YES_NO, ""} and cells != {""}:
            flags[column] = "test" if named[0] == "eval" else named[0]
            is_clear |= bool(named[1])
    if len(set(flags.values())) < len(flags):
        raise VitkitError("data.splits-twice", f"{name}: {_quoted([*flags])} tell the same split: keep one of them")
    if len(flags) == 1 and not is_clear:
        (column,) = flags
        raise VitkitError(
            "data.column-ambiguous",
            f"{name}: the column {column!r} may tell the split or something else: if it tells the split, call it "
            f"is_{flags[column]}; otherwise rename it",
        )
    return flags


# --- Labels -----------------------------------------------------------------------------------------------------


def _labels_in(name: str, rows: CsvRows, rest: Sequence[str]) -> _Labels:
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
        return _Labels(names, any(len(each) != 1 for each in names), note)
    is_declared = any(title.lower() == "labels" for title in rows.titles)
    cells = [_cell(row, "label") for _, row in rows.rows]
    if (lists := _names_of_lists(name, rows, cells)) is not None:
        several = is_declared or any(len(each) != 1 for each in lists)
        return _Labels(lists, several, "labels read as lists" if several else "")
    names = [MULTI_LABEL.names_in(cell) for cell in cells]
    several = is_declared or any(len(set(each)) > 1 for each in names)
    if not several and (empty := next((i for i, cell in enumerate(cells) if not cell), None)) is not None:
        raise VitkitError("data.label-missing", f"{name}, line {rows.rows[empty][0]}: label is empty")
    if not several:
        names = [[cell] for cell in cells]
    is_joined, labels = any(len(row) > 1 for row in names), {each for row in names for each in row}
    separator, note = _separator(name, labels, is_declared=is_declared, is_joined=is_joined)
    if separator is None:
        missing = sorted(label for label in labels if label.lower() in _MISSING)
        warning = f"{missing[0]!r} is read as a class: remove the rows without a label" if missing else ""
        return _Labels(names, several, "; ".join(filter(None, (note, warning))))
    if is_joined:
        raise VitkitError(
            "data.label-invalid", f"{name}: labels join classes by {JOINT!r} and by {separator!r}: use {JOINT!r} only"
        )
    names = [[part.strip() for each in row for part in each.split(separator) if part.strip()] for row in names]
    return _Labels(names, is_multi=True, note=f"labels split at {separator!r}")


def _names_of_lists(name: str, rows: CsvRows, cells: Sequence[str]) -> list[list[str]] | None:
    """Return the names in cells such as ['cat', 'dog']; None if the cells are not written as lists."""
    are_lists = [cell[:1] + cell[-1:] in ("[]", "()", "{}") for cell in cells if cell]
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
            found = ast.literal_eval(cell or "[]")
            items = [] if isinstance(found, dict) else [str(item).strip() for item in found]
            is_plain = not isinstance(found, dict) and all(isinstance(item, str | int | float) for item in found)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # names without quotes
            items = [item for part in cell[1:-1].split(",") if (item := part.strip(" '\""))]
            is_plain = not any(
                re.search(r"[:\[{]", item) or re.fullmatch(r"[\d.]+(\s+[\d.]+)+", item) for item in items
            )
        is_joined = re.search(r"""(['"])\s+\1""", cell)  # NumPy writes no commas, and Python joins such strings
        if not is_plain or is_joined or len(set(items)) < len(items):  # perhaps a 0 or 1 for each class
            raise VitkitError(
                "data.label-invalid",
                f"{name}, line {line}: the label {cell!r:.80} is not a list of different names between commas: join "
                f"names by {JOINT!r}, as in cat;dog",
            )
        names.append(items)
    return names


def _separator(name: str, labels: set[str], *, is_declared: bool, is_joined: bool) -> tuple[str | None, str]:
    """Return the mark, other than `;`, at which labels are to be split, or None, and a note about names with one.

    `is_declared` is whether the title of the column says that there are several names, and `is_joined` whether some
    rows join names by `;`, so that other characters are probably parts of names. It is an error if labels seem to join
    other labels by a mark that may be a part of their names.
    """
    note = ""
    for mark in "|," if is_joined else _SEPARATORS:
        parts = {label: [part.strip() for part in label.split(mark) if part.strip()] for label in labels}
        joined = sorted(label for label in labels if len(parts[label]) > 1)
        whole = [label for label in joined if labels.issuperset(parts[label])]
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


# --- Paths ------------------------------------------------------------------------------------------------------


def _refuse_other_paths(table: ImageTable) -> None:
    """Refuse a list none of whose paths exists, if the file of the first path is found under another path."""
    if any(is_there(place) for place in table.files()):
        return
    path = table.paths[0]
    if (there := next(_candidates(table.root, path), None)) is not None:
        raise VitkitError(
            "data.images-elsewhere",
            f"{table.name}: none of its {len(table)} images exists (the first is {path!r:.200}), but {there} does: "
            f"write paths as they are below {table.root}, with '/' and the suffix",
        )


def _candidates(root: Path, path: str) -> Iterator[str]:
    """Yield files that a path may mean: with other slashes, with a suffix, or in another folder."""
    name = PureWindowsPath(path).name  # which takes both kinds of slashes
    folders = PureWindowsPath(path).as_posix().rpartition("/")[0].split("/")
    for i in range(len(folders)):  # without the folders above, too, which may be those of another machine
        place = root.joinpath(*folders[i:], name)
        if is_there(place):
            yield place.relative_to(root).as_posix()
    stem = Path(name).stem if Path(name).suffix.lower() in SUFFIXES else name
    for file in islice(walk(root), _SEARCHED):
        if file.name == name or (file.stem == stem and why_ignored(file.name) is None):
            yield file.relative_to(root).as_posix()
    for other in (Path.cwd(), root.parent):
        if is_there(other / path):
            yield str(other / path)
