"""The one image decoder: every command turns a file into pixels here, so none can disagree about them."""

from __future__ import annotations

import math
import os
import stat
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from vitkit.errors import VitkitError

# Recognised by content; a file's name decides nothing. MPO is the JPEG of some phones.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "HEIF")
MAX_PIXELS = 178_956_970  # Pillow's own limit for what may be a decompression bomb
_WHITE = (255, 255, 255, 255)
_STRIP = 2**22  # pixels that are changed at a time


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


class _Quiet:
    """No warnings while any thread decodes: what matters is raised. (`catch_warnings` breaks when threads overlap.)"""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._outer = warnings.catch_warnings(action="ignore")

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._outer = warnings.catch_warnings(action="ignore")
                self._outer.__enter__()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._outer.__exit__(None, None, None)


_QUIET = _Quiet()


class UnreadableImageError(VitkitError):
    """A file that does not hold a picture. The message is the reason, without the file's name."""


@dataclass(frozen=True)
class Picture:
    """A picture and what its file said about it.

    Attributes:
        image: upright, in RGB.
        format, mode: Pillow's names for what was in the file.
        width, height: pixels of the upright picture in the file, however small it was decoded.
        is_animated: the file has more frames than the one that was taken.
    """

    image: Image.Image
    format: str
    mode: str
    width: int
    height: int
    is_animated: bool


def decode(path: str | Path, short_side: int | None = None) -> Image.Image:
    """The picture in a file, upright and in RGB.

    EXIF orientation is applied, transparency lands on white, 16-bit greys are scaled (not clipped), and of several
    frames the first is taken.

    Args:
        path: the file.
        short_side: pixels that the caller will resize the short side to. A large JPEG is then decoded at the smallest
            scale that leaves at least twice as many, which costs a quarter of the time at 12 megapixels.

    Raises:
        UnreadableImageError: the file is missing, is no picture, is damaged, or has more pixels than MAX_PIXELS.
    """
    return read_picture(path, short_side).image


def read_picture(path: str | Path, short_side: int | None = None) -> Picture:
    """As `decode`, with what the file said about its picture."""
    try:
        refuse_special(path)
        with _QUIET, Image.open(path, formats=_available()) as image:
            _check_pixels(image.size)
            stored, mode = image.size, image.mode
            is_animated = image.format != "MPO" and getattr(image, "is_animated", False)
            if short_side is not None and image.format in ("JPEG", "MPO"):
                _draft(image, 2 * short_side)
            image.load()
            orientation = _orientation(image)
            upright = image.transpose(_TURNS[orientation]) if orientation in _TURNS else image
            width, height = stored[::-1] if orientation in _SIDEWAYS else stored
            return Picture(_to_rgb(upright), str(image.format), mode, width, height, is_animated)
    except UnreadableImageError:
        raise
    except Exception as error:  # whatever a format's reader trips over, the file is unreadable
        raise UnreadableImageError(reason(path, error)) from error


def refuse_special(path: str | Path) -> None:
    """Raise for a pipe or a device, whose reading might never end; a folder or a missing file is told by opening it.

    Raises:
        UnreadableImageError: it is one.
        OSError: there is no such file, or it cannot be seen.
    """
    mode = os.stat(path).st_mode  # noqa: PTH116  # half the time of a Path's own
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UnreadableImageError("not a regular file")


def _available() -> list[str]:
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _check_pixels(size: tuple[int, int]) -> None:
    if size[0] * size[1] > MAX_PIXELS:
        raise UnreadableImageError(f"{size[0]}x{size[1]} pixels, more than the limit of {MAX_PIXELS:,}")


def _draft(image: Image.Image, short_side: int) -> None:
    scale = short_side / min(image.size)
    image.draft(None, (math.ceil(image.width * scale), math.ceil(image.height * scale)))


def _orientation(image: Image.Image) -> int | None:
    """What EXIF says. (Pillow's own turning also writes EXIF anew, and fails where a camera wrote it oddly.)"""
    try:
        orientation: int | None = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # an unreadable block of metadata does not spoil the picture
        return None
    return orientation


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        return _scale_to_bytes(image).convert("RGB")
    if image.has_transparency_data:
        return _in_strips(image, "RGB", _on_white)
    return image.convert("RGB")


def _in_strips(image: Image.Image, mode: str, change: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """The picture changed a few rows at a time: what a change needs beside the picture does not grow with it."""
    if image.width * image.height <= _STRIP:
        return change(image)
    changed, rows = Image.new(mode, image.size), max(1, _STRIP // image.width)
    for top in range(0, image.height, rows):
        changed.paste(change(image.crop((0, top, image.width, min(top + rows, image.height)))), (0, top))
    return changed


def _on_white(image: Image.Image) -> Image.Image:
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, _WHITE), rgba).convert("RGB")


def _scale_to_bytes(image: Image.Image) -> Image.Image:
    """Greys of more than 8 bits by the range of their type: 16 bits, floats in [0, 1], else from lowest to highest."""
    stored = np.asarray(image)
    low, high = float(np.nanmin(stored)), float(np.nanmax(stored))
    if image.mode != "F" and low >= 0 and high <= 65535:
        low, high = 0.0, 65535.0
    elif image.mode == "F" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0

    def scale(strip: Image.Image) -> Image.Image:
        grey = np.asarray(strip).astype(np.float64)
        scaled = (np.nan_to_num(grey, nan=low) - low) / max(high - low, 1e-12) * 255
        return Image.fromarray(np.round(scaled).astype(np.uint8))

    return _in_strips(image, "L", scale)


def reason(path: str | Path, error: Exception) -> str:
    """Why a file cannot be read, in a few words, from what its reading ran into."""
    if isinstance(error, UnreadableImageError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "a folder, not a file"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if isinstance(error, Image.DecompressionBombError):
        return f"more pixels than the limit of {MAX_PIXELS:,}"
    if isinstance(error, UnidentifiedImageError):
        return "empty file" if Path(path).stat().st_size == 0 else "not an image"
    if "truncated" in str(error).lower():
        return "truncated"
    return f"damaged ({str(error) or type(error).__name__})"
