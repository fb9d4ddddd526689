"""Read lists of images: CSV files with the path and the classes of each image, and possibly its split and its group.

Columns are recognised by their titles. A column that seems to tell the splits, and labels that seem to join several
classes in another way than by `;`, are refused. The table of a list names every column that is not read
(`ImageTable.overlooked`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vitkit.data.labels import TITLES, CsvRows, read_rows
from vitkit.data.layout import LayoutName, split_of_folder
from vitkit.data.table import MULTI_LABEL, SINGLE_LABEL, ImageTable, refuse_lookalikes
from vitkit.errors import VitkitError
from vitkit.system.files import read_bytes
from vitkit.text.cells import JOINT, listed, plural, restored

_EXPECTED = "path and label, each once (and may have split and group), or path and a column of 0 and 1 for each class"
_GROUP_TITLES = ("group", "groups", "groupid", "patient", "patientid", "subjectid", "caseid", "lesionid")  # best first
_YES_NO = frozenset(("1", "1.0", "true", "t", "yes", "y", "0", "0.0", "false", "f", "no", "n", ""))
_MAX_WORDS = 50  # a column with more different words does not tell the splits
_NO_LABEL_WORDS = frozenset(("nan", "na", "n/a", "null", "none", "-1", "-", "?", "unlabeled", "unlabelled"))
_MARKS = ("|", ",", "/", "+", "&", ":", " and ", "_and_", "\t", "\n", "、", "~", " ", "-", "_")


def read_list(name: str, file: Path, _: LayoutName = "auto") -> ImageTable:
    """Read the table of the images in a CSV file.

    The columns path and label may have other titles (`labels.TITLES`); instead of label, there may be a column of 0 and
    1 for each class. Images with the same cell in the column group stay in one split.
    """
    rows = _read_rows(name, file)
    splits = _read_splits(name, rows)
    columns = [column for column in rows.columns if column not in ("path", "label", "split")]
    titles = [re.sub(r"[\W_]+", "", column.lower()) for column in columns]
    group_column = None
    for title in _GROUP_TITLES:
        if group_column is None and title in titles:
            group_column = columns[titles.index(title)]
    if group_column is not None:
        columns.remove(group_column)

    has_label_column = "label" in rows.columns
    labels = _read_label_column(name, rows) if has_label_column else _read_class_columns(name, rows, columns)
    names_of_images = [sorted(set(names)) for names in labels.names]
    classes = tuple(sorted({class_name for names in names_of_images for class_name in names}))
    if not classes:
        raise VitkitError("data.classes-missing", f"{name} contains no classes: every label is empty")
    paths = _cells(rows, "path")
    lines = [line for line, _ in rows.rows]
    for line, path in zip(lines, paths, strict=True):
        if not path:
            raise VitkitError("data.path-empty", f"{name}, line {line}: path is empty")
        if "\0" in path:
            raise VitkitError("data.null-byte", f"{name}, line {line}: paths must not contain a null byte: {path!r}")
    groups = {} if group_column is None else _read_groups(name, rows, paths, group_column)
    joined_names = [JOINT.join(names) for names in names_of_images]
    refuse_lookalikes(name, classes, zip(paths, joined_names, splits, strict=True))

    notes = [labels.note] if labels.note else []
    if groups:
        notes.append(f"images with the same {group_column!r} stay in one split")
    overlooked = []
    if columns and has_label_column:  # otherwise each of the columns is a class
        unread = listed([column or "(without a title)" for column in columns], 20)
        overlooked.append(f"{plural(len(columns), 'column is', 'columns are')} not read: {unread}")
    root = file.parent.resolve()
    folders = {(root / path).parent for path in paths}
    number = {class_name: i for i, class_name in enumerate(classes)}
    task = MULTI_LABEL if labels.is_multi else SINGLE_LABEL
    sets, encoded = task.encode([tuple(number[class_name] for class_name in names) for names in names_of_images])
    return ImageTable(
        name=name,
        root=root,
        classes=classes,
        paths=tuple(paths),
        labels=encoded,
        splits=tuple(splits),
        sets=sets,
        folders=tuple({folder.resolve() for folder in folders}),
        groups=groups,
        layout="; ".join(notes),
        overlooked=tuple(overlooked),
    )


def _read_rows(name: str, file: Path) -> CsvRows:
    try:
        content = read_bytes(file)
    except OSError as error:
        raise VitkitError("data.list-unreadable", f"{name} cannot be read: {error.strerror or error}") from error
    rows = read_rows(name, content, TITLES | {"split": "split"}, ("path",), _EXPECTED)
    if {"confidence", "error"} <= set(rows.columns):
        raise VitkitError(
            "data.list-of-predictions",
            f"{name} is a table of `vitkit predict`, whose labels are a model's answers: they do not show how often a "
            "model is right. Correct them, and keep only the columns path and label",
        )
    if not rows.rows:
        raise VitkitError("data.images-missing", f"{name} contains no images: it has no rows after its header")
    return rows


def _cells(rows: CsvRows, column: str) -> list[str]:
    """Return the cells of a column; a cell is empty if its row is too short."""
    return [restored(cells.get(column, "").strip()) for _, cells in rows.rows]


# --- Groups and splits ---------------------------------------------------------------------------------------


def _read_groups(name: str, rows: CsvRows, paths: Sequence[str], column: str) -> dict[str, str]:
    groups = {path: group for path, group in zip(paths, _cells(rows, column), strict=True) if group}
    images = len(set(paths))
    if images > 1 and len(groups) == images and len(set(groups.values())) == 1:
        raise VitkitError(
            "data.groups-all-one",
            f"{name}: all rows have the same {column}, so the images cannot be split: remove this column",
        )
    return groups


_CLEAR_TITLES = frozenset(  # titles, without spaces and underscores, of columns that contain only splits
    ("subset", "partition", "usage", "traintest", "testtrain", "trainvaltest", "trainvalidtest", "traindevtest", "tvt")
)
# Titles of columns that may contain splits, but also something else.
_VAGUE_TITLES = ("set", "dataset", "imageset", "phase", "mode", "stage", "fold", "role", "purpose")
_SHORT_WORDS = {  # in cells, in addition to the words for folders
    **dict.fromkeys(("tr", "trn"), "train"),
    **dict.fromkeys(("va", "vl", "vld"), "val"),
    **dict.fromkeys(("te", "ts", "tst", "publictest", "privatetest", "public", "private"), "test"),
}


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text.lower()))


def _may_tell_splits(title: str, words: set[str]) -> bool:
    """Return whether a column may contain splits, by its title and the different words in its cells."""
    if not 0 < len(words) < _MAX_WORDS:
        return False
    letters = _letters(title)
    if "split" in letters or letters in _CLEAR_TITLES:
        return True
    splits: set[str | None] = set()  # of the words
    for word in words:
        split, other_words = split_of_folder(word) or (None, ())
        if split is None or other_words:
            split = _SHORT_WORDS.get(_letters(word))
        splits.add(split)
    if len(splits - {None}) > 1:
        return True
    if letters in _VAGUE_TITLES and None not in splits:
        return True
    # Columns of yes and no, such as is_train, which is the split train and the word `is`.
    split, other_words = split_of_folder(title) or (None, ())
    are_flags = _YES_NO.issuperset(word.lower() for word in words)
    return split is not None and are_flags and {"is", "in", "for", "used"}.issuperset(other_words)


def _read_splits(name: str, rows: CsvRows) -> list[str | None]:
    """Return the splits in the column split; without one, refuse a column that seems to tell the splits."""
    words = _cells(rows, "split")
    if not any(words):
        for column in rows.columns:
            if column in ("path", "label", "split"):
                continue
            if _may_tell_splits(column, set(_cells(rows, column)) - {""}):
                raise VitkitError(
                    "data.column-ambiguous",
                    f"{name}: the column {column!r} may tell the splits: write train, val or test into a column called "
                    "split, and rename this one if it does not tell them",
                )
        return [None] * len(words)
    split_of: dict[str, str | None] = {"": None}
    for (line, _), word in zip(rows.rows, words, strict=True):
        if word in split_of:
            continue
        split, other_words = split_of_folder(word) or (None, ())
        if split is None or other_words:
            raise VitkitError(
                "data.split-invalid", f"{name}, line {line}: split must be train, val or test, not {word!r}"
            )
        split_of[word] = split
    splits = [split_of[word] for word in words]
    if None in splits:
        raise VitkitError(
            "data.split-missing",
            f"{name}: {splits.count(None)} of {len(splits)} rows have no split; give it to all of them or to none",
        )
    eval_split = "val" if "test" in splits else "test"  # the meaning of the word `eval`
    return [eval_split if split == "eval" else split for split in splits]


# --- Labels --------------------------------------------------------------------------------------------------


class _Labels(NamedTuple):
    names: list[list[str]]  # the class names of each image
    is_multi: bool  # whether an image may have several classes
    note: str  # for users; may be empty


def _read_class_columns(name: str, rows: CsvRows, columns: Sequence[str]) -> _Labels:
    """Read a column of 0 and 1 for each class."""
    names: list[list[str]] = [[] for _ in rows.rows]
    is_valid = len(columns) >= 2
    for column in columns:
        for names_of_image, flag in zip(names, _cells(rows, column), strict=True):
            is_valid &= flag in ("0", "1", "0.0", "1.0")
            if flag.startswith("1"):
                names_of_image.append(column)
    if not is_valid:
        raise VitkitError(
            "data.columns-missing", f"{name} needs the columns {_EXPECTED}; it has: {', '.join(rows.titles):.200}"
        )
    note = f"labels read from {len(columns)} columns of 0 and 1: {listed(columns, 20)}"
    return _Labels(names, any(len(names_of_image) != 1 for names_of_image in names), note)


def _read_label_column(name: str, rows: CsvRows) -> _Labels:
    cells = _cells(rows, "label")
    # Refuse labels such as `['cat', 'dog']`.
    ends = [cell[:1] + cell[-1:] for cell in cells]
    brackets = {"[]"}
    if set(ends) <= {"", "()", "{}"}:  # a single name in brackets may be a class, but hardly all names are
        brackets |= {"()", "{}"}
    for (line, _), cell, end in zip(rows.rows, cells, ends, strict=True):
        if end in brackets or cell.startswith(("('", '("', "{'", '{"')):
            raise VitkitError(
                "data.label-invalid",
                f"{name}, line {line}: the label {cell!r:.80} is written as a list: join names by {JOINT!r}, as in "
                "cat;dog",
            )

    names = [MULTI_LABEL.names_in(cell) for cell in cells]
    is_declared = any(title.lower() == "labels" for title in rows.titles)
    is_multi = is_declared or any(len(set(names_of_image)) > 1 for names_of_image in names)
    if not is_multi:
        if "" in cells:
            line, _ = rows.rows[cells.index("")]
            raise VitkitError("data.label-missing", f"{name}, line {line}: label is empty")
        names = [[cell] for cell in cells]
    classes = {class_name for names_of_image in names for class_name in names_of_image}
    is_joined = any(len(names_of_image) > 1 for names_of_image in names)
    _refuse_other_marks(name, classes, is_declared=is_declared, is_joined=is_joined)
    suspicious = sorted(class_name for class_name in classes if class_name.lower() in _NO_LABEL_WORDS)
    note = f"{suspicious[0]!r} is read as a class: remove the rows without a label" if suspicious else ""
    return _Labels(names, is_multi, note)


def _refuse_other_marks(name: str, labels: set[str], *, is_declared: bool, is_joined: bool) -> None:
    """Raise VitkitError if labels seem to join other labels by a mark that is not `;`.

    `is_declared` is whether the title of the column says that a label may contain several classes. `is_joined` is
    whether some rows join classes by `;`; other characters are then probably parts of names.
    """
    for mark in "|," if is_joined else _MARKS:
        parts = {label: [part.strip() for part in label.split(mark) if part.strip()] for label in labels}
        with_mark = sorted(label for label in labels if len(parts[label]) > 1)
        if not with_mark:
            continue
        of_other_labels = [label for label in with_mark if labels.issuperset(parts[label])]
        if of_other_labels == with_mark:
            is_refused = True
        elif of_other_labels:
            is_refused = mark in "|,/+&"
        else:
            is_usual = mark == "|" or (mark == "," and is_declared)  # such marks rarely occur in names
            is_refused = is_usual and not is_joined
        if is_refused:
            example = (of_other_labels or with_mark)[0]
            raise VitkitError(
                "data.label-invalid",
                f"{name}: the label {example!r} may join several by {mark!r}: join several classes by {JOINT!r}, as in "
                f"{JOINT.join(parts[example])}, or write the name of one class without {mark!r}",
            )
