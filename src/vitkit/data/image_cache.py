"""Keep decoded pictures between epochs, at the size that training needs.

They are kept in memory that all processes of a run share, or as files in vitkit's cache. A photograph that has changed
on disk is decoded again. The cache stores exactly what decoding gives, so it has no effect on any pixel.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import mmap
import multiprocessing
import os
import shutil
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from PIL import Image

from vitkit.data.decode import available_memory, decoders, open_picture
from vitkit.data.file_facts import stamp_of
from vitkit.data.storage import Place, UnreadableImageError, open_place, read_place, version_of
from vitkit.system.environment import cache_folder

Cache = Literal["auto", "ram", "disk", "none"]
Make = Callable[[], Image.Image]
_FORMAT = 2
_LARGEST = 64 * 2**30  # bytes on disk, however much is free
_MEASURED = 64  # pictures whose size tells that of all
_HEAD = struct.Struct("<III")  # checksum, width, height


class PictureCache(Protocol):
    """A cache of decoded and reduced pictures."""

    def picture(self, index: int, file: Place, make: Make) -> Image.Image:
        """Return picture number `index` in RGB: from the cache, or made and stored if there is room."""
        ...


class _Room:
    """So many bytes, given out once, to whichever process asks; processes share it by being forked."""

    def __init__(self, size: int) -> None:
        self.size, self.lock = size, multiprocessing.Lock()
        self._used = np.frombuffer(mmap.mmap(-1, 8), np.int64)

    def take(self, size: int) -> int | None:
        """Return the offset of this many free bytes; None if there are not as many. The lock must be held."""
        start = int(self._used[0])
        if start + size > self.size:
            return None
        self._used[0] = start + size
        return start


class MemoryCache:
    """A cache in main memory, which processes share that are forked after it was made.

    Args:
        images: how many there are.
        size: bytes to use at most; they are taken from the system as pictures come.
    """

    def __init__(self, images: int, size: int) -> None:
        self._room = _Room(size)
        self._pixels = mmap.mmap(-1, max(size, 1))
        self._entries = np.frombuffer(mmap.mmap(-1, max(images, 1) * 7 * 8), np.int64).reshape(-1, 7)

    def picture(self, index: int, file: Place, make: Make) -> Image.Image:
        seen = version_of(file)
        with self._room.lock:
            stored, start, width, height, *known = self._entries[index].tolist()
        if stored and seen is not None and tuple(known) == seen:
            return Image.frombytes("RGB", (width, height), memoryview(self._pixels)[start : start + 3 * width * height])
        image = make()
        if seen is not None and seen == version_of(file):  # not replaced while it was read
            self._keep(index, image, seen)
        return image

    def _keep(self, index: int, image: Image.Image, seen: tuple[int, int, int]) -> None:
        pixels = image.tobytes()
        with self._room.lock:
            stored, start, width, height, *_ = self._entries[index].tolist()
            if not stored or 3 * width * height < len(pixels):  # a changed picture may lie where it lay before
                place = self._room.take(len(pixels))
                if place is None:
                    return
                start = place
            self._pixels[start : start + len(pixels)] = pixels
            self._entries[index] = (1, start, *image.size, *seen)


class DiskCache:
    """A cache of files, for later runs too. The content of a photograph is its key.

    Args:
        rule: what is done to a decoded picture before it is kept.
        size: bytes to write at most.
    """

    def __init__(self, rule: str, size: int) -> None:
        self._rule, self._room, self._folder = (
            rule.encode(),
            _Room(size),
            cache_folder() / f"pictures-{_FORMAT}-{decoders()}",
        )

    def picture(self, index: int, file: Place, make: Make) -> Image.Image:  # noqa: ARG002
        path = self._path_of(file)
        if path is None:
            return make()
        image = _read(path)
        if image is None:
            image = make()
            if path == self._path_of(file):  # not replaced while it was read
                self._write(path, image)
        return image

    def _path_of(self, file: Place) -> Path | None:
        """Return where the picture of a file is cached; None if the file cannot be read."""
        content = stamp_of(file)
        if content is None:  # changed so lately that its times tell nothing
            try:
                content = hashlib.sha256(read_place(file)).digest()
            except (OSError, UnreadableImageError):
                return None
        name = hashlib.sha256(self._rule + b"\0" + content).hexdigest()
        return self._folder / name[:2] / name

    def _write(self, path: Path, image: Image.Image) -> None:
        pixels = image.tobytes()
        with self._room.lock:
            if self._room.take(_HEAD.size + len(pixels)) is None:
                return
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Not forced to the disk, which takes longer than decoding: the checksum tells what a crash left unfinished.
            temporary.write_bytes(_HEAD.pack(zlib.crc32(pixels), *image.size) + pixels)
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def _read(path: Path) -> Image.Image | None:
    try:
        data = path.read_bytes()
        os.utime(path)  # what is in use is deleted last
    except OSError:
        return None
    if len(data) < _HEAD.size:
        return None
    checksum, width, height = _HEAD.unpack_from(data)
    pixels = memoryview(data)[_HEAD.size :]
    if len(pixels) != 3 * width * height or zlib.crc32(pixels) != checksum:
        return None
    return Image.frombytes("RGB", (width, height), pixels)


def choose_cache(cache: str, need: int, *, workers: int, processes: int = 1) -> str:
    """Return where to cache pictures: resolves `auto` to ram, disk or none, and ram to disk if it cannot be shared.

    Args:
        cache: what was asked for.
        need: bytes of all pictures (`bytes_of`).
        workers: processes that prepare images.
        processes: the processes that train on this machine, each with its own memory.
    """
    if cache == "none":
        return cache
    can_share = workers == 0 or sys.platform == "linux"  # elsewhere workers begin with nothing
    if can_share and (cache == "ram" or (cache == "auto" and need <= available_memory() // (4 * processes))):
        return "ram"
    return "disk" if cache != "auto" or need <= _free_disk() // 4 else "none"


def open_cache(cache: str, images: int, need: int, rule: str) -> PictureCache | None:
    """Open the cache that was chosen, with a tenth more room than is needed; None if there is none.

    Args:
        cache: ram, disk or none.
        images: how many there are.
        need: bytes of all pictures; more than half of the memory, or of the disk, is never used.
        rule: what is done to a picture before it is kept.
    """
    size = need + need // 10 + 2**20
    if cache == "ram":
        with contextlib.suppress(OSError):  # a system that promises no more memory than it has
            return MemoryCache(images, min(size, available_memory() // 2))
        return None
    if cache == "disk":
        size = min(size, _free_disk() // 2, _LARGEST)
        _make_room(size)
        return DiskCache(rule, size)
    return None


def bytes_of(files: Sequence[Place], short_side: int | None, fixed: tuple[int, int] | None = None) -> int:
    """About how many bytes the pictures of these files take.

    Args:
        files: the files of photographs.
        short_side: what they are reduced to, at most.
        fixed: (height, width) of every picture, where they are all alike.
    """
    if fixed is not None:
        return len(files) * 3 * fixed[0] * fixed[1]
    sizes = []
    for file in files[:: math.ceil(len(files) / _MEASURED) or 1]:
        with (
            contextlib.suppress(Exception),
            open_place(file) as opened,
            open_picture(opened) as image,
        ):  # what cannot be read is told elsewhere
            scale = min(1.0, (short_side or math.inf) / min(image.size))
            sizes.append(3 * image.width * image.height * scale**2)
    return math.ceil(len(files) * sum(sizes) / max(len(sizes), 1))


def _free_disk() -> int:
    """Bytes that the cache may have: those that are free, and those that it has already."""
    folder = cache_folder()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free + sum(size for _, size, _ in _kept())
    except OSError:
        return 0


def _kept() -> list[tuple[float, int, Path]]:
    """Return the time of last use, the size and the path of each cached file."""
    listed = []
    for folder in cache_folder().glob("pictures-*/??"):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    seen = entry.stat()
                    listed.append((seen.st_mtime, seen.st_size, Path(entry.path)))
    return listed


def _make_room(size: int) -> None:
    """Delete what was not used for longest, so that with `size` bytes more the cache stays in its bounds."""
    kept = sorted(_kept())
    held, bound = sum(bytes_used for _, bytes_used, _ in kept), min(_free_disk() // 2, _LARGEST)
    for _, bytes_used, path in kept:
        if held + size <= bound:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            held -= bytes_used
