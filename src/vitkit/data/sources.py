"""Where images come from: a kind of source, one row each, or a named data set. Nothing here opens an image.

All become an `ImageTable`: path, label and, where given, split of each image. Adding a kind is a module and a row.
Data sets that have a name are a table of their own (`named_sets`), and become folders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from vitkit.data.layout import LayoutName
from vitkit.data.named_sets import DATASETS
from vitkit.data.table import ImageTable
from vitkit.data.walk import is_passed_over
from vitkit.errors import VitkitError
from vitkit.system.progress import Progress

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
