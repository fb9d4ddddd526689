"""Which of some images a path in a list means that people have made."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from vitkit.data.walk import SUFFIXES


class PathFinder:
    """Finds images by their paths, as seen from a folder, or absolute.

    Args:
        root: the folder.
        paths: of the images.
    """

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        self._root, self._paths = root, paths
        self._exact: dict[str, list[int]] = {}
        for i, path in enumerate(paths):
            self._exact.setdefault(self._place(path), []).append(i)
        self._real: dict[str, list[int]] | None = None
        self._parents: dict[str, str] = {}

    def find(self, path: str) -> list[int]:
        """The images of this path; else, those of the path without spaces around it, with links in its folders
        followed, or with accents written otherwise, as systems differ in both."""
        for own in dict.fromkeys((path, path.strip())):
            if found := self._exact.get(self._place(own)):
                return found
        if self._real is None:
            self._real = {}
            for i, own in enumerate(self._paths):
                self._real.setdefault(self._followed(self._place(own)), []).append(i)
        return self._real.get(self._followed(self._place(path.strip())), [])

    def beside(self, path: str) -> str | None:
        """The path from the folder of a picture that is in it; None: there is no such file, or it is no picture."""
        for own in dict.fromkeys((path, path.strip())):
            place = Path(self._followed(self._place(own), normal=False))
            if place.suffix.lower() in SUFFIXES and place.is_relative_to(self._root) and place.is_file():
                return place.relative_to(self._root).as_posix()
        return None

    def _place(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._root, path))  # noqa: PTH118  # a Path takes ten times as long

    def _followed(self, place: str, *, normal: bool = True) -> str:
        folder, name = os.path.split(place)
        if folder not in self._parents:
            self._parents[folder] = os.path.realpath(folder)
        followed = os.path.join(self._parents[folder], name)  # noqa: PTH118
        return unicodedata.normalize("NFC", followed) if normal else followed
