"""The one image decoder: every command turns a file into pixels here, so none can disagree about them.

How much memory pictures may take at a time: threads that would take more wait until others are done.
"""

from __future__ import annotations

import io
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import ExifTags, Image, UnidentifiedImageError

from vitkit.data.image_cache import available_memory
from vitkit.data.opening import QUIET, open_picture
from vitkit.data.samples import STRIP, Samples, read_samples, stretch_bytes, strips, to_grey
from vitkit.data.storage import Place, stored_at
from vitkit.data.storage import UnreadableImageError as UnreadableImageError
from vitkit.errors import ShortageError, are_files_short, is_memory_short
from vitkit.text.cells import visible

MAX_PIXELS = 178_956_970  # Pillow's own limit for what may be a decompression bomb
_WHITE = (255, 255, 255, 255)
_RGB_BYTES = 4  # of a pixel, as Pillow keeps it
_READER_BYTES = {"AVIF": 5, "HEIF": 8}  # of a pixel, that a reader holds beside Pillow's
_BESIDE = 2**26  # bytes that a reader may take beside its pixels
_TIFF_MEMORY = "decoder error -9"  # how Pillow's reader of TIFF says that it can have no memory


_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)


LEAST = 2**30  # bytes that are shared out however little memory seems to be free
_UNCOUNTED = 2**16  # bytes of a picture that is not worth the counting


class NoRoomError(Exception):
    """A picture is larger than this process may decode."""


class Room:
    """So many bytes of decoded pictures at a time, in all threads of a process.

    A picture that is larger than the whole room has it alone. A thread that has a share is not made to wait for more,
    so that threads never wait in a circle.

    Args:
        size: bytes; None: a quarter of the memory that is free when it first matters, `LEAST` at least.
    """

    def __init__(self, size: int | None = None) -> None:
        self._size, self._most = size, math.inf
        self.clear()

    def limit(self, most: int) -> None:
        """Refuse what is larger, from now on, in the place of waiting until it has the room alone."""
        self._size = self._most = most

    def clear(self) -> None:
        """Forget what is held: a process that was forked has none of the threads that held it."""
        self._changed, self._held, self._own = threading.Condition(), 0, threading.local()

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """A function that takes bytes, waiting for them if need be; they are given back when the block ends.

        It raises NoRoomError for more than the limit, where there is one.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if size > self._most:
                raise NoRoomError
            if size < _UNCOUNTED:
                return
            with self._changed:
                if not self._mine:
                    self._changed.wait_for(lambda: self._held == 0 or self._fits(self._held + size))
                self._held, self._own.held = self._held + size, self._mine + size
                taken += size

        try:
            yield take
        finally:
            if taken:
                with self._changed:
                    self._held, self._own.held = self._held - taken, self._mine - taken
                    self._changed.notify_all()

    @property
    def _mine(self) -> int:
        held: int = getattr(self._own, "held", 0)
        return held

    def _fits(self, size: int) -> bool:
        if self._size is None:
            if size <= LEAST:
                return True

            self._size = max(LEAST, available_memory() // 4)
        return size <= self._size


ROOM = Room()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ROOM.clear)


_TELLING = threading.Lock()
_TOLD: set[Path] = set()  # folders


@dataclass(frozen=True)
class Picture:
    """A picture and what its file said about it.

    Attributes:
        image: upright, in RGB.
        format, mode: Pillow's names for what was in the file.
        width, height: pixels of the upright picture in the file, however small it was decoded.
        is_animated: the file has more frames than the one that was taken.
        doubt: what the file does not say about its numbers, so that it may be meant darker or lighter; else None.
    """

    image: Image.Image
    format: str
    mode: str
    width: int
    height: int
    is_animated: bool
    doubt: str | None = None


def decode(path: str | Place, short_side: int | None = None) -> Image.Image:
    """The picture in a file, upright and in RGB.

    EXIF orientation is applied, transparency lands on white, numbers of more than 8 bits are scaled by what the file
    says of them (`data.samples`), and of several frames the first is taken.

    Args:
        path: the file, or the image of a storage.
        short_side: pixels that the caller will resize the short side to. A large JPEG is then decoded at the smallest
            scale that leaves at least twice as many, which costs a quarter of the time at 12 megapixels.

    Raises:
        UnreadableImageError: the file is missing, is no picture, is damaged, or has more pixels than MAX_PIXELS.
        ShortageError: the machine has too little memory for it now, or too many files open.
    """
    return read_picture(path, short_side).image


def read_picture(path: str | Place, short_side: int | None = None) -> Picture:
    """As `decode`, with what the file said about its picture."""
    with picture_of(path, short_side) as picture:
        return picture


@contextmanager
def picture_of(path: str | Place, short_side: int | None = None, content: bytes | None = None) -> Iterator[Picture]:
    """As `read_picture`, for a block that makes something smaller of it.

    Threads that read large pictures at a time wait for one another, until the block that has the memory is done.

    Args:
        path: the file.
        short_side: as for `decode`.
        content: what is in the file, where it has been read already.
    """
    with ROOM.share() as take:
        yield _read(path, short_side, content, take)


def _read(path: str | Place, short_side: int | None, content: bytes | None, take: Callable[[int], None]) -> Picture:
    size = 0
    try:
        if content is None and (kept := stored_at(path)) is not None:
            content = kept.storage.open(kept.key).read()
        source = str(path) if content is None else io.BytesIO(content)
        with QUIET, open_picture(source) as image:
            _check_pixels(image.size)
            stored, mode = image.size, image.mode
            is_animated = image.format != "MPO" and getattr(image, "is_animated", False)
            if short_side is not None and image.format in ("JPEG", "MPO") and min(image.size) >= 4 * short_side:
                _draft(image, 2 * short_side)
            samples = read_samples(image)
            beside = _RGB_BYTES + _READER_BYTES.get(str(image.format), 0)
            size = image.width * image.height * (_stored_bytes(image.mode) + beside)
            take(size)
            image.load()
            width, height = stored[::-1] if _orientation(image) in _SIDEWAYS else stored
            rgb, doubt = _to_rgb(upright(image), samples, is_png=image.format == "PNG")
            return Picture(rgb, str(image.format), mode, width, height, is_animated, doubt)
    except (UnreadableImageError, NoRoomError):
        raise
    except Exception as error:  # whatever a format's reader trips over, the file is unreadable, or the machine short
        refuse_shortage(path, error, size)
        raise UnreadableImageError(reason(path, error, content)) from error


def warn_of_doubt(path: str | Place, picture: Picture) -> None:
    """Log what is doubtful about a picture's brightness, for the first such picture of each folder."""
    if picture.doubt is None:
        return
    folder = Path(str(path)).parent
    with _TELLING:
        is_new = folder not in _TOLD
        _TOLD.add(folder)
    if is_new:
        text = f"note: {path} is read darker or lighter than meant, perhaps, and others beside it: {picture.doubt}"
        logging.getLogger(__name__).warning("%s", visible(text))


def refuse_shortage(path: str | Place, error: Exception, size: int = 0) -> None:
    """Raise where the machine is to blame for what a file's reading ran into, and not the file.

    A damaged file may ask for more memory than any machine has. It is the machine that is short where there is not
    even twice of what an honest file of that size would take.

    Args:
        path: the file.
        error: what its reading ran into.
        size: bytes that its pixels take; 0 where it did not come to that.

    Raises:
        ShortageError: it is.
    """
    if are_files_short(error):
        raise ShortageError(f"{path}: too many files are open: close some, or raise the limit (ulimit -n)") from error
    if _tells_of_memory(error) and not _is_free(2 * size + _BESIDE):
        raise ShortageError(
            f"{path}: there is too little memory to decode it now: free some, or leave it out"
        ) from error


def _tells_of_memory(error: Exception) -> bool:
    return is_memory_short(error) or str(error) == _TIFF_MEMORY


def _is_free(size: int) -> bool:
    """Whether so many bytes can be had; they are given back unread."""
    try:
        bytearray(size)
    except MemoryError:
        return False
    return True


def _check_pixels(size: tuple[int, int]) -> None:
    if size[0] * size[1] > MAX_PIXELS:
        raise UnreadableImageError(f"{size[0]}x{size[1]} pixels, more than the limit of {MAX_PIXELS:,}")


def _draft(image: Image.Image, short_side: int) -> None:
    scale = short_side / min(image.size)
    image.draft(None, (math.ceil(image.width * scale), math.ceil(image.height * scale)))


def upright(image: Image.Image) -> Image.Image:
    """The picture turned as its EXIF data says."""
    orientation = _orientation(image)
    return image.transpose(_TURNS[orientation]) if orientation in _TURNS else image


def _orientation(image: Image.Image) -> int | None:
    """What EXIF says. (Pillow's own turning also writes EXIF anew, and fails where a camera wrote it oddly.)"""
    try:
        orientation: int | None = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # an unreadable block of metadata does not spoil the picture
        return None
    return orientation


def _stored_bytes(mode: str) -> int:
    """Of a pixel, as Pillow keeps it."""
    return {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2}.get(mode, 4)


def _to_rgb(image: Image.Image, samples: Samples, *, is_png: bool) -> tuple[Image.Image, str | None]:
    doubt = None
    if not samples.are_bytes and samples.is_shortened:
        image, doubt = stretch_bytes(image, samples)
    elif not samples.are_bytes:
        image, doubt = to_grey(image, samples, is_png=is_png)
    return flattened(image), doubt


def flattened(image: Image.Image) -> Image.Image:
    """A picture of 8 bits in RGB; where it is transparent, white is seen."""
    if image.has_transparency_data:
        return _in_strips(image, _on_white)
    is_done = image.mode == "RGB" and image.format == "JPEG"  # others may keep their file open, or in memory
    return image if is_done else image.convert("RGB")


def _in_strips(image: Image.Image, change: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """The picture changed a few rows at a time: what a change needs beside the picture does not grow with it."""
    if image.width * image.height <= STRIP:
        return change(image)
    changed = Image.new("RGB", image.size)
    for top, strip in strips(image):
        changed.paste(change(strip), (0, top))
    return changed


def _on_white(image: Image.Image) -> Image.Image:
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, _WHITE), rgba).convert("RGB")


def reason(path: str | Place, error: Exception, content: bytes | None = None) -> str:
    """Why a file cannot be read, in a few words, from what its reading, or that of its content, ran into."""
    if isinstance(error, UnreadableImageError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "a folder, not a file"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if _tells_of_memory(error):
        return "damaged (it asks for more memory than its pixels need)"
    if isinstance(error, Image.DecompressionBombError):
        return f"more pixels than the limit of {MAX_PIXELS:,}"
    if isinstance(error, UnidentifiedImageError):
        size = Path(str(path)).stat().st_size if content is None else len(content)
        return "not an image" if size else "empty file"
    if "truncated" in str(error).lower():
        return "truncated"
    return f"damaged ({str(error) or type(error).__name__})"
