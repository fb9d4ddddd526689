"""The only image decoder: all commands decode files here, so that they use the same pixels.

Start with `decode` and `read_picture`. The sections below them are, in this order:

- opening a file, and the accepted formats
- the conversion of samples of more than 8 bits, whose black and white levels must be found
- the memory budget that the decoding threads share
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import math
import os
import struct
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import PIL
from PIL import (  # plugins register themselves; importing all 42 of Pillow's takes three times as long
    AvifImagePlugin,  # noqa: F401
    BmpImagePlugin,  # noqa: F401
    ExifTags,
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

from vitkit.data.storage import Place, Stored, stored_at
from vitkit.data.storage import UnreadableImageError as UnreadableImageError
from vitkit.errors import ShortageError, are_files_short, is_memory_short
from vitkit.system import windows
from vitkit.text.cells import visible

MAX_PIXELS = 178_956_970  # Pillow's limit, above which a file may be a decompression bomb
STRIP = 2**20  # number of pixels that are converted at a time
_WHITE = (255, 255, 255, 255)
_RGB_BYTES = 4  # bytes per pixel of an RGB image in Pillow
_READER_BYTES = {"AVIF": 5, "HEIF": 8}  # bytes per pixel that a reader holds in addition to Pillow's image
_READER_OVERHEAD = 2**26  # bytes that a reader may need in addition to its pixels
_TIFF_MEMORY = "decoder error -9"  # the message of Pillow's TIFF reader when an allocation fails

_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)

_WARNING = threading.Lock()
_WARNED_FOLDERS: set[Path] = set()


@dataclass(frozen=True)
class Picture:
    """A decoded picture with the properties of its file.

    Attributes:
        image: the upright picture in RGB.
        format, mode: Pillow's names for the format and mode of the file.
        width, height: the size in pixels of the upright picture in the file, even if it was decoded at a smaller scale.
        is_animated: whether the file has several frames. The first frame was decoded.
        doubt: why the brightness may be wrong, for example because the file does not state which numbers are black and
            white; None if there is no doubt.
    """

    image: Image.Image
    format: str
    mode: str
    width: int
    height: int
    is_animated: bool
    doubt: str | None = None


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

    The picture counts towards the memory budget until the block ends, so other threads may have to wait before they can
    decode large pictures. Inside the block, reduce the picture to something smaller.

    Args:
        path: the file.
        short_side: see `decode`.
        content: the bytes of the file, if they have been read already.
    """
    with DECODE_BUDGET.share() as take:
        yield _read(path, short_side, content, take)


def _read(path: str | Place, short_side: int | None, content: bytes | None, take: Callable[[int], None]) -> Picture:
    size = 0
    try:
        content = _stored_bytes(path) if content is None else content
        source = str(path) if content is None else io.BytesIO(content)
        with QUIET, open_picture(source) as image:
            _check_pixels(image.size)
            file_size, mode = image.size, image.mode
            is_animated = image.format != "MPO" and getattr(image, "is_animated", False)
            if short_side is not None and image.format in ("JPEG", "MPO") and min(image.size) >= 4 * short_side:
                _draft(image, 2 * short_side)
            samples = _read_samples(image)
            working_bytes = _RGB_BYTES + _READER_BYTES.get(str(image.format), 0)
            size = image.width * image.height * (_bytes_per_pixel(image.mode) + working_bytes)
            take(size)
            image.load()
            width, height = file_size[::-1] if _orientation(image) in _SIDEWAYS else file_size
            rgb, doubt = _to_rgb(upright(image), samples, is_png=image.format == "PNG")
            return Picture(rgb, str(image.format), mode, width, height, is_animated, doubt)
    except (UnreadableImageError, OverBudgetError):
        raise
    except Exception as error:  # a reader may raise anything if the file is damaged or memory is short
        raise_if_short(path, error, size)
        raise UnreadableImageError(reason(path, error, content)) from error


def _stored_bytes(path: str | Place) -> bytes | None:
    """Return the bytes of an image in a storage; None for a regular file, because Pillow reads only parts of it."""
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


def warn_of_doubt(path: str | Place, picture: Picture) -> None:
    """Log a warning if a picture's brightness is doubtful, but only once per folder."""
    if picture.doubt is None:
        return
    folder = Path(str(path)).parent
    with _WARNING:
        is_new = folder not in _WARNED_FOLDERS
        _WARNED_FOLDERS.add(folder)
    if is_new:
        text = f"note: {path} is possibly read too dark or too light, and others in its folder, too: {picture.doubt}"
        logging.getLogger(__name__).warning("%s", visible(text))


def raise_if_short(path: str | Place, error: Exception, size: int = 0) -> None:
    """Raise ShortageError if reading a file failed because the machine lacks memory or has too many open files.

    A decoder may request absurd amounts of memory for a damaged file. The machine therefore counts as short of memory
    only if it cannot allocate twice the memory that an intact picture of this size needs.

    Args:
        path: the file.
        error: the exception that was raised while reading it.
        size: bytes that the pixels of the file need; 0 if the size of the picture is unknown.

    Raises:
        ShortageError: the machine is short of memory, or too many files are open.
    """
    if are_files_short(error):
        raise ShortageError(f"{path}: too many files are open: close some, or raise the limit (ulimit -n)") from error
    if _is_out_of_memory(error) and not _is_free(2 * size + _READER_OVERHEAD):
        raise ShortageError(
            f"{path}: there is too little memory to decode it now: free some, or leave it out"
        ) from error


def _is_out_of_memory(error: Exception) -> bool:
    return is_memory_short(error) or str(error) == _TIFF_MEMORY


def _is_free(size: int) -> bool:
    """Return whether this many bytes can be allocated. They are released immediately."""
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
    """Apply the EXIF orientation to a picture."""
    orientation = _orientation(image)
    return image.transpose(_TRANSPOSE[orientation]) if orientation in _TRANSPOSE else image


def _orientation(image: Image.Image) -> int | None:
    """Return the EXIF orientation of a picture; None if there is none, or if its metadata cannot be read.

    `ImageOps.exif_transpose` is not used, because it also rewrites EXIF data and fails on unusual data.
    """
    try:
        orientation: int | None = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # unreadable metadata does not make the picture unreadable
        return None
    return orientation


def _bytes_per_pixel(mode: str) -> int:
    """Return the number of bytes per pixel of a Pillow image with this mode."""
    return {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2}.get(mode, 4)


def _to_rgb(image: Image.Image, samples: Samples, *, is_png: bool) -> tuple[Image.Image, str | None]:
    doubt = None
    if not samples.are_bytes and samples.is_shortened:
        image, doubt = _stretch_bytes(image, samples)
    elif not samples.are_bytes:
        image, doubt = _to_grey(image, samples, is_png=is_png)
    return flattened(image), doubt


def flattened(image: Image.Image) -> Image.Image:
    """Return the picture in 8-bit RGB, with transparency composited on white."""
    if image.has_transparency_data:
        return _in_strips(image, _on_white)
    is_done = image.mode == "RGB" and image.format == "JPEG"  # other readers may keep their file or its bytes alive
    return image if is_done else image.convert("RGB")


def _in_strips(image: Image.Image, change: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Apply `change` to a few rows of a picture at a time, so that large pictures need little working memory."""
    if image.width * image.height <= STRIP:
        return change(image)
    changed = Image.new("RGB", image.size)
    for top, strip in _strips(image):
        changed.paste(change(strip), (0, top))
    return changed


def _on_white(image: Image.Image) -> Image.Image:
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, _WHITE), rgba).convert("RGB")


def reason(path: str | Place, error: Exception, content: bytes | None = None) -> str:
    """Return a short explanation of why a file cannot be read.

    Args:
        path: the file.
        error: the exception that was raised while reading it.
        content: the bytes of the file, if they have been read already.
    """
    if isinstance(error, UnreadableImageError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "a folder, not a file"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if _is_out_of_memory(error):
        return "damaged (it asks for more memory than its pixels need)"
    if isinstance(error, Image.DecompressionBombError):
        return f"more pixels than the limit of {MAX_PIXELS:,}"
    if isinstance(error, UnidentifiedImageError):
        size = Path(str(path)).stat().st_size if content is None else len(content)
        return "not an image" if size else "empty file"
    if "truncated" in str(error).lower():
        return "truncated"
    return f"damaged ({str(error) or type(error).__name__})"


# --- Opening files ----------------------------------------------------------------------------------------

# Formats are recognised by content, regardless of the file's name. MPO is a JPEG variant that some phones write.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "HEIF")
_HEIF_BRANDS = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"))
_REGISTERING = threading.Lock()


class _Quiet:
    """A context manager that ignores warnings while at least one thread is inside it.

    It counts the threads, because `warnings.catch_warnings` is not safe if threads enter and leave it at different
    times.
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
    """Open a picture without reading its pixels.

    Pillow reads every accepted format except HEIF, which many phones write. `pillow_heif` is imported when the first
    HEIF file is opened.

    Args:
        source: a path, or a stream of the file's bytes.

    Raises:
        UnidentifiedImageError: the file is in none of `FORMATS`.
        OSError: the file cannot be read.
    """
    try:
        return Image.open(source, formats=_available())
    except UnidentifiedImageError:
        if not _is_heif(source):
            raise
    _register_heif()
    try:
        return Image.open(source, formats=_available())
    except UnidentifiedImageError as error:
        raise OSError("incomplete HEIF, or HEIF of an unknown kind") from error


def decoders() -> str:
    """Return a name that identifies the installed decoders and their versions.

    Cached results are stored under this name, because other decoders may return other pixels.
    """
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
    return head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS


def _register_heif() -> None:
    """Register HEIF with Pillow, without thumbnails and with one thread per picture.

    One thread is enough, because several pictures are decoded at a time.
    """
    with _REGISTERING:
        if "HEIF" in Image.OPEN:
            return
        import pillow_heif

        pillow_heif.register_heif_opener(decode_threads=1, thumbnails=False, depth_images=False, aux_images=False)


# --- Samples of more than 8 bits --------------------------------------------------------------------------

_USUAL_BITS = (8, 10, 12, 14, 16)
_BITS, _PHOTOMETRIC, _MIN, _MAX, _FORMAT, _SMIN, _SMAX = 258, 262, 280, 281, 339, 340, 341  # tags of TIFF 6.0
_KINDS: dict[int, Literal["unsigned", "signed", "float"]] = {2: "signed", 3: "float"}


@dataclass(frozen=True)
class Samples:
    """The storage format of the numbers in an image file, and the numbers that mean black and white.

    A file states the number of bits of its samples. It may also state the largest number in use, and whether 0 is black
    or white. If it does not state these, the most likely values are assumed, and the doubt is reported
    (docs/decisions/0015-what-numbers-stand-for.md).

    Attributes:
        bits: the number of bits per sample.
        kind: unsigned or signed integers, or floating point.
        low, high: the smallest and the largest number in use, if the file states them.
        is_negative: whether 0 is white.
        is_shortened: whether Pillow returns only the upper 8 of 16 bits.
    """

    bits: int = 8
    kind: Literal["unsigned", "signed", "float"] = "unsigned"
    low: float | None = None
    high: float | None = None
    is_negative: bool = False
    is_shortened: bool = False

    @property
    def are_bytes(self) -> bool:
        """Return whether the samples are ordinary bytes, which Pillow converts to RGB correctly."""
        return self.bits <= 8 and self.kind == "unsigned"


def _read_samples(image: ImageFile.ImageFile) -> Samples:
    """Return the sample format of an image file whose pixels have not been loaded yet."""
    wide = image.mode.startswith(("I", "F"))
    if image.format == "TIFF":
        return _of_tiff(image.tag_v2, _is_shortened(image), is_grey=wide or image.mode == "L")  # type: ignore[attr-defined]
    if not wide and not _is_shortened(image):
        return Samples()
    high = None
    if image.format == "PNG" and wide and image.fp is not None:
        high = _of_png(image.fp)
    return Samples(16, high=high, is_shortened=_is_shortened(image))


def _of_tiff(tags: Any, is_shortened: bool, *, is_grey: bool) -> Samples:
    bits, kind = _number(tags.get(_BITS)) or 1, _KINDS.get(int(_number(tags.get(_FORMAT)) or 1), "unsigned")
    if not is_grey and not is_shortened:
        return Samples()
    low, high = (
        next((value for value in map(_number, map(tags.get, keys)) if value is not None), None)
        for keys in ((_SMIN, _MIN), (_SMAX, _MAX))
    )
    is_wide = bits > 8 or kind != "unsigned"  # Pillow has already inverted narrower samples
    return Samples(int(bits), kind, low, high, is_wide and _number(tags.get(_PHOTOMETRIC)) == 0, is_shortened)


def _number(value: Any) -> float | None:
    """Return the value of a TIFF tag, or the first of several, as a number; None if it is not a finite number."""
    while isinstance(value, (tuple, list)):
        value = value[0] if value else None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return None
    return number if math.isfinite(number) else None


def _of_png(file: IO[bytes]) -> float | None:
    """Return the largest number that a PNG's significant bits (sBIT) allow.

    Return None if the file does not state the number of significant bits, or if all 16 bits are significant.
    """
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
    """Convert wide, signed or floating-point samples to 8-bit grey.

    Returns:
        The picture, and the reason why its brightness may be wrong, or None.
    """
    low, high, is_finite = _extent(image, samples)
    if is_png and not _is_unscaled(image, samples):
        samples = replace(samples, high=None)
    black, white, doubt = _range(samples, low, high)
    grey = Image.new("L", image.size)
    for top, strip in _strips(image):
        values = _values(strip, samples).astype(np.float64)
        values = np.nan_to_num(values, nan=black, posinf=white, neginf=black)
        scaled = np.clip((values - black) / max(white - black, 1e-300), 0, 1)
        scaled = 1 - scaled if samples.is_negative else scaled
        grey.paste(Image.fromarray(np.round(255 * scaled).astype(np.uint8)), (0, top))
    return grey, doubt or (None if is_finite else "some of its numbers are not finite")


def _stretch_bytes(image: Image.Image, samples: Samples) -> tuple[Image.Image, str | None]:
    """Stretch a picture to the range that its file states, if Pillow has kept only the upper 8 of 16 bits.

    If the file states no range, the picture is returned unchanged.

    Returns:
        The picture, and the reason why its brightness may be wrong, or None.
    """
    top = max(int(high) for _, high in _pairs(image.getextrema()[:3]))
    bits = _stated_bits(samples, 256 * top)
    if bits is None:
        return image, _dark(256 * top + 255, 16) if 0 < top < 64 else None
    most = 2**bits - 1
    if image.mode not in ("RGB", "RGBA", "LA") or bits == 16:
        return image, None
    table = [min(255, round(255 * (256 * value + 128 * (value > 0)) / most)) for value in range(256)]
    colours, has_alpha = len(image.getbands()), image.mode.endswith("A")
    return image.point(table * (colours - has_alpha) + list(range(256)) * has_alpha), None


def _pairs(extrema: Any) -> list[tuple[float, float]]:
    return list(extrema) if isinstance(extrema[0], tuple) else [extrema]


def _values(image: Image.Image, samples: Samples) -> npt.NDArray[Any]:
    """Return the samples of a picture as an array of the numbers in the file.

    Pillow returns signed bytes as unsigned ones and unsigned 32-bit numbers as signed ones, so these are reinterpreted.
    """
    stored = np.asarray(image)
    if samples.kind == "signed" and stored.dtype == np.uint8:
        return stored.view(np.int8)
    if samples.kind == "unsigned" and samples.bits == 32 and stored.dtype == np.int32:
        return stored.view(np.uint32)
    return stored


def _extent(image: Image.Image, samples: Samples) -> tuple[float, float, bool]:
    """Return the smallest and the largest finite sample, and whether all samples are finite."""
    low, high, is_finite = math.inf, -math.inf, True
    for _, strip in _strips(image):
        values = _values(strip, samples)
        if values.dtype.kind == "f":
            finite = values[np.isfinite(values)]
            is_finite = is_finite and finite.size == values.size
            values = finite
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    return (low, high, is_finite) if low <= high else (0.0, 0.0, is_finite)


def _range(samples: Samples, low: float, high: float) -> tuple[float, float, str | None]:
    """Return the numbers that mean black and white, and the reason why they may be wrong, or None.

    `low` and `high` are the smallest and the largest sample of the picture.
    """
    if samples.kind == "float" and low >= 0 and high <= 1:
        return 0.0, 1.0, None
    if samples.kind != "unsigned" and _states_range(samples, low, high):
        assert samples.low is not None and samples.high is not None
        return samples.low, samples.high, None
    if samples.kind == "float" or low < 0:
        return low, high, f"it does not say which of its numbers, {low:g} to {high:g}, are black and white"
    bits = _stated_bits(samples, high)
    if bits is not None:
        return 0.0, float(2**bits - 1), None
    if samples.bits > 16:
        bits = next((usual for usual in _USUAL_BITS if high < 2**usual), None)
        if bits is None:
            return low, high, f"it does not say which of its numbers, {low:g} to {high:g}, are black and white"
        return (
            0.0,
            float(2**bits - 1),
            f"it does not say how many of its {samples.bits} bits are used; {bits} are enough",
        )
    bits = samples.bits - (samples.kind == "signed")
    is_dark = bits > 8 and 0 < high < 2 ** (bits - 2)
    return 0.0, float(2**bits - 1), _dark(high, bits) if is_dark else None


def _dark(high: float, bits: int) -> str:
    return f"none of its numbers is above {high:g} of {2**bits - 1}: it is dark, or does not say that it has fewer bits"


def _states_range(samples: Samples, low: float, high: float) -> bool:
    """Return whether the file states a range, and this range contains all of its samples (`low` to `high`)."""
    if samples.low is None or samples.high is None:
        return False
    return samples.low < samples.high and samples.low <= low and high <= samples.high


def _stated_bits(samples: Samples, high: float) -> int | None:
    """Return the number of bits of the largest number that the file states.

    Return None if the file states no largest number, or one that is smaller than `high`, the largest sample. By the
    TIFF standard, the stated number need not mean white. Therefore only its number of bits is used.
    """
    if samples.high is None or samples.high < max(high, 1):
        return None
    return min(int(samples.high).bit_length(), samples.bits)


def _is_unscaled(image: Image.Image, samples: Samples) -> bool:
    """Return whether the significant bits of a PNG's samples are the lowest bits.

    The PNG standard requires them to be the highest bits.
    """
    if samples.high is None:
        return False
    used = 0
    for _, strip in _strips(image):
        used |= int(np.bitwise_or.reduce(np.asarray(strip).astype(np.int64), axis=None))
    significant = int(samples.high).bit_length()
    return used < 2**significant and used % 2 ** (16 - significant) != 0


# --- The memory budget ------------------------------------------------------------------------------------

LEAST_BUDGET = 2**30  # bytes; the minimum, even if less memory seems to be free
_UNCOUNTED = 2**16  # bytes; smaller pictures are not counted


class OverBudgetError(Exception):
    """A picture needs more memory than the limit of this process."""


class MemoryBudget:
    """A limit on the memory of decoded pictures that all threads of a process hold at the same time.

    A picture that is larger than the whole budget is decoded when no other thread holds a picture. A thread that has
    already reserved memory never waits for more, so threads cannot deadlock.

    Args:
        size: the limit in bytes. None means a quarter of the memory that is free when the first large picture is
            decoded, but at least `LEAST_BUDGET`.
    """

    def __init__(self, size: int | None = None) -> None:
        self._size, self._most = size, math.inf
        self.clear()

    def limit(self, most: int) -> None:
        """Set the budget to `most` bytes. From now on, a larger picture raises OverBudgetError."""
        self._size = self._most = most

    def clear(self) -> None:
        """Discard all reservations. This is called in a forked process, in which the parent's threads do not exist."""
        self._changed, self._held, self._of_thread = threading.Condition(), 0, threading.local()

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that waits until the requested number of bytes is free, and reserves them.

        The bytes are released at the end of the `with` block. The function raises OverBudgetError if more bytes are
        requested than `limit` allows.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if size > self._most:
                raise OverBudgetError
            if size < _UNCOUNTED:
                return
            with self._changed:
                if not self._held_here:
                    self._changed.wait_for(lambda: self._held == 0 or self._fits(self._held + size))
                self._held, self._of_thread.held = self._held + size, self._held_here + size
                taken += size

        try:
            yield take
        finally:
            if taken:
                with self._changed:
                    self._held, self._of_thread.held = self._held - taken, self._held_here - taken
                    self._changed.notify_all()

    @property
    def _held_here(self) -> int:
        """Return the bytes that the current thread has reserved."""
        held: int = getattr(self._of_thread, "held", 0)
        return held

    def _fits(self, size: int) -> bool:
        if self._size is None:
            if size <= LEAST_BUDGET:
                return True
            self._size = max(LEAST_BUDGET, available_memory() // 4)
        return size <= self._size


DECODE_BUDGET = MemoryBudget()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=DECODE_BUDGET.clear)


def available_memory() -> int:
    """Return the bytes of main memory that are currently available; 0 if the system does not report them."""
    if windows.IS_WINDOWS:
        return windows.available_memory()
    free = 0
    with contextlib.suppress(OSError, ValueError, AttributeError):
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4  # a lower bound if nothing else is known
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    with contextlib.suppress(OSError, ValueError):  # in a container
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current"))
        free = min(free, max(int(limit) - int(used), 0))
    return free
