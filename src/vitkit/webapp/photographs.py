"""The photographs of a workspace, their labels and their thumbnails.

Every edit is written to the label file before the request is answered. Thumbnails are stored in vitkit's cache, and a
photograph that changes gets a new thumbnail.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Request, Response
from PIL import Image

from vitkit.data import (
    EXCLUDED,
    SINGLE_LABEL,
    UNLABELLED,
    CurrentLabels,
    Edit,
    ImageTable,
    LabelFile,
    Place,
    Suspect,
    Task,
    UnreadableImageError,
    has_no_folders,
    image_exists,
    picture_of,
    read_table,
    read_unlabelled,
    renaming,
    version_of,
    without_invisible,
)
from vitkit.errors import VitkitError
from vitkit.inference import cores
from vitkit.system import cache_folder, write_bytes
from vitkit.text import JOINT
from vitkit.webapp.workspace import Workspace

_MAX_NAME = 200  # characters of a class's name
_T = TypeVar("_T")


def stamp_of(file: Place) -> str:
    """Return a text that changes whenever a file changes; empty if the file does not exist."""
    return version_of(file)


def file_cache(read: Callable[[Path], _T], size: int = 4) -> Callable[[Path], _T]:
    """Cache the last `size` results of a function that reads a file, and read it again only when it has changed."""
    read_version = lru_cache(maxsize=size)(lambda file, _: read(file))
    return lambda file: read_version(file, stamp_of(file))


def check_number(number: int, count: int) -> None:
    """Check that a list of `count` photographs has a photograph with this number."""
    if not 0 <= number < count:
        raise VitkitError("webapp.photograph-unknown", "there is no such photograph")


class ChangedError(VitkitError):
    """The list of photographs has changed, so that the numbers in a request may refer to other photographs."""


@dataclass(frozen=True)
class SuspectLabels:
    """The suspected label errors that are shown with the photographs."""

    run: str = ""  # that found them; empty if there is none
    suspects: Mapping[str, Suspect] = field(default_factory=dict)  # by the path of the photograph
    decided: frozenset[str] = frozenset()  # paths whose label was confirmed, changed or excluded since the run


@dataclass(frozen=True)
class State:
    """The photographs and their labels at one moment."""

    version: str  # of the list of photographs; while it stays the same, a number refers to the same photograph
    table: ImageTable
    labels: tuple[str, ...]  # of each photograph: a class, UNLABELLED, or EXCLUDED
    unmatched: tuple[str, ...] = ()  # lines about rows of the label file that match no photograph


class Photographs:
    """The photographs of a workspace. Several threads may use the same instance."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._lock = threading.RLock()
        self._listed: tuple[str, ImageTable] | None = None  # the version of the list, and the list
        self._labels: CurrentLabels | None = None
        self._state: tuple[LabelFile, State] | None = None

    def read(self, *, relist: bool = False) -> State:
        """Return the current photographs and labels; `relist` lists the folder again.

        The label file is always read again if it has changed.
        """
        with self._lock:
            check_folder(self.workspace.photographs)
            if self._listed is None or relist:
                table = photographs_in(self.workspace.photographs)
                digest = hashlib.sha256(os.fsencode(table.root))
                for i, path in enumerate(table.paths):
                    digest.update(os.fsencode(f"\0{path}\0{stamp_of(table.file(i))}"))
                # The version is part of the URL of pictures, so that browsers never show a cached picture of another.
                self._listed = digest.hexdigest()[:16], table
                self._state = None
                self._labels = CurrentLabels(table)
            file = self.workspace.label_file.read()
            if self._state is None or self._state[0] is not file:
                assert self._labels is not None
                self._labels.take(file)
                unmatched = tuple(self._labels.describe_lost(self.workspace.labels.name))
                self._state = file, State(*self._listed, tuple(self._labels.labels), unmatched)
            return self._state[1]

    def file(self, version: str, number: int) -> Place:
        """Return the file of a photograph."""
        listed = self._listed  # without the lock, to avoid waiting
        table = listed[1] if listed and listed[0] == version else self._state_of_version(version, (number,)).table
        check_number(number, len(table))
        return table.file(number)

    def label(
        self,
        version: str,
        numbers: Sequence[int],
        label: str,
        suspected: SuspectLabels | None = None,
        suggested: Collection[int] = (),
        run: str = "",
    ) -> State:
        """Give photographs a class. `EXCLUDED` leaves them out, and `UNLABELLED` removes their class.

        A photograph that already has the class normally gets no row in the label file. But if its label is suspected
        to be wrong, it gets a row, which confirms the label. A label is recorded as proposed by a run if the user
        chooses the class that the run suggested, or excludes a photograph whose label the run suspects. `suggested` are
        the photographs for which `run` suggested this class.
        """
        with self._lock:
            state = self._state_of_version(version, [*numbers, *suggested])
            label = label if label in (EXCLUDED, UNLABELLED) else clean_class_name(label, state.table.task)
            suspected = suspected or SuspectLabels()
            edits = []
            for i in dict.fromkeys(numbers):
                path, before = state.table.paths[i], state.labels[i]
                suspect = suspected.suspects.get(path)
                # Whether the label is suspected to be wrong, and nobody has decided about it yet.
                is_suspect = suspect is not None and suspect.label == before and path not in suspected.decided
                if before == label and not is_suspect:
                    continue
                proposed_by = ""
                if i in suggested:
                    proposed_by = run
                elif is_suspect and label in (suspected.suspects[path].suggested, EXCLUDED):
                    proposed_by = suspected.run
                previous = "" if before == UNLABELLED else before
                edits.append(Edit(path, label, previous, proposed_by=proposed_by))
            check_exist([state.table.at(edit.path) for edit in edits])
            self.workspace.label_file.add(edits)
            return self.read()

    def accept(self, version: str, run: str, groups: Sequence[tuple[str, Sequence[int]]]) -> State:
        """Give photographs without a class the classes that a run suggests, in one step; ignore the others.

        `groups` has each class with the numbers of its photographs.
        """
        with self._lock:
            state = self._state_of_version(version, [i for _, numbers in groups for i in numbers])
            labels: dict[int, str] = {}
            for label, numbers in groups:
                unlabelled = [i for i in numbers if state.labels[i] == UNLABELLED]
                if unlabelled:
                    labels |= dict.fromkeys(unlabelled, clean_class_name(label, state.table.task))
            check_exist([state.table.file(i) for i in labels])
            self.workspace.label_file.add(
                [Edit(state.table.paths[i], label, proposed_by=run) for i, label in labels.items()]
            )
            return self.read()

    def rename(self, old: str, new: str) -> State:
        """Rename a class. If another class already has the new name, merge both classes."""
        with self._lock:
            state = self.read()
            edits = renaming(zip(state.table.paths, state.labels, strict=True), old, clean_class_name(new))
            check_exist([state.table.at(edit.path) for edit in edits])
            self.workspace.label_file.add(edits)
            return self.read()

    def undo(self) -> State:
        """Undo the last step, that is, all labels that were set at the same moment."""
        with self._lock:
            self.workspace.label_file.undo()
            return self.read()

    def classes(self, state: State) -> list[dict[str, Any]]:
        """Return each class with its number of photographs.

        The classes of folders come first, sorted by name, and then those of the label file in the order in which they
        were created, so that a new class leaves the number keys of the others as they are.
        """
        with self._lock:
            assert self._listed is not None and self._state is not None
            table, edits = self._listed[1], self._state[0].edits
            names_in = state.table.task.names_in
            counts = Counter[str]()  # of photographs, by class
            for label, count in Counter(state.labels).items():
                if label not in (EXCLUDED, UNLABELLED):
                    counts.update(dict.fromkeys(names_in(label), count))
            folder_labels = {table.name_of(i) for i in range(len(table))}
            of_folders = {name for label in folder_labels for name in names_in(label)}
            of_rows = [name for edit in edits for name in names_in(edit.label)]
            names = dict.fromkeys([*sorted(of_folders), *of_rows, *sorted(counts)])  # in this order, each once
        return [{"name": name, "count": counts[name]} for name in names if counts[name]]

    def _state_of_version(self, version: str, numbers: Sequence[int]) -> State:
        """Return the current state, after checking that it has this version and photographs with these numbers."""
        state = self.read()
        if version != state.version:
            reason = "the photographs in the folder have changed: load them again"
            raise ChangedError("webapp.photographs-changed", reason)
        for number in numbers:
            check_number(number, len(state.table))
        return state


def check_exist(files: Sequence[Place]) -> None:
    """Check that photographs exist, so that no label is written for a missing one."""
    missing = [file for file in files if not image_exists(file)]
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        reason = f"{missing[0]} is no longer there{more}: nothing was written; search for the photographs again"
        raise VitkitError("webapp.photograph-missing", reason)


def clean_class_name(name: str, task: Task = SINGLE_LABEL) -> str:
    """Return the name of a class in the form in which it is stored, without surrounding white space."""
    name = without_invisible(name).strip()
    if not name or len(name) > _MAX_NAME or any(not character.isprintable() for character in name):
        reason = f"the name of a class must have 1 to {_MAX_NAME} printable characters"
        raise VitkitError("webapp.class-invalid", reason)
    if name.lower() == UNLABELLED:
        reason = f"{name!r} is reserved for photographs without a class: choose another name"
        raise VitkitError("webapp.class-invalid", reason)
    if task.refuses(name):
        reason = f"the name of a class must not contain {JOINT!r}, which separates classes: choose another name"
        raise VitkitError("webapp.class-invalid", reason)
    return name


def photographs_in(folder: Path) -> ImageTable:
    """Read the photographs of a folder in the same way as a training with a label file does (`data.corrections`)."""
    check_folder(folder)
    return read_unlabelled(folder) if has_no_folders(folder) else read_table(folder)


def check_folder(folder: Path) -> None:
    """Check that the photographs are still where the studio was opened."""
    if not folder.exists():
        reason = f"{folder} is no longer there: restore it, or open other photographs"
        raise VitkitError("webapp.folder-missing", reason)


SIDE = 256  # pixels of the longer side of a thumbnail
_LARGE_SIDE = 1600  # pixels of the longer side of a picture that is shown alone


class Thumbnails:
    """Make thumbnails in one thread per core. `data.decode` limits the memory that all threads use together."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(cores(), thread_name_prefix="thumbnail")
        self._slots = asyncio.Semaphore(2 * cores())

    async def respond(self, file: Place, request: Request, *, large: bool) -> Response:
        """Answer a request with the thumbnail of a file as JPEG, or with the picture at screen size, without a cache.

        If the photograph cannot be read, the answer is a placeholder, without an error status, so that the browser's
        console stays clean.
        """
        make = partial(_shrink, file, _LARGE_SIDE) if large else partial(thumbnail, file)
        try:
            async with self._slots:
                if await request.is_disconnected():
                    return Response(status_code=204, headers={"Cache-Control": "no-store"})
                jpeg = await asyncio.get_running_loop().run_in_executor(self._pool, make)
        except UnreadableImageError:
            return Response(_PLACEHOLDER, media_type="image/svg+xml", headers={"Cache-Control": "no-cache"})
        # The address changes with the list of photographs, the report, or the predictions.
        return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=300"})


_PLACEHOLDER = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64"><rect width="64" height="64" fill="#9994"/>'
    '<path d="M20 20l24 24M44 20L20 44" stroke="#c44" stroke-width="4"/></svg>'
)


def thumbnail(file: Place) -> bytes:
    """Return the thumbnail of a file from the cache. If it is not cached, make it and try to cache it."""
    cached = None
    if stamp := stamp_of(file):
        name = hashlib.sha256(os.fsencode(f"{file}\0{stamp}")).hexdigest()[:40]  # changes whenever the file does
        cached = cache_folder() / "thumbnails-1" / name[:2] / f"{name}.jpg"
        with contextlib.suppress(OSError):
            return cached.read_bytes()
    jpeg = _shrink(file, SIDE)
    if cached is not None:
        with contextlib.suppress(OSError):
            cached.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(cached, jpeg)
    return jpeg


def _shrink(file: Place, side: int) -> bytes:
    try:
        with picture_of(file, side // 2) as picture:
            image = picture.image
            image.thumbnail((side, side), Image.Resampling.BICUBIC, reducing_gap=2.0)
            data = io.BytesIO()
            image.save(data, "JPEG", quality=82)
            return data.getvalue()
    except OSError as error:
        raise UnreadableImageError("webapp.photograph-unreadable", str(error)) from error
