"""From a run's folder, where recipe and split are settled, to the best model and its report. Lightning works here."""

from __future__ import annotations

import json
import logging
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from lightning import Callback, LightningModule, Trainer

from vitkit.classifier import WEIGHTS, Classifier
from vitkit.data.datamodule import ImageData
from vitkit.data.source import ImageTable, locate
from vitkit.data.split import SPLITS, split_from_file
from vitkit.errors import Interrupted, VitkitError
from vitkit.evaluate.metrics import Evaluation
from vitkit.train.callbacks import LAST, RunWriter, StopOnSignal
from vitkit.train.folder import SPLIT, Progress, Run
from vitkit.train.probe import fit_head
from vitkit.train.recipe import Recipe
from vitkit.train.setup import augment_of, choose_precision, choose_workers, new_classifier
from vitkit.train.summary import draw_data, report
from vitkit.train.task import ClassificationTask
from vitkit.train.teacher import Teacher, teacher_of_run


def fit_and_report(run: Run, recipe: Recipe, teacher: Teacher | None = None) -> Evaluation:
    """Everything after the data is settled; what it reads is what a resumed run reads."""
    table = locate(split_from_file(run.folder / SPLIT), run.progress)
    data_hash = json.loads((run.folder / SPLIT).read_text(encoding="utf-8"))["hash"]
    classifier = new_classifier(recipe, table, data_hash, run.progress)
    if recipe.teacher is not None:
        if teacher is None or teacher.classes != classifier.classes:  # resumed, or a class had no readable image
            teacher = teacher_of_run(run.folder, recipe.teacher, classifier.classes, classifier.preprocess.size)
        classifier.provenance["teacher"] = {"name": teacher.name, "sha256": teacher.sha256}
        for note in teacher.notes:
            run.say(f"note: {note}")
    draw_data(run.folder, table, classifier.preprocess, augment_of(recipe), recipe.seed)
    counts = ", ".join(f"{len(table.of_split(name))} {name}" for name in SPLITS)
    run.say(f"{len(table.classes)} classes; images: {counts}")
    if recipe.method == "head":
        if not (run.folder / WEIGHTS).is_file():  # else a resumed run had its head already
            fit_head(run, recipe, table, classifier)
    else:
        with _quiet_lightning():
            _fit(run, recipe, table, classifier, teacher)
    evaluation = report(run.folder, recipe, table, lambda done, total: run.progress("evaluating", done, total))
    run.say(
        f"accuracy {evaluation.accuracy:.4f} on {len(evaluation.labels)} {evaluation.split} images"
        f" ({evaluation.loss:.4f} log loss); report: {run.folder / 'report.html'}"
    )
    return evaluation


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
        run.say(f"to go on: vitkit train --resume {run.whole or run.folder}")
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
