"""The photograph that is explained, beside the very pixels that predictions are made of."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from vitkit.data.decode import picture_of, warn_of_doubt
from vitkit.data.preprocess import Preprocess
from vitkit.errors import VitkitError
from vitkit.explanation.draw import Box


def read_photograph(
    preprocess: Preprocess, source: str | Path | bytes | Image.Image
) -> tuple[str | None, Image.Image, Tensor, Box]:
    """The path, the photograph, the pixels (C, height, width) as prediction reads them, and what they are of."""
    if isinstance(source, bytes):
        return None, *_read("the picture", preprocess, source)
    if isinstance(source, Image.Image):
        with tempfile.TemporaryDirectory() as folder:
            _, photograph, pixels, box = read_photograph(preprocess, _to_file(source, Path(folder) / "picture.tif"))
            return None, photograph, pixels, box
    return str(source), *_read(source, preprocess)


def _read(path: str | Path, preprocess: Preprocess, content: bytes | None = None) -> tuple[Image.Image, Tensor, Box]:
    with picture_of(path, preprocess.short_side, content) as found:
        warn_of_doubt(path, found)
    pixels = torch.from_numpy(preprocess(found.image))
    box = preprocess.box(*found.image.size)
    if found.image.size == (found.width, found.height):
        return found.image, pixels, box
    with picture_of(path, content=content) as whole:  # prediction had decoded it at a smaller scale
        photograph = whole.image
    x, y = photograph.width / found.image.width, photograph.height / found.image.height
    return photograph, pixels, (box[0] * x, box[1] * y, box[2] * x, box[3] * y)


def _to_file(picture: Image.Image, path: Path) -> Path:
    """A picture in memory, made a file without loss, for the one decoder to read."""
    try:
        exif = picture.getexif()
        picture = picture.convert("RGBA") if picture.has_transparency_data else picture
        picture.save(path, "TIFF", exif=exif)
    except (OSError, ValueError, KeyError) as error:
        raise VitkitError(f"a picture of mode {picture.mode} cannot be read; convert it to RGB") from error
    return path
