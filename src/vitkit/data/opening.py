"""Opening image files: which formats are taken, and what reads them.

Pillow reads all but HEIF, the format of many phones. What reads that is loaded when the first such file is met.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from pathlib import Path
from typing import BinaryIO

import PIL
from PIL import (  # readers register themselves; all of Pillow's, 42 modules, take three times as long to import
    AvifImagePlugin,  # noqa: F401
    BmpImagePlugin,  # noqa: F401
    GifImagePlugin,  # noqa: F401
    Image,
    ImageFile,
    JpegImagePlugin,  # noqa: F401
    PngImagePlugin,  # noqa: F401
    PpmImagePlugin,  # noqa: F401
    TiffImagePlugin,  # noqa: F401
    UnidentifiedImageError,
    WebPImagePlugin,  # noqa: F401
    features,
)

# Recognised by content; a file's name decides nothing. MPO is the JPEG of some phones.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "HEIF")
_BRANDS = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"))
_REGISTERING = threading.Lock()


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


QUIET = _Quiet()


def open_picture(source: str | Path | BinaryIO) -> ImageFile.ImageFile:
    """A picture whose pixels are not read yet.

    Args:
        source: a file, or what is in it.

    Raises:
        UnidentifiedImageError: it is none of `FORMATS`.
        OSError: it cannot be read.
    """
    try:
        return Image.open(source, formats=_available())
    except UnidentifiedImageError:
        if not _is_heif(source):
            raise
    _read_heif()
    try:
        return Image.open(source, formats=_available())
    except UnidentifiedImageError as error:
        raise OSError("HEIF that is not whole, or of an unknown kind") from error


def decoders() -> str:
    """What decodes a file decides what is found: with another Pillow, or one more format, all is looked at anew."""
    from importlib.metadata import version

    Image.init()
    able = [*sorted({*Image.OPEN, "HEIF"}), *sorted(features.get_supported()), version("pillow-heif")]
    return f"pillow-{PIL.__version__}-{hashlib.sha256(','.join(able).encode()).hexdigest()[:8]}"


def _available() -> list[str]:
    return [name for name in FORMATS if name in Image.OPEN]


def _is_heif(source: str | Path | BinaryIO) -> bool:
    if isinstance(source, (str, Path)):
        with Path(source).open("rb") as file:
            head = file.read(12)
    else:
        source.seek(0)
        head = source.read(12)
        source.seek(0)
    return head[4:8] == b"ftyp" and head[8:12] in _BRANDS


def _read_heif() -> None:
    """Let Pillow read HEIF. Pictures are decoded in several threads already, and their thumbnails are of no use."""
    with _REGISTERING:
        if "HEIF" in Image.OPEN:
            return
        import pillow_heif

        pillow_heif.register_heif_opener(decode_threads=1, thumbnails=False, depth_images=False, aux_images=False)
