"""List the folders that the page can open, and receive uploaded photographs.

The page never names a path. It refers to folders and archives of photographs by a short identifier. It can open the
folders and archives below the folder in which the studio was started, the uploads, and the photographs of the studio.

Photographs that are dropped on the page, or sent from another device, are uploads. They are written to a new folder in
`uploads`, next to the folder of runs. Existing files are never overwritten.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from vitkit.data import STORAGES, SUFFIXES, bare, is_passed_over
from vitkit.errors import VitkitError
from vitkit.system import RECIPE

UPLOADS = "uploads"  # a folder next to the folder of runs
_DEEPEST = 3  # levels of folders below the start that are offered
_SEARCHED = 5_000  # maximum number of folders that are searched
_OFFERED = 200
_MOST = 2**31  # bytes of an uploaded file
_LONGEST = 100  # characters of the name of an uploaded file
_MOST_IN_NAME = 240  # bytes of the name: file systems allow 255, and the name of an unfinished file is longer
_MOST_FOLDERS = 2  # folders in front of the name of an uploaded file
_RESERVED = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]", re.IGNORECASE)  # devices of Windows, with any suffix


@dataclass(frozen=True)
class PhotoFolder:
    """A folder or an archive of photographs that users can choose on the page."""

    path: Path
    title: str  # relative to the folder in which the studio was started
    images: int | None  # in the folder and its subfolders; None for an archive, which is not opened to count them

    @property
    def identifier(self) -> str:
        """A short identifier for requests, which does not reveal the path."""
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for the page, as plain JSON types."""
        return {"id": self.identifier, "title": self.title, "images": self.images}


def folders(start: Path, *others: Path) -> list[PhotoFolder]:
    """Return the folders and archives that contain photographs, in and below `start` and `others`, sorted by title.

    Folders of `others` that do not exist are ignored. Hidden folders, run folders and links are not searched.
    """
    offered = {folder.path: folder for other in others if other.exists() for folder in _below(other, other.parent)}
    offered |= {folder.path: folder for folder in _below(start, start)}
    return sorted(offered.values(), key=lambda folder: folder.title)[:_OFFERED]


def _below(top: Path, named_from: Path) -> Iterator[PhotoFolder]:
    counts: dict[Path, int] = {}
    archives: list[Path] = []
    searched = itertools.count()
    for place, names, files in os.walk(top):
        folder = Path(place)
        if next(searched) > _SEARCHED or RECIPE in files:
            names.clear()
            continue
        names[:] = sorted(name for name in names if not is_passed_over(name))
        images = sum(os.path.splitext(name)[1].lower() in SUFFIXES for name in files)  # noqa: PTH122  # as in walk
        for above in (folder, *folder.parents) if images else ():
            counts[above] = counts.get(above, 0) + images
            if above == top:
                break
        archives += [folder / name for name in files if Path(name).suffix.lower() in STORAGES]
    for folder, images in counts.items():
        if len(folder.relative_to(top).parts) <= _DEEPEST:
            yield PhotoFolder(folder, _title(folder, named_from), images)
    for archive in archives:
        if len(archive.relative_to(top).parts) <= _DEEPEST:
            yield PhotoFolder(archive, _title(archive, named_from), None)


def _title(path: Path, start: Path) -> str:
    return path.name if path == start else path.relative_to(start).as_posix()


# --- Uploads --------------------------------------------------------------------------------------------------


def new_folder(runs: Path, name: str, photographs: Path | None = None) -> Path:
    """Create an empty folder for uploads in `uploads`, next to the folder of runs.

    A number is appended to the name to make it unique. The folder must not lie in `photographs`, the folder that the
    studio shows, if any.
    """
    uploads = runs.parent / UPLOADS
    if photographs is not None and uploads.resolve().is_relative_to(photographs):
        reason = f"{uploads} lies among the photographs, where nothing is written: start the studio in another folder"
        raise VitkitError("webapp.folder-inside-photographs", reason)
    uploads.mkdir(parents=True, exist_ok=True)
    base = _part(name) or "photographs"
    for number in itertools.count(1):
        folder = uploads / f"{base}-{number}"
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("numbers have no end")


def sent_folders(runs: Path) -> list[PhotoFolder]:
    """Return the folders with uploads, newest first.

    Hidden folders are left out: they are unfinished folders that the module `predict` is still writing.
    """
    uploads = runs.parent / UPLOADS
    every = uploads.iterdir() if uploads.is_dir() else ()
    places = [place for place in every if place.is_dir() and not place.name.startswith(".")]
    newest = sorted(places, key=lambda place: place.stat().st_mtime, reverse=True)
    return [
        PhotoFolder(place, place.name, sum(_by_class(place).values())) for place in newest if not place.is_symlink()
    ]


def _by_class(folder: Path) -> dict[str, int]:
    """Count the pictures in each subfolder, by its name, and those directly in the folder, under the key ""."""
    counts: dict[str, int] = {}
    for place in (folder, *sorted(inner for inner in folder.iterdir() if inner.is_dir() and not inner.is_symlink())):
        pictures = sum(path.suffix.lower() in SUFFIXES for path in place.iterdir())
        counts["" if place == folder else place.name] = pictures
    return counts


def target_in(folder: Path, name: str, suffixes: Collection[str] = SUFFIXES | STORAGES.keys()) -> Path:
    """Return the path at which an uploaded file is stored. The name of the file may contain folders."""
    parts = [part for part in PurePosixPath(name.replace("\\", "/")).parts if part not in ("/", ".")]
    kept = [_part(part) for part in parts]
    if not parts or ".." in parts or not all(kept):
        reason = f"{name!r} is not a valid name for an uploaded file: rename the file"
        raise VitkitError("webapp.upload-invalid", reason)
    if any(map(is_passed_over, parts[:-1])) or parts[-1].startswith("._"):
        reason = f"{name} was written by a system or file server: it is left out"
        raise VitkitError("webapp.upload-invalid", reason)
    if Path(kept[-1]).suffix.lower() not in suffixes:
        wanted = "a picture or an archive of pictures" if ".png" in suffixes else f"a file with {', '.join(suffixes)}"
        raise VitkitError("webapp.upload-invalid", f"{kept[-1]} is not {wanted}: it is left out")
    *above, name = kept
    if len(above) > _MOST_FOLDERS:  # the outer folders become one, so that paths stay different
        above = [_part("_".join(above[: 1 - _MOST_FOLDERS])), *above[1 - _MOST_FOLDERS :]]
    return folder.joinpath(*above, name)


async def receive(
    target: Path, chunks: AsyncIterator[bytes], offset: int = 0, *, is_last: bool = True, upload: str = ""
) -> int:
    """Write a part of an uploaded file, and return the size of the file so far.

    Parts arrive in order; the file gets its final name when the last one has arrived. The parts of one upload share
    the letters and digits `upload`, so that two files of one name do not mix. Error messages contain no path.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _check_new(target)
        partial = target.with_name(f"{target.name}{f'.{upload}' if upload else ''}.part")
        if (partial.stat().st_size if offset and partial.exists() else 0) != offset:
            reason = f"a part of {target.name} is missing: send the whole file again"
            raise VitkitError("webapp.upload-incomplete", reason)
        size = offset
        try:
            with partial.open("ab" if offset else "wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > _MOST:
                        raise VitkitError("webapp.upload-large", f"{target.name} is larger than {_MOST // 2**30} GiB")
                    file.write(chunk)
            if not size:
                raise VitkitError("webapp.upload-empty", f"{target.name} is empty")
            _check_new(target)  # another upload may have been faster
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        if is_last:
            partial.replace(target)
        return size
    except OSError as error:
        reason = f"cannot write {target.name}: {error.strerror or 'the system refused it'}"
        raise VitkitError("webapp.upload-unwritable", reason) from error


def _check_new(target: Path) -> None:
    if target.exists():
        raise VitkitError("webapp.file-exists", f"{target.name} exists already: it is not overwritten")


def _part(name: str) -> str:
    """Make one part of a path valid on all operating systems; return an empty text if nothing remains.

    Reserved characters and names are replaced, and long names are shortened.
    """
    kept = "".join("_" if character in '/\\:*?"<>|' or not character.isprintable() else character for character in name)
    kept = bare(kept).strip(" .")
    if _RESERVED.fullmatch(kept.partition(".")[0].strip()):
        kept = f"_{kept}"
    stem, suffix = os.path.splitext(kept)  # noqa: PTH122  # a part is no path
    if len(suffix) >= 10:
        stem, suffix = kept, ""
    most = _MOST_IN_NAME - len(suffix.encode())
    if len(stem) + len(suffix) > _LONGEST or len(stem.encode()) > most:  # two long names may differ only in their ends
        end = f"-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"
        stem = stem[: _LONGEST - len(suffix) - len(end)].encode()[: most - len(end)].decode(errors="ignore") + end
    return stem + suffix


Upload = Annotated[str, Query(pattern="^[0-9a-z]{0,8}$")]  # what the parts of one upload have in common


class NewFolder(BaseModel):
    """A request for a new folder for uploads."""

    name: str = Field(max_length=300)


def router(runs: Path, photographs: Path | None = None) -> APIRouter:
    """Return the routes that list folders and receive photographs. `photographs` are those of an open studio."""
    routes = APIRouter(prefix="/api/folders")

    @routes.get("")
    def show_folders() -> dict[str, Any]:
        return {"folders": [folder.to_dict() for folder in offered(runs, photographs)]}

    @routes.post("/new")
    def make(new: NewFolder) -> dict[str, Any]:
        path = new_folder(runs, new.name, photographs)
        return PhotoFolder(path, path.name, 0).to_dict()

    @routes.get("/sent")
    def show_sent() -> dict[str, Any]:
        return {"folders": [{**sent.to_dict(), "classes": _by_class(sent.path)} for sent in sent_folders(runs)]}

    @routes.post("/{identifier}/files")
    async def add(
        identifier: str, name: str, request: Request, offset: int = 0, last: bool = True, upload: Upload = ""
    ) -> dict[str, Any]:
        folder = next((sent.path for sent in sent_folders(runs) if sent.identifier == identifier), None)
        if folder is None:
            reason = "photographs can only be sent to a folder that was made for them"
            raise VitkitError("webapp.folder-unknown", reason)
        target = target_in(folder, name)
        size = await receive(target, request.stream(), offset, is_last=last, upload=upload)
        return {"name": target.name, "bytes": size}

    return routes


def offered(runs: Path, photographs: Path | None = None) -> list[PhotoFolder]:
    """Return the folders and archives that the page offers.

    They lie in the current folder, in the uploads next to the folder of runs, or in `photographs`.
    """
    others = [runs.parent / UPLOADS, *([photographs] if photographs is not None else [])]
    return folders(Path.cwd(), *others)


def chosen(identifier: str, runs: Path, photographs: Path | None = None) -> PhotoFolder:
    """Return an offered folder by its identifier."""
    for folder in offered(runs, photographs):
        if folder.identifier == identifier:
            return folder
    raise VitkitError("webapp.folder-missing", "this folder is no longer there: choose another one")
