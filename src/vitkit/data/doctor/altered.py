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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # scikit-learn brings it

from vitkit.data.doctor.keypoints import BYTES, COEFFICIENTS, MOST, PLACES, frequencies
from vitkit.data.file_facts import THUMBNAIL, Facts, FactTable

# Limits that two pictures must reach to count as copies (`_are_copies`).
LEAST_SCORE = 4.5  # the number of agreeing matches times the fraction of all matches that agree
# If the median distance of the agreeing keypoints from their mapped positions is above the first of these numbers, the
# least score is raised by the second times the excess.
PRECISE, DEARER = 0.0035, 1300.0
LEAST_AGREEING = 8  # matches that agree with the best affine map
LEAST_REACHED = 0.4  # fraction of a picture's keypoints in the overlap that have an agreeing keypoint nearby
LEAST_CORRELATION = 0.25  # of the thumbnails' grey values in the overlap
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Points = npt.NDArray[np.complex128]  # positions x + y i in a picture, in units of its short side
Pixels = npt.NDArray[np.uint8]

_LUMA = np.array([0.299, 0.587, 0.114])


class Pairs(NamedTuple):
    """Pairs of pictures, by their indices, that are copies of one another."""

    direct: list[tuple[int, int]]
    mirrored: list[tuple[int, int]]  # one picture of the pair shows the other with left and right swapped

    @property
    def total(self) -> int:
        return len(self.direct) + len(self.mirrored)

    def extend(self, pairs: Pairs) -> None:
        self.direct.extend(pairs.direct)
        self.mirrored.extend(pairs.mirrored)


@dataclass(frozen=True)
class Appearance:
    """The keypoints and thumbnails of n pictures."""

    words: npt.NDArray[np.uint64]  # the packed descriptors of all keypoints, picture by picture, (keypoints,)
    places: npt.NDArray[np.uint16]  # x and y in 4095ths of the picture's width and height, (keypoints, 2)
    ends: Ints  # picture i has the keypoints `words[ends[i]:ends[i+1]]`, (n + 1,)
    aspects: Floats  # width / height, (n,)
    pixels: Pixels  # thumbnails, (n, 16, 16, 3)

    @classmethod
    def of(cls, facts: Sequence[Facts]) -> Appearance:
        """Collect the keypoints and thumbnails of pictures from their `Facts`."""
        table = FactTable.of(facts)
        keypoints, widths, heights = table.columns("keypoints", "width", "height")
        pixels = table.thumbnails()
        counts = [len(packed) // BYTES for packed in keypoints]
        aspects = np.array(widths, np.float64) / np.array(heights, np.float64)
        words, places = [np.zeros(0, np.uint64)], [np.zeros((0, 2), np.uint16)]
        for packed, count in zip(keypoints, counts, strict=True):  # as `find_keypoints` packs them
            words.append(np.frombuffer(packed, "<u8", count))
            places.append(np.frombuffer(packed, "<u2", 2 * count, 8 * count).reshape(2, -1).T)
        return cls(np.concatenate(words), np.concatenate(places), ends_of(counts), aspects, pixels)

    def __len__(self) -> int:
        return len(self.aspects)

    @cached_property
    def is_detailed(self) -> Bools:
        """Whether each picture has as much detail as a photograph, (n,). Different drawings may share all keypoints."""
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
    def points(self) -> Points:
        """The position of each keypoint, (keypoints,)."""
        wide = self.aspects / np.minimum(self.aspects, 1)
        high = 1 / np.minimum(self.aspects, 1)
        x, y = self.places.T
        return (x * wide[self.owner] + y * high[self.owner] * 1j) / PLACES

    @cached_property
    def tags(self) -> npt.NDArray[np.uint64]:
        """The sum of each picture's descriptors, (n,). It decides which picture of a pair is mapped onto the other."""
        sums = np.concatenate([[np.uint64(0)], np.cumsum(self.words)])
        return sums[self.ends[1:]] - sums[self.ends[:-1]]


_DOWN, _RIGHT = frequencies()
_MIRROR = np.where(_RIGHT % 2, -1, 1).astype(np.int8)  # the signs by which mirroring multiplies a descriptor
# The mean descriptor of bright blobs, measured on photographs, by vertical and horizontal frequency. The one of dark
# blobs is the opposite.
_MEAN_OF_BRIGHT = {(0, 2): -2, (2, 0): -2, (2, 2): 2, (0, 4): 2, (4, 0): 2}
_BLOB = np.array([_MEAN_OF_BRIGHT.get(pair, 0) for pair in zip(_DOWN.tolist(), _RIGHT.tolist(), strict=True)], np.int8)
# The typical deviation from this mean.
_SPREAD = np.array([4, 4, 3.3, 3.5, 3.5, 3.3, 3.3, 2.3, 3.3, 3.3, 2.7, 2.7, 1.9, 1.9, 2.6, 2.6, 2.1, 2.1, 1.7, 1.7])


def ends_of(counts: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Ints:
    """Return the index of each picture's first keypoint, followed by the total number of keypoints, (n + 1,)."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def find_altered(
    pictures: Appearance, others: Appearance | None, progress: Callable[[int, int], None] | None = None
) -> Pairs | None:
    """Find all pairs of altered copies, and all pairs of which one picture is an altered mirror image of the other.

    Pictures are compared with `others`, or with one another if it is None; the lower index of a pair is then the first.
    Return None if the search is stopped, because too many pictures are similar to one another. `progress` receives the
    number of pictures done and their total.
    """
    has_detailed = pictures.is_detailed.any() or (others is not None and others.is_detailed.any())
    if not has_detailed:
        if progress is not None:
            progress(len(pictures), len(pictures))
        return Pairs([], [])
    search = _Search(pictures, others)
    copies = Pairs([], [])
    compared = 0  # pairs of pictures
    done = reported = 0  # pictures
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(search.run, task) for task in search.tasks]
        for task, job in zip(search.tasks, jobs, strict=True):
            pairs, compared_in_task = job.result()
            compared += compared_in_task
            done += task.end - task.start
            if pairs is not None:
                copies.extend(pairs)
            has_too_many_copies = copies.total > _MAX_COPIES * done + _ALLOWANCE
            has_too_many_compared = compared > _MAX_COMPARED * done + _ALLOWANCE
            if pairs is None or has_too_many_copies or has_too_many_compared:
                pool.shutdown(wait=False, cancel_futures=True)
                return None
            if progress is not None and (done >= reported + _REPORT_EVERY or done == search.size):
                reported = done
                progress(done, search.size)
    return Pairs(sorted(copies.direct), sorted(copies.mirrored))


# A keypoint is looked up by 96 hashes. In each, some of the ten least certain signs are flipped. These are the 96 most
# likely combinations, the most likely first; a sign with a lower index is less certain.
_COMBINATIONS = [signs for size in range(5) for signs in combinations(range(10), size)]
_FLIPPED = sorted(_COMBINATIONS, key=lambda signs: (sum((i + 1) * (i + 2) for i in signs), signs))[:96]
_FLIPS = np.array([[i in signs for i in range(10)] for signs in _FLIPPED], np.int64)  # (96, 10)
_MIN_COSINE = 0.7  # of the descriptors of two keypoints that match
_MIN_HITS = 3
_HITS_AT_ONCE = 1 << 19  # hits that are processed at a time
_MAX_HITS = 4_000_000  # per picture; with more, the search is stopped
# The search is stopped after more comparisons or copies than these per picture, and the allowance for small sets.
_MAX_COMPARED, _MAX_COPIES, _ALLOWANCE = 200, 25, 5_000
_MATCHED_AT_ONCE = 128  # pairs of pictures that are matched at a time
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
    def of(cls, side: Appearance, ranks: npt.NDArray[np.int32]) -> _Index:
        detailed = np.flatnonzero(side.is_detailed[side.owner])
        hashes = _hashes(side, slice(None), _FLIPS[:1], is_mirrored=False)[detailed, 0]  # no sign is flipped
        order = detailed[np.argsort(hashes, kind="stable")].astype(np.int32)
        starts = np.concatenate([[0], np.cumsum(np.bincount(hashes, minlength=2 ** (COEFFICIENTS + 1)))])
        return cls(starts, order, side.codes[order], side.lengths[order], ranks[side.owner[order]])


class _Task(NamedTuple):
    """A range of pictures whose copies a thread searches for."""

    side: int  # the number of the set: 0 for the pictures, 1 for the others
    start: int  # the index of the first picture
    end: int  # the index after the last picture


class _Search:
    """A search for pairs of pictures by keypoints that have equal hashes.

    For each pair, the picture with less detail, or else with the lower `Appearance.tags`, is looked up among the
    keypoints of the other picture's set. Therefore it makes no difference which of the two sets contains a picture.
    Two pictures with little detail are not compared.
    """

    def __init__(self, pictures: Appearance, others: Appearance | None) -> None:
        self._sides = sides = [pictures] if others is None else [pictures, others]
        tags = np.concatenate([side.tags for side in sides])
        order = np.lexsort((tags, np.concatenate([side.is_detailed for side in sides])))
        ranks = np.empty(len(order), np.int32)
        ranks[order] = np.arange(len(order))
        self._ranks = [ranks[: len(pictures)], ranks[len(pictures) :]]
        self._indices = [_Index.of(side, side_ranks) for side, side_ranks in zip(sides, self._ranks, strict=False)]
        self.tasks = [
            _Task(number, start, min(start + _BLOCK, len(side)))
            for number, side in enumerate(sides)
            for start in range(0, len(side), _BLOCK)
        ]
        self.size = sum(map(len, sides))

    def run(self, task: _Task) -> tuple[Pairs | None, int]:
        """Return the altered copies of a task's pictures, or None if there are too many, and how many were compared."""
        is_within = len(self._sides) == 1
        target = 0 if is_within else 1 - task.side
        source, side = self._sides[task.side], self._sides[target]
        copies = Pairs([], [])
        compared = 0
        for pairs, is_mirrored in ((copies.direct, False), (copies.mirrored, True)):
            hits = self._find_hits(source, self._indices[target], task, is_mirrored=is_mirrored)
            if hits is None:
                return None, compared
            i, j = _pairs_with_same_arrangement(source, side, *hits, is_mirrored=is_mirrored)
            compared += len(i)
            if compared > _MAX_COMPARED * (task.end - task.start) + _ALLOWANCE:
                return None, compared
            for start in range(0, len(i), _MATCHED_AT_ONCE):
                part = slice(start, start + _MATCHED_AT_ONCE)
                accepted = _are_copies(source, side, i[part], j[part], is_mirrored=is_mirrored)
                for a, b in zip(i[part][accepted].tolist(), j[part][accepted].tolist(), strict=True):
                    is_swapped = b < a if is_within else task.side == 1
                    pairs.append((b, a) if is_swapped else (a, b))
        return copies, compared

    def _find_hits(
        self, source: Appearance, index: _Index, task: _Task, *, is_mirrored: bool
    ) -> tuple[Ints, Ints] | None:
        """Find pairs of similar keypoints (hits) of a task's pictures and of pictures of higher rank in the index.

        Return the indices of the keypoints in their sets, or None if there are too many hits.
        """
        # In the following, keypoints and pictures are counted from the first one of the task.
        offset = int(source.ends[task.start])
        ends = source.ends[task.start : task.end + 1] - offset
        keypoints = slice(offset, offset + int(ends[-1]))
        codes = source.codes[keypoints] * _MIRROR if is_mirrored else source.codes[keypoints]
        min_product = np.float32(_MIN_COSINE) * source.lengths[keypoints]
        ranks = self._ranks[task.side][task.start : task.end]
        picture_of = np.repeat(np.arange(len(ranks), dtype=np.int32), np.diff(ends))

        # The positions in the index from `lows` to `lows + counts` have the hash of a keypoint, (keypoints, 96).
        hashes = _hashes(source, keypoints, _FLIPS, is_mirrored=is_mirrored)
        lows = index.starts[hashes]
        counts = index.starts[hashes + 1] - lows
        counts_of_keypoint = counts.sum(axis=1)
        hits_before = np.concatenate([[0], np.cumsum(counts_of_keypoint)])[ends]  # each picture, (pictures + 1,)
        if hits_before[-1] > _MAX_HITS * len(ranks):
            return None

        # So many pictures are processed at a time that they have about `_HITS_AT_ONCE` hits.
        hits = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        borders = np.searchsorted(hits_before, np.arange(_HITS_AT_ONCE, hits_before[-1], _HITS_AT_ONCE))
        for start, stop in pairwise(np.unique([0, *borders, len(ranks)]).tolist()):
            low, high = int(ends[start]), int(ends[stop])
            # All hits: `first` are keypoints of the task, and `second` are positions in the index.
            first = np.repeat(np.arange(low, high, dtype=np.int32), counts_of_keypoint[low:high])
            count = counts[low:high].reshape(-1)
            second = np.arange(len(first)) + np.repeat(lows[low:high].reshape(-1) - np.cumsum(count) + count, count)
            # Only those of pictures of higher rank, and of pairs of pictures with several hits.
            rank, picture = index.ranks.take(second), picture_of.take(first)
            is_higher = np.flatnonzero(rank > ranks.take(picture))
            pair = (picture.take(is_higher) - start) * np.int64(self.size) + rank.take(is_higher)
            frequent = is_higher[np.bincount(pair).take(pair) >= _MIN_HITS] if len(pair) else is_higher
            first, second = first.take(frequent), second.take(frequent)
            # Only those with similar descriptors.
            a = codes.take(first, axis=0).astype(np.float32)
            b = index.codes.take(second, axis=0).astype(np.float32)
            similar = np.einsum("ij,ij->i", a, b) >= min_product.take(first) * index.lengths.take(second)
            hits.append((first[similar].astype(np.int64) + offset, index.numbers[second[similar]].astype(np.int64)))
        return np.concatenate([a for a, _ in hits]), np.concatenate([b for _, b in hits])


def _hashes(side: Appearance, rows: slice, flips: Ints, *, is_mirrored: bool) -> Ints:
    """Return m hashes of each keypoint, (keypoints, m): the signs of its descriptor, with some of them flipped.

    The signs of the values nearest to zero are the least certain. `flips` (m, values) tells which of them to flip.
    """
    codes = side.codes[rows] * (_MIRROR if is_mirrored else np.int8(1))
    bright = side.is_bright[rows]
    codes = codes - np.where(bright[:, None], _BLOB, -_BLOB)  # deviations from the mean descriptor
    bits = 1 << np.arange(COEFFICIENTS)
    hashes = (codes > 0) @ bits + (bright.astype(np.int64) << COEFFICIENTS)
    nearest = np.argsort(np.abs(codes) / _SPREAD, axis=1, kind="stable")[:, : flips.shape[1]]
    return hashes[:, None] ^ (bits[nearest] @ flips.T)


_ENOUGH_HITS = 5  # so many agreeing hits suffice, whatever the number of other hits
_ARRANGED = 16  # hits of two pictures whose arrangement is compared
_ROUGH = 0.03  # largest distance of a keypoint from its mapped position, before the map is fitted
_ARRANGED_AT_ONCE = 1024  # pairs of pictures whose arrangement is compared at a time


def _pairs_with_same_arrangement(
    source: Appearance, side: Appearance, first: Ints, second: Ints, *, is_mirrored: bool
) -> tuple[Ints, Ints]:
    """Return the pairs of pictures that have at least three hits in the same arrangement in both pictures.

    `first` and `second` are the keypoints of the hits.
    """
    pair = source.owner[first] * len(side) + side.owner[second]
    order = np.argsort(pair, kind="stable")
    starts = np.flatnonzero(np.diff(pair[order], prepend=-1))  # of each pair's hits in `order`
    counts = np.diff(starts, append=len(order))
    starts, counts = starts[counts >= _MIN_HITS], counts[counts >= _MIN_HITS]
    accepted = np.zeros(len(starts), bool)
    p, q = np.triu_indices(_ARRANGED, 1)
    for low in range(0, len(starts), _ARRANGED_AT_ONCE):
        part = slice(low, low + _ARRANGED_AT_ONCE)
        valid = np.arange(_ARRANGED) < counts[part, None]
        hits = order[np.where(valid, starts[part, None] + np.arange(_ARRANGED), 0)]  # (pairs, 16)
        a, b = _positions(source, first[hits], is_mirrored=is_mirrored), side.points[second[hits]]

        # Each two hits (p, q) of a pair define a map, (pairs, 120). Of these, m maps are plausible.
        level_change = side.levels[second[hits]].astype(np.int64) - source.levels[first[hits]]
        similarities, fits = _similarities(a, b, level_change, p, q)
        fits &= valid[:, p] & valid[:, q]
        row, base = np.nonzero(fits & (fits.sum(axis=1, keepdims=True) >= _MIN_HITS))
        similarity = similarities[row, base]
        shift = b[row, p[base]] - similarity * a[row, p[base]]

        # The hits that agree with each map, (m, 16).
        error = similarity[:, None] * a[row] + shift[:, None] - b[row]  # of the mapped positions
        area = similarity.real**2 + similarity.imag**2
        agrees = error.real**2 + error.imag**2 < (_ROUGH**2 * np.maximum(area, 1))[:, None]
        agrees &= valid[row]
        several = agrees.sum(axis=1) >= _MIN_HITS
        row, agrees = row[several], agrees[several]
        agreeing = np.minimum(_count_distinct(first[hits[row]], agrees), _count_distinct(second[hits[row]], agrees))
        best = np.zeros(len(hits), np.int64)  # the largest number of agreeing hits of each pair of pictures
        np.maximum.at(best, row, agreeing)
        # If only few hits agree, they must be a large part of all hits.
        accepted[part] = (best >= _ENOUGH_HITS) | ((best >= _MIN_HITS) & (2 * best**2 >= 3 * counts[part]))
    return np.divmod(pair[order[starts[accepted]]], len(side))


def _count_distinct(numbers: Ints, selected: Bools) -> Ints:
    """Return the number of distinct selected values in each row, (rows,)."""
    ordered = np.sort(np.where(selected, numbers, -1), axis=1)
    return (np.diff(ordered, axis=1, prepend=-1) > 0).sum(axis=1)


def _positions(side: Appearance, rows: Ints, *, is_mirrored: bool) -> Points:
    """Return the positions of keypoints in their picture, or in the mirror image of their picture."""
    points = side.points[rows]
    if not is_mirrored:
        return points
    width = (side.aspects / np.minimum(side.aspects, 1))[side.owner[rows]]
    return width - points.real + 1j * points.imag


_MIN_DISTANCE = 0.08  # of two keypoints that define a map; in short sides of the picture
_MAX_TANGENT = 0.36  # of the angle between two pictures
_MAX_SCALE = 3.0  # largest factor between the change of area and the change of the keypoints' sizes


def _similarities(a: Points, b: Points, level_change: Ints, p: Ints, q: Ints) -> tuple[Points, Bools]:
    """Return the similarity transform that each pair (p, q) of m matches implies, and whether it is plausible.

    The transform is a complex number, whose argument is the rotation and whose absolute value is the scale. `a` and `b`
    are the positions of the matching keypoints in the first and the second picture, (..., m), and `level_change` is the
    difference of their size levels.
    """
    distance = a[..., q] - a[..., p]
    similarity = (b[..., q] - b[..., p]) / np.where(distance == 0, 1, distance)
    fits = np.abs(distance) > _MIN_DISTANCE
    fits &= (similarity.real > 0) & (np.abs(similarity.imag) < _MAX_TANGENT * similarity.real)
    area = similarity.real**2 + similarity.imag**2
    fits &= _fits_sizes(area, level_change[..., p]) & _fits_sizes(area, level_change[..., q])
    return similarity, fits


def _fits_sizes(area: Floats, level_change: Ints) -> Bools:
    """Return whether a change of area is similar to that of the keypoints' area, which doubles from level to level."""
    by_level = 2.0**level_change
    return (area < _MAX_SCALE * by_level) & (area * _MAX_SCALE > by_level)


_MATCHES, _BASES = 48, 12  # the number of matches that are counted, and of the best matches, which define maps
_NEAR = 0.02  # largest distance of a keypoint from its mapped position
_AROUND = 0.2  # a keypoint is covered if an agreeing keypoint is within this distance
_FINE = 3  # samples along each side of a thumbnail's pixel
_MIN_CELLS = 12  # pixels of a thumbnail that must lie in the other picture


def _are_copies(source: Appearance, side: Appearance, i: Ints, j: Ints, *, is_mirrored: bool) -> Bools:
    """Return whether picture i of one set is an altered copy of picture j of the other, for each pair (i, j)."""
    first, second, valid = _match_keypoints(source, side, i, j, is_mirrored=is_mirrored)
    a, b = _positions(source, first, is_mirrored=is_mirrored), side.points[second]
    level_change = side.levels[second].astype(np.int64) - source.levels[first]
    agrees, affines, error = _fit_affine(a, b, level_change, valid)
    agreeing, matches = agrees.sum(axis=1), valid.sum(axis=1)
    least_score = LEAST_SCORE + DEARER * (error.clip(max=1) - PRECISE).clip(min=0)
    accepted = (agreeing >= LEAST_AGREEING) & (agreeing**2 / np.maximum(matches, 1) >= least_score)
    for k in np.flatnonzero(accepted):
        affine = affines[k]
        if abs(np.linalg.det(affine[:2])) < 1e-6:
            accepted[k] = False
            continue
        inverse = np.linalg.inv(affine[:2])
        inverse_affine = np.vstack([inverse, -affine[2] @ inverse])
        first_points = _positions(source, _keypoints_of(source, i[k]), is_mirrored=is_mirrored)
        second_points = side.points[_keypoints_of(side, j[k])]
        aspects = (float(source.aspects[i[k]]), float(side.aspects[j[k]]))
        covered = min(
            _covered_by_matches(first_points, a[k, agrees[k]], affine, aspects[1]),
            _covered_by_matches(second_points, b[k, agrees[k]], inverse_affine, aspects[0]),
        )
        pixels = source.pixels[i[k]]
        correlation = _correlation(pixels[:, ::-1] if is_mirrored else pixels, side.pixels[j[k]], affine, aspects)
        accepted[k] = covered >= LEAST_REACHED and correlation >= LEAST_CORRELATION
    return accepted


def _match_keypoints(
    source: Appearance, side: Appearance, i: Ints, j: Ints, *, is_mirrored: bool
) -> tuple[Ints, Ints, Bools]:
    """Match the keypoints of picture i of one set with those of picture j of the other, for n pairs (i, j).

    A match is a pair of keypoints, each of which is the most similar to the other. Return the keypoints in both sets of
    the 48 best matches, (n, 48), and whether there are so many matches, (n, 48).
    """
    first, second = _padded(source, i), _padded(side, j)  # (n, 96) keypoints, -1 for none
    a_codes = source.codes[first].astype(np.float32) / source.lengths[first][:, :, None]
    b_codes = side.codes[second].astype(np.float32) / side.lengths[second][:, :, None]
    if is_mirrored:
        a_codes = a_codes * _MIRROR
    cosine = np.matmul(a_codes, b_codes.transpose(0, 2, 1))  # (n, 96, 96)
    cosine[source.is_bright[first][:, :, None] != side.is_bright[second][:, None, :]] = -1
    cosine[first < 0] = -1
    cosine.transpose(0, 2, 1)[second < 0] = -1
    best = cosine.argmax(axis=2)
    best_cosine = np.take_along_axis(cosine, best[:, :, None], 2)[:, :, 0]
    best_of_best = np.take_along_axis(cosine.argmax(axis=1), best, 1)
    is_match = (best_cosine > _MIN_COSINE) & (best_of_best == np.arange(MOST))
    order = np.argsort(np.where(is_match, -best_cosine, 1), axis=1, kind="stable")[:, :_MATCHES]
    second_of_first = np.take_along_axis(second, best, 1)
    return (
        np.take_along_axis(first, order, 1),
        np.take_along_axis(second_of_first, order, 1),
        np.take_along_axis(is_match, order, 1),
    )


def _keypoints_of(side: Appearance, picture: int) -> Ints:
    return np.arange(side.ends[picture], side.ends[picture + 1])


def _padded(side: Appearance, pictures: Ints) -> Ints:
    """Return the indices of each picture's keypoints, padded with -1 to 96 per picture, (n, 96)."""
    numbers = side.ends[pictures, None] + np.arange(MOST)
    return np.where(numbers < side.ends[pictures + 1, None], numbers, -1)


def _fit_affine(a: Points, b: Points, level_change: Ints, valid: Bools) -> tuple[Bools, Floats, Floats]:
    """Find the affine map that agrees with the most matches, for each pair of pictures.

    The arguments are those of `_similarities`; `valid` (n, 48) tells which of the matches exist. An affine map is
    fitted to the matches that agree with the best similarity transform.

    Return whether each match agrees with the map (n, 48), the map (n, 3, 2), and the median distance of the agreeing
    keypoints from their mapped positions (n,), in short sides of the picture with the larger scale.
    """
    n, m = a.shape

    # Find the similarity transform that agrees with the most matches, among those that the best matches define.
    p, q = np.triu_indices(_BASES, 1)
    similarities, fits = _similarities(a, b, level_change, p, q)
    fits &= valid[:, p] & valid[:, q]  # (n, 66)
    shifts = b[:, p] - similarities * a[:, p]
    area = similarities.real**2 + similarities.imag**2
    error = similarities[:, :, None] * a[:, None] + shifts[:, :, None] - b[:, None]  # (n, 66, 48)
    agreeing = (error.real**2 + error.imag**2 < _NEAR**2 * np.maximum(area, 1)[:, :, None]) & valid[:, None]
    agreeing &= _fits_sizes(area[:, :, None], level_change[:, None]) & fits[:, :, None]
    rows, winner = np.arange(n), agreeing.sum(axis=2).argmax(axis=1)
    agrees, best, shift = agreeing[rows, winner], similarities[rows, winner], shifts[rows, winner]

    entries = [best.real, best.imag, -best.imag, best.real, shift.real, shift.imag]
    affines = np.stack(entries, axis=1).reshape(n, 3, 2)
    points = np.stack([a.real, a.imag, np.ones((n, m))], axis=2)  # (n, 48, 3)
    targets = np.stack([b.real, b.imag], axis=2)
    for _ in range(2):  # an affine map also approximates perspective and other aspect ratios
        # Least squares over the agreeing matches. The small summand keeps the matrix invertible.
        weighted = points * agrees[:, :, None]
        normal = weighted.transpose(0, 2, 1) @ points + 1e-9 * np.eye(3)
        fitted = np.linalg.solve(normal, weighted.transpose(0, 2, 1) @ targets)
        growth = np.abs(np.linalg.det(fitted[:, :2]))
        distance = ((points @ fitted - targets) ** 2).sum(axis=2)
        agrees_with_fitted = valid & (distance < _NEAR**2 * np.maximum(growth, 1)[:, None])
        agrees_with_fitted &= _fits_sizes(growth[:, None], level_change)
        # Three matches do not suffice: an affine map fits them exactly.
        better = (agrees_with_fitted.sum(axis=1) >= agrees.sum(axis=1)) & (agrees.sum(axis=1) >= 4)
        agrees = np.where(better[:, None], agrees_with_fitted, agrees)
        affines = np.where(better[:, None, None], fitted, affines)
    growth = np.maximum(np.abs(np.linalg.det(affines[:, :2])), 1)
    distance = np.sqrt(((points @ affines - targets) ** 2).sum(axis=2) / growth[:, None])
    middle = np.minimum(agrees.sum(axis=1) // 2, m - 1)
    median = np.sort(np.where(agrees, distance, np.inf), axis=1)[np.arange(n), middle]
    return agrees, affines, median


def _extent(aspect: float) -> Floats:
    """Return the (width, height) of a picture in units of its short side."""
    return np.array([aspect, 1.0]) / min(aspect, 1.0)


def _covered_by_matches(points: Points, agreeing: Points, affine: Floats, aspect: float) -> float:
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
    grey, other_grey = a @ _LUMA, b @ _LUMA
    # A grid that is `_FINE` times as fine as the first thumbnail, in the coordinates of both pictures.
    side = _FINE * THUMBNAIL
    centres = (np.arange(side) + 0.5) / side
    width, height = _extent(aspects[0])
    x, y = np.meshgrid(centres * width, centres * height)
    mapped = np.stack([x.ravel(), y.ravel(), np.ones(x.size)], axis=1) @ affine / _extent(aspects[1])
    inside = ((mapped >= 0) & (mapped <= 1)).all(axis=1)
    # The pixels of the first thumbnail that lie completely inside the second picture.
    cells = inside.reshape(THUMBNAIL, _FINE, THUMBNAIL, _FINE).all(axis=(1, 3))
    if cells.sum() < _MIN_CELLS:
        return -1.0
    # The second thumbnail, interpolated bilinearly at the fine grid, and averaged over the pixels of the first one.
    position = (THUMBNAIL * mapped - 0.5).clip(0, THUMBNAIL - 1)
    corner = np.minimum(position.astype(np.int64), THUMBNAIL - 2)
    column, row = corner.T
    right, down = (position - corner).T  # the weights of the pixels to the right and below
    upper = other_grey[row, column] * (1 - right) + other_grey[row, column + 1] * right
    lower = other_grey[row + 1, column] * (1 - right) + other_grey[row + 1, column + 1] * right
    fine = upper * (1 - down) + lower * down
    aligned = fine.reshape(THUMBNAIL, _FINE, THUMBNAIL, _FINE).mean(axis=(1, 3))
    first = grey[cells] - grey[cells].mean()
    second = aligned[cells] - aligned[cells].mean()
    norms = np.sqrt((first**2).sum() * (second**2).sum())
    return float(first @ second / norms) if norms > len(first) else -1.0  # a spread below one level is noise
