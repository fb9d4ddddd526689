"""Keypoints: positions in a picture that can be recognised after it was cropped, captioned, recoloured or framed.

A keypoint is a bright or a dark blob at one of eight sizes: an extremum of a difference of Gaussians (Lowe 2004,
doi:10.1023/B:VISI.0000029664.99615.94). Its descriptor consists of the 20 lowest cosine coefficients of the patch
around the blob, after the mean and the contrast are removed, in three bits each. Patches are upright, so a picture that
is rotated by more than about 15 degrees is not recognised. Mirroring a picture only changes the signs of the
coefficients with an odd horizontal frequency. All arithmetic up to the patches is in integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

SHORT = 96  # pixels of the short side to which every picture is resized
LEVELS = 8  # sizes of blobs, each about 1.4 times the one before
COEFFICIENTS = 20
STEP = 0.14  # quantisation step of the coefficients, whose vector has length 1
BYTES = 12  # of a keypoint
PLACES = 4095  # positions along either side of a picture
MOST = 96  # keypoints of a detailed picture; a picture with little detail gets at most 95, which marks it
_DETAILED_BLOBS, _DETAILED_CONTRAST = 120, 48  # a picture with so many blobs of so much contrast is detailed
_MIN_CONTRAST = 6  # of a blob, in 16ths of a grey level
_MAX_CURVATURE_RATIO = 6.0  # of the principal curvatures; with a larger ratio, an extremum is an edge
_CELLS = 4  # cells of the grid along the short side; keypoints are taken from each cell
_FRACTIONS = 16  # the position of a patch is rounded to 16ths of a pixel

# Correct the unequal steps between the levels of an octave, and weaken the finest, which JPEG and noise affect.
_WEIGHTS = np.array([1.2, 1.0] + [2.0, 1.0] * (LEVELS // 2 - 1))

# The samples of a patch relative to its keypoint, in pixels, for the two sizes of an octave; and the patch's border.
_SAMPLES = np.array([[-7, -5, -3, -1, 1, 3, 5, 7], [-10, -7, -4, -1, 1, 4, 7, 10]])
_REACH = (8.0, 8 * 2**0.5)

Ints = npt.NDArray[np.int64]
Grey = npt.NDArray[np.uint8]
Fine = npt.NDArray[np.uint16]


def working_copy(picture: Image.Image) -> Grey:
    """Return the grey values (height, width) of a picture, which is resized for the search for keypoints."""
    scale = SHORT / min(picture.size)
    width, height = (min(4 * SHORT, max(SHORT, round(side * scale))) for side in picture.size)
    interpolation = Image.Resampling.BILINEAR if scale < 1 else Image.Resampling.BICUBIC
    return np.asarray(picture.convert("L").resize((width, height), interpolation))


def find_keypoints(pictures: Sequence[Grey]) -> list[bytes]:
    """Find at most 96 keypoints of each picture. A keypoint is packed into 12 bytes (unpacked by `altered.Appearance`).

    Args:
        pictures: results of `working_copy`. Pictures of similar shape are processed together to save time, which does
            not change the keypoints.
    """
    packed = [b""] * len(pictures)
    by_shape: dict[tuple[int, ...], list[int]] = {}  # the pictures by their shape, rounded up to multiples of 32
    for i, picture in enumerate(pictures):
        by_shape.setdefault(tuple(-(-side // 32) * 32 for side in picture.shape), []).append(i)
    for (padded_height, padded_width), members in by_shape.items():
        # Extend the pictures to canvases (n, H, W) of one shape by repeating their last rows and columns.
        sizes = np.array([pictures[i].shape for i in members])
        canvas = np.empty((len(members), padded_height, padded_width), np.uint8)
        for page, i, (h, w) in zip(canvas, members, sizes, strict=True):
            page[:h, :w] = pictures[i]
            page[:h, w:] = pictures[i][:, -1:]
            page[h:] = page[h - 1]
        for i, keypoints in zip(members, _find_on_canvas(canvas, sizes), strict=True):
            packed[i] = keypoints
    return packed


def _find_on_canvas(canvas: Grey, sizes: Ints) -> list[bytes]:
    """Return the packed keypoints of each picture. The pictures have the (height, width) `sizes`, (n, 2)."""
    pyramid = _pyramid(canvas)
    points = _blobs(pyramid)
    points = points.take((points.y < sizes[points.picture, 0]) & (points.x < sizes[points.picture, 1]))
    pictures_of_strong = points.picture[points.contrast >= _DETAILED_CONTRAST]
    is_detailed = np.bincount(pictures_of_strong, minlength=len(canvas)) >= _DETAILED_BLOBS
    max_points = np.where(is_detailed, MOST, MOST - 1)

    # Select keypoints that are spread over the cells of a grid: the strongest keypoint of each cell comes first, then
    # the second strongest of each cell, and so on.
    cells = np.maximum(np.round(_CELLS * sizes / sizes.min(axis=1, keepdims=True)), 1)[points.picture]  # (points, 2)
    height, width = sizes[points.picture].T  # of the picture of each keypoint
    row = (cells[:, 0] * points.y / height).astype(np.int64)
    column = (cells[:, 1] * points.x / width).astype(np.int64)
    columns = int(cells.max(initial=1))
    rank_in_cell, _ = _ranked((points.picture * columns + row) * columns + column, points.contrast)
    # Order by the rank within the cell, and keypoints of the same rank by their contrast, which has 14 bits.
    rank, order = _ranked(points.picture, points.contrast + ((31 - rank_in_cell.clip(max=31)) << 14))
    points = points.take(order[rank[order] < max_points[points.picture[order]]])

    # 64 bits: 20 coefficients of 3 bits, whether the keypoint is bright, and its level.
    words = (_describe(points, pyramid) << (3 * np.arange(COEFFICIENTS, dtype=np.uint64))).sum(1, dtype=np.uint64)
    words |= points.is_bright.astype(np.uint64) << np.uint64(60)
    words |= points.level.astype(np.uint64) << np.uint64(61)
    words = words.astype("<u8")
    height, width = sizes[points.picture].T  # of the selected keypoints
    x = np.round(PLACES * points.x / width).clip(0, PLACES).astype("<u2")
    y = np.round(PLACES * points.y / height).clip(0, PLACES).astype("<u2")
    ends = np.searchsorted(points.picture, np.arange(len(canvas) + 1)).tolist()
    parts = [slice(start, end) for start, end in pairwise(ends)]  # the keypoints of each picture
    return [words[part].tobytes() + x[part].tobytes() + y[part].tobytes() for part in parts]


@dataclass(frozen=True)
class _Pyramid:
    """Pictures at eight levels of blur. The levels are flattened arrays (n, height, width), one after the other."""

    images: Fine  # the blurred pictures
    differences: npt.NDArray[np.int16]  # each level minus the less blurred level before it
    levels: Ints  # (8, 4): each level's first index in `images`, its height and width, and its pixel size on the canvas
    extrema: Ints  # indices into `differences` of the values with the largest absolute value within two pixels


class _Points(NamedTuple):
    """The keypoints of several pictures, one entry per keypoint."""

    picture: Ints  # the index of the picture
    level: Ints  # the index of the blob's size, 0 to 7
    y: npt.NDArray[np.float64]  # in pixels of the canvas
    x: npt.NDArray[np.float64]
    contrast: Ints  # to the surroundings, below 2 ** 14
    is_bright: npt.NDArray[np.bool_]  # whether the keypoint is brighter than its surroundings

    def take(self, selected: npt.NDArray[Any]) -> _Points:
        return _Points(*(values[selected] for values in self))


def _pyramid(canvas: Grey) -> _Pyramid:
    n, height, width = canvas.shape
    size = sum(2 * n * (height >> octave) * (width >> octave) for octave in range(LEVELS // 2))
    blurred = np.empty(size, np.uint16)
    differences = np.empty(size, np.int16)
    levels: list[tuple[int, int, int, int]] = []
    extrema: list[Ints] = []
    start = 0
    images = _smooth(canvas.astype(np.uint16) << np.uint16(4))  # four bits for fractions of a grey level
    for octave in range(LEVELS // 2):
        _, h, w = images.shape
        span = slice(start, start + 2 * images.size)
        level = blurred[span].reshape(2, n, h, w)
        change = differences[span].reshape(2, n, h, w)
        level[0] = _smooth(images)
        level[1] = _smooth(level[0], 2)
        # The differences of unsigned numbers wrap around, and are right when they are read as signed numbers.
        np.subtract(level[0], images, out=change[0].view(np.uint16))
        np.subtract(level[1], level[0], out=change[1].view(np.uint16))

        # The values whose absolute value is the largest within two rows and columns.
        magnitude = np.abs(change.reshape(-1))
        largest = magnitude
        for stride in (1, w):
            for shift in (stride, 2 * stride, stride):  # the largest of two values, of four, of five
                largest = np.maximum(largest[:-shift], largest[shift:])
        middle = 2 * w + 2  # from the first of 5 x 5 positions to the one in the middle
        is_extremum = (largest == magnitude[middle : middle + len(largest)]) & (largest > _MIN_CONTRAST)
        at = np.flatnonzero(is_extremum) + middle
        row, column = at // w % h, at % w
        extrema.append(at[(column >= 2) & (column < w - 2) & (row >= 2) & (row < h - 2)] + start)

        levels += [(start + i * images.size, h, w, 2**octave) for i in range(2)]
        start = span.stop
        images = level[1, :, ::2, ::2]
    return _Pyramid(blurred, differences, np.array(levels), np.concatenate(extrema))


def _smooth(images: Fine, distance: int = 1) -> Fine:
    """Blur images (n, h, w) by [1 4 6 4 1] / 16 in both directions, with taps that are `distance` pixels apart."""
    n, h, w = images.shape
    margin = 2 * distance
    framed = np.empty((n, h + 2 * margin, w + 2 * margin), np.uint16)
    framed[:, margin:-margin, margin:-margin] = images
    framed[:, margin:-margin, :margin] = images[:, :, :1]  # repeat the borders
    framed[:, margin:-margin, -margin:] = images[:, :, -1:]
    framed[:, :margin] = framed[:, margin, None]
    framed[:, -margin:] = framed[:, -margin - 1, None]
    rows, columns = framed.shape[1:]
    flat = framed.reshape(-1)  # sums across the ends of rows are in the margin, which is cut off
    for stride in (distance, distance * columns):
        for _ in range(4):  # [1 4 6 4 1] is [1 1] convolved with itself four times
            flat = flat[:-stride] + flat[stride:]
        flat >>= 4
    return np.lib.stride_tricks.as_strided(flat, (n, h, w), (2 * rows * columns, 2 * columns, 2), writeable=False)


def _blobs(pyramid: _Pyramid) -> _Points:
    """Find the extrema that are blobs rather than edges, and their positions to a fraction of a pixel."""
    starts, heights, widths, pixels = pyramid.levels.T
    at = pyramid.extrema
    level = np.searchsorted(starts, at, side="right") - 1
    w = widths[level]

    def around(offset: Ints | int) -> Ints:  # the values at an offset from the extrema
        return pyramid.differences[at + offset].astype(np.int64)

    here, left, right, up, down = around(0), around(-1), around(1), around(-w), around(w)
    # The second derivatives; the mixed one is times 4.
    xx, yy = left + right - 2 * here, up + down - 2 * here
    xy4 = around(-w - 1) + around(w + 1) - around(1 - w) - around(w - 1)
    determinant = 16 * xx * yy - xy4**2
    is_round = 16 * (xx + yy) ** 2 * _MAX_CURVATURE_RATIO < determinant * (_MAX_CURVATURE_RATIO + 1) ** 2
    is_blob = (determinant > 0) & is_round
    # The extrema of parabolas through three neighbouring pixels.
    x_offset = ((left - right)[is_blob] / (2 * xx[is_blob])).clip(-0.5, 0.5)
    y_offset = ((up - down)[is_blob] / (2 * yy[is_blob])).clip(-0.5, 0.5)
    at, here, level = at[is_blob], here[is_blob], level[is_blob]
    picture, position = np.divmod(at - starts[level], heights[level] * widths[level])
    row, column = np.divmod(position, widths[level])
    return _Points(
        picture,
        level,
        y=(row + y_offset) * pixels[level] + 0.5,
        x=(column + x_offset) * pixels[level] + 0.5,
        contrast=(_WEIGHTS[level] * np.abs(here)).astype(np.int64),
        is_bright=here < 0,
    )


def _ranked(group: Ints, merit: Ints) -> tuple[Ints, Ints]:
    """Return each entry's rank in its group, the highest merit first, and the indices sorted by group and rank."""
    index = np.arange(len(group))
    # A single key of group, inverted merit (at most 2 ** 20) and index (23 bits) is sorted faster than two keys.
    order = np.sort(group << 44 | ((1 << 20) - merit) << 23 | index) & ((1 << 23) - 1)
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    rank = np.empty_like(order)
    rank[order] = index - np.repeat(starts, np.diff(starts, append=len(order)))
    return rank, order


def _describe(points: _Points, pyramid: _Pyramid) -> npt.NDArray[np.uint64]:
    """Return the quantised descriptors of keypoints (points, 20), whose values are 0 to 7."""
    starts, heights, widths, pixels = pyramid.levels[points.level].T[:, :, None]
    size = points.level % len(_SAMPLES)
    around = _SAMPLES[size]  # (points, 8)
    # Positions in 16ths of a pixel of the level.
    y = np.round(_FRACTIONS * (points.y[:, None] - 0.5) / pixels).astype(np.int64)
    x = np.round(_FRACTIONS * (points.x[:, None] - 0.5) / pixels).astype(np.int64)
    row, down = np.divmod(y, _FRACTIONS)
    column, right = np.divmod(x, _FRACTIONS)
    patches = np.zeros((len(size), 8, 8))
    for row_step, row_weight in ((0, _FRACTIONS - down), (1, down)):  # interpolate between four pixels
        rows = starts + ((row + row_step + around).clip(0, heights - 1) + points.picture[:, None] * heights) * widths
        for column_step, column_weight in ((0, _FRACTIONS - right), (1, right)):
            columns = (column + column_step + around).clip(0, widths - 1)
            weight = (row_weight * column_weight)[:, :, None]
            patches += pyramid.images[rows[:, :, None] + columns[:, None, :]] * weight
    flat = patches.reshape(-1, 64)
    spectra = np.empty((len(flat), COEFFICIENTS))
    for i in range(len(_SAMPLES)):
        spectra[size == i] = flat[size == i] @ _WAVES[i]
    length = np.sqrt((spectra**2).sum(axis=1, keepdims=True)).clip(1)
    return (np.floor(spectra / (STEP * length)) + 4).clip(0, 7).astype(np.uint64)


def frequencies() -> tuple[Ints, Ints]:
    """Return the vertical and the horizontal frequency of each coefficient, the lowest first."""
    down, right = np.mgrid[:6, :6].reshape(2, -1)
    low = np.flatnonzero((down + right > 0) & (down + right < 6))
    order = low[np.argsort(np.hypot(down[low], right[low]), kind="stable")]
    return down[order], right[order]


def _waves(size: int) -> npt.NDArray[np.float64]:
    """Return the cosine basis of patches of one size, scaled and rounded to whole numbers, (64, 20).

    Higher frequencies have larger factors, because they are weaker in photographs.
    """
    down, right = frequencies()
    x = np.pi * (_SAMPLES[size] / _REACH[size] + 1) / 2
    waves = np.cos(down[:, None, None] * x[:, None]) * np.cos(right[:, None, None] * x)  # (20, 8, 8)
    waves -= waves.mean(axis=(1, 2), keepdims=True)
    waves *= np.hypot(down, right)[:, None, None] ** 1.2 / np.sqrt((waves**2).sum(axis=(1, 2), keepdims=True))
    return np.ascontiguousarray(np.round(4096 * waves.reshape(COEFFICIENTS, -1).T))


_WAVES = [_waves(size) for size in range(len(_SAMPLES))]
