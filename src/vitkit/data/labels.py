"""Label files: what people say about images, stored apart from them.

A label file is a CSV file with the columns path (relative to the data's folder, or absolute), label (empty to leave the
image out; `;` alone for an image with none of several classes) and, optionally, previous (the label before), when, and
proposed_by (the model that proposed the label; empty if a person gave it unasked). Later rows replace earlier ones, so
the rows in their order are the history, too (docs/decisions/0028-label-files.md).

The module also reads label_errors.csv of a run, and finds the image that a path in such a file means.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from vitkit.data.csv_rows import SEPARATOR, CsvRows, read_rows, refuse_encoding
from vitkit.data.storage import is_there
from vitkit.data.task import MULTI_LABEL
from vitkit.data.walk import SUFFIXES
from vitkit.errors import VitkitError
from vitkit.system.files import (
    append_bytes,
    cut_off,
    exclusive,
    mend_append,
    read_appended,
    read_bytes,
    regular,
    write_bytes,
)
from vitkit.text.cells import JOINT, by_chance, harmless, restored

EXCLUDED = ""  # the label of a picture that is to be left out
_TITLES = {
    **dict.fromkeys(("path", "file", "filename", "image"), "path"),
    **dict.fromkeys(("label", "class", "labels"), "label"),
    **{name: name for name in ("previous", "when", "proposed_by", "suggested", "score")},
}
_OF_SUSPECTS = frozenset(("suggested", "score"))  # beside path and label, in a run's label_errors.csv
_MAY_SUSPECTS = _OF_SUSPECTS | {"chance"}  # which older ones have not
_WAIT = 10.0  # seconds for another process, which takes milliseconds
_RECENT = 2**16  # bytes at the end of a file, which hold its last rows


class Edit(NamedTuple):
    """A row of a label file: what was said of one picture.

    Attributes:
        path: the path relative to the data's folder, with `/`, or absolute.
        label: its class from then on; several are joined by `;`; `EXCLUDED`: it is left out.
        previous: what it was until then; empty where it had none, or it is not known.
        when: the time in UTC, such as 2026-11-22T23:15:01.250000Z; edits made together share it.
        proposed_by: the run whose model proposed it; empty: a person said it without a proposal.
    """

    path: str
    label: str
    previous: str = ""
    when: str = ""
    proposed_by: str = ""


class Proposal(NamedTuple):
    """An image whose label was changed, or that was left out, because a model proposed it.

    Attributes:
        path: the path of the picture.
        before: its label before the first proposal, as a label file has it; `UNLABELLED`: it had none.
        by: the run whose model proposed it, or the list that did.
        split: the split of a picture that is left out, the split that it would test in; None: as it is, or not known.
        digest: the beginning of the file's SHA-256, by which it is found again under another name; empty: not known.
    """

    path: str
    before: str
    by: str
    split: str | None = None
    digest: str = ""


_HEADER = (",".join(Edit._fields) + "\n").encode()  # of a file to which rows can be appended as they are


@dataclass(frozen=True)
class LabelFile:
    """The rows of a label file.

    Attributes:
        name: what the user calls it.
        edits: the edits in order; the last one of a path holds.
        lines: the lines of the file, in which each of them begins.
        has_suspects: it is a run's label_errors.csv, whose labels are those that the data have until somebody edits it.
        content: the bytes that this was read from.
    """

    name: str
    edits: tuple[Edit, ...] = ()
    lines: tuple[int, ...] = ()
    has_suspects: bool = False
    content: bytes = field(default=b"", repr=False, compare=False)


def read_labels(file: str | Path, known: LabelFile | None = None) -> LabelFile:
    """Read the rows of a label file, or of label_errors.csv of a run.

    Args:
        file: the file.
        known: what it held before; where rows were only added since, only these are read.

    Raises:
        VitkitError: there is no such file, or it is no label file; the message names the line.
    """
    try:
        content = read_appended(Path(file))
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise VitkitError(f"label file {file}: {reason}; expected a CSV with the columns path and label") from error
    return _read(str(file), content, known)


def _read(name: str, content: bytes, known: LabelFile | None) -> LabelFile:
    if known is not None and _is_cut_from(known, content):
        rows = bisect_right(known.lines, content.count(b"\n"))
        return LabelFile(name, known.edits[:rows], known.lines[:rows], content=content)
    if known is None or not _is_added_to(known, content):
        return _parse(name, content)
    if len(content) == len(known.content):
        return known
    first = known.content.count(b"\n") - 1  # the lines below the header that are known
    added = _parse(name, _HEADER + content[len(known.content) :], first)
    return LabelFile(name, known.edits + added.edits, known.lines + added.lines, content=content)


def _is_added_to(known: LabelFile, content: bytes) -> bool:
    """Return whether a file starts with its known content, which ends at the end of a row."""
    return known.content.startswith(_HEADER) and known.content.endswith(b"\n") and content.startswith(known.content)


def _is_cut_from(known: LabelFile, content: bytes) -> bool:
    """Return whether rows were removed from the end of a file, as undo does."""
    return _takes_rows(content) and len(content) < len(known.content) and known.content.startswith(content)


def labels_so_far(file: str | Path, known: LabelFile | None = None) -> LabelFile:
    """Read a label file as `read_labels` does. A file that does not exist yet has no rows.

    Raises:
        VitkitError: it is no label file.
    """
    return read_labels(file, known) if Path(file).exists() else LabelFile(str(file))


def add_edits(file: str | Path, edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Append rows, all of one moment, to a label file, which is made if need be.

    All are written or none; of several processes or threads that add at a time each adds its own. Only where a file has
    other columns, or was last written by another program, is it written anew as a whole.

    Returns:
        The rows as they were written.

    Raises:
        VitkitError: it is no label file, another process keeps it for ten seconds, or a name cannot be kept in it.
        OSError: it cannot be written.
    """
    path = Path(file)
    with exclusive(path, wait=_WAIT):
        content = _content_for_writing(path)
        when = _now((content or b"")[-_RECENT:])
        made = tuple(edit._replace(when=edit.when or when) for edit in edits)
        text = _checked_text(path, made)
        if content is not None and _takes_rows(content):
            append_bytes(path, text)
        else:
            _write(path, (*_for_writing(path, content).edits, *made))
        return made


def undo_edits(
    file: str | Path, may: Callable[[Edit], bool] | None = None, known: LabelFile | None = None
) -> tuple[Edit, ...]:
    """Take back the last rows of a label file: all that were made at one moment.

    Args:
        file: the label file.
        may: which rows may be taken back; the others, which another program has added, stay.
        known: what it held before, of which only what was added is read.

    Returns:
        The rows, so that they can be added again; none where there were none.

    Raises:
        VitkitError: as for `add_edits`.
        OSError: the file cannot be written.
    """
    path = Path(file)
    if not path.exists():
        return ()
    with exclusive(path, wait=_WAIT):
        content = _content_for_writing(path) or b""
        edits = _for_writing(path, content, known).edits
        end = next((i for i in range(len(edits), 0, -1) if may is None or may(edits[i - 1])), 0)
        if not end:
            return ()
        when = edits[end - 1].when  # rows by hand, which tell no moment, are taken back singly
        start = end - 1
        while when and start > 0 and edits[start - 1].when == when and (may is None or may(edits[start - 1])):
            start -= 1
        text = _text(edits[start:end])
        if end == len(edits) and content.endswith(text) and len(content) >= len(_HEADER) + len(text):
            cut_off(path, len(content) - len(text))
        else:
            _write(path, (*edits[:start], *edits[end:]))
        return edits[start:end]


def _content_for_writing(path: Path) -> bytes | None:
    """Return the content of a locked file without an addition that a crash cut short; None without a file."""
    try:
        mend_append(path)
        return read_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise VitkitError(f"label file {path}: {error.strerror}; name another") from error


def _for_writing(path: Path, content: bytes | None, known: LabelFile | None = None) -> LabelFile:
    before = LabelFile(str(path)) if content is None else _read(str(path), content, known)
    if before.has_suspects:
        raise VitkitError(f"{path} is a list of doubtful labels, to which nothing is added: name a label file")
    return before


def _takes_rows(content: bytes) -> bool:
    """Return whether rows can be appended: same columns, after a complete row, and not inside quotes."""
    return content.startswith(_HEADER) and content.endswith(b"\n") and content.count(b'"') % 2 == 0


def _now(recent: bytes) -> str:
    """Return a timestamp of now that no recent row has: rows with the same timestamp are undone together."""
    now = datetime.now(UTC)
    while (when := now.isoformat(timespec="microseconds").replace("+00:00", "Z")).encode() in recent:
        now += timedelta(microseconds=1)
    return when


def _write(path: Path, edits: Sequence[Edit]) -> None:
    write_bytes(path, _HEADER + _checked_text(path, edits))


def _text(edits: Iterable[Edit]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(harmless, edit) for edit in edits)
    return text.getvalue().encode("utf-8", "surrogateescape")


def _checked_text(path: Path, edits: Sequence[Edit]) -> bytes:
    """Return the text to write, after checking that it reads back unchanged: labels are hours of work.

    Raises:
        VitkitError: a name has line ends that look like rows, or the like.
    """
    text = _text(edits)
    try:
        kept = _parse(str(path), _HEADER + text)
    except VitkitError as error:
        raise VitkitError(f"{error}; a file's or class's name is such that it cannot be kept: rename it") from error
    for edit, known_edit in itertools.zip_longest(edits, kept.edits):
        if edit != known_edit:
            raise VitkitError(f"{path}: {edit} would be read as {known_edit}; rename the file or the class")
    return text


def _parse(name: str, content: bytes, first: int = 0) -> LabelFile:
    """Parse the rows in the bytes of a file."""
    refuse_encoding(name, content)
    # Names of files need not be UTF-8 on Linux, and keep their bytes; what else is not is refused below.
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        may = " (a label file may have previous, when and proposed_by too)"
        table = read_rows(name, text, _TITLES, ("path", "label"), may, joins=("label", "labels"))
    except csv.Error as error:
        raise VitkitError(f"{name} is no CSV file: {error}") from error
    has_suspects = set(table.columns) >= _OF_SUSPECTS
    _check_columns(name, table, has_suspects=has_suspects)
    _check_end(name, content, table)
    edits = tuple(_edit(name, line + first, cells) for line, cells in table.rows)
    return LabelFile(name, edits, tuple(line + first for line, _ in table.rows), has_suspects, content)


def _check_columns(name: str, table: CsvRows, *, has_suspects: bool) -> None:
    """Refuse what is another kind of list: a split or a prediction that is passed over is wrong without a word."""
    allowed = {*Edit._fields, *(_MAY_SUSPECTS if has_suspects else ())}
    if other := [title for title, column in zip(table.titles, table.columns, strict=True) if column not in allowed]:
        raise VitkitError(
            f"{name} has the column{'s' * (len(other) > 1)} {', '.join(map(repr, other))}: a label file has path, "
            "label, previous, when and proposed_by; remove the others, or, if it lists images, pass it as the data"
        )


def _check_end(name: str, content: bytes, table: CsvRows) -> None:
    """Refuse a last row that may have been cut off: half of a label is another class.

    Rows that vitkit has written have all their cells and a line end; a copy that was made of half a file does not.
    """
    if content.startswith(_HEADER) and not content.endswith((b"\n", b"\r")) and table.rows:
        line, cells = table.rows[-1]
        if len(cells) < len(Edit._fields):
            raise VitkitError(
                f"{name}, line {line}: the last row may be cut off: complete it, and end it with a line end"
            )


def _edit(name: str, line: int, cells: dict[str, str]) -> Edit:
    values = [cells.get(column, "") for column in Edit._fields]
    path, label, previous, when, proposed_by = map(restored, values) if "'" in "".join(values) else values
    if not path.strip():
        raise VitkitError(f"{name}, line {line}: path is empty")
    if "\0" in path + label:
        raise VitkitError(f"{name}, line {line}: no path or label has a null byte: {path!r}, {label!r}")
    if "label" not in cells:
        raise VitkitError(
            f"{name}, line {line}: the row ends before its label; an empty label, which leaves the picture out, "
            "has its comma"
        )
    if not label.isascii() and any("\ud800" <= character <= "\udfff" for character in label):
        raise VitkitError(f"{name}, line {line}: the label is not in UTF-8: save the file as CSV in UTF-8")
    if "suggested" in cells and not proposed_by:
        proposed_by = _list_that_proposed(name, label, cells)
    return Edit(path, label, previous, when, proposed_by)


def _list_that_proposed(name: str, label: str, cells: dict[str, str]) -> str:
    """Return the list of suspects that a row with its suggestion, accepted or emptied, came from."""
    suggested = restored(cells.get("suggested", "")).strip()
    return Path(name).name if suggested and label.strip() in (suggested, EXCLUDED) else ""


def renaming(edits: Iterable[tuple[str, str]], old: str, new: str) -> list[Edit]:
    """Return the rows that rename a class or merge it into another, one for each of its pictures.

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
        names = [label] if label == old else MULTI_LABEL.names_in(label)
        if old in names:
            kept = list(dict.fromkeys(new if name == old else name for name in names))
            made.append(Edit(path, JOINT.join(kept), label))
    if not made:
        raise VitkitError(f"no picture has the class {old!r}")
    return made


COLUMNS = ("path", "label", "suggested", "score")
_CHANCE = "chance"  # a column that older lists have not
_SMALL = 2**16  # bytes of a header, at most


class Suspect(NamedTuple):
    """A row of a list of label errors.

    Attributes:
        path: the path relative to the folder of the run's images.
        label: which is doubtful; or what somebody has written there since.
        suggested: the class that it looks like.
        score: how much more probable that one is, as it stands there.
        chance: how probable it is that the label is right all the same; None in an older list.
    """

    path: str
    label: str
    suggested: str
    score: str
    chance: float | None = None


def is_list_of_suspects(file: str | Path) -> bool:
    """Return whether a file is a list of suspects, by its header."""
    path = Path(file)
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    with path.open("rb") as opened:
        lines = [opened.readline(_SMALL).decode("utf-8-sig", "replace") for _ in range(2)]
    header = (lines[1] if SEPARATOR.fullmatch(lines[0]) else lines[0]).strip().lower().replace(";", ",")
    return set(header.replace('"', "").split(",")) >= set(COLUMNS)


def read_suspects(file: str | Path) -> list[Suspect]:
    """Read the rows of a list of label errors, the most doubtful first, as a run writes them.

    Raises:
        VitkitError: it is no such list; the message has the line.
    """
    known = {name: name for name in (*COLUMNS, _CHANCE)}
    with Path(file).open("rb") as data:
        refuse_encoding(str(file), data.read(64))
    try:
        with open(file, encoding="utf-8-sig", errors="surrogateescape", newline="", opener=regular) as text:
            table = read_rows(str(file), text, known, COLUMNS, "")
    except csv.Error as error:
        raise VitkitError(f"{file} is no CSV file: {error}") from error
    suspects = []
    for line, cells in table.rows:
        path, label, suggested, score = (restored(cells.get(name, "")) for name in COLUMNS)
        suspects.append(Suspect(path, label, suggested, score, _number(file, line, cells.get(_CHANCE))))
    return suspects


def _number(file: str | Path, line: int, cell: str | None) -> float | None:
    try:
        value = None if cell is None else float(cell)
    except ValueError:
        value = -1.0
    if value is not None and not 0 <= value <= 1:
        raise VitkitError(f"{file}, line {line}: chance must be from 0 to 1, not {cell!r}")
    return value


def expected_by_chance(suspects: Sequence[Suspect]) -> float | None:
    """Return how many of these labels are expected to be right; None if the list does not say."""
    known = [suspect.chance for suspect in suspects if suspect.chance is not None]
    return sum(known) if len(known) == len(suspects) else None


def chance_in_words(suspects: Sequence[Suspect]) -> str:
    """Return that number in words after a semicolon; empty if it is unknown or zero."""
    expected = expected_by_chance(suspects)
    return f"; {by_chance(len(suspects), expected)}" if suspects and expected is not None else ""


class PathFinder:
    """Find images by their paths, which are relative to a folder or absolute.

    Args:
        root: the folder.
        paths: the paths of the images.
    """

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        self._root, self._paths = root, paths
        self._exact: dict[str, list[int]] = {}
        for i, path in enumerate(paths):
            self._exact.setdefault(self._place(path), []).append(i)
        self._real: dict[str, list[int]] | None = None
        self._parents: dict[str, str] = {}

    def find(self, path: str) -> list[int]:
        """Return the indices of the images with this path.

        If there are none, try the path without surrounding spaces, then with symbolic links in its folders resolved
        and accents in composed form (NFC), since operating systems differ in these.
        """
        for spelling in dict.fromkeys((path, path.strip())):
            if matches := self._exact.get(self._place(spelling)):
                return matches
        if self._real is None:
            self._real = {}
            for i, spelling in enumerate(self._paths):
                self._real.setdefault(self._followed(self._place(spelling)), []).append(i)
        return self._real.get(self._followed(self._place(path.strip())), [])

    def beside(self, path: str) -> str | None:
        """Return the path, relative to the folder, of an image file that exists there; None if there is none."""
        for spelling in dict.fromkeys((path, path.strip())):
            place = Path(self._followed(self._place(spelling), normal=False))
            if place.suffix.lower() in SUFFIXES and place.is_relative_to(self._root) and is_there(place):
                return place.relative_to(self._root).as_posix()
        return None

    def _place(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._root, path))  # noqa: PTH118  # a Path takes ten times as long

    def _followed(self, place: str, *, normal: bool = True) -> str:
        folder, name = os.path.split(place)
        if folder not in self._parents:
            self._parents[folder] = os.path.realpath(folder)
        followed = os.path.join(self._parents[folder], name)  # noqa: PTH118
        return unicodedata.normalize("NFC", followed) if normal else followed
