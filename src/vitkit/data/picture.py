"""A picture file: its content becomes an upright RGB picture, or the reason why it cannot.

Start with `picture_in`. The exported .zip contains a copy of this file, so it imports nothing but numpy, Pillow and
pillow_heif. Commands call `decode.py`, which adds storages and a limit on memory. The sections are, in this order:

- the pixels of a file
- opening a file, and the accepted formats
- the conversion of samples of more than 8 bits, whose black and white levels must be found
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
from PIL import (  # plugins register themselves; importing all 42 of Pillow's takes three times as long
    AvifImagePlugin,  # noqa: F401
    BmpImagePlugin,  # noqa: F401
    ExifTags,
    GifImagePlugin,  # noqa: F401
    Image,
    ImageFile,
    JpegImagePlugin,  # noqa: F401
    PngImagePlugin,
    PpmImagePlugin,  # noqa: F401
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,  # noqa: F401
)

MAX_PIXELS = 178_956_970  # Pillow's limit, above which a file may be a decompression bomb
STRIP = 2**20  # number of pixels that are converted at a time
_READER_BYTES = {"AVIF": 5, "HEIF": 8}  # bytes per pixel that a reader holds in addition to Pillow's image
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = 2**26  # some programs write texts above 1 MiB
logging.getLogger("PIL").addHandler(logging.NullHandler())  # hides Pillow's warnings, because callers report problems

_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True)
class Picture:
    """A decoded picture with the properties of its file."""

    image: Image.Image  # upright, in RGB
    format: str  # Pillow's names of the format and mode of the file
    mode: str
    width: int  # pixels of the upright picture in the file, even if it was decoded at a smaller scale
    height: int
    is_animated: bool  # whether the file has several frames, of which the first was decoded
    doubt: str | None = None  # why the brightness may be wrong: the file may not state which number is white
    quality: int = 0  # the sum of a JPEG's first quantisation table: the lower, the better; 0 for other formats
    camera: str = ""  # the maker and the model; empty if the file does not name them


class UnsupportedError(Exception):
    """The file is intact, but its kind is not supported. The message is the reason."""


def picture_in(
    source: str | bytes, short_side: int | None = None, reserve: Callable[[int], None] = lambda _: None
) -> Picture:
    """Return the picture in a file.

    Args:
        source: the path of the file, or its bytes.
        short_side: the short side to which the caller will resize the picture (see `decode`).
        reserve: is called with the number of bytes that the pixels need, before they are read.

    Raises:
        Exception: any kind, since readers raise any; `why_unreadable` explains it.
    """
    with QUIET, open_picture(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
        if image.width * image.height > MAX_PIXELS:
            raise UnsupportedError(f"{image.width}x{image.height} pixels, more than the limit of {MAX_PIXELS:,}")
        if image.format == "TIFF" and _is_raw(image.tag_v2, image.fp):  # type: ignore[attr-defined]
            raise UnsupportedError(_RAW)
        if image.format == "PNG" and _is_shortened(image) and "transparency" in image.info:
            raise UnsupportedError(
                "colours of 16 bits of which one is transparent, which is not supported: save it with an alpha channel"
            )

        # These are read first, because `draft` and `load` may change them.
        mode = image.mode
        width, height = image.size
        is_animated = image.format != "MPO" and getattr(image, "is_animated", False)
        if short_side is not None and image.format in ("JPEG", "MPO") and min(image.size) >= 4 * short_side:
            scale = 2 * short_side / min(image.size)  # a JPEG can be decoded at a smaller scale, which is faster
            image.draft(None, (math.ceil(image.width * scale), math.ceil(image.height * scale)))
        samples = _read_samples(image)

        stored_bytes = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2}.get(image.mode, 4)  # of a pixel
        working_bytes = 4 + _READER_BYTES.get(str(image.format), 0)
        reserve(image.width * image.height * (stored_bytes + working_bytes))
        image.load()
        if _orientation(image) in (5, 6, 7, 8):  # turned by 90 or 270 degrees
            width, height = height, width

        picture, level_doubt = upright(image), None
        are_bytes = samples.bits <= 8 and samples.kind == "unsigned"  # which Pillow converts to RGB correctly
        if samples.is_shortened:
            picture, level_doubt = _stretch_bytes(picture, samples)
        elif not are_bytes:
            picture, level_doubt = _to_grey(picture, samples, is_png=image.format == "PNG")
        rgb, transparency_doubt = flattened(picture)
        doubts = [doubt for doubt in (transparency_doubt, level_doubt, samples.unread) if doubt is not None]
        camera = ""
        with contextlib.suppress(Exception):  # unreadable metadata does not make the picture unreadable
            names = [image.getexif().get(tag) for tag in (ExifTags.Base.Make, ExifTags.Base.Model)]
            camera = " ".join(str(name).strip("\0 ")[:40] for name in names if name)
        return Picture(
            rgb,
            str(image.format),
            mode,
            width,
            height,
            is_animated,
            doubt="; ".join(doubts) or None,
            quality=sum(getattr(image, "quantization", {}).get(0, ())),
            camera=camera,
        )


def why_unreadable(source: str | bytes, error: Exception) -> str:
    """Return a short explanation of the exception that reading a file raised."""
    if isinstance(error, UnsupportedError):
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
        with io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb") as file:
            return _why_unidentified(file)
    if isinstance(error, ModuleNotFoundError):
        return f"to read it, install the package {error.name}"
    if "truncated" in str(error).lower():
        return "truncated"
    return f"damaged ({str(error) or type(error).__name__})"


def upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation to a picture."""
    orientation = _orientation(image)
    return image.transpose(_TRANSPOSE[orientation]) if orientation in _TRANSPOSE else image


def _orientation(image: Image.Image) -> int | None:
    """Return the EXIF orientation of a picture; None if there is none, or if its metadata cannot be read.

    `ImageOps.exif_transpose` would also rewrite EXIF data, and fails on unusual data.
    """
    try:
        orientation: int | None = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # unreadable metadata does not make the picture unreadable
        return None
    return orientation


def flattened(image: Image.Image) -> tuple[Image.Image, str | None]:
    """Return a picture in 8-bit RGB, composited on white if it is transparent, and a doubt (`Picture.doubt`) or None.

    Alpha that is 0 everywhere would hide the whole picture. It is most likely a mistake, and is ignored.
    """
    if not image.has_transparency_data:
        # `convert` also copies RGB, since readers other than that of JPEG may keep their file or its bytes alive.
        is_done = image.mode == "RGB" and image.format == "JPEG"
        return image if is_done else image.convert("RGB"), None
    # Convert strips of the picture, so that large pictures need little working memory.
    if not any(strip.convert("RGBA").getchannel("A").getextrema()[1] for _, strip in _strips(image)):
        return image.convert("RGB"), "it is transparent everywhere, and read as if it were opaque"
    flat = Image.new("RGB", image.size)
    for top, strip in _strips(image):
        rgba = strip.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        flat.paste(Image.alpha_composite(white, rgba).convert("RGB"), (0, top))
    return flat, None


# --- Opening files ----------------------------------------------------------------------------------------

_RAW = "a camera's raw file, of which only the preview could be read: convert it to JPEG or TIFF"
# The first bytes of raw files that are not a kind of TIFF.
_RAW_MARKS = (b"FUJIFILMCCD-RAW", b"IIRO", b"IIRS", b"MMOR", b"IIU\0", b"\0MRM", b"FOVb")
# Formats are recognised by content, regardless of the file's name. MPO is a JPEG variant that some phones write.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "HEIF")
_HEIF_BRANDS = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"))
_REGISTRATION = threading.Lock()  # for registering HEIF with Pillow


class _Quiet:
    """A context manager that ignores warnings while at least one thread is inside it.

    `warnings.catch_warnings` is not safe if threads enter and leave it at different times.
    """

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
    """Open a picture, from a path or a stream, without reading its pixels.

    Pillow reads every accepted format except HEIF, which many phones write. `pillow_heif` is imported when the first
    HEIF file is opened. Raise UnidentifiedImageError if the file is in none of `FORMATS`.
    """
    try:
        return Image.open(source, formats=_available())
    except UnidentifiedImageError:
        if isinstance(source, (str, Path)):
            with Path(source).open("rb") as file:
                head = file.read(12)
        else:
            source.seek(0)
            head = source.read(12)
            source.seek(0)
        is_heif = head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS
        if not is_heif:
            raise
    with _REGISTRATION:
        if "HEIF" not in Image.OPEN:
            import pillow_heif

            # One thread is enough, because several pictures are decoded at a time.
            pillow_heif.register_heif_opener(decode_threads=1, thumbnails=False, depth_images=False, aux_images=False)
    try:
        return Image.open(source, formats=_available())
    except UnidentifiedImageError as error:
        raise OSError("incomplete HEIF, or HEIF of an unknown kind") from error


def _available() -> list[str]:
    return [name for name in FORMATS if name in Image.OPEN]


def _is_raw(tags: Any, file: Any) -> bool:
    """Return whether a TIFF is a camera's raw file, whose first picture is only a preview.

    A CR2 has the mark `CR` after the header, and a DNG states a version. Others contain the values of a sensor, or
    begin with a picture that is marked as a smaller version of others.
    """
    file.seek(8)
    if file.read(2) == b"CR" or _DNG in tags or tags.get(_PHOTOMETRIC) in _SENSOR:
        return True
    is_smaller_version = bool((tags.get(_SUBFILE) or 0) & 1)
    return is_smaller_version and _SUBFILES in tags


def _why_unidentified(file: BinaryIO) -> str:
    head = file.read(16)
    if head.startswith(_RAW_MARKS) or head[4:12] == b"ftypcrx ":
        return _RAW
    if head.startswith(_PNG):
        return "damaged PNG"
    if head[:4] in TiffImagePlugin.PREFIXES:
        with QUIET, contextlib.suppress(Exception):  # a damaged header may raise anything
            file.seek(0)
            is_big = head[2] == 43  # BigTIFF
            tags = TiffImagePlugin.ImageFileDirectory_v2(file.read(16 if is_big else 8))
            file.seek(tags.next)
            tags.load(file)
            if _is_raw(tags, file):
                return _RAW
            bits = "/".join(map(str, sorted(set(tags.get(_BITS, (1,))))))
            content = f"bands: {tags.get(_BANDS, 1)}, bits: {bits}, compression: {tags.get(_COMPRESSION, 1)}"
            instead = "save it as RGB or grey of 8 or 16 bits, without compression"
            return f"a TIFF of a kind that is not supported ({content}): {instead}"
    return "not an image" if head else "empty file"


_PNG = b"\x89PNG\r\n\x1a\n"


# --- Samples of more than 8 bits --------------------------------------------------------------------------

# Tags of TIFF.
_SUBFILE, _BITS, _COMPRESSION, _PHOTOMETRIC, _BANDS, _MIN, _MAX = 254, 258, 259, 262, 277, 280, 281
_SUBFILES, _FORMAT, _SMIN, _SMAX, _NODATA, _DNG = 330, 339, 340, 341, 42113, 50706
_SENSOR = (32803, 34892)  # photometric interpretations of the numbers of a camera's sensor
_KINDS: dict[int, Literal["unsigned", "signed", "float"]] = {2: "signed", 3: "float"}


@dataclass(frozen=True)
class Samples:
    """The format of the numbers in an image file (samples), and what the file states about their meaning.

    A file states the number of bits of its samples. It may also state the largest number in use, and whether 0 is black
    or white. If it does not, the most likely values are assumed, and the doubt is reported
    (docs/decisions/0015-what-numbers-stand-for.md).
    """

    bits: int = 8
    kind: Literal["unsigned", "signed", "float"] = "unsigned"
    low: float | None = None  # the smallest and the largest number in use, if the file states them
    high: float | None = None
    is_negative: bool = False  # whether 0 is white
    is_shortened: bool = False  # whether Pillow returns only the upper 8 of 16 bits
    no_data: float | None = None  # the number that means that there is no data, or that a pixel is transparent
    unread: str | None = None  # a sentence about content of the file that is not read


def _read_samples(image: Any) -> Samples:
    """Return the sample format of an image file whose pixels have not been loaded yet."""
    is_wide = image.mode.startswith(("I", "F"))  # Pillow's modes of more than 8 bits
    is_shortened = _is_shortened(image)
    if image.format == "TIFF":
        return _read_tiff_samples(image, is_wide=is_wide, is_shortened=is_shortened)
    if image.format == "PNG" and is_wide:
        return Samples(16, high=_max_stated_by_png(image.fp), no_data=image.info.get("transparency"))
    if is_wide or is_shortened:
        return Samples(16, is_shortened=is_shortened)
    return Samples()


def _read_tiff_samples(image: Any, *, is_wide: bool, is_shortened: bool) -> Samples:
    tags = image.tag_v2
    bands = tags.get(_BANDS, 1)
    readable_bands = len(image.getbands())
    unread = None
    if bands > readable_bands:
        unread = f"it has {bands} bands, of which only {readable_bands} can be read"
    if not is_wide and image.mode != "L" and not is_shortened:
        return Samples(unread=unread)
    bits = _number(tags.get(_BITS)) or 1
    kind = _KINDS.get(int(_number(tags.get(_FORMAT)) or 1), "unsigned")
    low = _number(tags.get(_SMIN))
    if low is None:
        low = _number(tags.get(_MIN))
    high = _number(tags.get(_SMAX))
    if high is None:
        high = _number(tags.get(_MAX))
    if bits <= 8 and kind == "unsigned":  # bytes, which Pillow has already inverted if 0 is white
        return Samples(int(bits), kind, low, high, is_shortened=is_shortened, unread=unread)
    no_data = None
    if _NODATA in tags:
        text = str(tags[_NODATA])
        try:
            no_data = float(text.strip(" \0").replace(",", "."))
        except ValueError:
            unread = f"what it says of missing data is no number: {text[:20]!r}"
    is_negative = _number(tags.get(_PHOTOMETRIC)) == 0
    return Samples(int(bits), kind, low, high, is_negative, is_shortened, no_data, unread)


def _number(value: Any) -> float | None:
    """Return the value of a TIFF tag, or the first of several, as a number; None if it is not a finite number."""
    while isinstance(value, (tuple, list)):
        value = value[0] if value else None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return None
    return number if math.isfinite(number) else None


def _max_stated_by_png(file: IO[bytes]) -> float | None:
    """Return the largest number that the significant bits of a PNG (sBIT) allow; None if it states none or 16."""
    position = file.tell()
    try:
        file.seek(8)
        while len(head := file.read(8)) == 8:
            size, name = struct.unpack(">I4s", head)
            if name == b"sBIT":
                bits = file.read(1)
                return float(2 ** bits[0] - 1) if bits and 0 < bits[0] < 16 else None
            if name == b"IDAT":
                return None
            file.seek(size + 4, 1)
        return None
    finally:
        file.seek(position)


def _is_shortened(image: ImageFile.ImageFile) -> bool:
    """Return whether Pillow reads only the upper 8 bits of the 16-bit colours in this file."""
    args = image.tile[0][3] if image.tile else ()
    raw = args[0] if isinstance(args, tuple) and args else args
    return isinstance(raw, str) and raw.startswith(("RGB", "LA")) and ";16" in raw


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield a picture as strips of a few rows, each with the number of its first row."""
    if image.width * image.height <= STRIP:
        yield 0, image
        return
    rows = max(1, STRIP // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _to_grey(image: Image.Image, samples: Samples, *, is_png: bool) -> tuple[Image.Image, str | None]:
    """Convert wide, signed or floating-point samples to 8-bit grey. Also return why the brightness may be wrong."""
    # The smallest and the largest finite number, or twice 0 if there is none. Pixels without data are left out.
    low, high, are_finite = math.inf, -math.inf, True
    for _, strip in _strips(image):
        numbers = _values(strip, samples)
        if numbers.dtype.kind == "f":
            is_finite = np.isfinite(numbers)
            is_left_out = np.isnan(numbers) if samples.no_data is not None else False
            are_finite = are_finite and bool(np.all(is_finite | is_left_out))
            numbers = numbers[is_finite]
        if numbers.size:
            low = min(low, float(numbers.min()))
            high = max(high, float(numbers.max()))
    if low > high:
        low = high = 0.0

    if is_png and samples.high is not None:
        # The standard demands that the significant bits of the numbers are the upper ones of 16. White is then 65,535
        # as always. But some programs use the lower bits, so that white is the largest number of `significant` bits.
        significant = int(samples.high).bit_length()
        used_bits = 0
        for _, strip in _strips(image):
            used_bits |= int(np.bitwise_or.reduce(np.asarray(strip).astype(np.int64), axis=None))
        if used_bits >= 2**significant or used_bits % 2 ** (16 - significant) == 0:
            samples = replace(samples, high=None)

    black, white, doubt = _range(samples, low, high)
    grey = Image.new("L", image.size)
    for top, strip in _strips(image):
        values = _values(strip, samples).astype(np.float64)
        has_no_data = np.isnan(values)
        values = np.nan_to_num(values, nan=black, posinf=white, neginf=black)
        scaled = np.clip((values - black) / max(white - black, 1e-300), 0, 1)
        if samples.is_negative:
            scaled = 1 - scaled
        if is_png:
            scaled[has_no_data] = 1  # transparent, hence white
        grey.paste(Image.fromarray(np.round(255 * scaled).astype(np.uint8)), (0, top))
    if doubt is None and not are_finite:
        doubt = "some of its numbers are not finite"
    return grey, doubt


def _stretch_bytes(image: Image.Image, samples: Samples) -> tuple[Image.Image, str | None]:
    """Stretch the brightness of a picture in RGB, RGBA or LA of which Pillow has kept only the upper 8 of 16 bits.

    The picture is unchanged if its file does not state the largest number in use. The second value is the reason why
    the brightness may be wrong, or None.
    """
    bands = image.getbands()
    with_data = image  # the picture in which pixels without data are black
    if samples.no_data is not None:
        no_data = samples.no_data // 256
        with_data = image.point([0 if value == no_data else value for value in range(256)] * len(bands))
    extrema: Any = with_data.getextrema()[:3]  # a pair for each channel
    largest = max(int(high) for _, high in extrema)
    bits = _stated_bits(samples, 256 * largest)
    if bits is None:
        is_dark = 0 < largest < 64
        return image, _dark(256 * largest + 255, 16) if is_dark else None
    if bits == 16:
        return image, None
    # The lower 8 bits are unknown, so take the middle of their range, except for black.
    white = 2**bits - 1
    stretched = [min(255, round(255 * (256 * value + 128 * (value > 0)) / white)) for value in range(256)]
    unchanged = list(range(256))
    table: list[int] = []
    for band in bands:
        table += unchanged if band == "A" else stretched
    return image.point(table), None


def _values(image: Image.Image, samples: Samples) -> npt.NDArray[Any]:
    """Return the samples of a picture as an array of the numbers in the file. Pixels without data become NaN.

    Pillow returns signed bytes as unsigned ones, and unsigned 32-bit numbers as signed ones.
    """
    stored = np.asarray(image)
    if samples.kind == "signed" and stored.dtype == np.uint8:
        stored = stored.view(np.int8)
    elif samples.kind == "unsigned" and samples.bits == 32 and stored.dtype == np.int32:
        stored = stored.view(np.uint32)
    if samples.no_data is None:
        return stored
    with np.errstate(over="ignore"):  # the number may have more than 32 bits
        return np.where(stored == samples.no_data, np.nan, stored)


def _range(samples: Samples, low: float, high: float) -> tuple[float, float, str | None]:
    """Return the numbers that mean black and white in a picture with samples from `low` to `high`.

    The third value is the reason why they may be wrong, or None.
    """
    if samples.kind == "float" and low >= 0 and high <= 1:
        return 0.0, 1.0, None
    if samples.kind != "unsigned" and samples.low is not None and samples.high is not None:
        black, white = samples.low, samples.high
        if black < white and black <= low <= high <= white:
            return black, white, None
    unstated = f"it does not say which of its numbers, {low:g} to {high:g}, are black and white"
    if samples.kind == "float" or low < 0:
        return low, high, unstated
    bits = _stated_bits(samples, high)
    if bits is not None:
        return 0.0, float(2**bits - 1), None
    if samples.bits > 16:
        for bits in (8, 10, 12, 14, 16):
            if high < 2**bits:
                doubt = f"it does not say how many of its {samples.bits} bits are used; {bits} are enough"
                return 0.0, float(2**bits - 1), doubt
        return low, high, unstated
    bits = samples.bits - 1 if samples.kind == "signed" else samples.bits  # without the sign
    is_dark = bits > 8 and 0 < high < 2 ** (bits - 2)
    return 0.0, float(2**bits - 1), _dark(high, bits) if is_dark else None


def _dark(high: float, bits: int) -> str:
    return f"none of its numbers is above {high:g} of {2**bits - 1}: it is dark, or does not say that it has fewer bits"


def _stated_bits(samples: Samples, high: float) -> int | None:
    """Return the number of bits of the largest number that the file states.

    Return None if it states none, or one below `high`, the largest sample. By the TIFF standard, the stated number need
    not mean white, so only its number of bits is used.
    """
    if samples.high is None or samples.high < max(high, 1):
        return None
    return min(int(samples.high).bit_length(), samples.bits)
