"""Create, lock and clean up run folders, write the log and metrics.csv of a run, and prepare restarts."""

from __future__ import annotations

import csv
import io
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit import model_folder
from vitkit.data.table import ImageTable
from vitkit.errors import Interrupted, VitkitError
from vitkit.model_folder import WEIGHTS
from vitkit.reporting.plots import save_figure
from vitkit.system.files import (
    exclusive_in,
    is_empty,
    regular,
    unfinished,
    write_json,
    write_text,
)
from vitkit.system.logger import log
from vitkit.system.run_files import (
    BAD_BATCH,
    BEFORE,
    FILES,
    LAST,
    LOG,
    LOGGED,
    METRICS,
    PICTURES,
    RECIPE,
    REQUEST,
    folds_in,
)
from vitkit.training.distributed import ALONE, ProcessGroup
from vitkit.training.request import NONE, Hooks

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from vitkit.classifier import Classifier
    from vitkit.data.doctor.examine import Diagnosis, Finding
    from vitkit.data.picture_store import PictureStore
    from vitkit.data.seen import PictureRecord
    from vitkit.data.split_file import Changes
    from vitkit.evaluation.label_errors import LabelError
    from vitkit.evaluation.metrics import Evaluation
    from vitkit.model.names import Config
    from vitkit.training.features import FeatureStore
    from vitkit.training.finalize import OutOfFold
    from vitkit.training.inputs import Inputs
    from vitkit.training.lineage import SplitImages
    from vitkit.training.recipe import Recipe
    from vitkit.training.start import Blueprint

_FILES_OF_RUN = (*model_folder.FILES, *FILES)


@dataclass
class Run:
    """A training, which passes through the stages of `training.stages`. Each adds what it finds for those after it.

    Attributes:
        asked: the requested recipe.
        out: the requested run folder; None for the next free one.
        team: the processes that work on the run.
        hooks: objects of the caller that observe the training, or replace parts of it.
        notes: lines about the requested recipe.
        earlier_runs: folders that contain earlier runs, whose models may have proposed labels of these images.
        reserve: locks the requested run folder, or only refuses one that is in use. None if nothing will be trained.
        is_reserved: whether that was done.
        keeps_pictures: whether decoded pictures are kept for the training.
        whole: the folder of the cross-validation to which the run belongs as a fold; None if it is not a fold.
        until: the number of epochs after which the training ends, even if the schedule has more; None for all epochs.

    Found by `open`:
        source: all images of the data, including unreadable ones, after the changes of the label file.
        recipe: the complete recipe; `fields` are those that the user has set, and `reasons` explain the others.
        idle: lines about fields without effect.
        blueprint: the description of the model that the training starts from.
        teacher_record: the record of the images that the teacher was trained on; None if there is none.

    Found by `examine`:
        diagnosis: the readable images, their facts, and the problems of the data.
        groups: a number for each readable image; images with the same number stay in one split.
        torn: findings about groups that are in more than one of the original splits of the data.
        photographs: the decoded pictures; None if they are not kept.

    Found by `split`:
        parts: the split images: one item, or one for each fold of a cross-validation.
        undivided: for a cross-validation, the images of the final model; otherwise None.
        before: the record of the images that the initial weights and the teacher were trained on.
        findings: problems of the data that do not depend on the split.

    Needed for training, and read from the folder when a run is resumed:
        folder: the run folder. Its files are for people, and for resuming in another process.
        inputs: the images with their splits, and what is known of them; `inputs_of_folds` are those of the folds, by
            folder.
        metrics: the rows of metrics.csv.
        pictures: the figures for the report that have been drawn, by caption.
        features: the features of the photographs under the initial weights; None if nothing has needed them.

    Found by `fit`:
        classifier: the trained model, in the main process; after `calibrate`, with all that predictions need.
        out_of_fold: predictions of models that were not trained on the image, if there are no validation images.

    Found by `calibrate`:
        frozen: the features of all images under weights that had not seen them; None if there are no such weights.
        table: the images, of which those that have changed since the start (`changes`) count as unreadable.
        calibration: the evaluation that the temperature was fitted on, after calibration; None without such images.
        tested: the evaluation of the held-out images.

    Found by `evaluate`:
        numbers: the figures of that evaluation, the content of evaluation.json.
        evaluation: the part of it that counts: the images that the initial weights had not seen, or None.
        label_errors: labels that are likely wrong, the most doubtful first.
    """

    asked: Recipe
    out: Path | None = None
    team: ProcessGroup = ALONE
    hooks: Hooks = NONE
    notes: Sequence[str] = ()
    earlier_runs: Sequence[Path] = (Path("runs"),)
    reserve: Callable[[Path], None] | None = None
    is_reserved: bool = False
    keeps_pictures: bool = False
    whole: Path | None = None
    until: int | None = None

    source: ImageTable = field(init=False)
    recipe: Recipe = field(init=False)
    fields: Mapping[str, Any] = field(init=False)
    reasons: list[str] = field(default_factory=list)
    idle: Sequence[str] = ()
    blueprint: Blueprint = field(init=False)
    teacher_record: bytes | None = None

    diagnosis: Diagnosis = field(init=False)
    groups: tuple[int, ...] = ()
    torn: Sequence[Finding] = ()
    photographs: PictureStore | None = None

    parts: tuple[SplitImages, ...] = ()
    undivided: SplitImages | None = None
    before: PictureRecord = field(init=False)
    findings: tuple[Finding, ...] = ()

    folder: Path = field(init=False)
    inputs: Inputs = field(init=False)
    inputs_of_folds: dict[Path, Inputs] = field(default_factory=dict)
    metrics: Metrics = field(init=False)
    pictures: dict[str, bytes] = field(default_factory=dict)
    features: FeatureStore | None = None

    classifier: Classifier = field(init=False)
    out_of_fold: OutOfFold | None = None

    frozen: Tensor | None = None
    table: ImageTable = field(init=False)
    changes: Changes = field(init=False)
    calibration: Evaluation | None = None
    tested: Evaluation = field(init=False)

    numbers: dict[str, Any] = field(init=False)
    evaluation: Evaluation | None = None
    label_errors: Sequence[LabelError] = ()

    def enter(self, folder: Path) -> None:
        """Choose the run folder. If the run is resumed, what another process has left there is read."""
        self.folder, self.metrics = folder, Metrics(folder / METRICS)
        drawn = {caption: folder / name for caption, name in PICTURES.items()}
        self.pictures = {caption: file.read_bytes() for caption, file in drawn.items() if file.is_file()}

    def released(self) -> Run:
        """Let go of the weights and the plan for loading them, so that their memory can be freed; return the run."""
        self.blueprint = replace(self.blueprint, weights=None, plan=None)
        return self

    @property
    def config(self) -> Config:
        """Return the architecture."""
        return self.blueprint.config

    def draw(self, caption: str, figure: Figure) -> None:
        """Write a figure into the run folder, and keep it for the report."""
        self.pictures[caption] = save_figure(figure, self.folder / PICTURES[caption])

    def say(self, line: str) -> None:
        """Log a line, and append it to the file of the run, in the main process only."""
        if not self.team.is_main:
            return
        log.info(line)
        with open(self.folder / LOG, "a", encoding="utf-8", errors="surrogateescape", opener=regular) as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")


def check_place(out: str | Path | None, table: ImageTable, teacher: str | None, weights: str) -> None:
    """Refuse a run folder that lies among the images, is a file, or contains the teacher or the initial weights."""
    folder = Path("runs" if out is None else out)
    if table.lies_among(folder):
        raise VitkitError(
            f"the run would be written among the photographs, in {folder}: choose another folder with --out"
        )
    check_overwritten(out, teacher, weights)


def check_overwritten(out: str | Path | None, teacher: str | None, weights: str) -> None:
    """Refuse a run folder that is a file, or contains the teacher or the initial weights."""
    if out is None:
        return
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise VitkitError(f"--out {out} is a file; choose a folder that does not exist")
    for what, name in (("teacher", teacher), ("weights", weights)):
        is_there = name is not None and folder.is_dir() and Path(name).exists()
        if is_there and Path(str(name)).resolve().is_relative_to(folder.resolve()):
            raise VitkitError(f"--out {out} would overwrite the {what} {name}: choose a new name")


def check_free(folder: Path, *, force: bool) -> None:
    """Refuse a folder that is not empty. With `force`, a folder that contains a run is accepted, too.

    This process must have locked the folder.

    Raises:
        VitkitError: the folder is refused.
    """
    if is_empty(folder):
        return
    if not force:
        raise VitkitError(f"--out {folder} exists and is not empty: choose a new name, or overwrite it with --force")
    if not any((folder / name).is_file() for name in (RECIPE, REQUEST)):
        raise VitkitError(f"--out {folder} is neither empty nor a run of vitkit: choose a new name")


def reserve_folder(out: str | Path, hold: ExitStack, *, force: bool) -> None:
    """Lock the requested run folder, and check that a run may be written there.

    Args:
        out: the folder.
        hold: the stack that holds the lock.
        force: whether a run in the folder may be overwritten.

    Raises:
        VitkitError: another process has locked the folder, or a run may not be written there.
    """
    hold.enter_context(exclusive_in(Path(out)))
    check_free(Path(out), force=force)


def new_run_folder(name: str, hold: ExitStack) -> Path:
    """Create and lock a new folder `runs/NAME-N`. If it is still empty when `hold` is closed, it is removed."""
    folder = next_free(name)
    hold.callback(remove_if_empty, folder)
    hold.enter_context(exclusive_in(folder))
    return folder


def lock_run(folder: Path, hold: ExitStack) -> None:
    """Lock a run that will be continued, and remove temporary files of a killed process.

    Args:
        folder: the folder of the run.
        hold: the stack that holds the lock.

    Raises:
        VitkitError: another process has locked the folder, or the log or metrics.csv is a symbolic link.
    """
    hold.enter_context(exclusive_in(folder))
    for member in (folder, *folds_in(folder)):
        for name in (LOG, METRICS):
            if (member / name).is_symlink():
                raise VitkitError(f"{member / name} is a link, but a run appends to it: replace it by the file")
    sweep(folder)


@contextmanager
def cleanup_on_failure(run: Run, again: str) -> Iterator[None]:
    """Clean up if the run in this context fails. After an interruption by a signal, print how to resume instead.

    The files of a failed run are removed unless the run has saved a model, a checkpoint or a bad batch.

    Args:
        run: the run.
        again: the command that resumes the run.
    """
    try:
        yield
    except Interrupted:
        if not any(run.folder.rglob(WEIGHTS)):
            run.say("stopped before there was a model")
        run.say(f"to continue: {again}")
        raise
    except BaseException:
        if run.team.is_main:
            discard_if_empty(run.folder)
        raise


@contextmanager
def reporting(run: Run) -> Iterator[None]:
    """If a signal interrupts this context, print that the model is saved but its report is not finished."""
    try:
        yield
    except Interrupted:
        run.say(f"stopped; the model is in {run.folder}, but its report is not finished")
        raise


def next_free(name: str) -> Path:
    """Create a new folder `runs/NAME-N`, with the first free number."""
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


def remove_if_empty(folder: Path) -> None:
    """Remove a folder if it is empty, because its run never started."""
    with suppress(OSError):  # it is usually not empty
        folder.rmdir()


def discard_if_empty(folder: Path) -> None:
    """Remove the files of a run, unless it has saved a model, a checkpoint or a bad batch."""
    runs = (folder, *folds_in(folder))
    if not any((member / name).exists() for member in runs for name in (WEIGHTS, LAST, BEFORE)) and not any(
        folder.rglob(BAD_BATCH)
    ):
        clear(folder)


def clear(folder: Path) -> None:
    """Remove the files of a run from its folder. Other files are kept."""
    sweep(folder)
    for name in _FILES_OF_RUN:
        (folder / name).unlink(missing_ok=True)
    for batch in folder.glob(BAD_BATCH):
        batch.unlink()
    for grown in (LAST.parent.name, *LOGGED):
        shutil.rmtree(folder / grown, ignore_errors=True)
    for fold in folds_in(folder):
        clear(fold)
        if not any(fold.iterdir()):
            fold.rmdir()


def sweep(folder: Path) -> None:
    """Remove the temporary files that a killed process left in a run. Other temporary files are kept."""
    for place in (folder, folder / LAST.parent, *folder.glob(f"{LAST.parent}/epoch-*")):
        for name, path in unfinished(place):
            if (name in (*_FILES_OF_RUN, LAST.name, BEFORE.name) or fnmatch(name, BAD_BATCH)) and path.is_file():
                path.unlink()
    for fold in folds_in(folder):
        sweep(fold)


ZERO_SHOT = -1  # the row of the zero-shot model, before epoch 0
COLUMNS = ("epoch", "step", "train_loss", "train_acc", "val_loss", "val_acc", "lr", "seconds", "waiting")


def _columns(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the columns of metrics.csv. They include val_map if any of the rows has this figure."""
    place = COLUMNS.index("val_acc") + 1
    return (*COLUMNS[:place], "val_map", *COLUMNS[place:]) if any("val_map" in row for row in rows) else COLUMNS


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read the rows of metrics.csv, without their empty cells. A missing file has no rows.

    Raises:
        VitkitError: the file is damaged.
    """
    if not path.exists():
        return []
    try:
        with open(path, encoding="utf-8", newline="", opener=regular) as file:
            rows = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
        if lacking := next((name for name in ("epoch", "step") for row in rows if name not in row), None):
            raise ValueError(f"a row has no {lacking}")
        if not all(math.isfinite(row["epoch"]) and math.isfinite(row["step"]) for row in rows):
            raise ValueError("the epoch or step of a row is not finite")
    except (ValueError, TypeError, csv.Error) as error:
        raise VitkitError(f"{path} is damaged: {error}; delete it to continue without these curves") from error
    return rows


class Metrics:
    """The rows of metrics.csv, in the file and in memory.

    Attributes:
        path: the file. If it exists, its rows are read, because the run is being resumed.
        rows: the rows, without empty cells.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, read_metrics(path)

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row, without items that are not columns of the file. A new file starts with a header."""
        text, columns = io.StringIO(), _columns([row])
        writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
        if not self.path.exists():
            writer.writeheader()
        writer.writerow(row)
        with open(self.path, "a", encoding="utf-8", newline="", opener=regular) as file:
            file.write(text.getvalue())
        self.rows.append({name: float(row[name]) for name in columns if name in row})

    def truncate(self, epoch: int) -> None:
        """Remove the rows of `epoch` and later epochs, because a resumed run writes them again."""
        self.rows = [row for row in self.rows if row["epoch"] < epoch]
        if self.path.exists():
            text = io.StringIO()
            writer = csv.DictWriter(text, _columns(self.rows), lineterminator="\n")
            writer.writeheader()
            writer.writerows({**row, "epoch": int(row["epoch"]), "step": int(row["step"])} for row in self.rows)
            write_text(self.path, text.getvalue())


def write_request(folder: Path, fields: Mapping[str, Any]) -> None:
    """Write the fields that the command of a run sets into the run folder."""
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in fields.items()}
    write_json(folder / REQUEST, {name: value for name, value in plain.items() if value is not None})
