"""`--find-lr`: short runs from the same start, one for each learning rate, judged on images of all classes.

Each takes the steps of the run itself (`ClassificationTask`), with its teacher, mixing, weights and precision; only the
schedule is another, of a short warm-up and then the same rate. One process does it, with whole batches.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from lightning import Callback, Trainer
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

from vitkit.data.loading import ImageData
from vitkit.model.vit import VisionTransformer
from vitkit.system.stopping import Deferral
from vitkit.training.callbacks import StopOnSignal
from vitkit.training.divergence import DivergedError, Guard
from vitkit.training.recipe import Recipe
from vitkit.training.setup import trainer_options
from vitkit.training.task import ClassificationTask

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of the recipe's learning rate
STEPS, WARMUP = 25, 5
_JUDGED = 512  # images


def find_lr(
    model: VisionTransformer,
    recipe: Recipe,
    data: ImageData,
    precision: str,
    progress: Callable[[int, int], None],
    **objective: Any,
) -> dict[float, float]:
    """The validation loss that each learning rate leads to in a few steps; infinite where it leads nowhere.

    Args:
        model: where every short run starts; it is left as it is, as is what random numbers follow.
        recipe: its `lr` is the middle of what is tried.
        data: training images, and those that judge: `ImageData.sample` of the validation images; without any, of the
            training images.
        precision: float32 or bfloat16.
        progress: told how many of how many steps are done.
        objective: what else `ClassificationTask` is given, so that it learns what the run learns.

    Raises:
        Interrupted: a signal stopped the search.
    """
    sampled, outcome = data.sample(_JUDGED), {}
    with torch.random.fork_rng():
        for number, factor in enumerate(FACTORS):
            lr = recipe.lr * factor
            own = recipe.replace(
                lr=lr,
                schedule="constant",
                step_per="step",
                warmup=WARMUP / STEPS,
                ema=0.0,
                swa=0.0,
                time=None,
                find_lr=False,
            )
            task = ClassificationTask(copy.deepcopy(model), own, STEPS, guard=Guard(lambda _: None), **objective)
            show = _ShowSteps(progress, number)
            outcome[lr] = _score(task, sampled, precision, show)
    return outcome


def _score(task: ClassificationTask, data: ImageData, precision: str, show: Callback) -> float:
    """Train for a few steps, and the loss of the images that judge."""
    stop = Deferral()
    trainer = Trainer(
        **trainer_options(precision),
        devices=1,
        plugins=[LightningEnvironment()],  # whatever else has started processes
        max_epochs=-1,
        max_steps=STEPS,
        callbacks=[StopOnSignal(stop), show],
        enable_checkpointing=False,
        limit_val_batches=1.0,
        check_val_every_n_epoch=STEPS + 1,  # once, at the end
    )
    try:
        with stop:
            task.model.train()
            trainer.fit(task, datamodule=data)
            if task.guard.lowered:  # what followed was another learning rate's
                return math.inf
            trainer.validate(task, datamodule=data, verbose=False)
    except DivergedError:  # as the run would
        return math.inf
    loss = task.metrics["val_loss"]
    return loss if math.isfinite(loss) else math.inf


class _ShowSteps(Callback):
    """Reports each step of the short run of this number."""

    def __init__(self, progress: Callable[[int, int], None], number: int) -> None:
        self._progress, self._before = progress, number * STEPS

    def on_train_batch_end(self, trainer: Trainer, *args: object) -> None:
        self._progress(self._before + trainer.global_step, len(FACTORS) * STEPS)
