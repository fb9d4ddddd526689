"""Divide images into training, validation and test splits, or into folds.

All classes are divided in the same proportions, and the images of a group stay together. Runs store the result.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np

from vitkit.data.doctor.duplicates import Forest
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError

UNEQUAL = 3  # the ratio of the largest to the smallest class above which classes are called imbalanced

ALL, _NO_CLASS = -2, -1  # further keys of counts by class number: all images, and images without a class


def count_by_class(table: ImageTable, images: Sequence[int]) -> Counter[int]:
    """Count these images by class. Images without a class are counted under `_NO_CLASS`."""
    return Counter(label for i in images for label in (table.classes_of(i) or (_NO_CLASS,)))


def sum_counts(counts: Sequence[Counter[int]]) -> Counter[int]:
    total = Counter[int]()
    for count in counts:
        total.update(count)
    return total


def assign_multi_label_groups(
    table: ImageTable,
    members: Sequence[Sequence[int]],
    shares: tuple[float, float],
    rng: np.random.Generator,
    existing: Sequence[Counter[int]],
) -> list[int]:
    """Assign a split to each group of multi-label images: 0 for train, 1 for val, 2 for test.

    Every class gets at least one image in train. `members` are the images of each group, and `shares` the fractions of
    val and test. `existing` counts the images that each split already contains, by class and in total (`ALL`).
    """
    counts = [count_by_class(table, images) for images in members]
    totals = sum_counts([Counter({ALL: sum(map(len, members))}), *counts, *existing])
    wanted: list[dict[int, float]] = [{}, {}, {}]
    for label, images in totals.items():
        val, test = val_and_test_sizes(images, shares)
        for k, size in enumerate((images - val - test, val, test)):
            wanted[k][label] = size - existing[k][label]
    parts = stratify(members, counts, wanted, rng)
    in_train = {label for count, part in zip(counts, parts, strict=True) if part == 0 for label in count}
    in_train |= set(existing[0])
    for i in sorted(range(len(members)), key=lambda i: len(members[i])):  # move small groups rather than large ones
        if not in_train.issuperset(counts[i]):
            parts[i] = 0
            in_train.update(counts[i])
    return parts


def stratify(
    members: Sequence[Sequence[int]],
    counts: Sequence[Counter[int]],
    wanted: Sequence[dict[int, float]],
    rng: np.random.Generator,
) -> list[int]:
    """Assign each group to a part, such as a split, by iterative stratification (Sechidis et al. 2011, algorithm 1).

    The class with the fewest remaining groups is distributed first, because its imbalance could not be corrected later.
    Each group of this class goes to the part that lacks the most images of the class.

    Args:
        members: the images of each group.
        counts: the number of images of each class, for each group.
        wanted: for each part, the desired number of images, by class and in total (`ALL`).
        rng: the random number generator, which orders groups of the same size.
    """
    missing = [dict(sizes) for sizes in wanted]
    groups_with: dict[int, list[int]] = {}  # the groups that contain each class, large groups first
    for i in sorted(rng.permutation(len(members)).tolist(), key=lambda i: -len(members[i])):
        for label in counts[i]:
            groups_with.setdefault(label, []).append(i)
    remaining = {label: len(groups) for label, groups in groups_with.items()}
    # A heap of (remaining groups, class). Whenever a number changes, a new entry is added and the old one is outdated.
    queue = [(count, label) for label, count in remaining.items()]
    heapify(queue)
    parts = [-1] * len(members)
    while queue:
        count, rarest = heappop(queue)
        if count != remaining[rarest] or not count:
            continue
        for i in groups_with[rarest]:
            if parts[i] >= 0:
                continue
            part = max(range(len(missing)), key=lambda k: (missing[k][rarest], missing[k][ALL]))
            parts[i] = part
            for label, images in counts[i].items():
                missing[part][label] -= images
                remaining[label] -= 1
                heappush(queue, (remaining[label], label))
            missing[part][ALL] -= len(members[i])
    return parts


def images_by_group(groups: Sequence[int], images: Sequence[int]) -> list[list[int]]:
    """Collect images by group. The groups are in the order of their first images."""
    members: dict[int, list[int]] = {}
    for i in images:
        members.setdefault(groups[i], []).append(i)
    return list(members.values())


def groups_by_class(table: ImageTable, members: Sequence[list[int]]) -> list[list[list[int]]]:
    """Collect groups of images by class. The class of a group is the class of its first image."""
    groups: list[list[list[int]]] = [[] for _ in table.classes]
    for images in members:
        groups[table.labels[images[0]]].append(images)
    return groups


def assign_groups(sizes: Sequence[int], val: int, test: int, trained: int = 0) -> list[str]:
    """Assign a split to each group of a class, so that val and test get about the desired number of images.

    Groups of several images are assigned first, the largest first, each to the split that lacks the most images. Copies
    of a picture are therefore mostly in train, and val and test contain many different pictures. Single images then
    fill test, val and train, in this order. At least one group is assigned to train, unless train already has `trained`
    images of the class. `sizes` are the numbers of images of the groups; a desired number of 0 or less means none.
    """
    missing = {"test": test, "val": val, "train": sum(sizes) - val - test}
    names = [""] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if sizes[i] > 1:
            names[i] = max(("train", "test", "val"), key=lambda name: missing[name])
        else:
            names[i] = next((name for name in ("test", "val") if missing[name] > 0), "train")
        missing[names[i]] -= sizes[i]
    if trained:
        return names
    if sizes and "train" not in names:
        largest = max(range(len(sizes)), key=lambda i: sizes[i])
        names[largest] = "train"
    for name, wanted in (("test", test), ("val", val)):
        counts = Counter(names)
        # With a few large groups, a split may have got none: take the smallest from the split with the most groups.
        if wanted > 0 and not counts[name] and max(counts.values(), default=0) > 1:
            donor = max(counts, key=lambda other: counts[other])
            smallest = min((i for i, value in enumerate(names) if value == donor), key=lambda i: sizes[i])
            names[smallest] = name
    return names


def val_and_test_sizes(images: int, shares: tuple[float, float]) -> tuple[int, int]:
    """Return how many images of a class are in val and in test: at least one each, if there are enough.

    `shares` has the fractions for val and test, which may be 0. The numbers are rounded, except that val
    without test is rounded down, as is usual for two splits.
    """
    val_share, test_share = shares
    spare = max(images - 1, 0)  # one image is kept for training
    val = test = 0
    if test_share:
        test = min(spare, max(round(images * test_share), 1))
    if val_share:
        # The product may be slightly too small, as 0.29 * 100 is.
        rounded = round(images * val_share) if test_share else int(images * val_share + 1e-9)
        val = min(spare - test, max(rounded, 1))
    return val, test


SPLITS = ("train", "val", "test")


def split(
    table: ImageTable,
    fractions: Sequence[float],
    seed: int,
    groups: Sequence[int] | None = None,
    kept: Sequence[str | None] | None = None,
) -> ImageTable:
    """Assign a split to every image. The same seed gives the same result.

    Splits that the data already have are kept. If these splits lack val, val is taken from train. If they lack both val
    and test, both are taken from train. If a class is too small for three splits, train gets an image first, then test,
    then val. Multi-label images are assigned by iterative stratification (Sechidis et al. 2011).

    Args:
        table: the images.
        fractions: the fractions of train, val and test.
        seed: the seed of the shuffle within each class.
        groups: a number for each image; images with the same number are assigned to the same split.
        kept: the split of each image in an earlier run, which the image keeps; None for a new image. New images are
            assigned so that all images together come close to the fractions.

    Raises:
        VitkitError: the fractions are not three numbers that sum to 1, or the first is 0.
    """
    is_valid = len(fractions) == 3 and fractions[0] > 0 and min(fractions) >= 0 and abs(sum(fractions) - 1) <= 1e-6
    if not is_valid:
        raise VitkitError(
            "data.fractions-invalid",
            "split must be three fractions (train, val, test) that sum to 1, the first above 0, not "
            f"{tuple(fractions)}",
        )
    present = {name for name in table.splits if name is not None}
    if "val" in present:
        return table
    _, val_share, test_share = map(float, fractions)
    if "test" in present:
        test_share = 0.0
    rng = np.random.default_rng(seed)
    splits = list(table.splits)
    free = [i for i, split_name in enumerate(splits) if split_name in (None, "train")]
    assigned: dict[int, str] = {}
    if kept is not None:
        may_be = ("train", "val") if "test" in present else SPLITS
        for i in free:
            name = kept[i]
            if name is not None and name in may_be:
                splits[i] = assigned[i] = name
    groups = range(len(table)) if groups is None else groups
    members = images_by_group(groups, [i for i in free if i not in assigned])

    if table.sets:
        in_splits: list[Counter[int]] = [Counter() for _ in SPLITS]  # the images of each split, by class and in total
        for i, name in assigned.items():
            in_splits[SPLITS.index(name)].update([*count_by_class(table, [i]), ALL])
        parts = assign_multi_label_groups(table, members, (val_share, test_share), rng, in_splits)
        for images, part in zip(members, parts, strict=True):
            for i in images:
                splits[i] = SPLITS[part]
        return replace(table, splits=tuple(splits))

    in_classes: list[Counter[str]] = [Counter() for _ in table.classes]  # the images of each class, by split
    for i, name in assigned.items():
        in_classes[table.labels[i]][name] += 1
    for groups_of_class, existing in zip(groups_by_class(table, members), in_classes, strict=True):
        rng.shuffle(groups_of_class)
        sizes = [len(images) for images in groups_of_class]
        val, test = val_and_test_sizes(sum(sizes) + existing.total(), (val_share, test_share))
        names = assign_groups(sizes, val - existing["val"], test - existing["test"], trained=existing["train"])
        for images, name in zip(groups_of_class, names, strict=True):
            for i in images:
                splits[i] = name
    return replace(table, splits=tuple(splits))


def check_trainable(table: ImageTable) -> None:
    """Raise VitkitError if data are already split but have no training images."""
    present = [name for name in SPLITS if name in table.splits]
    if present and "train" not in present:
        raise VitkitError(
            "data.train-empty",
            f"{table.name} has {' and '.join(present)} images and none to train on; add a train split, "
            "or name a folder of class folders",
        )


def fold(table: ImageTable, folds: int, seed: int, groups: Sequence[int] | None = None) -> list[int]:
    """Assign a fold from 0 to folds - 1 to each image. Each class is divided evenly.

    Images with the same number in `groups` are in the same fold. None means that images are assigned independently.

    Raises:
        VitkitError: `folds` is less than two, or more than the number of images (or groups) of the largest class.
    """
    members = images_by_group(groups or range(len(table)), range(len(table)))
    counts = [count_by_class(table, images) for images in members]
    largest = max(Counter(label for count in counts for label in count).values())  # in groups
    if not 2 <= folds <= largest:
        raise VitkitError(
            "data.folds-invalid",
            f"folds must be between 2 and {largest}, the number of images or groups in the largest class, not {folds}",
        )
    rng = np.random.default_rng(seed)
    fold_of = [0] * len(table)
    if table.sets:  # an image may have several classes, so the classes cannot be divided one after the other
        totals = sum_counts([Counter({ALL: len(table)}), *counts])
        wanted = [{label: images / folds for label, images in totals.items()} for _ in range(folds)]
        for images, part in zip(members, stratify(members, counts, wanted, rng), strict=True):
            for i in images:
                fold_of[i] = part
        return fold_of
    sizes = np.zeros(folds)
    for groups_of_class in groups_by_class(table, members):
        rng.shuffle(groups_of_class)
        sizes_in_class = np.zeros(folds)
        for images in sorted(groups_of_class, key=len, reverse=True):
            smallest = min(range(folds), key=lambda k: (sizes_in_class[k], sizes[k]))
            sizes_in_class[smallest] += len(images)
            sizes[smallest] += len(images)
            for i in images:
                fold_of[i] = smallest
    return fold_of


def merge_by_scene(table: ImageTable, pattern: str | None, groups: Sequence[int]) -> list[int]:
    """Merge the groups of images that belong to the same scene, or to the same group of the table.

    The scene of an image is the part of its path that a regular expression matches: the first capture group, or the
    whole match if the expression has no group.

    Args:
        table: the images.
        pattern: the regular expression, searched in each path below the data's folder. An image without a match is in
            no scene. None means that there are no scenes.
        groups: a number for each image (`duplicates.connect`). Images with the same number stay together.

    Returns:
        A number for each image, which is the same for images of the same scene or group.

    Raises:
        VitkitError: no path matches, or all paths match the same text.
        re.error: the pattern is not a regular expression.
    """
    scenes: list[str | None] = [None] * len(table)
    if pattern is not None:
        number = 1 if re.compile(pattern).groups else 0  # of the capture group; 0 is the whole match
        matches = [re.search(pattern, path) for path in table.paths]
        scenes = [match[number] if match else None for match in matches]
        if len(set(scenes)) == 1:
            problem = f"matches no path, such as {table.paths[0]!r}"
            if scenes[0] is not None:
                problem = f"matches {scenes[0]!r} in every path"
            raise VitkitError(
                "data.groups-all-one",
                f"--group-by {pattern!r} {problem}; it should match the part of the path that names the scene",
            )
    forest = Forest(len(table))
    first_of_scene, first_of_group = dict[str, int](), dict[str, int]()  # the first image of each
    for i, (path, scene, group) in enumerate(zip(table.paths, scenes, groups, strict=True)):
        forest.join(i, group)
        if scene is not None:
            forest.join(i, first_of_scene.setdefault(scene, i))
        if path in table.groups:
            forest.join(i, first_of_group.setdefault(table.groups[path], i))
    return forest.roots()


def limit_training(table: ImageTable, limit: int, seed: int) -> ImageTable:
    """Keep at most `limit` training images of a split table, and all validation and test images.

    The proportions of the classes stay about the same, and each class keeps at least one image. With the same seed, a
    larger limit keeps all images that a smaller limit keeps, and more.

    Raises:
        VitkitError: the limit is too small to keep an image of each class.
    """
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation([i for i, split_name in enumerate(table.splits) if split_name == "train"]).tolist()
    ranked = order_in_proportion(shuffled, table.labels)  # the same order for every limit
    if limit >= len(ranked):
        return table
    first: dict[int, int] = {}  # the first image of each class
    for i in ranked:
        for label in table.classes_of(i):
            first.setdefault(label, i)
    of_each_class = set(first.values())
    if limit < len(of_each_class):
        raise VitkitError(
            "data.limit-too-small",
            f"--max-images {limit} is too few to train on: the {len(first)} classes need {len(of_each_class)} images",
        )
    kept = set(sorted(ranked, key=lambda i: i not in of_each_class)[:limit])
    return table.take([i for i, split_name in enumerate(table.splits) if split_name != "train" or i in kept])


def order_in_proportion(images: Sequence[int], labels: Sequence[int]) -> list[int]:
    """Order images so that any first n of them have about the same proportions of labels as all of them.

    The relative order of images with the same label is preserved. `labels` are those of all images of the table.
    """
    by_class: dict[int, list[int]] = {}
    for i in images:
        by_class.setdefault(labels[i], []).append(i)
    # The n-th of N images with a label gets the position (n + 1/2) / N, so the images of each label are evenly spread.
    positions = [((n + 0.5) / len(same), i) for same in by_class.values() for n, i in enumerate(same)]
    return [i for _, i in sorted(positions)]


def held_out_split(table: ImageTable) -> str:
    """Return the split on which results are reported: test if it exists, otherwise val, otherwise "all" images."""
    return next((name for name in ("test", "val") if name in table.splits), "all")


def is_imbalanced(counts: Sequence[int]) -> bool:
    """Return whether the largest class has more than `UNEQUAL` times as many images as the smallest."""
    occurring = [count for count in counts if count]
    return bool(occurring) and max(occurring) > UNEQUAL * min(occurring)
