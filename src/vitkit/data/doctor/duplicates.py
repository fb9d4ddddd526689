"""Find photographs that occur more than once: identical files, resized or recompressed pictures, and altered copies.

Two pictures count as copies if their 16 x 16 thumbnails agree in structure (correlation of the grey values) and in
colour. They also count as copies if their keypoints have the same arrangement. The thresholds were chosen by
measurements (docs/decisions/0009-duplicates.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vitkit.data.doctor.altered import Described, find_altered
from vitkit.data.doctor.likeness import Pairs, find_pairs
from vitkit.data.file_facts import Facts, FactTable, column

Kind = Literal["exact", "near", "altered", "mirrored"]
LookedFor = Literal[
    "altered", "near", "exact"
]  # copies of this kind and of those before it in `Kind`, and mirrored ones
# If a larger share of the images are near copies of one another, they show one scene rather than one picture.
LARGEST_GROUP, LEAST_LARGE = 0.25, 20
_MOST_PAIRS = 100  # per image and kind of copies; with more, the comparison is given up


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

    Args:
        new: the pictures to search for.
        known: the pictures to compare `new` with.
        progress: receives the number of comparisons done and their total.

    Returns:
        First, a list of tuples: the index of a new picture, the index of a known picture, and the kind (near, altered
        or mirrored). Second, the last kind of copies that was searched for with a useful result: `exact`, `near` or
        `altered`. It is not `altered` if a large share of the new pictures are similar to one another, for example
        because they are from a fixed camera.
    """
    first, second = _halves(progress)
    pairs = find_pairs(new.pixels, known.pixels, _MOST_PAIRS * (len(new) + len(known)), first)
    if pairs is None:
        return [], "exact"
    links = _with_kinds(pairs, "near")
    altered = find_altered(new, known, second)
    if altered is not None:
        there = {(i, j) for i, j, _ in links}
        more = links + [link for link in _with_kinds(altered, "altered") if link[:2] not in there]
        if not _are_alike(more, len(new), len(known)):
            return more, "altered"
    return ([], "exact") if _are_alike(links, len(new), len(known)) else (links, "near")


def _halves(progress: Callable[[int, int], None] | None) -> tuple[Callable[[int, int], None], ...]:
    """Return progress callbacks for two searches in succession. Each of them accounts for half of the progress."""

    def tell(done: int, total: int) -> None:
        if progress is not None:
            progress(done, total)

    return (lambda done, total: tell(done // 2, total)), (lambda done, total: tell((total + done) // 2, total))


def _with_kinds(pairs: Pairs, kind: Kind) -> list[tuple[int, int, Kind]]:
    return [*((i, j, kind) for i, j in pairs[0]), *((i, j, "mirrored") for i, j in pairs[1])]


def _are_alike(links: Sequence[tuple[int, int, Kind]], new: int, known: int) -> bool:
    """Return whether the links would join a large share of the new pictures into a single group of copies."""
    forest = Forest(new + known)
    for i, j, _ in links:
        forest.join(i, new + j)
    largest = max(Counter(forest.find(i) for i in range(new)).values(), default=0)
    return bool(links) and largest > max(LEAST_LARGE, LARGEST_GROUP * new)


@dataclass(frozen=True)
class Compared:
    """The contents of files that have been compared with one another, and the pairs of copies among them.

    Attributes:
        digests: the SHA-256 digests of the contents, sorted.
        pairs: near and mirrored copies, found by thumbnails. They are pairs of indices into `digests`, the lower index
            first. None if there are so many pairs that they mean nothing.
        altered: further copies, altered and mirrored ones, found by keypoints. None if there are too many pairs.
    """

    digests: tuple[bytes, ...]
    pairs: Pairs | None
    altered: Pairs | None


def compare(
    facts: Sequence[Facts], before: Compared | None = None, progress: Callable[[int, int], None] | None = None
) -> Compared:
    """Compare all pictures with one another, except pairs that `before` has compared already.

    Args:
        facts: the facts of the images. All images must be readable.
        before: the result of an earlier comparison of some of these images, possibly with others; None if there is
            none.
        progress: receives the number of images compared and their total.
    """
    table = FactTable.of(facts)
    row_of = {digest: row for row, digest in enumerate(table.column("digest"))}
    digests = tuple(sorted(row_of))
    known: frozenset[bytes] = frozenset()
    kept, kept_altered = _none(), _none()
    if before is not None and before.pairs is not None and before.altered is not None:
        known = frozenset(before.digests)
        kept, kept_altered = (_kept(indices, before.digests, digests) for indices in (before.pairs, before.altered))
    there = [i for i, digest in enumerate(digests) if digest in known]
    new = [i for i, digest in enumerate(digests) if digest not in known]
    fresh, old = (Described.of(table.take([row_of[digests[i]] for i in indices])) for indices in (new, there))
    most = _MOST_PAIRS * len(digests)
    first_half, second_half = _halves(progress)

    def near(some: Described, others: Described | None) -> Pairs | None:
        return find_pairs(some.pixels, None if others is None else others.pixels, most, first_half)

    def altered(some: Described, others: Described | None) -> Pairs | None:
        return find_altered(some, others, second_half)

    def all_of(search: Callable[[Described, Described | None], Pairs | None], kept: Pairs) -> Pairs | None:
        among = search(fresh, None) if new else _none()
        across = search(fresh, old) if new and there and among is not None else _none()
        if among is None or across is None:
            return None
        first, second = (
            sorted(
                [*old_ones, *((new[i], new[j]) for i, j in indices), *(_sorted(new[i], there[j]) for i, j in beside)]
            )
            for old_ones, indices, beside in zip(kept, among, across, strict=True)
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


def _none() -> Pairs:
    return [], []


def _kept(pairs: Pairs, before: Sequence[bytes], now: Sequence[bytes]) -> Pairs:
    """Return the pairs whose two contents are still present, converted to indices into `now`.

    The pairs are indices into `before`. Both lists of digests are sorted.
    """

    def place(pair: int) -> int | None:
        i = bisect_left(now, before[pair])
        return i if i < len(now) and now[i] == before[pair] else None

    near, mirrored = (
        [_sorted(i, j) for i, j in ((place(a), place(b)) for a, b in pair) if i is not None and j is not None]
        for pair in pairs
    )
    return near, mirrored


def _sorted(i: int, j: int) -> tuple[int, int]:
    return (i, j) if i < j else (j, i)


def find_duplicates(
    facts: Sequence[Facts],
    progress: Callable[[int, int], None] | None = None,
    compared: Compared | None = None,
) -> tuple[list[Link], LookedFor]:
    """Find all pictures that occur more than once.

    Args:
        facts: the facts of the images. All images must be readable.
        progress: receives the number of images compared and their total.
        compared: the result of `compare` for these images; None to compute it.

    Returns:
        First, the links that connect all copies of a picture, mirrored copies last. Second, the last kind of copies
        that was searched for with a useful result: `exact`, `near` or `altered`. It is not `altered` if a large share
        of the images are similar to one another, for example because they are from a fixed camera.
    """
    first_of: dict[bytes, int] = {}
    exact = []
    for i, digest in enumerate(column(facts, "digest")):
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
        if not _is_one_scene(links, len(facts), len(compared.digests)):
            return exact + links, "altered"
    links = _links(len(facts), near, [], mirrored)
    return (exact, "exact") if _is_one_scene(links, len(facts), len(compared.digests)) else (exact + links, "near")


def _links(
    images: int,
    near: Sequence[tuple[int, int]],
    altered: Sequence[tuple[int, int]],
    mirrored: Sequence[tuple[int, int]],
) -> list[Link]:
    """Return as few links as possible that connect all near and altered pairs into groups.

    A mirrored pair adds a link if its two pictures are in different groups.
    """
    forest = Forest(images)
    links = [Link(i, j, "near") for i, j in near if forest.join(i, j)]
    links += [Link(i, j, "altered") for i, j in altered if forest.join(i, j)]
    return links + [Link(i, j, "mirrored") for i, j in mirrored if forest.find(i) != forest.find(j)]


def _is_one_scene(links: Sequence[Link], images: int, contents: int) -> bool:
    return bool(links) and max(Counter(connect(links, images)).values()) > max(LEAST_LARGE, LARGEST_GROUP * contents)


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
    """Return the group of each image: the lowest index of the images that links connect with it, or its own."""
    forest = Forest(images)
    for link in links:
        forest.join(link.first, link.second)
    return forest.roots()
