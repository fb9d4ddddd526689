"""Access to the bytes of images, which are files in a folder or entries of a storage that returns bytes by key.

All code that reads pictures takes a `Place`: the path of a file, or an image in a storage. A path can also lead into an
archive: `flowers.zip/daisy/1.jpg` names an image in the archive `flowers.zip`. In the same way, a path or an address
can lead into a folder of shards. Command lines and prediction files can therefore name such images.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from vitkit.errors import VitkitError


class UnreadableImageError(VitkitError):
    """A file that contains no readable picture. The message is the reason, without the file's name."""


class Storage(Protocol):
    """A collection of images that are read by key.

    Threads and forked processes share a storage, so it must not hold an open file.
    """

    @property
    def name(self) -> str:
        """Return the name of the storage for messages; `name/key` is the name of an image."""
        ...

    def keys(self) -> Collection[str]:
        """Return the key of every file, with `/` between folders."""
        ...

    def open(self, key: str) -> BinaryIO:
        """Open an image and return its bytes as a seekable stream.

        Raises:
            FileNotFoundError: there is no such key.
            OSError: the image cannot be read.
            UnreadableImageError: the storage refuses to read the image; the message is the reason.
        """
        ...

    def stamp(self, key: str) -> bytes | None:
        """Return bytes that change whenever the image changes; None if changes cannot be detected."""
        ...


@dataclass(frozen=True)
class Stored:
    """An image in a storage."""

    storage: Storage
    key: str

    @property
    def name(self) -> str:
        """Return a name such as `flowers.zip/daisy/1.jpg`; if the key is empty, return the storage's name."""
        return f"{self.storage.name}/{self.key}" if self.key else self.storage.name

    def __str__(self) -> str:
        return self.name

    def __truediv__(self, key: str) -> Stored:
        """Return the image whose key is this one's with `/` and `key` appended, as for paths."""
        return Stored(self.storage, f"{self.key}/{key}" if self.key else key)


Place = Path | Stored
Opener = Callable[[Path], Storage]
STORAGES: dict[str, Opener] = {}  # by the suffix of their files; `data.sources` registers them
FOLDER_STORAGES: list[tuple[Callable[[Path], bool], Opener]] = []  # whether a folder or address is one, and its opener


def storage_at(path: Path) -> Storage | None:
    """Open a file, folder or address as a storage of images; return None if it is not a storage.

    Raises:
        VitkitError: a server does not answer.
    """
    opener = STORAGES.get(path.suffix.lower())
    if opener is not None and path.is_file():
        return opener(path)
    return next((open_folder(path) for is_one, open_folder in FOLDER_STORAGES if is_one(path)), None)


def open_place(place: str | Place) -> BinaryIO:
    """Open an image and return its bytes as a stream.

    Raises:
        UnreadableImageError: the file is a pipe or a device, which might never end; or the storage refuses to read the
            image.
        OSError: there is no such image, or it cannot be read.
    """
    stored = stored_at(place)
    return stored.storage.open(stored.key) if stored is not None else Path(str(place)).open("rb")


def read_place(place: str | Place) -> bytes:
    """Return all bytes of an image. Raises the errors of `open_place`."""
    with open_place(place) as opened:
        return opened.read()


def stored_at(place: str | Place) -> Stored | None:
    """Return the image in a storage that a place denotes; None for a regular file or a folder.

    Raises:
        UnreadableImageError: the path is a pipe or a device.
        OSError: the file does not exist or is not accessible.
    """
    if isinstance(place, Stored):
        return place
    try:
        mode = os.stat(place).st_mode  # noqa: PTH116  # half the time of a Path's own
    except (NotADirectoryError, FileNotFoundError):
        if (stored := below_storage(place)) is None or not stored.key:
            raise
        return stored
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UnreadableImageError("not a regular file")
    return None


def below_storage(path: str | Path) -> Stored | None:
    """Return the storage that a path leads into, with the rest of the path as key; None if there is none.

    Raises:
        VitkitError: the storage cannot be read.
    """
    parts = Path(path).parts
    for count in range(len(parts), 0, -1):
        start = Path(*parts[:count])
        if (storage := storage_at(start)) is not None:
            return Stored(storage, "/".join(parts[count:]))
        if os.path.exists(start):  # noqa: PTH110  # a Path takes three times as long
            return None
    return None


def is_there(place: Place) -> bool:
    """Return whether an image exists, as a file or in a storage."""
    if isinstance(place, Stored):
        return place.key in place.storage.keys()  # noqa: SIM118  # a storage is not a mapping
    if os.path.isfile(place):  # noqa: PTH113  # a Path takes three times as long
        return True
    stored = None if place.exists() else below_storage(place)
    return stored is not None and is_there(stored)


def version_of(place: Place) -> tuple[int, int, int] | None:
    """Return three numbers that change when an image changes; None if the image cannot be accessed."""
    if isinstance(place, Stored):
        stamp = place.storage.stamp(place.key)
        digest = None if stamp is None else hashlib.sha256(stamp).digest()
        return None if digest is None else tuple(int.from_bytes(digest[i : i + 7]) for i in (0, 7, 14))  # type: ignore[return-value]
    try:
        seen = os.stat(place)  # noqa: PTH116
    except OSError:
        return None
    return seen.st_size, seen.st_mtime_ns, seen.st_ino
