"""What a run writes down of its images: the split of each (split.json), and which belong together (groups.json)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitkit.data.splits import SPLITS
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.system.files import from_json, read_text
from vitkit.text.cells import JOINT


def split_to_dict(table: ImageTable) -> dict[str, Any]:
    """Plain JSON types: root, classes, and the paths of each class of each split, with a hash over all of them.

    In a multi-label table the paths are those of each set of classes, whose names are joined by `;`.
    """
    names = [JOINT.join(table.classes[k] for k in own) for own in table.sets] or table.classes
    splits: dict[str, dict[str, list[str]]] = {
        name: {cls: [] for cls in names} for name in SPLITS if name in table.splits
    }
    for path, label, own in zip(table.paths, table.labels, table.splits, strict=True):
        if own is not None:
            splits[own][names[label]].append(path)
    content = {"classes": list(table.classes), **({"task": "multi"} if table.is_multi else {}), "splits": splits}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return {"data": table.name, "root": str(table.root), "hash": digest, **content}


def split_from_file(path: Path) -> ImageTable:
    """The table that a run's split.json describes.

    Raises:
        VitkitError: the file is missing or damaged.
    """
    try:
        stored = from_json(read_text(path))
        names, sets = _stored_sets(stored) if stored.get("task") == "multi" else (stored["classes"], ())
        rows = [
            (image, label, name)
            for name, by_class in stored["splits"].items()
            for label, cls in enumerate(names)
            for image in by_class[cls]
        ]
        if not all(
            isinstance(text, str) for text in (stored["data"], stored["root"], *names, *(row[0] for row in rows))
        ):
            raise TypeError("a name or a path is no text")
        table = ImageTable(
            name=stored["data"],
            root=Path(stored["root"]),
            classes=tuple(stored["classes"]),
            paths=tuple(row[0] for row in rows),
            labels=tuple(row[1] for row in rows),
            splits=tuple(row[2] for row in rows),
            sets=sets,
        )
        if split_to_dict(table)["hash"] != stored["hash"]:
            raise ValueError("its hash does not match its content")
    except FileNotFoundError as error:
        raise VitkitError(f"no such file: {path}") from error
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise VitkitError(f"{path} is damaged: {error}") from error
    return table


def groups_to_list(table: ImageTable, groups: Sequence[int]) -> list[list[str]]:
    """The paths of images that are copies of one picture, or of one scene: of each group of two or more.

    Args:
        table: n images.
        groups: a number for each image, the same within a group, (n,).
    """
    members: dict[int, list[str]] = {}
    for path, number in zip(table.paths, groups, strict=True):
        members.setdefault(number, []).append(path)
    return [paths for paths in members.values() if len(paths) > 1]


def groups_from_file(path: Path) -> dict[str, int]:
    """The number of the group of each image that has one, from what `groups_to_list` gave; none without the file.

    Raises:
        VitkitError: the file is damaged.
    """
    try:
        stored = from_json(read_text(path))
        groups = {image: number for number, paths in enumerate(stored) for image in paths}
        if not all(isinstance(image, str) for image in groups):
            raise TypeError("a path is no text")
        return groups
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as error:
        raise VitkitError(f"{path} is damaged: {error}") from error


def _stored_sets(stored: dict[str, Any]) -> tuple[list[str], tuple[tuple[int, ...], ...]]:
    """The keys of a multi-label split.json, and the set of classes that each stands for."""
    number = {name: i for i, name in enumerate(stored["classes"])}
    names = list(dict.fromkeys(key for by_set in stored["splits"].values() for key in by_set))
    return names, tuple(tuple(number[name] for name in key.split(JOINT) if name) for key in names)
