"""The checksum of an exported file: over its weights, its graph and what it says of itself.

The card has a field for it, which counts as zeros while the checksum is taken. It tells damage and mixed-up files from
what was written; against a forger, who can compute it too, stand the readers of each format, which let nothing else
through.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from vitkit.errors import VitkitError

CARD = "vitkit"  # the key under which a file keeps what it says of itself
BLANK = "0" * 64
_FIELD = re.compile(rb'(?:"|&quot;)checksum(?:"|&quot;): (?:"|&quot;)([0-9a-f]{64})(?:"|&quot;)')


def sealed(content: bytes, *beside: bytes, start: int = 0) -> bytes:
    """The content with its checksum filled in.

    Args:
        content: holds one card, whose checksum is blank.
        beside: what else the checksum is of.
        start: bytes of the content before the card, which are not searched for it.
    """
    place, digits = _digest(content, beside, start)
    return content[: place.start] + digits + content[place.stop :]


def check(path: Path, content: bytes, *beside: bytes, start: int = 0) -> None:
    """Whether the file is what was written; the arguments are those of `sealed`.

    Raises:
        VitkitError: it is not.
    """
    try:
        place, digits = _digest(content, beside, start)
    except ValueError as error:
        raise VitkitError(f"{path} is damaged: {error}") from error
    if content[place] != digits:
        raise VitkitError(f"{path} is damaged: its content does not match its checksum; export it again")


def _digest(content: bytes, beside: Iterable[bytes], start: int) -> tuple[slice, bytes]:
    """Where the checksum's digits are, and what they should be: a SHA-256 of all parts and their lengths."""
    found = list(_FIELD.finditer(content, start))
    if len(found) != 1:
        raise ValueError(f"it has {len(found)} checksums")
    place, view = slice(*found[0].span(1)), memoryview(content)
    parts: list[bytes | memoryview] = [view[: place.start], BLANK.encode(), view[place.stop :], *beside]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return place, digest.hexdigest().encode()
