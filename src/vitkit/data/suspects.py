"""A run's label_errors.csv, read again: labels that look wrong, and what they look like."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from vitkit.data.csv_rows import SEPARATOR, read_rows, refuse_encoding
from vitkit.errors import VitkitError
from vitkit.system.files import regular
from vitkit.text.cells import restored

COLUMNS = ("path", "label", "suggested", "score")
_SMALL = 2**16  # bytes of a header, at most


class Suspect(NamedTuple):
    """A row of the list.

    Attributes:
        path: as seen from the folder of the run's images.
        label: which is doubtful; or what somebody has written there since.
        suggested: the class that it looks like.
        score: how much more probable that one is, as it stands there.
    """

    path: str
    label: str
    suggested: str
    score: str


def is_list_of_suspects(file: str | Path) -> bool:
    """Whether a file is one, by its header."""
    path = Path(file)
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    with path.open("rb") as opened:
        lines = [opened.readline(_SMALL).decode("utf-8-sig", "replace") for _ in range(2)]
    header = (lines[1] if SEPARATOR.fullmatch(lines[0]) else lines[0]).strip().lower().replace(";", ",")
    return set(header.replace('"', "").split(",")) >= set(COLUMNS)


def read_suspects(file: str | Path) -> list[Suspect]:
    """The rows, in their order: as a run writes them, the most doubtful first.

    Raises:
        VitkitError: it is no such list; the message has the line.
    """
    known = {name: name for name in COLUMNS}
    with Path(file).open("rb") as data:
        refuse_encoding(str(file), data.read(64))
    try:
        with open(file, encoding="utf-8-sig", errors="surrogateescape", newline="", opener=regular) as text:
            found = read_rows(str(file), text, known, COLUMNS, "")
    except csv.Error as error:
        raise VitkitError(f"{file} is no CSV file: {error}") from error
    return [Suspect(*(restored(cells.get(name, "")) for name in COLUMNS)) for _, cells in found.rows]
