"""What each image file holds, found by decoding it once, in full."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from vitkit.data.decode import QUIET, UnreadableImageError, picture_of, reason, refuse_shortage, refuse_special
from vitkit.data.likeness import THUMBNAIL
from vitkit.data.memory import Facts, Memory, stamp_of
from vitkit.data.readers import Readers, Stamped
from vitkit.data.room import NoRoomError

_BATCH = 32  # files that are looked at in one go
_PART = 2**20  # bytes read at a time
_MANY = 2_000  # new files from which on processes are worth their start
_KEPT = (b"\xff\xd8\xff", b"\x89PNG")  # what decodes from memory as from a file, by how it begins


def scan(files: Sequence[Path], memory: Memory, progress: Callable[[int, int], None] | None = None) -> list[Facts]:
    """The facts of each file, in order. Files seen before, under any name, are recognised and not decoded again.

    Args:
        files: any number of image files.
        memory: of earlier scans.
        progress: told how many of how many are done.
    """
    stamps = [stamp_of(file) for file in files]
    seen = memory.of_files(stamps)
    facts = [None if stamp is None else seen.get(stamp) for stamp in stamps]
    new = [i for i, known in enumerate(facts) if known is None]
    batches = [new[start : start + _BATCH] for start in range(0, len(new), _BATCH)]
    done = len(files) - len(new)
    processes = (os.cpu_count() or 1) if len(new) >= _MANY else 1
    with Readers(processes) as readers, ThreadPoolExecutor(os.cpu_count()) as pool:

        def look(batch: Sequence[int]) -> list[Facts]:
            return _examine_all([(files[i], stamps[i]) for i in batch], readers, memory)

        for batch, found in zip(batches, pool.map(look, batches), strict=True):
            for i, own in zip(batch, found, strict=True):
                facts[i] = own
            done += len(batch)
            if progress is not None:
                progress(done, len(files))
    if progress is not None and not new:
        progress(done, len(files))
    return [own for own in facts if own is not None]


def _examine_all(files: Sequence[Stamped], readers: Readers, memory: Memory) -> list[Facts]:
    """In another process, and here what is too large for it."""
    facts = readers.examine(files)
    left = [i for i, found in enumerate(facts) if found is None]
    if left:
        for i, found in zip(left, examine([files[i] for i in left], memory), strict=True):
            facts[i] = found
    return [found for found in facts if found is not None]


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
