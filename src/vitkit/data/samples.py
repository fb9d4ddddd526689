"""What the numbers in a picture file stand for, where they are not plain bytes: which is black, and which is white.

A file says how many bits its numbers have, and may say more: the largest in use, the brightness that 0 stands for. What
it does not say cannot be known; the picture is then read by the likeliest rule, and the doubt is told
(docs/decisions/0015-what-numbers-stand-for.md).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

STRIP = 2**20  # pixels that are changed at a time
_USUAL_BITS = (8, 10, 12, 14, 16)
_BITS, _PHOTOMETRIC, _MIN, _MAX, _FORMAT, _SMIN, _SMAX = 258, 262, 280, 281, 339, 340, 341  # TIFF 6.0
_KINDS: dict[int, Literal["unsigned", "signed", "float"]] = {2: "signed", 3: "float"}


@dataclass(frozen=True)
class Samples:
    """What a file says of its numbers.

    Attributes:
        bits: of each.
        kind: of number.
        low, high: the least and the largest in use, where the file tells them.
        is_negative: 0 is white.
        is_shortened: Pillow gives the upper 8 bits of each alone.
    """

    bits: int = 8
    kind: Literal["unsigned", "signed", "float"] = "unsigned"
    low: float | None = None
    high: float | None = None
    is_negative: bool = False
    is_shortened: bool = False

    @property
    def are_bytes(self) -> bool:
        """Whether Pillow's own conversion knows what they mean."""
        return self.bits <= 8 and self.kind == "unsigned"


def read_samples(image: ImageFile.ImageFile) -> Samples:
    """What a file that was opened, and not yet loaded, says of its numbers."""
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
        next((value for value in map(_number, map(tags.get, own)) if value is not None), None)
        for own in ((_SMIN, _MIN), (_SMAX, _MAX))
    )
    is_wide = bits > 8 or kind != "unsigned"  # else Pillow has turned it already
    return Samples(int(bits), kind, low, high, is_wide and _number(tags.get(_PHOTOMETRIC)) == 0, is_shortened)


def _number(value: Any) -> float | None:
    """A tag's number, or its first; None where it has none."""
    while isinstance(value, (tuple, list)):
        value = value[0] if value else None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return None
    return number if math.isfinite(number) else None


def _of_png(file: IO[bytes]) -> float | None:
    """The largest number of the significant bits that a PNG tells (sBIT), from its beginning to its pixels."""
    place = file.tell()
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
        file.seek(place)


def _is_shortened(image: ImageFile.ImageFile) -> bool:
    """Whether colours of 16 bits are read as bytes."""
    args = image.tile[0][3] if image.tile else ()
    raw = args[0] if isinstance(args, tuple) and args else args
    return isinstance(raw, str) and raw.startswith(("RGB", "LA")) and ";16" in raw


def strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """The picture a few rows at a time, each with the row it begins at."""
    if image.width * image.height <= STRIP:
        yield 0, image
        return
    rows = max(1, STRIP // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def to_grey(image: Image.Image, samples: Samples, *, is_png: bool) -> tuple[Image.Image, str | None]:
    """A picture of wide, signed or real numbers as bytes of grey; and what could not be known of it, if anything."""
    low, high, is_finite = _extent(image, samples)
    if is_png and not _is_unscaled(image, samples):
        samples = replace(samples, high=None)
    black, white, doubt = _range(samples, low, high)
    grey = Image.new("L", image.size)
    for top, strip in strips(image):
        values = _values(strip, samples).astype(np.float64)
        values = np.nan_to_num(values, nan=black, posinf=white, neginf=black)
        scaled = np.clip((values - black) / max(white - black, 1e-300), 0, 1)
        scaled = 1 - scaled if samples.is_negative else scaled
        grey.paste(Image.fromarray(np.round(255 * scaled).astype(np.uint8)), (0, top))
    return grey, doubt or (None if is_finite else "some of its numbers are not finite")


def stretch_bytes(image: Image.Image, samples: Samples) -> tuple[Image.Image, str | None]:
    """A picture of which Pillow kept the upper 8 of 16 bits: by the range that the file tells, if it tells one."""
    top = max(int(high) for _, high in _pairs(image.getextrema()[:3]))
    bits = _told_bits(samples, 256 * top)
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
    """The numbers as the file has them: Pillow knows neither signed bytes nor unsigned numbers of 32 bits."""
    stored = np.asarray(image)
    if samples.kind == "signed" and stored.dtype == np.uint8:
        return stored.view(np.int8)
    if samples.kind == "unsigned" and samples.bits == 32 and stored.dtype == np.int32:
        return stored.view(np.uint32)
    return stored


def _extent(image: Image.Image, samples: Samples) -> tuple[float, float, bool]:
    """The least and the largest finite number, and whether all are finite."""
    low, high, is_finite = math.inf, -math.inf, True
    for _, strip in strips(image):
        values = _values(strip, samples)
        if values.dtype.kind == "f":
            finite = values[np.isfinite(values)]
            is_finite = is_finite and finite.size == values.size
            values = finite
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    return (low, high, is_finite) if low <= high else (0.0, 0.0, is_finite)


def _range(samples: Samples, low: float, high: float) -> tuple[float, float, str | None]:
    """The numbers of black and white, and what could not be known about them."""
    if samples.kind == "float" and low >= 0 and high <= 1:
        return 0.0, 1.0, None
    if samples.kind != "unsigned" and _is_told(samples, low, high):
        assert samples.low is not None and samples.high is not None
        return samples.low, samples.high, None
    if samples.kind == "float" or low < 0:
        return low, high, f"it does not say which of its numbers, {low:g} to {high:g}, are black and white"
    bits = _told_bits(samples, high)
    if bits is not None:
        return 0.0, float(2**bits - 1), None
    if samples.bits > 16:
        bits = next((own for own in _USUAL_BITS if high < 2**own), None)
        if bits is None:
            return low, high, f"it does not say which of its numbers, {low:g} to {high:g}, are black and white"
        return 0.0, float(2**bits - 1), f"it does not say how many of its {samples.bits} bits are used; {bits} would do"
    bits = samples.bits - (samples.kind == "signed")
    is_dark = bits > 8 and 0 < high < 2 ** (bits - 2)
    return 0.0, float(2**bits - 1), _dark(high, bits) if is_dark else None


def _dark(high: float, bits: int) -> str:
    return f"none of its numbers is above {high:g} of {2**bits - 1}: it is dark, or does not say that it has fewer bits"


def _is_told(samples: Samples, low: float, high: float) -> bool:
    if samples.low is None or samples.high is None:
        return False
    return samples.low < samples.high and samples.low <= low and high <= samples.high


def _told_bits(samples: Samples, high: float) -> int | None:
    """Of the largest number in use, as the file tells it, the bits: by the standard it is no white of its own."""
    if samples.high is None or samples.high < max(high, 1):
        return None
    return min(int(samples.high).bit_length(), samples.bits)


def _is_unscaled(image: Image.Image, samples: Samples) -> bool:
    """Whether a PNG breaks its standard, by which the significant bits are the upper ones, repeated in the lower."""
    if samples.high is None:
        return False
    used = 0
    for _, strip in strips(image):
        used |= int(np.bitwise_or.reduce(np.asarray(strip).astype(np.int64), axis=None))
    significant = int(samples.high).bit_length()
    return used < 2**significant and used % 2 ** (16 - significant) != 0
