"""What a studio works on: photographs that are only read, and a place of its own for labels and runs."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitkit.data.split_file import split_from_file
from vitkit.errors import VitkitError
from vitkit.system.cache import private, state_folder
from vitkit.system.files import fitting
from vitkit.system.run_files import RECIPE, SPLIT
from vitkit.webapp.labels import Labels


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
        source: a folder of photographs, or a run folder, whose photographs are taken; None: the newest run in `runs`.
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
    if not given.is_dir():
        raise VitkitError(f"{source} is a file; name a folder of photographs, or a run")
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
    if not root.is_dir():
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
