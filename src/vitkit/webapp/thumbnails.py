"""Thumbnails of photographs. Each is made once and kept in vitkit's cache; a photograph that changes gets a new one."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image

from vitkit.data.decode import UnreadableImageError, picture_of
from vitkit.data.storage import Place
from vitkit.inference.pipeline import cores
from vitkit.system.environment import cache_folder
from vitkit.system.files import write_bytes
from vitkit.webapp.photographs import stamp_of

SIDE = 256  # pixels of the longer one
_LARGE = 1600  # of a picture that is looked at by itself
_FOLDER = "thumbnails-1"


class Thumbnails:
    """Make thumbnails in one thread per core; `data.decode` limits the memory they use together."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(cores(), thread_name_prefix="thumbnail")
        self._turn = asyncio.Semaphore(2 * cores())

    async def get(self, file: Place, is_left: Callable[[], Awaitable[bool]]) -> bytes | None:
        """JPEG of a file; None where nobody waits for it any more, as of one that was scrolled past.

        Raises:
            UnreadableImageError: there is no picture in it.
        """
        async with self._turn:
            if await is_left():
                return None
            return await asyncio.get_running_loop().run_in_executor(self._pool, thumbnail, file)

    async def get_large(self, file: Place) -> bytes:
        """Return the picture at screen size; it is not cached.

        Raises:
            UnreadableImageError: there is no picture in it.
        """
        async with self._turn:
            return await asyncio.get_running_loop().run_in_executor(self._pool, _shrunk, file, _LARGE)


def thumbnail(file: Place) -> bytes:
    """Return the thumbnail from the cache, or make it and cache it if the cache is writable.

    Raises:
        UnreadableImageError: there is no picture in the file.
    """
    kept = _place(file)
    if kept is not None:
        with contextlib.suppress(OSError):
            return kept.read_bytes()
    made = _shrunk(file, SIDE)
    if kept is not None:
        with contextlib.suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(kept, made)
    return made


def _place(file: Place) -> Path | None:
    """Another one whenever the file is another, or another is put in its place; None: there is no such file."""
    stamp = stamp_of(file)
    if not stamp:
        return None
    known = os.fsencode(f"{file}\0{stamp}")
    name = hashlib.sha256(known).hexdigest()[:40]
    return cache_folder() / _FOLDER / name[:2] / f"{name}.jpg"


def _shrunk(file: Place, side: int) -> bytes:
    try:
        with picture_of(file, side // 2) as picture:
            image = picture.image
            image.thumbnail((side, side), Image.Resampling.BICUBIC, reducing_gap=2.0)
            data = io.BytesIO()
            image.save(data, "JPEG", quality=82)
            return data.getvalue()
    except OSError as error:
        raise UnreadableImageError(str(error)) from error
