"""Where images come from: a folder of class folders, a folder already split, or a named data set.

All become an `ImageTable`: path, label and, where given, split of each image. Class order is Python's `sorted()`
of the folder names, as torchvision's `ImageFolder` has it.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from vitkit.data import named
from vitkit.errors import VitkitError

SUFFIXES = frozenset(
    f".{ending}"
    for ending in (
        *("jpg", "jpeg", "jpe", "jfif", "mpo", "png", "webp", "gif"),
        *("bmp", "tif", "tiff", "ppm", "pgm", "heic", "heif", "avif"),
    )
)
SPLIT_FOLDERS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


@dataclass(frozen=True)
class ImageTable:
    """A labelled set of images.

    Attributes:
        name: what the user called it.
        root: the folder that `paths` are relative to.
        classes: names; a label is an index into them.
        paths, labels, splits: one entry an image; a split is train, val, test, or None where it is still to be made.
        ignored: count of files passed over, by reason.
    """

    name: str
    root: Path
    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: tuple[int, ...]
    splits: tuple[str | None, ...]
    ignored: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)

    def file(self, index: int) -> Path:
        """The path to open."""
        return self.root / self.paths[index]

    def counts(self) -> dict[str, int]:
        """Images per class."""
        count = Counter(self.labels)
        return {name: count[label] for label, name in enumerate(self.classes)}

    def take(self, indices: list[int]) -> ImageTable:
        """The rows at these indices, in their order; the classes stay."""
        return replace(
            self,
            paths=tuple(self.paths[i] for i in indices),
            labels=tuple(self.labels[i] for i in indices),
            splits=tuple(self.splits[i] for i in indices),
        )

    def compact(self) -> ImageTable:
        """The same rows, without the classes that no row has."""
        present = sorted(set(self.labels))
        new = {label: i for i, label in enumerate(present)}
        return replace(
            self,
            classes=tuple(self.classes[label] for label in present),
            labels=tuple(new[label] for label in self.labels),
        )

    def of_split(self, split: str) -> ImageTable:
        """The rows of one split."""
        return self.take([i for i, own in enumerate(self.splits) if own == split])


def read_source(data: str | Path) -> ImageTable:
    """Find the images of a folder (`class/image`, or `train/class/image` beside `val` and `test`) or a named set.

    Raises:
        VitkitError: there is no such folder or name, or nothing in it to learn from.
    """
    root = Path(data)
    if not root.exists() and str(data) in named.DATASETS:
        root = named.materialise(str(data))
    if not root.exists():
        known = ", ".join(sorted(named.DATASETS))
        raise VitkitError(f"no such folder: {data} (and no data set of that name; known: {known})")
    if not root.is_dir():
        raise VitkitError(f"{data} is a file; expected a folder with one sub-folder of images per class")
    table = _read_folder(str(data), root)
    if len(table.classes) == 1:
        raise VitkitError(f"{data} has a single class, {table.classes[0]!r}; a classifier needs at least two")
    return table


def locate(table: ImageTable) -> ImageTable:
    """The table of an earlier run, with its files where they are now; a named data set is made again if need be.

    Raises:
        VitkitError: the folder is gone.
    """
    if table.root.is_dir():
        return table
    if table.name in named.DATASETS:
        return replace(table, root=named.materialise(table.name))
    raise VitkitError(f"the images of {table.name} are no longer in {table.root}: put them back, or name their folder")


def _read_folder(name: str, root: Path) -> ImageTable:
    ignored: Counter[str] = Counter()
    parents: dict[Path, str | None] = {
        child: SPLIT_FOLDERS[child.name.lower()] for child in _folders(root) if _is_split(child)
    }
    if "train" not in parents.values():
        parents = {root: None}
    rows: list[tuple[str, str, str | None]] = []  # path, class, split
    for parent, split in parents.items():
        for folder in _folders(parent):
            files = _images(folder, ignored)
            rows += [(file.relative_to(root).as_posix(), folder.name, split) for file in files]
    for parent in {root, *parents}:
        ignored["outside the class folders"] += sum(child.is_file() for child in parent.iterdir())
    if not rows:
        raise VitkitError(f"{name} has no images: expected one sub-folder per class with images in it{_hint(root)}")
    classes = tuple(sorted({row[1] for row in rows}))
    index = {label: i for i, label in enumerate(classes)}
    return ImageTable(
        name=name,
        root=root.resolve(),
        classes=classes,
        paths=tuple(row[0] for row in rows),
        labels=tuple(index[row[1]] for row in rows),
        splits=tuple(row[2] for row in rows),
        ignored={reason: count for reason, count in ignored.items() if count},
    )


def _folders(root: Path) -> list[Path]:
    return sorted(child for child in root.iterdir() if child.is_dir() and not child.name.startswith("."))


def _is_split(folder: Path) -> bool:
    return folder.name.lower() in SPLIT_FOLDERS and bool(_folders(folder))


def _images(folder: Path, ignored: Counter[str]) -> list[Path]:
    found = []
    for file in walk(folder):
        if file.name.startswith("."):
            ignored["hidden"] += 1
        elif file.suffix.lower() not in SUFFIXES:
            ignored["not an image format"] += 1
        else:
            found.append(file)
    return found


def walk(folder: Path) -> Iterator[Path]:
    """Every file below a folder, sorted, links followed. Hidden folders are passed over; none is entered twice."""
    seen: set[str] = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        if os.path.realpath(parent) in seen:  # links lead here a second time
            folders.clear()
            continue
        seen.add(os.path.realpath(parent))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(files))


def _hint(root: Path) -> str:
    loose = sum(child.suffix.lower() in SUFFIXES for child in root.iterdir())
    return f" ({loose} images lie in the folder itself)" if loose else ""


def find_images(sources: Iterable[str]) -> list[str]:
    """The image files that files, folders (walked, in natural order) and patterns name, as they were named.

    Raises:
        VitkitError: there is nothing of that name, or no image in it.
    """
    return [path for source in sources for path in _find(source)]


def _find(source: str) -> list[str]:
    if Path(source).is_dir():
        found = _images_below(source)
    elif Path(source).exists():
        found = [source]
    else:
        matches = glob.glob(source, recursive=True)  # noqa: PTH207  # keeps the path as it was given
        if not matches:
            raise VitkitError(f"no such file, folder or pattern: {source}")
        found = [path for match in matches for path in (_images_below(match) if Path(match).is_dir() else [match])]
    if not found:
        raise VitkitError(f"no images in {source}")
    return sorted(found, key=_natural)


def _images_below(folder: str) -> list[str]:
    files = (file for file in walk(Path(folder)) if file.suffix.lower() in SUFFIXES and not file.name.startswith("."))
    return [os.path.join(folder, file.relative_to(folder)) for file in files]  # noqa: PTH118  # as it was given


def _natural(text: str) -> list[tuple[int, str]]:
    """Sorts img2 before img10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", text)]
