"""A run from beginning to end: read the data, train, keep the best model, report. Everything lands in one folder."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from lightning import Callback, LightningModule, Trainer

import vitkit
from vitkit.classifier import DESCRIPTION, WEIGHTS, Classifier
from vitkit.data.datamodule import ImageData
from vitkit.data.doctor import drop_unreadable
from vitkit.data.source import ImageTable, locate, read_source
from vitkit.data.split import SPLITS, split, split_from_file, split_to_dict, take_stratified
from vitkit.errors import Interrupted, VitkitError
from vitkit.files import write_json, write_text
from vitkit.train.callbacks import LAST, RunWriter, StopOnSignal
from vitkit.train.recipe import Recipe, build, load_fields
from vitkit.train.setup import augment_of, check_weights, choose_precision, choose_workers, config_of, new_classifier
from vitkit.train.summary import FINDINGS, PICTURES, draw_data, findings, report
from vitkit.train.task import ClassificationTask
from vitkit.train.teacher import Teacher, check_distillation, load_teacher, teacher_of_run

Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]  # what is being done, how many are done, of how many
RECIPE, SPLIT, LOG = "recipe.toml", "split.json", "log.txt"
_OWN_FILES = (WEIGHTS, DESCRIPTION, RECIPE, SPLIT, FINDINGS, LOG, "metrics.csv", "report.html", *PICTURES.values())


@dataclass(frozen=True)
class Run:
    """A run folder, and how its story is told."""

    folder: Path
    tell: Say
    progress: Progress

    def say(self, line: str) -> None:
        """Tell the user, and the log."""
        self.tell(line)
        with (self.folder / LOG).open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")


def _silent(what: str, done: int, total: int) -> None:
    """The progress of those who do not watch."""


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    force: bool = False,
    say: Say = print,
    progress: Progress = _silent,
) -> Path:
    """Train a classifier and report on it.

    Args:
        recipe: what and how; its `data` must be set.
        out: the run folder; by default the next free `runs/NAME-N`.
        force: write over the run that is in `out`.
        say: takes each line of the story.
        progress: told what is being done, how many are done, of how many.

    Returns:
        The run folder, which is also the model folder of the best weights.

    Raises:
        VitkitError: the data or the recipe cannot be trained on, or `out` exists.
        Interrupted: a signal stopped the run; the folder holds the best model so far.
        OSError: the folder cannot be written.
    """
    if recipe.data is None:
        raise VitkitError("the recipe names no data")
    table = read_source(recipe.data)
    check_weights(recipe)
    check_distillation(recipe)
    _check_free(out, table.root, recipe.teacher, force=force)
    config = config_of(recipe, len(table.classes))  # what cannot be built should fail before the images are read
    teacher = None if recipe.teacher is None else load_teacher(recipe.teacher, table.classes, config.image_size)
    if recipe.limit is not None:
        table = take_stratified(table, recipe.limit, recipe.seed)
    table, unreadable = drop_unreadable(table, lambda done, total: progress("reading images", done, total))
    table = split(table, recipe.split, recipe.seed)
    run = Run(_claim(out, table.root.name), say, progress)
    try:
        run.say(f"vitkit {vitkit.__version__}: training {recipe.model} on {table.root}")
        told = findings(table, unreadable)
        for finding in told:
            run.say(f"note: {finding}")
        write_json(run.folder / FINDINGS, told)
        write_json(run.folder / SPLIT, split_to_dict(table))
        write_text(run.folder / RECIPE, recipe.to_toml())
        return _train(run, recipe, teacher)
    except BaseException:
        _discard_if_empty(run.folder)
        raise


def resume(folder: str | Path, *, say: Say = print, progress: Progress = _silent) -> Path:
    """Go on with a run that was interrupted, from its last finished epoch, to the weights it would have had.

    Raises:
        VitkitError: the folder holds no run.
    """
    run = Run(Path(folder), say, progress)
    if not (run.folder / RECIPE).is_file():
        raise VitkitError(f"{folder} is not a run folder: it has no {RECIPE}")
    _sweep(run.folder)
    return _train(run, build(load_fields(run.folder / RECIPE), str(run.folder / RECIPE)))


def _train(run: Run, recipe: Recipe, teacher: Teacher | None = None) -> Path:
    """Everything after the data is settled; what it reads is what a resumed run reads."""
    table = locate(split_from_file(run.folder / SPLIT))
    data_hash = json.loads((run.folder / SPLIT).read_text(encoding="utf-8"))["hash"]
    classifier = new_classifier(recipe, table, data_hash)
    if recipe.teacher is not None:
        if teacher is None or teacher.classes != classifier.classes:  # resumed, or a class had no readable image
            teacher = teacher_of_run(run.folder, recipe.teacher, classifier.classes, classifier.preprocess.size)
        classifier.provenance["teacher"] = {"name": teacher.name, "sha256": teacher.sha256}
        for note in teacher.notes:
            run.say(f"note: {note}")
    draw_data(run.folder, table, classifier.preprocess, augment_of(recipe), recipe.seed)
    counts = ", ".join(f"{len(table.of_split(name))} {name}" for name in SPLITS)
    run.say(f"{len(table.classes)} classes; images: {counts}")
    with _quiet_lightning():
        _fit(run, recipe, table, classifier, teacher)
    evaluation = report(run.folder, recipe, table, lambda done, total: run.progress("evaluating", done, total))
    run.say(
        f"accuracy {evaluation.accuracy:.4f} on {len(evaluation.labels)} {evaluation.split} images"
        f" ({evaluation.loss:.4f} log loss); report: {run.folder / 'report.html'}"
    )
    return run.folder


def _fit(run: Run, recipe: Recipe, table: ImageTable, classifier: Classifier, teacher: Teacher | None) -> None:
    data = ImageData(
        table,
        classifier.preprocess,
        augment_of(recipe),
        batch_size=recipe.batch_size,
        workers=choose_workers(recipe.workers),
        seed=recipe.seed,
    )
    batches = len(data.train_dataloader())
    writer = RunWriter(run.folder, classifier, recipe, run.say)
    precision = choose_precision(recipe.precision)
    run.say(f"{recipe.epochs} epochs of {batches} steps in {precision}; batch {recipe.batch_size}, lr {recipe.lr:g}")
    # On CPUs the fused kernel's backward pass is slower than attention written out (docs/log.md).
    classifier.model.fused_attention = torch.cuda.is_available()
    classifier.model.train()
    trainer = Trainer(
        accelerator="auto",
        devices=1,
        precision="bf16-mixed" if precision == "bfloat16" else "32-true",
        max_epochs=recipe.epochs,
        gradient_clip_val=recipe.clip_grad or None,
        callbacks=[StopOnSignal(), _ShowSteps(run.progress), writer],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        limit_val_batches=1.0 if len(data.val) else 0,
    )
    imitate = None if teacher is None else partial(teacher.logits, student=classifier.preprocess)
    task = ClassificationTask(classifier.model, recipe, batches * recipe.epochs, imitate)
    last = run.folder / LAST
    if last.is_file() and _has_finished(last, writer):
        run.say("the run had finished training")
        return
    try:
        trainer.fit(task, datamodule=data, ckpt_path=last if last.is_file() else None, weights_only=True)
    except Interrupted:
        if not writer.has_kept:
            classifier.save(run.folder)
        run.say(f"stopped; the {'best model so far' if writer.has_kept else 'unfinished model'} is in {run.folder}")
        run.say(f"to go on: vitkit train --resume {run.folder}")
        raise
    except VitkitError as error:  # from a worker process it comes wrapped in that process's traceback
        raise VitkitError(str(error).rsplit("VitkitError: ", 1)[-1].strip()) from error


def _has_finished(last: Path, writer: RunWriter) -> bool:
    try:
        checkpoint = torch.load(last, map_location="cpu", weights_only=True)
        return bool(checkpoint["callbacks"][writer.state_key]["finished"])
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError) as error:
        raise VitkitError(f"{last} is damaged; delete it to train this run from its beginning") from error


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Without Lightning's tips and its advice on what was chosen on purpose; its errors come through."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The '.*_dataloader' does not have many workers")  # chosen in setup
            warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec", FutureWarning)  # Lightning's own use
            yield
    finally:
        log.setLevel(level)


class _ShowSteps(Callback):
    """Reports each step to the run's progress."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
        batches = int(trainer.num_training_batches)
        self.progress(
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}", trainer.fit_loop.batch_idx + 1, batches
        )


def _check_free(out: str | Path | None, data: Path, teacher: str | None, *, force: bool) -> None:
    """Refuse a run folder among the photographs, or one that holds something, unless it is a run to be written over."""
    folder = Path("runs" if out is None else out)
    if folder.resolve().is_relative_to(data):
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


def _claim(out: str | Path | None, name: str) -> Path:
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


def _discard_if_empty(folder: Path) -> None:
    """A run that ended before there was a model leaves no folder behind."""
    if not (folder / WEIGHTS).exists() and not (folder / LAST).exists():
        _remove_own(folder)
        if not any(folder.iterdir()):
            folder.rmdir()


def _remove_own(folder: Path) -> None:
    _sweep(folder)
    for name in _OWN_FILES:
        (folder / name).unlink(missing_ok=True)
    for name in ("checkpoints", "tensorboard"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what a killed process was writing."""
    for unfinished in folder.rglob(".*.tmp"):
        unfinished.unlink()
