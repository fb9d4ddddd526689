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

from vitkit.data.doctor.altered import Described, Pairs, Pixels, find_altered
from vitkit.data.file_facts import THUMBNAIL, Facts, FactTable

Kind = Literal["exact", "near", "altered", "mirrored"]
# How far a search got: copies of this kind and of those before it in `Kind`, and mirrored ones.
LookedFor = Literal["altered", "near", "exact"]
# If a larger share of the images are near copies of one another, they show one scene rather than one picture.
LARGEST_GROUP, LEAST_LARGE = 0.25, 20
_MOST_PAIRS = 100  # per image and kind of copies; with more, the comparison is given up

LEAST_CORRELATION = 0.985  # of the grey values of two thumbnails
MOST_DIFFERENCE = 10.0  # of two thumbnails: root mean square over their 8-bit RGB
_LUMA = np.array([299, 587, 114])  # thousandths
_COARSE = 6  # low frequencies per direction; they suffice to exclude nearly all pairs
_EVEN = _COARSE**2 // 2 + 1  # values of a spectrum that do not change in a mirror image
_LIKELY = LEAST_CORRELATION - 1e-4  # the same limit, lowered for products in single precision
_REACH = float(np.sqrt(2 * (1 - _LIKELY))) + 1e-3  # largest distance of a likely pair of unit vectors along any axis
_BLOCK, _WIDE = 512, 4096  # rows and columns of pairs at a time: about what a core's cache holds
_REPORT_EVERY = 2048  # pictures between two reports of progress, and spectra computed at a time

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Link:
    """Two images, by index, that show the same picture.

    The kinds are `exact` (equal bytes), `near` (resized or recompressed), `altered` (cropped, captioned, recoloured and
    so on) and `mirrored` (left and right are swapped, with or without other changes).
    """

    first: int
    second: int
    kind: Kind


def find_known(
    new: Described, known: Described, progress: Callable[[int, int], None] | None = None
) -> tuple[list[tuple[int, int, Kind]], LookedFor]:
    """Find new pictures that are resized, recompressed, altered or mirrored copies of known pictures.

    `progress` receives the number of comparisons done and their total.

    Returns:
        First, a list of tuples: the index of a new picture, the index of a known picture, and the kind (near, altered
        or mirrored). Second, how far the search got: `altered` if the list includes all kinds, `near` if it lacks
        altered copies, and `exact` if it is empty because no kind could be searched for. The search stops early if a
        large share of the new pictures are similar to one another, for example because they are from a fixed camera.
    """
    first, second = _halves(progress)
    pairs = find_pairs(new.pixels, known.pixels, _MOST_PAIRS * (len(new) + len(known)), first)
    if pairs is None:
        return [], "exact"

    def with_kinds(pairs: Pairs, kind: Kind) -> list[tuple[int, int, Kind]]:
        return [*((i, j, kind) for i, j in pairs[0]), *((i, j, "mirrored") for i, j in pairs[1])]

    def is_one_scene(links: Sequence[tuple[int, int, Kind]]) -> bool:
        groups = connect([Link(i, len(new) + j, kind) for i, j, kind in links], len(new) + len(known))
        return _is_one_scene(groups[: len(new)], len(new))

    links = with_kinds(pairs, "near")
    altered = find_altered(new, known, second)
    if altered is not None:
        there = {(i, j) for i, j, _ in links}
        more = links + [link for link in with_kinds(altered, "altered") if link[:2] not in there]
        if not is_one_scene(more):
            return more, "altered"
    return ([], "exact") if is_one_scene(links) else (links, "near")


def _halves(progress: Callable[[int, int], None] | None) -> tuple[Callable[[int, int], None], ...]:
    """Return progress callbacks for two searches in succession. Each of them accounts for half of the progress."""

    def tell(done: int, total: int) -> None:
        if progress is not None:
            progress(done, total)

    return (lambda done, total: tell(done // 2, total)), (lambda done, total: tell((total + done) // 2, total))


@dataclass(frozen=True)
class Compared:
    """The contents of files that have been compared with one another, and the pairs of copies among them.

    The pairs are indices into `digests`, the lower one first. They are None if there are too many to be meaningful.
    """

    digests: tuple[bytes, ...]  # SHA-256 of the contents, sorted
    pairs: Pairs | None  # near and mirrored copies, found by thumbnails
    altered: Pairs | None  # further pairs of altered and mirrored copies, found by keypoints


def compare(
    facts: Sequence[Facts], before: Compared | None = None, progress: Callable[[int, int], None] | None = None
) -> Compared:
    """Compare all pictures with one another, except pairs that were compared in `before`.

    All images must be readable. `before` is the result of an earlier comparison of some of these images, possibly with
    others, and `progress` receives the number of images compared and their total.
    """
    table = FactTable.of(facts)
    row_of = {digest: row for row, digest in enumerate(table.column("digest"))}
    digests = tuple(sorted(row_of))
    known: frozenset[bytes] = frozenset()
    kept: Pairs = [], []
    kept_altered: Pairs = [], []
    if before is not None and before.pairs is not None and before.altered is not None:
        known = frozenset(before.digests)
        now = {digest: i for i, digest in enumerate(digests)}
        places = [now.get(digest) for digest in before.digests]
        for pairs_before, pairs_now in ((before.pairs, kept), (before.altered, kept_altered)):
            for pairs_of_kind, pairs_left in zip(pairs_before, pairs_now, strict=True):
                ends = ((places[a], places[b]) for a, b in pairs_of_kind)
                pairs_left += [_sorted(i, j) for i, j in ends if i is not None and j is not None]
    old = [i for i, digest in enumerate(digests) if digest in known]
    new = [i for i, digest in enumerate(digests) if digest not in known]
    old_pictures, new_pictures = (Described.of(table.take([row_of[digests[i]] for i in part])) for part in (old, new))
    most = _MOST_PAIRS * len(digests)
    first_half, second_half = _halves(progress)

    def near(some: Described, others: Described | None) -> Pairs | None:
        return find_pairs(some.pixels, None if others is None else others.pixels, most, first_half)

    def altered(some: Described, others: Described | None) -> Pairs | None:
        return find_altered(some, others, second_half)

    def all_of(search: Callable[[Described, Described | None], Pairs | None], kept: Pairs) -> Pairs | None:
        within: Pairs | None = search(new_pictures, None) if new else ([], [])
        across: Pairs | None = search(new_pictures, old_pictures) if new and old and within is not None else ([], [])
        if within is None or across is None:
            return None
        first, second = (
            sorted([*before, *((new[i], new[j]) for i, j in ours), *(_sorted(new[i], old[j]) for i, j in theirs)])
            for before, ours, theirs in zip(kept, within, across, strict=True)
        )
        return (first, second) if len(first) + len(second) <= most else None

    pairs = all_of(near, kept)
    if pairs is None:
        return Compared(digests, None, None)
    more = all_of(altered, kept_altered)
    if more is not None:
        linked = {pair for indices in pairs for pair in indices}
        more = ([pair for pair in more[0] if pair not in linked], [pair for pair in more[1] if pair not in linked])
    return Compared(digests, pairs, more)


def _sorted(i: int, j: int) -> tuple[int, int]:
    return (i, j) if i < j else (j, i)


def find_duplicates(
    facts: Sequence[Facts],
    progress: Callable[[int, int], None] | None = None,
    compared: Compared | None = None,
) -> tuple[list[Link], LookedFor]:
    """Find all pictures that occur more than once.

    Args:
        facts: the `Facts` of each image. All images must be readable.
        progress: receives the number of images compared and their total.
        compared: the result of `compare` for these images; None to compute it.

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
    compared = compare(facts, None, progress) if compared is None else compared
    if compared.pairs is None:
        return exact, "exact"

    def placed(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        digests = compared.digests
        return sorted(_sorted(first_of[digests[i]], first_of[digests[j]]) for i, j in pairs)

    near, mirrored = map(placed, compared.pairs)
    if compared.altered is not None:
        altered, turned = map(placed, compared.altered)
        links = _links(len(facts), near, altered, sorted([*mirrored, *turned]))
        if not _is_one_scene(connect(links, len(facts)), len(compared.digests)):
            return exact + links, "altered"
    links = _links(len(facts), near, [], mirrored)
    is_one_scene = _is_one_scene(connect(links, len(facts)), len(compared.digests))
    return (exact, "exact") if is_one_scene else (exact + links, "near")


def _links(
    images: int,
    near: Sequence[tuple[int, int]],
    altered: Sequence[tuple[int, int]],
    mirrored: Sequence[tuple[int, int]],
) -> list[Link]:
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

    def __init__(self, things: int) -> None:
        self._above = list(range(things))

    def find(self, thing: int) -> int:
        """Return the lowest number of the item's set."""
        while self._above[thing] != thing:
            self._above[thing] = self._above[self._above[thing]]
            thing = self._above[thing]
        return thing

    def join(self, first: int, second: int) -> bool:
        """Merge the sets of two items. Return False if both items were in the same set already, otherwise True."""
        low, high = sorted((self.find(first), self.find(second)))
        self._above[high] = low
        return low != high

    def roots(self) -> list[int]:
        """Return the lowest number of each item's set."""
        return [self.find(thing) for thing in range(len(self._above))]


def connect(links: Sequence[Link], images: int) -> list[int]:
    """Return the group of each image: the lowest index among the image and all images that links connect with it."""
    forest = Forest(images)
    for link in links:
        forest.join(link.first, link.second)
    return forest.roots()


# --- Thumbnails that agree -----------------------------------------------------------------------------------


def find_pairs(
    pixels: Pixels, others: Pixels | None, most: int, progress: Callable[[int, int], None] | None = None
) -> Pairs | None:
    """Find all pairs of thumbnails that agree, and all pairs that agree if one of the two pictures is mirrored.

    The thumbnails (n, 16, 16, 3) are compared with `others`, (m, 16, 16, 3), or with one another if it is None; the
    lower index of a pair is then the first. Return None if there are more than `most` pairs. `progress` receives the
    number of pictures compared and their total.
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
        self._order, self._keys, self._bounds = _in_order(bounds, axis)
        self._other_order, self._other_keys, self._other_bounds = (
            (self._order, self._keys, self._bounds) if self._within else _in_order(_bounds(self._other_spectra), axis)
        )

    def block(self, start: int) -> Pairs:
        """Return the pairs of one block of pictures, which begins at position `start` of the sorted order."""
        end = min(start + _BLOCK, len(self._keys))
        low = start if self._within else int(np.searchsorted(self._other_keys, self._keys[start] - _REACH))
        high = int(np.searchsorted(self._other_keys, self._keys[end - 1] + _REACH, side="right"))
        rows: list[Places] = [np.zeros(0, np.intp)]
        columns: list[Places] = [np.zeros(0, np.intp)]
        for other in range(low, high, _WIDE):  # the pairs for which an upper bound on the correlation is large enough
            block = self._other_bounds[other : min(other + _WIDE, high)]
            places = np.flatnonzero(self._bounds[start:end] @ block.T >= _LIKELY)
            row, column = np.divmod(places, len(block))
            once = (row + start < column + other) if self._within else np.ones(len(row), bool)
            rows.append(row[once] + start)
            columns.append(column[once] + other)
        first, second = self._order[np.concatenate(rows)], self._other_order[np.concatenate(columns)]
        if self._within:
            first, second = np.minimum(first, second), np.maximum(first, second)
        even = _dot(self._spectra[first, :_EVEN], self._other_spectra[second, :_EVEN])
        odd = _dot(self._spectra[first, _EVEN:], self._other_spectra[second, _EVEN:])
        matches: Pairs = ([], [])
        for pairs, bound, is_mirrored in ((matches[0], even + odd, False), (matches[1], even - odd, True)):
            likely = bound >= _LIKELY
            i, j = first[likely], second[likely]
            same = agree(self._pixels, self._others, i, j, is_mirrored=is_mirrored)
            pairs += zip(i[same].tolist(), j[same].tolist(), strict=True)
        return matches


def _in_order(bounds: Floats, axis: npt.NDArray[np.floating[Any]]) -> tuple[Places, Floats, Floats]:
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
    even = np.tile(np.arange(_COARSE) % 2 == 0, _COARSE)
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


def agree(pixels: Pixels, others: Pixels, first: Places, second: Places, *, is_mirrored: bool) -> npt.NDArray[np.bool_]:
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
