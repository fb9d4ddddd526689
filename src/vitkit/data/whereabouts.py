"""The images of an earlier run, wherever they are now: under another root, or under other names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vitkit.data import named
from vitkit.data.named_sets import DATASETS
from vitkit.data.pictures import DIGEST, PictureRecord
from vitkit.data.sources import ImageTable
from vitkit.data.split_file import groups_from_file, split_from_file, split_to_dict
from vitkit.data.walk import SUFFIXES, walk
from vitkit.errors import VitkitError
from vitkit.system.files import from_json, write_json
from vitkit.system.progress import Progress
from vitkit.system.run_files import GROUPS, SPLIT


def images_of_run(split_file: Path, root: Path | None = None, progress: Progress | None = None) -> ImageTable:
    """The split images of a run, with their files where they are now.

    Under a root that is given anew, an image is the file that has its content, whatever it is called there; one that
    is nowhere keeps its path, and is unreadable.

    Args:
        split_file: the run's split.json.
        root: the folder that holds the images now; None: where they were.
        progress: told what is being done.

    Raises:
        VitkitError: the folder is gone, or holds none of the images.
    """
    table = split_from_file(split_file)
    if root is not None:
        return _under(table, root, read_contents(split_file), progress)
    return locate(table, progress)


def locate(table: ImageTable, progress: Progress | None = None) -> ImageTable:
    """The table of an earlier run, with its files where they were; a named data set is made again if need be.

    Raises:
        VitkitError: the folder is gone.
    """
    if table.root.is_dir():
        return table
    if table.name in DATASETS:
        return replace(table, root=named.materialise(table.name, progress=progress))
    raise VitkitError(f"the images of {table.name} are no longer in {table.root}: say where they are: --data-root DIR")


def read_contents(split_file: Path) -> dict[str, str]:
    """The beginning of the SHA-256 of each image of a run by its path, as far as the run knows them."""
    try:
        contents = from_json(split_file.read_text(encoding="utf-8")).get("contents", {})
        for digest in contents.values():
            bytes.fromhex(digest)
    except (AttributeError, TypeError, ValueError) as error:
        raise VitkitError(f"{split_file} is damaged: its contents cannot be read ({error})") from error
    return dict(contents)


def groups_of_run(run: Path, table: ImageTable) -> dict[str, int]:
    """The groups of a run's images (`groups_from_file`), by the paths that they have in a table of `images_of_run`."""
    groups = groups_from_file(run / GROUPS)
    known = zip(split_from_file(run / SPLIT).paths, table.paths, strict=True) if groups else ()
    return {new: groups[old] for old, new in known if old in groups}


def roles_in_run(split_file: Path, record: PictureRecord) -> dict[str, str | None]:
    """What a record says of each image of a run, by path."""
    role_of = record.role_of()
    return {path: role_of.get(bytes.fromhex(digest)) for path, digest in read_contents(split_file).items()}


def move_run(split_file: Path, root: Path, progress: Progress | None = None) -> None:
    """Write down where a run's images are now.

    Raises:
        VitkitError: the folder holds not all of the images.
    """
    before = split_from_file(split_file)
    contents, _ = read_contents(split_file), groups_from_file(split_file.with_name(GROUPS))  # refuse what is damaged
    after = _under(before, root, contents, progress)
    if gone := [path for i, path in enumerate(after.paths) if not after.file(i).is_file()]:
        raise VitkitError(f"{root} lacks {len(gone)} of the run's {len(after)} images (first: {gone[0]})")
    place = dict(zip(before.paths, after.paths, strict=True))
    moved = {place[old]: digest for old, digest in contents.items() if old in place}
    if (groups := split_file.with_name(GROUPS)).is_file():
        stored = from_json(groups.read_text(encoding="utf-8"))
        write_json(groups, [[place.get(path, path) for path in own] for own in stored])
    write_json(split_file, {**split_to_dict(after), "contents": moved})


def _under(table: ImageTable, root: Path, contents: Mapping[str, str], progress: Progress | None) -> ImageTable:
    if not root.is_dir():
        raise VitkitError(f"--data-root {root}: no such folder")
    own = [_digest(root / path) for path in table.paths]
    paths = list(table.paths)
    lost = [i for i, path in enumerate(paths) if own[i] is None or own[i] != contents.get(path, own[i])]
    if lost:
        found = _by_content(root, progress)
        for i in lost:
            paths[i] = found.get(contents.get(paths[i], ""), paths[i])
    if all(own[i] is None and paths[i] == table.paths[i] for i in range(len(paths))):
        raise VitkitError(f"--data-root {root} holds none of the run's {len(table)} images (first: {table.paths[0]})")
    return _without_impostors(replace(table, root=root.resolve(), paths=tuple(paths)), lost, table.paths)


def _without_impostors(table: ImageTable, lost: Sequence[int], before: Sequence[str]) -> ImageTable:
    """An image whose path now holds another picture, and that is found nowhere else, is not there."""
    gone = {i for i in lost if table.paths[i] == before[i] and table.file(i).is_file()}
    paths = (f"{path} (another picture now)" if i in gone else path for i, path in enumerate(table.paths))
    return replace(table, paths=tuple(paths))


def _by_content(root: Path, progress: Progress | None) -> dict[str, str]:
    """The path below the root of each content there."""
    files = [file for file in walk(root) if file.suffix.lower() in SUFFIXES]
    found: dict[str, str] = {}
    for done, file in enumerate(files, start=1):
        digest = _digest(file)
        if digest is not None:
            found.setdefault(digest, file.relative_to(root).as_posix())
        if progress is not None:
            progress("looking for the run's images", done, len(files))
    return found


def _digest(file: Path) -> str | None:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").digest()[:DIGEST].hex()
    except OSError:
        return None
