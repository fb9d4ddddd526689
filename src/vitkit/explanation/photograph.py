"""The photograph that is explained, beside the very pixels that predictions are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from vitkit.data.decode import picture_of, warn_of_doubt
from vitkit.data.in_memory import Held, is_in_memory, picture_held
from vitkit.data.preprocess import Preprocess
from vitkit.explanation.draw import Box
from vitkit.text.arguments import path_text


def read_photograph(
    preprocess: Preprocess, source: str | Path | bytes | Image.Image | npt.NDArray[Any] | Tensor
) -> tuple[str | None, Image.Image, Tensor, Box]:
    """The path, the photograph, the pixels (C, height, width) as prediction reads them, and what they are of.

    Raises:
        UnreadableImageError: there is no picture in it.
        VitkitError: it is neither a path, nor what is in a file, nor a picture in memory.
    """
    if isinstance(source, (bytes, bytearray)):
        return None, *_read("the picture", preprocess, bytes(source))
    if is_in_memory(source):
        with picture_held(Held("the picture", source)) as found:  # type: ignore[arg-type]
            warn_of_doubt("the picture", found)
        image = found.image
        return None, image, torch.from_numpy(preprocess(image)), preprocess.box(*image.size)
    path = path_text(source, "the image")
    return path, *_read(path, preprocess)


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
