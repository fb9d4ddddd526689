"""Local copies of remote shards in the cache folder, fetched before training reaches the shards.

The file name of a copy is the SHA-256 of the shard, which is verified during the download. Every run can therefore use
the copy, whatever the address of the shard. Copies never affect results: if a shard has no copy, its images are read
remotely, one by one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from vitkit.data.remote import download
from vitkit.errors import VitkitError
from vitkit.system.environment import cache_folder

T = TypeVar("T")
Shards = Sequence[tuple[str, str, int]]  # address, SHA-256 and bytes of each
_LARGEST = 64 * 2**30  # bytes of all copies, however much is free
_STALLED = 30.0  # seconds after which a copy that does not grow is given up: its process or the server has failed
_LEAD = 4  # shards that are fetched before the reader reaches them


def copy_of(sha256: str) -> str | None:
    """Return the path of the local copy of a shard; None if there is none.

    If the copy is being downloaded, wait for it.
    """
    path = f"{_folder()}/{sha256}.tar"
    while not os.path.exists(path):  # noqa: PTH110  # a Path takes three times as long
        if not _is_arriving(f"{path}.part"):
            return path if os.path.exists(path) else None  # noqa: PTH110
        time.sleep(0.02)
    return path


def fetched_ahead(batches: Iterator[T], shards: Shards, order: Sequence[int], batch_size: int) -> Iterator[T]:
    """Yield batches while a thread fetches the shards of the next batches.

    Args:
        batches: the remaining batches of the epoch.
        shards: all shards.
        order: for each remaining image of the epoch, the index of its shard.
        batch_size: the number of images in a batch.
    """
    fetcher = _Fetcher(shards, order)
    return _while_fetching(fetcher, batches, batch_size)


def _while_fetching(fetcher: _Fetcher, batches: Iterator[T], batch_size: int) -> Iterator[T]:
    try:
        for number, batch in enumerate(batches, start=1):
            yield batch
            fetcher.reach(number * batch_size)
    finally:
        fetcher.close()


class _Fetcher:
    """A thread that fetches shards in the order in which they are needed, a few shards ahead.

    If a shard cannot be fetched, the thread skips it. The readers then report the error.
    """

    def __init__(self, shards: Shards, order: Sequence[int]) -> None:
        first_use: dict[int, int] = {}
        for place, number in enumerate(order):
            first_use.setdefault(number, place)
        self._uses = [(place, shards[number]) for number, place in first_use.items()]
        self._lead = _LEAD * len(order) // max(len(first_use), 1)
        self._place, self._is_closed = 0, False
        self._changed = threading.Condition()
        threading.Thread(target=self._fetch_all, name="vitkit-shards", daemon=True).start()

    def reach(self, place: int) -> None:
        """Set the number of images that have been read so far."""
        with self._changed:
            self._place = place
            self._changed.notify()

    def close(self) -> None:
        """Stop the thread after the current shard."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _fetch_all(self) -> None:
        for place, shard in self._uses:
            with self._changed:
                self._changed.wait_for(lambda place=place: self._is_closed or place <= self._place + self._lead)  # type: ignore[misc]
                if self._is_closed:
                    return
            with contextlib.suppress(OSError, VitkitError):
                _fetch(*shard)


def _fetch(address: str, sha256: str, size: int) -> None:
    """Download a shard, unless a copy exists, another process is fetching it, or there is no space for it.

    Raises:
        OSError, VitkitError: the shard cannot be read, or the disk is full.
    """
    path, partial = _folder() / f"{sha256}.tar", _folder() / f"{sha256}.tar.part"
    with contextlib.suppress(FileNotFoundError):
        os.utime(path)  # the copies that were not needed for longest are deleted first
        return
    if _is_arriving(partial) or not _make_room(size):
        return
    partial.unlink(missing_ok=True)  # what a killed process left
    try:
        file = partial.open("xb")
    except FileExistsError:  # another process has begun to fetch it
        return
    digest = hashlib.sha256()
    try:
        with file:
            download(address, file, digest.update)
        if digest.hexdigest() == sha256:  # otherwise the checksums of single images tell which are damaged
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _folder() -> Path:
    return cache_folder() / "shards"


def _is_arriving(partial: str | Path) -> bool:
    try:
        return time.time() - os.stat(partial).st_mtime < _STALLED  # noqa: PTH116
    except FileNotFoundError:
        return False


def _make_room(size: int) -> bool:
    """Delete the least recently needed copies; return whether `size` more bytes fit afterwards."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    copies = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            seen = path.stat()
            copies.append((seen.st_mtime, seen.st_size, path))
    held = sum(bytes_used for _, bytes_used, _ in copies)
    bound = min((shutil.disk_usage(folder).free + held) // 2, _LARGEST)
    for _, bytes_used, path in sorted(copies):
        if held + size <= bound:
            break
        path.unlink(missing_ok=True)
        held -= bytes_used
    return held + size <= bound
