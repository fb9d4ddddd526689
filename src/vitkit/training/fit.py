"""From a run's folder, where recipe and split are settled, to the best model and its report. Lightning works here."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.augment import mix_seeds
from vitkit.data.loading import ImageData, is_worker_lost, worker_lost
from vitkit.data.sources import ImageTable
from vitkit.data.splits import SPLITS
from vitkit.data.whereabouts import images_of_run, read_contents
from vitkit.errors import Interrupted, VitkitError
from vitkit.evaluation.metrics import Evaluation
from vitkit.model_folder import RECORD, WEIGHTS
from vitkit.system.files import from_json, write_text
from vitkit.system.progress import Progress
from vitkit.system.stopping import Deferral
from vitkit.training.balance import class_weights, log_weights, settle_balance, shift_answers, stand
from vitkit.training.callbacks import LAST, RunWriter, StopOnSignal
from vitkit.training.checkpoint import identity, read
from vitkit.training.distributed import Team, strategy_of
from vitkit.training.divergence import Guard
from vitkit.training.finalize import keep_standing, settle_confidence
from vitkit.training.linear import freeze_backbone
from vitkit.training.lora import add_low_rank
from vitkit.training.lr_finder import STEPS, find_lr
from vitkit.training.patches import drop_patches
from vitkit.training.probe import Features, fit_head, start_head
from vitkit.training.recipe import Recipe, without_places
from vitkit.training.recipe_values import checkpoint_every
from vitkit.training.run_folder import RECIPE, SPLIT, Run
from vitkit.training.setup import (
    augment_of,
    choose_compile,
    choose_precision,
    choose_workers,
    new_classifier,
    trainer_options,
)
from vitkit.training.summary import draw_data, report
from vitkit.training.suspects import doubt_labels
from vitkit.training.task import ClassificationTask
from vitkit.training.teacher import Teacher, teacher_of_run
from vitkit.weights import load

_MUCH = 2**26  # bytes of memory for decoded pictures, of which the user should know


def fit_and_report(run: Run, recipe: Recipe) -> Evaluation:
    """Everything after the data is settled; what it reads is what a resumed run reads."""
    table = images_of_run(run.folder / SPLIT, progress=run.progress)
    data_hash = from_json((run.folder / SPLIT).read_text(encoding="utf-8"))["hash"]
    classifier = run.team.in_turn(lambda: new_classifier(recipe, table, data_hash, run.progress))
    for name, taken in ({} if classifier.report is None else classifier.report.assumed).items():
        if name != "classes":  # they go with the head that is replaced
            run.say(f"note: {name} assumed: {taken}")
    record = run.folder / RECORD
    classifier.pictures = record.read_bytes() if record.is_file() else None
    teacher = None
    if recipe.teacher is not None:
        teacher = teacher_of_run(run.folder, recipe.teacher, classifier.classes, classifier.preprocess.size)
        classifier.provenance["teacher"] = {"name": without_places(recipe).teacher, "sha256": teacher.sha256}
        for note in teacher.notes:
            run.say(f"note: {note}")
    if run.team.is_first:
        draw_data(run.folder, table, classifier.preprocess, augment_of(recipe), recipe.seed)
    counts = ", ".join(f"{len(table.of_split(name))} {name}" for name in SPLITS)
    run.say(f"{len(table.classes)} classes; images: {counts}")
    known: Features | None = None
    if recipe.method == "probe":
        if run.team.is_first and not (run.folder / WEIGHTS).is_file():  # else a resumed run had its head already
            known = fit_head(run, recipe, table, classifier)
    else:
        _learn(run, recipe, table, classifier, teacher)
    try:
        return _conclude(run, recipe, table, known)
    except Interrupted:
        run.say(f"stopped; the model is in {run.folder}, its report is not finished")
        raise


def _conclude(run: Run, recipe: Recipe, table: ImageTable, known: Features | None) -> Evaluation:
    """Settle what the trained model's confidences are worth, evaluate it and write the report."""
    if table.is_multi:
        run.team.by_first(partial(_settle_thresholds, run, table))
    evaluation = run.team.by_first(
        lambda: report(run.folder, recipe, table, run.say, run.progress, doubt_labels(run, recipe, table, known))
    )
    what = "exact match" if table.is_multi else "accuracy"
    run.say(
        f"{what} {evaluation.accuracy:.4f} on {evaluation.described}"
        f" ({evaluation.loss:.4f} log loss); report: {run.folder / 'report.html'}"
    )
    return evaluation


def _settle_thresholds(run: Run, table: ImageTable) -> None:
    classifier = load(run.folder)
    progress = partial(run.progress, "choosing thresholds")
    seen = settle_confidence(run.folder, classifier, table, progress)
    assert classifier.thresholds is not None
    if seen is None:
        run.say("no validation images to choose thresholds by: every class has 0.5")
        return
    run.say(f"temperature {classifier.temperature:.3f}, fitted on {len(seen.labels)} validation images")
    named = ", ".join(f"{name} {own:.3f}" for name, own in zip(table.classes[:10], classifier.thresholds, strict=False))
    run.say(f"thresholds by F1 on validation images: {named}{', ...' if len(table.classes) > 10 else ''}")


def _learn(run: Run, recipe: Recipe, table: ImageTable, classifier: Classifier, teacher: Teacher | None) -> None:
    """Every method but that of fitting a head to frozen features: steps along a gradient."""
    in_train = list(table.of_split("train").counts().values())
    balance, why = settle_balance(recipe.balance, in_train)
    if why is not None:
        run.say(why)
    model, is_multi, has_teacher = classifier.model, table.is_multi, teacher is not None
    standing = stand(in_train, balance, recipe.prior, model, is_multi=is_multi, has_teacher=has_teacher)
    keep_standing(classifier, standing)
    data = _data_of(recipe, table, classifier, balance, run.team)
    if data.cache == "disk" or (data.cache == "ram" and data.kept_bytes >= _MUCH):
        place = {"ram": "memory", "disk": "vitkit's cache on disk"}[data.cache]
        run.say(f"decoded pictures are kept in {place}: about {math.ceil(data.kept_bytes / 2**20)} MiB")
    # On CPUs the fused kernel's backward pass is slower than attention written out (docs/log.md).
    classifier.model.fused_attention = torch.cuda.is_available()
    classifier.model.checkpointing = checkpoint_every(recipe.checkpointing)
    if recipe.patch_dropout:
        drop_patches(classifier.model, recipe.patch_dropout)
    spent = _start_head(run, recipe, table, classifier, log_weights(in_train, balance, is_multi=is_multi))
    if recipe.method == "probe-sgd":
        run.say(f"trained: {', '.join(freeze_backbone(classifier.model))}")
    if recipe.method == "lora":
        adapted = add_low_rank(classifier.model, recipe.lora_rank, mix_seeds(recipe.seed))
        run.say(f"changes of rank {recipe.lora_rank} in {len(adapted)} matrices; {_count_trained(classifier)} trained")
    objective: dict[str, Any] = {
        "imitate": None if teacher is None else partial(teacher.logits, student=classifier.preprocess),
        "class_weights": class_weights(in_train, is_multi=is_multi) if balance == "loss" else None,
        "sets": torch.tensor(table.set_targets()) if is_multi else None,
        "shift": shift_answers(model, standing),
    }
    if recipe.find_lr:
        began = time.monotonic()
        recipe = run.team.by_first(partial(_settle_lr, run, recipe, classifier, data, objective))
        spent += run.team.by_first(lambda: time.monotonic() - began)
    with _quiet_lightning():
        _fit(run, recipe, data, classifier, objective, spent)


def _start_head(run: Run, recipe: Recipe, table: ImageTable, classifier: Classifier, learned: Tensor) -> float:
    """Fit the head first if the recipe says so, and not on resuming; the seconds that it took.

    `learned` (K,) makes of a head for the data as they come one for what the training is to learn.
    """
    model = classifier.model
    if not recipe.lp_ft or model.head is None or model.head_dist is not None or (run.folder / LAST).is_file():
        return 0.0
    head = model.head
    seconds, state = run.team.by_first(lambda: (start_head(run, recipe, table, classifier), head.state_dict()))
    head.load_state_dict(state)
    with torch.no_grad():
        head.bias.add_(learned)
    return seconds


def _data_of(recipe: Recipe, table: ImageTable, classifier: Classifier, balance: str, team: Team) -> ImageData:
    return ImageData(
        table,
        classifier.preprocess,
        augment_of(recipe),
        batch_size=recipe.batch_size,
        workers=choose_workers(recipe, classifier.preprocess.size),
        seed=recipe.seed,
        balanced=balance == "sampler",
        process=(team.rank, team.size),
        cache=recipe.cache,
    )


def _count_trained(classifier: Classifier) -> str:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in classifier.model.parameters()]
    return f"{sum(size for size, is_trained in sizes if is_trained):,} of {sum(size for size, _ in sizes):,} parameters"


def _settle_lr(run: Run, recipe: Recipe, classifier: Classifier, data: ImageData, objective: dict[str, Any]) -> Recipe:
    """The recipe with the learning rate that short runs found best, written down so that a resumed run has it too."""
    with _quiet_lightning():
        outcome = find_lr(
            classifier.model,
            recipe,
            data,
            choose_precision(recipe.precision),
            lambda done, total: run.progress("trying learning rates", done, total),
            **objective,
        )
    best = min(outcome, key=lambda lr: outcome[lr])
    if not math.isfinite(outcome[best]):
        raise VitkitError("--find-lr: no learning rate led to a finite loss; give a lower --lr to search around")
    tried = ", ".join(f"{lr:g}: {loss:.3f}" for lr, loss in outcome.items())
    judges = "validation" if len(data.val) else "training"
    run.say(f"loss on {judges} images after {STEPS} steps by learning rate: {tried}; taking {best:g}")
    recipe = recipe.replace(lr=best, find_lr=False)
    classifier.provenance["recipe"].update(lr=best, find_lr=False)
    write_text(run.folder / RECIPE, recipe.to_toml())
    return recipe


def _describe(recipe: Recipe, steps: int) -> str:
    batch = f"{recipe.grad_accum} x {recipe.batch_size}" if recipe.grad_accum > 1 else str(recipe.batch_size)
    spared = f"; without {recipe.patch_dropout:.0%} of the patches" if recipe.patch_dropout else ""
    precision = choose_precision(recipe.precision)
    return f"{recipe.epochs} epochs of {steps} steps in {precision}; batch {batch}, lr {recipe.lr:g}{spared}"


def _trainer_of(run: Run, recipe: Recipe, data: ImageData, writer: RunWriter, stop: Deferral) -> Trainer:
    return Trainer(
        **trainer_options(choose_precision(recipe.precision)),
        devices=run.team.size // run.team.machines,
        num_nodes=run.team.machines,
        strategy=strategy_of(recipe, run.team),
        max_epochs=recipe.epochs,
        callbacks=[StopOnSignal(stop, run.team), _ShowSteps(run.progress, recipe.grad_accum), writer],
        limit_val_batches=1.0 if len(data.val) else 0,
    )


def _fit(
    run: Run,
    recipe: Recipe,
    data: ImageData,
    classifier: Classifier,
    objective: dict[str, Any],
    spent: float,
) -> None:
    steps = math.ceil(len(data.train_dataloader()) / recipe.grad_accum)
    writer = RunWriter(run.folder, classifier, recipe, run.say, run.team)
    run.say(_describe(recipe, steps))
    classifier.model.train()
    stop = Deferral()
    trainer = _trainer_of(run, recipe, data, writer, stop)
    guard = Guard(run.say, run.folder if run.team.is_first else None)
    task = ClassificationTask(
        classifier.model,
        recipe,
        steps * recipe.epochs,
        guard=guard,
        team=run.team,
        **objective,
    )
    task.spent = task.ahead = spent
    contents, imitated = read_contents(run.folder / SPLIT), classifier.provenance.get("teacher", {})
    task.identity = identity(recipe, data.table, contents, imitated.get("sha256"))
    if choose_compile(recipe):
        task.compile_steps()
    last = run.folder / LAST
    if last.is_file() and _has_finished(last, writer, task.identity):
        run.say("the run had finished training")
        return
    try:
        with stop:
            trainer.fit(task, datamodule=data, ckpt_path=last if last.is_file() else None, weights_only=True)
            stop.received = max(run.team.gather(stop.received or 0)) or None
    except Interrupted:
        if not writer.has_kept:
            writer.save(run.folder, task.kept)
        run.say(f"stopped; the {'best model so far' if writer.has_kept else 'unfinished model'} is in {run.folder}")
        raise
    except VitkitError as error:  # from a worker process it comes wrapped in that process's traceback
        if writer.has_kept:
            run.say(f"the best model so far is in {run.folder}")
        raise VitkitError(str(error).rsplit("VitkitError: ", 1)[-1].strip()) from error
    except (RuntimeError, ConnectionError, EOFError) as error:
        if not is_worker_lost(error):
            raise
        kept = f"; the best model so far is in {run.folder}" if writer.has_kept else ""
        cure = f"set workers = 0 in {run.folder / RECIPE}{kept}, then --resume"
        raise VitkitError(f"{worker_lost(data.workers)}; {cure}") from error
    if not writer.has_kept:
        raise VitkitError("no epoch led to a model worth keeping: try a lower --lr, a longer --warmup or more --epochs")


def _has_finished(last: Path, writer: RunWriter, own: dict[str, Any]) -> bool:
    state = read(last, own)
    try:
        return bool(state["callbacks"][writer.state_key]["finished"])
    except (KeyError, TypeError) as error:
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
            warnings.filterwarnings("ignore", "This DataLoader will create")  # or too many
            warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec", FutureWarning)  # Lightning's own use
            yield
    finally:
        log.setLevel(level)


class _ShowSteps(Callback):
    """Reports each step, of so many batches, to the run's progress."""

    def __init__(self, progress: Progress, grad_accum: int) -> None:
        self.progress, self.grad_accum = progress, grad_accum

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
        batches, done = int(trainer.num_training_batches), trainer.fit_loop.batch_idx + 1
        if done % self.grad_accum == 0 or done == batches:
            what = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
            self.progress(what, math.ceil(done / self.grad_accum), math.ceil(batches / self.grad_accum))
