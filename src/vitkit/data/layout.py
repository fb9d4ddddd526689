"""Determine which subfolders of a folder of photographs are classes, and which are splits.

`class/image` and `split/class/image` are the usual layouts; `class/split/image` occurs too. Folders may be nested in
other folders, or in a folder of the same name, as archives leave them (`seg_train/seg_train/class`). An ambiguous
folder raises an error with advice. If vitkit guessed and took a split for a class, the model would learn to predict the
split, and its accuracy would not reveal the mistake.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal

from vitkit.data.file_names import is_passed_over, why_ignored
from vitkit.data.storage import Branch, Overlooked, look_through
from vitkit.data.table import ImageTable, Row, look, table_of
from vitkit.errors import VitkitError
from vitkit.text.cells import listed

_WORDS = {  # as people write them; `eval` is test, or val if there is another test folder
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("eval", "evaluation"), "eval"),
}
_FILLERS = {  # words without meaning, as in train_set or "Test Images"
    *("set", "sets", "data", "dataset", "split", "folder"),
    *("image", "images", "img", "imgs", "photos", "pictures", "samples"),
}


def split_of_word(word: str) -> str | None:
    """Return the split (train, val or test) that a word names, ignoring case; None if it names no split."""
    split = _WORDS.get(word.strip().lower())
    return "test" if split == "eval" else split


def split_of_folder(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the split in a folder's name (train, val, test or eval) and the remaining words of the name.

    For example, `seg_train` gives train and the word `seg`, and `FlowersTest2017` gives test and the words `flowers`
    and `2017`. Words such as `set` or `images` are dropped, so `train_set` has no remaining words. The split folders of
    one data set have the same remaining words. Return None if the name contains no split, or several.
    """
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[^\W\d_])(?=\d)", " ", name)
    words = [
        next((word.removesuffix(end) for end in _FILLERS if word.removesuffix(end) in _WORDS), word)
        for word in filter(None, re.split(r"[\W_]+", spaced.lower()))
    ]
    splits = [_WORDS[word] for word in words if word in _WORDS]
    if splits == ["train", "val"]:
        splits = ["train"]  # train_val: a validation split is still to be taken from it
    if len(splits) != 1:
        return None
    return splits[0], tuple(word for word in words if word not in _WORDS and word not in _FILLERS)


@dataclass(frozen=True)
class Folder:
    """A folder with its subfolders. `has_images` is whether it contains images itself, not only in subfolders."""

    path: Path
    has_images: bool
    folders: tuple[Folder, ...]

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def holds_images(self) -> bool:  # at any depth
        return self.has_images or any(folder.holds_images for folder in self.folders)

    @cached_property
    def full(self) -> tuple[Folder, ...]:
        return tuple(folder for folder in self.folders if folder.holds_images)

    @property
    def is_made_of_folders(self) -> bool:
        """Return whether the folder contains images only in its subfolders."""
        return not self.has_images and bool(self.full)


def survey(path: Path, overlooked: Overlooked) -> Folder:
    """Return the tree of folders below `path`. Hidden and unreadable folders are recorded in `overlooked`."""

    def as_folder(branch: Branch) -> Folder:
        path, has_images, folders = branch
        return Folder(path, has_images, tuple(map(as_folder, folders)))

    return as_folder(look_through(path, overlooked))


def inside(folder: Folder) -> Iterator[Folder]:
    """Yield the subfolders of a folder, at any depth, that contain images at any depth."""
    for child in folder.full:
        yield child
        yield from inside(child)


def between(top: Folder, folder: Folder) -> tuple[Path, ...]:
    """Return the paths of the folders from `top` down to `folder`, including both."""
    steps = folder.path.relative_to(top.path).parts
    return tuple(top.path.joinpath(*steps[:i]) for i in range(len(steps) + 1))


def below(top: Folder, folder: Folder) -> str:
    """Return the path of `folder` relative to `top`, ending with a slash."""
    return f"{folder.path.relative_to(top.path).as_posix()}/"


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
        return bool(self.inner.full)


def grouped(folder: Folder) -> dict[tuple[str, ...], list[SplitFolder]]:
    """Group the subfolders that are named like splits by the other words in their names (`split_of_folder`)."""
    groups: dict[tuple[str, ...], list[SplitFolder]] = defaultdict(list)
    for child in folder.full:
        split_name = split_of_folder(child.name)
        if split_name is not None:
            groups[split_name[1]].append(SplitFolder(child, undouble(child), *split_name))
    return groups


def is_pair(splits: Sequence[SplitFolder]) -> bool:
    """Return whether there are two or more split folders, one of them for training."""
    return len(splits) > 1 and any(part.split == "train" for part in splits)


def undouble(folder: Folder) -> Folder:
    """Return the innermost of nested folders that repeat the name of a split, as archives leave them.

    For example, the inner folder of `seg_train/seg_train`; without such a folder in it, `folder` itself.
    """
    inner = folder
    while not inner.has_images and len(inner.full) == 1 and split_of_folder(inner.full[0].name) is not None:
        inner = inner.full[0]
    return inner if split_of_folder(inner.name) == split_of_folder(folder.name) else folder


def _split_of_eval(splits: Sequence[SplitFolder]) -> list[SplitFolder]:  # `eval` is val beside test, otherwise test
    instead = "val" if any(part.split == "test" for part in splits) else "test"
    return [replace(part, split=instead) if part.split == "eval" else part for part in splits]


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
    """The interpretation of a folder's subfolders as classes and splits; `text` describes it in one line."""

    classes: tuple[ClassFolder, ...]
    between: tuple[Path, ...]  # the folders above the class folders; files in them belong to no class
    left_out: tuple[Path, ...]
    text: str


def understand(name: str, top: Folder, layout: LayoutName) -> FolderLayout:
    """Distinguish classes from splits among the folders below `top`, by their names and contents.

    `classes` reads every subfolder of `top` as a class. `splits` reads the folders that are named like splits as
    splits. `auto` decides by names and contents.

    Raises:
        VitkitError: the layout is ambiguous, or there are no splits although `layout` is `splits`.
    """
    if layout == "classes":
        return _as_classes(top, top)
    inner = top = replace(top, folders=tuple(map(_without_filler_folders, top.folders)))
    while not inner.has_images and len(inner.folders) == 1:  # a folder with a single folder: its content counts
        (only,) = inner.folders
        if only.has_images or not only.full or split_of_folder(only.name) is not None:
            break
        inner = only
    result = _as_splits(name, top, inner, layout) or _as_splits_of_classes(top, inner)
    if result is None and layout == "splits":
        raise VitkitError(
            "data.splits-missing",
            f"{name} has no split folders with class folders in them: expected train/, val/ or test/",
        )
    if result is None:
        _refuse_ambiguous(name, top, inner)
    return result or _as_classes(top, inner)


def _without_filler_folders(folder: Folder) -> Folder:
    """Take the images in `n01/images` for images of `n01`, in folders that contain nothing but such a folder."""
    if not folder.has_images and len(folder.folders) == 1:
        (only,) = folder.folders
        if only.has_images and not only.folders and only.name.lower() in _FILLERS:
            return replace(folder, has_images=True, folders=())
    return replace(folder, folders=tuple(map(_without_filler_folders, folder.folders)))


# --- As classes --------------------------------------------------------------------------------------


def _as_classes(top: Folder, folder: Folder) -> FolderLayout:
    where = "" if folder is top else f", in {below(top, folder)}"
    return FolderLayout(
        classes=tuple(ClassFolder(child.path, child.name) for child in folder.folders),
        between=between(top, folder),
        left_out=(),
        text=f"folders read as classes: {len(folder.full)}{where}",
    )


def _refuse_ambiguous(name: str, top: Folder, folder: Folder) -> None:
    """Raise VitkitError if folders that would be read as classes may be something else, such as splits."""
    for words, splits in grouped(folder).items():
        if len(splits) > 1:
            named = " and ".join(below(top, item.outer) for item in splits)
            held = "" if any(item.has_classes for item in splits) else ", with images but no class folders in them"
            like = "look like splits" if not words else "look like splits of one class"
            raise VitkitError(
                "data.layout-ambiguous",
                f"{name}: {named} {like}{held}; put class folders into each of train/, val/ and test/, "
                "or use --layout classes if these folders are classes",
            )
    if alike := _with_same_subfolders(folder):
        folders, names = alike
        raise VitkitError(
            "data.layout-ambiguous",
            f"{name}: it is not clear what the classes are, as {listed([below(top, item) for item in folders])} have "
            f"folders of the same names ({listed(names)}): if those names are the classes, call the outer folders "
            "train, val and test; if the outer folders are the classes, use --layout classes",
        )
    for item in inside(folder):
        parts = next((each for each in grouped(item).values() if is_pair(each)), None)
        if parts is not None:
            named = " and ".join(f"{part.outer.name}/" for part in parts)
            raise VitkitError(
                "data.layout-ambiguous",
                f"{name}: {below(top, item)} contains {named}, which look like splits: pass the folder {item.path} "
                f"itself, or use --layout classes to treat the folders above it as classes",
            )


def _with_same_subfolders(folder: Folder) -> tuple[list[Folder], list[str]] | None:
    """Find folders whose subfolders mostly have the same names. Return them and these names; None if there are none.

    Such folders are probably splits, folds or sites rather than classes.
    """
    outer = [child for child in folder.full if child.is_made_of_folders]
    direct = [{inner.name.casefold() for inner in child.full} for child in outer]
    leaves = [{inner.name.casefold() for inner in inside(child) if inner.has_images} for child in outer]
    for names in (direct, leaves):
        count = Counter(each for child in names for each in child)
        shared = {each for each, times in count.items() if times > 1}
        if shared and 2 * len(shared) >= len(count):
            return [child for child, has in zip(outer, names, strict=True) if has & shared], sorted(shared)
    return None


# --- As splits ---------------------------------------------------------------------------------------


def _as_splits(name: str, top: Folder, folder: Folder, requested: LayoutName) -> FolderLayout | None:
    """Return the layout `split/class/image`; None if the folders do not have it."""
    groups = {words: [item for item in splits if item.has_classes] for words, splits in grouped(folder).items()}
    groups = {words: splits for words, splits in groups.items() if splits}
    if not groups:
        return None
    chosen = [splits for splits in groups.values() if is_pair(splits)] or list(groups.values())
    if len(chosen) > 1 or sum(item.split == "train" for splits in groups.values() for item in splits) > 1:
        named = listed([below(top, item.outer) for splits in groups.values() for item in splits])
        raise VitkitError(
            "data.layout-ambiguous",
            f"{name}: {named} could each be a split; keep at most one each of train/, val/ and test/, or use "
            "--layout classes if these folders are classes",
        )
    splits = _split_of_eval(chosen[0])
    taken = {item.outer.path for item in splits}
    others = [item for item in folder.full if item.path not in taken]
    if len(splits) == 1 and others and requested == "auto" and _is_class(name, top, folder, splits[0], others):
        return None
    # If the only folders of all splits have the same name, as in train/images and test/images, their content counts.
    while all(item.inner.is_made_of_folders and len(item.inner.folders) == 1 for item in splits):
        within = [item.inner.folders[0] for item in splits]
        if len({item.name.casefold() for item in within}) > 1 or not all(item.is_made_of_folders for item in within):
            break
        splits = [replace(item, inner=inner) for item, inner in zip(splits, within, strict=True)]
    splits.sort(key=lambda item: _ORDER.index(item.split))
    _check_splits(name, top, splits, requested)
    named = ", ".join(f"{item.split} in {below(top, item.inner)}" for item in splits)
    rest = f"; left out: {listed([below(top, item) for item in others])}" if others else ""
    steps = [path for item in splits for path in between(item.outer, item.inner)]
    return FolderLayout(
        classes=tuple(
            ClassFolder(item.path, item.name, split.split)
            for split in sorted(splits, key=lambda each: each.outer.path)
            for item in split.inner.folders
        ),
        between=(*between(top, folder), *steps),
        left_out=tuple(item.path for item in folder.folders if item.path not in taken),
        text=f"folders read as splits: {named}{rest}",
    )


def _is_class(name: str, top: Folder, folder: Folder, split_folder: SplitFolder, others: Sequence[Folder]) -> bool:
    """Return whether `split_folder`, which is named like a split, is a class beside the folders `others`."""
    if split_folder.outer.has_images:
        return True
    unlabelled = [split_of_folder(child.name) is not None and not undouble(child).full for child in others]
    if split_folder.split == "train" and all(unlabelled):  # unlabelled test images, as in competitions
        return False
    if len(others) > 1 and all(child.is_made_of_folders for child in others) and not _with_same_subfolders(folder):
        return True
    beside = listed([below(top, child) for child in others])
    raise VitkitError(
        "data.layout-ambiguous",
        f"{name}: {below(top, split_folder.outer)} may be a split or a class: there is no other split with class "
        f"folders beside it, only {beside}; {_OVERRIDE}",
    )


def _check_splits(name: str, top: Folder, splits: Sequence[SplitFolder], requested: LayoutName) -> None:
    for one, other in pairwise(splits):
        if one.split == other.split:
            named = f"{below(top, one.outer)} and {below(top, other.outer)}"
            raise VitkitError(
                "data.splits-twice", f"{name}: {named} are both the {one.split} split; merge them, or move one away"
            )
    if requested == "splits":
        return
    for split in splits:
        _refuse_ambiguous(name, top, split.inner)
    first, *rest = splits
    meant = {item.name: split_of_folder(item.name) for split in splits for item in split.inner.full}
    like_splits = [item for item in meant if meant[item] is not None]
    if len({meant[item] for item in like_splits}) > 1:
        raise VitkitError(
            "data.layout-ambiguous",
            f"{name}: {listed(sorted(like_splits))} lie inside splits, but look like splits themselves; {_OVERRIDE}",
        )
    known = {item.name for item in first.inner.full}
    by_case = {_alike(item): item for item in known}
    for split in rest:
        theirs = {item.name for item in split.inner.full}
        for new in sorted(theirs - known):
            if _alike(new) in by_case:
                old = by_case[_alike(new)]
                pair = [f"{below(top, first.inner)}{old}", f"{below(top, split.inner)}{new}"]
                if old.casefold() != new.casefold():  # they may look the same
                    pair = list(map(ascii, pair))
                raise VitkitError(
                    "data.classes-alike",
                    f"{name}: {pair[0]} and {pair[1]} differ only in spelling, but would be two classes; rename one",
                )
        if not known & theirs:
            raise VitkitError(
                "data.layout-ambiguous",
                f"{name}: no folder of {below(top, split.inner)} ({listed(sorted(theirs))}) is a class of "
                f"{below(top, first.inner)} ({listed(sorted(known))}); {_OVERRIDE}",
            )


def _alike(name: str) -> str:
    """Return a form that is equal for names that differ only in case, or look the same but are encoded differently."""
    return unicodedata.normalize("NFKC", look(name)).casefold().strip()


def _as_splits_of_classes(top: Folder, folder: Folder) -> FolderLayout | None:
    """Return the layout `class/split/image`; None if the folders do not have it."""
    parts: list[ClassFolder] = []
    for child in folder.full:
        groups = list(grouped(child).values())
        splits = _split_of_eval(groups[0]) if len(groups) == 1 else []
        if child.has_images or len(splits) < len(child.full) or not all(split.inner.has_images for split in splits):
            return None
        parts += [ClassFolder(split.outer.path, child.name, split.split) for split in splits]
    if len(folder.full) < 2 or len({(part.name, part.split) for part in parts}) < len(parts):
        return None
    present = [split for split in _ORDER if any(part.split == split for part in parts)]
    return FolderLayout(
        classes=(*parts, *(ClassFolder(child.path, child.name) for child in folder.folders if not child.holds_images)),
        between=(*between(top, folder), *(child.path for child in folder.full)),
        left_out=(),
        text=f"folders read as classes with splits in them: {len(folder.full)} with {', '.join(present)}",
    )


# --- The images ----------------------------------------------------------------------------------------------------


def table_of_layout(
    name: str,
    root: Path,
    layout: FolderLayout,
    overlooked: Overlooked,
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
        where = folder.path.relative_to(root).as_posix()
        rows += [(f"{where}/{file}", folder.name, folder.split) for file in images_below(folder.path)]
    for children in map(entries, layout.between):
        ignored["outside the class folders"] += sum(is_file for _, is_file in children)
        ignored.update(f"folder {child}" for child, is_file in children if not is_file and is_passed_over(child))
    ignored.update(f"folder {folder.name} beside the splits" for folder in layout.left_out)
    if not rows:
        loose = sum(is_file and why_ignored(child) is None for child, is_file in entries(root))
        hint = f" ({loose} images lie in the folder itself)" if loose else ""
        more = "".join(f"; {line}" for line in overlooked.lines(root)) or hint
        raise VitkitError(
            "data.images-missing", f"{name} has no images: expected one sub-folder per class with images in it{more}"
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
