"""Read and write two files of a run: the splits of its images (split.json) and their groups (groups.json).

The module also locates the images of an earlier run after they have been moved or renamed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from vitkit.data import named
from vitkit.data.file_facts import FactDatabase, stamp_of
from vitkit.data.file_names import SUFFIXES
from vitkit.data.named import DATASETS
from vitkit.data.seen import DIGEST
from vitkit.data.sources import storage_at
from vitkit.data.splits import SPLITS
from vitkit.data.storage import Place, Storage, UnreadableImageError, image_exists, open_place, walk
from vitkit.data.table import SINGLE_LABEL, ImageTable
from vitkit.errors import VitkitError
from vitkit.system.files import address_of, from_json, path_or_address, read_text, write_json
from vitkit.system.progress import progress
from vitkit.system.run_files import GROUPS, SPLIT
from vitkit.text.cells import JOINT, plural


def split_to_dict(table: ImageTable) -> dict[str, Any]:
    """Return the content of split.json as plain JSON types: root, classes, the paths by split and class, a hash.

    In a multi-label table, the paths are listed by set of classes, whose names are joined by `;`.
    """
    keys = list(table.classes)
    if table.sets:
        keys = [JOINT.join(table.classes[number] for number in label_set) for label_set in table.sets]
    present = [name for name in SPLITS if name in table.splits]
    splits: dict[str, dict[str, list[str]]] = {name: {key: [] for key in keys} for name in present}
    for path, label, split in zip(table.paths, table.labels, table.splits, strict=True):
        if split is not None:
            splits[split][keys[label]].append(path)
    content: dict[str, Any] = {"classes": list(table.classes)}
    if table.task is not SINGLE_LABEL:
        content["task"] = table.task.name
    content["splits"] = splits
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return {"data": table.name, "root": path_or_address(table.root), "hash": digest, **content}


def table_from_split(stored: Mapping[str, Any], storage: Storage | None) -> ImageTable:
    """Return the table that the content of a split.json describes. Its images are listed by split and class."""
    keys = stored["classes"]
    sets: tuple[tuple[int, ...], ...] = ()
    if stored.get("task") == "multi":  # each key joins the names of a set of classes
        number = {name: i for i, name in enumerate(stored["classes"])}
        keys = list(dict.fromkeys(chain.from_iterable(stored["splits"].values())))
        sets = tuple(tuple(number[name] for name in key.split(JOINT) if name) for key in keys)
    paths: list[str] = []
    labels: list[int] = []
    splits: list[str] = []
    for split, paths_by_key in stored["splits"].items():
        for label, key in enumerate(keys):
            paths += paths_by_key[key]
            labels += [label] * len(paths_by_key[key])
            splits += [split] * len(paths_by_key[key])
    return ImageTable(
        name=stored["data"],
        root=Path(stored["root"]),
        classes=tuple(stored["classes"]),
        paths=tuple(paths),
        labels=tuple(labels),
        splits=tuple(splits),
        sets=sets,
        storage=storage,
    )


def split_from_file(path: Path) -> ImageTable:
    """Read a run's split.json as a table, without checking that the images exist.

    Raises:
        VitkitError: the file is missing or damaged.
    """
    try:
        stored = from_json(read_text(path))
        texts = [stored["data"], stored["root"], *stored["classes"]]
        for paths_by_key in stored["splits"].values():
            for paths in paths_by_key.values():
                texts += paths
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a name or a path is not text")
        table = table_from_split(stored, storage_at(Path(stored["root"])))
        if split_to_dict(table)["hash"] != stored["hash"]:
            raise ValueError("its hash does not match its content")
    except FileNotFoundError as error:
        raise VitkitError("data.run-file-missing", f"no such file: {path}") from error
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise VitkitError("data.run-damaged", f"{path} is damaged: {error}; restore it, or train again") from error
    return table


def groups_to_list(table: ImageTable, groups: Sequence[int]) -> list[list[str]]:
    """Return the paths of each group of two or more images, given the number of each image's group, (n,)."""
    members: dict[int, list[str]] = {}
    for path, number in zip(table.paths, groups, strict=True):
        members.setdefault(number, []).append(path)
    return [paths for paths in members.values() if len(paths) > 1]


def groups_from_file(path: Path) -> dict[str, int]:
    """Read the group number of each path from a groups.json; return no paths if the file does not exist.

    Raises:
        VitkitError: the file is damaged.
    """
    try:
        stored = from_json(read_text(path))
        groups = {path: number for number, paths in enumerate(stored) for path in paths}
        if not all(isinstance(path, str) for path in groups):
            raise TypeError("a path is not text")
        return groups
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as error:
        raise VitkitError("data.run-damaged", f"{path} is damaged: {error}; restore it, or train again") from error


_REPLACED = " (another picture now)"  # appended to the path of a file that now contains another picture


@dataclass(frozen=True)
class Changes:
    """The images of a run that have changed since the run started."""

    images: int  # the number of images that were checked
    what: str  # a description of them, such as `test images`
    changed: tuple[str, ...] = ()  # the paths of files that now contain other pictures
    missing: tuple[str, ...] = ()  # the paths of files that no longer exist

    def __bool__(self) -> bool:
        return bool(self.changed or self.missing)

    @property
    def text(self) -> str:
        """Describe the changes, e.g. `1 of the run's 18 test images is no longer what it was`."""
        parts = []
        if self.changed:
            text = plural(len(self.changed), "holds another picture", "hold other pictures")
            parts.append(f"{text} (first: {self.changed[0]})")
        if self.missing:
            parts.append(f"{plural(len(self.missing), 'is', 'are')} gone (first: {self.missing[0]})")
        count = len(self.changed) + len(self.missing)
        are = "is no longer what it was" if count == 1 else "are no longer what they were"
        return f"{count} of the run's {self.images} {self.what} {are}: {', '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the entry `changed` of evaluation.json; empty if nothing has changed."""
        if not self:
            return {}
        count = len(self.changed) + len(self.missing)
        paths = {"changed": list(self.changed), "missing": list(self.missing)}
        return {"changed": {"images": count, **paths, "text": self.text}}

    def refuse(self, remedy: str = "set their new folder with --data-root DIR") -> None:
        """Raise VitkitError if an image has changed or is missing; `remedy` is an alternative to restoring it."""
        if self:
            raise VitkitError("data.images-changed", f"{self.text}; restore the images, or {remedy}")


def check_images(
    table: ImageTable, contents: Mapping[str, str], splits: Sequence[str] | None = None
) -> tuple[ImageTable, Changes]:
    """Check whether the images of a run have changed. Return the table and the changes.

    If a file now contains another picture, `_REPLACED` is appended to its path in the table. No such file exists, so
    the image counts as unreadable.

    Args:
        table: the table of `images_of_run`.
        contents: the digest of each image by its path (`read_contents`). For an image without a digest, only its
            existence is checked.
        splits: the splits to check. Every image is checked if this is None or contains `all`.
    """
    if splits is None or "all" in splits:
        checked = list(range(len(table)))
        what = "images"
    else:
        checked = [i for i, split in enumerate(table.splits) if split in splits]
        what = f"{' and '.join(splits)} images"
    known = [i for i in checked if table.paths[i] in contents]
    digests = _digests([table.file(i) for i in known], "checking whether the images have changed")
    digest_of_image = dict(zip(known, digests, strict=True))
    paths = list(table.paths)
    changed: list[str] = []
    missing: list[str] = []
    for i in checked:
        path = paths[i]
        if path.endswith(_REPLACED):  # `images_of_run` has found it
            changed.append(path.removesuffix(_REPLACED))
        elif i not in digest_of_image:
            if not image_exists(table.file(i)):
                missing.append(path)
        elif digest_of_image[i] is None:
            missing.append(path)
        elif digest_of_image[i] != contents[path]:
            changed.append(path)
            paths[i] += _REPLACED
    return replace(table, paths=tuple(paths)), Changes(len(checked), what, tuple(changed), tuple(missing))


def is_unchanged(file: Place, digest: str | None) -> bool:
    """Return whether a file has the digest that a run recorded; True if it recorded none."""
    return digest is None or digest_of(file) == digest


def refuse_changed_images(split_file: Path, remedy: str) -> None:
    """Raise VitkitError if images of a run have changed. `remedy` is what users can do instead of restoring them."""
    _, changes = check_images(images_of_run(split_file), read_contents(split_file))
    changes.refuse(remedy)


def images_of_run(split_file: Path, root: Path | None = None) -> ImageTable:
    """Read the table of a run's images, with their splits and the current paths of their files.

    If `root` is given, images are recognised by their content, even if their files were renamed. An image that is not
    found keeps its old path. If this file now contains another picture, `_REPLACED` is appended to the path.

    Args:
        split_file: the run's split.json.
        root: the folder or archive that contains the images now; None if they have not been moved.

    Raises:
        VitkitError: the images' folder no longer exists, or `root` contains none of the images.
    """
    table = split_from_file(split_file)
    if root is not None:
        return _moved_to(table, root, read_contents(split_file))
    return locate(table)


def locate(table: ImageTable) -> ImageTable:
    """Check that the folder of a run's table exists, and return the table.

    If the folder of a named data set is missing, the data set is downloaded again.

    Raises:
        VitkitError: the folder no longer exists.
    """
    if table.storage is not None or table.root.is_dir():
        return table
    if table.name in DATASETS:
        return replace(table, root=named.materialise(table.name))
    raise VitkitError(
        "data.images-moved",
        f"the images of {table.name} are no longer in {table.root}: set their folder with --data-root DIR or, for "
        "commands without it, move them back",
    )


def read_contents(split_file: Path) -> dict[str, str]:
    """Return the digests of a run's images by path. An image has no entry if the run did not record its digest."""
    try:
        contents: dict[str, str] = from_json(read_text(split_file)).get("contents", {})
        for digest in contents.values():
            bytes.fromhex(digest)
    except (AttributeError, TypeError, ValueError) as error:
        raise VitkitError(
            "data.run-damaged",
            f"{split_file} is damaged: the hashes of its images cannot be read ({error}); restore it, or train again",
        ) from error
    return contents


def groups_of_run(run: Path, table: ImageTable) -> dict[str, int]:
    """Return the group numbers of a run's images by their current paths, which are those in `table`."""
    groups = groups_from_file(run / GROUPS)
    if not groups:
        return {}
    old_and_new = zip(split_from_file(run / SPLIT).paths, table.paths, strict=True)
    return {new: groups[old] for old, new in old_and_new if old in groups}


def move_run(split_file: Path, root: Path) -> None:
    """Update the image paths in a run's files after the images were moved to the folder or archive `root`.

    Raises:
        VitkitError: some of the images are not in the folder.
    """
    before = split_from_file(split_file)
    contents = read_contents(split_file)
    group_file = split_file.with_name(GROUPS)
    groups_from_file(group_file)  # refuses a damaged file before anything is written
    after = _moved_to(before, root, contents)
    missing = [path for i, path in enumerate(after.paths) if not image_exists(after.file(i))]
    if missing:
        raise VitkitError(
            "data.images-missing", f"{root} lacks {len(missing)} of the run's {len(after)} images (first: {missing[0]})"
        )
    new_path = dict(zip(before.paths, after.paths, strict=True))
    if group_file.is_file():
        groups = from_json(read_text(group_file))
        write_json(group_file, [[new_path.get(path, path) for path in group] for group in groups])
    new_contents = {new_path[old]: digest for old, digest in contents.items() if old in new_path}
    write_json(split_file, {**split_to_dict(after), "contents": new_contents})


def _moved_to(table: ImageTable, root: Path, contents: Mapping[str, str]) -> ImageTable:
    """Return the table with `root` as its folder. Search it for images that have other paths there, by digest."""
    if not root.is_dir() and storage_at(root) is None:
        raise VitkitError("data.folder-missing", f"--data-root {root}: no such folder")
    table = replace(table, root=root if address_of(root) else root.resolve(), storage=storage_at(root))
    digests = [digest_of(table.at(path)) for path in table.paths]
    paths = list(table.paths)
    lost = [i for i, path in enumerate(paths) if digests[i] is None or digests[i] != contents.get(path, digests[i])]
    if lost:
        # Search the folder or storage for images.
        if table.storage is None:
            keys = [file.relative_to(table.root).as_posix() for file in walk(table.root)]
        else:
            keys = sorted(table.storage.keys())
        keys = [key for key in keys if Path(key).suffix.lower() in SUFFIXES]
        key_of: dict[str, str] = {}  # by digest
        for done, key in enumerate(keys, start=1):
            digest = digest_of(table.at(key))
            if digest is not None:
                key_of.setdefault(digest, key)
            progress("looking for the run's images", done, len(keys))

        for i in lost:
            paths[i] = key_of.get(contents.get(paths[i], ""), paths[i])
    if not any(digests) and paths == list(table.paths):
        raise VitkitError(
            "data.images-missing",
            f"--data-root {root} contains none of the run's {len(table)} images (first: {table.paths[0]})",
        )
    for i in lost:  # another picture has taken the place of an image that was not found
        if paths[i] == table.paths[i] and image_exists(table.file(i)):
            paths[i] += _REPLACED
    return replace(table, paths=tuple(paths))


def content_numbers(table: ImageTable, paths: Sequence[str]) -> dict[str, int]:
    """Return a number for each of these images that can be read, by path; it is equal for files of the same content."""
    digests = _digests([table.at(path) for path in paths], "looking for copies")
    number = {digest: i for i, digest in enumerate(dict.fromkeys(digests))}
    return {path: number[digest] for path, digest in zip(paths, digests, strict=True) if digest is not None}


def _digests(files: Sequence[Place], task: str) -> list[str | None]:
    """Return the digest of each file; None if it cannot be read. Unchanged files (`stamp_of`) are not read again."""
    digests: list[str | None] = []
    with FactDatabase() as database:
        stamps = [stamp_of(file) for file in files]
        known = database.find_by_stamps(stamps)
        for done, (file, stamp) in enumerate(zip(files, stamps, strict=True), start=1):
            facts = None if stamp is None else known.get(stamp)
            digests.append(digest_of(file) if facts is None else facts.digest[:DIGEST].hex())
            progress(task, done, len(files))
    return digests


def digest_of(file: Place) -> str | None:
    """Return the first bytes of a file's SHA-256 as hexadecimal text, as runs store it; None if it cannot be read."""
    try:
        with open_place(file) as opened:
            return hashlib.file_digest(opened, "sha256").digest()[:DIGEST].hex()  # type: ignore[arg-type]  # it has readinto
    except (OSError, UnreadableImageError):
        return None
