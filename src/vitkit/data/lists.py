"""Read lists of images: CSV files with the path and the classes of each image, and possibly its split and its group.

Columns are recognised by their titles. A column that seems to tell the splits, and labels that seem to join several
classes in another way than by `;`, are refused. The table of a list names every column that is not read
(`ImageTable.overlooked`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

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
    rest = [column for column in rows.columns if column not in ("path", "label", "split")]
    by_title = {re.sub(r"[\W_]+", "", column.lower()): column for column in reversed(rest)}  # the first of each title
    group_column = next((by_title[title] for title in _GROUP_TITLES if title in by_title), None)
    rest = [column for column in rest if column != group_column]
    names, is_multi, note = _read_labels(name, rows, rest)
    names = [sorted(set(names_of_row)) for names_of_row in names]
    classes = tuple(sorted({label for names_of_row in names for label in names_of_row}))
    if not classes:
        raise VitkitError("data.classes-missing", f"{name} contains no classes: every label is empty")

    paths, groups = [], {}
    for line, cells in rows.rows:
        path = _cell(cells, "path")
        paths.append(path)
        if not path:
            raise VitkitError("data.path-empty", f"{name}, line {line}: path is empty")
        if "\0" in path:
            raise VitkitError("data.null-byte", f"{name}, line {line}: paths must not contain a null byte: {path!r}")
        if group_column is not None and (group := _cell(cells, group_column)):
            groups[path] = group
    if len(groups) == len(set(paths)) > 1 and len(set(groups.values())) == 1:
        raise VitkitError(
            "data.groups-all-one",
            f"{name}: all rows have the same {group_column}, so the images cannot be split: remove this column",
        )
    refuse_lookalikes(name, classes, [(path, JOINT.join(own), None) for path, own in zip(paths, names, strict=True)])

    overlooked = ""
    if rest and "label" in rows.columns:  # without a column label, each of the other columns is a class
        unread = listed([column or "(without a title)" for column in rest], 20)
        overlooked = f"{plural(len(rest), 'column is', 'columns are')} not read: {unread}"
    notes = [note, f"images with the same {group_column!r} stay in one split" if groups else ""]
    root = file.parent.resolve()
    number = {label: i for i, label in enumerate(classes)}
    task = MULTI_LABEL if is_multi else SINGLE_LABEL
    sets, labels = task.encode([tuple(number[label] for label in names_of_row) for names_of_row in names])
    return ImageTable(
        name,
        root,
        classes,
        tuple(paths),
        labels,
        tuple(splits),
        sets=sets,
        folders=tuple({parent.resolve() for parent in {(root / path).parent for path in paths}}),
        groups=groups,
        layout="; ".join(filter(None, notes)),
        overlooked=(overlooked,) if overlooked else (),
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


def _cell(cells: Mapping[str, str], column: str) -> str:
    return restored(cells.get(column, "").strip())


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
    split_of: dict[str, str] = {}
    for word in words:
        split, other_words = split_of_folder(word) or (None, ())
        if split is None or other_words:
            split = _SHORT_WORDS.get(_letters(word))
        if split is not None:
            split_of[word] = split
    letters = _letters(title)
    if "split" in letters or letters in _CLEAR_TITLES or len(set(split_of.values())) > 1:
        return True
    if letters in _VAGUE_TITLES and len(split_of) == len(words):
        return True
    split, other_words = split_of_folder(title) or (None, ())  # such as train and the word `is`, in is_train
    are_flags = _YES_NO.issuperset(word.lower() for word in words)
    return split is not None and are_flags and {"is", "in", "for", "used"}.issuperset(other_words)


def _read_splits(name: str, rows: CsvRows) -> list[str | None]:
    """Return the splits in the column split; without one, refuse a column that seems to tell the splits."""
    if "split" not in rows.columns or not any(_cell(cells, "split") for _, cells in rows.rows):
        for column in [title for title in rows.columns if title not in ("path", "label", "split")]:
            words = {_cell(cells, column) for _, cells in rows.rows} - {""}
            if _may_tell_splits(column, words):
                raise VitkitError(
                    "data.column-ambiguous",
                    f"{name}: the column {column!r} may tell the splits: write train, val or test into a column called "
                    "split, and rename this one if it does not tell them",
                )
        return [None] * len(rows.rows)
    words_of_rows = [_cell(cells, "split") for _, cells in rows.rows]
    split_of: dict[str, str | None] = {"": None}
    for word in dict.fromkeys(filter(None, words_of_rows)):
        split_of[word], other_words = split_of_folder(word) or (None, ())
        if split_of[word] is None or other_words:
            line, _ = rows.rows[words_of_rows.index(word)]
            raise VitkitError(
                "data.split-invalid", f"{name}, line {line}: split must be train, val or test, not {word!r}"
            )
    splits = [split_of[word] for word in words_of_rows]
    if 0 < (without := splits.count(None)) < len(splits):
        raise VitkitError(
            "data.split-missing",
            f"{name}: {without} of {len(splits)} rows have no split; give it to all of them or to none",
        )
    eval_split = "val" if "test" in splits else "test"  # the meaning of the word `eval`
    return [eval_split if split == "eval" else split for split in splits]


def _read_labels(name: str, rows: CsvRows, rest: Sequence[str]) -> tuple[Sequence[Sequence[str]], bool, str]:
    """Read the column label, or else the columns of 0 and 1 for each class.

    Return the names of the classes of each image, whether an image may have several, and a note for users.
    """
    if "label" not in rows.columns:
        flags = [[_cell(cells, column) for column in rest] for _, cells in rows.rows]
        if len(rest) < 2 or not {flag for row in flags for flag in row} <= {"0", "1", "0.0", "1.0"}:
            raise VitkitError(
                "data.columns-missing",
                f"{name} needs the columns {_EXPECTED}; it has: {', '.join(rows.titles):.200}",
            )
        names = [[column for column, flag in zip(rest, row, strict=True) if flag.startswith("1")] for row in flags]
        note = f"labels read from {len(rest)} columns of 0 and 1: {listed(rest, 20)}"
        return names, any(len(row) != 1 for row in names), note
    is_declared = any(title.lower() == "labels" for title in rows.titles)
    cells = [_cell(row, "label") for _, row in rows.rows]
    filled = [cell for cell in cells if cell]
    are_enclosed = bool(filled) and all(cell[:1] + cell[-1:] in ("()", "{}") for cell in filled)
    for (line, _), cell in zip(rows.rows, cells, strict=True):
        if (are_enclosed and cell) or cell[:1] + cell[-1:] == "[]" or cell.startswith(("('", '("', "{'", '{"')):
            raise VitkitError(
                "data.label-invalid",
                f"{name}, line {line}: the label {cell!r:.80} is written as a list: join names by {JOINT!r}, as in "
                "cat;dog",
            )
    names = [MULTI_LABEL.names_in(cell) for cell in cells]
    is_multi = is_declared or any(len(set(row)) > 1 for row in names)
    if not is_multi:
        if "" in cells:
            line, _ = rows.rows[cells.index("")]
            raise VitkitError("data.label-missing", f"{name}, line {line}: label is empty")
        names = [[cell] for cell in cells]
    labels = {label for row in names for label in row}
    _refuse_other_marks(name, labels, is_declared=is_declared, is_joined=any(len(row) > 1 for row in names))
    suspicious = sorted(label for label in labels if label.lower() in _NO_LABEL_WORDS)
    note = f"{suspicious[0]!r} is read as a class: remove the rows without a label" if suspicious else ""
    return names, is_multi, note


def _refuse_other_marks(name: str, labels: set[str], *, is_declared: bool, is_joined: bool) -> None:
    """Raise VitkitError if labels seem to join other labels by a mark that is not `;`.

    `is_declared` is whether the title of the column says that a label may contain several classes. `is_joined` is
    whether some rows join classes by `;`; other characters are then probably parts of names.
    """
    for mark in "|," if is_joined else _MARKS:
        parts = {label: [part.strip() for part in label.split(mark) if part.strip()] for label in labels}
        joined = sorted(label for label in labels if len(parts[label]) > 1)
        of_labels = [label for label in joined if labels.issuperset(parts[label])]
        is_usual = mark == "|" or (mark == "," and is_declared)  # such marks rarely occur in names
        is_certain = bool(joined) and of_labels == joined
        if is_certain or (of_labels and mark in "|,/+&") or (joined and is_usual and not is_joined):
            example = (of_labels or joined)[0]
            raise VitkitError(
                "data.label-invalid",
                f"{name}: the label {example!r} may join several by {mark!r}: join several classes by {JOINT!r}, as in "
                f"{JOINT.join(parts[example])}, or write the name of one class without {mark!r}",
            )
