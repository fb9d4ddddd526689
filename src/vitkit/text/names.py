"""Compare class names as people see them.

Names that are copied from web pages or files may contain zero-width spaces, soft hyphens, byte order marks or fillers.
Two names that differ only in such invisible characters look the same to every reader.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from vitkit.errors import VitkitError

# Unicode's property Default_Ignorable_Code_Point, and the empty Braille pattern, which is drawn as a space.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Joiners and variation selectors after letters from Arabic to Khmer, ideographs or emoji shape those characters.
_SHAPING = re.compile("(?<=[\u0600-\u17ff\u2190-\U0003ffff])[\u200c\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def bare(name: str) -> str:
    """Return a name without invisible characters, except those that shape other characters."""
    kept = {match.start() for match in _SHAPING.finditer(name)}
    return _UNSEEN.sub(lambda match: match[0] if match.start() in kept else "", name)


def look(name: str) -> str:
    """Return a canonical form that is the same for names that look the same: NFC, single spaces, nothing invisible."""
    return " ".join(unicodedata.normalize("NFC", bare(name)).split())


def unseen_in(name: str) -> str | None:
    """Describe the first invisible or control character of a name, such as `U+200B ZERO WIDTH SPACE`, or None."""
    kept = {match.start() for match in _SHAPING.finditer(name)}
    for place, character in enumerate(name):
        if _CONTROL.match(character) or (_UNSEEN.match(character) and place not in kept):
            return _code_point(character)
    return None


def _code_point(character: str) -> str:
    """Describe a character, as in `U+200B ZERO WIDTH SPACE`, or a byte of a file name that is not UTF-8."""
    if "\udc80" <= character <= "\udcff":
        return f"the byte 0x{ord(character) - 0xDC00:02X}, which is not UTF-8"
    return f"U+{ord(character):04X} {unicodedata.name(character, '(a control character)')}"


def alike(names: Iterable[str]) -> tuple[str, str, str] | None:
    """Return the first two names that differ but look the same, and a character in which they differ.

    None if there are no such names.
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
        except UnicodeEncodeError:  # JSON can have half of a character
            is_text = False
        if not is_text:
            raise VitkitError(f"class names must be text, not {name!r:.80}")
        if not look(str(name)):
            raise VitkitError(f"class names must contain visible characters, and {name!r:.80} has none")
