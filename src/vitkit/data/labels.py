"""Label files: corrections of labels that people make, stored apart from the images.

A label file is a CSV file with these columns; the last three are optional:

- path: the path of the image, relative to the data's folder or absolute.
- label: the new label. An empty label leaves the image out. The label `;` means a multi-label image without any class.
- previous: the label before the change.
- when: the time of the change.
- proposed_by: the model that proposed the label; empty if a person chose it without a proposal.

For each image, only the last row counts. The rows therefore also record the history of changes
(docs/decisions/0028-label-files.md).

The module also reads a run's list of suspected label errors (label_errors.csv), and finds the image that a path in
these files denotes. `read_rows` reads any CSV file that people have written or edited.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, TextIO

from vitkit.data.file_names import SUFFIXES
from vitkit.data.storage import is_there
from vitkit.data.table import MULTI_LABEL
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
from vitkit.system.run_files import LABELS
from vitkit.text.cells import JOINT, by_chance, harmless, restored

EXCLUDED = ""  # the label of a picture that is to be left out
TITLES = {  # of columns, as people write them
    **dict.fromkeys(("path", "file", "filename", "image"), "path"),
    **dict.fromkeys(("label", "class", "labels"), "label"),
}
_TITLES = TITLES | {name: name for name in ("previous", "when", "proposed_by", "suggested", "score")}
_WAIT = 10.0  # seconds to wait for another process; an edit takes milliseconds


class Edit(NamedTuple):
    """A row of a label file, which assigns a label to an image."""

    path: str  # relative to the data's folder, with `/`, or absolute
    label: str  # the new label, with several classes joined by `;`; `EXCLUDED` leaves the image out
    previous: str = ""  # the label before the edit, if it is known
    when: str = ""  # in UTC, such as 2026-11-22T23:15:01.250000Z; the same for edits that were made together
    proposed_by: str = ""  # the run whose model proposed the label; empty if a person chose it without a proposal


_HEADER = (",".join(Edit._fields) + "\n").encode()  # rows are appended only to files with this header


@dataclass(frozen=True)
class LabelFile:
    """The rows of a label file. A run's list of suspected label errors (`has_suspects`) is one, too.

    The labels in such a list are those that the images already have, unless somebody has edited it.
    """

    name: str  # for messages
    edits: tuple[Edit, ...] = ()  # in order; for each path, the last row counts
    lines: tuple[int, ...] = ()  # the number of the line in which each row begins
    has_suspects: bool = False
    content: bytes = field(default=b"", repr=False, compare=False)  # from which the rows were read


def read_labels(file: str | Path, known: LabelFile | None = None) -> LabelFile:
    """Read the rows of a label file, or of a run's label_errors.csv.

    Args:
        file: the file.
        known: the result of an earlier call. If rows have only been added to the file since then, only these are
            parsed.

    Raises:
        VitkitError: the file does not exist or is not a label file; the message names the line.
    """
    try:
        content = read_appended(Path(file))
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise VitkitError(
            "data.labels-unreadable", f"label file {file}: {reason}; expected a CSV with the columns path and label"
        ) from error
    return _read(str(file), content, known)


def _read(name: str, content: bytes, known: LabelFile | None) -> LabelFile:
    if known is None or not known.content.startswith(_HEADER):
        return _parse(name, content)
    if known.content.endswith(b"\n") and content.startswith(known.content):
        if len(content) == len(known.content):
            return known
        first = known.content.count(b"\n") - 1  # the number of known lines below the header
        added = _parse(name, _HEADER + content[len(known.content) :], first)
        return LabelFile(name, known.edits + added.edits, known.lines + added.lines, content=content)
    if _takes_rows(content) and known.content.startswith(content):  # the last rows were removed
        rows = bisect_right(known.lines, content.count(b"\n"))
        return LabelFile(name, known.edits[:rows], known.lines[:rows], content=content)
    return _parse(name, content)


def labels_so_far(file: str | Path, known: LabelFile | None = None) -> LabelFile:
    """Read a label file as `read_labels` does; return no rows if the file does not exist yet.

    Raises:
        VitkitError: the file is not a label file.
    """
    return read_labels(file, known) if Path(file).exists() else LabelFile(str(file))


def add_edits(file: str | Path, edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Append rows to a label file, which is created if necessary. Return them with their time: by default, now.

    Either all rows are written or none. Processes and threads that add rows at the same time wait for one another. Rows
    are appended without rewriting the file, unless it has other columns or was last written by another program.

    Raises:
        VitkitError: the file is not a label file, another process locks the file for more than ten seconds, or a name
            cannot be stored in a CSV file.
        OSError: the file cannot be written.
    """
    path = Path(file)
    with exclusive(path, wait=_WAIT):
        content = _content_for_writing(path)
        now, recent = datetime.now(UTC), (content or b"")[-(2**16) :]
        while (when := now.isoformat(timespec="microseconds").replace("+00:00", "Z")).encode() in recent:
            now += timedelta(microseconds=1)  # rows with the same time are undone together
        made = tuple(edit._replace(when=edit.when or when) for edit in edits)
        text = _checked_text_of(path, made)
        if content is not None and _takes_rows(content):
            append_bytes(path, text)
        else:
            write_bytes(path, _HEADER + _checked_text_of(path, (*_for_writing(path, content).edits, *made)))
        return made


def undo_edits(
    file: str | Path, may: Callable[[Edit], bool] | None = None, known: LabelFile | None = None
) -> tuple[Edit, ...]:
    """Remove the rows that were added last to a label file: the last row and those before it with the same time.

    Return the removed rows, which `add_edits` can add again. It raises the same errors.

    Args:
        file: the label file.
        may: a function that returns whether a row may be removed, for example to keep the rows of other programs. If
            the last rows may not be removed, the search for rows to remove starts before them. None allows every row.
        known: the result of an earlier `read_labels`. If rows have only been added since then, only these are parsed.
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
        when = edits[end - 1].when  # rows without a time, written by hand, are removed one by one
        start = end - 1
        while when and start > 0 and edits[start - 1].when == when and (may is None or may(edits[start - 1])):
            start -= 1
        text = _text_of(edits[start:end])
        if end == len(edits) and content.endswith(text) and len(content) >= len(_HEADER) + len(text):
            cut_off(path, len(content) - len(text))
        else:
            write_bytes(path, _HEADER + _checked_text_of(path, (*edits[:start], *edits[end:])))
        return edits[start:end]


def _content_for_writing(path: Path) -> bytes | None:
    try:
        mend_append(path)  # a crash may have left an incomplete last row
        return read_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise VitkitError(
            "data.labels-unreadable", f"label file {path}: {error.strerror}; choose another file"
        ) from error


def _for_writing(path: Path, content: bytes | None, known: LabelFile | None = None) -> LabelFile:
    before = LabelFile(str(path)) if content is None else _read(str(path), content, known)
    if before.has_suspects:
        raise VitkitError(
            "data.labels-read-only",
            f"{path} is a list of suspected label errors, to which rows cannot be added: use a label file",
        )
    return before


def _takes_rows(content: bytes) -> bool:
    """Return whether rows can be appended: the columns are the standard ones, and the last row is complete."""
    return content.startswith(_HEADER) and content.endswith(b"\n") and content.count(b'"') % 2 == 0


def _text_of(edits: Iterable[Edit]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(harmless, edit) for edit in edits)
    return text.getvalue().encode("utf-8", "surrogateescape")


def _checked_text_of(path: Path, edits: Sequence[Edit]) -> bytes:
    text = _text_of(edits)
    try:  # one unusual name could make the whole file unreadable
        kept = _parse(str(path), _HEADER + text)
    except VitkitError as error:
        raise VitkitError(error.code, f"{error}; the name of a file or class cannot be stored: rename it") from error
    for edit, known_edit in itertools.zip_longest(edits, kept.edits):
        if edit != known_edit:
            raise VitkitError(
                "data.name-unstorable", f"{path}: {edit} would be read as {known_edit}; rename the file or the class"
            )
    return text


def _parse(name: str, content: bytes, first: int = 0) -> LabelFile:  # `first` is added to the line numbers
    refuse_encoding(name, content)
    # File names need not be UTF-8 on Linux and keep their bytes; labels that are not UTF-8 are refused by `_edit`.
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        expected = "path and label, each once (a label file may have previous, when and proposed_by too)"
        table = read_rows(name, text, _TITLES, ("path", "label"), expected)
    except csv.Error as error:
        raise VitkitError("data.csv-damaged", f"{name} is not a CSV file: {error}") from error
    has_suspects = {"suggested", "score"} <= set(table.columns)
    allowed = {*Edit._fields, *(("suggested", "score", _CHANCE) if has_suspects else ())}
    # Another kind of list may have such columns as split or prediction; without them, its labels would be wrong.
    if other := [title for title, column in zip(table.titles, table.columns, strict=True) if column not in allowed]:
        raise VitkitError(
            "data.columns-unexpected",
            f"{name} has the column{'s' * (len(other) > 1)} {', '.join(map(repr, other))}, but a label file has "
            "only path, label, previous, when and proposed_by: remove the others, or pass a list of images as the data",
        )
    # Half of a label may be the name of another class. Rows that vitkit writes have all cells and a line end.
    if content.startswith(_HEADER) and not content.endswith((b"\n", b"\r")) and table.rows:
        line, cells = table.rows[-1]
        if len(cells) < len(Edit._fields):
            raise VitkitError(
                "data.labels-cut-off",
                f"{name}, line {line}: the last row may be cut off: complete it, and add a line break after it",
            )
    edits = tuple(_edit(name, line + first, cells) for line, cells in table.rows)
    return LabelFile(name, edits, tuple(line + first for line, _ in table.rows), has_suspects, content)


def _edit(name: str, line: int, cells: dict[str, str]) -> Edit:
    values = [cells.get(column, "") for column in Edit._fields]
    path, label, previous, when, proposed_by = map(restored, values) if "'" in "".join(values) else values
    if not path.strip():
        raise VitkitError("data.path-empty", f"{name}, line {line}: path is empty")
    if "\0" in path + label:
        raise VitkitError(
            "data.null-byte", f"{name}, line {line}: paths and labels must not contain a null byte: {path!r}, {label!r}"
        )
    if "label" not in cells:
        raise VitkitError(
            "data.label-missing",
            f"{name}, line {line}: the row ends before its label; an empty label, which removes the picture, still "
            "needs its comma",
        )
    if not label.isascii() and any("\ud800" <= character <= "\udfff" for character in label):
        raise VitkitError(
            "data.csv-encoding", f"{name}, line {line}: the label is not in UTF-8: save the file as CSV in UTF-8"
        )
    if "suggested" in cells and not proposed_by:
        suggested = restored(cells["suggested"]).strip()
        if suggested and label.strip() in (suggested, EXCLUDED):  # in a list of suspects that a user has edited
            proposed_by = Path(name).name
    return Edit(path, label, previous, when, proposed_by)


def renaming(edits: Iterable[tuple[str, str]], old: str, new: str) -> list[Edit]:
    """Return the rows of a label file that rename a class or merge it into another, one for each image of the class.

    Args:
        edits: the path and the current label of every image (`corrections.labels_of`).
        old: the current name of the class.
        new: the new name. If a class with this name exists, the two classes are merged.

    Raises:
        VitkitError: no image has the class, or the new name is empty.
    """
    if not new.strip():
        raise VitkitError("data.class-name-empty", f"a class needs a name: enter a new name for {old}")
    made = []
    for path, label in edits:
        names = [label] if label == old else MULTI_LABEL.names_in(label)
        if old in names:
            kept = list(dict.fromkeys(new if name == old else name for name in names))
            made.append(Edit(path, JOINT.join(kept), label))
    if not made:
        raise VitkitError("data.class-missing", f"no picture has the class {old!r}")
    return made


COLUMNS = ("path", "label", "suggested", "score")
_CHANCE = "chance"  # a column that older lists do not have


class Suspect(NamedTuple):
    """A row of a list of suspected label errors."""

    path: str  # relative to the run's data folder
    label: str  # the suspected label, or the correct label if a user has entered it in its place
    suggested: str  # the class that the model suggests instead
    score: str  # the probability of the suggested class minus that of the label, as text from the file
    chance: float | None = None  # the probability that the label is correct; None in older lists


def is_list_of_suspects(file: str | Path) -> bool:
    """Return whether a file is a list of suspected label errors. Only its header is read."""
    path = Path(file)
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    with path.open("rb") as opened:
        lines = [opened.readline(2**16).decode("utf-8-sig", "replace") for _ in range(2)]
    header = (lines[1] if SEPARATOR.fullmatch(lines[0]) else lines[0]).strip().lower().replace(";", ",")
    return set(header.replace('"', "").split(",")) >= set(COLUMNS)


def read_suspects(file: str | Path) -> list[Suspect]:
    """Read the rows of a list of suspected label errors, in which runs write the most suspicious label first.

    Raises:
        VitkitError: the file is not such a list; the message names the line.
    """
    known = {name: name for name in (*COLUMNS, _CHANCE)}
    with Path(file).open("rb") as data:
        refuse_encoding(str(file), data.read(64))
    try:
        with open(file, encoding="utf-8-sig", errors="surrogateescape", newline="", opener=regular) as text:
            table = read_rows(str(file), text, known, COLUMNS, f"{' and '.join(COLUMNS)}, each once")
    except csv.Error as error:
        raise VitkitError("data.csv-damaged", f"{file} is not a CSV file: {error}") from error
    suspects = []
    for line, cells in table.rows:
        path, label, suggested, score = (restored(cells.get(name, "")) for name in COLUMNS)
        cell = cells.get(_CHANCE)
        try:
            chance = None if cell is None else float(cell)
        except ValueError:
            chance = -1.0
        if chance is not None and not 0 <= chance <= 1:
            raise VitkitError("data.chance-invalid", f"{file}, line {line}: chance must be from 0 to 1, not {cell!r}")
        suspects.append(Suspect(path, label, suggested, score, chance))
    return suspects


def expected_by_chance(suspects: Sequence[Suspect]) -> float | None:
    """Return the expected number of correct labels among the suspects; None if a row has no `chance`."""
    known = [suspect.chance for suspect in suspects if suspect.chance is not None]
    return sum(known) if len(known) == len(suspects) else None


def chance_in_words(suspects: Sequence[Suspect]) -> str:
    """Return a phrase with the number from `expected_by_chance`, starting with a semicolon; "" if it is unknown."""
    expected = expected_by_chance(suspects)
    return f"; {by_chance(len(suspects), expected)}" if suspects and expected is not None else ""


def decisions_since(labels: LabelFile, run: Path) -> dict[str, Edit]:
    """Return, by path, the rows of a label file that count as decisions about a run's suspected label errors.

    Only the last row of an image can be a decision. A row that was added after the run started, so that the run's copy
    of the label file lacks it, always is one. An older row is one only if it confirmed the label that the image already
    had, as "Keep" in the studio does; any other older row is itself the source of the suspected label.
    """
    read = Counter(labels_so_far(run / LABELS).edits)
    last: dict[str, tuple[Edit, bool]] = {}
    for edit in labels.edits:
        is_new = not read[edit]
        if not is_new:
            read[edit] -= 1
        last[edit.path] = edit, is_new
    return {path: edit for path, (edit, is_new) in last.items() if is_new or edit.label == edit.previous != EXCLUDED}


class PathFinder:
    """A lookup of images by path, which may be absolute or relative to a folder.

    Args:
        root: the folder of the data.
        paths: the path of each image, relative to `root`.
    """

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        self._root, self._paths = root, paths
        self._exact: dict[str, list[int]] = {}
        for i, path in enumerate(paths):
            self._exact.setdefault(self._absolute(path), []).append(i)
        self._real: dict[str, list[int]] | None = None
        self._parents: dict[str, str] = {}

    def find(self, path: str) -> list[int]:
        """Return the indices of the images with this path.

        If there is none, surrounding spaces are removed, and then paths are compared after resolving the symbolic links
        in their folders and composing accents (NFC), in which operating systems differ.
        """
        for spelling in dict.fromkeys((path, path.strip())):
            if matches := self._exact.get(self._absolute(spelling)):
                return matches
        if self._real is None:
            self._real = {}
            for i, spelling in enumerate(self._paths):
                self._real.setdefault(self._real_path(self._absolute(spelling)), []).append(i)
        return self._real.get(self._real_path(self._absolute(path.strip())), [])

    def beside(self, path: str) -> str | None:
        """Return the relative path of an image file that is in the folder, but that `find` does not find; or None."""
        for spelling in dict.fromkeys((path, path.strip())):
            place = Path(self._real_path(self._absolute(spelling), normal=False))
            if place.suffix.lower() in SUFFIXES and place.is_relative_to(self._root) and is_there(place):
                return place.relative_to(self._root).as_posix()
        return None

    def _absolute(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._root, path))  # noqa: PTH118  # a Path takes ten times as long

    def _real_path(self, place: str, *, normal: bool = True) -> str:
        folder, name = os.path.split(place)
        if folder not in self._parents:
            self._parents[folder] = os.path.realpath(folder)
        path = os.path.join(self._parents[folder], name)  # noqa: PTH118
        return unicodedata.normalize("NFC", path) if normal else path


# --- Rows of CSV files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CsvRows:
    """The content of a CSV file."""

    titles: tuple[str, ...]  # of the columns, as in the file
    columns: tuple[str, ...]  # the standard names (`known` of `read_rows`), or the titles of other columns
    delimiter: str  # a comma, a semicolon, a tab, or the character that the file declares by `sep=`
    rows: tuple[tuple[int, dict[str, str]], ...]  # not empty: the number of the first line, and the cells by column


def read_rows(name: str, text: TextIO, known: Mapping[str, str], needed: Sequence[str], expected: str) -> CsvRows:
    """Read the rows of a CSV file.

    The delimiter is the most frequent candidate in the header, unless the first line declares it (`sep=;`).
    Spreadsheets may leave columns without a title at the end; these are ignored if all of their cells are empty.

    Args:
        name: the name of the file, for messages.
        text: the text of the file.
        known: a mapping from titles in lower case to standard column names. Other columns keep their titles as names.
        needed: columns that the file must have; the first of them contains paths.
        expected: text for an error message that names the columns.

    Raises:
        VitkitError: a column is missing or occurs twice, a quote is not closed, or a row has too many cells; the
            message names the line.
    """
    header, first = text.readline(), 2
    named = SEPARATOR.fullmatch(header)
    if named is not None:
        header, first = text.readline(), 3
    delimiter = named[1] if named is not None else max(",;\t", key=header.count)
    written = [title.strip() for title in next(csv.reader([header], delimiter=delimiter, strict=True), [])]
    titles = written[: max((place for place, title in enumerate(written, start=1) if title), default=0)]
    columns = [known.get(title.lower(), title) for title in titles]
    if not set(needed) <= set(columns) or len(set(columns)) < len(columns):
        raise VitkitError("data.columns-missing", f"{name} needs the columns {expected}; it has: {header.strip():.200}")
    lines: list[tuple[int, list[str]]] = []
    reader, line = csv.reader(text, delimiter=delimiter, strict=True), first
    try:
        for cells in reader:
            if any(cells):
                lines.append((line, cells))
            line = reader.line_num + first
    except csv.Error as error:
        raise VitkitError(
            "data.csv-damaged",
            f"{name} is not a CSV file from line {line} on: {error}; is there a quote too many, or one not closed?",
        ) from error
    # A quote that is not closed makes a cell of the rows below it.
    for line, cells in lines:
        if "\n" not in (joined := "".join(cells)) and "\r" not in joined:
            continue
        swallowed = [part for cell in cells for part in cell.splitlines()[1:]]
        for inner in (part.split(delimiter) for part in swallowed):
            is_row = len(inner) >= len(columns) and (
                Path(inner[columns.index("path")].strip(' "')).suffix.lower() in SUFFIXES
            )
            if is_row or len(cells) < len(columns):
                raise VitkitError(
                    "data.csv-quote", f"{name}, line {line}: a quote is not closed, so its cell contains the rows below"
                )
    for line, cells in lines:
        beyond = [cell for cell in cells[len(columns) :] if cell]
        if len(titles) == len(written) and beyond:  # further cells may be classes, which would be lost
            wide = f"{len(cells)} cells for {len(columns)} columns"
            raise VitkitError(
                "data.cells-too-many", f'{name}, line {line}: {wide}; put several classes between quotes: "cat;dog"'
            )
        if text_beyond := [cell for cell in beyond if cell.strip()]:
            raise VitkitError(
                "data.cells-too-many",
                f"{name}, line {line}: {text_beyond[0]!r} is in a column without a title: give it one",
            )
    rows = tuple((line, dict(zip(columns, row, strict=False))) for line, row in lines)
    return CsvRows(tuple(titles), tuple(columns), delimiter, rows)


SEPARATOR = re.compile(r"sep=(.)\s*", re.IGNORECASE)  # the line by which a file states its delimiter


def refuse_encoding(name: str, data: bytes) -> None:
    """Refuse a file whose first bytes (`data`) are UTF-16 or UTF-32, which spreadsheets save as "Unicode text".

    Raises:
        VitkitError: the bytes are UTF-16 or UTF-32; the message begins with `name`.
    """
    head = data[:64]
    is_wide = head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")) or head.count(b"\0") > len(head) // 2
    if is_wide or head.startswith((b"\xff\xfe", b"\xfe\xff")) or 3 * head.count(b"\0") > len(head):
        raise VitkitError(
            "data.csv-encoding",
            f"{name} is not a CSV file in UTF-8, but in UTF-{32 if is_wide else 16}: save it as CSV in UTF-8",
        )
