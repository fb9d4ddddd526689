"""Training, validation and test images: made once, stratified by class, and written into the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitkit.data.source import ImageTable
from vitkit.errors import VitkitError

SPLITS = ("train", "val", "test")


def split(table: ImageTable, fractions: Sequence[float], seed: int) -> ImageTable:
    """Give every image a split, the same for the same seed.

    Images that come already split stay where they are; without a val folder its share is taken from training.
    A class too small for all three gives to train first, then test, then val.

    Args:
        table: the images.
        fractions: parts for train, val and test.
        seed: of the shuffle within each class.

    Raises:
        VitkitError: the fractions are not three parts of 1 with something to train on.
    """
    if len(fractions) != 3 or min(fractions) < 0 or fractions[0] <= 0 or not abs(sum(fractions) - 1) <= 1e-6:
        raise VitkitError(f"split must be three fractions that sum to 1, train above 0, not {tuple(fractions)}")
    shares = np.array(fractions[1:], dtype=float)
    splits = list(table.splits)
    given = {name for name in splits if name is not None}
    if "val" in given:
        return table
    if given:  # a train folder without a val folder; a test folder, if any, is the test split
        shares = np.array([shares[0], 0.0 if "test" in given else shares[1]])
    rng = np.random.default_rng(seed)
    for label in range(len(table.classes)):
        own = [i for i, of in enumerate(table.labels) if of == label and splits[i] in (None, "train")]
        rng.shuffle(own)
        val, test = _sizes(len(own), shares)
        for position, i in enumerate(own):
            splits[i] = "test" if position < test else "val" if position < test + val else "train"
    return replace(table, splits=tuple(splits))


def _sizes(images: int, shares: np.ndarray) -> tuple[int, int]:
    """How many of a class's images go to val and to test: at least one each where the class can spare it."""
    spare = images - 1
    test = min(spare, max(round(images * shares[1]), 1)) if shares[1] else 0
    val = min(spare - test, max(round(images * shares[0]), 1)) if shares[0] else 0
    return max(val, 0), max(test, 0)


def take_stratified(table: ImageTable, limit: int, seed: int) -> ImageTable:
    """At most `limit` images, the classes (and splits) in their proportions, at least one of each class."""
    if limit >= len(table):
        return table
    rng = np.random.default_rng(seed)
    groups: dict[tuple[int, str | None], list[int]] = {}
    for i in rng.permutation(len(table)).tolist():
        groups.setdefault((table.labels[i], table.splits[i]), []).append(i)
    # Rank each image by its depth within its own group: cutting the ranking keeps every group in proportion.
    ranked = sorted(((depth + 0.5) / len(own), i) for own in groups.values() for depth, i in enumerate(own))
    first: dict[int, int] = {}
    for _, i in ranked:
        first.setdefault(table.labels[i], i)
    of_each_class = set(first.values())
    of_each_group = {own[0] for own in groups.values()} - of_each_class
    kept = sorted(ranked, key=lambda row: (row[1] not in of_each_class, row[1] not in of_each_group, *row))
    return table.take(sorted(i for _, i in kept[:limit]))


def split_to_dict(table: ImageTable) -> dict[str, Any]:
    """Plain JSON types: root, classes, and the paths of each class of each split, with a hash over all of them."""
    splits: dict[str, dict[str, list[str]]] = {
        name: {cls: [] for cls in table.classes} for name in SPLITS if name in table.splits
    }
    for path, label, own in zip(table.paths, table.labels, table.splits, strict=True):
        if own is not None:
            splits[own][table.classes[label]].append(path)
    content = {"classes": list(table.classes), "splits": splits}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return {"data": table.name, "root": str(table.root), "hash": digest, **content}


def split_from_file(path: Path) -> ImageTable:
    """The table that a run's split.json describes.

    Raises:
        VitkitError: the file is missing or damaged.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        rows = [
            (image, label, name)
            for name, by_class in stored["splits"].items()
            for label, cls in enumerate(stored["classes"])
            for image in by_class[cls]
        ]
        table = ImageTable(
            name=stored["data"],
            root=Path(stored["root"]),
            classes=tuple(stored["classes"]),
            paths=tuple(row[0] for row in rows),
            labels=tuple(row[1] for row in rows),
            splits=tuple(row[2] for row in rows),
        )
        if split_to_dict(table)["hash"] != stored["hash"]:
            raise ValueError("its hash does not match its content")
    except FileNotFoundError as error:
        raise VitkitError(f"no such file: {path}") from error
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise VitkitError(f"{path} is damaged: {error}") from error
    return table
