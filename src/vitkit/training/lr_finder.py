"""`--find-lr`: short runs from the same start, one for each learning rate, judged on images of all classes.

Each takes the steps of the run itself (`loop`), with its teacher, mixing, weights and precision; only the schedule is
another, of a short warm-up and then the same rate. One process does it, with whole batches.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from vitkit.classifier import Classifier
from vitkit.data.batches import BatchedImages
from vitkit.data.loading import ImageData
from vitkit.errors import VitkitError
from vitkit.model.build import Model
from vitkit.system.files import write_text
from vitkit.system.progress import unsaid
from vitkit.system.run_files import RECIPE
from vitkit.system.stopping import Deferral
from vitkit.training.distributed import fabric_of
from vitkit.training.divergence import DivergedError, Guard, all_finite
from vitkit.training.interruption import Interruption
from vitkit.training.loop import Loop
from vitkit.training.objective import Objective
from vitkit.training.recipe import Recipe
from vitkit.training.run_folder import Run
from vitkit.training.setup import choose_device, choose_precision
from vitkit.training.state import TrainingState

if TYPE_CHECKING:
    from lightning_fabric import Fabric

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of the recipe's learning rate
STEPS, WARMUP = 25, 5
_JUDGED = 512  # images


def settle_lr(run: Run, recipe: Recipe, classifier: Classifier, data: BatchedImages, objective: Objective) -> Recipe:
    """The recipe with the learning rate that short runs found best, written down so that a resumed run has it too."""
    assert isinstance(data, ImageData)
    fabric = fabric_of(choose_precision(recipe.precision, recipe.device), choose_device(recipe))
    progress = partial(run.progress, "trying learning rates")
    outcome = find_lr(classifier.model, recipe, data, objective, fabric, progress)
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


def find_lr(
    model: Model,
    recipe: Recipe,
    data: ImageData,
    objective: Objective,
    fabric: Fabric,
    progress: Callable[[int, int], None],
) -> dict[float, float]:
    """The validation loss that each learning rate leads to in a few steps; infinite where it leads nowhere.

    Args:
        model: where every short run starts; it is left as it is, as is what random numbers follow.
        recipe: its `lr` is the middle of what is tried.
        data: training images, and those that judge: `ImageData.sample` of the validation images; without any, of the
            training images.
        objective: what the run is to learn.
        fabric: of this process alone.
        progress: told how many of how many steps are done.

    Raises:
        Interrupted: a signal stopped the search.
    """
    sampled, outcome = data.sample(_JUDGED), {}
    with torch.random.fork_rng():
        for number, factor in enumerate(FACTORS):
            lr = recipe.lr * factor
            short = {"schedule": "constant", "step_per": "step", "warmup": WARMUP / STEPS}
            own = recipe.replace(lr=lr, ema=0.0, swa=0.0, time=None, find_lr=False, **short)
            begun = copy.deepcopy(model).to(fabric.device).train()
            state = TrainingState.begin(begun, own, STEPS, Guard(unsaid))
            count = _CountSteps(progress, number)
            outcome[lr] = _score(state, objective, sampled, fabric, count)
    sampled.close()
    return outcome


def _score(state: TrainingState, objective: Objective, data: ImageData, fabric: Fabric, count: _CountSteps) -> float:
    """Train for a few steps, and the loss of the images that judge."""
    stop = Deferral()
    loop = Loop(state, objective, data, fabric, callbacks=[count], interruption=Interruption(stop))
    try:
        with stop:
            loop.start()
            while not state.should_stop:
                loop.train_epoch()
                if not all_finite(state.model.state_dict()):  # the run would go on with another learning rate
                    return math.inf
                state.epoch += 1
            loop.validate()
    except DivergedError:  # as the run would
        return math.inf
    loss = state.metrics["val_loss"]
    return loss if math.isfinite(loss) else math.inf


class _CountSteps:
    """Ends the short run of this number after its steps, and reports each."""

    def __init__(self, progress: Callable[[int, int], None], number: int) -> None:
        self._progress, self._before = progress, number * STEPS

    def on_step_end(self, state: TrainingState) -> None:
        self._progress(self._before + state.step, len(FACTORS) * STEPS)
        state.should_stop = state.step >= STEPS
