"""A label file: what people say of pictures, kept apart from the pictures.

A CSV file with the columns path (as seen from the data's folder, or absolute), label (empty: leave the picture out;
`;` alone, where pictures have several classes: none of them) and, if wanted, previous (the label until then) and when.
Later rows win, so the rows in their order are the history too. docs/decisions/0028-label-files.md.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from vitkit.data.csv_rows import CsvRows, read_rows
from vitkit.errors import VitkitError
from vitkit.system.files import sole, write_text
from vitkit.text.cells import JOINT, harmless, restored

EXCLUDED = ""  # the label of a picture that is to be left out
_TITLES = {
    **dict.fromkeys(("path", "file", "filename", "image"), "path"),
    **dict.fromkeys(("label", "class", "labels"), "label"),
}
_OF_SUSPECTS = frozenset(("suggested", "score"))  # beside path and label, in a run's label_errors.csv
_MAY_SUSPECTS = _OF_SUSPECTS | {"chance"}  # which older ones have not
_WAIT = 10.0  # seconds for another process, which takes milliseconds


class Edit(NamedTuple):
    """What was said of one picture.

    Attributes:
        path: as seen from the data's folder, with `/`, or absolute.
        label: its class from then on; several are joined by `;`; `EXCLUDED`: it is left out.
        previous: what it was until then; empty where it had none, or it is not known.
        when: in UTC, as in 2026-11-22T23:15:01.250000Z; edits that were made at once have the same.
    """

    path: str
    label: str
    previous: str = ""
    when: str = ""


@dataclass(frozen=True)
class LabelFile:
    """The rows of a label file.

    Attributes:
        name: what the user calls it.
        edits: in their order, of which the last for a path holds.
        lines: of the file, in which each of them begins.
        has_suspects: it is a run's label_errors.csv, whose labels are those that the data have until somebody edits it.
    """

    name: str
    edits: tuple[Edit, ...] = ()
    lines: tuple[int, ...] = ()
    has_suspects: bool = False


def read_labels(file: str | Path) -> LabelFile:
    """The rows of a label file, or of a run's label_errors.csv.

    Raises:
        VitkitError: there is no such file, or it is no label file; the message names the line.
    """
    path = Path(file)
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise VitkitError(f"label file {file}: {reason}; expected a CSV with the columns path and label") from error
    return _parse(str(file), data)


def labels_so_far(file: str | Path) -> LabelFile:
    """The same; a file that is not there yet has no rows.

    Raises:
        VitkitError: it is no label file.
    """
    return read_labels(file) if Path(file).exists() else LabelFile(str(file))


def add_edits(file: str | Path, edits: Iterable[Edit]) -> LabelFile:
    """Write further rows, all of one moment, to the end of a label file, which is made if need be.

    The file is written whole or not at all; of several processes or threads that add at a time each adds its own.

    Returns:
        All its rows.

    Raises:
        VitkitError: it is no label file, another process keeps it for ten seconds, or a name cannot be kept in it.
        OSError: it cannot be written.
    """
    path = Path(file)
    with sole(path, wait=_WAIT):
        before = _for_writing(path)
        when = _now(before.edits)
        return _write(path, (*before.edits, *(edit._replace(when=edit.when or when) for edit in edits)))


def undo_edits(file: str | Path) -> tuple[Edit, ...]:
    """Take back the last rows of a label file: all that were made at one moment.

    Returns:
        The rows, so that they can be added again; none where there were none.

    Raises:
        VitkitError: as for `add_edits`.
        OSError: the file cannot be written.
    """
    path = Path(file)
    if not path.exists():
        return ()
    with sole(path, wait=_WAIT):
        edits = _for_writing(path).edits
        if not edits:
            return ()
        when = edits[-1].when
        count = sum(1 for _ in itertools.takewhile(lambda own: own.when == when, reversed(edits)))
        kept = len(edits) - (count if when else 1)  # rows by hand, which tell no moment, are taken back singly
        _write(path, edits[:kept])
        return edits[kept:]


def _for_writing(path: Path) -> LabelFile:
    before = labels_so_far(path)
    if before.has_suspects:
        raise VitkitError(f"{path} is a list of doubtful labels, to which nothing is added: name a label file")
    return before


def _now(before: Sequence[Edit]) -> str:
    """The moment, another than that of the last row: those of one moment are undone together."""
    now = datetime.now(UTC)
    when = now.isoformat(timespec="microseconds")
    if before and before[-1].when == when.replace("+00:00", "Z"):
        when = now.replace(microsecond=(now.microsecond + 1) % 10**6).isoformat(timespec="microseconds")
    return when.replace("+00:00", "Z")


def _write(path: Path, edits: Sequence[Edit]) -> LabelFile:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Edit._fields)
    writer.writerows(map(harmless, edit) for edit in edits)
    kept = _read_again(path, text.getvalue(), edits)
    write_text(path, text.getvalue())
    return kept


def _read_again(path: Path, text: str, edits: Sequence[Edit]) -> LabelFile:
    """What is to be written, as it would be read: labels are hours of work, and must not be lost on a name.

    Raises:
        VitkitError: a name has line ends that look like rows, or the like.
    """
    try:
        kept = _parse(str(path), text.encode("utf-8", "surrogateescape"))
    except VitkitError as error:
        raise VitkitError(f"{error}; a file's or class's name is such that it cannot be kept: rename it") from error
    for edit, own in itertools.zip_longest(edits, kept.edits):
        if edit != own:
            raise VitkitError(f"{path}: {edit} would be read as {own}; rename the file or the class")
    return kept


def _parse(name: str, data: bytes) -> LabelFile:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise VitkitError(f"{name} is in UTF-16: save it as CSV in UTF-8")
    # Names of files need not be UTF-8 on Linux, and keep their bytes; what else is not is refused below.
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        may = " (a label file may have previous and when too)"
        found = read_rows(name, text, _TITLES, ("path", "label"), may, joins=("label", "labels"))
    except csv.Error as error:
        raise VitkitError(f"{name} is no CSV file: {error}") from error
    has_suspects = set(found.columns) >= _OF_SUSPECTS
    _check_columns(name, found, has_suspects=has_suspects)
    edits = tuple(_edit(name, line, cells) for line, cells in found.rows)
    return LabelFile(name, edits, tuple(line for line, _ in found.rows), has_suspects)


def _check_columns(name: str, found: CsvRows, *, has_suspects: bool) -> None:
    """Refuse what is another kind of list: a split or a prediction that is passed over is wrong without a word."""
    allowed = {*Edit._fields, *(_MAY_SUSPECTS if has_suspects else ())}
    if other := [title for title, column in zip(found.titles, found.columns, strict=True) if column not in allowed]:
        raise VitkitError(
            f"{name} has the column{'s' * (len(other) > 1)} {', '.join(map(repr, other))}: a label file has path, "
            "label, previous and when; leave out others, or name the file as the data"
        )


def _edit(name: str, line: int, cells: dict[str, str]) -> Edit:
    path, label, previous, when = (restored(cells.get(column, "")) for column in Edit._fields)
    if not path.strip():
        raise VitkitError(f"{name}, line {line}: path is empty")
    if "\0" in path + label:
        raise VitkitError(f"{name}, line {line}: no path or label has a null byte: {path!r}, {label!r}")
    if "label" not in cells:
        raise VitkitError(
            f"{name}, line {line}: the row ends before its label; an empty label, which leaves the picture out, "
            "has its comma"
        )
    if any("\ud800" <= own <= "\udfff" for own in label):
        raise VitkitError(f"{name}, line {line}: the label is not in UTF-8: save the file as CSV in UTF-8")
    return Edit(path, label, previous, when)


def labels_in(cell: str) -> list[str]:
    """The classes that a label joins."""
    return [name for name in (own.strip() for own in cell.split(JOINT)) if name]


def renaming(edits: Iterable[tuple[str, str]], old: str, new: str) -> list[Edit]:
    """A class under another name, or merged into another: a row for each of its pictures.

    Args:
        edits: path and label of every picture, as they are now (`corrected.labels_of`).
        old: the class.
        new: its name from then on; where there is such a class, both become one.

    Raises:
        VitkitError: there is no such class, or the new name is empty.
    """
    if not new.strip():
        raise VitkitError(f"a class needs a name: what is {old} to be called?")
    made = []
    for path, label in edits:
        names = [label] if label == old else labels_in(label)
        if old in names:
            kept = list(dict.fromkeys(new if name == old else name for name in names))
            made.append(Edit(path, JOINT.join(kept), label))
    if not made:
        raise VitkitError(f"no picture has the class {old!r}")
    return made
