"""Examine image files: read each once, decode it in full, and compute its digest, thumbnail and keypoints.

Python decodes small pictures in one thread at a time, so many files are divided among processes (`system.workers`). If
a process cannot start, or dies, its files are examined in this process.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from PIL import Image

from vitkit.data.decode import (
    DECODE_BUDGET,
    LEAST_BUDGET,
    QUIET,
    OverBudgetError,
    decoders,
    picture_of,
    raise_if_short,
    reason,
)
from vitkit.data.doctor.keypoints import SHORT, Grey, find_keypoints, working_copy
from vitkit.data.doctor.likeness import THUMBNAIL
from vitkit.data.file_facts import Facts, Memory, row_of, stamp_of
from vitkit.data.storage import Place, UnreadableImageError, open_place
from vitkit.system.workers import Worker, answer_questions

Stamped = tuple[Place, bytes | None]  # a file, and its stamp (`stamp_of`)
_PART = 2**20  # bytes read at a time
LEAST_SIDE = 48  # pixels; in smaller pictures, blobs have too few pixels for keypoints
_KEPT = (b"\xff\xd8\xff", b"\x89PNG")  # first bytes of the formats that decode from memory as from a file


def examine(files: Sequence[Stamped], memory: Memory) -> list[Facts | None]:
    """Examine files whose stamp is not known yet, and store the facts.

    The facts of a picture are None if it needs more memory than this process may use.
    """
    with QUIET:
        contents = [_read(file) for file, _ in files]
        known = memory.of_contents([content.digest for content in contents if isinstance(content, _Content)])
        looks = [
            _Look(content) if isinstance(content, Facts) else _look(file, content, known.get(content.digest))
            for (file, _), content in zip(files, contents, strict=True)
        ]
    greys = {i: content.grey for i, content in enumerate(looks) if content.grey is not None}
    keypoints = dict(zip(greys, find_keypoints(list(greys.values())), strict=True))
    facts = [
        content.facts and replace(content.facts, keypoints=keypoints.get(i, content.facts.keypoints))
        for i, content in enumerate(looks)
    ]
    for (_, stamp), look, content in zip(files, looks, facts, strict=True):
        if content is not None and look.is_lasting:
            memory.learn(content, stamp)
    return facts


@dataclass(frozen=True)
class _Look:
    """The result of reading one file.

    Attributes:
        facts: the facts; None for a picture that needs more memory than this process may use.
        grey: the greys in which keypoints are still to be searched, if any.
        is_lasting: whether reading the file again would give the same facts.
    """

    facts: Facts | None
    grey: Grey | None = None
    is_lasting: bool = False


@dataclass(frozen=True)
class _Content:
    """The digest of a file, and its bytes if they would be read again."""

    digest: bytes
    itself: bytes | None


def _read(file: Place) -> _Content | Facts:
    """Read a file, or return why it cannot be opened."""
    digest = hashlib.sha256()
    parts, first = 0, b""
    try:
        with open_place(file) as opened:
            while part := opened.read(_PART):
                digest.update(part)
                parts, first = parts + 1, first or part
    except (OSError, UnreadableImageError) as error:
        raise_if_short(file, error)
        return Facts(b"", reason(file, error))
    return _Content(digest.digest(), first if parts == 1 and first.startswith(_KEPT) else None)


def _look(file: Place, content: _Content, known: Facts | None) -> _Look:
    if known is not None:
        return _Look(known, is_lasting=True)
    try:
        return _decode(file, content)
    except OverBudgetError:
        return _Look(None)
    except UnreadableImageError as error:
        return _Look(Facts(content.digest, str(error)), is_lasting=not _may_pass(error.__cause__))


def _may_pass(cause: BaseException | None) -> bool:
    """Return whether a failure is due to the machine rather than to the file."""
    return isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno is not None)


def _decode(file: Place, content: _Content) -> _Look:
    with picture_of(file, short_side=SHORT // 2, content=content.itself) as opened:  # a JPEG is read to its end
        small = opened.image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX).tobytes()
        facts = Facts(
            content.digest,
            None,
            opened.format,
            opened.mode,
            opened.width,
            opened.height,
            opened.is_animated,
            small,
            opened.doubt,
        )
        return _Look(
            facts, working_copy(opened.image) if min(opened.image.size) >= LEAST_SIDE else None, is_lasting=True
        )


_MOST = 32  # processes


class Readers:
    """Processes that examine files. Several threads may use them.

    Args:
        processes: the number of processes; 1 means only this process.
    """

    def __init__(self, processes: int) -> None:
        self._processes = min(processes, _MOST)
        self._idle: SimpleQueue[_Reader] = SimpleQueue()
        self._all: list[_Reader] = []

    def __enter__(self) -> Self:
        if self._processes > 1 and sys.executable:
            with contextlib.suppress(OSError):
                for _ in range(self._processes):
                    self._all.append(_Reader(LEAST_BUDGET // self._processes))
        for reader in self._all:
            self._idle.put(reader)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for reader in self._all:
            reader.close()
        for reader in self._all:
            reader.wait()

    def examine(self, files: Sequence[Stamped]) -> list[Facts | None]:
        """Return the facts of each file; None for files that the calling process must examine."""
        if not self._all:
            return [None] * len(files)
        reader = self._idle.get()
        try:
            return reader.examine(files)
        finally:
            self._idle.put(reader)


class _Reader:
    """A process that examines files; it may fail at any time."""

    def __init__(self, room: int) -> None:
        self._worker = Worker(__name__, is_quiet=True)
        self._is_able: bool | None = None  # None until the process has answered
        self._room = room

    def examine(self, files: Sequence[Stamped]) -> list[Facts | None]:
        try:
            if self._is_able is None:  # a format may have been added in this process
                self._is_able = self._worker.ask(self._room) == decoders()
            if self._is_able:
                rows = self._worker.ask(
                    [(str(file) if isinstance(file, Path) else file, stamp) for file, stamp in files]
                )
                return [None if row is None else Facts(*row) for row in rows]
        except (
            OSError,
            EOFError,
            pickle.PickleError,
            AttributeError,
            TypeError,
        ):  # pickling fails for a storage that only this process has
            self._is_able = False
        return [None] * len(files)

    def close(self) -> None:
        """Let the process store its results and end."""
        self._worker.close()

    def wait(self) -> None:
        """Wait until the process has ended."""
        self._worker.wait()


def serve() -> None:
    """Examine the files that the parent process sends.

    The first message is the largest number of bytes that a picture may need; the others are lists of files.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal also sends it to the parent process, which decides
    gc.set_threshold(100_000)  # decoding creates few reference cycles
    with Memory() as memory:

        def answer(question: Any) -> Any:
            if isinstance(question, int):
                DECODE_BUDGET.limit(question)
                return decoders()
            files = [(Path(file) if isinstance(file, str) else file, stamp) for file, stamp in question]
            return [None if fact is None else row_of(fact) for fact in examine(files, memory)]

        answer_questions(answer)


if __name__ == "__main__":
    serve()


_BATCH = 32  # files examined together
_MANY = 2_000  # new files for which it is worth starting processes


def scan(files: Sequence[Place], memory: Memory, progress: Callable[[int, int], None] | None = None) -> list[Facts]:
    """Return the facts of each file, in order. Known files and contents are not decoded again.

    Args:
        files: the image files.
        memory: the facts of earlier scans.
        progress: receives the number of files done and their total.
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

        for batch, batch_facts in zip(batches, pool.map(look, batches), strict=True):
            for i, fact in zip(batch, batch_facts, strict=True):
                facts[i] = fact
            done += len(batch)
            if progress is not None:
                progress(done, len(files))
    if progress is not None and not new:
        progress(done, len(files))
    return [fact for fact in facts if fact is not None]


def _examine_all(files: Sequence[Stamped], readers: Readers, memory: Memory) -> list[Facts]:
    """Examine files in another process, or in this one if the other process cannot."""
    facts = readers.examine(files)
    left = [i for i, fact in enumerate(facts) if fact is None]
    if left:
        for i, fact in zip(left, examine([files[i] for i in left], memory), strict=True):
            facts[i] = fact
    return [fact for fact in facts if fact is not None]
