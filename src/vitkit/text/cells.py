"""Text for terminals, CSV files and sentences.

A spreadsheet treats a cell that begins with = + - or @ as a formula, and a terminal treats control characters as
commands. Names of files and classes may contain either, so `harmless` marks them and `restored` reads them back.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence

JOINT = ";"  # between the classes of an image
_FORMULA = re.compile(r"'*[=+\-@\t\n]|''*\\")  # begins a formula, or looks like a marked cell
_MARKED = re.compile(r"'+[=+\-@\t\n]|''+\\")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line ends, which quotes hold together
_ESCAPE = re.compile(r"\\x[0-9a-f]{2}")
_ESCAPED = re.compile(r"\\(?:\\|x([0-9a-f]{2}))")


def harmless(text: str) -> str:
    """Return the text of a cell that spreadsheets and terminals do not interpret. `restored` reverses this.

    Text that begins like a formula gets a leading quote. Text with control characters gets a leading `'\\`; in it,
    control characters are written as `\\x1b` and so on, and backslashes are doubled.
    """
    if _CONTROL.search(text):
        return "'\\" + _CONTROL.sub(_escape, text.replace("\\", "\\\\"))
    return "'" + text if _FORMULA.match(text) else text


def restored(cell: str) -> str:
    """Return the text that was passed to `harmless`; text that is not marked is returned unchanged."""
    if not cell.startswith("'"):
        return cell
    if cell.startswith("'\\") and _ESCAPE.search(cell):  # without one `harmless` would not have marked it so
        return _ESCAPED.sub(lambda match: chr(int(match[1], 16)) if match[1] else "\\", cell[2:])
    return cell[1:] if _MARKED.match(cell) else cell


def record(cells: tuple[str, ...]) -> str:
    """Return a line of CSV without its line end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def visible(text: str) -> str:
    """Return text for a terminal with its control characters, except line ends, shown as escapes."""
    return _CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return f"\\x{ord(match[0]):02x}"


_WORD = re.compile(r"[a-z]+(-[a-z]+)*[,;:]?(?=\s|$)")  # at the beginning of a sentence, unlike the name of a model


def sentence(text: str) -> str:
    """Return text with a full stop, and with a capital letter unless it begins with a name such as vit_tiny."""
    begun = f"{text[0].upper()}{text[1:]}" if _WORD.match(text) else text
    return begun if begun.endswith((".", "!", "?")) else f"{begun}."


_DASH = "\N{EN DASH}"  # between the ends of an interval


def plural(count: int, one: str, more: str) -> str:
    """Return `1 file` or `2 files`."""
    return f"{count} {one if count == 1 else more}"


def by_chance(count: int, expected: float) -> str:
    """Return `of these 32 about 21 are expected by chance`."""
    about = f"{expected:.0f}" if expected >= 10 else f"{expected:.1f}"
    return f"of these {count} about {about} {'is' if about == '1.0' else 'are'} expected by chance"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def one_of(words: tuple[str, ...]) -> str:
    """Return `a, b or c`."""
    return f"{', '.join(words[:-1])} or {words[-1]}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def interval_text(bounds: Sequence[float], decimals: int = 3) -> str:
    """Return an interval, rounded outwards so that it is not shown narrower than it is."""
    unit = 10**decimals
    low, high = (round(bound * unit, 6) for bound in bounds)
    return f"{math.floor(low) / unit:.{decimals}f}{_DASH}{math.ceil(high) / unit:.{decimals}f}"
