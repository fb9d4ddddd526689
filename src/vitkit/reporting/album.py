"""Photographs under what a classifier says of them: a PNG each, in a folder that mirrors theirs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from vitkit.data.decode import UnreadableImageError, decode
from vitkit.inference.prediction_files import Row
from vitkit.reporting.plots import classified, save_figure
from vitkit.system.files import fitting

LONG_SIDE = 1024  # pixels of a photograph in the album, at most


class Album:
    """A folder of pictures, one for each readable image.

    Args:
        folder: made when the first picture is drawn.
        sources: the folders that were asked about. Pictures lie as the images do below them; of several, as below
            the folder that all are in, so that equal names do not meet.
        paths: the images.
    """

    def __init__(self, folder: Path, sources: Iterable[str], paths: Iterable[str]) -> None:
        self._folder = folder
        roots = {os.path.abspath(source) for source in sources}  # noqa: PTH100  # links are not to be followed
        self._root = os.path.commonpath(roots | {os.path.dirname(os.path.abspath(path)) for path in paths})  # noqa: PTH100, PTH120

    def place(self, path: str) -> Path:
        """Where the picture of an image is."""
        own = Path(os.path.relpath(path, self._root))
        return self._folder / own.with_name(fitting(own.name, ".png"))

    def add(self, row: Row) -> None:
        """Draw an image with its row.

        Raises:
            OSError: the picture cannot be written; it is named.
        """
        if row.name is None or row.confidence is None:
            return
        try:
            photograph = decode(row.path, LONG_SIDE)
        except UnreadableImageError:  # it went after it was classified: the row stands
            return
        photograph.thumbnail((LONG_SIDE, LONG_SIDE))
        target = self.place(row.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        figure = classified(photograph, row.name or "none", row.confidence, is_rejected=row.is_rejected)
        try:
            save_figure(figure, target)
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), str(target)) from error
        figure.clear()  # it refers to itself: its pixels would stay until Python collects garbage

    def complete(self, rows: Iterable[Row]) -> None:
        """Draw those that have no picture yet."""
        for row in rows:
            if not self.place(row.path).exists():
                self.add(row)
