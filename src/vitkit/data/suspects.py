"""A run's label_errors.csv, read again: labels that look wrong, and what they look like."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vitkit.data.csv_rows import SEPARATOR, read_rows, refuse_encoding
from vitkit.errors import VitkitError
from vitkit.system.files import regular
from vitkit.text.cells import restored
from vitkit.text.words import by_chance

COLUMNS = ("path", "label", "suggested", "score")
_CHANCE = "chance"  # a column that older lists have not
_SMALL = 2**16  # bytes of a header, at most


class Suspect(NamedTuple):
    """A row of the list.

    Attributes:
        path: as seen from the folder of the run's images.
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
    known = {name: name for name in (*COLUMNS, _CHANCE)}
    with Path(file).open("rb") as data:
        refuse_encoding(str(file), data.read(64))
    try:
        with open(file, encoding="utf-8-sig", errors="surrogateescape", newline="", opener=regular) as text:
            found = read_rows(str(file), text, known, COLUMNS, "")
    except csv.Error as error:
        raise VitkitError(f"{file} is no CSV file: {error}") from error
    suspects = []
    for line, cells in found.rows:
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
    """How many of these labels are expected to be right; None where the list does not say."""
    known = [own.chance for own in suspects if own.chance is not None]
    return sum(known) if len(known) == len(suspects) else None


def chance_in_words(suspects: Sequence[Suspect]) -> str:
    """The same with a semicolon before it; empty where nothing is known, or there is none."""
    expected = expected_by_chance(suspects)
    return f"; {by_chance(len(suspects), expected)}" if suspects and expected is not None else ""
