"""Folders that are called as splits are, and where in them the classes lie."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vitkit.data.splitnames import split_of_folder
from vitkit.data.tree import Folder


@dataclass(frozen=True)
class SplitFolder:
    """A folder that its name calls a split, and the one within it that its classes lie in."""

    outer: Folder
    inner: Folder
    split: str
    words: tuple[str, ...]

    @property
    def has_classes(self) -> bool:
        return bool(self.inner.full)


def grouped(folder: Folder) -> dict[tuple[str, ...], list[SplitFolder]]:
    """The folders that are called as splits are, by the other words in their names."""
    groups: dict[tuple[str, ...], list[SplitFolder]] = defaultdict(list)
    for own in folder.full:
        found = split_of_folder(own.name)
        if found is not None:
            groups[found[1]].append(SplitFolder(own, undouble(own), *found))
    return groups


def is_pair(splits: Sequence[SplitFolder]) -> bool:
    return len(splits) > 1 and any(own.split == "train" for own in splits)


def undouble(folder: Folder) -> Folder:
    """seg_train/seg_train: archives are unpacked into a folder of their own name."""
    inner = folder
    while not inner.has_images and len(inner.full) == 1 and split_of_folder(inner.full[0].name) is not None:
        inner = inner.full[0]
    return inner if split_of_folder(inner.name) == split_of_folder(folder.name) else folder


def unwrap_alike(splits: Sequence[SplitFolder]) -> list[SplitFolder]:
    """Where each holds nothing but one folder of the same name (train/images, test/images), the classes are in that."""
    splits = list(splits)
    while all(own.inner.is_made_of_folders and len(own.inner.folders) == 1 for own in splits):
        within = [own.inner.folders[0] for own in splits]
        if len({own.name.casefold() for own in within}) > 1 or not all(own.is_made_of_folders for own in within):
            break
        splits = [replace(own, inner=inner) for own, inner in zip(splits, within, strict=True)]
    return splits


def settle_eval(splits: Sequence[SplitFolder]) -> list[SplitFolder]:
    """`eval` is the test split, unless there is one beside it."""
    instead = "val" if any(own.split == "test" for own in splits) else "test"
    return [replace(own, split=instead) if own.split == "eval" else own for own in splits]
