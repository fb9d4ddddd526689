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

BLANK = "0" * 64
_FIELD = re.compile(rb'(?:"|&quot;)checksum(?:"|&quot;): (?:"|&quot;)([0-9a-f]{64})(?:"|&quot;)')


def checksum(parts: Iterable[bytes | memoryview]) -> str:
    """The SHA-256 of some parts and their lengths, in hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def place_of(content: bytes | memoryview, start: int = 0) -> slice:
    """Where the checksum's digits are.

    Args:
        content: holds one card.
        start: bytes before it, which do not.

    Raises:
        VitkitError: there is none, or more than one.
    """
    found = list(_FIELD.finditer(content, start))
    if len(found) != 1:
        raise VitkitError(f"{len(found) or 'no'} checksums in it: it was not exported by this vitkit, or is damaged")
    return slice(*found[0].span(1))


def blanked(content: bytes | memoryview, place: slice) -> list[bytes | memoryview]:
    """The content with zeros in the checksum's place, in pieces."""
    view = memoryview(content)
    return [view[: place.start], BLANK.encode(), view[place.stop :]]


def check(path: Path, said: bytes | memoryview, parts: Iterable[bytes | memoryview]) -> None:
    """Whether the file is what was written.

    Raises:
        VitkitError: it is not.
    """
    if bytes(said).decode() != checksum(parts):
        raise VitkitError(f"{path} is damaged: its content does not match its checksum; export it again")
