"""Determine which subfolders of a folder of photographs are classes, and which are splits.

`class/image` and `split/class/image` are the layouts that are read. Folders may be nested in other folders, or in a
folder of the same name, as archives leave them (`seg_train/seg_train/class`). An ambiguous folder raises an error with
advice. If vitkit guessed and took a split for a class, the model would learn to predict the split, and its accuracy
would not reveal the mistake.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal

from vitkit.data.file_names import is_passed_over, why_ignored
from vitkit.data.storage import SearchLog, scan_folder
from vitkit.data.table import ImageTable, Row, normal_form, table_of
from vitkit.errors import VitkitError
from vitkit.system.run_files import RECIPE
from vitkit.text.cells import listed

_WORDS = {  # names of splits, as people write them; `eval` means val if there is also a test split, otherwise test
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("eval", "evaluation"), "eval"),
}
_FILLERS = {  # words without meaning, as in train_set or "Test Images"
    *("set", "sets", "data", "dataset", "split", "folder"),
    *("image", "images", "img", "imgs", "photos", "pictures", "samples"),
}


def split_of_folder(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the split in a folder's name (train, val, test or eval) and the remaining words of the name.

    For example, `seg_train` gives train and the word `seg`, and `FlowersTest2017` gives test and the words `flowers`
    and `2017`. Words such as `set` or `images` are dropped, so `train_set` has no remaining words. The split folders of
    one data set have the same remaining words. Return None if the name contains no split, or several.
    """
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[^\W\d_])(?=\d)", " ", name)
    words = []
    for word in re.split(r"[\W_]+", spaced.lower()):
        if word:
            shortened = [word.removesuffix(filler) for filler in _FILLERS]  # `train` for `trainset`
            words.append(next((stem for stem in shortened if stem in _WORDS), word))
    splits = [_WORDS[word] for word in words if word in _WORDS]
    if splits == ["train", "val"]:
        splits = ["train"]  # as in `train_val`: images for training, of which some may be taken for validation
    if len(splits) != 1:
        return None
    return splits[0], tuple(word for word in words if word not in _WORDS and word not in _FILLERS)


@dataclass(frozen=True)
class Folder:
    """A folder with its subfolders. `has_images` is whether it directly contains images."""

    path: Path
    has_images: bool
    folders: tuple[Folder, ...]

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def has_images_at_any_depth(self) -> bool:
        return self.has_images or any(folder.has_images_at_any_depth for folder in self.folders)

    @cached_property
    def folders_with_images(self) -> tuple[Folder, ...]:  # at any depth
        return tuple(folder for folder in self.folders if folder.has_images_at_any_depth)

    @property
    def has_images_only_below(self) -> bool:
        return not self.has_images and bool(self.folders_with_images)


def read_folder_tree(path: Path, overlooked: SearchLog, above: tuple[str, ...] = ()) -> Folder:
    """Return the tree of folders below `path`. Hidden and unreadable folders are recorded in `overlooked`.

    `above` holds the real paths of the folders from the root to `path`. A link to one of these is not followed, because
    the tree would be infinite.
    """
    real = os.path.realpath(path)
    if real in above:
        return Folder(path, has_images=False, folders=())
    folders, files, _ = scan_folder(str(path), overlooked, above[0] if above else real)
    has_images = any(why_ignored(name) is None for name in files)
    children = tuple(read_folder_tree(path / child, overlooked, (*above, real)) for child in folders)
    return Folder(path, has_images, children)


def subfolders_with_images(folder: Folder) -> Iterator[Folder]:
    """Yield the subfolders of a folder, at any depth, that contain images at any depth."""
    for child in folder.folders_with_images:
        yield child
        yield from subfolders_with_images(child)


def folders_between(top: Folder, folder: Folder) -> tuple[Path, ...]:
    """Return the paths of the folders from `top` down to `folder`, including both."""
    steps = folder.path.relative_to(top.path).parts
    return tuple(top.path.joinpath(*steps[:i]) for i in range(len(steps) + 1))


def relative_name(top: Folder, folder: Folder) -> str:
    """Return the path of `folder` relative to `top`, ending with a slash."""
    return f"{folder.path.relative_to(top.path).as_posix()}/"


def _names(top: Folder, folders: Iterable[Folder]) -> str:
    return listed([relative_name(top, folder) for folder in folders])


@dataclass(frozen=True)
class SplitFolder:
    """A folder that is named like a split (`outer`), and the folder that contains the classes (`inner`).

    They are the same unless folders are nested. `words` are the remaining words of the name (`split_of_folder`).
    """

    outer: Folder
    inner: Folder
    split: str
    words: tuple[str, ...]

    @property
    def has_classes(self) -> bool:
        return bool(self.inner.folders_with_images)


def group_split_folders(folder: Folder) -> dict[tuple[str, ...], list[SplitFolder]]:
    """Group the subfolders that are named like splits by the other words in their names (`split_of_folder`)."""
    groups: dict[tuple[str, ...], list[SplitFolder]] = defaultdict(list)
    for child in folder.folders_with_images:
        if (split_name := split_of_folder(child.name)) is not None:
            split, words = split_name
            groups[words].append(SplitFolder(child, skip_repeated_folders(child), split, words))
    return groups


def has_train_and_another(splits: Sequence[SplitFolder]) -> bool:
    return len(splits) > 1 and any(folder.split == "train" for folder in splits)


def skip_repeated_folders(folder: Folder) -> Folder:
    """Return the innermost of nested folders that repeat the name of a split, as archives leave them.

    For `seg_train/seg_train`, this is the inner folder. Without such a folder inside, it is `folder` itself.
    """
    inner = folder
    while not inner.has_images and len(inner.folders_with_images) == 1:
        (only,) = inner.folders_with_images
        if split_of_folder(only.name) is None:
            break
        inner = only
    return inner if split_of_folder(inner.name) == split_of_folder(folder.name) else folder


LayoutName = Literal["auto", "classes", "splits"]
_ORDER = ("train", "val", "test")
_OVERRIDE = "choose --layout splits or --layout classes"


@dataclass(frozen=True)
class ClassFolder:
    """A folder with images of one class, and of one split if the layout has splits."""

    path: Path
    name: str
    split: str | None = None


@dataclass(frozen=True)
class FolderLayout:
    """The interpretation of a folder's subfolders as classes and splits."""

    classes: tuple[ClassFolder, ...]
    between: tuple[Path, ...]  # the folders above the class folders; files in them belong to no class
    left_out: tuple[Path, ...]  # folders beside the splits
    text: str  # a description in one line


def read_layout(name: str, top: Folder, layout: LayoutName) -> FolderLayout:
    """Distinguish classes from splits among the folders below `top`, by their names and contents.

    `classes` reads every subfolder of `top` as a class. `splits` reads the folders that are named like splits as
    splits. `auto` decides by names and contents.

    Raises:
        VitkitError: the layout is ambiguous, or there are no splits although `layout` is `splits`.
    """
    if layout == "classes":
        return _as_classes(top, top)
    top = replace(top, folders=tuple(map(_without_filler_folders, top.folders)))
    inner = top
    while not inner.has_images and len(inner.folders) == 1:  # skip folders that contain nothing but another folder
        (only,) = inner.folders
        if not only.has_images_only_below or split_of_folder(only.name) is not None:
            break
        inner = only
    as_splits = _as_splits(name, top, inner, layout)
    if as_splits is not None:
        return as_splits
    if layout == "splits":
        raise VitkitError(
            "data.splits-missing",
            f"{name} has no split folders with class folders in them: expected train/, val/ or test/",
        )
    _refuse_ambiguous(name, top, inner)
    return _as_classes(top, inner)


def _without_filler_folders(folder: Folder) -> Folder:
    """Move the images of `n01/images` to `n01`, at any depth, if `n01` contains only a folder with such a name."""
    if not folder.has_images and len(folder.folders) == 1:
        (only,) = folder.folders
        if only.has_images and not only.folders and only.name.lower() in _FILLERS:
            return replace(folder, has_images=True, folders=())
    return replace(folder, folders=tuple(map(_without_filler_folders, folder.folders)))


# --- As classes --------------------------------------------------------------------------------------


def _as_classes(top: Folder, folder: Folder) -> FolderLayout:
    where = "" if folder is top else f", in {relative_name(top, folder)}"
    return FolderLayout(
        classes=tuple(ClassFolder(child.path, child.name) for child in folder.folders),
        between=folders_between(top, folder),
        left_out=(),
        text=f"folders read as classes: {len(folder.folders_with_images)}{where}",
    )


def _refuse_ambiguous(name: str, top: Folder, folder: Folder) -> None:
    """Raise VitkitError if folders that would be read as classes may be something else, such as splits."""
    for words, splits in group_split_folders(folder).items():
        if len(splits) > 1:
            folders = " and ".join(relative_name(top, item.outer) for item in splits)
            what = "splits" if not words else "splits of one class"
            detail = "" if any(item.has_classes for item in splits) else ", with images but no class folders in them"
            raise VitkitError(
                "data.layout-ambiguous",
                f"{name}: {folders} look like {what}{detail}; put class folders into each of train/, val/ and test/, "
                "or use --layout classes if these folders are classes",
            )
    alike = _folders_with_same_subfolders(folder)
    if alike is not None:
        outer, shared = alike
        raise VitkitError(
            "data.layout-ambiguous",
            f"{name}: it is not clear what the classes are, as {_names(top, outer)} have folders of the same names "
            f"({listed(shared)}): if those names are the classes, call the outer folders train, val and test; if the "
            "outer folders are the classes, use --layout classes; if both are, as in cat/train, move them to train/cat",
        )
    for item in subfolders_with_images(folder):
        for splits in filter(has_train_and_another, group_split_folders(item).values()):
            names = " and ".join(f"{split.outer.name}/" for split in splits)
            raise VitkitError(
                "data.layout-ambiguous",
                f"{name}: {relative_name(top, item)} contains {names}, which look like splits: pass the folder "
                f"{item.path} itself, or use --layout classes to treat the folders above it as classes",
            )


def _folders_with_same_subfolders(folder: Folder) -> tuple[list[Folder], list[str]] | None:
    """Find folders whose subfolders mostly have the same names. Return them and these names; None if there are none.

    Such folders are probably splits, folds or sites rather than classes.
    """
    outer = [child for child in folder.folders_with_images if child.has_images_only_below]
    direct = [child.folders_with_images for child in outer]
    innermost = [[inner for inner in subfolders_with_images(child) if inner.has_images] for child in outer]
    for subfolders in (direct, innermost):
        names = [{inner.name.casefold() for inner in inners} for inners in subfolders]  # for each outer folder
        counts = Counter(chain.from_iterable(names))
        shared = {name for name, count in counts.items() if count > 1}
        if shared and 2 * len(shared) >= len(counts):
            similar = [child for child, names_in_child in zip(outer, names, strict=True) if names_in_child & shared]
            return similar, sorted(shared)
    return None


# --- As splits ---------------------------------------------------------------------------------------


def _as_splits(name: str, top: Folder, folder: Folder, requested: LayoutName) -> FolderLayout | None:
    """Return the layout `split/class/image`; None if the folders do not have it."""
    splits = _find_split_folders(name, top, folder)
    if not splits:
        return None
    split_paths = {item.outer.path for item in splits}
    others = [child for child in folder.folders_with_images if child.path not in split_paths]
    if requested == "auto" and len(splits) == 1 and _is_class(name, top, folder, splits[0], others):
        return None

    # Enter the folder that every split contains alone, as in train/images and test/images, at any depth.
    while all(item.inner.has_images_only_below and len(item.inner.folders) == 1 for item in splits):
        children = [item.inner.folders[0] for item in splits]
        names = {child.name.casefold() for child in children}
        if len(names) > 1 or not all(child.has_images_only_below for child in children):
            break  # these are classes
        splits = [replace(item, inner=child) for item, child in zip(splits, children, strict=True)]

    _check_splits(name, top, splits, requested)
    where = ", ".join(f"{item.split} in {relative_name(top, item.inner)}" for item in splits)
    rest = f"; left out: {_names(top, others)}" if others else ""
    between = list(folders_between(top, folder))
    for item in splits:
        between += folders_between(item.outer, item.inner)
    return FolderLayout(
        classes=tuple(
            ClassFolder(child.path, child.name, item.split)
            for item in sorted(splits, key=lambda item: item.outer.path)
            for child in item.inner.folders
        ),
        between=tuple(between),
        left_out=tuple(child.path for child in folder.folders if child.path not in split_paths),
        text=f"folders read as splits: {where}{rest}",
    )


def _find_split_folders(name: str, top: Folder, folder: Folder) -> list[SplitFolder]:
    """Return the subfolders that are named like splits and contain class folders, ordered by split.

    Raises:
        VitkitError: there are several sets of such folders.
    """
    groups: list[list[SplitFolder]] = []
    for group in group_split_folders(folder).values():
        with_classes = [item for item in group if item.has_classes]
        if with_classes:
            groups.append(with_classes)
    if not groups:
        return []
    folders = [item for group in groups for item in group]
    candidates = [group for group in groups if has_train_and_another(group)] or groups
    if len(candidates) > 1 or sum(item.split == "train" for item in folders) > 1:
        raise VitkitError(
            "data.layout-ambiguous",
            f"{name}: {_names(top, [item.outer for item in folders])} could each be a split; keep at most one each of "
            "train/, val/ and test/, or use --layout classes if these folders are classes",
        )
    (splits,) = candidates
    eval_split = "val" if any(item.split == "test" for item in splits) else "test"  # the meaning of `eval`
    splits = [replace(item, split=eval_split) if item.split == "eval" else item for item in splits]
    return sorted(splits, key=lambda item: _ORDER.index(item.split))


def _is_class(name: str, top: Folder, folder: Folder, split_folder: SplitFolder, others: Sequence[Folder]) -> bool:
    """Return whether `split_folder`, which is named like a split, is a class beside the folders `others`."""
    if not others:
        return False
    if split_folder.outer.has_images:
        return True
    are_unlabelled = all(
        split_of_folder(child.name) is not None and not skip_repeated_folders(child).folders_with_images
        for child in others
    )
    if split_folder.split == "train" and are_unlabelled:  # competitions publish test images without their classes
        return False
    have_classes = len(others) > 1 and all(child.has_images_only_below for child in others)
    if have_classes and not _folders_with_same_subfolders(folder):
        return True
    raise VitkitError(
        "data.layout-ambiguous",
        f"{name}: {relative_name(top, split_folder.outer)} may be a split or a class: there is no other split with "
        f"class folders beside it, only {_names(top, others)}; {_OVERRIDE}",
    )


def _check_splits(name: str, top: Folder, splits: Sequence[SplitFolder], requested: LayoutName) -> None:
    for first, second in pairwise(splits):  # sorted by split
        if first.split == second.split:
            both = f"{relative_name(top, first.outer)} and {relative_name(top, second.outer)} are both"
            raise VitkitError(
                "data.splits-twice", f"{name}: {both} the {first.split} split; merge them, or move one away"
            )
    if requested == "splits":
        return
    for split in splits:
        _refuse_ambiguous(name, top, split.inner)
    names = {child.name for split in splits for child in split.inner.folders_with_images}
    like_splits = [child for child in names if split_of_folder(child) is not None]
    if len({split_of_folder(child) for child in like_splits}) > 1:
        raise VitkitError(
            "data.layout-ambiguous",
            f"{name}: {listed(sorted(like_splits))} lie inside splits, but look like splits themselves; {_OVERRIDE}",
        )

    # The classes of the first split should be those of the others.
    first_split, *rest = splits
    first_folder = relative_name(top, first_split.inner)
    known = {child.name for child in first_split.inner.folders_with_images}
    known_by_spelling = {_spelling(class_name): class_name for class_name in known}
    for split in rest:
        folder = relative_name(top, split.inner)
        classes = {child.name for child in split.inner.folders_with_images}
        for class_name in sorted(classes - known):
            similar = known_by_spelling.get(_spelling(class_name))
            if similar is not None:
                pair = [f"{first_folder}{similar}", f"{folder}{class_name}"]
                if similar.casefold() != class_name.casefold():  # they may look the same, so show their code points
                    pair = list(map(ascii, pair))
                raise VitkitError(
                    "data.classes-alike",
                    f"{name}: {pair[0]} and {pair[1]} differ only in spelling, but would be two classes; rename one",
                )
        if not known & classes:
            raise VitkitError(
                "data.layout-ambiguous",
                f"{name}: no folder of {folder} ({listed(sorted(classes))}) is a class of {first_folder} "
                f"({listed(sorted(known))}); {_OVERRIDE}",
            )


def _spelling(name: str) -> str:
    """Return a form that is equal for names that differ only in case, or look the same but are encoded differently."""
    return unicodedata.normalize("NFKC", normal_form(name)).casefold().strip()


# --- The images ----------------------------------------------------------------------------------------------------


def table_of_layout(
    name: str,
    root: Path,
    layout: FolderLayout,
    overlooked: SearchLog,
    images_below: Callable[[Path], list[str]],
    entries: Callable[[Path], list[tuple[str, bool]]],
) -> ImageTable:
    """Build the table of the images in a folder or archive with a known layout; record ignored files in `overlooked`.

    `images_below` returns the paths of the images below a folder, relative to that folder. `entries` returns the
    entries of a folder as pairs of a name and whether it is a file.
    """
    ignored = overlooked.ignored
    rows: list[Row] = []
    for folder in layout.classes:
        prefix = folder.path.relative_to(root).as_posix()
        rows += [(f"{prefix}/{file}", folder.name, folder.split) for file in images_below(folder.path)]
    for children in map(entries, layout.between):
        ignored["outside the class folders"] += sum(is_file for _, is_file in children)
        ignored.update(f"folder {child}" for child, is_file in children if not is_file and is_passed_over(child))
    ignored.update(f"folder {folder.name} beside the splits" for folder in layout.left_out)
    if not rows:
        loose = sum(is_file and why_ignored(child) is None for child, is_file in entries(root))
        if (RECIPE, True) in entries(root):
            hint = "; this is a run, not a folder of photographs"
        elif lines := overlooked.lines(root):
            hint = "".join(f"; {line}" for line in lines)
        else:
            hint = f" ({loose} images lie in the folder itself)" if loose else ""
        raise VitkitError(
            "data.images-missing", f"{name} has no images: expected one sub-folder per class with images in it{hint}"
        )
    table = table_of(name, root, rows)
    return replace(
        table,
        ignored={reason: count for reason, count in ignored.items() if count},
        empty=tuple(sorted({folder.name for folder in layout.classes} - set(table.classes))),
        folders=(table.root,),
        layout=layout.text,
        overlooked=tuple(overlooked.lines(root)),
    )
