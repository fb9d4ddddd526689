"""A table of labelled images, and the classification task that its labels pose.

An `ImageTable` holds the key, the class or classes, and the split of each image; building it opens no image.

There are two tasks, `SINGLE_LABEL` (each image has one class) and `MULTI_LABEL` (any number of classes), and each
table has one of them (`ImageTable.task`). Code that works with labels calls the methods of the task instead of
distinguishing the two cases. The loss functions are in `training.losses`, and the metrics in `evaluation.metrics`.
Class names that look the same count as equal (`normal_form`). This module imports neither numpy nor torch.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

from vitkit.data.storage import Place, Storage, Stored, open_place
from vitkit.errors import VitkitError
from vitkit.text.cells import JOINT

if TYPE_CHECKING:
    from torch import Tensor

Row = tuple[str, str, str | None]  # key, class, split
Sets = tuple[tuple[int, ...], ...]

UNLABELLED = "unlabelled"  # the label of a picture whose class is unknown


@dataclass(frozen=True)
class ImageTable:
    """A table of labelled images."""

    name: str  # the path or name of the data, as the user passed it
    root: Path  # the folder that contains the images, or the path of the storage
    classes: tuple[str, ...]
    paths: tuple[str, ...]  # the key of each image, also its name in messages; for files, the path relative to `root`
    labels: tuple[int, ...]  # indices into `classes`, or in a multi-label table into `sets`
    splits: tuple[str | None, ...]  # train, val, test, or None if not yet assigned
    ignored: dict[str, int] = field(default_factory=dict)  # the number of ignored files and folders, by reason
    empty: tuple[str, ...] = ()  # class folders without images, which do not become classes
    folders: tuple[Path, ...] = ()  # the folders with the photographs; nothing may be written below them
    sets: Sets = ()  # in a multi-label table, the distinct sets of classes, as sorted indices into `classes`
    layout: str = ""  # one line about the folders or columns that were read as classes and splits
    overlooked: tuple[str, ...] = ()  # sentences about files, folders and columns that were left out but may matter
    corrections: tuple[str, ...] = ()  # sentences about the changes that a label file made
    unmatched: tuple[str, ...] = ()  # sentences about rows of a label file that had no effect
    left_out: tuple[Row, ...] = ()  # the images that a label file leaves out, with their previous labels
    earlier: tuple[EarlierLabel, ...] = ()  # the labels before those that models proposed, as a label file records
    storage: Storage | None = None  # returns the bytes of an image by key; None if the images are files below `root`
    # The name of the group of each image that has one, by path. The images of a group, such as those of one patient,
    # stay in one split, and are not independent of each other.
    groups: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)

    def file(self, index: int) -> Place:
        """Return the `Place` of an image: the path of its file, or its key in the storage."""
        return self.at(self.paths[index])

    def files(self) -> list[Place]:
        """Return the `Place` of every image, in the order of the rows."""
        place = self.place  # computed once, not for each image
        return [place / path for path in self.paths]

    def at(self, key: str) -> Place:
        """Return the `Place` of an image with this key, which need not exist."""
        return self.place / key

    @property
    def place(self) -> Place:
        """Return the folder or storage that contains the images. `place / key` is the `Place` of an image."""
        return self.root if self.storage is None else Stored(self.storage, "")

    def open(self, index: int) -> BinaryIO:
        """Open an image and return its bytes as a stream. Raise OSError if it cannot be read."""
        return open_place(self.file(index))

    def lies_among(self, path: Path) -> bool:
        """Return whether a path is below one of the folders that contain the photographs (`folders`)."""
        return any(path.resolve().is_relative_to(folder) for folder in self.folders)

    @property
    def task(self) -> Task:
        """Return the classification task: one class per image, or several."""
        return MULTI_LABEL if self.sets else SINGLE_LABEL

    def classes_of(self, index: int) -> tuple[int, ...]:
        """Return the class numbers of an image, exactly one in a single-label table."""
        return self.sets[self.labels[index]] if self.sets else (self.labels[index],)

    def name_of(self, index: int) -> str:
        """Return the class names of an image, joined by `;`."""
        if not self.sets:
            return self.classes[self.labels[index]]
        return JOINT.join(self.classes[label] for label in self.classes_of(index))

    def cell_of(self, index: int) -> str:
        """Return the label of an image as it is written in label files. The label `;` means that it has no class."""
        return self.name_of(index) or self.task.no_class

    def set_targets(self) -> list[list[float]]:
        """Return the targets of all `sets`, (S, K): 1 for each class. Row s is that of every image with label s."""
        targets = [[0.0] * len(self.classes) for _ in self.sets]
        for target, class_numbers in zip(targets, self.sets, strict=True):
            for class_number in class_numbers:
                target[class_number] = 1.0
        return targets

    def counts(self) -> dict[str, int]:
        """Count the images of each class. An image with several classes counts in each."""
        count = Counter[int]()  # by class number
        for label, images in Counter(self.labels).items():
            for class_number in self.sets[label] if self.sets else (label,):
                count[class_number] += images
        return {name: count[class_number] for class_number, name in enumerate(self.classes)}

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
        used = [number for number, images in enumerate(self.counts().values()) if images]
        new_number = {old: new for new, old in enumerate(used)}
        classes_of_images = [tuple(new_number[old] for old in self.classes_of(i)) for i in range(len(self))]
        sets, labels = self.task.encode(classes_of_images)
        return replace(self, classes=tuple(self.classes[number] for number in used), labels=labels, sets=sets)

    def of_split(self, split: str) -> ImageTable:
        return self.take([i for i, split_name in enumerate(self.splits) if split_name == split])


class EarlierLabel(NamedTuple):
    """The label that an image had before it got its current one."""

    path: str
    before: str  # the label, written as in a label file; `UNLABELLED` if no person had given one
    by: str  # the run that used this label, or the run whose model proposed the current label
    digest: str = ""  # the first bytes of the file's SHA-256 in hexadecimal; empty if unknown


def table_of(name: str, root: Path, rows: Sequence[Row], storage: Storage | None = None) -> ImageTable:
    """Build a single-label table from rows; the classes are the sorted labels."""
    classes = tuple(sorted({row[1] for row in rows}))
    refuse_lookalikes(name, classes, rows)
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


def refuse_lookalikes(name: str, classes: Sequence[str], rows: Iterable[Row] = ()) -> None:
    """Raise VitkitError if two class names differ but look the same; the message names a row with the second one."""
    first_names: dict[str, str] = {}  # the first name of each form
    for second in classes:
        first = first_names.setdefault(normal_form(second), second)
        if first == second:
            continue
        in_one_name = [c for c in second + first if (c in first) != (c in second)]
        # Describe the character that is hardest to see. Names that consist of the same characters differ in spaces.
        hardest = min(
            in_one_name or [" "],
            key=lambda c: (not _INVISIBLE.match(c), not c.isspace(), not unicodedata.combining(c)),
        )
        code = ord(hardest)
        difference = f"U+{code:04X} {unicodedata.name(hardest, '(a control character)')}"
        if 0xDC80 <= code <= 0xDCFF:  # Python's `surrogateescape` stores other bytes so
            difference = f"the byte 0x{code - 0xDC00:02X}, which is not UTF-8"
        example = next((f" (the latter in {path})" for path, label, _ in rows if second in label), "")
        raise VitkitError(
            "data.classes-alike",
            f"{name}: the classes {first!r} and {second!r}{example} look the same, and differ in {difference}: rename "
            "one",
        )


# --- The task ------------------------------------------------------------------------------------------------

TaskName = Literal["single", "multi"]
NO_THRESHOLD = 0.5  # the threshold of a class that no validation image has


class Task:
    """A classification task: how labels are written, learned and evaluated. In this one, each image has one class."""

    name: TaskName = "single"  # in split.json, model.json and evaluation.json
    no_class = ""  # the label of an image without any class
    min_classes = 2  # needed for training
    is_sigmoid = False  # each class has an independent probability; otherwise those of all classes sum to 1
    min_weight = 0.0  # the lower limit of class weights in a balanced loss
    recipe_fields: Mapping[str, Any] = {}  # values that suit the task better than the defaults
    accuracy = "accuracy"  # its name in reports
    calibration = "calibrating"  # a progress message for the step after training that uses validation images
    chosen = "temperature by log loss"  # what this step chooses, and by which metric
    conflict = "in more than one class"  # a phrase for copies of one image that have different labels
    too_few_classes = "fewer than two classes are left"  # the message for a table without enough classes
    description = ""  # a sentence for users about the number of classes of an image

    def names_in(self, label: str) -> list[str]:
        """Return the names of the classes in a label."""
        return [label]

    def label_of(self, names: Iterable[str]) -> str:
        """Return the label that stands for these classes."""
        (name,) = names
        return name

    def label_names(self, classes: Sequence[str], labels: Iterable[str]) -> list[str]:  # noqa: ARG002
        """Return the labels that users can choose from, given the classes and labels of a table."""
        return list(classes)

    def refuses(self, label: str) -> bool:
        """Return whether the task does not allow a label, because the label names several classes."""
        return JOINT in label

    def encode(self, indices: Sequence[tuple[int, ...]]) -> tuple[Sets, tuple[int, ...]]:
        """Convert the class numbers of each image to the `sets` and `labels` of a table."""
        return (), tuple(class_number for (class_number,) in indices)

    def targets(self, labels: Tensor, sets: Sequence[Sequence[float]]) -> Tensor:  # noqa: ARG002
        """Return the training targets for labels (n,): class numbers (n,), or in a multi-label task 0 and 1 (n, K).

        `sets` are the targets of each set of classes, (S, K) (`ImageTable.set_targets`).
        """
        return labels

    def thresholds(self, classes: int) -> tuple[float, ...] | None:  # noqa: ARG002
        """Return the thresholds (K,) of an untrained classifier; None if the task has no thresholds."""
        return None

    def check_recipe(self, fields: Mapping[str, Any]) -> None:
        """Raise VitkitError for recipe fields that have no meaning for this task."""

    def require_single(self, message: str) -> None:
        """Raise VitkitError with this message unless each image has exactly one class."""

    def summary(self, sizes: Sequence[int]) -> str | None:  # noqa: ARG002
        """Describe the numbers of classes of the images (`sizes`); return None if each image has exactly one."""
        return None


class _MultiLabel(Task):
    """The task in which an image has any number of classes.

    A label joins the class names by `;`. The label `;` alone means no class.
    """

    name: TaskName = "multi"
    no_class = JOINT
    min_classes = 1
    is_sigmoid = True
    # A weight balances the images that have a class against the others, so frequent classes need no smaller weight.
    min_weight = 1.0
    # The exact match is near 0 in early epochs, so the loss ranks epochs better. Label smoothing would raise the many
    # targets of 0, and thereby keep probabilities away from 0.
    recipe_fields: Mapping[str, Any] = {"monitor": "val_loss", "label_smoothing": 0.0}
    accuracy = "exact match"
    calibration = "choosing thresholds"
    chosen = "thresholds by F1"
    conflict = "there with different classes"
    too_few_classes = "all images left have the same classes"
    description = "A photograph may have several of them, or none."

    def names_in(self, label: str) -> list[str]:
        return [name for name in (part.strip() for part in label.split(JOINT)) if name]

    def label_of(self, names: Iterable[str]) -> str:
        return JOINT.join(sorted(set(names))) or self.no_class

    def label_names(self, classes: Sequence[str], labels: Iterable[str]) -> list[str]:  # noqa: ARG002
        return sorted(set(labels))

    def refuses(self, label: str) -> bool:  # noqa: ARG002
        return False

    def encode(self, indices: Sequence[tuple[int, ...]]) -> tuple[Sets, tuple[int, ...]]:
        sets = tuple(sorted(set(indices)))
        label = {label_set: i for i, label_set in enumerate(sets)}
        return sets, tuple(label[label_set] for label_set in indices)

    def targets(self, labels: Tensor, sets: Sequence[Sequence[float]]) -> Tensor:
        import torch

        return torch.tensor(sets)[labels]

    def thresholds(self, classes: int) -> tuple[float, ...] | None:
        return (NO_THRESHOLD,) * classes

    def check_recipe(self, fields: Mapping[str, Any]) -> None:
        one_class = "one class for each image, but these may have several"
        if fields["teacher"] is not None:
            self.require_single(f"--teacher: a teacher predicts {one_class}; leave it out")
        if fields["balance"] == "sampler":
            self.require_single(f"--balance sampler needs {one_class}; use --balance loss")
        if fields["prior"] == "uniform":
            self.require_single(f"prior uniform needs {one_class}; leave it out")

    def require_single(self, message: str) -> None:
        raise VitkitError("data.task-multi-label", message)

    def summary(self, sizes: Sequence[int]) -> str | None:
        counts = f"{sum(size > 1 for size in sizes)} of {len(sizes)} have several, {sizes.count(0)} none"
        return f"multi-label: an image may have several classes, joined by ';', or none; {counts}"


SINGLE_LABEL, MULTI_LABEL = Task(), _MultiLabel()
TASKS: dict[TaskName, Task] = {task.name: task for task in (SINGLE_LABEL, MULTI_LABEL)}


def task_of(thresholds: Sequence[float] | None) -> Task:
    """Return the task of a classifier from its thresholds: None means one class per image."""
    return SINGLE_LABEL if thresholds is None else MULTI_LABEL


# --- Class names ----------------------------------------------------------------------------------------------

# Names that are copied from web pages or files may contain zero-width spaces, soft hyphens or byte order marks.
# Unicode's property Default_Ignorable_Code_Point, and the empty Braille pattern, which is drawn as a space.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Joiners and variation selectors change the shape of a letter (from Arabic to Khmer), ideograph or emoji before them.
_SHAPING = re.compile("(?<=[\u0600-\u17ff\u2190-\U0003ffff])[\u200c\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef]")


def without_invisible(name: str) -> str:
    """Remove the invisible characters of a name, except those that change the shape of other characters."""
    shaping = {match.start() for match in _SHAPING.finditer(name)}
    return _INVISIBLE.sub(lambda match: match[0] if match.start() in shaping else "", name)


def normal_form(name: str) -> str:
    """Return a form of a name that is equal for names that look the same.

    Accents are composed (NFC), invisible characters are removed, and other spaces become single spaces.
    """
    return " ".join(unicodedata.normalize("NFC", without_invisible(name)).split())


def check_names(classes: Iterable[object]) -> None:
    """Raise VitkitError if a class name is not text, cannot be stored in a file, or has no visible character."""
    for name in classes:
        is_text = False
        if isinstance(name, str):
            with suppress(UnicodeEncodeError):  # JSON can contain half of a surrogate pair
                name.encode("utf-8", "surrogateescape")
                is_text = True
        if not is_text:
            raise VitkitError("data.class-name-invalid", f"class names must be text, not {name!r:.80}")
        if not normal_form(str(name)):
            raise VitkitError(
                "data.class-name-invalid", f"class names must contain visible characters, and {name!r:.80} has none"
            )
