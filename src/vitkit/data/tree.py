"""The folders below a folder, and where images lie among them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vitkit.data.walk import Overlooked, is_passed_over, why_ignored


@dataclass(frozen=True)
class Folder:
    """A folder, whether images lie in it directly, and the folders in it."""

    path: Path
    has_images: bool
    folders: tuple[Folder, ...]

    @property
    def name(self) -> str:
        """Without what is above it."""
        return self.path.name

    @cached_property
    def holds_images(self) -> bool:
        """Whether there are images at any depth."""
        return self.has_images or any(folder.holds_images for folder in self.folders)

    @cached_property
    def full(self) -> tuple[Folder, ...]:
        """The folders in it that hold images at any depth."""
        return tuple(folder for folder in self.folders if folder.holds_images)

    @property
    def is_made_of_folders(self) -> bool:
        """Whether all its images lie in folders of their own."""
        return not self.has_images and bool(self.full)


def survey(path: Path, overlooked: Overlooked, above: tuple[str, ...] = ()) -> Folder:
    """The folders below, links followed but for those that lead back up; `overlooked` is told of the others."""
    real = os.path.realpath(path)
    has_images, folders = False, []
    if real not in above:
        for entry in _entries(path, overlooked):
            if not _is_folder(entry):
                has_images = has_images or why_ignored(entry.name) is None
            elif is_passed_over(entry.name):
                overlooked.hide(entry.path)
            else:
                folders.append(entry.name)
    return Folder(path, has_images, tuple(survey(path / own, overlooked, (*above, real)) for own in sorted(folders)))


def _entries(path: Path, overlooked: Overlooked) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError as error:
        overlooked.close(error)
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def inside(folder: Folder) -> Iterator[Folder]:
    """The folders in it, at any depth, that hold images."""
    for own in folder.full:
        yield own
        yield from inside(own)


def between(top: Folder, folder: Folder) -> tuple[Path, ...]:
    """The folders from one down to another, both included."""
    steps = folder.path.relative_to(top.path).parts
    return tuple(top.path.joinpath(*steps[:i]) for i in range(len(steps) + 1))


def below(top: Folder, folder: Folder) -> str:
    """How a folder is named as seen from another."""
    return f"{folder.path.relative_to(top.path).as_posix()}/"
