"""Embed photographs in a page as thumbnails with captions, and write pictures of predictions into a folder.

`thumbnails` and `gallery` make the HTML. `Album` writes PNG files into a folder that mirrors the folders of the images.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from pathlib import Path

from vitkit.data.decode import UnreadableImageError, decode
from vitkit.data.storage import Place
from vitkit.inference.pipeline import cores
from vitkit.inference.prediction import Row
from vitkit.reporting.plots import classified, save_figure
from vitkit.system.files import common_folder, fitting, path_below
from vitkit.text.pages import address, image

SIDE = 224  # pixels of a thumbnail, at most

LONG_SIDE = 1024  # pixels of a photograph in the album, at most
_TINY = 100  # pixels; smaller photographs are enlarged, and stored without loss


@dataclass(frozen=True)
class Thumbnail:
    """A photograph embedded in a page.

    Attributes:
        data: the content of an image file; empty if the photograph cannot be read.
        kind: the format of the file, png or jpeg.
        is_tiny: whether the photograph is so small that it should be enlarged with visible pixels.
        reason: why the photograph cannot be read.
    """

    data: bytes = b""
    kind: str = "jpeg"
    is_tiny: bool = False
    reason: str = ""

    @property
    def address(self) -> str | None:
        """The data URI; None if the photograph cannot be read."""
        return address(self.data, self.kind) if self.data else None


def thumbnail(path: Place, side: int = SIDE) -> Thumbnail:
    """Return a photograph shrunk to at most `side` pixels on its longer side, or the reason why it cannot be read."""
    try:
        picture = decode(path, side)
    except UnreadableImageError as error:  # the file has changed since it was first read
        return Thumbnail(reason=str(error))
    picture.thumbnail((side, side))
    data = io.BytesIO()
    if max(picture.size) < _TINY:
        picture.save(data, "PNG")
        return Thumbnail(data.getvalue(), "png", is_tiny=True)
    picture.save(data, "JPEG", quality=75)
    return Thumbnail(data.getvalue())


def thumbnails(paths: Iterable[Place], side: int = SIDE) -> Iterator[Thumbnail]:
    """Yield the thumbnails of many photographs in order, computing a few at a time."""
    with ThreadPoolExecutor(cores()) as pool:
        yield from pool.map(lambda path: thumbnail(path, side), paths)


def gallery(photographs: Sequence[tuple[Thumbnail, str, Sequence[str]]]) -> str:
    """Return the HTML of photographs with captions. If a photograph cannot be read, the reason is shown instead.

    Args:
        photographs: for each photograph, its thumbnail, attributes for its `img` element, and the lines of its caption.
    """
    return f'<div class="row">{"".join(_cell(*photograph) for photograph in photographs)}</div>'


def _cell(shown: Thumbnail, attributes: str, lines: Sequence[str]) -> str:
    caption = "<br>".join(escape(line) for line in lines)
    if not shown.data:
        return f"<figure><p>{escape(shown.reason)}</p><figcaption>{caption}</figcaption></figure>"
    tiny = ' class="tiny"' if shown.is_tiny else ""
    picture = image(lines[-1], shown.data, shown.kind, f"{attributes}{tiny}".strip())
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def size(shown: Thumbnail) -> int:
    """Return the number of characters that a thumbnail takes up in a page."""
    return 4 * -(-len(shown.data) // 3)  # base64


class Album:
    """A folder of pictures, one for each readable image.

    Args:
        folder: the folder, which is created with the first picture.
        sources: the folders that contain the images. A picture in the album has the path of its image relative to the
            common parent of all folders, so that equal names do not collide.
        paths: the images.
    """

    def __init__(self, folder: Path, sources: Iterable[str], paths: Iterable[str]) -> None:
        self._folder = folder
        roots = {os.path.abspath(source) for source in sources}  # noqa: PTH100  # links are not to be followed
        self._root = common_folder(roots | {os.path.dirname(os.path.abspath(path)) for path in paths})  # noqa: PTH100, PTH120

    def place(self, path: str) -> Path:
        """Return the path of the picture for an image."""
        relative = Path(path_below(path, self._root))
        return self._folder / relative.with_name(fitting(relative.name, ".png"))

    def add(self, row: Row) -> None:
        """Draw an image with its prediction, and write the picture. Images that cannot be read are skipped.

        Raises:
            OSError: the picture cannot be written; the message names it.
        """
        if row.name is None or row.confidence is None:
            return
        try:
            photograph = decode(row.path, LONG_SIDE)
        except UnreadableImageError:  # the file was removed after it was classified; its row stays
            return
        photograph.thumbnail((LONG_SIDE, LONG_SIDE))
        target = self.place(row.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        figure = classified(photograph, row.name or "none", row.confidence, is_rejected=row.is_rejected)
        try:
            save_figure(figure, target)
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), str(target)) from error
        figure.clear()  # a figure is a reference cycle: its pixels would stay in memory until garbage collection

    def complete(self, rows: Iterable[Row]) -> None:
        """Draw and write the pictures of those rows for which no picture exists yet."""
        for row in rows:
            if not self.place(row.path).exists():
                self.add(row)
