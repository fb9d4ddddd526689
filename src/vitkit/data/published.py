"""How published data sets become class folders: what writes each into an empty folder.

What was photographs stays the files that were published; what was arrays becomes PNG.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Archive:
    """Writes the `class/name.jpg` and the licence that are in the one folder of a published tar file."""

    url: str
    sha256: str

    def __call__(self, raw: Path, folder: Path) -> None:
        from torchvision.datasets.utils import download_url, extract_archive

        download_url(self.url, raw, "archive.tgz")
        with (raw / "archive.tgz").open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.sha256:
            raise RuntimeError(f"the SHA-256 of {self.url} is {found[:16]}…, expected {self.sha256[:16]}…")
        extract_archive(raw / "archive.tgz", raw)
        for image in raw.glob("*/*/*.jpg"):
            _place(image, folder / image.parent.name)
        for licence in raw.glob("*/LICENSE.txt"):  # it names the photographers
            licence.rename(folder / licence.name)


@dataclass(frozen=True)
class Torchvision:
    """Writes what a class of torchvision.datasets downloads.

    Attributes:
        kind: the class's name.
        splits: our name of each split (empty where there is one for all) and what the class is called with for it.
        options: what it is called with besides.
        samples: pairs of an image, or of the path to its file, and a label.
        names: of the classes, in the order of the labels.
    """

    kind: str
    splits: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    samples: Callable[[Any], Iterable[tuple[Any, int]]] = lambda data: (data[i] for i in range(len(data)))
    names: Callable[[Any], Sequence[str]] = attrgetter("classes")

    def __call__(self, raw: Path, folder: Path) -> None:
        from torchvision import datasets

        for split, arguments in self.splits.items():
            data = getattr(datasets, self.kind)(raw, download=True, **arguments, **self.options)
            names = folder_names(self.names(data))
            for position, (image, label) in enumerate(self.samples(data)):
                _place(image, folder / split / names[int(label)], f"{position:05d}.png")


def folder_names(classes: Iterable[str]) -> list[str]:
    """The classes as names that every file system takes and tells apart."""
    names: list[str] = []
    for name in classes:
        safe = re.sub(r'[<>:"/\\|?*\x00-\x1f]+', "-", name).strip(" .-") or "_"
        taken, again = {other.lower() for other in names}, 2
        unique = safe
        while unique.lower() in taken:
            unique, again = f"{safe} ({again})", again + 1
        names.append(unique)
    return names


def _place(image: Path | str | Image.Image, folder: Path, name: str = "") -> None:
    """A published file is moved as it is; what comes as pixels is written as `name`."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(image, (str, Path)):
        Path(image).rename(folder / Path(image).name)
    else:
        image.save(folder / name)


def opened(data: Any) -> Iterator[tuple[str, int]]:
    """The samples of a class that opens every file itself."""
    for image, label in (data[i] for i in range(len(data))):
        image.close()
        yield image.filename, label


def write_digits(_: Path, folder: Path) -> None:
    """scikit-learn's handwritten digits (8x8, 16 greys), which it ships."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for i, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        _place(Image.fromarray(np.round(image * (255 / 16)).astype(np.uint8)), folder / str(label), f"{i:04d}.png")
