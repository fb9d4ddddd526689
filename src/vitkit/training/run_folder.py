"""A run in memory (`Run`), and its folder: create, lock and clean it up, and write the log and metrics.csv."""

from __future__ import annotations

import csv
import io
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit import model_folder
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.model_folder import WEIGHTS
from vitkit.reporting.plots import save_figure
from vitkit.system.files import exclusive_in, is_empty, open_regular, unfinished, write_text
from vitkit.system.logger import log
from vitkit.system.run_files import BOARD, FILES, LAST, LOG, METRICS, PICTURES, RECIPE, REQUEST, folds_in
from vitkit.training.distributed import ALONE, ProcessGroup
from vitkit.training.request import NO_HOOKS, Hooks

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
    """A training, which passes through the stages of `training.stages`. Each stage adds results for those after it.

    A run that is resumed begins with the stage `fit`. Of the results of the stages before, it has only those that are
    stored in its folder, so it has no `source` and no `parts`.
    """

    request: Recipe  # the requested recipe
    out: Path | None = None  # the requested run folder; None for the next free one
    team: ProcessGroup = ALONE  # the processes that work on the run
    hooks: Hooks = NO_HOOKS  # objects of the caller that observe the training, or replace parts of it
    notes: Sequence[str] = ()  # lines about the requested recipe
    # Folders that contain earlier runs, whose models may have proposed labels of these images.
    earlier_runs: Sequence[Path] = (Path("runs"),)
    exit_stack: ExitStack = field(default_factory=ExitStack)  # has the lock of the run folder; closed after the run
    # Locks the requested run folder, or only refuses one that is in use. None if nothing will be trained.
    reserve: Callable[[Path], None] | None = None
    keeps_pictures: bool = False  # whether decoded pictures are kept for the training
    request_fields: Mapping[str, Any] | None = None  # the fields that the user has set; None for those of `request`
    stop_after: int | None = None  # the number of epochs after which the training ends; None for the whole schedule

    resolved_request: Recipe | None = None  # the request, after `resolve` has replaced its method `auto`

    # Results of `open`.
    source: ImageTable = field(init=False)  # all images, including unreadable ones, after the changes of the label file
    recipe: Recipe = field(init=False)  # the complete recipe
    fields: Mapping[str, Any] = field(init=False)  # the fields that the request sets; the others are chosen
    reasons: list[str] = field(default_factory=list)  # why the chosen fields have their values
    effect_notes: Sequence[str] = ()  # lines about fields without effect
    blueprint: Blueprint = field(init=False)  # the model that the training starts from
    teacher_record: bytes | None = None  # the record of the images that the teacher was trained on

    # Results of `examine`.
    diagnosis: Diagnosis = field(init=False)  # the readable images, their facts, and the problems of the data
    groups: tuple[int, ...] = ()  # a number for each readable image; those with the same number stay in one split
    divided_groups: Sequence[Finding] = ()  # about groups that are in several of the original splits of the data
    photographs: PictureStore | None = None  # the decoded pictures; None if they are not kept

    # Results of `split`.
    parts: tuple[SplitImages, ...] = ()  # the split images: one item, or one for each fold of a cross-validation
    final_images: SplitImages | None = None  # for a cross-validation, the images of the final model
    seen_before: PictureRecord = field(init=False)  # images that the initial weights and the teacher were trained on
    findings: tuple[Finding, ...] = ()  # problems of the data that do not depend on the split

    # Needed for training, and read from the folder when a run is resumed.
    folder: Path = field(init=False)  # the run folder; its files are for people, and for resuming in another process
    inputs: Inputs = field(init=False)  # the images with their splits, and what is known of them
    inputs_of_folds: dict[Path, Inputs] = field(default_factory=dict)  # by the folders of the folds
    metrics: Metrics = field(init=False)  # the rows of metrics.csv
    pictures: dict[str, bytes] = field(default_factory=dict)  # the figures that the report will show, by caption

    # Results of `fit`.
    features: FeatureStore | None = None  # under the initial weights; `resolve` or `fit` sets it if features are needed
    classifier: Classifier = field(init=False)  # in the main process; `calibrate` adds what predictions need
    out_of_fold: OutOfFold | None = None  # predictions of models that were not trained on the image, without val images

    # Results of `calibrate`.
    frozen_features: Tensor | None = None  # of all images, under weights that were not trained on them, if any
    table: ImageTable = field(init=False)  # the images; those that have changed since the start count as unreadable
    changes: Changes = field(init=False)  # the images that have changed
    calibration: Evaluation | None = None  # of the images that the temperature was fitted on, after calibration
    tested: Evaluation = field(init=False)  # of the held-out images

    # Results of `evaluate`.
    numbers: dict[str, Any] = field(init=False)  # the content of evaluation.json
    evaluation: Evaluation | None = None  # the part of `tested` that the initial weights had not seen, if there is any
    label_errors: Sequence[LabelError] = ()  # labels that are likely wrong, the most doubtful first

    def set_folder(self, folder: Path) -> None:
        """Set the run folder, and read its metrics and figures, which exist if the run is resumed."""
        self.folder, self.metrics = folder, Metrics(folder / METRICS)
        files = {caption: folder / name for caption, name in PICTURES.items()}
        self.pictures = {caption: file.read_bytes() for caption, file in files.items() if file.is_file()}

    @property
    def config(self) -> Config:
        """The configuration of the model."""
        return self.blueprint.config

    def draw(self, caption: str, figure: Figure) -> None:
        """Write a figure into the run folder, and keep it for the report."""
        self.pictures[caption] = save_figure(figure, self.folder / PICTURES[caption])

    def say(self, line: str) -> None:
        """Log a line, and append it to the log file of the run. Only the main process does so."""
        if not self.team.is_main:
            return
        log.info(line)
        with open(self.folder / LOG, "a", encoding="utf-8", errors="surrogateescape", opener=open_regular) as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")


def check_output_folder(out: str | Path | None, table: ImageTable | None, teacher: str | None, weights: str) -> None:
    """Refuse a run folder that lies among the images, is a file, or contains the teacher or the initial weights.

    `out` is the requested folder; None for a new folder in `runs`. `table` is None if the images are not files.
    """
    folder = Path("runs" if out is None else out)
    if table is not None and table.lies_among(folder):
        message = f"the run would be written among the photographs, in {folder}: choose another folder with --out"
        raise VitkitError("training.out-among-images", message)
    if out is None:
        return
    if folder.exists() and not folder.is_dir():
        raise VitkitError("training.out-is-file", f"--out {out} is a file; choose a folder that does not exist")
    if not folder.is_dir():
        return
    for what, name in (("teacher", teacher), ("weights", weights)):
        if name is None or not Path(name).exists():
            continue
        if Path(name).resolve().is_relative_to(folder.resolve()):
            message = f"--out {out} would overwrite the {what} {name}: choose a new name"
            raise VitkitError("training.out-overwrites", message)


def check_free(folder: Path, *, force: bool) -> None:
    """Refuse a folder that is not empty. With `force`, a folder that contains a run is accepted, too.

    Raises:
        VitkitError: the folder is refused.
    """
    if not folder.exists() or is_empty(folder):
        return
    if not force:
        message = f"--out {folder} exists and is not empty: choose a new name, or overwrite it with --force"
        raise VitkitError("training.out-not-empty", message)
    if not any((folder / name).is_file() for name in (RECIPE, REQUEST)):
        message = f"--out {folder} is neither empty nor a run of vitkit: choose a new name"
        raise VitkitError("training.out-not-a-run", message)


def new_run_folder(name: str, exit_stack: ExitStack) -> Path:
    """Create and lock a new folder `runs/NAME-N`, with the first free number.

    If it is still empty when `exit_stack` is closed, it is removed.
    """
    Path("runs").mkdir(exist_ok=True)
    for number in count(1):
        folder = Path("runs", f"{name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            break

    @exit_stack.callback
    def remove_if_empty() -> None:
        with suppress(OSError):  # it is usually not empty
            folder.rmdir()

    exit_stack.enter_context(exclusive_in(folder))
    return folder


def discard_if_empty(folder: Path) -> None:
    """Remove the files of a run, unless it has saved a model or a checkpoint."""
    saved = [member / name for member in (folder, *folds_in(folder)) for name in (WEIGHTS, LAST)]
    if not any(path.exists() for path in saved):
        remove_run_files(folder)


def remove_run_files(folder: Path) -> None:
    """Remove the files of a run from its folder. Other files are kept."""
    remove_temporary_files(folder)
    for name in _FILES_OF_RUN:
        (folder / name).unlink(missing_ok=True)
    for name in (LAST.parent.name, BOARD):  # folders
        shutil.rmtree(folder / name, ignore_errors=True)
    for fold in folds_in(folder):
        remove_run_files(fold)
        if not any(fold.iterdir()):
            fold.rmdir()


def remove_temporary_files(folder: Path) -> None:
    """Remove the temporary files that a killed process left in a run. Other temporary files are kept."""
    for subfolder in (folder, folder / LAST.parent, *folder.glob(f"{LAST.parent}/epoch-*")):
        for name, path in unfinished(subfolder):
            if name in (*_FILES_OF_RUN, LAST.name) and path.is_file():
                path.unlink()
    for fold in folds_in(folder):
        remove_temporary_files(fold)


ZERO_SHOT = -1  # the row of the zero-shot model, before epoch 0
COLUMNS = ("epoch", "step", "train_loss", "train_acc", "val_loss", "val_acc", "val_map", "lr", "seconds", "waiting")


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read the rows of metrics.csv, without their empty cells. The result is empty if there is no file.

    Raises:
        VitkitError: the file is damaged.
    """
    if not path.exists():
        return []
    try:
        with open(path, encoding="utf-8", newline="", opener=open_regular) as file:
            rows = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
        if not all(math.isfinite(row.get(name, math.nan)) for row in rows for name in ("epoch", "step")):
            raise ValueError("a row has no finite epoch or no finite step")
    except (ValueError, TypeError, csv.Error) as error:
        message = f"{path} is damaged: {error}; delete it to continue without these curves"
        raise VitkitError("training.metrics-damaged", message) from error
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
        text = _to_csv([row], has_header=not self.path.exists())
        with open(self.path, "a", encoding="utf-8", newline="", opener=open_regular) as file:
            file.write(text)
        self.rows.append({name: float(row[name]) for name in COLUMNS if name in row})

    def truncate(self, epoch: int) -> None:
        """Remove the rows of `epoch` and later epochs, because a resumed run writes them again."""
        self.rows = [row for row in self.rows if row["epoch"] < epoch]
        if self.path.exists():
            rows = [{**row, "epoch": int(row["epoch"]), "step": int(row["step"])} for row in self.rows]
            write_text(self.path, _to_csv(rows))


def _to_csv(rows: Sequence[Mapping[str, Any]], *, has_header: bool = True) -> str:
    """Return rows of metrics.csv as text. There is a column val_map only if any of the rows has this figure."""
    columns = [name for name in COLUMNS if name != "val_map" or any(name in row for row in rows)]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    if has_header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
