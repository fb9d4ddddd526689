"""Caches of decoded pictures between epochs, at the size that training needs.

The pictures are cached in memory that all processes of a run share, or as files in vitkit's cache folder, which later
runs use, unless a photograph has changed. A cache returns exactly the pixels that were stored, so results do not depend
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

from vitkit.data.decode import available_memory, decoder_versions, sizes_of
from vitkit.data.file_facts import stamp_of
from vitkit.data.storage import Place, UnreadableImageError, read_place
from vitkit.system.environment import cache_folder

Cache = Literal["auto", "ram", "disk", "none"]
MakePicture = Callable[[], Image.Image]
_FORMAT = 2
_MAX_DISK = 64 * 2**30  # bytes on disk, even if more are free
_HEADER = struct.Struct("<III")  # checksum, width, height


class PictureCache(Protocol):
    """A cache of decoded and reduced pictures."""

    def picture(self, index: int, file: Place, make: MakePicture) -> Image.Image:
        """Return picture number `index` in RGB from the cache, or call `make` and store the result if it fits."""
        ...


class _Budget:
    """A number of bytes that all forked processes share. They reserve parts of it, which are never released."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = multiprocessing.Lock()
        self._used = np.frombuffer(mmap.mmap(-1, 8), np.int64)  # shared with forked processes

    def reserve(self, size: int) -> int | None:
        """Reserve bytes and return their offset; None if too few are left. The caller must hold the lock."""
        start = int(self._used[0])
        if start + size > self.size:
            return None
        self._used[0] = start + size
        return start


class MemoryCache:
    """A cache in main memory, shared with all processes that are forked after its creation.

    It holds at most `size` bytes, which the system allocates only as pictures are stored. `images` is their number.
    """

    def __init__(self, images: int, size: int) -> None:
        self._budget = _Budget(size)
        self._pixels = mmap.mmap(-1, max(size, 1))
        # For each picture: whether it is stored, its offset, width and height.
        self._entries = np.frombuffer(mmap.mmap(-1, max(images, 1) * 4 * 8), np.int64).reshape(-1, 4)

    def picture(self, index: int, file: Place, make: MakePicture) -> Image.Image:  # noqa: ARG002
        with self._budget.lock:
            is_stored, start, width, height = self._entries[index].tolist()
        if is_stored:
            return Image.frombytes("RGB", (width, height), memoryview(self._pixels)[start : start + 3 * width * height])
        image = make()
        pixels = image.tobytes()
        with self._budget.lock:
            reserved = self._budget.reserve(len(pixels))
            if reserved is not None:
                self._pixels[reserved : reserved + len(pixels)] = pixels
                self._entries[index] = (1, reserved, *image.size)
        return image


class DiskCache:
    """A cache of at most `size` bytes of files, which later runs can use, too.

    `reduction` describes how a picture is reduced before it is stored. It is a part of the cache's key.
    """

    def __init__(self, reduction: str, size: int) -> None:
        self._reduction = reduction.encode()
        self._budget = _Budget(size)
        self._folder = cache_folder() / f"pictures-{_FORMAT}-{decoder_versions()}"

    def picture(self, index: int, file: Place, make: MakePicture) -> Image.Image:  # noqa: ARG002
        path = self._path_of(file)
        if path is None:
            return make()
        image = _read_cached(path)
        if image is not None:
            return image
        image = make()
        if path == self._path_of(file):  # otherwise, the file was replaced while it was read
            with self._budget.lock:
                offset = self._budget.reserve(_HEADER.size + 3 * image.width * image.height)
            if offset is not None:
                pixels = image.tobytes()
                temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    # No fsync, which takes longer than decoding: the checksum detects files that a crash left
                    # incomplete.
                    temporary.write_bytes(_HEADER.pack(zlib.crc32(pixels), *image.size) + pixels)
                    temporary.replace(path)
                except OSError:
                    with contextlib.suppress(OSError):
                        temporary.unlink(missing_ok=True)
        return image

    def _path_of(self, file: Place) -> Path | None:
        """Return the path of a file's cached picture, a hash of reduction and content; None if it is unreadable."""
        content = stamp_of(file)
        if content is None:  # the file changed so recently that its times are not reliable
            try:
                content = hashlib.sha256(read_place(file)).digest()
            except (OSError, UnreadableImageError):
                return None
        name = hashlib.sha256(self._reduction + b"\0" + content).hexdigest()
        return self._folder / name[:2] / name


def _read_cached(path: Path) -> Image.Image | None:
    """Read a picture that a cache has written; return None if there is none, or if it is incomplete."""
    try:
        data = path.read_bytes()
        os.utime(path)  # the least recently used files are deleted first
    except OSError:
        return None
    if len(data) < _HEADER.size:
        return None
    checksum, width, height = _HEADER.unpack_from(data)
    pixels = memoryview(data)[_HEADER.size :]
    if len(pixels) != 3 * width * height or zlib.crc32(pixels) != checksum:
        return None
    return Image.frombytes("RGB", (width, height), pixels)


def choose_cache(cache: str, expected_bytes: int, *, workers: int, processes: int = 1) -> str:
    """Choose the kind of cache for pictures: ram, disk or none.

    `auto` chooses according to the free space and the estimated bytes of all pictures. `ram` becomes `disk` if the
    worker processes cannot share memory. Each of the training processes on this machine (`processes`) has a cache.
    """
    can_share = workers == 0 or sys.platform == "linux"  # other systems spawn workers, which share no memory
    if cache == "ram":
        return "ram" if can_share else "disk"
    if cache in ("disk", "none"):
        return cache
    if can_share and expected_bytes <= available_memory() // (4 * processes):
        return "ram"
    return "disk" if expected_bytes <= _free_disk() // 4 else "none"


def open_cache(cache: str, images: int, expected_bytes: int, reduction: str) -> PictureCache | None:
    """Open the kind of cache that `choose_cache` returned; None for `none`, or if the system refuses the memory.

    The cache has space for a tenth more than the estimated bytes of all pictures, but takes at most half of the free
    memory or disk. `reduction` describes how a picture is reduced before it is stored (`DiskCache`).
    """
    size = expected_bytes + expected_bytes // 10 + 2**20
    if cache == "ram":
        with contextlib.suppress(OSError):  # a system that does not overcommit memory may refuse
            return MemoryCache(images, min(size, available_memory() // 2))
    if cache == "disk":
        size = min(size, _free_disk() // 2, _MAX_DISK)
        _make_room(size)
        return DiskCache(reduction, size)
    return None


def estimate_bytes(
    files: Sequence[Place],
    short_side: int | None,
    fixed_size: tuple[int, int] | None = None,
    known_sizes: Mapping[str, tuple[int, int]] | None = None,
) -> int:
    """Estimate the memory that the decoded pictures of these files need, from a sample of the files.

    Args:
        files: the files of photographs.
        short_side: the short side in pixels to which larger pictures are reduced; None if pictures are not reduced.
        fixed_size: the (height, width) of every reduced picture; None if the sizes differ.
        known_sizes: the (width, height) of photographs by file, if they are known.
    """
    if fixed_size is not None:
        height, width = fixed_size
        return len(files) * 3 * height * width
    sample = files[:: math.ceil(len(files) / 64) or 1]  # about 64 files
    if known_sizes:
        sizes_or_none = [known_sizes.get(str(file)) for file in sample]  # unreadable files are reported elsewhere
        sizes = [size for size in sizes_or_none if size is not None]
    else:
        sizes = sizes_of(sample)
    total = 0.0
    for width, height in sizes:
        scale = min(1.0, (short_side or math.inf) / min(width, height))
        total += 3 * width * height * scale**2
    return math.ceil(len(files) * total / max(len(sizes), 1))


def _free_disk() -> int:
    """Return the bytes of disk space that are free or already used by the cache; 0 if they cannot be determined."""
    folder = cache_folder()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free + sum(size for _, size, _ in _cached_files())
    except OSError:
        return 0


def _cached_files() -> list[tuple[float, int, Path]]:
    """Return the time of last use, the size and the path of each cached file."""
    files = []
    for folder in cache_folder().glob("pictures-*/??"):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat()
                    files.append((status.st_mtime, status.st_size, Path(entry.path)))
    return files


def _make_room(size: int) -> None:
    """Delete the least recently used files of the cache until `size` more bytes fit within the cache's limit."""
    files = sorted(_cached_files())
    used = sum(bytes_used for _, bytes_used, _ in files)
    limit = min(_free_disk() // 2, _MAX_DISK)
    for _, bytes_used, path in files:
        if used + size <= limit:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            used -= bytes_used
