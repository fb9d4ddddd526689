"""The only image decoder: all commands decode files here, so that they use the same pixels.

Start with `decode` and `read_picture`. `picture.py` converts the content of a file to a picture. This module adds
images in storages, and the memory budget that the decoding threads share.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import logging
import math
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

import PIL
from PIL import Image, features

from vitkit.data.picture import Picture, open_picture, picture_in, why_unreadable
from vitkit.data.storage import Place, Stored, stored_at
from vitkit.data.storage import UnreadableImageError as UnreadableImageError
from vitkit.errors import ShortageError, is_memory_short
from vitkit.text.cells import visible

_VERSION = 2  # increase it when `picture.py` is changed so that it returns other pixels for a file
_READER_OVERHEAD = 2**26  # bytes that a reader may need in addition to its pixels

_WARNING = threading.Lock()
_WARNED_FOLDERS: set[Path] = set()


def decode(path: str | Place, short_side: int | None = None) -> Image.Image:
    """Decode a file to an upright RGB picture.

    - The EXIF orientation is applied.
    - Transparency is composited on white.
    - Samples of more than 8 bits are scaled by the range that the file states (see `Samples`).
    - The first of several frames is used.

    Args:
        path: the file, or an image in a storage.
        short_side: the short side in pixels to which the caller will resize the picture. A large JPEG is then decoded
            at the smallest scale whose short side is at least twice as long. This takes a quarter of the time at 12
            megapixels. None decodes at full scale.

    Raises:
        UnreadableImageError: the file is missing, is not an image, is damaged, or has more pixels than MAX_PIXELS.
        ShortageError: the machine has too little free memory, or too many open files.
    """
    return read_picture(path, short_side).image


def read_picture(path: str | Place, short_side: int | None = None) -> Picture:
    """Decode a file as `decode` does, and return the picture together with properties of its file."""
    with picture_of(path, short_side) as picture:
        return picture


@contextmanager
def picture_of(path: str | Place, short_side: int | None = None, content: bytes | None = None) -> Iterator[Picture]:
    """Decode a file as `read_picture` does, for use in a `with` block.

    Other threads wait for the end of the block before they decode large pictures (`MemoryBudget`), so only reduce the
    picture to something smaller inside it.

    `content` is the bytes of the file, if they have been read already; the other arguments are those of `decode`.
    """
    size = 0
    with ExitStack() as locks:

        def reserve(needed: int) -> None:
            nonlocal size
            size = needed
            if DECODE_BUDGET.is_large(needed):
                locks.enter_context(DECODE_BUDGET.one_large)

        try:
            if content is None:
                content = _stored_bytes(path)  # None for a regular file, which is opened by its path
            picture = picture_in(str(path) if content is None else content, short_side, reserve)
        except (UnreadableImageError, OverBudgetError):
            raise
        except Exception as error:  # a reader may raise anything if the file is damaged or memory is short
            raise_if_short(path, error, size)
            raise UnreadableImageError("data.image-unreadable", reason(path, error, content)) from error
        yield picture


def _stored_bytes(path: str | Place) -> bytes | None:
    """Return the bytes of an image in a storage; None for a regular file, of which Pillow reads only some parts."""
    if not isinstance(path, Stored) and os.path.isfile(path):  # noqa: PTH113  # a Path takes three times as long
        return None
    stored = stored_at(path)
    return None if stored is None else stored.storage.open(stored.key).read()


def sizes_of(files: Iterable[str | Place]) -> list[tuple[int, int]]:
    """Return the (width, height) in the header of each file, without decoding it; unreadable files are left out."""
    sizes = []
    for path in files:
        with contextlib.suppress(Exception):  # a reader may raise anything
            content = _stored_bytes(path)
            with open_picture(str(path) if content is None else io.BytesIO(content)) as image:
                sizes.append(image.size)
    return sizes


def warn_if_doubtful(path: str | Place, picture: Picture) -> None:
    """Log a warning if the brightness of a picture is uncertain, but only once per folder."""
    if picture.doubt is None:
        return
    folder = Path(str(path)).parent
    with _WARNING:
        is_new = folder not in _WARNED_FOLDERS
        _WARNED_FOLDERS.add(folder)
    if is_new:
        text = f"note: {path}, and perhaps other files in its folder, may be read in the wrong brightness"
        logging.getLogger(__name__).warning("%s", visible(f"{text}: {picture.doubt}"))


def raise_if_short(path: str | Place, error: Exception, size: int = 0) -> None:
    """Raise ShortageError if reading a file failed because the machine lacks memory or has too many open files.

    A decoder may request far too much memory for a damaged file. Therefore the machine counts as short of memory only
    if it cannot allocate twice the bytes (`size`) that the pixels of an intact picture need. `size` is 0 if unknown.
    """
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        raise ShortageError(
            "data.files-too-many-open", f"{path}: too many files are open: close some, or raise the limit (ulimit -n)"
        ) from error
    if _is_out_of_memory(error) and not _is_free(2 * size + _READER_OVERHEAD):
        raise ShortageError(
            "data.memory-short", f"{path}: there is too little memory to decode it now: free some, or leave it out"
        ) from error


def _is_out_of_memory(error: Exception) -> bool:
    # Pillow's TIFF reader reports missing memory only by this text.
    return is_memory_short(error) or str(error) == "decoder error -9"


def _is_free(size: int) -> bool:
    try:
        bytearray(size)
    except MemoryError:
        return False
    return True


def reason(path: str | Place, error: Exception, content: bytes | None = None) -> str:
    """Return a short reason why a file cannot be read. `content` is its bytes, if they have been read already."""
    if isinstance(error, UnreadableImageError):
        return str(error)
    if _is_out_of_memory(error):
        return "damaged (it asks for more memory than its pixels need)"
    return why_unreadable(str(path) if content is None else content, error)


def decoder_versions() -> str:
    """Return a name that identifies the installed decoders and their versions.

    Cached results are stored under it, because other decoders may return other pixels.
    """
    from importlib.metadata import version

    Image.init()
    formats = sorted({*Image.OPEN, "HEIF"})
    libraries = sorted(features.get_supported())
    text = ",".join([str(_VERSION), *formats, *libraries, version("pillow-heif")])
    return f"pillow-{PIL.__version__}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# --- The memory budget ------------------------------------------------------------------------------------

LEAST_BUDGET = 2**30  # bytes; the minimum, even if less memory seems to be free


class OverBudgetError(Exception):
    """A picture needs more memory than the limit of this process."""


class MemoryBudget:
    """Makes the threads of a process decode large pictures one at a time.

    A picture is large if it needs more than a thread's share of a quarter of the free memory, and of `LEAST_BUDGET`.
    """

    def __init__(self) -> None:
        self.max_picture = math.inf  # bytes; a larger picture raises OverBudgetError
        self._threads = os.cpu_count() or 1
        self.clear()

    def clear(self) -> None:
        """Forget which thread decodes a large picture. A forked process does so, because it has no other threads."""
        self.one_large = threading.RLock()  # reentrant, so that a thread never waits for itself

    @cached_property
    def _quarter(self) -> int:
        return available_memory() // 4

    def is_large(self, size: int) -> bool:
        """Return whether a picture of `size` bytes must be decoded alone; raise OverBudgetError if it must not be."""
        if size > self.max_picture:
            raise OverBudgetError
        return size > LEAST_BUDGET // self._threads and size > self._quarter // self._threads


DECODE_BUDGET = MemoryBudget()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=DECODE_BUDGET.clear)


def available_memory() -> int:
    """Return the bytes of main memory that are currently available."""
    import psutil

    free = int(psutil.virtual_memory().available)
    # A container may have a lower limit. Elsewhere, the files do not exist, or contain "max" instead of a number.
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current"))
        free = min(free, max(int(limit) - int(used), 0))
    return free
