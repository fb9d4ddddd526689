"""Find images and open them: files in a folder, or entries of a storage that returns bytes by key.

All code that reads pictures takes a `Place`: the path of a file, or an image in a storage. A path can also continue
inside an archive: `flowers.zip/daisy/1.jpg` names an image in the archive `flowers.zip`. In the same way, a path or a
URL can continue inside a folder of shards. Such names are used on the command line and in files of predictions.

`walk` and `find_images` search folders on disk, and recognise image files by their names.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

from vitkit.data.file_names import is_passed_over, why_ignored
from vitkit.errors import VitkitError
from vitkit.text.cells import listed, plural


class UnreadableImageError(VitkitError):
    """A file contains no readable picture. The message is the reason, without the file's name."""


class Storage(Protocol):
    """A collection of images that are read by key.

    Threads and forked processes may share a storage, so it must not hold an open file.
    """

    @property
    def name(self) -> str:
        """Return the name of the storage for messages; `name/key` is the name of an image."""
        ...

    def keys(self) -> Collection[str]:
        """Return the key of every file, with `/` between folders."""
        ...

    def open(self, key: str) -> BinaryIO:
        """Open an image and return its bytes as a seekable stream.

        Raises:
            FileNotFoundError: there is no such key.
            OSError: the image cannot be read.
            UnreadableImageError: the storage refuses to read the image; the message is the reason.
        """
        ...

    def stamp(self, key: str) -> bytes | None:
        """Return bytes that change whenever the image changes; None if changes cannot be detected."""
        ...


@runtime_checkable
class Checkable(Protocol):
    """A storage of several files, any of which may be missing."""

    def check_files(self) -> None:
        """Raise VitkitError if a file of the storage is missing, or not complete."""
        ...


@dataclass(frozen=True)
class Stored:
    """An image in a storage; its name is one such as `flowers.zip/daisy/1.jpg`. `/` appends to the key."""

    storage: Storage
    key: str

    @property
    def name(self) -> str:
        return f"{self.storage.name}/{self.key}" if self.key else self.storage.name

    def __str__(self) -> str:
        return self.name

    def __truediv__(self, key: str) -> Stored:
        return Stored(self.storage, f"{self.key}/{key}" if self.key else key)


Place = Path | Stored
Opener = Callable[[Path], Storage]
STORAGES: dict[str, Opener] = {}  # by the suffix of their files; `data.sources` registers them
# How a folder or an address of a kind of storage is recognised, and opened. `data.sources` registers them, too.
FOLDER_STORAGES: list[tuple[Callable[[Path], bool], Opener]] = []


def storage_at(path: Path) -> Storage | None:
    """Open a file, folder or address as a storage of images; return None if no kind of storage accepts it.

    Raises:
        VitkitError: a server does not answer.
    """
    opener = STORAGES.get(path.suffix.lower())
    if opener is not None and os.path.isfile(path):  # noqa: PTH113  # see `image_exists`
        return opener(path)
    for is_of_kind, open_folder in FOLDER_STORAGES:
        if is_of_kind(path):
            return open_folder(path)
    return None


def open_place(place: str | Place) -> BinaryIO:
    """Open an image and return its bytes as a stream.

    Raises:
        UnreadableImageError: the file is a pipe or a device, which might never end; or the storage refuses to read the
            image.
        OSError: there is no such image, or it cannot be read.
    """
    stored = stored_at(place)
    return stored.storage.open(stored.key) if stored is not None else Path(str(place)).open("rb")


def read_place(place: str | Place) -> bytes:
    """Return all bytes of an image. Raises the errors of `open_place`."""
    with open_place(place) as opened:
        return opened.read()


def stored_at(place: str | Place) -> Stored | None:
    """Return the image in a storage that `place` denotes; None if it is a regular file or a folder.

    Raises the errors of `open_place`.
    """
    if isinstance(place, Stored):
        return place
    try:
        mode = os.stat(place).st_mode  # noqa: PTH116  # half the time of a Path's own
    except (NotADirectoryError, FileNotFoundError):  # perhaps a path that continues inside an archive
        if (stored := below_storage(place)) is None or not stored.key:
            raise
        return stored
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UnreadableImageError("data.file-not-regular", "not a regular file")
    return None


def below_storage(path: str | Path) -> Stored | None:
    """Split a path into a storage and a key in it; return None if no beginning of the path is a storage."""
    parts = Path(path).parts
    for count in range(len(parts), 0, -1):
        start = Path(*parts[:count])
        if (storage := storage_at(start)) is not None:
            return Stored(storage, "/".join(parts[count:]))
        if os.path.exists(start):  # noqa: PTH110  # a Path takes three times as long
            return None
    return None


def image_exists(place: Place) -> bool:
    """Return whether an image exists, as a file or in a storage. (A `Path` raises an error for names too long.)"""
    if isinstance(place, Stored):
        return place.key in place.storage.keys()  # noqa: SIM118  # a storage is not a mapping
    if os.path.isfile(place):  # noqa: PTH113  # a Path takes three times as long
        return True
    if os.path.exists(place):  # noqa: PTH110  # a folder, or no regular file
        return False
    stored = below_storage(place)
    return stored is not None and image_exists(stored)


def version_of(place: Place) -> str:
    """Return a text that changes whenever an image changes; empty if changes cannot be detected."""
    if isinstance(place, Stored):
        stamp = place.storage.stamp(place.key)
        return "" if stamp is None else hashlib.sha256(stamp).hexdigest()
    try:
        status = os.stat(place)  # noqa: PTH116
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"


# --- Images in folders ----------------------------------------------------------------------------------------

_MAX_CHECKED = 10_000  # files of a hidden folder that are checked


@dataclass
class SearchLog:
    """What a search for images left out, and which links it follows."""

    ignored: Counter[str] = field(default_factory=Counter)  # the number of ignored files by reason
    unreadable: dict[str, str] = field(default_factory=dict)  # folders that could not be read, with the reasons
    hidden: set[str] = field(default_factory=set)  # folders with images that are ignored by name (`is_passed_over`)
    links: set[str] = field(default_factory=set)  # links that were not followed, because they lead out of `top`
    top: Path | None = None  # the folder that links may not leave; None for the folder that is searched
    follow_links: bool = False  # whether to follow links that lead out of `top`

    def lines(self, root: Path | None = None) -> list[str]:
        """Return up to three lines: about unreadable folders, hidden ones, and links. Paths are relative to `root`."""

        def relative(path: str) -> str:
            return path if root is None else Path(path).relative_to(root).as_posix()

        lines = []
        if self.unreadable:
            names = [f"{relative(folder)} ({reason})" for folder, reason in sorted(self.unreadable.items())]
            folders = plural(len(names), "folder", "folders")
            lines.append(f"{folders} cannot be read, and their content is left out: {listed(names)}")
        if self.hidden:
            folders = plural(len(self.hidden), "hidden or system folder", "hidden or system folders")
            names = [relative(folder) for folder in sorted(self.hidden)]
            lines.append(f"images in {folders} are left out; rename the folders to include them: {listed(names)}")
        if self.links:
            links = plural(len(self.links), "link out of the folder is", "links out of the folder are")
            names = [relative(link) for link in sorted(self.links)]
            flag = "--follow-links of train, doctor, eval and shard takes them"
            lines.append(f"{links} left out ({flag}): {listed(names)}")
        return lines


def _lies_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def images_below(folder: Path, overlooked: SearchLog) -> list[str]:
    """List the image files below a folder by their relative paths; record other files and ignored folders."""
    keys = []
    for parent, files in _walk(folder, overlooked):  # strings, because `Path` would double the time
        relative = os.path.relpath(parent, folder).replace(os.sep, "/")
        prefix = "" if relative == "." else f"{relative}/"
        for name in files:
            reason = why_ignored(name)
            if reason is None:
                keys.append(prefix + name)
            else:
                overlooked.ignored[reason] += 1
    return keys


def entries_in(folder: Path) -> list[tuple[str, bool]]:
    """List the entries of a folder as pairs of a name and whether it is a file."""
    return [(child.name, child.is_file()) for child in folder.iterdir()]


def scan_folder(folder: str, overlooked: SearchLog, top: str) -> tuple[list[str], list[str], list[str]]:
    """Return the sorted names of the folders to enter, the files, and the folders that are ignored by name."""
    folders, files, ignored = list[str](), list[str](), list[str]()
    try:
        with os.scandir(folder) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
    except OSError as error:
        overlooked.unreadable[str(error.filename)] = (error.strerror or type(error).__name__).lower()
        entries = []
    for entry in entries:
        is_folder = False
        with suppress(OSError):  # a link that leads to itself
            is_folder = entry.is_dir()
        if is_folder and is_passed_over(entry.name):
            ignored.append(entry.name)
            if entry.path not in overlooked.hidden:
                some = islice(walk(Path(entry.path)), _MAX_CHECKED)
                if any(why_ignored(file.name) is None for file in some):
                    overlooked.hidden.add(entry.path)
            continue
        if entry.is_symlink():
            target = os.path.realpath(entry.path)
            # A link to a folder above `top` is never followed, because the search might not end.
            is_followed_out = overlooked.follow_links and not _lies_in(top, target)
            if not _lies_in(target, top) and not is_followed_out:
                overlooked.links.add(entry.path)
                continue
        (folders if is_folder else files).append(entry.name)
    return folders, files, ignored


def walk(folder: Path, overlooked: SearchLog | None = None) -> Iterator[Path]:
    """Yield every file below a folder, sorted. No folder is entered twice, even if links lead to it.

    Folders that are ignored by name, links out of the folder, and unreadable folders are recorded in `overlooked`.
    """
    for parent, files in _walk(folder, overlooked or SearchLog()):
        yield from (Path(parent, name) for name in files)


def _walk(folder: Path, overlooked: SearchLog) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder at and below `folder`, with the names of its files."""
    visited: set[str] = set()
    top = os.path.realpath(overlooked.top or folder)
    waiting = [str(folder)]
    while waiting:
        parent = waiting.pop()
        if (real := os.path.realpath(parent)) in visited:  # reached a second time through a link
            continue
        visited.add(real)
        folders, files, ignored = scan_folder(parent, overlooked, top)
        overlooked.ignored.update(f"folder {name}" for name in ignored)
        yield parent, files
        waiting += [os.path.join(parent, name) for name in reversed(folders)]  # noqa: PTH118  # faster than a Path


def find_images(sources: Iterable[str], overlooked: SearchLog | None = None) -> list[str]:
    """Find the images in files, folders, archives and glob patterns.

    The images of each source are sorted in natural order.

    Args:
        sources: the paths and glob patterns that the user typed.
        overlooked: records the ignored files and folders; None to discard them.

    Raises:
        VitkitError: a source does not exist, or contains no image.
    """
    overlooked, found = overlooked or SearchLog(), list[str]()
    for source in sources:
        if not source:
            raise VitkitError(
                "data.source-empty",
                'one of the sources is empty (""): pass a file, a folder ("." is the current one) or a pattern',
            )
        unreadable_before = len(overlooked.unreadable)
        if Path(source).exists() or below_storage(source) is not None:
            paths = _images_of(source, overlooked)
        else:
            matches = glob.glob(source, recursive=True)  # noqa: PTH207  # keeps the path as the user typed it
            if not matches:
                raise VitkitError("data.source-missing", f"no such file, folder or pattern: {source}")
            paths = [path for match in matches for path in _images_of(match, overlooked)]
        if not paths:
            because = ""
            unreadable = list(overlooked.unreadable.items())[unreadable_before:]
            if unreadable:
                folder, reason = unreadable[0]
                because = f": {folder} cannot be read ({reason})"
            raise VitkitError("data.images-missing", f"no images in {source}{because}")
        found += sorted(paths, key=natural_key)
    return found


def _images_of(source: str, overlooked: SearchLog) -> list[str]:
    """Return the images in a folder or storage, or in a folder of a storage; or only `source`, if it is a file."""
    stored = below_storage(source)
    if stored is None:
        if not Path(source).is_dir():
            return [source]
        files = images_below(Path(source), overlooked)
        return [os.path.join(source, *file.split("/")) for file in files]  # noqa: PTH118  # keeps the path as typed
    keys = stored.storage.keys()
    if stored.key in keys:
        return [source]
    if isinstance(stored.storage, Checkable):
        stored.storage.check_files()
    prefix = f"{stored.key}/" if stored.key else ""
    if prefix and not any(key.startswith(prefix) for key in keys):
        raise VitkitError("data.source-missing", f"no such file or folder in {stored.storage.name}: {stored.key}")
    images = []
    for key in keys:
        if not key.startswith(prefix):
            continue
        *folders, name = key.removeprefix(prefix).split("/")
        if why_ignored(name) is not None:
            continue
        path = source.rstrip("/")
        for folder in folders:
            path = f"{path}/{folder}"
            if is_passed_over(folder):
                overlooked.hidden.add(path)
                break
        else:
            images.append(f"{path}/{name}")
    return images


def natural_key(text: str) -> list[tuple[int, str]]:
    """Return a sort key for natural order, in which img2 comes before img10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", text)]
