"""A run's folder: its files, whose name it may take, and how its story is told there."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitkit.classifier import DESCRIPTION, RECORD, WEIGHTS
from vitkit.data.source import ImageTable
from vitkit.errors import VitkitError
from vitkit.train.callbacks import LAST
from vitkit.train.guard import BAD_BATCH
from vitkit.train.summary import EVALUATION, FINDINGS, GROUPS, LABEL_ERRORS, MISTAKES, PICTURES, REPORT
from vitkit.train.team import ALONE, Team

Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]  # what is being done, how many are done, of how many
RECIPE, SPLIT, LOG, FOLDS, CLASS_INDICES = "recipe.toml", "split.json", "log.txt", "folds.json", "class_indices.json"
_OWN_FILES = (
    *(
        WEIGHTS,
        DESCRIPTION,
        RECORD,
        RECIPE,
        SPLIT,
        FOLDS,
        CLASS_INDICES,
        FINDINGS,
        EVALUATION,
        LOG,
        REPORT,
        "metrics.csv",
    ),
    *(GROUPS, LABEL_ERRORS, MISTAKES, *PICTURES.values()),
)


@dataclass(frozen=True)
class Run:
    """A run folder, how its story is told, and the processes that work on it.

    `whole` is the cross-validation that it is a fold of.
    """

    folder: Path
    tell: Say
    watch: Progress
    whole: Path | None = None
    team: Team = ALONE

    def say(self, line: str) -> None:
        """Tell the user, and the log."""
        if not self.team.is_first:
            return
        self.tell(line)
        with (self.folder / LOG).open("a", encoding="utf-8", errors="surrogateescape") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")

    def progress(self, what: str, done: int, total: int) -> None:
        """Tell the user what is being done, how many are done, of how many."""
        if self.team.is_first:
            self.watch(what, done, total)


def fold_folder(folder: Path, fold: int) -> Path:
    """The run of one fold of a cross-validation, the first being 0."""
    return folder / f"fold-{fold + 1}"


def check_free(out: str | Path | None, table: ImageTable, teacher: str | None, *, force: bool) -> None:
    """Refuse a run folder among the photographs, or one that holds something, unless it is a run to be written over."""
    folder = Path("runs" if out is None else out)
    if table.lies_among(folder):
        raise VitkitError(
            f"the run would be written among the photographs, in {folder}: name another folder with --out"
        )
    if out is None or not folder.exists():
        return
    if not folder.is_dir():
        raise VitkitError(f"--out {out} is a file; name a folder that does not exist")
    if not any(folder.iterdir()):
        return
    if not force:
        raise VitkitError(f"--out {out} exists and is not empty: choose a new name, or --force to write over it")
    if not (folder / RECIPE).is_file():
        raise VitkitError(f"--out {out} is not empty and no run of vitkit's: choose a new name")
    if teacher is not None and Path(teacher).resolve().is_relative_to(folder.resolve()):
        raise VitkitError(f"--out {out} would write over the teacher {teacher}: choose a new name")


def claim(out: str | Path | None, name: str) -> Path:
    """The run's folder, made and emptied of an earlier run."""
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        _remove_own(folder)
        return folder
    Path("runs").mkdir(exist_ok=True)
    number = 1
    while True:
        folder = Path("runs", f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def discard_if_empty(folder: Path) -> None:
    """A run that ended before there was a model leaves no folder behind."""
    runs = (folder, *folder.glob("fold-*"))
    if not any((own / name).exists() for own in runs for name in (WEIGHTS, LAST)) and not any(folder.rglob(BAD_BATCH)):
        _remove_own(folder)
        if not any(folder.iterdir()):
            folder.rmdir()


def _remove_own(folder: Path) -> None:
    sweep(folder)
    for name in _OWN_FILES:
        (folder / name).unlink(missing_ok=True)
    for batch in folder.glob(BAD_BATCH):
        batch.unlink()
    for name in ("checkpoints", "tensorboard"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for fold in folder.glob("fold-*"):
        _remove_own(fold)
        if not any(fold.iterdir()):
            fold.rmdir()


def sweep(folder: Path) -> None:
    """Remove what a killed process was writing."""
    for unfinished in folder.rglob(".*.tmp"):
        unfinished.unlink()
