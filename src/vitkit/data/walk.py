"""Walk through folders on disk, and decide by its name which file is an image."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from vitkit.data.storage import Stored, below_storage
from vitkit.errors import VitkitError
from vitkit.text.cells import listed, plural

SUFFIXES = frozenset(
    f".{ending}"
    for ending in (
        *("jpg", "jpeg", "jpe", "jfif", "mpo", "png", "webp", "gif"),
        *("bmp", "tif", "tiff", "ppm", "pgm", "heic", "heif", "hif", "avif"),
    )
)
_SYSTEM = frozenset((".ds_store", "thumbs.db", "desktop.ini"))
_LOOKED_AT = 10_000  # files of a hidden folder, for one that is an image


@dataclass
class Overlooked:
    """Files and folders that a search for images passed over.

    Attributes:
        ignored: count of files and folders that are no images of the user's, by reason.
        closed: why each folder could not be looked into; there may be images in it.
        hidden: hidden folders with images in them.
    """

    ignored: Counter[str] = field(default_factory=Counter)
    closed: dict[str, str] = field(default_factory=dict)
    hidden: list[str] = field(default_factory=list)

    def close(self, error: OSError) -> None:
        """Note a folder that could not be read."""
        self.closed[str(error.filename)] = (error.strerror or type(error).__name__).lower()

    def hide(self, folder: str | Path) -> None:
        """Note a folder that is passed over for its name, if images are in it."""
        if Path(folder).name.startswith(".") and str(folder) not in self.hidden and _has_images(folder):
            self.hidden.append(str(folder))

    def lines(self, root: Path | None = None) -> list[str]:
        """Describe what was passed over, one sentence each, with folders relative to `root`."""
        lines = []
        if self.closed:
            named = [f"{_from(root, folder)} ({why})" for folder, why in sorted(self.closed.items())]
            folders = plural(len(named), "folder", "folders")
            lines.append(f"{folders} cannot be read, and what is in there is left out: {listed(named)}")
        if self.hidden:
            folders = plural(len(self.hidden), "hidden folder", "hidden folders")
            names = listed([_from(root, folder) for folder in sorted(self.hidden)])
            lines.append(f"images in {folders} are left out; rename what is meant to be read: {names}")
        return lines


def _from(root: Path | None, folder: str) -> str:
    return folder if root is None else Path(folder).relative_to(root).as_posix()


def is_passed_over(folder: str) -> bool:
    """Return whether a folder is hidden, or is the one that macOS adds to its archives."""
    return folder.startswith(".") or folder == "__MACOSX"


def why_ignored(file: str) -> str | None:
    """Return the reason why a file of this name is not an image; None if it is one."""
    if file.lower() in _SYSTEM or file.startswith("._"):
        return "system file"
    if file.startswith("."):
        return "hidden"
    if os.path.splitext(file)[1].lower() not in SUFFIXES:  # noqa: PTH122  # ten times as fast as a Path's
        return "not an image format"
    return None


def _has_images(folder: str | Path) -> bool:
    return any(why_ignored(file.name) is None for file in islice(walk(Path(folder)), _LOOKED_AT))


def images_below(folder: Path, overlooked: Overlooked) -> list[str]:
    """Find the image files below a folder, relative to it, with `/`; others are noted in `overlooked`."""
    keys = []
    for parent, files in _walk(folder, overlooked):  # names: a Path takes as long as all the rest
        below = os.path.relpath(parent, folder).replace(os.sep, "/")
        before = "" if below == "." else f"{below}/"
        for name in files:
            reason = why_ignored(name)
            if reason is None:
                keys.append(before + name)
            else:
                overlooked.ignored[reason] += 1
    return keys


def walk(folder: Path, overlooked: Overlooked | None = None) -> Iterator[Path]:
    """List every file below a folder, sorted. Links are followed, and no folder is entered twice.

    Hidden folders and __MACOSX are passed over, as are folders that cannot be read; `overlooked` tells of both.
    """
    for parent, files in _walk(folder, overlooked):
        yield from (Path(parent, name) for name in files)


def _walk(folder: Path, overlooked: Overlooked | None) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder that is entered, with the names of its files, sorted."""
    seen: set[str] = set()
    for parent, folders, files in os.walk(
        folder, onerror=None if overlooked is None else overlooked.close, followlinks=True
    ):
        if os.path.realpath(parent) in seen:  # links lead here a second time
            folders.clear()
            continue
        seen.add(os.path.realpath(parent))
        if overlooked is not None:
            passed_over = [name for name in folders if is_passed_over(name)]
            overlooked.ignored.update(f"folder {name}" for name in passed_over)
            for name in passed_over:
                overlooked.hide(Path(parent, name))
        folders[:] = sorted(name for name in folders if not is_passed_over(name))
        yield parent, sorted(files)


def find_images(sources: Iterable[str], overlooked: Overlooked | None = None) -> list[str]:
    """Find the images that files, folders, archives and patterns name, in natural order within a folder.

    Args:
        sources: what the user named.
        overlooked: receives what is passed over.

    Raises:
        VitkitError: there is nothing of that name, or no image in it.
    """
    overlooked = Overlooked() if overlooked is None else overlooked
    return [path for source in sources for path in _find(source, overlooked)]


def _find(source: str, overlooked: Overlooked) -> list[str]:
    if not source:
        raise VitkitError('one of the sources is empty (""): name a file, a folder or a pattern; . is this folder')
    closed = len(overlooked.closed)
    if Path(source).exists() or below_storage(source) is not None:
        paths = _as_named(source, overlooked)
    else:
        _note_closed(source, overlooked)
        matches = glob.glob(source, recursive=True)  # noqa: PTH207  # keeps the path as it was given
        if not matches and len(overlooked.closed) == closed:
            raise VitkitError(f"no such file, folder or pattern: {source}")
        paths = [path for match in matches for path in _as_named(match, overlooked)]
    if not paths:
        unread = list(overlooked.closed.items())[closed:]
        because = f": {unread[0][0]} cannot be read ({unread[0][1]})" if unread else ""
        raise VitkitError(f"no images in {source}{because}")
    return sorted(paths, key=natural)


def _below(source: str, stored: Stored) -> list[str]:
    """Return the images of a storage or of a folder in it; if `source` names one image, return only that."""
    keys = stored.storage.keys()
    if stored.key in keys:
        return [source]
    above = f"{stored.key}/" if stored.key else ""
    images = [key for key in keys if key.startswith(above) and _is_image(key.removeprefix(above))]
    if not images and above and not any(key.startswith(above) for key in keys):
        raise VitkitError(f"no such file or folder in {stored.storage.name}: {stored.key}")
    return [f"{source.rstrip('/')}/{key.removeprefix(above)}" for key in images]


def _is_image(key: str) -> bool:
    *folders, name = key.split("/")
    return why_ignored(name) is None and not any(map(is_passed_over, folders))


def _note_closed(pattern: str, overlooked: Overlooked) -> None:
    """Note unreadable folders that a pattern leads into, which `glob` passes over silently."""
    parts = re.split(r"[/\\]" if os.sep == "\\" else "/", pattern)
    for i in range(1, len(parts)):
        if glob.has_magic(parts[i]):
            for folder in glob.glob("/".join([*parts[:i], ""]), recursive=True):  # noqa: PTH207
                try:
                    os.scandir(folder).close()
                except OSError as error:
                    overlooked.close(error)


def _as_named(source: str, overlooked: Overlooked) -> list[str]:
    """Return the images of a folder, an archive or a folder in one; a file is itself."""
    if not Path(source).is_dir():
        stored = below_storage(source)
        return [source] if stored is None else _below(source, stored)
    files = images_below(Path(source), overlooked)
    return [os.path.join(source, *file.split("/")) for file in files]  # noqa: PTH118  # as it was given


def natural(text: str) -> list[tuple[int, str]]:
    """Return a sort key that puts img2 before img10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", text)]
