"""What each image file holds, found by decoding it once, in full."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image

from vitkit.data.decode import UnreadableImageError, picture_of, reason, refuse_special
from vitkit.data.memory import Facts, Memory, stamp_of

THUMBNAIL = 16  # pixels of its sides: enough to know a picture again, too few to know it by its details
_BATCH = 16  # files that a thread takes at a time


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
    return [
        seen[stamp] if stamp in seen else _look(file, stamp, memory) for file, stamp in zip(files, stamps, strict=True)
    ]


def _look(file: Path, stamp: bytes | None, memory: Memory) -> Facts:
    try:
        refuse_special(file)
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").digest()
    except (OSError, UnreadableImageError) as error:
        return Facts(b"", reason(file, error))
    known = memory.of_contents([digest]).get(digest)
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
