"""Where images come from: a kind of source, one row each, or a named data set. Nothing here opens an image.

All become an `ImageTable`: path, label and, where given, split of each image. Adding a kind is a module and a row.
Data sets that have a name are a table of their own (`named_sets`), and become folders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

from vitkit.data.label_file import Proposal
from vitkit.data.layout import LayoutName
from vitkit.data.named_sets import DATASETS
from vitkit.data.walk import is_passed_over
from vitkit.errors import VitkitError
from vitkit.system.progress import Progress
from vitkit.text.cells import JOINT
from vitkit.text.names import alike

Row = tuple[str, str, str | None]  # path, class, split


@dataclass(frozen=True)
class ImageTable:
    """A labelled set of images.

    Attributes:
        name: what the user called it.
        root: the folder that `paths` are relative to.
        classes: names; a label is an index into them, or into `sets`.
        paths, labels, splits: one entry an image; a split is train, val, test, or None where it is still to be made.
        ignored: count of files and folders passed over, by reason.
        empty: class folders without an image, which are no classes.
        folders: where the photographs lie; nothing may be written below.
        sets: of a multi-label table, the sets of classes that images have, each sorted; a label is an index into
            them. Empty where every image has one class.
        layout: how the folders were understood, in a line; empty where there were none to understand.
        overlooked: sentences about folders that may hold images and were not looked into.
        corrections, unmatched: sentences about what a label file changed, and about what of it changed nothing.
        left_out: the images that a label file leaves out, with their labels until then.
        proposals: the images whose labels were changed, or that were left out, because a model proposed it.
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

    def __len__(self) -> int:
        return len(self.paths)

    def file(self, index: int) -> Path:
        """The path to open."""
        return self.root / self.paths[index]

    def lies_among(self, path: Path) -> bool:
        """Whether the path is below a folder of the photographs."""
        return any(path.resolve().is_relative_to(folder) for folder in self.folders)

    @property
    def is_multi(self) -> bool:
        """Whether an image may have several classes, or none."""
        return bool(self.sets)

    def classes_of(self, index: int) -> tuple[int, ...]:
        """The numbers of an image's classes: one, unless the table is multi-label."""
        return self.sets[self.labels[index]] if self.sets else (self.labels[index],)

    def name_of(self, index: int) -> str:
        """The names of an image's classes, joined by `;`."""
        return JOINT.join(self.classes[label] for label in self.classes_of(index))

    def cell_of(self, index: int) -> str:
        """An image's label as a label file has it: of several classes, or none, `;` alone says none."""
        return (self.name_of(index) or JOINT) if self.is_multi else self.name_of(index)

    def target(self, index: int) -> list[float]:
        """(K,) 1 for each class that an image has, else 0."""
        return _indicator(self.classes_of(index), len(self.classes))

    def set_targets(self) -> list[list[float]]:
        """(S, K) the target of each of `sets`, so that an image's is the row of its label."""
        return [_indicator(own, len(self.classes)) for own in self.sets]

    def counts(self) -> dict[str, int]:
        """Images per class; one of several classes counts in each."""
        count = Counter(label for i in range(len(self)) for label in self.classes_of(i))
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
        """The same rows, without the classes (and sets of them) that no row has."""
        present = sorted({label for i in range(len(self)) for label in self.classes_of(i)})
        new = {label: i for i, label in enumerate(present)}
        own = [tuple(new[label] for label in self.classes_of(i)) for i in range(len(self))]
        sets, labels = number_sets(own) if self.sets else ((), tuple(only for (only,) in own))
        return replace(self, classes=tuple(self.classes[label] for label in present), labels=labels, sets=sets)

    def of_split(self, split: str) -> ImageTable:
        """The rows of one split."""
        return self.take([i for i, own in enumerate(self.splits) if own == split])


def number_sets(own: Sequence[tuple[int, ...]]) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """The sets that occur, in order, and the number of each image's."""
    sets = tuple(sorted(set(own)))
    number = {each: i for i, each in enumerate(sets)}
    return sets, tuple(number[each] for each in own)


def _indicator(labels: tuple[int, ...], classes: int) -> list[float]:
    target = [0.0] * classes
    for label in labels:
        target[label] = 1.0
    return target


# --- Kinds of sources -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceKind:
    """One way to keep labelled images.

    Attributes:
        name: of the kind.
        tells: what is expected, in a few words, for who names something else.
        module: has `read`, which does what the method here says.
        suffixes: of its files, in small letters; none: it is a folder.
        has_layout: whether its folders may be classes or splits (`--layout`).
    """

    name: str
    tells: str
    module: str
    suffixes: tuple[str, ...] = ()
    has_layout: bool = False

    def read(self, name: str, path: Path, layout: LayoutName) -> ImageTable:
        """The images of a source that the user called `name`.

        Raises:
            VitkitError: it cannot be understood, or has no images.
        """
        reads: Callable[[str, Path, LayoutName], ImageTable] = import_module(self.module).read
        return reads(name, path, layout)


SOURCE_KINDS: dict[str, SourceKind] = {}


def register(kind: SourceKind) -> None:
    """Add a row.

    Raises:
        ValueError: there is one of this name or suffix, or it has none: there is one kind of folder.
    """
    taken = {suffix for own in SOURCE_KINDS.values() for suffix in own.suffixes or ("",)}
    if kind.name in SOURCE_KINDS or taken & set(kind.suffixes or ("",)):
        raise ValueError(f"there is a kind of source {kind.name!r} already, or one of its suffix")
    SOURCE_KINDS[kind.name] = kind


def kind_of_file(path: str | Path) -> SourceKind | None:
    """The kind that a file is of, by its suffix; None: of none."""
    suffix = Path(path).suffix.lower()
    return next((kind for kind in SOURCE_KINDS.values() if suffix in kind.suffixes), None)


def kind_of(path: Path) -> SourceKind | None:
    """The kind that a folder or file is of; None: of none."""
    if not path.is_dir():
        return kind_of_file(path)
    return next(kind for kind in SOURCE_KINDS.values() if not kind.suffixes)


_HOME = "vitkit.data"

for _row in (
    SourceKind("folder", "a folder with one sub-folder of images per class", f"{_HOME}.class_folders", has_layout=True),
    SourceKind("list", "a CSV", f"{_HOME}.image_list", (".csv", ".tsv")),
):
    register(_row)


def read_source(data: str | Path, progress: Progress | None = None, layout: LayoutName = "auto") -> ImageTable:
    """The images of a folder, a CSV file or a named set, as `read_table` finds them.

    Raises:
        VitkitError: there is nothing in it to learn from, or a single class.
    """
    table = read_table(data, progress, layout)
    check_classes(table)
    return table


def check_classes(table: ImageTable) -> None:
    """Refuse a single class, which there is nothing to tell from.

    Raises:
        VitkitError: there is one alone.
    """
    if len(table.classes) == 1 and not table.is_multi:
        raise VitkitError(
            f"{table.name} has a single class, {table.classes[0]!r}; a classifier needs at least two{_within(table)}"
        )


def read_table(data: str | Path, progress: Progress | None = None, layout: LayoutName = "auto") -> ImageTable:
    """Find the images of a folder, a CSV file or a named set, which is downloaded when it is first named.

    A folder holds `class/image`, or `train/class/image` beside `val` and `test` (see `layout.understand`). A CSV file
    has the columns path (as seen from its own folder), label and, if wanted, split. Where a label joins names by `;`,
    or its column is `labels`, it is multi-label: `cat;dog` is an image with two classes, and an empty label one with
    none of them.

    Args:
        data: the folder, file or name.
        progress: told what is downloaded, how many bytes are done, of how many.
        layout: whether the folders of a folder are `classes` or `splits`; `auto` tells by itself, or refuses.

    Raises:
        VitkitError: there is no such folder or name, it is not clear what its folders mean, or there is no image
            in it.
    """
    kind, root = find_source(data), Path(data)
    if kind is None:
        from vitkit.data import named  # and with it what downloads

        root = named.materialise(str(data), progress=progress)
        kind = kind_of(root)
        assert kind is not None
        if layout == "auto":  # which is known of a named set, and need not be told by its folders
            layout = "splits" if DATASETS[str(data)].splits else "classes"
    if layout != "auto" and not kind.has_layout:
        raise VitkitError(f"--layout {layout} is about folders, and {data} is a {kind.name}; leave it out")
    return kind.read(str(data), root, layout)


def find_source(data: str | Path) -> SourceKind | None:
    """The kind of source that a folder or file is, without a look into it; None: a named set.

    Raises:
        VitkitError: there is no such folder or name, or the file is of no kind.
    """
    if not str(data):
        raise VitkitError('DATA is empty (""): name a folder, a CSV file or a data set; . is this folder')
    root = Path(data)
    if not root.exists():
        if str(data) in DATASETS:
            return None
        known = ", ".join(sorted(DATASETS))
        raise VitkitError(f"no such folder: {data} (and no data set of that name; known: {known})")
    kind = kind_of(root)
    if kind is None:
        expected = " or ".join(own.tells for own in SOURCE_KINDS.values())
        raise VitkitError(f"{data} is a file; expected {expected}")
    return kind


def _within(table: ImageTable) -> str:
    """What else may have been meant, where the only class is made of folders."""
    folder = table.root / table.classes[0]
    holds_folders = folder.is_dir() and any(own.is_dir() and not is_passed_over(own.name) for own in folder.iterdir())
    return f": if the folders in it are the classes, name {folder}" if holds_folders else ""


def refuse_twins(name: str, classes: Sequence[str], rows: Iterable[Row]) -> None:
    """Refuse two classes that look the same: they would be learned as two, and shown as one.

    Args:
        name: what the user called the data.
        classes: their names.
        rows: with the labels as they stand there, of which the first is named.

    Raises:
        VitkitError: there are such; the message has the code point in which they differ.
    """
    if (twins := alike(classes)) is not None:
        one, other, apart = twins
        example = next((f" (the latter in {path})" for path, label, _ in rows if other in label), "")
        raise VitkitError(
            f"{name}: the classes {one!r} and {other!r}{example} look the same, and differ in {apart}: rename one"
        )


def table_of(name: str, root: Path, rows: Sequence[Row]) -> ImageTable:
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
    )
