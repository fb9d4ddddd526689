"""Photographs that are there more than once: the same file, or the same picture resized, recompressed or mirrored.

Two pictures are taken for one when their 16 x 16 thumbnails agree in structure (correlation of the greys) and in
colour. Both limits were measured: docs/decisions/0009-duplicates.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from vitkit.data.doctor.likeness import Pairs, as_pixels, find_pairs
from vitkit.data.memory import Facts

Kind = Literal["exact", "near", "mirrored"]
# Where this part of the images are near copies of one another, the likeness is of the scene, not of the pictures.
LARGEST_GROUP, LEAST_LARGE = 0.25, 20
_MOST_PAIRS = 100  # for each image, before giving up


@dataclass(frozen=True)
class Link:
    """Two images, by index, that show one picture. `exact`: equal bytes; `mirrored`: left and right are swapped."""

    first: int
    second: int
    kind: Kind


def find_known(
    new: Sequence[bytes], known: npt.NDArray[np.uint8], progress: Callable[[int, int], None] | None = None
) -> tuple[list[tuple[int, int, Kind]], bool]:
    """Which pictures show one that is known: resized, recompressed or mirrored.

    Args:
        new: thumbnails.
        known: thumbnails, (m, 16, 16, 3).
        progress: told how many of how many have been compared.

    Returns:
        Number of a new picture, number of the known one and kind (near, mirrored), and whether that could be told:
        where a large part of the new ones show the same as one another, as from a camera that never moves, nothing is.
    """
    pairs = find_pairs(as_pixels(list(new)), known, _MOST_PAIRS * (len(new) + len(known)), progress)
    if pairs is None:
        return [], False
    kinds: tuple[Kind, Kind] = ("near", "mirrored")
    found = [(i, j, kind) for kind, own in zip(kinds, pairs, strict=True) for i, j in own]
    forest = Forest(len(new) + len(known))
    for i, j, _ in found:
        forest.join(i, len(new) + j)
    alike = Counter(forest.find(i) for i in range(len(new)))
    if found and max(alike.values()) > max(LEAST_LARGE, LARGEST_GROUP * len(new)):
        return [], False
    return found, True


@dataclass(frozen=True)
class Compared:
    """Contents, each of which was compared with each other.

    Attributes:
        digests: of the contents, in order.
        pairs: those that agree, by their places among the contents, the lower first; None where there are too many to
            mean anything.
    """

    digests: tuple[bytes, ...]
    pairs: Pairs | None


def compare(
    facts: Sequence[Facts], before: Compared | None = None, progress: Callable[[int, int], None] | None = None
) -> Compared:
    """Compare every picture with every other, but for those that have been compared with one another before.

    Args:
        facts: of readable images.
        before: contents that have been compared, of which any may be among these.
        progress: told how many of how many images have been compared.
    """
    content = {fact.digest: fact.thumbnail for fact in facts}
    digests = tuple(sorted(content))
    known: frozenset[bytes] = frozenset()
    kept: Pairs = ([], [])
    if before is not None and before.pairs is not None:
        known = frozenset(before.digests)
        kept = _kept(before.pairs, before.digests, digests)
    there = [i for i, digest in enumerate(digests) if digest in known]
    new = [i for i, digest in enumerate(digests) if digest not in known]
    if not new:
        return Compared(digests, kept if sum(map(len, kept)) <= _MOST_PAIRS * len(digests) else None)
    most = _MOST_PAIRS * len(digests) - sum(map(len, kept))
    fresh, old = (as_pixels([content[digests[i]] for i in own]) for own in (new, there))
    among = find_pairs(fresh, None, most, progress)
    across: Pairs | None = ([], [])
    if there and among is not None:
        across = find_pairs(fresh, old, most - sum(map(len, among)), progress)
    if among is None or across is None:
        return Compared(digests, None)
    near, mirrored = (
        sorted([*old_ones, *((new[i], new[j]) for i, j in own), *(_sorted(new[i], there[j]) for i, j in beside)])
        for old_ones, own, beside in zip(kept, among, across, strict=True)
    )
    return Compared(digests, (near, mirrored))


def _kept(pairs: Pairs, before: Sequence[bytes], now: Sequence[bytes]) -> Pairs:
    """The pairs of which both are still there, by their places now; the digests of both times are in order."""

    def place(own: int) -> int | None:
        i = bisect_left(now, before[own])
        return i if i < len(now) and now[i] == before[own] else None

    near, mirrored = (
        [_sorted(i, j) for i, j in ((place(a), place(b)) for a, b in own) if i is not None and j is not None]
        for own in pairs
    )
    return near, mirrored


def _sorted(i: int, j: int) -> tuple[int, int]:
    return (i, j) if i < j else (j, i)


def find_duplicates(
    facts: Sequence[Facts],
    progress: Callable[[int, int], None] | None = None,
    compared: Compared | None = None,
) -> tuple[list[Link], bool]:
    """Every picture that is there more than once.

    Args:
        facts: of readable images.
        progress: told how many of how many images have been compared.
        compared: what `compare` says of them, where that is known.

    Returns:
        Links that connect all copies of a picture, mirrored ones last, and whether near copies could be told: where a
        large part of the images are alike, as from a camera that never moves, only exact ones are linked.
    """
    first_of: dict[bytes, int] = {}
    exact = []
    for i, fact in enumerate(facts):
        first = first_of.setdefault(fact.digest, i)
        if first != i:
            exact.append(Link(first, i, "exact"))
    compared = compare(facts, None, progress) if compared is None else compared
    if compared.pairs is None:
        return exact, False
    digests = compared.digests
    near_pairs, mirrored_pairs = (
        sorted(_sorted(first_of[digests[i]], first_of[digests[j]]) for i, j in own) for own in compared.pairs
    )
    forest = Forest(len(facts))
    near = [Link(i, j, "near") for i, j in near_pairs if forest.join(i, j)]
    apart = [(i, j) for i, j in mirrored_pairs if forest.find(i) != forest.find(j)]
    near += [Link(i, j, "mirrored") for i, j in apart]  # all: the reader may leave some out
    for i, j in apart:
        forest.join(i, j)
    if near and max(Counter(forest.roots()).values()) > max(LEAST_LARGE, LARGEST_GROUP * len(digests)):
        return exact, False
    return exact + near, True


class Forest:
    """Things that belong together, by number; each group is known by its lowest one."""

    def __init__(self, things: int) -> None:
        self._above = list(range(things))

    def find(self, thing: int) -> int:
        """The lowest number of the thing's group."""
        while self._above[thing] != thing:
            self._above[thing] = self._above[self._above[thing]]
            thing = self._above[thing]
        return thing

    def join(self, first: int, second: int) -> bool:
        """Make one group of two; False where they were one already."""
        low, high = sorted((self.find(first), self.find(second)))
        self._above[high] = low
        return low != high

    def roots(self) -> list[int]:
        """The group of each thing."""
        return [self.find(thing) for thing in range(len(self._above))]


def connect(links: Sequence[Link], images: int) -> list[int]:
    """A number for each image, the same for all that links connect: the lowest index among them."""
    forest = Forest(images)
    for link in links:
        forest.join(link.first, link.second)
    return forest.roots()
