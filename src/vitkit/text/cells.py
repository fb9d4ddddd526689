"""Text for terminals, CSV files and sentences, and class names as people see them.

A spreadsheet treats a cell that begins with = + - or @ as a formula, and a terminal treats control characters as
commands. Names of files and classes may contain both. `harmless` escapes such text, and `restored` reverses this. Names
of classes may also contain invisible characters. `look` and `alike` ignore these when they compare names.
"""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence

from vitkit.errors import VitkitError

JOINT = ";"  # between the classes of an image
_FORMULA = re.compile(r"'*[=+\-@\t\n]|''*\\")  # begins a formula, or looks like an escaped cell
_MARKED = re.compile(r"'+[=+\-@\t\n]|''+\\")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line feeds, which CSV can quote
_ESCAPE = re.compile(r"\\x[0-9a-f]{2}")
_ESCAPED = re.compile(r"\\(?:\\|x([0-9a-f]{2}))")


def harmless(text: str) -> str:
    """Escape text so that spreadsheets do not treat it as a formula, and terminals do not treat it as commands.

    Text that begins like a formula gets a leading quote. Text with control characters gets a leading `'\\`. Its control
    characters become escapes such as `\\x1b`, and its backslashes are doubled. `restored` reverses this.
    """
    if _CONTROL.search(text):
        return "'\\" + _CONTROL.sub(_escape, text.replace("\\", "\\\\"))
    return "'" + text if _FORMULA.match(text) else text


def restored(cell: str) -> str:
    """Return the original text of a cell that `harmless` wrote."""
    if not cell.startswith("'"):
        return cell
    if cell.startswith("'\\") and _ESCAPE.search(cell):  # `harmless` writes this prefix only with an escape
        return _ESCAPED.sub(lambda match: chr(int(match[1], 16)) if match[1] else "\\", cell[2:])
    return cell[1:] if _MARKED.match(cell) else cell


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
    begun = f"{text[0].upper()}{text[1:]}" if _WORD.match(text) else text
    return begun if begun.endswith((".", "!", "?")) else f"{begun}."


_DASH = "\N{EN DASH}"  # between the ends of an interval


def plural(count: int, one: str, more: str) -> str:
    """Return a number with its noun, such as `1 file` or `2 files`."""
    return f"{count} {one if count == 1 else more}"


def by_chance(count: int, expected: float) -> str:
    """Return a phrase such as `about 21 of these 32 are probably right`.

    Args:
        count: the number of things, such as suspected label errors.
        expected: how many of them are expected to be right.
    """
    about = f"{expected:.0f}" if expected >= 10 else f"{expected:.1f}"
    return f"about {about} of these {count} {'is' if about == '1.0' else 'are'} probably right"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Join the first `most` names with commas. If there are others, add their number, such as ` and 4 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def one_of(words: tuple[str, ...]) -> str:
    """Join words as `a, b or c`."""
    return f"{', '.join(words[:-1])} or {words[-1]}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows of cells as lines of text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def interval_text(bounds: Sequence[float], decimals: int = 3) -> str:
    """Format an interval, with its ends rounded outwards so that it never looks narrower than it is."""
    unit = 10**decimals
    low, high = (round(bound * unit, 6) for bound in bounds)
    return f"{math.floor(low) / unit:.{decimals}f}{_DASH}{math.ceil(high) / unit:.{decimals}f}"


# --- Class names ----------------------------------------------------------------------------------------------

# Names that are copied from web pages or files may contain zero-width spaces, soft hyphens, byte order marks or
# fillers. Two names that differ only in such invisible characters look the same to every reader.

# Unicode's property Default_Ignorable_Code_Point, and the empty Braille pattern, which is drawn as a space.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Joiners and variation selectors after letters from Arabic to Khmer, ideographs or emoji shape those characters.
_SHAPING = re.compile("(?<=[\u0600-\u17ff\u2190-\U0003ffff])[\u200c\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters, and bytes that are not UTF-8


def bare(name: str) -> str:
    """Remove the invisible characters of a name, except those that change the shape of other characters."""
    kept = {match.start() for match in _SHAPING.finditer(name)}
    return _UNSEEN.sub(lambda match: match[0] if match.start() in kept else "", name)


def look(name: str) -> str:
    """Normalise a name, so that names that look the same become equal: NFC, single spaces, no invisible characters."""
    return " ".join(unicodedata.normalize("NFC", bare(name)).split())


def unseen_in(name: str) -> str | None:
    """Describe the first invisible or control character of a name, such as `U+200B ZERO WIDTH SPACE`.

    Return None if there is no such character.
    """
    kept = {match.start() for match in _SHAPING.finditer(name)}
    for place, character in enumerate(name):
        if _UNFIT.match(character) or (_UNSEEN.match(character) and place not in kept):
            return _code_point(character)
    return None


def _code_point(character: str) -> str:
    """Describe a character, as in `U+200B ZERO WIDTH SPACE`, or a byte of a file name that is not UTF-8."""
    if "\udc80" <= character <= "\udcff":
        return f"the byte 0x{ord(character) - 0xDC00:02X}, which is not UTF-8"
    return f"U+{ord(character):04X} {unicodedata.name(character, '(a control character)')}"


def alike(names: Iterable[str]) -> tuple[str, str, str] | None:
    """Return the first two names that differ but look the same, and describe a character in which they differ.

    Return None if there are no such names.
    """
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(look(name), name)
        if other != name:
            differ = [character for character in name + other if (character in name) != (character in other)]
            return other, name, _code_point(min(differ, key=_visibility, default=" "))
    return None


def _visibility(character: str) -> int:
    """Return how visible a character is: 0 invisible, 1 a space, 2 a combining mark, 3 any other."""
    if _UNSEEN.match(character):
        return 0
    return 1 if character.isspace() else 2 if unicodedata.combining(character) else 3


def check_names(classes: Iterable[object]) -> None:
    """Refuse class names that are not text, that cannot be stored in a file, or that have no visible character.

    Raises:
        VitkitError: a name is invalid; the message shows it.
    """
    for name in classes:
        try:
            is_text = isinstance(name, str) and name.encode("utf-8", "surrogateescape") is not None
        except UnicodeEncodeError:  # JSON can contain half of a surrogate pair
            is_text = False
        if not is_text:
            raise VitkitError(f"class names must be text, not {name!r:.80}")
        if not look(str(name)):
            raise VitkitError(f"class names must contain visible characters, and {name!r:.80} has none")
