"""The photographs of a workspace and what is said of them. Every edit is in the label file before it is answered."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.data.corrected import labels_after
from vitkit.data.label_file import EXCLUDED, Edit, LabelFile, add_edits, labels_so_far, renaming, undo_edits
from vitkit.data.pictures import UNLABELLED
from vitkit.data.sources import ImageTable, read_table
from vitkit.data.unlabelled import has_no_folders, read_unlabelled
from vitkit.errors import VitkitError
from vitkit.system.files import from_json, write_json
from vitkit.text.cells import JOINT
from vitkit.text.names import bare
from vitkit.webapp.stamps import stamp_of
from vitkit.webapp.workspace import Workspace

_LONGEST = 200  # characters of a class's name


@dataclass(frozen=True)
class State:
    """The photographs at one moment.

    Attributes:
        version: of the list; numbers mean the same photograph as long as it is the same.
        table: what there is on disk.
        labels: of each: a class, `UNLABELLED`, or `EXCLUDED`.
        steps: how many edits the label file has, of which the last can be undone.
    """

    version: str
    table: ImageTable
    labels: tuple[str, ...]
    steps: int


class Photographs:
    """The photographs of a workspace. Threads may share it."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._lock = threading.RLock()
        self._table: ImageTable | None = None
        self._version = ""
        self._seen: tuple[Any, LabelFile, tuple[str, ...]] | None = None
        self._undone: list[tuple[Edit, ...]] = []

    def begin(self) -> None:
        """Read the list before somebody asks; what is wrong with it is told who asks."""

        def read() -> None:
            with contextlib.suppress(VitkitError, OSError):
                self.read()

        threading.Thread(target=read, daemon=True).start()

    def read(self, *, anew: bool = False) -> State:
        """As they are now: the list is read once, and again where `anew`; the labels whenever their file changed.

        Raises:
            VitkitError: there are no photographs, or the label file is damaged.
        """
        with self._lock:
            if self._table is None or anew:
                self._table = read_photographs(self.workspace)
                self._version, self._seen = _version_of(self._table), None
            labels, file = self._labels(self._table)
            return State(self._version, self._table, labels, len(file.edits))

    def file(self, version: str, number: int) -> Path:
        """The file of a photograph of the list.

        Raises:
            VitkitError: the list has changed meanwhile, or is not as long.
        """
        table = self._table if version == self._version else None  # without the lock: nothing is waited for
        if table is None:
            table = self._current(version, (number,)).table
        if not 0 <= number < len(table):
            raise VitkitError("there is no such photograph")
        return table.file(number)

    def label(self, version: str, numbers: Sequence[int], label: str) -> State:
        """Give photographs a class; `EXCLUDED` leaves them out, `UNLABELLED` takes their class away.

        Raises:
            VitkitError: the list has changed meanwhile, or no class can be called so.
        """
        with self._lock:
            state = self._current(version, numbers)
            label = label if label in (EXCLUDED, UNLABELLED) else checked_name(label, is_multi=state.table.is_multi)
            edits = [
                Edit(state.table.paths[i], label, "" if state.labels[i] == UNLABELLED else state.labels[i])
                for i in dict.fromkeys(numbers)
                if state.labels[i] != label
            ]
            return self._add(edits)

    def rename(self, old: str, new: str) -> State:
        """Call a class otherwise; where there is one of that name already, both become one."""
        with self._lock:
            state = self.read()
            new = checked_name(new, is_multi=False)
            empty = [new if own == old else own for own in self._empty()]
            if old in set(state.labels):
                state = self._add(renaming(zip(state.table.paths, state.labels, strict=True), old, new))
            elif old not in self._empty():
                raise VitkitError(f"there is no class {old!r}")
            self._keep_empty(empty)
            return state

    def add_class(self, name: str) -> None:
        """A class that no photograph has yet."""
        with self._lock:
            name = checked_name(name, is_multi=False)
            if name in {own["name"] for own in self.classes(self.read())}:
                raise VitkitError(f"there is a class {name!r} already")
            self._keep_empty([*self._empty(), name])

    def remove_class(self, name: str) -> None:
        """Forget a class that no photograph has."""
        with self._lock:
            if name in self.read().labels:
                raise VitkitError(f"photographs have the class {name!r}: give them another, or merge the class")
            self._keep_empty([own for own in self._empty() if own != name])

    def undo(self) -> State:
        """Take the last step back: all that was said at one moment."""
        with self._lock:
            taken = undo_edits(self.workspace.labels)
            if taken:
                self._undone.append(taken)
            return self.read()

    def redo(self) -> State:
        """Take back what was undone last in this session."""
        with self._lock:
            if self._undone:
                add_edits(self.workspace.labels, self._undone.pop())
            return self.read()

    @property
    def can_redo(self) -> bool:
        """Whether something was undone since the last edit."""
        return bool(self._undone)

    def classes(self, state: State) -> list[dict[str, Any]]:
        """Each class and how many photographs have it, those without one too; sorted by name."""
        counts = Counter(
            name
            for label in state.labels
            if label not in (EXCLUDED, UNLABELLED)
            for name in (label.split(JOINT) if state.table.is_multi else (label,))
            if name
        )
        names = sorted({*counts, *self._empty()})
        return [{"name": name, "count": counts[name]} for name in names]

    def _add(self, edits: Sequence[Edit]) -> State:
        if edits:
            self.workspace.labels.parent.mkdir(parents=True, exist_ok=True)
            add_edits(self.workspace.labels, edits)
            self._undone.clear()
        return self.read()

    def _current(self, version: str, numbers: Sequence[int]) -> State:
        state = self.read()
        if version != state.version or not all(0 <= i < len(state.table) for i in numbers):
            raise VitkitError("the photographs in the folder have changed: look at them anew")
        return state

    def _labels(self, table: ImageTable) -> tuple[tuple[str, ...], LabelFile]:
        try:
            seen = self.workspace.labels.stat()
            stamp: Any = (seen.st_mtime_ns, seen.st_size, seen.st_ino)
        except FileNotFoundError:
            stamp = None
        if self._seen is None or self._seen[0] != stamp:
            see_label_file(self.workspace)
            file = labels_so_far(self.workspace.labels)
            self._seen = (stamp, file, tuple(labels_after(table, file)))
        return self._seen[2], self._seen[1]

    # --- Classes that no photograph has -------------------------------------------------------------------

    def _empty(self) -> list[str]:
        try:
            stored = from_json((self.workspace.own / _CLASSES).read_text(encoding="utf-8"))
            own = stored.get(str(self.workspace.labels), [])
            return [name for name in own if isinstance(name, str)]
        except (OSError, ValueError, AttributeError):
            return []  # they are a convenience, and made again in a second

    def _keep_empty(self, names: Sequence[str]) -> None:
        if list(names) == self._empty():
            return
        file = self.workspace.own / _CLASSES
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            stored = dict(from_json(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            stored = {}
        write_json(file, {**stored, str(self.workspace.labels): sorted(set(names))})


_CLASSES, _SEEN = "classes.json", "label-files.json"


def see_label_file(workspace: Workspace) -> None:
    """Keep in mind that there is a label file; without one that there was, photographs must not pass for unlabelled.

    Raises:
        VitkitError: it is gone.
    """
    file, own = workspace.own / _SEEN, str(workspace.labels)
    try:
        seen = [name for name in from_json(file.read_text(encoding="utf-8")) if isinstance(name, str)]
    except (OSError, ValueError, TypeError):
        seen = []
    if workspace.labels.exists():
        if own not in seen:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, [*seen, own])
    elif own in seen:
        raise VitkitError(f"the label file {own} is gone: bring it back, or delete {file} to begin without any label")


def checked_name(name: str, *, is_multi: bool) -> str:
    """A class's name as it can be kept.

    Raises:
        VitkitError: it cannot.
    """
    name = bare(name).strip()
    if not name or len(name) > _LONGEST or any(not own.isprintable() for own in name):
        raise VitkitError(f"a class needs a name of 1 to {_LONGEST} characters, without line ends and the like")
    if name.lower() == UNLABELLED:
        raise VitkitError(f"{name!r} says that a photograph has no class: choose another name")
    if JOINT in name and not is_multi:
        raise VitkitError(f"a class's name has no {JOINT!r}, which joins several: choose another name")
    return name


def _version_of(table: ImageTable) -> str:
    """Another for another folder, list or file: browsers keep pictures by it, and must never show another one's."""
    digest = hashlib.sha256(os.fsencode(table.root))
    for i, path in enumerate(table.paths):
        digest.update(os.fsencode(f"\0{path}\0{stamp_of(table.file(i))}"))
    return digest.hexdigest()[:16]


def read_photographs(workspace: Workspace) -> ImageTable:
    """As trainings with a label file read them (`data.corrected`)."""
    folder = workspace.photographs
    return read_unlabelled(folder) if has_no_folders(folder) else read_table(folder)
