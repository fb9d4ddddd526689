"""List the folders that the page can open, and receive uploaded photographs.

The page never names a path. It refers to folders and archives of photographs by a short identifier. It can open the
folders and archives below the folder in which the studio was started, the uploads, and the photographs of the studio.

Photographs that are dropped on the page, or sent from another device, are uploads. They are written to a new folder in
`uploads`, next to the folder of runs. Existing files are never overwritten.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from vitkit.data import STORAGES, SUFFIXES, is_passed_over, without_invisible
from vitkit.errors import VitkitError
from vitkit.system import RECIPE, fit_name
from vitkit.webapp.workspace import make_numbered_folder

UPLOADS = "uploads"  # a folder next to the folder of runs
_MAX_DEPTH = 3  # levels of folders below the start that are offered
_MAX_SEARCHED = 5_000  # maximum number of folders that are searched
_MAX_OFFERED = 200
MAX_BYTES = 2**31  # bytes of an uploaded file
_UNFINISHED = ".12345678.part"  # an ending as long as that of a file that is being uploaded
_MAX_FOLDERS = 2  # folders in front of the name of an uploaded file
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


def _photo_folders_below(top: Path, titles_from: Path) -> Iterator[PhotoFolder]:
    """Yield the folders and archives with photographs in and below `top`; titles are relative to `titles_from`.

    Hidden folders, run folders and links are not searched.
    """
    counts: dict[Path, int | None] = {}  # the photographs in each folder and its subfolders; None for an archive
    archives: list[Path] = []
    for searched, (path, names, files) in enumerate(os.walk(top)):
        folder = Path(path)
        if searched > _MAX_SEARCHED or RECIPE in files:
            names.clear()  # so that `os.walk` does not enter the subfolders
            continue
        names[:] = sorted(name for name in names if not is_passed_over(name))
        images = sum(os.path.splitext(name)[1].lower() in SUFFIXES for name in files)  # noqa: PTH122  # as in walk
        if images:
            for above in (folder, *folder.parents):
                counts[above] = (counts.get(above) or 0) + images
                if above == top:
                    break
        archives += [folder / name for name in files if Path(name).suffix.lower() in STORAGES]
    for path, count in (counts | dict.fromkeys(archives)).items():
        if len(path.relative_to(top).parts) <= _MAX_DEPTH:
            title = path.name if path == titles_from else path.relative_to(titles_from).as_posix()
            yield PhotoFolder(path, title, count)


# --- Uploads --------------------------------------------------------------------------------------------------


def upload_folders(runs: Path) -> list[PhotoFolder]:
    """Return the folders with uploads, newest first."""
    uploads = runs.parent / UPLOADS
    paths = uploads.iterdir() if uploads.is_dir() else ()
    found = [path for path in paths if path.is_dir() and not path.is_symlink()]
    newest_first = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    return [PhotoFolder(path, path.name, sum(_count_by_class(path).values())) for path in newest_first]


def _count_by_class(folder: Path) -> dict[str, int]:
    """Count the pictures in each subfolder, by its name, and those directly in the folder, under the key ""."""
    counts: dict[str, int] = {}
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    for place in (folder, *subfolders):
        pictures = sum(path.suffix.lower() in SUFFIXES for path in place.iterdir())
        counts["" if place == folder else place.name] = pictures
    return counts


def upload_path(folder: Path, name: str) -> Path:
    """Return the path at which an uploaded file is stored. The name of the file may contain folders."""
    parts = [part for part in PurePosixPath(name.replace("\\", "/")).parts if part not in ("/", ".")]
    valid = [_valid_name(part) for part in parts]
    if not parts or ".." in parts or not all(valid):
        reason = f"{name!r} is not a valid name for an uploaded file: rename the file"
        raise VitkitError("webapp.upload-invalid", reason)
    if any(map(is_passed_over, parts[:-1])) or parts[-1].startswith("._"):
        reason = f"{name} was written by a system or file server: it is left out"
        raise VitkitError("webapp.upload-invalid", reason)
    *above, name = valid
    if Path(name).suffix.lower() not in SUFFIXES | STORAGES.keys():
        raise VitkitError("webapp.upload-invalid", f"{name} is not a picture or an archive of pictures: it is left out")
    if len(above) > _MAX_FOLDERS:  # the outer folders become one, so that paths stay different
        above = [_valid_name("_".join(above[: 1 - _MAX_FOLDERS])), *above[1 - _MAX_FOLDERS :]]
    return folder.joinpath(*above, name)


async def receive(target: Path, chunks: AsyncIterator[bytes]) -> None:
    """Write an uploaded file, which gets its name when it is complete. Error messages contain no path."""
    size = 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _check_new(target)
        partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")  # two files of one name do not mix
        try:
            with partial.open("wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    file.write(chunk)
            if not size:
                raise VitkitError("webapp.upload-empty", f"{target.name} is empty")
            _check_new(target)  # another upload may have been faster
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        reason = f"cannot write {target.name}: {error.strerror or 'the system refused it'}"
        raise VitkitError("webapp.upload-unwritable", reason) from error


def _check_new(target: Path) -> None:
    if target.exists():
        raise VitkitError("webapp.file-exists", f"{target.name} exists already: it is not overwritten")


def _valid_name(name: str) -> str:
    """Make one part of a path valid on all operating systems; return an empty text if nothing remains.

    Reserved characters and names are replaced, and long names are shortened.
    """
    valid = "".join("_" if char in '/\\:*?"<>|' or not char.isprintable() else char for char in name)
    valid = without_invisible(valid).strip(" .")
    if _RESERVED.fullmatch(valid.partition(".")[0].strip()):
        valid = f"_{valid}"
    stem, suffix = os.path.splitext(valid)  # noqa: PTH122  # a part is no path
    if len(suffix) >= 10:  # this is no file type
        stem, suffix = valid, ""
    return fit_name(stem, suffix + _UNFINISHED).removesuffix(_UNFINISHED)


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
        uploads = runs.parent / UPLOADS
        if photographs is not None and uploads.resolve().is_relative_to(photographs):
            advice = "start the studio in another folder"
            reason = f"{uploads} lies among the photographs, where nothing is written: {advice}"
            raise VitkitError("webapp.folder-inside-photographs", reason)
        path = make_numbered_folder(uploads, _valid_name(new.name) or "photographs")
        return PhotoFolder(path, path.name, 0).to_dict()

    @routes.get("/sent")
    def show_sent() -> dict[str, Any]:
        return {"folders": [{**sent.to_dict(), "classes": _count_by_class(sent.path)} for sent in upload_folders(runs)]}

    @routes.post("/{identifier}/files")
    async def add(identifier: str, name: str, request: Request) -> dict[str, Any]:
        folder = next((sent.path for sent in upload_folders(runs) if sent.identifier == identifier), None)
        if folder is None:
            reason = "photographs can only be sent to a folder that was made for them"
            raise VitkitError("webapp.folder-unknown", reason)
        target = upload_path(folder, name)
        await receive(target, request.stream())
        return {"name": target.name}

    return routes


def offered(runs: Path, photographs: Path | None = None) -> list[PhotoFolder]:
    """Return the folders and archives with photographs that the page offers, sorted by title.

    They lie in the current folder, in the uploads next to the folder of runs, or in `photographs`.
    """
    found: dict[Path, PhotoFolder] = {}
    for top in (runs.parent / UPLOADS, photographs):
        if top is not None and top.exists():
            found |= {folder.path: folder for folder in _photo_folders_below(top, top.parent)}
    found |= {folder.path: folder for folder in _photo_folders_below(Path.cwd(), Path.cwd())}
    return sorted(found.values(), key=lambda folder: folder.title)[:_MAX_OFFERED]


def find_folder(identifier: str, runs: Path, photographs: Path | None = None) -> PhotoFolder:
    """Return the offered folder with this identifier; raise VitkitError if there is none."""
    for folder in offered(runs, photographs):
        if folder.identifier == identifier:
            return folder
    raise VitkitError("webapp.folder-missing", "this folder is no longer there: choose another one")
