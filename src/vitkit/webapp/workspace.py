"""The files of a studio: photographs, run folders and the label file.

Photographs are only read. Labels from the page are appended to the label file. Other studios, and people with a
spreadsheet, may edit the label file at the same time, and their rows are never overwritten. Undo removes rows that this
studio wrote, or that existed when it started.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitkit.data import (
    DATASETS,
    Edit,
    LabelFile,
    add_edits,
    labels_so_far,
    materialise,
    split_from_file,
    storage_at,
    undo_edits,
)
from vitkit.errors import VitkitError
from vitkit.model_folder import DESCRIPTION
from vitkit.system import RECIPE, SPLIT, fit_name, from_json, private, read_json, read_text, state_folder, write_json
from vitkit.text import plural


class Labels:
    """The label file of a workspace. Several threads may use the same instance.

    The file need not exist yet. In `registry`, the studio records the label files that it has found, to notice if one
    is gone later.
    """

    def __init__(self, file: Path, root: Path, registry: Path) -> None:
        self.file, self._root, self._registry = file, root, registry
        self._lock = threading.RLock()
        self._stamp: Any = ()  # changes with the file; None if there is no file, and () if it was not read yet
        self._known: LabelFile | None = None
        self._written: dict[Edit, None] = {}  # rows that this studio wrote, in their order
        self._foreign: set[Edit] = set()  # rows that others have added since the studio started
        self._news: list[str] = []  # notes that the user has not seen yet

    def read(self) -> LabelFile:
        """Return the current content of the label file."""
        with self._lock:
            try:
                status = self.file.stat()
                stamp: Any = (status.st_mtime_ns, status.st_size, status.st_ino)
            except FileNotFoundError:
                stamp = None
            if self._known is None or stamp != self._stamp:
                # If the label file existed earlier and is gone, all photographs would appear to be unlabelled.
                recorded = from_json(read_text(self._registry)) if self._registry.is_file() else []
                is_recorded = str(self.file) in recorded
                if stamp is not None and not is_recorded:
                    self._registry.parent.mkdir(parents=True, exist_ok=True)
                    write_json(self._registry, [*recorded, str(self.file)])
                if is_recorded and stamp is None:
                    advice = f"restore it, or delete {self._registry} to start without labels"
                    raise VitkitError("webapp.labels-missing", f"the label file {self.file} is gone: {advice}")

                self._accept(labels_so_far(self.file))
                self._stamp = stamp
            assert self._known is not None
            return self._known

    def add(self, edits: Sequence[Edit]) -> None:
        """Append rows to the file."""
        with self._lock:
            self.read()
            if edits:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                self._written |= dict.fromkeys(add_edits(self.file, edits))
                self.read()

    @property
    def can_undo(self) -> bool:
        """Whether there is a row that undo would remove."""
        known = self._known
        return known is not None and any(edit not in self._foreign for edit in reversed(known.edits))

    def undo(self) -> None:
        """Remove the rows of the last step, except for rows that others have added since the studio started."""
        with self._lock:
            before = self.read()
            rows_before = set(before.edits)
            removable = rows_before - self._foreign
            for edit in undo_edits(self.file, removable.__contains__):
                self._written.pop(edit, None)
            self._known = labels_so_far(self.file)
            self._stamp = ()  # so that the file is read again
            self._foreign |= set(self._known.edits) - rows_before  # rows that appeared meanwhile

    def news(self) -> list[str]:
        """Return the notes for the user that were collected since the last call, and clear them."""
        with self._lock:
            news, self._news = self._news, []
            return news

    def _accept(self, file: LabelFile) -> None:
        """Accept new content of the file, and restore lost rows of this studio.

        Rows are lost if somebody edits an older copy of the file and saves it over the current one. They are appended
        again, except those of photographs that have a new label. If rows were only deleted, they stay deleted.
        """
        before = self._known
        self._known = file
        if before is None:
            return
        count = len(before.edits)
        if file.edits[:count] == before.edits:  # rows were only appended
            self._foreign |= set(file.edits[count:]) - self._written.keys()
            return
        now = set(file.edits)
        new = now - set(before.edits) - self._written.keys()
        self._foreign = (self._foreign & now) | new
        lost = [edit for edit in self._written if edit not in now]
        for edit in lost:
            del self._written[edit]
        if not lost or not new:  # rows were only deleted, and no older copy was edited and saved
            return

        def full_path(edit: Edit) -> str:
            return os.path.normpath(self._root / edit.path.strip())

        relabelled = {full_path(edit) for edit in new}
        restored = [edit for edit in lost if full_path(edit) not in relabelled]
        if restored:
            self._written |= dict.fromkeys(add_edits(self.file, restored))
            self._known = labels_so_far(self.file)
        rows = plural(len(lost), "row that was written here was", "rows that were written here were")
        note = f"{rows} no longer in {self.file} after it was saved elsewhere; {len(restored)} of them put back"
        if len(restored) < len(lost):
            photographs = plural(len(lost) - len(restored), "photograph", "photographs")
            note += f"; of {photographs} the newer label holds"
        self._news.append(note)


@dataclass(frozen=True)
class Workspace:
    """The folders and files of one studio; all paths are absolute."""

    photographs: Path  # the folder of photographs; nothing is ever written below it
    runs: Path  # the folder that contains the run folders
    labels: Path  # the label file, which need not exist yet
    weights: tuple[str, ...] = ()  # local files and models that the page offers in addition to the models of the runs
    first_run: str = ""  # the run that the user named instead of a folder of photographs; empty if there is none

    @property
    def name(self) -> str:
        """The name of the folder of photographs."""
        return self.photographs.name or str(self.photographs)

    @cached_property
    def label_file(self) -> Labels:
        """The reader and editor of the label file."""
        return Labels(self.labels, self.photographs, self.state_folder / "label-files.json")

    @property
    def state_folder(self) -> Path:
        """The folder for the queue and other state of the studio. Runs do not depend on this folder."""
        return state_of_runs(self.runs)

    def run_folder(self, name: str) -> Path:
        """Return the folder of a run. The name may come from the browser."""
        if name not in self.run_names():  # a name in this list cannot lead out of the folder
            raise VitkitError("webapp.run-unknown", f"there is no run {name!r} in {self.runs}")
        return self.runs / name

    def run_names(self) -> list[str]:
        """List the names of the runs, the newest first."""
        if not self.runs.is_dir():
            return []
        runs = [run for run in self.runs.iterdir() if (run / RECIPE).is_file() and not run.name.startswith(".")]
        return [run.name for run in sorted(runs, key=lambda run: (run / RECIPE).stat().st_mtime, reverse=True)]

    def model_names(self) -> list[str]:
        """List the names of the runs that have a model, the newest first."""
        return [name for name in self.run_names() if (self.runs / name / DESCRIPTION).is_file()]

    def classifier_names(self) -> list[str]:
        """List the names of the runs whose model can classify, the newest first; a pre-trained model has no classes."""
        names = []
        for name in self.model_names():
            has_classes = True
            with suppress(OSError, VitkitError, AttributeError):  # a damaged model is listed, so that its page says so
                has_classes = bool(read_json(self.runs / name / DESCRIPTION).get("classes"))
            if has_classes:
                names.append(name)
        return names


def make_numbered_folder(parent: Path, name: str, taken: Collection[str] = ()) -> Path:
    """Create the first of the folders NAME-1, NAME-2 … that does not exist and whose name is not `taken`."""
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = parent / f"{name}-{number}"
        if folder.name not in taken:
            with suppress(FileExistsError):
                folder.mkdir()
                return folder
        number += 1


def state_of_runs(runs: Path) -> Path:
    """Return this user's state folder for a folder of runs.

    The state folder lies outside of the folder of runs, which may belong to another user.
    """
    place = os.path.realpath(runs)
    digest = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
    return private(state_folder() / "studio") / fit_name(Path(place).name or "runs", f"-{digest}")


def open_workspace(
    source: str | Path, runs: str | Path | None = None, labels: str | Path | None = None, weights: tuple[str, ...] = ()
) -> Workspace:
    """Open the workspace of photographs, of a named data set, or of a run; the arguments are those of `studio`.

    Raises:
        VitkitError: the folder does not exist, or runs or labels would lie among the photographs.
    """
    if not Path(source).exists() and str(source) in DATASETS:
        source = materialise(str(source))
    folder_or_run = Path(source)
    if not folder_or_run.exists():
        reason = f"no such folder: {source}; name a folder of photographs, a data set such as digits, or a run"
        raise VitkitError("webapp.folder-missing", reason)
    if not folder_or_run.is_dir() and storage_at(folder_or_run) is None:
        reason = f"{source} is a file; name a folder of photographs, a .zip or .tar of one, or a run"
        raise VitkitError("webapp.folder-invalid", reason)
    folder, first_run = Path("runs" if runs is None else runs), ""
    photographs = folder_or_run.resolve()
    if (folder_or_run / RECIPE).is_file():
        run = folder_or_run.resolve()
        if runs is None:
            folder = run.parent
        elif run.parent != folder.resolve():
            reason = f"the run {source} does not lie in --runs {folder}: leave --runs out"
            raise VitkitError("webapp.runs-invalid", reason)
        first_run = run.name

        # The photographs of the run may be a folder or an archive.
        if not (folder_or_run / SPLIT).is_file():
            reason = f"{folder_or_run} does not record what it was trained on: it has no {SPLIT}; name the photographs"
            raise VitkitError("webapp.split-missing", reason)
        root = folder_or_run / split_from_file(folder_or_run / SPLIT).root  # the root may be absolute
        if not root.is_dir() and storage_at(root) is None:
            advice = "open the folder of photographs instead of the run"
            reason = f"the photographs of {folder_or_run} are no longer in {root}: {advice}"
            raise VitkitError("webapp.folder-missing", reason)
        photographs = root.resolve()

    file = label_file_of(photographs) if labels is None else Path(labels)
    for flag, path in (("--runs", folder), ("--labels", file)):
        if path.resolve().is_relative_to(photographs):
            raise VitkitError(
                "webapp.folder-inside-photographs",
                f"{flag} {path} lies among the photographs in {photographs}, where nothing is written: name another "
                f"place with {flag}, or start the studio in another folder",
            )
    if file.suffix.lower() != ".csv":
        raise VitkitError("webapp.labels-invalid", f"--labels {file} must end in .csv")
    return Workspace(photographs, _absolute(folder), _absolute(file), weights, first_run)


def label_file_of(photographs: Path) -> Path:
    """Return the default label file of a folder of photographs, `labels/NAME.csv` in the current folder."""
    return Path("labels", f"{photographs.name or 'photographs'}.csv").absolute()


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100  # without following links
