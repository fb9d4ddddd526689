"""Pictures in memory: PIL images, numpy arrays and torch tensors, preprocessed exactly like files.

| what | shape | numbers |
|---|---|---|
| PIL image | any | any mode; EXIF orientation and transparency are handled as in a file |
| numpy array | (height, width), or (height, width, C) | uint8 from 0 to 255, or floats from 0 to 1 |
| torch tensor | (height, width), or (C, height, width) | the same |

C is 1 (grey), 3 (RGB) or 4 (RGB and opacity). Floats are rounded to the nearest of 256 levels, as in files.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from PIL import Image

import vitkit.data.sources  # noqa: F401  # registers the kinds of archives that a path may lead into
from vitkit.data.decode import UnreadableImageError, picture_of, reason
from vitkit.data.picture import MAX_PIXELS, Picture, flattened, upright
from vitkit.data.storage import Stored
from vitkit.errors import VitkitError
from vitkit.text.arguments import path_text, type_of

if TYPE_CHECKING:
    from torch import Tensor

InMemory: TypeAlias = "Image.Image | npt.NDArray[Any] | Tensor"
_EXPECTED = "expected a path, a PIL image, a numpy array or a torch tensor"


@dataclass(frozen=True, eq=False)
class PictureInMemory:
    """A picture in memory as the caller passed it, with a name for its row in results, such as `picture 0`."""

    name: str
    image: Image.Image | npt.NDArray[Any] | Tensor


Source: TypeAlias = str | PictureInMemory | Stored


def is_in_memory(source: object) -> bool:
    """Return whether an object is a PIL image, or an array or tensor of one or several pictures."""
    if isinstance(source, np.ndarray):
        return source.dtype.kind not in "OUS"  # an array of texts or other objects is a list of sources
    return isinstance(source, Image.Image) or _is_tensor(source)


def sources_of(sources: object) -> Iterator[Source]:
    """Yield each source in order: a path as text, an image in a storage, or a named picture in memory.

    The argument is one source or an iterable of sources. An array or tensor with four axes contains several pictures.

    Raises:
        VitkitError: a source is neither a path nor a picture; the message names its type.
    """
    # Whether the argument may be iterable, but contains bytes or keys, not sources.
    is_content = isinstance(sources, (bytes, bytearray, memoryview, Mapping)) or hasattr(sources, "read")
    if isinstance(sources, (str, os.PathLike, PictureInMemory, Stored)):
        sources = [sources]
    elif is_in_memory(sources):
        if getattr(sources, "ndim", 0) != 4:
            sources = [sources]
    elif not isinstance(sources, Iterable) or is_content:
        raise VitkitError(
            "data.source-type",
            f"{type_of(sources)} is neither a picture nor a list of pictures: {_EXPECTED}, or several",
        )
    for number, source in enumerate(cast("Iterable[object]", sources)):
        if isinstance(source, (PictureInMemory, Stored)):
            yield source
        elif is_in_memory(source):
            yield PictureInMemory(f"picture {number}", source)  # type: ignore[arg-type]
        elif isinstance(source, (str, os.PathLike)):
            yield path_text(source, "a source")
        else:
            raise VitkitError("data.source-type", f"source {number} is {type_of(source)}: {_EXPECTED}")


def as_image(picture: Image.Image | npt.NDArray[Any] | Tensor, name: str = "the picture") -> Image.Image:
    """Convert an array or tensor to a PIL image in L, RGB or RGBA; return a PIL image unchanged.

    The docstring of this module lists the accepted shapes and numbers; others raise VitkitError, beginning with `name`.
    """
    if isinstance(picture, Image.Image):
        return picture
    if _is_tensor(picture):
        kind, axes = f"{name} is a tensor", "(C, height, width)"
        tensor = cast("Tensor", picture).detach().cpu()
        array = np.asarray(tensor.float() if tensor.is_floating_point() else tensor)
        if array.ndim == 3:
            array = array.transpose(1, 2, 0)
    else:
        kind, axes = f"{name} is an array", "(height, width, C)"
        array = np.asarray(picture)
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.ndim not in (2, 3) or channels not in (1, 3, 4) or 0 in array.shape:
        raise VitkitError(
            "data.image-shape",
            f"{kind} of shape {tuple(picture.shape)}; expected (height, width), or {axes} with C 1, 3 or 4",
        )
    if array.shape[0] * array.shape[1] > MAX_PIXELS:
        raise VitkitError(
            "data.image-too-large",
            f"{name}: {array.shape[1]}x{array.shape[0]} pixels, more than the limit of {MAX_PIXELS:,}",
        )
    if array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not (low >= 0 and high <= 1):  # written so that NaN is refused, too
            raise VitkitError(
                "data.image-values",
                f"{kind} of floats from {low:.3g} to {high:.3g}, but the values of a picture must be from 0 to 1; pass "
                "images that are already normalised, (B, C, height, width), to classifier.probabilities()",
            )
        array = np.rint(array.astype(np.float64) * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise VitkitError(
            "data.image-values", f"{kind} of {array.dtype}: pass uint8 from 0 to 255, or floats from 0 to 1"
        )
    if array.ndim == 3 and channels == 1:
        array = array[:, :, 0]
    return Image.fromarray(np.ascontiguousarray(array))


@contextmanager
def open_in_memory(picture: PictureInMemory, short_side: int | None = None) -> Iterator[Picture]:
    """Yield a picture in memory as `decode.picture_of` yields the picture of a file.

    Raises:
        UnreadableImageError: the picture is a PIL image whose file is damaged or closed.
        VitkitError: the picture cannot be converted (`as_image`), or images of its mode cannot be encoded.
    """
    image = as_image(picture.image, picture.name)
    if not all(image.size):
        raise UnreadableImageError("data.image-empty", "it has no pixels")
    # The range of such numbers is stated in the tags of a file, so these images are encoded and decoded as a file.
    if image.mode.startswith(("I", "F")):
        data = io.BytesIO()
        try:
            exif = image.getexif()
            # Only a PNG can hold 16 bits with transparency; RGBA has 8 bits.
            is_transparent_16_bit = image.has_transparency_data and image.mode == "I;16"
            if image.has_transparency_data and not is_transparent_16_bit:
                image = image.convert("RGBA")
            image.save(data, "PNG" if is_transparent_16_bit else "TIFF", exif=exif)
        except (OSError, ValueError, KeyError) as error:
            raise VitkitError(
                "data.image-mode", f"a picture of mode {image.mode} cannot be read; convert it to RGB"
            ) from error
        with picture_of(picture.name, short_side, data.getvalue()) as decoded:
            yield decoded
        return
    try:
        if image.width * image.height > MAX_PIXELS:
            raise UnreadableImageError(
                "data.image-too-large", f"{image.width}x{image.height} pixels, more than the limit of {MAX_PIXELS:,}"
            )
        rgb, doubt = flattened(upright(image))
    except Exception as error:  # a PIL image reads its file only now
        raise UnreadableImageError("data.image-unreadable", reason(picture.name, error, b"file")) from error
    yield Picture(rgb, str(image.format or "memory"), image.mode, rgb.width, rgb.height, is_animated=False, doubt=doubt)


def _is_tensor(source: object) -> bool:
    torch = sys.modules.get("torch")  # there are no tensors before torch is imported
    return torch is not None and isinstance(source, torch.Tensor)
