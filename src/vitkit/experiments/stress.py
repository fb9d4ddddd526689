"""Pictures made harder, step by step: what a model's accuracy holds out against.

The picture is changed, not a model's input: it is brought to one size for all models, changed there, and each model
then prepares it as it prepares any picture. So all models are asked about the very same pictures, whatever size they
look at. A grid is of the whole picture; what a model's own crop cuts off is cut off of the changed picture too.

Dropped and shuffled patches are those of Naseer et al. (arXiv 2105.10497, sections 3.1 and 3.3): patches of a grid
turned black, and cells of a grid in another order.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from PIL import Image, ImageFilter

from vitkit.experiments.stress_kinds import GRID, STRESSES

Change = Callable[[Image.Image, float, np.random.Generator], Image.Image]


def _drop(picture: Image.Image, part: float, rng: np.random.Generator) -> Image.Image:
    pixels = np.array(picture)
    rows, columns = (np.linspace(0, side, GRID + 1).round().astype(int) for side in pixels.shape[:2])
    for cell in rng.permutation(GRID**2)[: round(part * GRID**2)].tolist():
        y, x = divmod(cell, GRID)
        pixels[rows[y] : rows[y + 1], columns[x] : columns[x + 1]] = 0
    return Image.fromarray(pixels)


def _shuffle(picture: Image.Image, side: float, rng: np.random.Generator) -> Image.Image:
    """Cells of the same size change places; a rest at the right and lower edge stays."""
    pixels, k = np.array(picture), int(side)
    h, w = (length // k for length in pixels.shape[:2])
    whole = pixels[: h * k, : w * k]
    cells = whole.reshape(k, h, k, w, 3).transpose(0, 2, 1, 3, 4).reshape(k * k, h, w, 3)
    moved = cells[rng.permutation(k * k)].reshape(k, k, h, w, 3).transpose(0, 2, 1, 3, 4)
    whole[:] = moved.reshape(h * k, w * k, 3)
    return Image.fromarray(pixels)


def _smooth(picture: Image.Image, width: float, _: np.random.Generator) -> Image.Image:
    reach = max(round(width / 200 * min(picture.size)), round(width / 2))  # of small pictures at least 1, 2, 3 pixels
    return picture.filter(ImageFilter.MedianFilter(2 * reach + 1))


def _paste(picture: Image.Image, part: float, rng: np.random.Generator) -> Image.Image:
    """A rectangle of the picture's proportions, wherever it fits."""
    pixels = np.array(picture)
    height, width = (max(round(side * part**0.5), 1) for side in pixels.shape[:2])
    top, left = (int(rng.integers(0, s - own + 1)) for s, own in zip(pixels.shape, (height, width), strict=False))
    pixels[top : top + height, left : left + width] = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def _compress(picture: Image.Image, lost: float, _: np.random.Generator) -> Image.Image:
    stored = io.BytesIO()
    picture.save(stored, "JPEG", quality=100 - int(lost))
    with Image.open(stored) as opened:
        return opened.convert("RGB")


def _blur(picture: Image.Image, sigma: float, _: np.random.Generator) -> Image.Image:
    return picture.filter(ImageFilter.GaussianBlur(sigma / 100 * min(picture.size)))


CHANGES: dict[str, Change] = {
    "occlusion": _drop,
    "shuffle": _shuffle,
    "texture": _smooth,
    "patch": _paste,
    "jpeg": _compress,
    "blur": _blur,
}


def at_one_size(picture: Image.Image, short_side: int) -> Image.Image:
    """The picture with this many pixels along its short side."""
    scale = short_side / min(picture.size)
    width, height = (max(round(side * scale), short_side) for side in picture.size)
    return picture.resize((width, height), Image.Resampling.BICUBIC)


def changed(picture: Image.Image, name: str, strength: float, key: str) -> Image.Image:
    """A picture under a stress, the same for the same key.

    Args:
        picture: RGB.
        name: of the stress.
        strength: one of its strengths; the first leaves the picture as it is.
        key: decides what is drawn by lot: of a seed and the image. All strengths of an image draw the same numbers.
    """
    own = STRESSES[name]
    if strength == own.strengths[0]:
        return picture
    digest = hashlib.sha256(f"{name} {key}".encode(errors="surrogateescape")).digest()
    return CHANGES[name](picture, strength, np.random.default_rng(list(digest)))


def variants(picture: Image.Image, names: Sequence[str], key: str) -> Iterator[Image.Image]:
    """The picture as it is, then under each stress at each strength above nothing, in their order."""
    yield picture
    for name in names:
        for strength in STRESSES[name].strengths[1:]:
            yield changed(picture, name, strength, key)
