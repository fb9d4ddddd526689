"""What each image file holds, found by decoding it once, in full."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vitkit.data.doctor.contents import Stamped, examine
from vitkit.data.doctor.readers import Readers
from vitkit.data.memory import Facts, Memory, stamp_of

_BATCH = 32  # files that are looked at in one go
_MANY = 2_000  # new files from which on processes are worth their start


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
