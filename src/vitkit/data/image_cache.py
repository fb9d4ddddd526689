"""Caches of decoded pictures between epochs, at the size that training needs.

The pictures are cached in memory that all processes of a run share, or as files in vitkit's cache folder. A photograph
that has changed on disk is decoded again. A cache returns exactly the pixels that were stored, so results do not depend
on it.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from PIL import Image

from vitkit.data.decode import available_memory, decoders, sizes_of
from vitkit.data.file_facts import stamp_of
from vitkit.data.storage import Place, UnreadableImageError, read_place, version_of
from vitkit.system.environment import cache_folder

Cache = Literal["auto", "ram", "disk", "none"]
Make = Callable[[], Image.Image]
_FORMAT = 2
_LARGEST = 64 * 2**30  # bytes on disk, even if more are free
_HEAD = struct.Struct("<III")  # checksum, width, height


class PictureCache(Protocol):
    """A cache of decoded and reduced pictures."""

    def picture(self, index: int, file: Place, make: Make) -> Image.Image:
        """Return picture number `index` in RGB from the cache, or call `make` and store the result if it fits."""
        ...


class _Budget:
    """A budget of bytes from which all forked processes reserve. Reserved bytes are never released."""

    def __init__(self, size: int) -> None:
        self.size, self.lock = size, multiprocessing.Lock()
        self._used = np.frombuffer(mmap.mmap(-1, 8), np.int64)

    def take(self, size: int) -> int | None:
        """Reserve bytes and return their offset; None if too few are left. The caller must hold the lock."""
        start = int(self._used[0])
        if start + size > self.size:
            return None
        self._used[0] = start + size
        return start


class MemoryCache:
    """A cache in main memory, shared with all processes that are forked after its creation.

    Args:
        images: the number of pictures.
        size: the largest number of bytes to use. The system allocates the memory only as pictures are stored.
    """

    def __init__(self, images: int, size: int) -> None:
        self._budget = _Budget(size)
        self._pixels = mmap.mmap(-1, max(size, 1))
        self._entries = np.frombuffer(mmap.mmap(-1, max(images, 1) * 7 * 8), np.int64).reshape(-1, 7)

    def picture(self, index: int, file: Place, make: Make) -> Image.Image:
        version = version_of(file)
        with self._budget.lock:
            stored, start, width, height, *known = self._entries[index].tolist()
        if stored and version is not None and tuple(known) == version:
            return Image.frombytes("RGB", (width, height), memoryview(self._pixels)[start : start + 3 * width * height])
        image = make()
        if version is None or version != version_of(file):  # it was replaced while it was read
            return image
        pixels = image.tobytes()
        with self._budget.lock:
            stored, start, width, height, *_ = self._entries[index].tolist()
            if not stored or 3 * width * height < len(pixels):  # a changed picture replaces the old one if it fits
                start = self._budget.take(len(pixels))
            if start is not None:
                self._pixels[start : start + len(pixels)] = pixels
                self._entries[index] = (1, start, *image.size, *version)
        return image


class DiskCache:
    """A cache of files, which later runs can use, too.

    Args:
        rule: a description of how a picture is reduced before it is stored.
        size: the largest number of bytes to write.
    """

    def __init__(self, rule: str, size: int) -> None:
        self._rule, self._budget = rule.encode(), _Budget(size)
        self._folder = cache_folder() / f"pictures-{_FORMAT}-{decoders()}"

    def picture(self, index: int, file: Place, make: Make) -> Image.Image:  # noqa: ARG002
        path = self._path_of(file)
        if path is None:
            return make()
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            os.utime(path)  # least recently used files are deleted first
            if len(data) >= _HEAD.size:
                checksum, width, height = _HEAD.unpack_from(data)
                stored = memoryview(data)[_HEAD.size :]
                if len(stored) == 3 * width * height and zlib.crc32(stored) == checksum:
                    return Image.frombytes("RGB", (width, height), stored)
        image = make()
        if path != self._path_of(file):  # it was replaced while it was read
            return image
        pixels = image.tobytes()
        with self._budget.lock:
            if self._budget.take(_HEAD.size + len(pixels)) is None:
                return image
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # No fsync, which takes longer than decoding: the checksum detects files that a crash left incomplete.
            temporary.write_bytes(_HEAD.pack(zlib.crc32(pixels), *image.size) + pixels)
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        return image

    def _path_of(self, file: Place) -> Path | None:
        """Return the path of a file's cached picture, a hash of the rule and the file; None if it is unreadable."""
        content = stamp_of(file)
        if content is None:  # the file changed so recently that its times are not reliable
            try:
                content = hashlib.sha256(read_place(file)).digest()
            except (OSError, UnreadableImageError):
                return None
        name = hashlib.sha256(self._rule + b"\0" + content).hexdigest()
        return self._folder / name[:2] / name


def choose_cache(cache: str, need: int, *, workers: int, processes: int = 1) -> str:
    """Choose the kind of cache for pictures: ram, disk or none.

    `auto` chooses according to the free space and the estimated bytes of all pictures (`need`). `ram` becomes `disk` if
    the worker processes cannot share memory. Each of the training processes on this machine has a separate cache.
    """
    if cache == "none":
        return cache
    can_share = workers == 0 or sys.platform == "linux"  # other systems spawn workers, which share no memory
    if can_share and (cache == "ram" or (cache == "auto" and need <= available_memory() // (4 * processes))):
        return "ram"
    return "disk" if cache != "auto" or need <= _free_disk() // 4 else "none"


def open_cache(cache: str, images: int, need: int, rule: str) -> PictureCache | None:
    """Open the kind of cache that `choose_cache` returned; None for `none`, or if the system refuses the memory.

    The cache has space for a tenth more than the estimated bytes of all pictures (`need`), but takes at most half of
    the free memory or disk. `rule` describes how a picture is reduced before it is stored.
    """
    size = need + need // 10 + 2**20
    if cache == "ram":
        with contextlib.suppress(OSError):  # a system that does not overcommit memory may refuse
            return MemoryCache(images, min(size, available_memory() // 2))
    if cache == "disk":
        size = min(size, _free_disk() // 2, _LARGEST)
        _make_room(size)
        return DiskCache(rule, size)
    return None


def bytes_of(
    files: Sequence[Place],
    short_side: int | None,
    fixed: tuple[int, int] | None = None,
    known: Mapping[str, tuple[int, int]] | None = None,
) -> int:
    """Estimate the memory that the decoded pictures of these files need, from a sample of the files.

    Args:
        files: the files of photographs.
        short_side: the short side in pixels to which larger pictures are reduced; None if pictures are not reduced.
        fixed: the (height, width) of every reduced picture; None if the sizes differ.
        known: the (width, height) of photographs by file, if they are known.
    """
    if fixed is not None:
        return len(files) * 3 * fixed[0] * fixed[1]
    sample = files[:: math.ceil(len(files) / 64) or 1]  # about 64 files
    # Unreadable files, which have no size, are reported elsewhere.
    sizes = [known[str(file)] for file in sample if str(file) in known] if known else sizes_of(sample)
    scales = [min(1.0, (short_side or math.inf) / min(size)) for size in sizes]
    needs = [3 * width * height * scale**2 for (width, height), scale in zip(sizes, scales, strict=True)]
    return math.ceil(len(files) * sum(needs) / max(len(needs), 1))


def _free_disk() -> int:
    """Return the bytes of disk space that are free or already used by the cache; 0 if they cannot be determined."""
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
                    status = entry.stat()
                    listed.append((status.st_mtime, status.st_size, Path(entry.path)))
    return listed


def _make_room(size: int) -> None:
    """Delete the least recently used files of the cache until `size` more bytes fit within the cache's limit."""
    kept = sorted(_kept())
    used, most = sum(bytes_used for _, bytes_used, _ in kept), min(_free_disk() // 2, _LARGEST)
    for _, bytes_used, path in kept:
        if used + size <= most:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            used -= bytes_used
