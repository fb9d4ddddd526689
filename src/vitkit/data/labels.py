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
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from vitkit.data.file_names import SUFFIXES
from vitkit.data.storage import image_exists
from vitkit.data.table import MULTI_LABEL
from vitkit.errors import VitkitError
from vitkit.system.files import exclusive, read_bytes, write_bytes
from vitkit.system.run_files import LABELS
from vitkit.text.cells import JOINT, false_alarms_in_words, harmless, restored

EXCLUDED = ""  # the label of a picture that is to be left out
TITLES = {  # the standard names of columns by the titles that people write
    **dict.fromkeys(("path", "file", "filename", "image"), "path"),
    **dict.fromkeys(("label", "class", "labels"), "label"),
}
_TITLES = TITLES | {name: name for name in ("previous", "when", "proposed_by", "suggested", "score")}
_WAIT = 10.0  # seconds to wait for another process that edits the file, which takes milliseconds


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
    """The rows of a label file."""

    name: str  # for messages
    edits: tuple[Edit, ...] = ()  # in order; for each path, the last row counts
    lines: tuple[int, ...] = ()  # the number of the line in which each row begins
    has_suspects: bool = False  # whether the file is a run's list of suspected label errors, which people may edit


def read_labels(file: str | Path) -> LabelFile:
    """Read the rows of a label file, or of a run's label_errors.csv.

    Raises:
        VitkitError: the file does not exist or is not a label file; the message names the line.
    """
    try:
        content = read_bytes(file)
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise VitkitError(
            "data.labels-unreadable", f"label file {file}: {reason}; expected a CSV with the columns path and label"
        ) from error
    return _parse(str(file), content)


def labels_so_far(file: str | Path) -> LabelFile:
    """Read a label file as `read_labels` does; return no rows if the file does not exist yet.

    Raises:
        VitkitError: the file is not a label file.
    """
    return read_labels(file) if Path(file).exists() else LabelFile(str(file))


def add_edits(file: str | Path, edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Append rows to a label file, which is created if necessary. Return the rows; those without a time get the time.

    Either all rows are written or none. Processes and threads that add rows at the same time wait for one another. The
    other rows stay as they are, unless the file has other columns or was last written by another program.

    Raises:
        VitkitError: the file is not a label file, another process locks the file for more than ten seconds, or a name
            cannot be stored in a CSV file.
        OSError: the file cannot be written.
    """
    path = Path(file)
    with exclusive(path, wait=_WAIT):
        content = _content_of(path)
        last_rows = (content or b"")[-(2**16) :]
        now = datetime.now(UTC)
        while _time_of(now).encode() in last_rows:  # rows with the same time would be undone together
            now += timedelta(microseconds=1)
        added = tuple(edit._replace(when=edit.when or _time_of(now)) for edit in edits)
        text = _checked_text_of(path, added)
        if content is None:
            new_content = _HEADER + text
        elif content.startswith(_HEADER) and content.endswith(b"\n") and content.count(b'"') % 2 == 0:
            new_content = content + text  # the last row is complete
        else:
            new_content = _HEADER + _checked_text_of(path, (*_editable(path, content).edits, *added))
        write_bytes(path.resolve(), new_content)  # a link stays one
        return added


def _time_of(now: datetime) -> str:
    return now.isoformat(timespec="microseconds").replace("+00:00", "Z")


def undo_edits(file: str | Path, may: Callable[[Edit], bool] = lambda _: True) -> tuple[Edit, ...]:
    """Remove the rows that were added last to a label file: the last row and those before it with the same time.

    Return the removed rows, which `add_edits` can add again. The errors are those of `add_edits`.

    Args:
        file: the label file.
        may: a function that returns whether a row may be removed, for example to keep the rows of other programs. If
            the last rows may not be removed, the search for rows to remove starts before them.
    """
    path = Path(file)
    if not path.exists():
        return ()
    with exclusive(path, wait=_WAIT):
        content = _content_of(path) or b""
        edits = _editable(path, content).edits
        end = len(edits)
        while end > 0 and not may(edits[end - 1]):
            end -= 1
        if not end:
            return ()
        start = end - 1
        when = edits[start].when
        if when:  # rows without a time, written by hand, are removed one by one
            while start > 0 and edits[start - 1].when == when and may(edits[start - 1]):
                start -= 1
        removed = edits[start:end]
        text = _text_of(removed)
        if end == len(edits) and content.endswith(text) and len(content) >= len(_HEADER) + len(text):
            new_content = content.removesuffix(text)
        else:
            new_content = _HEADER + _checked_text_of(path, (*edits[:start], *edits[end:]))
        write_bytes(path.resolve(), new_content)
        return removed


def _content_of(path: Path) -> bytes | None:
    """Return the content of a label file that is about to be changed; None if there is no such file."""
    try:
        return read_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise VitkitError(
            "data.labels-unreadable", f"label file {path}: {error.strerror}; choose another file"
        ) from error


def _editable(path: Path, content: bytes) -> LabelFile:
    """Parse the content of a label file that is about to be changed. Raise VitkitError for a list of suspects."""
    labels = _parse(str(path), content)
    if labels.has_suspects:
        raise VitkitError(
            "data.labels-read-only",
            f"{path} is a list of suspected label errors, to which rows cannot be added: use a label file",
        )
    return labels


def _text_of(edits: Iterable[Edit]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(harmless, edit) for edit in edits)
    return text.getvalue().encode("utf-8", "surrogateescape")


def _checked_text_of(path: Path, edits: Sequence[Edit]) -> bytes:
    """Return the rows as CSV. Raise VitkitError if they could not be read again, because of an unusual name."""
    text = _text_of(edits)
    try:
        parsed = _parse(str(path), _HEADER + text)
    except VitkitError as error:
        raise VitkitError(error.code, f"{error}; the name of a file or class cannot be stored: rename it") from error
    for edit, parsed_edit in itertools.zip_longest(edits, parsed.edits):
        if edit != parsed_edit:
            raise VitkitError(
                "data.name-unstorable", f"{path}: {edit} would be read as {parsed_edit}; rename the file or the class"
            )
    return text


def _parse(name: str, content: bytes) -> LabelFile:
    expected = "path and label, each once (a label file may have previous, when and proposed_by too)"
    # File names on Linux need not be UTF-8, and keep their bytes. Labels that are not UTF-8 are refused below.
    table = read_rows(name, content, _TITLES, ("path", "label"), expected, errors="surrogateescape")
    has_suspects = {"suggested", "score"} <= set(table.columns)
    allowed = {*Edit._fields, *COLUMNS} if has_suspects else {*Edit._fields}
    # Another kind of list may have columns such as split or prediction, without which its labels would be wrong.
    other = [title for title, column in zip(table.titles, table.columns, strict=True) if column not in allowed]
    if other:
        raise VitkitError(
            "data.columns-unexpected",
            f"{name} has the column{'s' * (len(other) > 1)} {', '.join(map(repr, other))}, but a label file has "
            "only path, label, previous, when and proposed_by: remove the others, or pass a list of images as the data",
        )
    # The first half of a label may be the name of another class. Rows that vitkit writes have all cells and a line end.
    if content.startswith(_HEADER) and not content.endswith((b"\n", b"\r")) and table.rows:
        line, cells = table.rows[-1]
        if len(cells) < len(Edit._fields):
            raise VitkitError(
                "data.labels-cut-off",
                f"{name}, line {line}: the last row may be cut off: complete it, and add a line break after it",
            )

    edits = []
    for line, cells in table.rows:
        values = [cells.get(column, "") for column in Edit._fields]
        if "'" in "".join(values):  # `harmless` only adds such quotes; the check saves time
            values = list(map(restored, values))
        path, label, previous, when, proposed_by = values
        if not path.strip():
            raise VitkitError("data.path-empty", f"{name}, line {line}: path is empty")
        if "\0" in path + label:
            raise VitkitError(
                "data.null-byte",
                f"{name}, line {line}: paths and labels must not contain a null byte: {path!r}, {label!r}",
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
            if suggested and label.strip() in (suggested, EXCLUDED):  # a user accepted the suggestion
                proposed_by = Path(name).name
        edits.append(Edit(path, label, previous, when, proposed_by))
    return LabelFile(name, tuple(edits), tuple(line for line, _ in table.rows), has_suspects)


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
    renamed = []
    for path, label in edits:
        names = [label] if label == old else MULTI_LABEL.names_in(label)
        if old in names:
            new_names = dict.fromkeys(new if name == old else name for name in names)  # without duplicates
            renamed.append(Edit(path, JOINT.join(new_names), label))
    if not renamed:
        raise VitkitError("data.class-missing", f"no picture has the class {old!r}")
    return renamed


COLUMNS = ("path", "label", "suggested", "score", "chance")


class Suspect(NamedTuple):
    """A row of a list of suspected label errors."""

    path: str  # relative to the run's data folder
    label: str  # the suspected label, or the correct label if a user has entered it in its place
    suggested: str  # the class that the model suggests instead
    score: str  # the probability of the suggested class minus that of the label, as text from the file
    chance: float  # the probability that the label is correct


def is_list_of_suspects(file: str | Path) -> bool:
    """Return whether a file is a list of suspected label errors. Only its header is read."""
    path = Path(file)
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    with path.open("rb") as opened:
        header = opened.readline(2**16).decode("utf-8-sig", "replace").strip().lower()
    titles = header.replace(";", ",").replace('"', "").split(",")
    return set(titles) >= set(COLUMNS) - {"chance"}  # which early versions did not write


def read_suspects(file: str | Path) -> list[Suspect]:
    """Read the rows of a list of suspected label errors, in which runs write the most suspicious label first.

    Raises:
        VitkitError: the file is not such a list; the message names the line.
    """
    known = {name: name for name in COLUMNS}
    expected = f"{' and '.join(COLUMNS)}, each once"
    table = read_rows(str(file), read_bytes(file), known, COLUMNS, expected, errors="surrogateescape")
    suspects = []
    for line, cells in table.rows:
        path, label, suggested, score, text = (restored(cells.get(name, "")) for name in COLUMNS)
        try:
            chance = float(text)
        except ValueError:
            chance = -1.0  # no number is as wrong as a number below 0
        if not 0 <= chance <= 1:
            raise VitkitError("data.chance-invalid", f"{file}, line {line}: chance must be from 0 to 1, not {text!r}")
        suspects.append(Suspect(path, label, suggested, score, chance))
    return suspects


def chance_in_words(suspects: Sequence[Suspect]) -> str:
    """Return a phrase with the expected number of correct labels, starting with a semicolon; "" without suspects."""
    expected = sum(suspect.chance for suspect in suspects)
    return f"; {false_alarms_in_words(len(suspects), expected)}" if suspects else ""


def decisions_since(labels: LabelFile, run: Path) -> dict[str, Edit]:
    """Return, by path, the rows of a label file that count as decisions about a run's suspected label errors.

    Only the last row of an image can be a decision. If it was added after the run started, it always is one. An older
    row is a decision only if it confirmed the label that the image already had, as "Keep" in the studio does. Any other
    older row is itself the source of the suspected label.
    """
    known_to_run = Counter(labels_so_far(run / LABELS).edits)  # the run's copy of the label file
    decisions: dict[str, Edit | None] = {}  # the last row of each image, or None if it is no decision
    for edit in labels.edits:
        is_new = not known_to_run[edit]
        if not is_new:
            known_to_run[edit] -= 1
        is_confirmation = edit.label != EXCLUDED and edit.label == edit.previous
        decisions[edit.path] = edit if is_new or is_confirmation else None
    return {path: edit for path, edit in decisions.items() if edit is not None}


class PathFinder:
    """A lookup of images by path, which may be absolute or relative to a folder.

    Args:
        root: the folder of the data.
        paths: the path of each image, relative to `root`.
    """

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        self._root, self._paths = root, paths
        self._by_path: dict[str, list[int]] = {}
        for i, path in enumerate(paths):
            self._by_path.setdefault(self._absolute(path), []).append(i)
        self._by_real_path: dict[str, list[int]] | None = None
        self._real_folders: dict[str, str] = {}

    def find(self, path: str) -> list[int]:
        """Return the indices of the images with this path.

        If there is none, surrounding spaces are removed, and then paths are compared after resolving the symbolic links
        in their folders and composing accents (NFC), in which operating systems differ.
        """
        for spelling in dict.fromkeys((path, path.strip())):  # once if there are no spaces around it
            if matches := self._by_path.get(self._absolute(spelling)):
                return matches
        if self._by_real_path is None:
            self._by_real_path = {}
            for i, image_path in enumerate(self._paths):
                self._by_real_path.setdefault(self._real_path(self._absolute(image_path)), []).append(i)
        return self._by_real_path.get(self._real_path(self._absolute(path.strip())), [])

    def find_unlisted(self, path: str) -> str | None:
        """Return the relative path of an image file that exists in the folder, but is not in `paths`; None without."""
        for spelling in dict.fromkeys((path, path.strip())):
            file = Path(self._real_path(self._absolute(spelling), is_composed=False))
            if file.suffix.lower() in SUFFIXES and file.is_relative_to(self._root) and image_exists(file):
                return file.relative_to(self._root).as_posix()
        return None

    def _absolute(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._root, path))  # noqa: PTH118  # a Path takes ten times as long

    def _real_path(self, path: str, *, is_composed: bool = True) -> str:
        folder, name = os.path.split(path)
        if folder not in self._real_folders:
            self._real_folders[folder] = os.path.realpath(folder)
        real = os.path.join(self._real_folders[folder], name)  # noqa: PTH118
        return unicodedata.normalize("NFC", real) if is_composed else real


# --- Rows of CSV files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CsvRows:
    """The content of a CSV file."""

    titles: tuple[str, ...]  # the titles of the columns, as in the file
    columns: tuple[str, ...]  # the standard names (`known` of `read_rows`), or the titles of other columns
    rows: tuple[tuple[int, dict[str, str]], ...]  # not empty: the number of the first line, and the cells by column


def read_rows(
    name: str,
    content: bytes,
    known: Mapping[str, str],
    needed: Sequence[str],
    expected: str,
    errors: Literal["strict", "surrogateescape"] = "strict",
) -> CsvRows:
    """Read the rows of a CSV file.

    The delimiter is the most frequent of comma, semicolon and tab in the header. Spreadsheets may leave columns
    without a title at the end; these are ignored if all of their cells are empty.

    Args:
        name: the name of the file, for messages.
        content: the bytes of the file, in UTF-8.
        known: a mapping from titles in lower case to standard column names. Other columns keep their titles as names.
        needed: columns that the file must have; the first of them contains paths.
        expected: text for an error message that names the columns.
        errors: what happens to bytes that are not UTF-8: `strict` refuses them, `surrogateescape` keeps them.

    Raises:
        VitkitError: the file is not in UTF-8, a column is missing or occurs twice, a quote is not closed, or a row has
            too many cells; the message names the line.
    """
    refuse_encoding(name, content)
    # Spreadsheets write a byte order mark.
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", errors=errors, newline="")
    lines: list[tuple[int, list[str]]] = []
    line = 1
    try:
        header = text.readline()
        delimiter = max(",;\t", key=header.count)
        all_titles = [title.strip() for title in next(csv.reader([header], delimiter=delimiter, strict=True), [])]
        reader = csv.reader(text, delimiter=delimiter, strict=True)
        line = 2
        for cells in reader:
            if any(cells):
                lines.append((line, cells))
            line = reader.line_num + 2
    except UnicodeDecodeError as error:
        raise VitkitError("data.csv-damaged", f"{name} is not a CSV file in UTF-8: {error}") from error
    except csv.Error as error:
        raise VitkitError(
            "data.csv-damaged",
            f"{name} is not a CSV file from line {line} on: {error}; is there a quote too many, or one not closed?",
        ) from error
    titles = list(all_titles)
    while titles and not titles[-1]:
        titles.pop()
    columns = [known.get(title.lower(), title) for title in titles]
    if not set(needed) <= set(columns) or len(set(columns)) < len(columns):
        raise VitkitError("data.columns-missing", f"{name} needs the columns {expected}; it has: {header.strip():.200}")
    _refuse_open_quotes(name, lines, columns, delimiter)

    # Text beyond the last column may be a further class.
    for line, cells in lines:
        further = [cell for cell in cells[len(columns) :] if cell]
        if further and len(titles) == len(all_titles):
            counts = f"{len(cells)} cells for {len(columns)} columns"
            raise VitkitError(
                "data.cells-too-many", f'{name}, line {line}: {counts}; put several classes between quotes: "cat;dog"'
            )
        for cell in further:
            if cell.strip():
                raise VitkitError(
                    "data.cells-too-many", f"{name}, line {line}: {cell!r} is in a column without a title: give it one"
                )

    rows = tuple((line, dict(zip(columns, cells, strict=False))) for line, cells in lines)
    return CsvRows(tuple(titles), tuple(columns), rows)


def _refuse_open_quotes(
    name: str, lines: Iterable[tuple[int, list[str]]], columns: Sequence[str], delimiter: str
) -> None:
    """Raise VitkitError if a cell contains rows: those below a quote that is not closed become part of its cell."""
    path_column = columns.index("path")
    for line, cells in lines:
        joined = "".join(cells)
        if "\n" not in joined and "\r" not in joined:
            continue
        for text_line in (part for cell in cells for part in cell.splitlines()[1:]):
            inner = text_line.split(delimiter)
            is_row = len(inner) >= len(columns) and Path(inner[path_column].strip(' "')).suffix.lower() in SUFFIXES
            if is_row or len(cells) < len(columns):
                raise VitkitError(
                    "data.csv-quote", f"{name}, line {line}: a quote is not closed, so its cell contains the rows below"
                )


def refuse_encoding(name: str, data: bytes) -> None:
    """Raise VitkitError if a file begins with UTF-16 or UTF-32, which spreadsheets save as "Unicode text"."""
    head = data[:64]
    # ASCII characters have one zero byte of two in UTF-16, and three of four in UTF-32.
    is_wide = head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")) or head.count(b"\0") > len(head) // 2
    if is_wide or head.startswith((b"\xff\xfe", b"\xfe\xff")) or 3 * head.count(b"\0") > len(head):
        raise VitkitError(
            "data.csv-encoding",
            f"{name} is not a CSV file in UTF-8, but in UTF-{32 if is_wide else 16}: save it as CSV in UTF-8",
        )
