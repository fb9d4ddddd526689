"""The state of a training, its checkpoint file (last.ckpt), and the other files that are written after each epoch.

Callbacks receive the `TrainingState`, and a run resumes from it. `RunWriter` writes the figures of each epoch, the best
model and the checkpoints. A checkpoint is a zip archive with a checksum of each tensor, and contains the identity of
its run. A file that is damaged or belongs to another run is therefore refused.
"""

from __future__ import annotations

import errno
import hashlib
import math
import shutil
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vitkit.classifier import Classifier
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.model.build import Model, build_with_weights, stored_weights
from vitkit.model.names import Config
from vitkit.system.files import from_json, replacing, to_json
from vitkit.system.progress import Say
from vitkit.system.run_files import FILLER, LAST, METRICS
from vitkit.training.adapters import merge_low_rank
from vitkit.training.distributed import ALONE, ProcessGroup
from vitkit.training.finalize import correction_of, with_correction
from vitkit.training.losses import EpochSums
from vitkit.training.optim import WeightAverage, build_optimizer, lr_factor, swa_factor, swa_start
from vitkit.training.pretraining.objectives import SelfSupervised
from vitkit.training.recipe import SAVE_EVERY, Recipe, parse_duration
from vitkit.training.request import MakeOptimizer
from vitkit.training.run_folder import ZERO_SHOT, Metrics
from vitkit.training.stability import FiniteCheck, Pieces
from vitkit.weights import load


class Clock:
    """Measure the seconds spent in a training, including the time before it was resumed.

    With a time budget, all processes use the clock of the main process, so that they compute the same learning rates.
    """

    def __init__(self, budget: float | None = None, team: ProcessGroup = ALONE) -> None:
        self.spent = 0.0  # seconds of the training that were spent before the clock was started
        # The seconds before the first step, for example of fitting a head, count towards the budget, but the
        # learning-rate schedule ignores them.
        self.before_first_step = 0.0
        self._budget, self._team = budget, team
        self._started = self._now = time.monotonic()

    def start(self) -> None:
        self._started = self._now = self._team.broadcast_from_main(time.monotonic)

    def read(self) -> None:
        """Read the clock. All properties use the latest reading, so that they are consistent with each other."""
        self._now = self._team.broadcast_from_main(time.monotonic) if self._budget else time.monotonic()

    def set(self, now: float) -> None:
        """Set the time to `now`, a reading of the main process's clock."""
        self._now = now

    @property
    def elapsed(self) -> float:
        """The seconds spent in training."""
        return self.spent + (self._now - self._started)  # the parentheses avoid rounding errors

    @property
    def used_fraction(self) -> float:
        """The spent fraction, in [0, 1], of the time budget that was left at the first step; 0 without a budget."""
        if not self._budget:
            return 0.0
        left = max(self._budget - self.before_first_step, 1e-9)  # one step is taken even if no time is left
        return min((self.elapsed - self.before_first_step) / left, 1.0)

    @property
    def is_expired(self) -> bool:
        """Whether the time budget is used up; False without a budget."""
        return self._budget is not None and self.elapsed >= self._budget


TrainableModel = Model | SelfSupervised


class TrainingState:
    """The state of a training between two steps.

    A new state is that before the first step. The model must be on its device, and its frozen parameters are not
    trained. Incidents are reported by `say`. By default, the optimiser is the recipe's.

    Attributes:
        model: the model in training.
        optimizer: the optimiser of its trainable parameters.
        recipe: the recipe.
        total_steps: the number of steps of the whole training.
        epoch: the current epoch, from 0.
        step: the number of steps that the optimiser has taken.
        metrics: the figures of this epoch so far: lr, train_loss, train_acc, val_loss, val_acc, and waiting, the
            fraction of the time spent waiting for images. Callbacks may add figures, which are passed to the loggers.
        should_stop: a callback may set it to end the training after this step. With several processes, the training
            ends within the next steps (`loop.Interruption`).
        should_save: a callback may set it to request a checkpoint after this step, likewise.
    """

    def __init__(
        self,
        model: TrainableModel,
        recipe: Recipe,
        total_steps: int,
        say: Say = print,
        team: ProcessGroup = ALONE,
        make_optimizer: MakeOptimizer | None = None,
    ) -> None:
        self.model, self.recipe, self.total_steps, self.team = model, recipe, total_steps, team
        self.optimizer = build_optimizer(model, recipe, make_optimizer)
        self.epoch = self.step = 0
        self.batch = 0  # the number of this epoch's batches that have been processed
        self.is_trained = False  # whether all steps of this epoch have been taken, so that only validation is left
        self.metrics: dict[str, float] = {}
        self.sums = EpochSums()  # of the losses and correct predictions of this epoch, for this process only
        self.should_stop = self.should_save = False
        self.clock = Clock(recipe.budget, team)
        self.epoch_began = 0.0  # the fraction of the time budget that had passed at the beginning of this epoch
        self.pieces = Pieces(say, team)
        self.average = WeightAverage(model, recipe) if recipe.ema or recipe.swa else None
        # Scales losses so that gradients in float16 neither vanish nor overflow; disabled in other precisions.
        device = next(model.parameters()).device
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "float16")
        self.finite_check = FiniteCheck(say, self.scaler, team)

    def __repr__(self) -> str:
        return f"TrainingState(epoch={self.epoch}, step={self.step} of {self.total_steps}, metrics={self.metrics})"

    @property
    def progress(self) -> float:
        """The fraction of the steps or of the time budget that is used up, whichever is larger, in [0, 1]."""
        return min(max(self.step / self.total_steps, self.clock.used_fraction), 1.0)

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        recipe, epochs = self.recipe, self.recipe.epochs
        factor = swa_factor(self.epoch, recipe)
        if factor is None and recipe.step_per == "epoch":
            factor = lr_factor(max(self.epoch / epochs, self.epoch_began), recipe, 1 / epochs)
        elif factor is None:
            factor = lr_factor(self.progress, recipe, 1 / self.total_steps)
        return recipe.lr * factor

    @property
    def model_to_save(self) -> TrainableModel:
        """The model that is validated and saved: the weight average if there is one, else the trained model."""
        if self.average is None or not self.average.has_begun:
            return self.model
        return cast(TrainableModel, self.average.model)

    def next_epoch(self) -> None:
        self.epoch, self.batch, self.is_trained = self.epoch + 1, 0, False

    def state_dict(self, *, within_epoch: bool = False) -> dict[str, Any]:
        """Return the state for a checkpoint. A resumed run continues with the next epoch, or step if `within_epoch`.

        All processes must call this method together. The tensors in `model`, `optimizer` and `average` are not copies,
        so the next step changes them.
        """
        names = self._parameter_names()
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": {names[i]: values for i, values in self.optimizer.state_dict()["state"].items()},
            "average": None if self.average is None else self.average.state_dict(),
            "spent": self.clock.elapsed,
            "ahead": self.clock.before_first_step,
            "piece": self.pieces.size,
            "scaler": self.scaler.state_dict(),
            "skipped": self.finite_check.skipped_in_a_row,
        }
        if not within_epoch:
            return state | {"epoch": self.epoch + 1}
        known = ("lr", "train_loss", "train_acc")  # the figures that exist before the validation of the epoch
        return state | {
            "epoch": self.epoch,
            "batch": self.batch,
            "is_trained": self.is_trained,
            "epoch_began": self.epoch_began,
            "metrics": {name: self.metrics[name] for name in known if name in self.metrics},
            "sums": self.sums.state_dict(self.team),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state_dict`."""
        self.model.load_state_dict(state["model"])
        moments = state["optimizer"]
        numbered = {i: moments[name] for i, name in enumerate(self._parameter_names()) if name in moments}
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": numbered, "param_groups": groups})
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.epoch, self.step = state["epoch"], state["step"]
        self.clock.spent, self.clock.before_first_step = state["spent"], state["ahead"]
        if self.team.size == 1:  # several processes compute whole batches
            self.pieces.size = state["piece"]
        self.finite_check.skipped_in_a_row = state["skipped"]
        if state.get("scaler"):  # the run may have had another precision before
            self.scaler.load_state_dict(state["scaler"])
        self.batch = state.get("batch", 0)
        if self.batch:
            self.is_trained, self.epoch_began = state["is_trained"], state["epoch_began"]
            self.metrics = dict(state["metrics"])
            self.sums.load_state_dict(state["sums"], self.team)

    def _parameter_names(self) -> list[str]:
        """Return the names in the order of the optimiser, whose state numbers the parameters."""
        name_of = {parameter: name for name, parameter in self.model.named_parameters()}
        return [name_of[parameter] for group in self.optimizer.param_groups for parameter in group["params"]]


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode in this context, and restore the mode of each submodule afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


_MAX_DIFFERENCES = 4  # in a message
_DIGEST_LENGTH = 12  # hexadecimal digits that are stored, and shown in messages

# Fields of the recipe that may change on resume, because they do not affect the weights or only extend the training.
MAY_CHANGE = {
    *("data", "weights", "teacher"),  # their content has a digest, or is in the state
    # The result of the following is in split.json.
    *("layout", "follow_links", "labels", "split", "split_from", "group_by", "folds", "max_images"),
    *("epochs", "time", "patience", "keep"),
    *("logger", "save_every", "precision", "device", "devices", "nodes", "checkpointing", "compile"),
    *("cache", "workers"),
    "prior",  # used after the training
}


def identity(
    recipe: Recipe, table: ImageTable, contents: Mapping[str, str], teacher: str | None = None
) -> dict[str, Any]:
    """Return the settings and the digests that determine the weights of a run, by name.

    A run can only be resumed from a checkpoint with the same identity. It contains the known digests of the images
    (`contents`, by path) and of the teacher's weights, but no paths, so that images may move.
    """
    fields = {name: value for name, value in recipe.to_dict().items() if name not in MAY_CHANGE}
    if recipe.swa:
        fields["epochs"] = recipe.epochs  # it determines when averaging starts
    digest = hashlib.sha256()
    for i, (path, split) in enumerate(zip(table.paths, table.splits, strict=True)):
        digest.update(repr((split, table.name_of(i), contents.get(path))).encode())
    return {
        **fields,
        "classes": len(table.classes),
        "images": [table.splits.count(name) for name in ("train", "val", "test")],
        "pictures": digest.hexdigest()[:_DIGEST_LENGTH],
        "teacher": None if teacher is None else teacher[:_DIGEST_LENGTH],
    }


def has_state(folder: Path) -> bool:
    """Return whether a run's folder contains a checkpoint."""
    return (folder / LAST).is_file()


def read(path: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Read a training state from a checkpoint file.

    Raises:
        VitkitError: the file is damaged, or belongs to a run with another identity.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch.load does not compare checksums
            if damaged is not None:
                raise ValueError(f"the checksum of {damaged} differs")
        state = dict(torch.load(path, map_location="cpu", weights_only=True))
        saved = state["run"]
        changed = [f"{name} {saved.get(name)}, not {now}" for name, now in identity.items() if saved.get(name) != now]
    except Exception as error:  # zipfile and torch raise errors of many kinds for damaged data
        # Damaged data can lead to a position outside the file, which is EINVAL. Other system errors are no damage.
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno != errno.EINVAL):
            raise
        message = f"{path} is damaged; delete it to restart the training of this run"
        raise VitkitError("training.checkpoint-damaged", message) from error
    if changed:
        differences = "; ".join(changed[:_MAX_DIFFERENCES])
        raise VitkitError(
            "training.checkpoint-differs",
            f"{path} belongs to another run, or the recipe was changed since: it has {differences};"
            " undo the change, or delete the file to restart the training",
        )
    return state


def save(state: Mapping[str, Any], path: Path) -> None:
    """Write the state of a training atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(path) as temporary, temporary.open("wb") as file:
            torch.save(dict(state), file)  # given a path, torch would not report the cause of an error
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__  # torch replaces it by a RuntimeError
        if not isinstance(cause, OSError):
            raise
        raise OSError(cause.errno, cause.strerror or str(cause), str(path)) from error


class RunWriter:
    """A callback that writes a row of metrics.csv, the best model so far, and last.ckpt after each epoch.

    Within an epoch, `last.ckpt` is written as often as the recipe requests (`save_every`), and when a signal ends the
    training. At the end of an epoch, it is written after all other files. If the process is killed before that, a
    resumed run continues from the previous checkpoint, and writes the files of the epoch again with the same result.
    Of several processes, only the main process writes.
    """

    # The attributes that checkpoints contain.
    _ATTRIBUTES = ("best_value", "best_epoch", "has_saved_model", "is_zero_shot_best", "is_finished", "limits")

    def __init__(
        self,
        folder: Path,
        classifier: Classifier,
        recipe: Recipe,
        say: Say,
        team: ProcessGroup = ALONE,
        identity: dict[str, Any] | None = None,
        metrics: Metrics | None = None,
        stop_after: int | None = None,
    ) -> None:
        self.metrics = metrics or Metrics(folder / METRICS)
        self.stop_after = stop_after  # the number of epochs after which the training ends, although there may be more
        # The configuration, the weights and the provenance of the model in the run folder, if this process saved it.
        self._saved_model: tuple[Config, dict[str, Tensor], dict[str, Any]] | None = None
        self.folder, self.classifier, self.recipe, self.say, self.team = folder, classifier, recipe, say, team
        self.identity = identity or {}
        self.best_value: float | None = None  # of the recipe's `monitor`
        self.best_epoch = 0  # the last epoch that was better than all before; `patience` counts from it
        self.has_saved_model = False  # whether a model was saved into the run folder
        self.is_zero_shot_best = False  # whether that is the zero-shot model
        self.is_finished = False
        self.limits = [recipe.time, recipe.patience]
        self._save_interval = parse_duration(recipe.save_every or SAVE_EVERY)
        self._saved_at = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._ATTRIBUTES}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        limits = self.limits
        for name in self._ATTRIBUTES:
            setattr(self, name, state[name])
        if self.limits != limits:  # with other limits, the training continues
            self.limits = limits
            self.is_finished = False

    def on_fit_start(self, state: TrainingState) -> None:
        """Remove the rows of metrics.csv whose epochs will be repeated."""
        self._saved_at = time.monotonic()
        if self.team.is_main:
            self.metrics.truncate(state.epoch)

    def on_step_end(self, state: TrainingState) -> None:
        """Request a checkpoint if the last one is older than `save_every`."""
        if self.team.is_main and time.monotonic() - self._saved_at >= self._save_interval:
            state.should_save = True

    def on_save(self, state: TrainingState) -> None:
        """Write a checkpoint within the epoch."""
        self._write_checkpoint(state, within_epoch=True)

    def on_interrupt(self, state: TrainingState) -> None:
        """Write a checkpoint before a signal ends the training."""
        if not state.batch:  # the checkpoint of the previous epoch suffices
            return
        self._write_checkpoint(state, within_epoch=True)
        self.say(f"saved after step {state.step}, batch {state.batch} of epoch {state.epoch + 1}")

    def _write_checkpoint(self, state: TrainingState, *, within_epoch: bool = False) -> None:
        content = state.state_dict(within_epoch=within_epoch)  # all processes take part in it
        if self.team.is_main:
            save({"run": self.identity, "writer": self.state_dict(), **content}, self.folder / LAST)
        self._saved_at = time.monotonic()

    def save_zero_shot(self, state: TrainingState) -> None:
        """Record the figures of the zero-shot model, which is epoch 0 in the log, and epoch -1 in metrics.csv.

        The model is saved unless a figure is not finite, or the recipe keeps the last epoch.
        """
        metrics = self._figures(state)
        if self.team.is_main:
            self.metrics.truncate(ZERO_SHOT)  # from an interrupted start
            self.metrics.append({"epoch": ZERO_SHOT, "step": 0, **metrics, "seconds": round(state.clock.elapsed, 1)})
        is_best = self._update_best(ZERO_SHOT, metrics)
        if is_best and self.recipe.keep != "last":
            self.classifier.provenance["metrics"] = {"epoch": ZERO_SHOT, **metrics}
            self.save(self.folder, state.model_to_save)
            self.has_saved_model = self.is_zero_shot_best = True
        self._say_epoch(ZERO_SHOT, metrics, ["zero-shot"], is_best=is_best)

    def on_epoch_end(self, state: TrainingState) -> None:
        """Write the files of the epoch, and end the training after `stop_after`, `patience` or the time budget."""
        epoch, recipe = state.epoch, self.recipe
        metrics = self._figures(state)
        waiting = state.metrics.get("waiting")  # None if the run was resumed after the last step
        if self.team.is_main:
            row = {"epoch": epoch, "step": state.step, **metrics, "seconds": round(state.clock.elapsed, 1)}
            if waiting is not None:
                row["waiting"] = round(waiting, 3)
            self.metrics.append(row)

        if epoch == swa_start(recipe):  # from now on the average is the model, even if it is worse
            self.best_value = None
        is_best = self._update_best(epoch, metrics)
        self.classifier.provenance["metrics"] = {"epoch": epoch, **metrics}
        if recipe.keep == "every":
            self._save_epoch(state, metrics)
        if is_best or recipe.keep == "last":
            self.save(self.folder, state.model_to_save)
            self.has_saved_model, self.is_zero_shot_best = True, False

        is_stale = recipe.patience is not None and epoch - self.best_epoch >= recipe.patience
        is_last = self.stop_after is not None and epoch + 1 >= self.stop_after
        if is_stale or is_last or state.clock.is_expired:  # the validation may have used up the time
            state.should_stop = True
        self.is_finished = state.should_stop
        self._write_checkpoint(state)

        notes = [f"lr {state.metrics['lr']:.2e}", f"{state.clock.elapsed:.0f} s"]
        if waiting is not None and waiting >= 0.1:
            notes.append(f"{waiting:.0%} waiting for images")
        self._say_epoch(epoch, state.metrics, notes, is_best=is_best)
        if is_stale:
            self.say(f"no better {recipe.monitor} in {recipe.patience} epochs: stopping")

    def _save_epoch(self, state: TrainingState, metrics: dict[str, float]) -> None:
        # Save the model in a folder such as checkpoints/epoch-0001-val_loss=0.5312-val_acc=0.9100.
        checkpoints = self.folder / "checkpoints"
        name = f"epoch-{state.epoch:04d}"
        if self.team.is_main:
            for earlier in checkpoints.glob(f"{name}*"):  # left by an interrupted run
                shutil.rmtree(earlier)
        figures = [f"{figure}={metrics[figure]:.4f}" for figure in ("val_loss", "val_acc") if figure in metrics]
        self.save(checkpoints / "-".join([name, *figures]), state.model_to_save)

    def _say_epoch(self, epoch: int, metrics: Mapping[str, float], notes: Sequence[str], *, is_best: bool) -> None:
        names = ("train_loss", "val_loss", "val_acc", "val_map")
        figures = [f"{name} {metrics[name]:.4f}" for name in names if name in metrics]
        line = "  ".join([f"epoch {epoch + 1:>3}/{self.recipe.epochs}", *figures, *notes])
        self.say(f"{line}  *" if is_best else line)

    def _figures(self, state: TrainingState) -> dict[str, float]:
        # Figures that callbacks have added are left out.
        columns = ("train_loss", "train_acc", "val_loss", "val_acc", "lr")
        names = (*columns, "val_map") if self.classifier.thresholds is not None else columns
        return {name: state.metrics[name] for name in names if name in state.metrics}

    def _update_best(self, epoch: int, metrics: dict[str, float]) -> bool:
        # Return whether this epoch is the best so far by the recipe's `monitor`, and update the best value.
        value = metrics.get(self.recipe.monitor)
        if value is None:  # without validation images, every epoch counts as the best
            self.best_epoch = epoch
            return True
        is_diverged = not math.isfinite(metrics.get("val_loss", value))  # although the accuracy may still be finite
        if is_diverged or not math.isfinite(value):
            return False
        sign = -1.0 if self.recipe.monitor == "val_loss" else 1.0
        if self.best_value is None or sign * value > sign * self.best_value:
            self.best_value, self.best_epoch = value, epoch
            return True
        return value == self.best_value  # of two equal models, the later one has seen more images

    def save(self, folder: Path, trained: TrainableModel) -> None:
        """Write a model folder, in the main process.

        For a pre-training, the saved model is the encoder, and the rest is written to another file in the folder.
        """
        if not self.team.is_main:
            return
        if isinstance(trained, SelfSupervised):
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / FILLER) as temporary:
                save_file(trained.task.state_dict(), temporary)
            model = merge_low_rank(trained.encoder)
        else:
            model = merge_low_rank(trained)
        # A new Classifier puts its model into evaluation mode, but the model in training must stay in training mode.
        classifier = self.classifier if model is self.classifier.model else replace(self.classifier, model=model)
        correction = correction_of(classifier)
        with nullcontext() if correction is None else with_correction(model, correction):
            classifier.save(folder)
            if folder == self.folder:
                weights = {name: tensor.detach().to("cpu", copy=True) for name, tensor in stored_weights(model).items()}
                self._saved_model = model.config, weights, from_json(to_json(classifier.provenance))

    def saved_classifier(self) -> Classifier:
        """Return the model that the run folder contains, with the weights of the epoch that was kept."""
        if self._saved_model is None:  # another process saved it, before this one resumed the run
            return load(self.folder)
        config, weights, provenance = self._saved_model
        return replace(self.classifier, model=build_with_weights(config, weights), provenance=provenance)
