"""Find pairs of thumbnails that show the same picture, without comparing every pair in full.

Whether two pictures match depends only on these two pictures, not on their order or on other pictures, and is computed
in integers. Earlier results therefore stay valid when pictures are added (docs/decisions/0009-duplicates.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # scikit-learn brings it

THUMBNAIL = 16  # pixels of its sides: enough to recognise a picture, too few to show its details
LEAST_CORRELATION = 0.985
MOST_DIFFERENCE = 10.0  # root mean square over the thumbnail's 8-bit RGB
_LUMA = np.array([299, 587, 114])  # thousandths
_COARSE = 6  # low frequencies per direction; they suffice to exclude nearly all pairs
_EVEN = _COARSE**2 // 2 + 1  # values of a spectrum that do not change in a mirror image
_LIKELY = LEAST_CORRELATION - 1e-4  # the same limit, lowered for products in single precision
_REACH = (
    float(np.sqrt(2 * (1 - _LIKELY))) + 1e-3
)  # largest distance of a likely pair along any axis; the vectors have length 1
_BLOCK, _WIDE = 512, 4096  # rows and columns of pairs at a time: about what a core's cache holds
_REPORT_EVERY = 2048  # pictures between two reports of progress, and spectra computed at a time

Floats = npt.NDArray[np.float32]
Pixels = npt.NDArray[np.uint8]
Places = npt.NDArray[np.intp]
Pairs = tuple[list[tuple[int, int]], list[tuple[int, int]]]  # near pairs, and mirrored pairs


def find_pairs(
    pixels: Pixels, others: Pixels | None, most: int, progress: Callable[[int, int], None] | None = None
) -> Pairs | None:
    """Find all pairs of thumbnails that agree, mirrored or not.

    Return None if there are more than `most` pairs.

    Args:
        pixels: the thumbnails, (n, 16, 16, 3).
        others: the thumbnails to compare `pixels` with, (m, 16, 16, 3); None to compare `pixels` with one another. Each
            pair then occurs once, with the lower index first.
        most: the largest number of pairs, mirrored ones included.
        progress: receives the number of pictures compared and their total.
    """
    near: list[tuple[int, int]] = []
    mirrored: list[tuple[int, int]] = []
    reported = 0
    blocks = range(0, len(pixels), _BLOCK)
    # Our threads share the blocks; the matrix library's own threads would spin while they wait for one another.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
        search = _LikenessSearch(pixels, others)
        for start, pairs in zip(blocks, pool.map(search.block, blocks), strict=True):
            near += pairs[0]
            mirrored += pairs[1]
            if len(near) + len(mirrored) > most:
                return None
            done = min(start + _BLOCK, len(pixels))
            if progress is not None and (done >= reported + _REPORT_EVERY or done == len(pixels)):
                reported = done
                progress(done, len(pixels))
    return sorted(near), sorted(mirrored)


class _LikenessSearch:
    """A search for similar thumbnails, which are sorted along the axis of their largest variance.

    Similar pictures are close together along this axis. Each block of pictures is therefore compared only with nearby
    pictures.

    Args:
        pixels, others: the thumbnails, as for `find_pairs`.
    """

    def __init__(self, pixels: Pixels, others: Pixels | None) -> None:
        self._within = others is None
        self._pixels, self._others = pixels, pixels if others is None else others
        self._spectra = spectra(pixels)
        self._beside = self._spectra if others is None else spectra(others)
        bounds = _bounds(self._spectra)
        axis = (
            np.linalg.eigh(np.cov(bounds, rowvar=False, dtype=np.float64))[1][:, -1] if len(bounds) > 1 else bounds[0]
        )
        self._order, self._keys, self._bounds = _in_order(bounds, axis)
        self._order_beside, self._keys_beside, self._bounds_beside = (
            (self._order, self._keys, self._bounds) if self._within else _in_order(_bounds(self._beside), axis)
        )

    def block(self, start: int) -> Pairs:
        """Return the pairs of one block of pictures, which begins at position `start` of the sorted order."""
        first, second = self._likely(start)
        even = _dot(self._spectra[first, :_EVEN], self._beside[second, :_EVEN])
        odd = _dot(self._spectra[first, _EVEN:], self._beside[second, _EVEN:])
        matches: Pairs = ([], [])
        for pairs, bound, is_mirrored in ((matches[0], even + odd, False), (matches[1], even - odd, True)):
            likely = bound >= _LIKELY
            i, j = first[likely], second[likely]
            same = agree(self._pixels, self._others, i, j, is_mirrored=is_mirrored)
            pairs += zip(i[same].tolist(), j[same].tolist(), strict=True)
        return matches

    def _likely(self, start: int) -> tuple[Places, Places]:
        """Return the pairs of a block for which an upper bound on the correlation is large enough."""
        end = min(start + _BLOCK, len(self._keys))
        low = start if self._within else int(np.searchsorted(self._keys_beside, self._keys[start] - _REACH))
        high = int(np.searchsorted(self._keys_beside, self._keys[end - 1] + _REACH, side="right"))
        rows: list[Places] = [np.zeros(0, np.intp)]
        columns: list[Places] = [np.zeros(0, np.intp)]
        for other in range(low, high, _WIDE):
            block = self._bounds_beside[other : min(other + _WIDE, high)]
            places = np.flatnonzero(self._bounds[start:end] @ block.T >= _LIKELY)
            row, column = np.divmod(places, len(block))
            once = (row + start < column + other) if self._within else np.ones(len(row), bool)
            rows.append(row[once] + start)
            columns.append(column[once] + other)
        first, second = self._order[np.concatenate(rows)], self._order_beside[np.concatenate(columns)]
        return (np.minimum(first, second), np.maximum(first, second)) if self._within else (first, second)


def _in_order(bounds: Floats, axis: npt.NDArray[np.floating[Any]]) -> tuple[Places, Floats, Floats]:
    """Sort pictures along an axis. Return the order, the sorted positions on the axis, and the bounds in this order."""
    keys = bounds @ axis.astype(np.float32)
    order = np.argsort(keys, kind="stable")
    return order, keys[order], bounds[order]


def _bounds(spectrum: Floats) -> Floats:
    """Return unit vectors (n, 20). The dot product of two vectors is an upper bound on the pictures' correlation.

    The bound also holds if one picture is mirrored. For this purpose, the frequencies that change sign in a mirror
    image are replaced by their norm (Cauchy-Schwarz inequality).
    """
    return np.hstack([spectrum[:, :_EVEN], np.linalg.norm(spectrum[:, _EVEN:], axis=1, keepdims=True)])


def spectra(pixels: Pixels) -> Floats:
    """Return the low frequencies of each thumbnail's grey values, and the norm of the high frequencies, (n, 37).

    The columns are, in this order:

    - the low frequencies that do not change in a mirror image
    - the norm of the high frequencies
    - the low frequencies that change sign in a mirror image

    In the cosine basis, the correlation of two pictures is the dot product of their low frequencies plus the dot
    product of their high frequencies. The second term is at most the product of the two norms. If one picture is
    mirrored, the products of the frequencies that change sign are subtracted instead of added.
    """
    basis = cosines()[:_COARSE]
    waves = np.kron(basis, basis)  # (36, 256)
    even = np.tile(np.arange(_COARSE) % 2 == 0, _COARSE)
    result = np.empty((len(pixels), _COARSE**2 + 1), np.float32)

    def fill(start: int) -> None:
        span = slice(start, start + _REPORT_EVERY)
        structure = _structure(pixels[span])
        low = structure @ waves.T
        rest = np.sqrt(np.maximum(_dot(structure, structure) - _dot(low, low), 0))  # lengths do not change in the basis
        result[span] = np.hstack([low[:, even], rest[:, None], low[:, ~even]])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, range(0, len(pixels), _REPORT_EVERY)))
    return result


def cosines() -> Floats:
    """Return the orthonormal basis of the discrete cosine transform (DCT-II), (16, 16), one row per frequency."""
    k, x = np.mgrid[:THUMBNAIL, :THUMBNAIL]
    basis = np.cos(np.pi * k * (2 * x + 1) / (2 * THUMBNAIL)) * np.sqrt(2 / THUMBNAIL)
    basis[0] /= np.sqrt(2)
    return basis.astype(np.float32)


def _structure(pixels: Pixels) -> Floats:
    """Return the grey values of thumbnails minus their mean, as unit vectors (n, 256); zeros for a uniform picture."""
    grey = (pixels.reshape(-1, 3) @ (_LUMA / 1000).astype(np.float32)).reshape(len(pixels), -1)
    grey -= grey.mean(axis=1, keepdims=True)
    length = np.linalg.norm(grey, axis=1, keepdims=True)
    # A spread below one level is noise. The limit here is slightly lower, since `agree` decides.
    return np.where(length > 0.999 * THUMBNAIL, grey / np.maximum(length, 1e-6), 0)


def agree(pixels: Pixels, others: Pixels, first: Places, second: Places, *, is_mirrored: bool) -> npt.NDArray[np.bool_]:
    """Return which pairs of thumbnails agree in structure and colour, (pairs,).

    With `is_mirrored`, the first picture of each pair is mirrored before the comparison.
    """
    result = np.zeros(len(first), bool)
    for start in range(0, len(first), _REPORT_EVERY):
        span = slice(start, start + _REPORT_EVERY)
        left, right = pixels[first[span]].astype(np.int64), others[second[span]].astype(np.int64)
        if is_mirrored:
            left = left[:, :, ::-1]
        a, b = ((each @ _LUMA).reshape(len(each), -1) for each in (left, right))  # thousandths of a level
        n = a.shape[1]
        covariance = n * (a * b).sum(axis=1) - a.sum(axis=1) * b.sum(axis=1)
        spread = [n * (each**2).sum(axis=1) - each.sum(axis=1) ** 2 for each in (a, b)]
        flat = n * (1000 * THUMBNAIL) ** 2  # a spread below one level is noise
        correlation = covariance / np.sqrt(np.maximum(spread[0], 1) * 1.0) / np.sqrt(np.maximum(spread[1], 1) * 1.0)
        difference = ((left - right) ** 2).sum(axis=(1, 2, 3))
        result[span] = (
            (spread[0] > flat)
            & (spread[1] > flat)
            & (correlation >= LEAST_CORRELATION)
            & (difference <= 3 * n * MOST_DIFFERENCE**2)
        )
    return result


def _dot(a: Floats, b: Floats) -> Floats:
    return np.einsum("ij,ij->i", a, b)
