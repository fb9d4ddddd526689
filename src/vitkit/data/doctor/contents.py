"""What is in an image file: read once, decoded in full, unless its content is known from before."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from vitkit.data.decode import UnreadableImageError, picture_of, reason, refuse_shortage, refuse_special
from vitkit.data.doctor.likeness import THUMBNAIL
from vitkit.data.memory import Facts, Memory
from vitkit.data.opening import QUIET
from vitkit.data.room import NoRoomError

Stamped = tuple[Path, bytes | None]  # a file, and what changes whenever it does
_PART = 2**20  # bytes read at a time
_KEPT = (b"\xff\xd8\xff", b"\x89PNG")  # what decodes from memory as from a file, by how it begins


def examine(files: Sequence[Stamped], memory: Memory) -> list[Facts | None]:
    """The facts of files that are not known by their stamps; None for a picture larger than this process may decode."""
    with QUIET:
        contents = [_read(file) for file, _ in files]
        known = memory.of_contents([own.digest for own in contents if isinstance(own, _Content)])
        return [
            own if isinstance(own, Facts) else _look(file, stamp, own, known.get(own.digest), memory)
            for (file, stamp), own in zip(files, contents, strict=True)
        ]


@dataclass(frozen=True)
class _Content:
    """What is in a file: its digest, and itself where that need not be read again."""

    digest: bytes
    itself: bytes | None


def _read(file: Path) -> _Content | Facts:
    """What is in a file, or why it cannot be opened."""
    digest = hashlib.sha256()
    parts, first = 0, b""
    try:
        refuse_special(file)
        with file.open("rb", buffering=0) as opened:
            while part := opened.read(_PART):
                digest.update(part)
                parts, first = parts + 1, first or part
    except (OSError, UnreadableImageError) as error:
        refuse_shortage(file, error)
        return Facts(b"", reason(file, error))
    return _Content(digest.digest(), first if parts == 1 and first.startswith(_KEPT) else None)


def _look(file: Path, stamp: bytes | None, content: _Content, known: Facts | None, memory: Memory) -> Facts | None:
    try:
        facts = _decode(file, content) if known is None else known
    except NoRoomError:
        return None
    except UnreadableImageError as error:
        facts = Facts(content.digest, str(error))
        if _may_pass(error.__cause__):
            return facts
    memory.learn(facts, stamp)
    return facts


def _may_pass(cause: BaseException | None) -> bool:
    """Whether the machine is to blame, and not what is in the file."""
    return isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno is not None)


def _decode(file: Path, content: _Content) -> Facts:
    with picture_of(file, short_side=2 * THUMBNAIL, content=content.itself) as own:  # a JPEG is read to its end
        small = own.image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX).tobytes()
        return Facts(
            content.digest, None, own.format, own.mode, own.width, own.height, own.is_animated, small, own.doubt
        )
