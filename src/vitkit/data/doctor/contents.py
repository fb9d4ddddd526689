"""What is in an image file: read once, decoded in full, unless its content is known from before."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from vitkit.data.decode import UnreadableImageError, picture_of, reason, refuse_shortage, refuse_special
from vitkit.data.doctor.keypoints import SHORT, Grey, find_keypoints, working_copy
from vitkit.data.doctor.likeness import THUMBNAIL
from vitkit.data.memory import Facts, Memory
from vitkit.data.opening import QUIET
from vitkit.data.room import NoRoomError

Stamped = tuple[Path, bytes | None]  # a file, and what changes whenever it does
_PART = 2**20  # bytes read at a time
LEAST_SIDE = 48  # pixels of a picture that has keypoints: of smaller ones each blob would be a few pixels
_KEPT = (b"\xff\xd8\xff", b"\x89PNG")  # what decodes from memory as from a file, by how it begins


def examine(files: Sequence[Stamped], memory: Memory) -> list[Facts | None]:
    """The facts of files that are not known by their stamps; None for a picture larger than this process may decode."""
    with QUIET:
        contents = [_read(file) for file, _ in files]
        known = memory.of_contents([own.digest for own in contents if isinstance(own, _Content)])
        looks = [
            _Look(own) if isinstance(own, Facts) else _look(file, own, known.get(own.digest))
            for (file, _), own in zip(files, contents, strict=True)
        ]
    greys = {i: own.grey for i, own in enumerate(looks) if own.grey is not None}
    keypoints = dict(zip(greys, find_keypoints(list(greys.values())), strict=True))
    facts = [
        own.facts and replace(own.facts, keypoints=keypoints.get(i, own.facts.keypoints)) for i, own in enumerate(looks)
    ]
    for (_, stamp), look, own in zip(files, looks, facts, strict=True):
        if own is not None and look.is_lasting:
            memory.learn(own, stamp)
    return facts


@dataclass(frozen=True)
class _Look:
    """What is in a file.

    Attributes:
        facts: None for a picture larger than this process may decode.
        grey: where keypoints are to be looked for yet.
        is_lasting: it will be the same when it is looked at again.
    """

    facts: Facts | None
    grey: Grey | None = None
    is_lasting: bool = False


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


def _look(file: Path, content: _Content, known: Facts | None) -> _Look:
    if known is not None:
        return _Look(known, is_lasting=True)
    try:
        return _decode(file, content)
    except NoRoomError:
        return _Look(None)
    except UnreadableImageError as error:
        return _Look(Facts(content.digest, str(error)), is_lasting=not _may_pass(error.__cause__))


def _may_pass(cause: BaseException | None) -> bool:
    """Whether the machine is to blame, and not what is in the file."""
    return isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno is not None)


def _decode(file: Path, content: _Content) -> _Look:
    with picture_of(file, short_side=SHORT // 2, content=content.itself) as own:  # a JPEG is read to its end
        small = own.image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX).tobytes()
        facts = Facts(
            content.digest, None, own.format, own.mode, own.width, own.height, own.is_animated, small, own.doubt
        )
        return _Look(facts, working_copy(own.image) if min(own.image.size) >= LEAST_SIDE else None, is_lasting=True)
