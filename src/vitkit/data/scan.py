"""What each image file holds, found by decoding it once, in full."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image

from vitkit.data.decode import UnreadableImageError, picture_of, reason, refuse_special
from vitkit.data.likeness import THUMBNAIL
from vitkit.data.memory import Facts, Memory, stamp_of

_BATCH = 16  # files that a thread takes at a time
_PART = 2**20  # bytes read at a time


def scan(files: Sequence[Path], memory: Memory, progress: Callable[[int, int], None] | None = None) -> list[Facts]:
    """The facts of each file, in order. Files seen before, under any name, are recognised and not decoded again.

    Args:
        files: any number of image files.
        memory: of earlier scans.
        progress: told how many of how many are done.
    """
    facts: list[Facts] = []
    batches = [files[start : start + _BATCH] for start in range(0, len(files), _BATCH)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes outside the interpreter's lock
        for found in pool.map(lambda batch: _examine(batch, memory), batches):
            facts += found
            if progress is not None:
                progress(len(facts), len(files))
    return facts


def _examine(files: Sequence[Path], memory: Memory) -> list[Facts]:
    stamps = [stamp_of(file) for file in files]
    seen = memory.of_files(stamps)
    digests = [seen[stamp].digest if stamp in seen else _hash(file) for file, stamp in zip(files, stamps, strict=True)]
    new = [own for own, stamp in zip(digests, stamps, strict=True) if isinstance(own, bytes) and stamp not in seen]
    known = memory.of_contents(new)
    found = []
    for file, stamp, digest in zip(files, stamps, digests, strict=True):
        if stamp in seen:
            found.append(seen[stamp])
        elif isinstance(digest, bytes):
            found.append(_look(file, stamp, digest, known.get(digest), memory))
        else:
            found.append(digest)
    return found


def _hash(file: Path) -> bytes | Facts:
    """Of what is in a file, or why it cannot be opened."""
    digest = hashlib.sha256()
    try:
        refuse_special(file)
        with file.open("rb", buffering=0) as opened:
            while part := opened.read(_PART):
                digest.update(part)
    except (OSError, UnreadableImageError) as error:
        return Facts(b"", reason(file, error))
    return digest.digest()


def _look(file: Path, stamp: bytes | None, digest: bytes, known: Facts | None, memory: Memory) -> Facts:
    try:
        facts = _decode(file, digest) if known is None else known
    except UnreadableImageError as error:
        facts = Facts(digest, str(error))
        if _may_pass(error.__cause__):
            return facts
    memory.learn(facts, stamp)
    return facts


def _may_pass(cause: BaseException | None) -> bool:
    """Whether the machine is to blame, and not what is in the file."""
    return isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno is not None)


def _decode(file: Path, digest: bytes) -> Facts:
    with picture_of(file, short_side=2 * THUMBNAIL) as own:  # a JPEG is read to its end at any scale
        small = own.image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX).tobytes()
        return Facts(digest, None, own.format, own.mode, own.width, own.height, own.is_animated, small, own.doubt)
