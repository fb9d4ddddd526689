"""What a studio works on: photographs that are only read, and a place of its own for labels and runs.

The label file of a studio: what is said on its pages goes there, and what others write meanwhile is read. Two
studios, and people with a spreadsheet, may work on one label file. Rows are appended, so nobody writes over the
others; undo takes back what this studio has written, or has found when it began; redo gives way to what was said
since.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitkit.data.labels import Edit, LabelFile, add_edits, labels_so_far, undo_edits
from vitkit.data.sources import storage_at
from vitkit.data.split_file import split_from_file
from vitkit.errors import VitkitError
from vitkit.system.environment import private, state_folder
from vitkit.system.files import fitting, from_json, read_text, write_json
from vitkit.system.run_files import RECIPE, SPLIT
from vitkit.text.cells import plural


@dataclass(frozen=True)
class _Step:
    """What was undone.

    Attributes:
        rows: that were taken back.
        last: of each picture that they name, the row that held after that.
    """

    rows: tuple[Edit, ...]
    last: dict[str, Edit | None]


class Labels:
    """The label file of a workspace. Threads may share it.

    Args:
        file: the label file, there or not yet.
        root: the folder of photographs.
        seen: where the studio keeps in mind which label files there have been.
    """

    def __init__(self, file: Path, root: Path, seen: Path) -> None:
        self.file, self._root, self._seen = file, root, seen
        self._lock = threading.RLock()
        self._stamp: Any = ()
        self._known: LabelFile | None = None
        self._own: dict[Edit, None] = {}
        self._foreign: set[Edit] = set()
        self._undone: list[_Step] = []
        self._is_overtaken = False
        self._news: list[str] = []

    def read(self) -> LabelFile:
        """The rows as they are now; only what was added is read.

        Raises:
            VitkitError: the file is damaged, or gone although there was one.
        """
        with self._lock:
            try:
                found = self.file.stat()
                stamp: Any = (found.st_mtime_ns, found.st_size, found.st_ino)
            except FileNotFoundError:
                stamp = None
            if self._known is None or stamp != self._stamp:
                self._see()
                self._take(labels_so_far(self.file, self._known))
                self._stamp = stamp
            assert self._known is not None
            return self._known

    def add(self, edits: Sequence[Edit]) -> None:
        """Append rows. What was undone before is not done again after that."""
        with self._lock:
            self.read()
            if edits:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                self._own |= dict.fromkeys(add_edits(self.file, edits))
                self._is_overtaken |= bool(self._undone)
                self._undone.clear()
                self.read()

    @property
    def can_undo(self) -> bool:
        """Whether there is a row that undo would take back."""
        known = self._known
        return known is not None and any(edit not in self._foreign for edit in reversed(known.edits))

    @property
    def can_redo(self) -> bool:
        """Whether something was undone since the last edit."""
        return bool(self._undone)

    def undo(self) -> None:
        """Take the last step back, all that was said at one moment; steps of others stay."""
        with self._lock:
            before = self.read()
            known = set(before.edits)
            taken = undo_edits(self.file, (known - self._foreign).__contains__, before)
            for edit in taken:
                self._own.pop(edit, None)
            self._known, self._stamp = labels_so_far(self.file, before), ()
            self._foreign |= set(self._known.edits) - known
            if taken:
                last = self._last(self._known, taken)
                newer = {key for key, edit in last.items() if edit in self._foreign}
                if newer:
                    self._news.append(f"{_photographs(len(newer))} a newer label by somebody else, which holds")
                rows = tuple(edit for edit in taken if self._key(edit) not in newer)
                self._undone += [_Step(rows, last)] if rows else []
                self._is_overtaken = False

    def redo(self) -> None:
        """Do again what was undone last, where nothing newer was said of the photographs.

        Raises:
            VitkitError: something newer was said of all of them, or since.
        """
        with self._lock:
            now = self.read()
            if not self._undone:
                if self._is_overtaken:
                    raise VitkitError("nothing is done again: something else was said since it was undone")
                return
            step = self._undone.pop()
            last = self._last(now, step.rows)
            rows = [edit for edit in step.rows if last[self._key(edit)] == step.last[self._key(edit)]]
            newer = len({self._key(edit) for edit in step.rows}) - len({self._key(edit) for edit in rows})
            text = f"{_photographs(newer)} a newer label, which holds" if newer else ""
            if not rows:
                raise VitkitError(f"nothing is done again: {text}")
            if text:
                self._news.append(f"done again, but {text}")
            self._own |= dict.fromkeys(add_edits(self.file, rows))
            self.read()

    def news(self) -> list[str]:
        """What there is to tell since this was last asked."""
        with self._lock:
            told, self._news = self._news, []
            return told

    def _key(self, edit: Edit) -> str:
        return os.path.normpath(self._root / edit.path.strip())

    def _last(self, file: LabelFile, rows: Sequence[Edit]) -> dict[str, Edit | None]:
        """The last row of each picture that some rows name."""
        found: dict[str, Edit | None] = dict.fromkeys(map(self._key, rows))
        names = {edit.path for edit in rows} | {str(key) for key in found}
        for edit in file.edits:
            if (edit.path in names or edit.path.strip() != edit.path) and self._key(edit) in found:
                found[self._key(edit)] = edit
        return found

    def _take(self, file: LabelFile) -> None:
        """Note what is new in the file, and put back what somebody has written over."""
        before, self._known = self._known, file
        if before is None:
            return
        if file.edits[: len(before.edits)] == before.edits:
            self._foreign |= {edit for edit in file.edits[len(before.edits) :] if edit not in self._own}
            return
        now, then = set(file.edits), set(before.edits)
        new = now - then - self._own.keys()
        self._foreign = (self._foreign & now) | new
        lost = [edit for edit in self._own if edit not in now]
        for edit in lost:
            del self._own[edit]
        if lost and new:  # an older copy was saved with edits of its own; rows that are taken out alone stay out
            taken = set(map(self._key, new))
            back = [edit for edit in lost if self._key(edit) not in taken]
            if back:
                self._own |= dict.fromkeys(add_edits(self.file, back))
                self._known = labels_so_far(self.file)
            rows = plural(len(lost), "row that was written here was", "rows that were written here were")
            over = (
                f"; of {_photographs(len(lost) - len(back), 'the newer label holds')}" if len(back) < len(lost) else ""
            )
            self._news.append(
                f"{rows} no longer in {self.file} after it was saved elsewhere; {len(back)} of them put back{over}"
            )

    def _see(self) -> None:
        """Keep in mind that there is a label file; where it goes, photographs must not pass for unlabelled.

        Raises:
            VitkitError: it is gone.
        """
        own = str(self.file)
        try:
            seen = [name for name in from_json(read_text(self._seen)) if isinstance(name, str)]
        except (OSError, ValueError, TypeError):
            seen = []
        if self.file.exists():
            if own not in seen:
                self._seen.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._seen, [*seen, own])
        elif own in seen:
            raise VitkitError(
                f"the label file {own} is gone: bring it back, or delete {self._seen} to begin without any label"
            )


def _photographs(count: int, has: str = "") -> str:
    if has:
        return f"{plural(count, 'photograph', 'photographs')} {has}"
    return plural(count, "photograph has", "photographs have")


@dataclass(frozen=True)
class Workspace:
    """The folders and files of one studio; all paths are absolute.

    Attributes:
        photographs: the folder of photographs; nothing is ever written below it.
        runs: the folder that holds the run folders.
        labels: the label file, there or not yet.
        weights: local files and models that were named beside those of the runs.
        first_run: the run that was named in the place of a folder; empty: none was.
    """

    photographs: Path
    runs: Path
    labels: Path
    weights: tuple[str, ...] = ()
    first_run: str = ""

    @property
    def name(self) -> str:
        """What to call it."""
        return self.photographs.name or str(self.photographs)

    @cached_property
    def said(self) -> Labels:
        """The label file as the studio follows it."""
        return Labels(self.labels, self.photographs, self.own / "label-files.json")

    @property
    def own(self) -> Path:
        """The studio's own folder: the queue and what it has said, and nothing that a run needs."""
        return own_folder(self.runs)

    def run_folder(self, name: str) -> Path:
        """The folder of a run by its name, as the browser gives it.

        Raises:
            VitkitError: there is none of this name among the runs.
        """
        if name not in self.run_names():  # a name that is in the list leads nowhere else
            raise VitkitError(f"there is no run {name!r} in {self.runs}")
        return self.runs / name

    def run_names(self) -> list[str]:
        """The runs that are there, the newest first."""
        if not self.runs.is_dir():
            return []
        found = [own for own in self.runs.iterdir() if (own / RECIPE).is_file() and not own.name.startswith(".")]
        return [own.name for own in sorted(found, key=lambda own: (own / RECIPE).stat().st_mtime, reverse=True)]

    def to_dict(self) -> dict[str, Any]:
        """What the page says of it."""
        return {
            "name": self.name,
            "photographs": str(self.photographs),
            "runs": str(self.runs),
            "labels": str(self.labels),
            "first_run": self.first_run,
        }


def own_folder(runs: Path) -> Path:
    """What this user's studio keeps of a folder of runs: never in there, where it could come from somebody else.

    Raises:
        VitkitError: others may write where it is kept.
    """
    place = os.path.realpath(runs)
    digest = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
    return private(state_folder() / "studio") / fitting(Path(place).name or "runs", f"-{digest}")


def open_workspace(
    source: str | Path | None = None,
    runs: str | Path | None = None,
    labels: str | Path | None = None,
    weights: tuple[str, ...] = (),
) -> Workspace:
    """The workspace of a folder of photographs, or of a run.

    Args:
        source: a folder or archive of photographs, or a run folder, whose photographs are taken; None: the newest run
            in `runs`.
        runs: where run folders are and come; by default that of the run, else `runs`.
        labels: the label file; by default `labels/NAME.csv`.
        weights: local files or models to begin from, beside those of the runs.

    Raises:
        VitkitError: there is no such folder, or the studio's own places would lie among the photographs.
    """
    folder = Path("runs" if runs is None else runs)
    if source is None:
        source = _newest_run(folder)
    given, first_run = Path(source), ""
    if not given.exists():
        raise VitkitError(f"no such folder: {source}; name a folder of photographs, or a run")
    if not given.is_dir() and storage_at(given) is None:
        raise VitkitError(f"{source} is a file; name a folder of photographs, a .zip or .tar of one, or a run")
    if (given / RECIPE).is_file():
        folder = given.resolve().parent if runs is None else folder
        if given.resolve().parent != folder.resolve():
            raise VitkitError(f"the run {source} does not lie in --runs {folder}: leave --runs out")
        first_run, given = given.resolve().name, _photographs_of(given)
    photographs = given.resolve()
    file = Path(labels) if labels is not None else Path("labels", f"{photographs.name or 'photographs'}.csv")
    _check(photographs, folder, file)
    return Workspace(photographs, _absolute(folder), _absolute(file), weights, first_run)


def _newest_run(runs: Path) -> Path:
    names = Workspace(Path(), runs, Path()).run_names()
    if not names:
        raise VitkitError(f"name a folder of photographs, as in: vitkit studio PHOTOS (there is no run in {runs} yet)")
    return runs / names[0]


def _photographs_of(run: Path) -> Path:
    """The folder of photographs that a run was trained on.

    Raises:
        VitkitError: it is not there any more, or was no folder.
    """
    if not (run / SPLIT).is_file():
        raise VitkitError(f"{run} does not say what it was trained on: it has no {SPLIT}; name the photographs")
    root = split_from_file(run / SPLIT).root
    if not root.is_absolute():
        root = run / root
    if not root.is_dir() and storage_at(root) is None:
        raise VitkitError(f"the photographs of {run} are no longer in {root}: name their folder in the run's place")
    return root


def _check(photographs: Path, runs: Path, labels: Path) -> None:
    for flag, path in (("--runs", runs), ("--labels", labels)):
        if path.resolve().is_relative_to(photographs):
            raise VitkitError(
                f"{flag} {path} lies among the photographs in {photographs}, where nothing is written: name another "
                f"place with {flag}, or start the studio in another folder"
            )
    if labels.suffix.lower() != ".csv":
        raise VitkitError(f"--labels {labels} must end in .csv")
    if labels.is_dir():
        raise VitkitError(f"--labels {labels} is a folder; name a file")
    if runs.exists() and not runs.is_dir():
        raise VitkitError(f"--runs {runs} is a file; name a folder")


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100  # as it was named: links are left as they are
