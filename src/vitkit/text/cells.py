"""Text that a terminal or a spreadsheet would act upon, written so that they do not; and read again exactly.

A spreadsheet takes a cell that begins with = + - or @ for a formula, a terminal takes control characters for commands,
and names of files and classes may hold either.

Counts and lists in sentences, and tables in lines.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence

JOINT = ";"  # between the classes of an image
_FORMULA = re.compile(r"'*[=+\-@\t\n]|''*\\")  # what begins a formula, or would be taken for what is written here
_MARKED = re.compile(r"'+[=+\-@\t\n]|''+\\")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line ends, which quotes hold together
_ESCAPE = re.compile(r"\\x[0-9a-f]{2}")
_ESCAPED = re.compile(r"\\(?:\\|x([0-9a-f]{2}))")


def harmless(text: str) -> str:
    """The text of a cell; `restored` gives back what it was made of.

    What begins as a formula does gets a quote before it, as spreadsheets have it. Text with control characters gets
    `'\\` before it, and has `\\x1b` in their place, and `\\\\` in that of a backslash.
    """
    if _CONTROL.search(text):
        return "'\\" + _CONTROL.sub(_escape, text.replace("\\", "\\\\"))
    return "'" + text if _FORMULA.match(text) else text


def restored(cell: str) -> str:
    """What `harmless` was given; any other text as it is."""
    if not cell.startswith("'"):
        return cell
    if cell.startswith("'\\") and _ESCAPE.search(cell):  # without one `harmless` would not have marked it so
        return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else "\\", cell[2:])
    return cell[1:] if _MARKED.match(cell) else cell


def record(cells: tuple[str, ...]) -> str:
    """A line of CSV, without its end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def visible(text: str) -> str:
    """Text for a terminal, with its control characters but for line ends shown as escapes."""
    return _CONTROL.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]):02x}"


_DASH = "\N{EN DASH}"  # between the ends of an interval


def plural(count: int, one: str, more: str) -> str:
    """`1 file`, or `2 files`."""
    return f"{count} {one if count == 1 else more}"


def by_chance(count: int, expected: float) -> str:
    """`of these 32 about 21 are expected by chance`."""
    about = f"{expected:.0f}" if expected >= 10 else f"{expected:.1f}"
    return f"of these {count} about {about} {'is' if about == '1.0' else 'are'} expected by chance"


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def one_of(words: tuple[str, ...]) -> str:
    """`a, b or c`."""
    return f"{', '.join(words[:-1])} or {words[-1]}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines whose columns stand below one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def interval_text(bounds: Sequence[float], decimals: int = 3) -> str:
    """An interval, rounded outwards: no end is shown as certain that is not."""
    unit = 10**decimals
    low, high = (round(bound * unit, 6) for bound in bounds)
    return f"{math.floor(low) / unit:.{decimals}f}{_DASH}{math.ceil(high) / unit:.{decimals}f}"
