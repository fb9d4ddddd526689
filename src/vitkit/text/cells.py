"""Text for terminals, CSV files and sentences.

A spreadsheet treats a cell that begins with = + - or @ as a formula, and a terminal treats control characters as
commands. In many countries, spreadsheets also divide cells at semicolons. Names of files and classes may contain all of
this. `harmless` escapes such text, and `restored` reverses this.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence

JOINT = ";"  # between the classes of an image
_FORMULA = re.compile(r"'*[=+\-@\t\n]|''*\\")  # begins a formula, or looks like an escaped cell
_QUOTED = re.compile(r"'+[=+\-@\t\n]|''+\\")  # text that matches `_FORMULA`, after a leading quote
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line feeds, which CSV can quote
_ACTIVE = re.compile(_CONTROL.pattern + r"|;(?=\s*[\"']*[=+\-@])")  # a semicolon before a formula begins a cell, too
_ESCAPE = re.compile(r"\\x[0-9a-f]{2}")
_ESCAPED = re.compile(r"\\(?:\\|x([0-9a-f]{2}))")


def harmless(text: str) -> str:
    """Escape text so that spreadsheets do not treat it as a formula, and terminals do not treat it as commands.

    Text that begins like a formula gets a leading quote. Text with control characters, or with a formula after a
    semicolon, gets a leading `'\\`. Its control characters and these semicolons become escapes such as `\\x1b`, and its
    backslashes are doubled. `restored` reverses this.
    """
    if _ACTIVE.search(text):
        return "'\\" + _ACTIVE.sub(_escape, text.replace("\\", "\\\\"))
    return "'" + text if _FORMULA.match(text) else text


def restored(cell: str) -> str:
    """Return the original text of a cell that `harmless` wrote."""
    if not cell.startswith("'"):
        return cell
    if cell.startswith("'\\") and _ESCAPE.search(cell):  # `harmless` writes this prefix only with an escape
        return _ESCAPED.sub(_unescape, cell[2:])
    return cell[1:] if _QUOTED.match(cell) else cell


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return "\\" if code is None else chr(int(code, 16))


def record(cells: tuple[str, ...]) -> str:
    """Format cells as one line of CSV, without a line end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def visible(text: str) -> str:
    """Replace control characters, except tabs and line feeds, with visible escapes such as `\\x1b`."""
    return _CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return f"\\x{ord(match[0]):02x}"


_WORD = re.compile(r"[a-z]+(-[a-z]+)*[,;:]?(?=\s|$)")  # at the beginning of a sentence, unlike the name of a model


def sentence(text: str) -> str:
    """Add a full stop to text, and capitalise its first letter unless the first word is a name such as vit_tiny."""
    if _WORD.match(text):
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def plural(count: int, singular: str, plural: str) -> str:
    """Return a number with its noun in the singular or plural, such as `1 file` or `2 files`."""
    return f"{count} {singular if count == 1 else plural}"


def false_alarms_in_words(suspects: int, expected: float) -> str:
    """Describe the expected number of false alarms, as in `about 21 of these 32 are probably right`."""
    about = f"{expected:.0f}" if expected >= 10 else f"{expected:.1f}"
    verb = "is" if about == "1.0" else "are"
    return f"about {about} of these {suspects} {verb} probably right"


def listed(names: Sequence[str], max_count: int = 3) -> str:
    """Join the first `max_count` names with commas. If there are others, add their number, such as ` and 4 more`."""
    text = ", ".join(names[:max_count])
    return f"{text} and {len(names) - max_count} more" if len(names) > max_count else text


def one_of(words: tuple[str, ...]) -> str:
    """Join words as `a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows of cells as lines of text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def interval_text(bounds: Sequence[float], decimals: int = 3) -> str:
    """Format an interval, with its ends rounded outwards so that it never looks narrower than it is."""
    unit = 10**decimals
    low, high = (round(bound * unit, 6) for bound in bounds)
    return f"{math.floor(low) / unit:.{decimals}f}\N{EN DASH}{math.ceil(high) / unit:.{decimals}f}"
