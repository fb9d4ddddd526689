"""A table of labelled images: the key, the class or classes, and the split of each image.

Building a table opens no image.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from vitkit.data.labels import Proposal
from vitkit.data.storage import Place, Storage, Stored, open_place
from vitkit.data.task import MULTI_LABEL, SINGLE_LABEL, Task
from vitkit.errors import VitkitError
from vitkit.text.cells import JOINT, alike

Row = tuple[str, str, str | None]  # key, class, split

UNLABELLED = "unlabelled"  # the label of a picture whose class is unknown


@dataclass(frozen=True)
class ImageTable:
    """A table of labelled images.

    Attributes:
        name: the path or name of the data, as the user passed it.
        root: the folder that contains the images, or the path of the storage.
        classes: the class names. A label is an index into them, or in a multi-label table an index into `sets`.
        paths: the key of each image, which is also its name in messages. The key of a file is its path relative to
            `root`.
        labels: the label of each image.
        splits: the split of each image: train, val, test, or None if it is not yet assigned.
        ignored: the number of ignored files and folders, by reason.
        empty: the names of class folders without images. They do not become classes.
        folders: the folders that contain the photographs; nothing may be written below them.
        sets: the sets of classes in a multi-label table, as sorted tuples of class numbers; empty in a single-label
            table.
        layout: one line about the folders that were read as classes and splits; empty if there are no folders.
        overlooked: sentences about files and folders that were left out but may contain images.
        corrections: sentences about the changes that a label file made.
        unmatched: sentences about rows of a label file that had no effect.
        left_out: the images that a label file leaves out, with their previous labels.
        proposals: for each image that was relabelled or left out on a model's proposal, this proposal.
        storage: the storage that returns the bytes of an image by key; None if the images are files below `root`.
    """

    name: str
    root: Path
    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: tuple[int, ...]
    splits: tuple[str | None, ...]
    ignored: dict[str, int] = field(default_factory=dict)
    empty: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    sets: tuple[tuple[int, ...], ...] = ()
    layout: str = ""
    overlooked: tuple[str, ...] = ()
    corrections: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    left_out: tuple[Row, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    storage: Storage | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def file(self, index: int) -> Place:
        """Return the `Place` of an image: the path of its file, or its key in the storage."""
        return self.at(self.paths[index])

    def files(self) -> list[Place]:
        """Return the `Place` of every image, in the order of the rows."""
        place = self.place
        return [place / path for path in self.paths]

    def at(self, key: str) -> Place:
        """Return the `Place` of an image with this key. The image need not exist."""
        return self.place / key

    @property
    def place(self) -> Place:
        """Return the folder or storage that contains the images. `place / key` is the `Place` of an image."""
        return self.root if self.storage is None else Stored(self.storage, "")

    def open(self, index: int) -> BinaryIO:
        """Open an image and return its bytes as a stream.

        Raises:
            OSError: the image cannot be read.
        """
        return open_place(self.file(index))

    def lies_among(self, path: Path) -> bool:
        """Return whether a path is below one of the folders that contain the photographs (`folders`)."""
        return any(path.resolve().is_relative_to(folder) for folder in self.folders)

    @property
    def task(self) -> Task:
        """Return the classification task: one class per image, or several."""
        return MULTI_LABEL if self.sets else SINGLE_LABEL

    def classes_of(self, index: int) -> tuple[int, ...]:
        """Return the class numbers of an image. In a single-label table there is exactly one."""
        return self.sets[self.labels[index]] if self.sets else (self.labels[index],)

    def name_of(self, index: int) -> str:
        """Return the class names of an image, joined by `;`."""
        if not self.sets:
            return self.classes[self.labels[index]]
        return JOINT.join(self.classes[label] for label in self.classes_of(index))

    def cell_of(self, index: int) -> str:
        """Return the label of an image as it is written in label files. The label `;` means that it has no class."""
        return self.name_of(index) or self.task.no_class

    def target(self, index: int) -> list[float]:
        """Return the target (K,) of an image: 1 for each of its classes, 0 for the others."""
        return _indicator(self.classes_of(index), len(self.classes))

    def set_targets(self) -> list[list[float]]:
        """Return the targets of all `sets`, (S, K). Row s is the target of every image with label s."""
        return [_indicator(labels, len(self.classes)) for labels in self.sets]

    def counts(self) -> dict[str, int]:
        """Count the images of each class. An image with several classes counts in each."""
        count = Counter[int]()
        for label, images in Counter(self.labels).items():
            for class_number in self.sets[label] if self.sets else (label,):
                count[class_number] += images
        return {name: count[label] for label, name in enumerate(self.classes)}

    def take(self, indices: list[int]) -> ImageTable:
        """Return a table of the rows at these indices, in this order, with the same classes."""
        return replace(
            self,
            paths=tuple(self.paths[i] for i in indices),
            labels=tuple(self.labels[i] for i in indices),
            splits=tuple(self.splits[i] for i in indices),
        )

    def compact(self) -> ImageTable:
        """Return a table of the same rows, in which `classes` and `sets` contain only entries that are used."""
        present = [label for label, images in enumerate(self.counts().values()) if images]
        new = {label: i for i, label in enumerate(present)}
        label_sets = [tuple(new[label] for label in self.classes_of(i)) for i in range(len(self))]
        sets, labels = self.task.encode(label_sets)
        return replace(self, classes=tuple(self.classes[label] for label in present), labels=labels, sets=sets)

    def of_split(self, split: str) -> ImageTable:
        """Return the rows of one split."""
        return self.take([i for i, split_name in enumerate(self.splits) if split_name == split])


def table_of(name: str, root: Path, rows: Sequence[Row], storage: Storage | None = None) -> ImageTable:
    """Build a single-label table from rows; the classes are the sorted labels."""
    classes = tuple(sorted({row[1] for row in rows}))
    refuse_twins(name, classes, rows)
    index = {label: i for i, label in enumerate(classes)}
    return ImageTable(
        name=name,
        root=root.resolve(),
        classes=classes,
        paths=tuple(row[0] for row in rows),
        labels=tuple(index[row[1]] for row in rows),
        splits=tuple(row[2] for row in rows),
        storage=storage,
    )


def refuse_twins(name: str, classes: Sequence[str], rows: Iterable[Row]) -> None:
    """Refuse two class names that differ but look the same, because people could not distinguish the classes.

    Args:
        name: the name of the data, for messages.
        classes: the class names.
        rows: the rows of the table. The message names the first row with the second of the two names.

    Raises:
        VitkitError: two names look the same; the message shows a character in which they differ.
    """
    if (twins := alike(classes)) is not None:
        one, other, apart = twins
        example = next((f" (the latter in {path})" for path, label, _ in rows if other in label), "")
        raise VitkitError(
            f"{name}: the classes {one!r} and {other!r}{example} look the same, and differ in {apart}: rename one"
        )


def _indicator(labels: tuple[int, ...], classes: int) -> list[float]:
    target = [0.0] * classes
    for label in labels:
        target[label] = 1.0
    return target
