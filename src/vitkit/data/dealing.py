"""Dealing images, and groups of them that stay together, to splits and folds: each class in its proportion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from vitkit.data.table import ImageTable

ALL, _NONE = -2, -1  # what is counted beside the classes: every image, and those without a class


def classes_in(table: ImageTable, images: Sequence[int]) -> Counter[int]:
    """How many of the images have each class; those of none count as a class of their own."""
    return Counter(label for i in images for label in (table.classes_of(i) or (_NONE,)))


def total(counts: Sequence[Counter[int]]) -> Counter[int]:
    """The counts, added up."""
    summed = Counter[int]()
    for own in counts:
        summed.update(own)
    return summed


def deal_sets(
    table: ImageTable,
    members: Sequence[Sequence[int]],
    shares: np.ndarray,
    rng: np.random.Generator,
    have: Sequence[Counter[int]],
) -> list[int]:
    """The number of the split (train, val, test) of each group of images that may have several classes.

    Every class has an image in train. `have` is what the splits have already, of each class and in all.
    """
    counts = [classes_in(table, images) for images in members]
    wants: list[dict[int, float]] = [{}, {}, {}]
    for label, images in total([Counter({ALL: sum(map(len, members))}), *counts, *have]).items():
        val, test = sizes_of(images, shares)
        for want, size, already in zip(wants, (images - val - test, val, test), have, strict=True):
            want[label] = size - already[label]
    parts = stratify(members, counts, wants, rng)
    learned = {label for own, part in zip(counts, parts, strict=True) if part == 0 for label in own} | set(have[0])
    for i in sorted(range(len(members)), key=lambda i: len(members[i])):
        if not learned.issuperset(counts[i]):
            parts[i] = 0
            learned.update(counts[i])
    return parts


def stratify(
    members: Sequence[Sequence[int]],
    counts: Sequence[Counter[int]],
    wants: Sequence[dict[int, float]],
    rng: np.random.Generator,
) -> list[int]:
    """A part for each group: iterative stratification (Sechidis et al. 2011, algorithm 1).

    The class with the fewest groups left is dealt first, each of its groups to the part that lacks most of it, since
    little can be made good for it later.

    Args:
        members: the groups' images.
        counts: how many images of each class a group has.
        wants: how many images of each class, and in all (`ALL`), a part should get.
        rng: decides between groups that are alike.
    """
    lacking = [dict(want) for want in wants]
    holders: dict[int, list[int]] = {}
    for i in sorted(rng.permutation(len(members)).tolist(), key=lambda i: -len(members[i])):
        for label in counts[i]:
            holders.setdefault(label, []).append(i)
    left = {label: len(own) for label, own in holders.items()}
    queue = [
        (groups, label) for label, groups in left.items()
    ]  # as they were at some time; those that changed are late
    heapify(queue)
    parts = [-1] * len(members)
    while queue:
        groups, rarest = heappop(queue)
        if groups != left[rarest] or not groups:
            continue
        for i in (i for i in holders[rarest] if parts[i] < 0):
            parts[i] = max(range(len(lacking)), key=lambda k: (lacking[k][rarest], lacking[k][ALL]))
            for label, images in counts[i].items():
                lacking[parts[i]][label] -= images
                left[label] -= 1
                heappush(queue, (left[label], label))
            lacking[parts[i]][ALL] -= len(members[i])
    return parts


def members_of(groups: Sequence[int], free: Sequence[int]) -> list[list[int]]:
    """The free images, group by group, in the order of their first ones."""
    members: dict[int, list[int]] = {}
    for i in free:
        members.setdefault(groups[i], []).append(i)
    return list(members.values())


def by_class(table: ImageTable, members: Sequence[list[int]]) -> list[list[list[int]]]:
    """The groups of each class, in their order; a group is of the class of its first image."""
    own: list[list[list[int]]] = [[] for _ in table.classes]
    for images in members:
        own[table.labels[images[0]]].append(images)
    return own


def deal(sizes: Sequence[int], val: int, test: int, trained: int = 0) -> list[str]:
    """A split for each group of a class, so that test and val get their number of images or come close.

    Beside them are `trained` images that are in train already; a number that is not above 0 wants none.

    Single images fill test, then val, then train. Groups are dealt first, the largest ones foremost, each to the split
    that lacks most: copies of one picture are thus trained on, and the other two hold pictures that differ.
    """
    lacking = {"test": test, "val": val, "train": sum(sizes) - val - test}
    names = [""] * len(sizes)
    for i in sorted((i for i, size in enumerate(sizes) if size > 1), key=lambda i: -sizes[i]):
        names[i] = max(("train", "test", "val"), key=lambda name: lacking[name])
        lacking[names[i]] -= sizes[i]
    for i in (i for i, size in enumerate(sizes) if size == 1):
        names[i] = next((name for name in ("test", "val") if lacking[name] > 0), "train")
        lacking[names[i]] -= 1
    if sizes and "train" not in names and not trained:
        names[max(range(len(sizes)), key=lambda i: sizes[i])] = "train"
    for name, wanted in (("test", test), ("val", val)):  # a few large groups may have passed one by
        others = Counter(names)
        if wanted > 0 and not others[name] and not trained and max(others.values(), default=0) > 1:
            rich = max(others, key=lambda other: others[other])
            names[min((i for i, own in enumerate(names) if own == rich), key=lambda i: sizes[i])] = name
    return names


def sizes_of(images: int, shares: np.ndarray) -> tuple[int, int]:
    """How many of a class's images go to val and to test: at least one each where the class can spare it.

    The numbers are rounded, but where there is no test part that of val is cut, as in the common split into two.
    """
    spare = images - 1
    test = min(spare, max(round(images * shares[1]), 1)) if shares[1] else 0
    whole = round(images * shares[0]) if shares[1] else int(images * shares[0] + 1e-9)
    val = min(spare - test, max(whole, 1)) if shares[0] else 0
    return max(val, 0), max(test, 0)
