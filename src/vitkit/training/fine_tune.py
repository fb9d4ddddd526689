"""Train a model by gradient descent, as every method does except fitting a head to frozen features (`probe`).

`learn` prepares the model and the images, and `run_training` takes the steps by the loop of `loop.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from vitkit.classifier import Classifier
from vitkit.data.augment import Augment
from vitkit.data.loading import BatchedImages, ImageData, explain_worker_errors, mix_seeds, quiet_workers
from vitkit.data.preprocess import Preprocess
from vitkit.data.table import MULTI_LABEL, ImageTable
from vitkit.errors import Interrupted, VitkitError
from vitkit.evaluation.figures import BALANCE
from vitkit.model.build import vit_of
from vitkit.model.vit import VisionTransformer
from vitkit.reporting import plots
from vitkit.system import environment
from vitkit.system.processes import Deferral
from vitkit.system.run_files import LAST, RECIPE
from vitkit.text.cells import plural
from vitkit.training.adapters import add_low_rank, count_parameters, drop_patches, freeze_backbone
from vitkit.training.checkpoint import RunWriter, TrainableModel, TrainingState, has_state, identity, read
from vitkit.training.distributed import fabric_of
from vitkit.training.finalize import (
    class_weights,
    log_weights,
    logit_shift,
    prior_correction,
    resolve_balance,
    shift_head_bias,
)
from vitkit.training.loggers import LogEpochs, loggers_of
from vitkit.training.loop import Interruption, Loop
from vitkit.training.losses import MultiLabelObjective, Objective, TrainingObjective
from vitkit.training.probe import ZERO_SHOT_KEPT, HeadImages, initialise_head
from vitkit.training.recipe import checkpoint_every
from vitkit.training.run_folder import Run
from vitkit.training.stability import DivergedError
from vitkit.training.start import augment_of, choose_compile, choose_device, choose_precision, choose_workers
from vitkit.training.teacher import Teacher

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def learn(
    run: Run,
    classifier: Classifier,
    teacher: Teacher | None,
    data: BatchedImages | None = None,
    head_images: HeadImages | None = None,
) -> Classifier:
    """Train the classifier's model on the training images of the run, and return the model that the recipe keeps.

    `teacher` is the teacher of a distillation. `data` are the images in batches, and `head_images` those to which the
    head is fitted before the training if the recipe requests this (`lp_ft`). Without them, the run's files are read.
    """
    inputs = run.inputs
    data, objective, fabric, head_seconds = prepare_training(run, classifier, teacher, data, head_images)
    teacher_digest = classifier.provenance.get("teacher", {}).get("sha256")
    settings = identity(run.recipe, inputs.table, inputs.contents, teacher_digest)
    callbacks = [DrawFirstBatch(run, data, classifier.preprocess)] if run.team.is_main else []
    return run_training(
        run, data, classifier, objective, fabric, settings, seconds_before=head_seconds, callbacks=callbacks
    )


def prepare_training(
    run: Run,
    classifier: Classifier,
    teacher: Teacher | None,
    data: BatchedImages | None = None,
    head_images: HeadImages | None = None,
) -> tuple[BatchedImages, Objective, Fabric, float]:
    """Prepare everything for the first step, with the arguments of `learn`.

    Return the images, the objective, the device with the precision, and the seconds that fitting the head took.
    """
    recipe, table, model = run.recipe, run.inputs.table, classifier.model
    counts = list(table.of_split("train").counts().values())
    balance, message = resolve_balance(recipe.balance, counts)
    if message is not None:
        run.say(message)
    has_teacher = teacher is not None
    correction = prior_correction(counts, balance, recipe.prior, model, task=table.task, has_teacher=has_teacher)
    classifier.provenance[BALANCE] = correction.to_dict()
    if recipe.head_from == "names":
        # Validation adds the correction. It is subtracted here, so that epoch 0 uses the names alone.
        shift_head_bias(model, correction, [-value for value in correction.in_head])

    if data is None:
        data = make_image_data(run, classifier, augment_of(recipe, run.hooks.augment), is_balanced=balance == "sampler")
    fabric = prepare_device(run, classifier, data)
    if recipe.patch_dropout and isinstance(model, VisionTransformer):
        drop_patches(model, recipe.patch_dropout)

    head = model.head if model.head_dist is None else None  # a pair of heads is not fitted
    head_seconds = 0.0
    if recipe.lp_ft and head is not None and not has_state(run.folder):
        fit = partial(initialise_head, run, classifier, head_images)
        head_seconds, weights = run.team.broadcast_from_main(lambda: (fit(), head.state_dict()))
        head.load_state_dict(weights)
        # The fitted head assumes the class frequencies of the data, but the training may weight the classes otherwise.
        with torch.no_grad():
            head.bias.add_(log_weights(counts, balance, table.task))

    if recipe.method == "probe-sgd":
        run.say(f"trained: {', '.join(freeze_backbone(model))}")
    if recipe.method == "lora":
        adapted = add_low_rank(vit_of(model, "method lora"), recipe.lora_rank, mix_seeds(recipe.seed))
        trained, parameters = count_parameters(model)
        size = f"{trained:,} of {parameters:,} parameters trained"
        run.say(f"LoRA of rank {recipe.lora_rank} in {len(adapted)} matrices; {size}")
    options: dict[str, Any] = {
        "teacher_logits": None if teacher is None else partial(teacher.logits, student=classifier.preprocess),
        "class_weights": class_weights(counts, table.task) if balance == "loss" else None,
        "shift": logit_shift(model, correction),
        "custom_loss": run.hooks.loss,
    }
    if table.task is MULTI_LABEL:
        sets = torch.tensor(table.set_targets())
        objective: Objective = MultiLabelObjective(recipe, len(table.classes), sets=sets, **options)
    else:
        objective = Objective(recipe, len(table.classes), **options)
    return data, objective, fabric, head_seconds


def prepare_device(run: Run, classifier: Classifier, data: BatchedImages) -> Fabric:
    """Prepare the device, the precision and the model for a run, and report how much space decoded pictures take."""
    recipe = run.recipe
    if data.cache == "disk" or (data.cache == "ram" and data.cache_bytes >= 2**26):
        location = {"ram": "memory", "disk": "vitkit's cache on disk"}[data.cache]
        run.say(f"decoded pictures are kept in {location}: about {math.ceil(data.cache_bytes / 2**20)} MiB")
    # On CPUs the fused kernel's backward pass is slower than attention written out (docs/log.md).
    fabric = fabric_of(choose_precision(recipe.precision, recipe.device), choose_device(recipe), run.team)
    if isinstance(classifier.model, VisionTransformer):
        classifier.model.fused_attention = fabric.device.type == "cuda"
        classifier.model.checkpointing = checkpoint_every(recipe.checkpointing)
    return fabric


def make_image_data(run: Run, classifier: Classifier, augment: Augment, *, is_balanced: bool = False) -> ImageData:
    """Return the images of a run in batches. With `is_balanced`, images of rare classes are drawn more often."""
    recipe, team = run.recipe, run.team
    # On a GPU, pixels are normalised there, so that the workers send them as bytes instead of floats.
    is_on_gpu = environment.choose_device(recipe.device) == "cuda" and not recipe.random_erasing
    return ImageData(
        run.inputs.table,
        classifier.preprocess,
        augment,
        batch_size=recipe.batch_size,
        # Three channels are uint8 if the GPU normalises them, otherwise float32.
        workers=choose_workers(recipe, classifier.preprocess.size, bytes_per_pixel=3 if is_on_gpu else 12),
        seed=recipe.seed,
        normalise_on=torch.device("cuda") if is_on_gpu else None,
        balanced=is_balanced,
        process=(team.rank, team.size),
        cache=recipe.cache,
        pictures=run.photographs,
    )


def run_training(
    run: Run,
    data: BatchedImages,
    classifier: Classifier,
    objective: TrainingObjective,
    fabric: Fabric,
    settings: dict[str, Any],
    *,
    network: TrainableModel | None = None,
    seconds_before: float = 0.0,
    callbacks: Sequence[Any] = (),
) -> Classifier:
    """Run the training loop, from the checkpoint if there is one, and return the model that the recipe keeps.

    `network` is the module that is trained, by default the model of the classifier that is saved. `seconds_before` is
    the time before the first step, which counts towards the time budget. `settings` is the identity of the run
    (`checkpoint.identity`): a checkpoint with another one is refused. `callbacks` are added to those of the caller.
    """
    recipe, team = run.recipe, run.team
    steps_per_epoch = math.ceil(data.batches / recipe.grad_accum)
    length = f"{plural(recipe.epochs, 'epoch', 'epochs')} of {plural(steps_per_epoch, 'step', 'steps')}"
    precision = choose_precision(recipe.precision, recipe.device)
    batch = f"{recipe.grad_accum} x {recipe.batch_size}" if recipe.grad_accum > 1 else str(recipe.batch_size)
    dropped = f"; without {recipe.patch_dropout:.0%} of the patches" if recipe.patch_dropout else ""
    run.say(f"{length} in {precision}; batch {batch}, lr {recipe.lr:g}{dropped}")

    network = classifier.model if network is None else network
    network.train().to(fabric.device)
    team.broadcast_weights(network)
    state = TrainingState(network, recipe, steps_per_epoch * recipe.epochs, run.say, team, run.hooks.optimizer)
    state.clock.spent = state.clock.before_first_step = seconds_before
    writer = RunWriter(
        run.folder, classifier, recipe, run.say, team, settings, metrics=run.metrics, stop_after=run.stop_after
    )
    if has_state(run.folder) and _load_checkpoint(run, state, writer):
        run.say("the run had finished training")
        return writer.saved_classifier() if team.is_main else classifier

    loggers = [*loggers_of(recipe, run.folder, state.epoch), *run.hooks.loggers] if team.is_main else []
    curves = LogEpochs(loggers, recipe, run.say)
    callbacks = [writer, *callbacks, *run.hooks.callbacks, curves]
    stop = Deferral(echo=2.0 if team.size > 1 else 0.0)  # a launcher repeats a signal for each of its processes
    interruption = Interruption(stop, team)
    loop = Loop(state, objective, data, fabric, team=team, callbacks=callbacks, interruption=interruption)
    if choose_compile(recipe, len(data.train)):
        loop.compile_steps()
    if recipe.head_from == "names" and data.has_val:
        loop.callbacks.insert(0, _EvaluateStart(loop.validate, writer))

    status = "failed"
    advice = f"set workers = 0 in {run.folder / RECIPE}, then continue with --resume"
    explaining = explain_worker_errors(data.workers, advice)
    try:
        with _reporting_saved_model(run, state, writer), explaining, stop, quiet_workers():
            loop.fit()
            stop.received = max(team.gather(stop.received or 0)) or None  # a signal to one process stops all
        status = "success"
    finally:
        data.close()
        curves.close(status)
    if not writer.has_saved_model:
        message = "no epoch led to a usable model: try a lower --lr, a longer --warmup, or more --epochs"
        raise DivergedError("training.diverged", message)
    if writer.is_zero_shot_best:
        run.say(ZERO_SHOT_KEPT)
    return writer.saved_classifier() if team.is_main else classifier


@dataclass
class _EvaluateStart:
    """A callback that evaluates the model before the first step of a new run, and records the figures."""

    validate: Callable[[], Any]
    writer: RunWriter

    def on_fit_start(self, state: TrainingState) -> None:
        if state.epoch == 0 and state.step == 0:
            self.validate()
            self.writer.save_zero_shot(state)


@contextmanager
def _reporting_saved_model(run: Run, state: TrainingState, writer: RunWriter) -> Iterator[None]:
    """If the training in this context ends early, report which model is in the run folder.

    If a signal ends the training before a model was saved, the unfinished model is saved here.
    """
    try:
        yield
    except Interrupted:
        if not writer.has_saved_model:
            writer.save(run.folder, state.model_to_save)
        model = "best model so far" if writer.has_saved_model else "unfinished model"
        run.say(f"stopped; the {model} is in {run.folder}")
        raise
    except VitkitError:
        if writer.has_saved_model:
            run.say(f"the best model so far is in {run.folder}")
        raise


def _load_checkpoint(run: Run, state: TrainingState, writer: RunWriter) -> bool:
    """Load the checkpoint of a run, and return whether the run had finished its training."""
    path = run.folder / LAST
    stored = read(path, writer.identity)
    try:
        state.load_state_dict(stored)
        writer.load_state_dict(stored["writer"])
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        message = f"{path} is damaged, or from an earlier version; delete it to train this run from its beginning"
        raise VitkitError("training.checkpoint-damaged", message) from error
    return writer.is_finished


# --- The images as the model sees them -----------------------------------------------------------------------------

_MAX_DRAWN = 16  # maximum number of images in train_batch.png


@dataclass
class DrawFirstBatch:
    """A callback that draws the first batch on which a run trains: augmented, before images are mixed."""

    run: Run
    data: BatchedImages
    preprocess: Preprocess

    def draw_first_batch(self, images: Tensor) -> None:  # (B, C, height, width), of this process
        train = self.data.table.of_split("train")
        rows = self.data.rows_of_batch(0, 0)
        _draw_training_images(self.run, train, self.preprocess, images, rows, ", augmented")


def draw_some(run: Run, images: Dataset[Any], preprocess: Preprocess) -> None:
    """Draw training images that are chosen at random, for a run that trains a head without augmentation."""
    train = run.inputs.table.of_split("train")
    rows = np.random.default_rng(run.recipe.seed).permutation(len(train))[:_MAX_DRAWN].tolist()
    _draw_training_images(run, train, preprocess, torch.stack([images[row][0] for row in rows]), rows, "")


def _draw_training_images(
    run: Run, train: ImageTable, preprocess: Preprocess, images: Tensor, rows: Sequence[int], suffix: str
) -> None:
    """Draw the first of some images (B, C, height, width), with their classes; `rows` are their rows in `train`."""
    pictures = [preprocess.picture_of(image.numpy()) for image in images[:_MAX_DRAWN].float().cpu()]
    titles = [train.name_of(row) or "none" for row in rows[:_MAX_DRAWN]]
    sheet = plots.contact_sheet(pictures, titles, f"Training images as the model sees them{suffix}")
    run.draw("What the model sees in training", sheet)
