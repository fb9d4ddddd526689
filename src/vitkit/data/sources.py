"""Find the images of a source: a folder, a CSV file, an archive, shards, or a named data set. No image is opened here.

Every source becomes an `ImageTable` with the key, label and, if known, split of each image. The registry `SOURCE_KINDS`
lists the kinds of sources, and the module `named` lists the named data sets. Class names are sorted by Python's
`sorted()`, as in torchvision's `ImageFolder`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitkit.data import archive, shards
from vitkit.data.file_names import is_passed_over
from vitkit.data.layout import LayoutName, read_folder_tree, read_layout, table_of_layout
from vitkit.data.lists import read_list
from vitkit.data.named import DATASETS
from vitkit.data.storage import FOLDER_STORAGES, STORAGES, SearchLog, Storage, entries_in, images_below
from vitkit.data.storage import storage_at as storage_at  # which knows the kinds that are registered here
from vitkit.data.table import UNLABELLED, ImageTable
from vitkit.errors import VitkitError
from vitkit.system.files import address_of

# --- Kinds of sources -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceKind:
    """A kind of source: one way to store labelled images.

    A kind with neither suffixes nor `is_at` covers all folders that are of no other kind (`is_for_folders`).
    """

    name: str
    description: str  # in a few words, for error messages that list all kinds
    # A function (name, path, layout) that finds the images or raises VitkitError. `name` names the source in messages.
    # The function of the kind that covers folders also accepts `follow_links`.
    read: Callable[..., ImageTable]
    suffixes: tuple[str, ...] = ()  # of files, in lower case
    has_layout: bool = False  # whether it contains folders that may be classes or splits (`--layout`)
    is_at: Callable[[Path], bool] | None = None  # recognises folders and addresses of this kind
    storage: Callable[[Path], Storage] | None = None  # opens it as a storage; None if each image is a separate file
    # Returns the keys of all images, and lines about what was left out; None if images of this kind always have labels.
    find_all_images: Callable[[Path, SearchLog], tuple[Sequence[str], Sequence[str]]] | None = None

    @property
    def is_for_folders(self) -> bool:
        return not self.suffixes and self.is_at is None


SOURCE_KINDS: dict[str, SourceKind] = {}


def register(kind: SourceKind) -> None:
    """Add a kind of source. Raise ValueError if a kind with this name or suffix exists already."""
    for other in SOURCE_KINDS.values():
        has_same_files = not set(kind.suffixes).isdisjoint(other.suffixes)
        if kind.name == other.name or has_same_files or (kind.is_for_folders and other.is_for_folders):
            raise ValueError(f"a kind of source named {kind.name!r}, or with one of its suffixes, exists already")
    SOURCE_KINDS[kind.name] = kind
    if kind.storage is not None:
        STORAGES.update(dict.fromkeys(kind.suffixes, kind.storage))
        if kind.is_at is not None:
            FOLDER_STORAGES.append((kind.is_at, kind.storage))


def kind_of_file(path: str | Path) -> SourceKind | None:
    """Return the kind of source that a file's suffix indicates; None if no kind has this suffix."""
    suffix = Path(path).suffix.lower()
    return next((kind for kind in SOURCE_KINDS.values() if suffix in kind.suffixes), None)


def kind_of(path: Path) -> SourceKind | None:
    """Return the kind of a folder, file or address; None if it does not exist or the file's suffix is unknown."""
    for kind in SOURCE_KINDS.values():
        if kind.is_at is not None and kind.is_at(path):
            return kind
    if not path.is_dir():
        return kind_of_file(path) if path.exists() else None
    return next(kind for kind in SOURCE_KINDS.values() if kind.is_for_folders)


def read_source(data: str | Path, layout: LayoutName = "auto", *, follow_links: bool = False) -> ImageTable:
    """Find the images of a source as `read_table` does, and check that a classifier can be trained on the classes.

    Raises:
        VitkitError: as for `read_table`, or all images have the same class.
    """
    table = read_table(data, layout, follow_links=follow_links)
    check_classes(table)
    return table


def check_classes(table: ImageTable) -> None:
    """Raise VitkitError if a table has a single class, and its task needs at least two."""
    if len(table.classes) != 1 or table.task.min_classes == 1:
        return
    folder = table.root / table.classes[0]
    children = folder.iterdir() if folder.is_dir() else ()
    has_folders = any(child.is_dir() and not is_passed_over(child.name) for child in children)
    advice = f": if the folders in it are the classes, use {folder} as the data" if has_folders else ""
    raise VitkitError(
        "data.class-single",
        f"{table.name} has a single class, {table.classes[0]!r}; a classifier needs at least two{advice}"
        + "".join(f"; {line}" for line in table.overlooked),
    )


def read_table(data: str | Path, layout: LayoutName = "auto", *, follow_links: bool = False) -> ImageTable:
    """Find the images of a source: a folder, a CSV file, an archive, a folder of shards, or a named data set.

    - A folder contains `class/image`, or `train/class/image` next to `val` and `test` (see `layout.read_layout`).
    - A CSV file has the columns path (relative to the file's folder), label and, optionally, split and group
      (`lists.read_list`). The table is multi-label if a label joins several names by `;`, or if the column is called
      `labels`. An image with the label `cat;dog` then has two classes, and an image with an empty label has none.
    - A named data set is downloaded on first use.

    Args:
        data: a path, or the name of a data set.
        layout: how to read the folders in the data's folder: as `classes` or as `splits`. `auto` decides by their names
            and contents, and raises an error if it cannot.
        follow_links: also search the folders and files that links lead to outside of the folder.

    Raises:
        VitkitError: there is no such path or name, the layout of the folders is ambiguous, or there are no images.
    """
    kind, root = find_source(data), Path(data)
    if kind is None:
        from vitkit.data import named  # imported late, with what downloads need

        root = named.materialise(str(data))
        kind = kind_of(root)
        assert kind is not None
        if layout == "auto":  # the layout of a named data set is known
            layout = "splits" if DATASETS[str(data)].splits else "classes"
    if layout != "auto" and not kind.has_layout:
        raise VitkitError(
            "data.option-unsuited", f"--layout {layout} applies to folders, but {data} is a {kind.name}; leave it out"
        )
    if kind.is_for_folders:
        return kind.read(str(data), root, layout, follow_links=follow_links)
    if follow_links:
        raise _links_unsuited(kind, data)
    return kind.read(str(data), root, layout)


def _links_unsuited(kind: SourceKind, data: str | Path) -> VitkitError:
    return VitkitError(
        "data.option-unsuited", f"--follow-links applies to folders, but {data} is a {kind.name}; leave it out"
    )


def find_source(data: str | Path) -> SourceKind | None:
    """Return the kind of a folder, file or address without finding its images; None for a named data set.

    Raises:
        VitkitError: there is no such path or name, or no kind has the suffix of the file.
    """
    if not str(data):
        raise VitkitError(
            "data.source-empty",
            'DATA is empty (""): pass a folder ("." is the current one), a CSV file or the name of a data set',
        )
    root = Path(data)
    if (kind := kind_of(root)) is not None:
        return kind
    if address := address_of(data):
        raise VitkitError(
            "data.shards-missing",
            f"no {shards.INDEX} at {address}: name a folder there that `vitkit shard` has written",
        )
    if not root.exists():
        if str(data) in DATASETS:
            return None
        known = ", ".join(sorted(DATASETS))
        raise VitkitError(
            "data.source-missing", f"no such folder: {data} (and no data set of that name; known: {known})"
        )
    expected = " or ".join(known_kind.description for known_kind in SOURCE_KINDS.values())
    raise VitkitError("data.source-type", f"{data} is a file; expected {expected}")


def read_folders(name: str, root: Path, layout_name: LayoutName, *, follow_links: bool = False) -> ImageTable:
    overlooked = SearchLog(top=root, follow_links=follow_links)
    layout = read_layout(name, read_folder_tree(root, overlooked), layout_name)
    return table_of_layout(name, root, layout, overlooked, partial(images_below, overlooked=overlooked), entries_in)


def read_unlabelled(data: str | Path, *, follow_links: bool = False) -> ImageTable:
    """Return all pictures of a source as a table of one class without splits.

    Raises:
        VitkitError: there is no such folder or archive, or it contains no image.
    """
    root = Path(data)
    if address_of(data) is None and not root.exists() and str(data) in DATASETS:
        from vitkit.data import named

        root = named.materialise(str(data))
    kind = kind_of(root)
    if kind is None or kind.find_all_images is None:
        raise VitkitError("data.source-missing", f"no such folder or archive of pictures: {data}")
    if follow_links and not kind.is_for_folders:
        raise _links_unsuited(kind, data)
    is_local = address_of(root) is None
    if is_local:
        root = root.resolve()
    overlooked = SearchLog(follow_links=follow_links)
    keys, lines = kind.find_all_images(root, overlooked)
    if not keys:
        raise VitkitError("data.images-missing", "; ".join([f"no images below {data}", *lines]))
    return ImageTable(
        name=str(data),
        root=root,
        classes=(UNLABELLED,),
        paths=tuple(keys),
        labels=(0,) * len(keys),
        splits=(None,) * len(keys),
        ignored=dict(overlooked.ignored),
        folders=(root,) if is_local else (),
        layout="pictures without labels: all subfolders are included",
        overlooked=tuple(lines),
        storage=None if kind.storage is None else kind.storage(root),
    )


def find_images_in_folder(root: Path, overlooked: SearchLog) -> tuple[Sequence[str], Sequence[str]]:
    return images_below(root, overlooked), overlooked.lines(root)


def has_no_folders(data: str | Path, *, follow_links: bool = False) -> bool:
    """Return whether a folder or archive contains images, none of them in a subfolder."""
    root = Path(data)
    kind = kind_of(root)
    if kind is None or kind.find_all_images is None:
        return False
    keys, _ = kind.find_all_images(root, SearchLog(follow_links=follow_links))
    return bool(keys) and not any("/" in key for key in keys)


for _row in (
    SourceKind(
        "folder",
        "a folder with one sub-folder of images per class",
        read_folders,
        has_layout=True,
        find_all_images=find_images_in_folder,
    ),
    SourceKind("list", "a CSV", read_list, (".csv", ".tsv")),
    SourceKind(
        "archive",
        "a .zip or .tar of one",
        archive.read_archive,
        archive.SUFFIXES,
        has_layout=True,
        storage=archive.Archive,
        find_all_images=archive.find_all_images,
    ),
    SourceKind(
        "folder of shards",
        "a folder of shards",
        shards.read_shards,
        is_at=shards.is_shard_folder,
        storage=shards.ShardFolder,
        find_all_images=shards.find_all_images,
    ),
):
    register(_row)
