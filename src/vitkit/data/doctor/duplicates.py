"""Find photographs that occur more than once: identical files, resized or recompressed pictures, and altered copies.

Two pictures count as copies if their 16 x 16 thumbnails agree in structure (correlation of the grey values) and in
colour, or if their keypoints have the same arrangement (`altered`). The thresholds were chosen by measurements
(docs/decisions/0009-duplicates.md).

`find_pairs` finds the thumbnails that agree without comparing every pair in full. Whether two thumbnails agree depends
only on these two, not on their order or on other pictures, and is computed in integers. Earlier results therefore stay
valid when pictures are added.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # scikit-learn brings it

from vitkit.data.doctor.altered import Appearance, Pairs, Pixels, find_altered
from vitkit.data.file_facts import THUMBNAIL, Facts, FactTable

Kind = Literal["exact", "near", "altered", "mirrored"]
# How far a search got: it covered copies of this kind and of the kinds before it in `Kind`, and mirrored ones.
SearchDepth = Literal["altered", "near", "exact"]
# If a group of copies has more than a quarter of the images, and more than 20, it shows one scene, not one picture.
LARGEST_GROUP, LEAST_LARGE = 0.25, 20
_MAX_PAIRS = 100  # per image and kind of copies; with more, the comparison is given up

LEAST_CORRELATION = 0.985  # of the grey values of two thumbnails
MOST_DIFFERENCE = 10.0  # of two thumbnails: root mean square over their 8-bit RGB
_LUMA = np.array([299, 587, 114])  # thousandths
_COARSE = 6  # low frequencies per direction; they suffice to exclude nearly all pairs
_EVEN = _COARSE**2 // 2 + 1  # columns of `spectra` that do not change in a mirror image
_LIKELY = LEAST_CORRELATION - 1e-4  # the same limit, lowered because the bounds are computed in single precision
_REACH = float(np.sqrt(2 * (1 - _LIKELY))) + 1e-3  # largest distance of a likely pair of unit vectors along any axis
_BLOCK, _COLUMNS = 512, 4096  # rows and columns of pairs that are compared at a time; they fit into a core's cache
_REPORT_EVERY = 2048  # pictures between two reports of progress, and spectra computed at a time

IndexPairs = Sequence[tuple[int, int]]
Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Link:
    """Two images, by index, that show the same picture.

    The kinds are `exact` (equal bytes), `near` (resized or recompressed), `altered` (cropped, captioned, recoloured and
    so on) and `mirrored` (left and right are swapped, with or without other changes).
    """

    first: int
    second: int
    kind: Kind


def find_copies_of_known(
    new: Appearance, known: Appearance, progress: Callable[[int, int], None] | None = None
) -> tuple[list[tuple[int, int, Kind]], SearchDepth]:
    """Find new pictures that are resized, recompressed, altered or mirrored copies of known pictures.

    `progress` receives the number of comparisons done and their total.

    Returns:
        First, a list of tuples: the index of a new picture, the index of a known picture, and the kind (near, altered
        or mirrored). Second, how far the search got: `altered` if the list includes all kinds, `near` if it lacks
        altered copies, and `exact` if it is empty because no kind could be searched for. The search stops early if a
        large share of the new pictures are similar to one another, for example because they are from a fixed camera.
    """
    first_half, second_half = _halves(progress)
    near = find_pairs(new.pixels, known.pixels, _MAX_PAIRS * (len(new) + len(known)), first_half)
    if near is None:
        return [], "exact"

    def with_kinds(pairs: Pairs, kind: Kind) -> list[tuple[int, int, Kind]]:
        direct = [(i, j, kind) for i, j in pairs.direct]
        mirrored: list[tuple[int, int, Kind]] = [(i, j, "mirrored") for i, j in pairs.mirrored]
        return direct + mirrored

    def is_one_scene(copies: Sequence[tuple[int, int, Kind]]) -> bool:
        groups = connect([Link(i, len(new) + j, kind) for i, j, kind in copies], len(new) + len(known))
        return _is_one_scene(groups[: len(new)], len(new))

    near_copies = with_kinds(near, "near")
    altered = find_altered(new, known, second_half)
    if altered is not None:
        copies = near_copies + with_kinds(_without(altered, near), "altered")
        if not is_one_scene(copies):
            return copies, "altered"
    return ([], "exact") if is_one_scene(near_copies) else (near_copies, "near")


def _halves(progress: Callable[[int, int], None] | None) -> tuple[Callable[[int, int], None], ...]:
    """Return progress callbacks for two searches in succession. Each of them accounts for half of the progress."""
    report = progress or (lambda *_: None)
    return (lambda done, total: report(done // 2, total)), (lambda done, total: report((total + done) // 2, total))


@dataclass(frozen=True)
class Comparison:
    """Files that have been compared with one another by content, and the pairs of copies among them.

    A pair consists of two indices into `digests`, the lower one first. A field is None if there are too many pairs to
    be meaningful.
    """

    digests: tuple[bytes, ...]  # SHA-256 of the contents, sorted
    pairs: Pairs | None  # near and mirrored copies, found by thumbnails
    altered: Pairs | None  # further pairs of altered and mirrored copies, found by keypoints


def compare(
    facts: Sequence[Facts], before: Comparison | None = None, progress: Callable[[int, int], None] | None = None
) -> Comparison:
    """Compare all pictures with one another, except pairs that were compared in `before`.

    All images must be readable. `before` is the result of an earlier comparison of some of these images, possibly with
    others, and `progress` receives the number of images compared and their total.
    """
    old_digests: tuple[bytes, ...] = ()
    old_near, old_altered = Pairs([], []), Pairs([], [])
    if before is not None and before.pairs is not None and before.altered is not None:
        old_digests, old_near, old_altered = before.digests, before.pairs, before.altered

    # Number the pictures by the order of their digests.
    table = FactTable.of(facts)
    row_of = {digest: row for row, digest in enumerate(table.column("digest"))}
    digests = tuple(sorted(row_of))
    index_of = {digest: i for i, digest in enumerate(digests)}
    new_index = [index_of.get(digest) for digest in old_digests]  # None for files that are not compared now

    already_compared = frozenset(old_digests)
    old = [i for i, digest in enumerate(digests) if digest in already_compared]
    new = [i for i, digest in enumerate(digests) if digest not in already_compared]
    old_pictures = Appearance.of(table.take([row_of[digests[i]] for i in old]))
    new_pictures = Appearance.of(table.take([row_of[digests[i]] for i in new]))

    max_pairs = _MAX_PAIRS * len(digests)
    first_half, second_half = _halves(progress)

    def add_new(old_pairs: Pairs, search: Callable[[Appearance | None], Pairs | None]) -> Pairs | None:
        """Add to the old pairs those of new pictures, among themselves and with old pictures; None if too many."""
        within = search(None) if new else Pairs([], [])
        if within is None:
            return None
        across = search(old_pictures) if new and old else Pairs([], [])
        if across is None:
            return None

        def combine(of_old: IndexPairs, of_new: IndexPairs, of_both: IndexPairs) -> list[tuple[int, int]]:
            pairs_of_old = _renumber(of_old, new_index, new_index)
            return sorted(pairs_of_old + _renumber(of_new, new, new) + _renumber(of_both, new, old))

        pairs = Pairs(
            combine(old_pairs.direct, within.direct, across.direct),
            combine(old_pairs.mirrored, within.mirrored, across.mirrored),
        )
        return pairs if pairs.total <= max_pairs else None

    def search_near(others: Appearance | None) -> Pairs | None:
        return find_pairs(new_pictures.pixels, None if others is None else others.pixels, max_pairs, first_half)

    near = add_new(old_near, search_near)
    if near is None:
        return Comparison(digests, None, None)
    altered = add_new(old_altered, lambda others: find_altered(new_pictures, others, second_half))
    return Comparison(digests, near, None if altered is None else _without(altered, near))


def _renumber(pairs: IndexPairs, first: Sequence[int | None], second: Sequence[int | None]) -> list[tuple[int, int]]:
    """Return the pair (first[i], second[j]) for each pair (i, j), the lower number first; leave out pairs with None."""
    renumbered = ((first[i], second[j]) for i, j in pairs)
    return [_sorted(i, j) for i, j in renumbered if i is not None and j is not None]


def _without(pairs: Pairs, others: Pairs) -> Pairs:
    """Return the pairs that are not among the others, be they direct or mirrored."""
    left_out = {*others.direct, *others.mirrored}
    return Pairs(
        [pair for pair in pairs.direct if pair not in left_out],
        [pair for pair in pairs.mirrored if pair not in left_out],
    )


def _sorted(i: int, j: int) -> tuple[int, int]:
    return (i, j) if i < j else (j, i)


def find_duplicates(facts: Sequence[Facts], comparison: Comparison | None = None) -> tuple[list[Link], SearchDepth]:
    """Find all pictures that occur more than once.

    Args:
        facts: the `Facts` of each image. All images must be readable.
        comparison: the result of `compare` for these images; None to compute it.

    Returns:
        First, the links that connect all copies of a picture, mirrored copies last. Second, how far the search got:
        `altered` if the links include all kinds, `near` if they lack altered copies, and `exact` if they include only
        equal files. The search stops early if a large share of the images are similar to one another, for example
        because they are from a fixed camera.
    """
    first_of: dict[bytes, int] = {}
    exact = []
    for i, digest in enumerate(FactTable.of(facts).column("digest")):
        first = first_of.setdefault(digest, i)
        if first != i:
            exact.append(Link(first, i, "exact"))
    comparison = compare(facts) if comparison is None else comparison
    if comparison.pairs is None:
        return exact, "exact"
    digests = comparison.digests

    def image_pairs(pairs: IndexPairs) -> list[tuple[int, int]]:
        return sorted(_sorted(first_of[digests[i]], first_of[digests[j]]) for i, j in pairs)

    near, mirrored = image_pairs(comparison.pairs.direct), image_pairs(comparison.pairs.mirrored)
    if comparison.altered is not None:
        altered = image_pairs(comparison.altered.direct)
        links = _links(len(facts), near, altered, sorted(mirrored + image_pairs(comparison.altered.mirrored)))
        if not _is_one_scene(connect(links, len(facts)), len(digests)):
            return exact + links, "altered"
    links = _links(len(facts), near, [], mirrored)
    if not _is_one_scene(connect(links, len(facts)), len(digests)):
        return exact + links, "near"
    return exact, "exact"


def _links(images: int, near: IndexPairs, altered: IndexPairs, mirrored: IndexPairs) -> list[Link]:
    """Return as few links as possible that connect the pairs into groups, and mirrored pairs of different groups."""
    forest = Forest(images)
    links = [Link(i, j, "near") for i, j in near if forest.join(i, j)]
    links += [Link(i, j, "altered") for i, j in altered if forest.join(i, j)]
    return links + [Link(i, j, "mirrored") for i, j in mirrored if forest.find(i) != forest.find(j)]


def _is_one_scene(groups: Sequence[int], images: int) -> bool:
    """Return whether a large share of the images are in one group, given the number of each image's group."""
    return max(Counter(groups).values(), default=0) > max(LEAST_LARGE, LARGEST_GROUP * images)


class Forest:
    """A partition of numbered items into sets; each set is represented by its lowest number (union-find)."""

    def __init__(self, items: int) -> None:
        self._parent = list(range(items))

    def find(self, item: int) -> int:
        """Return the lowest number of the item's set."""
        while self._parent[item] != item:
            self._parent[item] = self._parent[self._parent[item]]
            item = self._parent[item]
        return item

    def join(self, first: int, second: int) -> bool:
        """Merge the sets of two items. Return False if both items were in the same set already, otherwise True."""
        low, high = sorted((self.find(first), self.find(second)))
        self._parent[high] = low
        return low != high

    def roots(self) -> list[int]:
        """Return the lowest number of each item's set."""
        return [self.find(item) for item in range(len(self._parent))]


def connect(links: Sequence[Link], images: int) -> list[int]:
    """Return the group of each image: the lowest index among the image and all images that links connect with it."""
    forest = Forest(images)
    for link in links:
        forest.join(link.first, link.second)
    return forest.roots()


# --- Thumbnails that agree -----------------------------------------------------------------------------------


def find_pairs(
    pixels: Pixels, others: Pixels | None, max_pairs: int, progress: Callable[[int, int], None] | None = None
) -> Pairs | None:
    """Find all pairs of thumbnails that agree, and all pairs that agree if one of the two pictures is mirrored.

    The thumbnails (n, 16, 16, 3) are compared with `others`, (m, 16, 16, 3), or with one another if it is None; the
    lower index of a pair is then the first. Return None if there are more than `max_pairs` pairs. `progress` receives
    the number of pictures compared and their total.
    """
    copies = Pairs([], [])
    reported = 0
    blocks = range(0, len(pixels), _BLOCK)
    # The pool's threads share the blocks. The matrix library's own threads would spin while they wait for one another.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
        search = _LikenessSearch(pixels, others)
        for start, pairs in zip(blocks, pool.map(search.block, blocks), strict=True):
            copies.extend(pairs)
            if copies.total > max_pairs:
                return None
            done = min(start + _BLOCK, len(pixels))
            if progress is not None and (done >= reported + _REPORT_EVERY or done == len(pixels)):
                reported = done
                progress(done, len(pixels))
    return Pairs(sorted(copies.direct), sorted(copies.mirrored))


class _LikenessSearch:
    """A search for similar thumbnails, which are sorted along the axis of their largest variance.

    Similar pictures are close together along this axis, so a block of pictures is compared only with nearby ones.
    """

    def __init__(self, pixels: Pixels, others: Pixels | None) -> None:
        self._within = others is None
        self._pixels, self._others = pixels, pixels if others is None else others
        self._spectra = spectra(pixels)
        self._other_spectra = self._spectra if others is None else spectra(others)
        bounds = _bounds(self._spectra)
        axis = bounds[0]
        if len(bounds) > 1:
            axis = np.linalg.eigh(np.cov(bounds, rowvar=False, dtype=np.float64))[1][:, -1]
        sorted_pictures = _in_order(bounds, axis)
        self._order, self._keys, self._bounds = sorted_pictures
        self._other_order, self._other_keys, self._other_bounds = (
            sorted_pictures if others is None else _in_order(_bounds(self._other_spectra), axis)
        )

    def block(self, start: int) -> Pairs:
        """Return the pairs of one block of pictures, which begins at position `start` of the sorted order."""
        end = min(start + _BLOCK, len(self._keys))
        low = start  # within one set, each pair is compared only once
        if not self._within:
            low = int(np.searchsorted(self._other_keys, self._keys[start] - _REACH))
        high = int(np.searchsorted(self._other_keys, self._keys[end - 1] + _REACH, side="right"))
        rows: list[Indices] = [np.zeros(0, np.intp)]
        columns: list[Indices] = [np.zeros(0, np.intp)]
        # Select the pairs for which the upper bound on the correlation is large enough.
        for other in range(low, high, _COLUMNS):
            block = self._other_bounds[other : min(other + _COLUMNS, high)]
            likely = np.flatnonzero(self._bounds[start:end] @ block.T >= _LIKELY)
            row, column = np.divmod(likely, len(block))
            row, column = row + start, column + other
            if self._within:
                row, column = row[row < column], column[row < column]
            rows.append(row)
            columns.append(column)
        first, second = self._order[np.concatenate(rows)], self._other_order[np.concatenate(columns)]
        if self._within:
            first, second = np.minimum(first, second), np.maximum(first, second)
        even = _dot(self._spectra[first, :_EVEN], self._other_spectra[second, :_EVEN])
        odd = _dot(self._spectra[first, _EVEN:], self._other_spectra[second, _EVEN:])

        def agreeing(bound: Floats, *, is_mirrored: bool) -> list[tuple[int, int]]:
            i, j = first[bound >= _LIKELY], second[bound >= _LIKELY]
            same = agree(self._pixels, self._others, i, j, is_mirrored=is_mirrored)
            return list(zip(i[same].tolist(), j[same].tolist(), strict=True))

        # A closer bound, from all low frequencies.
        return Pairs(agreeing(even + odd, is_mirrored=False), agreeing(even - odd, is_mirrored=True))


def _in_order(bounds: Floats, axis: npt.NDArray[np.floating[Any]]) -> tuple[Indices, Floats, Floats]:
    """Sort pictures along an axis. Return the order, the sorted positions on the axis, and the bounds in this order."""
    keys = bounds @ axis.astype(np.float32)
    order = np.argsort(keys, kind="stable")
    return order, keys[order], bounds[order]


def _bounds(spectrum: Floats) -> Floats:
    """Return unit vectors (n, 20). The dot product of two vectors is an upper bound on the pictures' correlation.

    The frequencies that change sign in a mirror image are replaced by their norm, so that the bound also holds for
    mirrored pictures (Cauchy-Schwarz inequality).
    """
    return np.hstack([spectrum[:, :_EVEN], np.linalg.norm(spectrum[:, _EVEN:], axis=1, keepdims=True)])


def spectra(pixels: Pixels) -> Floats:
    """Return the low frequencies of each thumbnail's grey values, and the norm of the high frequencies, (n, 37).

    The columns are the low frequencies that do not change in a mirror image, the norm of the high frequencies, and the
    low frequencies that change sign. In the cosine basis, the correlation of two pictures is the dot product of their
    low frequencies plus the dot product of their high frequencies, which is at most the product of the two norms. If
    one picture is mirrored, the products of the frequencies that change sign are subtracted instead of added.
    """
    basis = cosines()[:_COARSE]
    waves = np.kron(basis, basis)  # (36, 256)
    even = np.tile(np.arange(_COARSE) % 2 == 0, _COARSE)  # (36,), the waves that are the same in a mirror
    result = np.empty((len(pixels), _COARSE**2 + 1), np.float32)

    def fill(start: int) -> None:
        span = slice(start, start + _REPORT_EVERY)
        # Grey values minus their mean, as unit vectors (n, 256). A spread below one level is noise, and becomes zeros;
        # the limit is slightly lower here, since `agree` decides.
        grey = (pixels[span].reshape(-1, 3) @ (_LUMA / 1000).astype(np.float32)).reshape(-1, THUMBNAIL**2)
        grey -= grey.mean(axis=1, keepdims=True)
        length = np.linalg.norm(grey, axis=1, keepdims=True)
        structure = np.where(length > 0.999 * THUMBNAIL, grey / np.maximum(length, 1e-6), 0)
        low = structure @ waves.T
        # The norm of the high frequencies, because the orthonormal basis preserves norms.
        rest = np.sqrt(np.maximum(_dot(structure, structure) - _dot(low, low), 0))
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


def agree(
    pixels: Pixels, others: Pixels, first: Indices, second: Indices, *, is_mirrored: bool
) -> npt.NDArray[np.bool_]:
    """Return whether each pair of thumbnails agrees in structure and colour, (pairs,).

    Pair k consists of `pixels[first[k]]` and `others[second[k]]`. With `is_mirrored`, the first of the two is mirrored
    before the comparison.
    """
    result = np.zeros(len(first), bool)
    for start in range(0, len(first), _REPORT_EVERY):
        span = slice(start, start + _REPORT_EVERY)
        left, right = pixels[first[span]].astype(np.int64), others[second[span]].astype(np.int64)
        if is_mirrored:
            left = left[:, :, ::-1]
        # Grey values in thousandths of a level, (pairs, 256). Their variances and the covariance are times n squared.
        a = (left @ _LUMA).reshape(len(left), -1)
        b = (right @ _LUMA).reshape(len(right), -1)
        n = a.shape[1]
        covariance = n * (a * b).sum(axis=1) - a.sum(axis=1) * b.sum(axis=1)
        a_variance = n * (a**2).sum(axis=1) - a.sum(axis=1) ** 2
        b_variance = n * (b**2).sum(axis=1) - b.sum(axis=1) ** 2
        correlation = covariance / np.sqrt(np.maximum(a_variance, 1) * 1.0) / np.sqrt(np.maximum(b_variance, 1) * 1.0)
        noise = n * (1000 * THUMBNAIL) ** 2  # the variance of a spread of one level
        has_structure = (a_variance > noise) & (b_variance > noise)
        difference = ((left - right) ** 2).sum(axis=(1, 2, 3))
        has_same_colours = difference <= 3 * n * MOST_DIFFERENCE**2
        result[span] = has_structure & (correlation >= LEAST_CORRELATION) & has_same_colours
    return result


def _dot(a: Floats, b: Floats) -> Floats:
    return np.einsum("ij,ij->i", a, b)
