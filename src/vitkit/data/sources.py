"""Where images come from: a folder of class folders, a folder already split, a CSV file, or a named data set.

All become an `ImageTable`: path, label and, where given, split of each image. What the folders of a folder mean is told
by `layout`. Class order is Python's `sorted()` of the folder names, as torchvision's `ImageFolder` has it.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vitkit.data import named
from vitkit.data.layout import LayoutName, understand
from vitkit.data.splitnames import split_of_word
from vitkit.data.walk import SUFFIXES, Overlooked, images_below, is_passed_over, why_ignored
from vitkit.errors import VitkitError
from vitkit.system.progress import Progress
from vitkit.text.cells import restored

_COLUMNS = {  # of a CSV file, by what people call them
    **dict.fromkeys(("path", "file", "filename", "image"), "path"),
    **dict.fromkeys(("label", "class", "labels"), "label"),
    "split": "split",
}
JOINT = ";"  # between the classes of an image


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


def read_source(data: str | Path, progress: Progress | None = None, layout: LayoutName = "auto") -> ImageTable:
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
        VitkitError: there is no such folder or name, it is not clear what its folders mean, or there is nothing in it
            to learn from.
    """
    if not str(data):
        raise VitkitError('DATA is empty (""): name a folder, a CSV file or a data set; . is this folder')
    root = Path(data)
    if not root.exists() and str(data) in named.DATASETS:
        root = named.materialise(str(data), progress=progress)
        if layout == "auto":  # which is known of a named set, and need not be told by its folders
            layout = "splits" if named.DATASETS[str(data)].splits else "classes"
    if not root.exists():
        known = ", ".join(sorted(named.DATASETS))
        raise VitkitError(f"no such folder: {data} (and no data set of that name; known: {known})")
    if root.is_dir():
        table = _read_folder(str(data), root, layout)
    elif root.suffix.lower() in (".csv", ".tsv"):
        if layout != "auto":
            raise VitkitError(f"--layout {layout} is about folders, and {data} is a list; leave it out")
        table = _read_csv(str(data), root)
    else:
        raise VitkitError(f"{data} is a file; expected a folder with one sub-folder of images per class, or a CSV")
    if len(table.classes) == 1 and not table.is_multi:
        raise VitkitError(
            f"{data} has a single class, {table.classes[0]!r}; a classifier needs at least two{_within(table)}"
        )
    return table


def _read_folder(name: str, root: Path, asked: LayoutName) -> ImageTable:
    overlooked = Overlooked()
    layout = understand(name, root, asked, overlooked)
    ignored = overlooked.ignored
    rows: list[_Row] = []
    for folder in layout.classes:
        where = folder.path.relative_to(root).as_posix()
        rows += [(f"{where}/{file}", folder.name, folder.split) for file in images_below(folder.path, overlooked)]
    for parent in layout.between:
        ignored["outside the class folders"] += sum(child.is_file() for child in parent.iterdir())
        ignored["folder __MACOSX"] += sum(child.name == "__MACOSX" for child in parent.iterdir())
    ignored.update(f"folder {folder.name} beside the splits" for folder in layout.left_out)
    if not rows:
        told = "".join(f"; {line}" for line in overlooked.lines(root)) or _hint(root)
        raise VitkitError(f"{name} has no images: expected one sub-folder per class with images in it{told}")
    table = _to_table(name, root, rows)
    return replace(
        table,
        ignored={reason: count for reason, count in ignored.items() if count},
        empty=tuple(sorted({folder.name for folder in layout.classes} - set(table.classes))),
        folders=(table.root,),
        layout=layout.text,
        overlooked=tuple(overlooked.lines(root)),
    )


def _within(table: ImageTable) -> str:
    """What else may have been meant, where the only class is made of folders."""
    folder = table.root / table.classes[0]
    holds_folders = folder.is_dir() and any(own.is_dir() and not is_passed_over(own.name) for own in folder.iterdir())
    return f": if the folders in it are the classes, name {folder}" if holds_folders else ""


_Row = tuple[str, str, str | None]  # path, class, split


def _to_table(name: str, root: Path, rows: Sequence[_Row]) -> ImageTable:
    classes = tuple(sorted({row[1] for row in rows}))
    index = {label: i for i, label in enumerate(classes)}
    return ImageTable(
        name=name,
        root=root.resolve(),
        classes=classes,
        paths=tuple(row[0] for row in rows),
        labels=tuple(index[row[1]] for row in rows),
        splits=tuple(row[2] for row in rows),
    )


def _read_csv(name: str, file: Path) -> ImageTable:
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:  # spreadsheets begin with a byte order mark
            header = text.readline()
            delimiter = max(",;\t", key=header.count)
            titles = [title.strip() for title in next(csv.reader([header], delimiter=delimiter, strict=True), [])]
            columns = [_COLUMNS.get(title.lower(), title) for title in titles]
            is_multi = "labels" in map(str.lower, titles)
            if not {"path", "label"} <= set(columns) or len(set(columns)) < len(columns):
                raise VitkitError(
                    f"{name} needs the columns path and label (and may have split); it has: {header.strip()}"
                )
            lines = [own for own in _numbered(name, text, delimiter) if any(own[1])]
            _check_quotes(name, columns, delimiter, lines)
            if is_multi or delimiter == JOINT:
                _check_width(name, columns, lines)
            cells = [(line, dict(zip(columns, own, strict=False))) for line, own in lines]
            is_multi = is_multi or any(len(_names(restored(own.get("label", "").strip()))) > 1 for _, own in cells)
            rows = [_csv_row(name, line, own, may_be_empty=is_multi) for line, own in cells]
    except (UnicodeDecodeError, csv.Error) as error:
        raise VitkitError(f"{name} is no CSV file in UTF-8: {error}") from error
    if not rows:
        raise VitkitError(f"{name} names no images: it has no rows below its header")
    without = sum(row[2] is None for row in rows)
    if 0 < without < len(rows):
        raise VitkitError(f"{name}: {without} of {len(rows)} rows have no split; give it to all of them or to none")
    table = _to_multi_table(name, file.parent, rows) if is_multi else _to_table(name, file.parent, rows)
    parents = {table.file(i).parent for i in range(len(table))}
    return replace(table, folders=tuple({parent.resolve() for parent in parents}))


def _to_multi_table(name: str, root: Path, rows: Sequence[_Row]) -> ImageTable:
    own = [sorted(_names(row[1])) for row in rows]
    classes = tuple(sorted({label for labels in own for label in labels}))
    if not classes:
        raise VitkitError(f"{name} names no classes: every label is empty")
    index = {label: i for i, label in enumerate(classes)}
    sets, labels = number_sets([tuple(index[label] for label in labels) for labels in own])
    return ImageTable(
        name=name,
        root=root.resolve(),
        classes=classes,
        paths=tuple(row[0] for row in rows),
        labels=labels,
        splits=tuple(row[2] for row in rows),
        sets=sets,
    )


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(JOINT)} - {""}


def _numbered(name: str, text: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows below the header with the number of the line that each begins in."""
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    line = 2
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + 2
    except csv.Error as error:
        raise VitkitError(
            f"{name} is no CSV file from line {line} on: {error}; is there a quote too many, or one not closed?"
        ) from error


def _check_quotes(name: str, columns: Sequence[str], delimiter: str, lines: Iterable[tuple[int, list[str]]]) -> None:
    """Refuse a cell of several lines that look like rows: a quote that is not closed has swallowed them."""
    place = columns.index("path")
    for line, cells in lines:
        swallowed = [part for cell in cells for part in cell.splitlines()[1:]]
        is_short = bool(swallowed) and len(cells) < len(columns)
        for part in swallowed:
            inner = part.split(delimiter)
            is_row = len(inner) >= len(columns) and Path(inner[place].strip(' "')).suffix.lower() in SUFFIXES
            if is_short or is_row:
                raise VitkitError(f"{name}, line {line}: a quote is not closed, and takes the rows below into its cell")


def _check_width(name: str, columns: Sequence[str], lines: Iterable[tuple[int, Sequence[str]]]) -> None:
    """Refuse rows with more cells than the header: they are classes that would be lost."""
    for line, cells in lines:
        if any(cells[len(columns) :]):
            wide = f"{len(cells)} cells for {len(columns)} columns"
            raise VitkitError(f'{name}, line {line}: {wide}; put several classes between quotes: "cat;dog"')


def _csv_row(name: str, line: int, cells: dict[str, str], *, may_be_empty: bool) -> _Row:
    path, label, split = (restored(cells.get(column, "").strip()) for column in ("path", "label", "split"))
    if not path or not (label or may_be_empty):
        raise VitkitError(f"{name}, line {line}: {'path' if not path else 'label'} is empty")
    if "\0" in path:
        raise VitkitError(f"{name}, line {line}: no path has a null byte: {path!r}")
    if split and split_of_word(split) is None:
        raise VitkitError(f"{name}, line {line}: split must be train, val or test, not {split!r}")
    return path, label, split_of_word(split)


def _hint(root: Path) -> str:
    loose = sum(why_ignored(child.name) is None for child in root.iterdir() if child.is_file())
    return f" ({loose} images lie in the folder itself)" if loose else ""
