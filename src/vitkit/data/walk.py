"""Files and folders on disk: which are looked into, and which of the files are images by their names."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from vitkit.errors import VitkitError

SUFFIXES = frozenset(
    f".{ending}"
    for ending in (
        *("jpg", "jpeg", "jpe", "jfif", "mpo", "png", "webp", "gif"),
        *("bmp", "tif", "tiff", "ppm", "pgm", "heic", "heif", "avif"),
    )
)
_SYSTEM = frozenset((".ds_store", "thumbs.db", "desktop.ini"))


def is_passed_over(folder: str) -> bool:
    """Hidden folders, and the one that macOS adds to its archives."""
    return folder.startswith(".") or folder == "__MACOSX"


def why_ignored(file: str) -> str | None:
    """Why a file of this name is no image of the user's; None where it is one."""
    if file.lower() in _SYSTEM or file.startswith("._"):
        return "system file"
    if file.startswith("."):
        return "hidden"
    if os.path.splitext(file)[1].lower() not in SUFFIXES:  # noqa: PTH122  # ten times as fast as a Path's
        return "not an image format"
    return None


def images_below(folder: Path, ignored: Counter[str]) -> list[Path]:
    """The image files below a folder, in the order of `walk`; the others are counted in `ignored`, by reason."""
    found = []
    for file in walk(folder, ignored):
        reason = why_ignored(file.name)
        if reason is None:
            found.append(file)
        else:
            ignored[reason] += 1
    return found


def walk(folder: Path, ignored: Counter[str] | None = None) -> Iterator[Path]:
    """Every file below a folder, sorted, links followed; none is entered twice.

    Hidden folders and __MACOSX are passed over, and counted in `ignored`.
    """
    seen: set[str] = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        if os.path.realpath(parent) in seen:  # links lead here a second time
            folders.clear()
            continue
        seen.add(os.path.realpath(parent))
        if ignored is not None:
            ignored.update(f"folder {name}" for name in folders if is_passed_over(name))
        folders[:] = sorted(name for name in folders if not is_passed_over(name))
        yield from (Path(parent, name) for name in sorted(files))


def find_images(sources: Iterable[str]) -> list[str]:
    """The image files that files, folders (walked, in natural order) and patterns name, as they were named.

    Raises:
        VitkitError: there is nothing of that name, or no image in it.
    """
    return [path for source in sources for path in _find(source)]


def _find(source: str) -> list[str]:
    if Path(source).is_dir():
        found = _as_given(source)
    elif Path(source).exists():
        found = [source]
    else:
        matches = glob.glob(source, recursive=True)  # noqa: PTH207  # keeps the path as it was given
        if not matches:
            raise VitkitError(f"no such file, folder or pattern: {source}")
        found = [path for match in matches for path in (_as_given(match) if Path(match).is_dir() else [match])]
    if not found:
        raise VitkitError(f"no images in {source}")
    return sorted(found, key=natural)


def _as_given(folder: str) -> list[str]:
    files = images_below(Path(folder), Counter())
    return [os.path.join(folder, file.relative_to(folder)) for file in files]  # noqa: PTH118  # as it was given


def natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts img2 before img10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", text)]
