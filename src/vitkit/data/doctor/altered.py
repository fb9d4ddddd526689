"""Find altered copies: pictures that were cropped, captioned, recoloured, framed, rotated or put into a collage.

The search has three steps:

1. Find candidates for corresponding keypoints by a hash of the signs of their descriptors.
2. If at least three candidates of two pictures have the same arrangement, match all keypoints of both pictures.
3. Count the matches that agree with one affine map of the plane.

As with thumbnails (`duplicates`), whether two pictures are altered copies depends only on these two pictures
(docs/decisions/0009-duplicates.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # scikit-learn brings it

from vitkit.data.doctor.keypoints import BYTES, COEFFICIENTS, MOST, PLACES, frequencies
from vitkit.data.file_facts import THUMBNAIL, Facts, FactTable

# Limits that two pictures must reach to count as copies (`_are_copies`).
LEAST_SCORE = 4.5  # the number of agreeing matches times the fraction of all matches that agree
PRECISE, DEARER = 0.0035, 1300.0  # the least score grows by the second times the excess of `off` over the first
LEAST_AGREEING = 8  # matches that agree with the best affine map
LEAST_REACHED = 0.4  # fraction of a picture's keypoints in the overlap that have an agreeing keypoint nearby
LEAST_CORRELATION = 0.25  # of the thumbnails' grey values in the overlap
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]
Pairs = tuple[list[tuple[int, int]], list[tuple[int, int]]]  # near or altered pairs, and mirrored pairs

_LUMA = np.array([0.299, 0.587, 0.114])


@dataclass(frozen=True)
class Described:
    """The appearance of n pictures: their keypoints and thumbnails."""

    words: npt.NDArray[np.uint64]  # the packed descriptors of all keypoints, picture by picture, (keypoints,)
    places: npt.NDArray[np.uint16]  # x and y in 4095ths of the picture's width and height, (keypoints, 2)
    ends: Ints  # picture i has the keypoints `words[ends[i]:ends[i+1]]`, (n + 1,)
    aspects: Floats  # width / height, (n,)
    pixels: Pixels  # thumbnails, (n, 16, 16, 3)

    @classmethod
    def of(cls, facts: Sequence[Facts]) -> Described:
        """Collect the keypoints and thumbnails of pictures from their `Facts`."""
        table = FactTable.of(facts)
        keypoints, widths, heights = table.columns("keypoints", "width", "height")
        pixels = table.thumbnails()
        counts = [len(packed) // BYTES for packed in keypoints]
        aspects = np.array(widths, np.float64) / np.array(heights, np.float64)
        words = [np.frombuffer(packed, "<u8", count) for packed, count in zip(keypoints, counts, strict=True)]
        places = [
            np.frombuffer(packed, "<u2", 2 * count, 8 * count).reshape(2, -1).T
            for packed, count in zip(keypoints, counts, strict=True)
        ]
        return cls(
            np.concatenate([np.zeros(0, np.uint64), *words]),
            np.concatenate([np.zeros((0, 2), np.uint16), *places]),
            ends_of(counts),
            aspects,
            pixels,
        )

    def __len__(self) -> int:
        return len(self.aspects)

    @cached_property
    def has_much(self) -> Bools:
        """Whether each picture has as much detail as a photograph, (n,); drawings or digits may share all keypoints."""
        return np.diff(self.ends) == MOST

    @cached_property
    def owner(self) -> Ints:
        """The index of the picture that each keypoint belongs to, (keypoints,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.ends))

    @cached_property
    def codes(self) -> npt.NDArray[np.int8]:
        """The unpacked descriptors (keypoints, 20), whose values are odd numbers from -7 to 7."""
        shifts = 3 * np.arange(COEFFICIENTS, dtype=np.uint64)
        codes = np.empty((len(self.words), COEFFICIENTS), np.int8)
        for start in range(0, len(codes), 1 << 16):
            part = self.words[start : start + (1 << 16), None] >> shifts & np.uint64(7)
            codes[start : start + (1 << 16)] = 2 * part.astype(np.int8) - 7
        return codes

    @cached_property
    def lengths(self) -> npt.NDArray[np.float32]:
        """The norm of each descriptor, (keypoints,)."""
        return np.sqrt((self.codes.astype(np.float32) ** 2).sum(axis=1))

    @cached_property
    def is_bright(self) -> npt.NDArray[np.uint8]:
        return (self.words >> np.uint64(60) & np.uint64(1)).astype(np.uint8)

    @cached_property
    def levels(self) -> npt.NDArray[np.uint8]:
        return (self.words >> np.uint64(61)).astype(np.uint8)

    @cached_property
    def points(self) -> npt.NDArray[np.complex128]:
        """The position x + y i of each keypoint, in units of the short side of its picture, (keypoints,)."""
        wide = self.aspects / np.minimum(self.aspects, 1)
        high = 1 / np.minimum(self.aspects, 1)
        x, y = self.places.T
        return (x * wide[self.owner] + y * high[self.owner] * 1j) / PLACES

    @cached_property
    def tags(self) -> npt.NDArray[np.uint64]:
        """A number per picture, (n,), which decides which picture of a pair is mapped onto the other, in any order."""
        sums = np.concatenate([[np.uint64(0)], np.cumsum(self.words)])
        return sums[self.ends[1:]] - sums[self.ends[:-1]]


_MIRROR = np.where(frequencies()[1] % 2, -1, 1).astype(np.int8)
# The mean descriptor of bright blobs, measured on photographs; dark blobs have the opposite.
_BLOB = np.array(
    [
        {(0, 2): -2, (2, 0): -2, (2, 2): 2, (0, 4): 2, (4, 0): 2}.get(frequency, 0)
        for frequency in zip(*(each.tolist() for each in frequencies()), strict=True)
    ],
    np.int8,
)
# The typical deviation from this mean.
_SPREAD = np.array([4, 4, 3.3, 3.5, 3.5, 3.3, 3.3, 2.3, 3.3, 3.3, 2.7, 2.7, 1.9, 1.9, 2.6, 2.6, 2.1, 2.1, 1.7, 1.7])


def ends_of(counts: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Ints:
    """Return the index of each picture's first keypoint, followed by the total number of keypoints, (n + 1,)."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def find_altered(
    pictures: Described, others: Described | None, progress: Callable[[int, int], None] | None = None
) -> Pairs | None:
    """Find all pairs of altered copies, and all pairs of which one picture is an altered mirror image of the other.

    Pictures are compared with `others`, or with one another if it is None; the lower index of a pair is then the first.
    Return None if so many pictures are similar to one another that the search is stopped. `progress` receives the
    number of pictures done and their total.
    """
    if not (pictures.has_much.any() or (others is not None and others.has_much.any())):
        if progress is not None:
            progress(len(pictures), len(pictures))
        return [], []
    search = _Search(pictures, others)
    near: list[tuple[int, int]] = []
    mirrored: list[tuple[int, int]] = []
    compared = reported = done = 0
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting = [pool.submit(search.block, task) for task in search.tasks]
        for task, block in zip(search.tasks, waiting, strict=True):
            pairs, number = block.result()
            compared += number
            done += task[2] - task[1]
            if pairs is not None:
                near += pairs[0]
                mirrored += pairs[1]
            is_given_up = pairs is None or compared > _MOST_COMPARED * done + _ALLOWED
            if is_given_up or len(near) + len(mirrored) > _MOST_COPIES * done + _ALLOWED:
                pool.shutdown(wait=False, cancel_futures=True)
                return None
            if progress is not None and (done >= reported + _REPORT_EVERY or done == search.size):
                reported = done
                progress(done, search.size)
    return sorted(near), sorted(mirrored)


# A keypoint is looked up by 96 hashes. In each, some of the ten least certain signs are flipped: (96, 10), the most
# likely combinations first.
_FLIPPED = sorted(
    (chosen for size in range(5) for chosen in combinations(range(10), size)),
    key=lambda chosen: (sum((i + 1) * (i + 2) for i in chosen), chosen),
)[:96]
_FLIPS = np.array([[i in chosen for i in range(10)] for chosen in _FLIPPED], np.int64)
_ALIKE = 0.7  # least cosine of the descriptors of two keypoints that match
_LEAST_HITS = 3
_HITS = 1 << 19  # hits that are processed at a time
_MOST_HITS = 4_000_000  # per picture; with more, the search is given up
_MOST_COMPARED, _MOST_COPIES, _ALLOWED = 200, 25, 5_000  # per picture, and in addition; with more, give up
_PART = 128  # pairs of pictures that are matched at a time
_BLOCK = 128  # pictures whose keypoints are looked up in one task
_REPORT_EVERY = 2048  # pictures between two reports of progress


@dataclass(frozen=True)
class _Index:
    """The keypoints of all detailed pictures, sorted by hash."""

    starts: Ints  # the position of the first keypoint with each hash
    numbers: npt.NDArray[np.int32]  # the indices of the keypoints; the following fields are in the same order
    codes: npt.NDArray[np.int8]  # descriptors
    lengths: npt.NDArray[np.float32]  # norms of the descriptors
    ranks: npt.NDArray[np.int32]  # of the keypoint's picture; in each pair, the picture of lower rank is looked up

    @classmethod
    def of(cls, side: Described, ranks: npt.NDArray[np.int32]) -> _Index:
        detailed = np.flatnonzero(side.has_much[side.owner])
        keys = _keys(side, slice(None), _FLIPS[:1], is_mirrored=False)[detailed, 0]
        order = detailed[np.argsort(keys, kind="stable")].astype(np.int32)
        starts = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=2 ** (COEFFICIENTS + 1)))])
        return cls(starts, order, side.codes[order], side.lengths[order], ranks[side.owner[order]])


class _Search:
    """A search for pairs of pictures by keypoints that have equal hashes.

    For each pair, the picture with less detail, or else with the lower `Described.tags`, is looked up among the
    keypoints of the other picture's set. Therefore it makes no difference which of the two sets contains a picture.
    Two pictures with little detail are not compared. `tasks` are ranges of pictures to search for: the number of their
    set, and the first and last index (exclusive).
    """

    def __init__(self, pictures: Described, others: Described | None) -> None:
        self._sides = sides = [pictures] if others is None else [pictures, others]
        tags, has_much = (np.concatenate([getattr(side, name) for side in sides]) for name in ("tags", "has_much"))
        order = np.lexsort((tags, has_much))
        ranks = np.empty(len(order), np.int32)
        ranks[order] = np.arange(len(order))
        self._ranks = [ranks[: len(pictures)], ranks[len(pictures) :]]
        self._indices = [_Index.of(side, side_ranks) for side, side_ranks in zip(sides, self._ranks, strict=False)]
        self.tasks = [
            (side, start, min(start + _BLOCK, len(sides[side])))
            for side in range(len(sides))
            for start in range(0, len(sides[side]), _BLOCK)
        ]
        self.size = sum(map(len, sides))

    def block(self, task: tuple[int, int, int]) -> tuple[Pairs | None, int]:
        """Return the altered copies of a task's pictures, or None if there are too many, and how many were compared."""
        number, first, last = task
        source, target = self._sides[number], len(self._sides) - 1 - number
        side = self._sides[target]
        matches: Pairs = ([], [])
        compared = 0
        for kind, is_mirrored in enumerate((False, True)):
            hits = self._hits(source, self._indices[target], task, is_mirrored=is_mirrored)
            if hits is None:
                return None, compared
            i, j = _same_arrangement(source, side, *hits, is_mirrored=is_mirrored)
            compared += len(i)
            if compared > _MOST_COMPARED * (last - first) + _ALLOWED:
                return None, compared
            for start in range(0, len(i), _PART):
                part = slice(start, start + _PART)
                accepted = _are_copies(source, side, i[part], j[part], is_mirrored=is_mirrored)
                pairs = zip(i[part][accepted].tolist(), j[part][accepted].tolist(), strict=True)
                is_within = len(self._sides) == 1
                matches[kind].extend((b, a) if number == 1 or (is_within and b < a) else (a, b) for a, b in pairs)
        return matches, compared

    def _hits(
        self, source: Described, index: _Index, task: tuple[int, int, int], *, is_mirrored: bool
    ) -> tuple[Ints, Ints] | None:
        """Return the pairs of similar keypoints (hits) of a task's pictures and of those in the index of higher rank.

        Return the indices of the keypoints in their sets, or None if there are too many hits.
        """
        number, first_picture, last_picture = task
        ends = source.ends[first_picture : last_picture + 1]
        span = slice(int(ends[0]), int(ends[-1]))
        keys = _keys(source, span, _FLIPS, is_mirrored=is_mirrored)
        codes = source.codes[span] * _MIRROR if is_mirrored else source.codes[span]
        least = np.float32(_ALIKE) * source.lengths[span]
        ranks = self._ranks[number][first_picture:last_picture]
        picture = np.repeat(np.arange(len(ranks), dtype=np.int32), np.diff(ends))
        lows = index.starts[keys]
        counts = index.starts[keys + 1] - lows  # (keypoints, probes)
        together = counts.sum(axis=1)
        total = np.concatenate([[0], np.cumsum(together)])[ends - span.start]
        if total[-1] > _MOST_HITS * len(ranks):
            return None
        hits = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        borders = np.searchsorted(total, np.arange(_HITS, total[-1], _HITS))
        for start, stop in pairwise(np.unique([0, *borders, len(ranks)]).tolist()):
            low, high = (int(ends[at]) - span.start for at in (start, stop))
            first = np.repeat(np.arange(low, high, dtype=np.int32), together[low:high])
            count = counts[low:high].reshape(-1)
            place = np.arange(len(first)) + np.repeat(lows[low:high].reshape(-1) - np.cumsum(count) + count, count)
            rank, row = index.ranks.take(place), picture.take(first)
            later = np.flatnonzero(rank > ranks.take(row))
            pair = (row.take(later) - start) * np.int64(self.size) + rank.take(later)
            often = later[np.bincount(pair).take(pair) >= _LEAST_HITS] if len(pair) else later
            first, place = first.take(often), place.take(often)
            a, b = codes.take(first, axis=0).astype(np.float32), index.codes.take(place, axis=0).astype(np.float32)
            sure = np.einsum("ij,ij->i", a, b) >= least.take(first) * index.lengths.take(place)
            hits.append((first[sure].astype(np.int64) + span.start, index.numbers[place[sure]].astype(np.int64)))
        return np.concatenate([a for a, _ in hits]), np.concatenate([b for _, b in hits])


def _keys(side: Described, rows: slice, flips: Ints, *, is_mirrored: bool) -> Ints:
    """Return hashes of each keypoint, (keypoints, probes): the signs of its descriptor, with some of them flipped.

    The signs of the values nearest to zero are the least certain. `flips` (probes, values) tells which of them to flip.
    """
    codes = side.codes[rows] * (_MIRROR if is_mirrored else np.int8(1))
    bright = side.is_bright[rows]
    codes = codes - np.where(bright[:, None], _BLOB, -_BLOB)  # deviations from the mean descriptor
    bits = 1 << np.arange(COEFFICIENTS)
    keys = (codes > 0) @ bits + (bright.astype(np.int64) << COEFFICIENTS)
    nearest = np.argsort(np.abs(codes) / _SPREAD, axis=1, kind="stable")[:, : flips.shape[1]]
    return keys[:, None] ^ (bits[nearest] @ flips.T)


_MANY_HITS = 5  # as many agreeing hits suffice, whatever the number of other hits
_ARRANGED = 16  # hits of two pictures whose arrangement is compared
_ROUGH = 0.03  # largest distance of a keypoint from its mapped position, before the map is fitted
_AT_ONCE = 1024  # pairs of pictures whose arrangement is compared at a time


def _same_arrangement(
    source: Described, side: Described, first: Ints, second: Ints, *, is_mirrored: bool
) -> tuple[Ints, Ints]:
    """Return the pairs of pictures that have at least three hits in the same arrangement in both pictures."""
    pair = source.owner[first] * len(side) + side.owner[second]
    order = np.argsort(pair, kind="stable")
    starts = np.flatnonzero(np.diff(pair[order], prepend=-1))
    counts = np.diff(starts, append=len(order))
    starts, counts = starts[counts >= _LEAST_HITS], counts[counts >= _LEAST_HITS]
    kept = np.zeros(len(starts), bool)
    for low in range(0, len(starts), _AT_ONCE):
        part = slice(low, low + _AT_ONCE)
        valid = np.arange(_ARRANGED) < counts[part, None]
        hits = order[np.where(valid, starts[part, None] + np.arange(_ARRANGED), 0)]  # (pairs, 16)
        a, b = _positions(source, first[hits], is_mirrored=is_mirrored), side.points[second[hits]]
        level_change = side.levels[second[hits]].astype(np.int64) - source.levels[first[hits]]
        p, q = np.triu_indices(_ARRANGED, 1)
        movement, fits = _movements(a, b, level_change, p, q)
        fits &= valid[:, p] & valid[:, q]
        row, base = np.nonzero(fits & (fits.sum(axis=1, keepdims=True) >= _LEAST_HITS))
        turn = movement[row, base]
        off = turn[:, None] * a[row] + (b[row, p[base]] - turn * a[row, p[base]])[:, None] - b[row]
        near = off.real**2 + off.imag**2 < (_ROUGH**2 * np.maximum(turn.real**2 + turn.imag**2, 1))[:, None]
        near &= valid[row]
        several = near.sum(axis=1) >= _LEAST_HITS
        row, near = row[several], near[several]
        agreeing = np.minimum(_distinct(first[hits[row]], near), _distinct(second[hits[row]], near))
        most = np.zeros(len(hits), np.int64)
        np.maximum.at(most, row, agreeing)
        few = (most >= _LEAST_HITS) & (2 * most**2 >= 3 * counts[part])
        kept[part] = (most >= _MANY_HITS) | few
    return np.divmod(pair[order[starts[kept]]], len(side))


def _distinct(numbers: Ints, which: Bools) -> Ints:
    """Return the number of distinct values that are selected in each row, (rows,)."""
    ordered = np.sort(np.where(which, numbers, -1), axis=1)
    return (np.diff(ordered, axis=1, prepend=-1) > 0).sum(axis=1)


def _positions(side: Described, rows: Ints, *, is_mirrored: bool) -> npt.NDArray[np.complex128]:
    """Return the positions of keypoints in their picture, or in the mirror image of their picture."""
    points = side.points[rows]
    if not is_mirrored:
        return points
    wide = (side.aspects / np.minimum(side.aspects, 1))[side.owner[rows]]
    return wide - points.real + 1j * points.imag


_SHORTEST = 0.08  # least distance of two keypoints that define a map; in short sides of the picture
_TURN = 0.36  # tangent of the largest angle between two pictures
_SCALE = 3.0  # largest factor between the change of area and that of the keypoints' sizes


def _movements(
    a: npt.NDArray[np.complex128], b: npt.NDArray[np.complex128], level_change: Ints, p: Ints, q: Ints
) -> tuple[npt.NDArray[np.complex128], Bools]:
    """Return the rotation and scale that each pair (p, q) of m matches implies, and whether they are plausible.

    Rotation and scale are the argument and the absolute value of a complex number. `a` and `b` are the positions of the
    matching keypoints in the first and the second picture, (..., m), and `grown` the difference of their size levels.
    """
    before = a[..., q] - a[..., p]
    movement = (b[..., q] - b[..., p]) / np.where(before == 0, 1, before)
    area = movement.real**2 + movement.imag**2
    fits = (np.abs(before) > _SHORTEST) & (movement.real > 0) & (np.abs(movement.imag) < _TURN * movement.real)
    for points in (p, q):
        by_level = 2.0 ** level_change[..., points]
        fits &= (area < _SCALE * by_level) & (area * _SCALE > by_level)
    return movement, fits


_MATCHES, _BASES = 48, 12  # the number of matches that are counted, and of the best ones, which define maps
_NEAR = 0.02  # largest distance of a keypoint from its mapped position
_AROUND = 0.2  # a keypoint is reached if an agreeing keypoint is within this distance
_FINE = 3  # samples along each side of a thumbnail's pixel
_LEAST_CELLS = 12  # the least number of a thumbnail's pixels that must lie in the other picture


def _are_copies(source: Described, side: Described, i: Ints, j: Ints, *, is_mirrored: bool) -> Bools:
    """Return whether picture i of one set is an altered copy of picture j of the other, for each pair (i, j)."""
    # A match is a pair of keypoints, each of which is the most similar to the other.
    first, second = _padded(source, i), _padded(side, j)  # (n, 96) keypoints, -1 for none
    a_codes, b_codes = (
        mine.codes[numbers].astype(np.float32) / mine.lengths[numbers][:, :, None]
        for mine, numbers in ((source, first), (side, second))
    )
    if is_mirrored:
        a_codes = a_codes * _MIRROR
    cosine = np.matmul(a_codes, b_codes.transpose(0, 2, 1))  # (n, 96, 96)
    cosine[source.is_bright[first][:, :, None] != side.is_bright[second][:, None, :]] = -1
    cosine[first < 0] = -1
    cosine.transpose(0, 2, 1)[second < 0] = -1
    best = cosine.argmax(axis=2)
    value = np.take_along_axis(cosine, best[:, :, None], 2)[:, :, 0]
    back = np.take_along_axis(cosine.argmax(axis=1), best, 1)
    is_match = (value > _ALIKE) & (back == np.arange(MOST))
    order = np.argsort(np.where(is_match, -value, 1), axis=1, kind="stable")[:, :_MATCHES]
    valid = np.take_along_axis(is_match, order, 1)  # (n, 48)
    one = np.take_along_axis(first, order, 1)
    two = np.take_along_axis(second, np.take_along_axis(best, order, 1), 1)
    a, b = _positions(source, one, is_mirrored=is_mirrored), side.points[two]
    level_change = side.levels[two].astype(np.int64) - source.levels[one]
    agrees, affines, off = _best_movement(a, b, level_change, valid)
    agreeing, matches = agrees.sum(axis=1), valid.sum(axis=1)
    least_score = LEAST_SCORE + DEARER * (off.clip(max=1) - PRECISE).clip(min=0)
    accepted = (agreeing >= LEAST_AGREEING) & (agreeing**2 / np.maximum(matches, 1) >= least_score)
    for k in np.flatnonzero(accepted):
        aspects = (float(source.aspects[i[k]]), float(side.aspects[j[k]]))
        mine, other = first[k][first[k] >= 0], second[k][second[k] >= 0]
        affine = affines[k]
        if abs(np.linalg.det(affine[:2])) < 1e-6:
            accepted[k] = False
            continue
        inverse = np.linalg.inv(affine[:2])
        inverse_affine = np.vstack([inverse, -affine[2] @ inverse])
        reached = min(
            _covered_by_matches(_positions(source, mine, is_mirrored=is_mirrored), a[k, agrees[k]], affine, aspects[1]),
            _covered_by_matches(side.points[other], b[k, agrees[k]], inverse_affine, aspects[0]),
        )
        pixels = source.pixels[i[k]]
        correlation = _correlation(pixels[:, ::-1] if is_mirrored else pixels, side.pixels[j[k]], affine, aspects)
        accepted[k] = reached >= LEAST_REACHED and correlation >= LEAST_CORRELATION
    return accepted


def _padded(side: Described, pictures: Ints) -> Ints:
    """Return the indices of each picture's keypoints, padded with -1 to 96 per picture, (n, 96)."""
    numbers = side.ends[pictures, None] + np.arange(MOST)
    return np.where(numbers < side.ends[pictures + 1, None], numbers, -1)


def _best_movement(
    a: npt.NDArray[np.complex128], b: npt.NDArray[np.complex128], level_change: Ints, valid: Bools
) -> tuple[Bools, Floats, Floats]:
    """Find the affine map that agrees with the most matches, for each pair of pictures.

    Return whether each match agrees with the map (n, 48), the map (n, 3, 2), and the median distance of the agreeing
    keypoints from their mapped positions (n,), in short sides of the picture with the larger scale.
    """
    n, m = a.shape
    p, q = np.triu_indices(_BASES, 1)
    movement, fits = _movements(a, b, level_change, p, q)
    fits &= valid[:, p] & valid[:, q]  # (n, 66)
    shift = b[:, p] - movement * a[:, p]
    area = movement.real**2 + movement.imag**2
    off = movement[:, :, None] * a[:, None] + shift[:, :, None] - b[:, None]  # (n, 66, 48)
    by_level = 2.0 ** level_change[:, None]
    agrees = (off.real**2 + off.imag**2 < _NEAR**2 * np.maximum(area, 1)[:, :, None]) & valid[:, None]
    agrees &= (area[:, :, None] < _SCALE * by_level) & (area[:, :, None] * _SCALE > by_level) & fits[:, :, None]
    winner = agrees.sum(axis=2).argmax(axis=1)
    rows = np.arange(n)
    kept, best, origin = agrees[rows, winner], movement[rows, winner], shift[rows, winner]
    affines = np.stack([best.real, best.imag, -best.imag, best.real, origin.real, origin.imag], axis=1).reshape(n, 3, 2)
    flat = np.stack([a.real, a.imag, np.ones((n, m))], axis=2)  # (n, 48, 3)
    targets = np.stack([b.real, b.imag], axis=2)
    for _ in range(2):  # an affine map also approximates perspective and other aspect ratios
        weighted = flat * kept[:, :, None]
        normal = weighted.transpose(0, 2, 1) @ flat + 1e-9 * np.eye(3)
        fitted = np.linalg.solve(normal, weighted.transpose(0, 2, 1) @ targets)
        growth = np.abs(np.linalg.det(fitted[:, :2]))
        distance = ((flat @ fitted - targets) ** 2).sum(axis=2)
        again = valid & (distance < _NEAR**2 * np.maximum(growth, 1)[:, None])
        again &= (growth[:, None] < _SCALE * 2.0**level_change) & (growth[:, None] * _SCALE > 2.0**level_change)
        better = (again.sum(axis=1) >= kept.sum(axis=1)) & (kept.sum(axis=1) >= 4)
        kept = np.where(better[:, None], again, kept)
        affines = np.where(better[:, None, None], fitted, affines)
    growth = np.maximum(np.abs(np.linalg.det(affines[:, :2])), 1)
    distance = np.sqrt(((flat @ affines - targets) ** 2).sum(axis=2) / growth[:, None])
    middle = np.minimum(kept.sum(axis=1) // 2, m - 1)
    off = np.sort(np.where(kept, distance, np.inf), axis=1)[np.arange(n), middle]
    return kept, affines, off


def _extent(aspect: float) -> Floats:
    """Return the (width, height) of a picture in units of its short side."""
    return np.array([aspect, 1.0]) / min(aspect, 1.0)


def _covered_by_matches(
    points: npt.NDArray[np.complex128], agreeing: npt.NDArray[np.complex128], affine: Floats, aspect: float
) -> float:
    """Return the fraction of a picture's keypoints (`points`) in the overlap that are near one of `agreeing`.

    `agreeing` are the keypoints whose match fits the affine map `affine` (3, 2) to the other picture, whose width /
    height is `aspect`.
    """
    mapped = np.stack([points.real, points.imag, np.ones(len(points))], axis=1) @ affine
    inside = ((mapped >= 0) & (mapped <= _extent(aspect))).all(axis=1)
    if not inside.any():
        return 0.0
    return float((np.abs(points[inside][:, None] - agreeing).min(axis=1) < _AROUND).mean())


def _correlation(a: Pixels, b: Pixels, affine: Floats, aspects: tuple[float, float]) -> float:
    """Return the correlation of the grey values of two thumbnails in the overlap of their pictures.

    `affine` maps positions of the first picture to positions of the second.
    """
    greys = [pixels @ _LUMA for pixels in (a, b)]
    # A grid that is `_FINE` times as fine as the first thumbnail, in the coordinates of both pictures.
    side = _FINE * THUMBNAIL
    at = (np.arange(side) + 0.5) / side
    width, height = _extent(aspects[0])
    x, y = np.meshgrid(at * width, at * height)
    mapped = np.stack([x.ravel(), y.ravel(), np.ones(x.size)], axis=1) @ affine / _extent(aspects[1])
    inside = ((mapped >= 0) & (mapped <= 1)).all(axis=1)
    # The pixels of the first thumbnail that lie completely inside the second picture.
    cells = inside.reshape(THUMBNAIL, _FINE, THUMBNAIL, _FINE).all(axis=(1, 3))
    if cells.sum() < _LEAST_CELLS:
        return -1.0
    # The second thumbnail, interpolated bilinearly at the fine grid, and averaged over the pixels of the first one.
    place = (THUMBNAIL * mapped - 0.5).clip(0, THUMBNAIL - 1)
    corner = np.minimum(place.astype(np.int64), THUMBNAIL - 2)
    (u, v), (right, down) = corner.T, (place - corner).T
    upper, lower = (greys[1][row, u] * (1 - right) + greys[1][row, u + 1] * right for row in (v, v + 1))
    aligned = (upper * (1 - down) + lower * down).reshape(THUMBNAIL, _FINE, THUMBNAIL, _FINE).mean(axis=(1, 3))
    one, two = (grey[cells] - grey[cells].mean() for grey in (greys[0], aligned))
    lengths = np.sqrt((one**2).sum() * (two**2).sum())
    return float(one @ two / lengths) if lengths > len(one) else -1.0  # a spread below one level is noise
