"""Text that a terminal or a spreadsheet would act upon, written so that they do not; and read again exactly.

A spreadsheet takes a cell that begins with = + - or @ for a formula, a terminal takes control characters for commands,
and names of files and classes may hold either.
"""

from __future__ import annotations

import csv
import io
import re

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
