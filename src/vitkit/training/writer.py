"""What is left of each epoch: its row, the best model, and what a resumed run goes on from."""

from __future__ import annotations

import math
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from vitkit.classifier import Classifier
from vitkit.system.files import replacing
from vitkit.system.progress import Say
from vitkit.system.run_files import FILLER, LAST, METRICS
from vitkit.training.balance import standing_so
from vitkit.training.checkpoint import save
from vitkit.training.distributed import ALONE, Team
from vitkit.training.finalize import standing_of
from vitkit.training.lora import merged
from vitkit.training.metrics_file import ZERO_SHOT, append_metrics, truncate_metrics
from vitkit.training.optim import swa_start
from vitkit.training.pretraining.network import SelfSupervised
from vitkit.training.recipe import Recipe
from vitkit.training.state import Trained, TrainingState


class RunWriter:
    """After each epoch: a row of metrics.csv, the model folder if this epoch's weights are to be kept, last.ckpt.

    The order matters: whenever the process dies, `last.ckpt` is the last of the three to know of the epoch, so a
    resumed run does that epoch again, to the same result. It also knows whether the run was over early.

    Args:
        folder: of the run.
        classifier: whose model is in training.
        recipe: what is kept, by which figure, and when no better one ends the training.
        say: takes a line for each epoch.
        team: the processes that train together; the first writes.
        identity: of the run, which its checkpoints carry (`checkpoint.identity`).
    """

    _STATE = ("best", "last_rise", "has_kept", "keeps_start", "finished", "limits")

    def __init__(
        self,
        folder: Path,
        classifier: Classifier,
        recipe: Recipe,
        say: Say,
        team: Team = ALONE,
        identity: dict[str, Any] | None = None,
    ) -> None:
        self.folder, self.classifier, self.recipe, self.say, self.team = folder, classifier, recipe, say, team
        self.identity = identity or {}
        self.best: float | None = None
        self.last_rise = 0  # the last epoch that was better than all before it; `patience` counts from here
        self.has_kept = False
        self.keeps_start = False  # what is kept has learned nothing yet
        self.finished = False
        self.limits = [recipe.time, recipe.patience]

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know of the epochs before."""
        return {name: getattr(self, name) for name in self._STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        limits = self.limits
        for name in self._STATE:
            setattr(self, name, state[name])
        self.finished &= self.limits == limits  # else it was over by others
        self.limits = limits

    def on_fit_start(self, state: TrainingState) -> None:
        """Forget rows of epochs that are done again."""
        if self.team.is_first:
            truncate_metrics(self.folder / METRICS, state.epoch)

    def keep_start(self, state: TrainingState) -> None:
        """Write down how good the model is by the names of its classes alone: zero-shot is epoch 0, and row -1."""
        metrics = self._figures(state)
        if self.team.is_first:
            truncate_metrics(self.folder / METRICS, ZERO_SHOT)  # of a start that was cut short
            row = {"epoch": ZERO_SHOT, "step": 0, **metrics, "seconds": round(state.clock.elapsed, 1)}
            append_metrics(self.folder / METRICS, row)
        is_best = self._note_best(ZERO_SHOT, metrics)
        if is_best and self.recipe.keep != "last":
            self.classifier.provenance["metrics"] = {"epoch": ZERO_SHOT, **metrics}
            self.save(self.folder, state.kept)
            self.has_kept = self.keeps_start = True
        told = (f"{name} {metrics[name]:.4f}" for name in ("val_loss", "val_acc", "val_map") if name in metrics)
        self.say("  ".join([f"epoch   0/{self.recipe.epochs}", *told, "zero-shot"]) + ("  *" if is_best else ""))

    def on_epoch_end(self, state: TrainingState) -> None:
        """Write down the epoch, and end the training where it is not worth going on."""
        epoch, metrics = state.epoch, self._figures(state)
        if self.team.is_first:
            row = {"epoch": epoch, "step": state.step, **metrics, "seconds": round(state.clock.elapsed, 1)}
            append_metrics(self.folder / METRICS, row)
        if epoch == swa_start(self.recipe):  # from here on the average is the model, better or not
            self.best = None
        is_best = not state.went_back and self._note_best(epoch, metrics)
        if not state.went_back:
            self._keep_model(epoch, state.kept, metrics, is_best)
        state.should_stop |= state.clock.is_up  # validation took the rest of it
        is_stale = self.recipe.patience is not None and epoch - self.last_rise >= self.recipe.patience
        state.should_stop |= is_stale
        self.finished = state.should_stop
        content = {"run": self.identity, "writer": self.state_dict(), **state.state_dict()}
        if self.team.is_first:
            save(content, self.folder / LAST)
        self.say(_line(epoch, self.recipe.epochs, metrics, state.clock.elapsed, is_best))
        if is_stale:
            self.say(f"no better {self.recipe.monitor} in {self.recipe.patience} epochs: stopping")

    def _figures(self, state: TrainingState) -> dict[str, float]:
        """What the loop has measured, without what callbacks have added."""
        own = ("train_loss", "train_acc", "val_loss", "val_acc", "lr")
        names = (*own, "val_map") if self.classifier.thresholds is not None else own
        return {name: state.metrics[name] for name in names if name in state.metrics}

    def _note_best(self, epoch: int, metrics: dict[str, float]) -> bool:
        """Whether to keep this epoch's weights. A tie goes to the later epoch, which has seen more.

        Without a val split there is no value, and every epoch is kept. A loss that is not finite is never best.
        """
        value = metrics.get(self.recipe.monitor)
        if value is None:
            self.last_rise = epoch
            return True
        if not math.isfinite(value) or not math.isfinite(metrics.get("val_loss", value)):
            return False
        sign = -1.0 if self.recipe.monitor == "val_loss" else 1.0
        if self.best is None or sign * value > sign * self.best:
            self.best, self.last_rise = value, epoch
            return True
        return value == self.best

    def _keep_model(self, epoch: int, model: Trained, metrics: dict[str, float], is_best: bool) -> None:
        self.classifier.provenance["metrics"] = {"epoch": epoch, **metrics}
        if self.recipe.keep == "every":
            if self.team.is_first:
                for other in (self.folder / "checkpoints").glob(f"epoch-{epoch:04d}*"):  # of a run cut short right here
                    shutil.rmtree(other)
            self.save(self.folder / "checkpoints" / epoch_name(epoch, metrics), model)
        if is_best or self.recipe.keep == "last":
            self.save(self.folder, model)
            self.has_kept, self.keeps_start = True, False

    def save(self, folder: Path, trained: Trained) -> None:
        """Write the model folder with these weights, low-rank changes made part of the matrices; all processes meet.

        Of a pre-training the encoder is the model, and the rest is a file beside it.
        """
        model = merged(self.team.whole(trained.encoder if isinstance(trained, SelfSupervised) else trained))
        if not self.team.is_first:
            return
        if isinstance(trained, SelfSupervised):
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / FILLER) as temporary:
                save_file(trained.task.state_dict(), temporary)
        # A new Classifier puts its model into evaluation mode, which the one in training must not be.
        classifier = self.classifier if model is self.classifier.model else replace(self.classifier, model=model)
        standing = standing_of(classifier)
        with nullcontext() if standing is None else standing_so(model, standing):
            classifier.save(folder)


def epoch_name(epoch: int, metrics: dict[str, float]) -> str:
    """What an epoch's model folder is called: `epoch-0001-val_loss=0.5312-val_acc=0.9100`."""
    told = [f"{name}={metrics[name]:.4f}" for name in ("val_loss", "val_acc") if name in metrics]
    return "-".join([f"epoch-{epoch:04d}", *told])


def _line(epoch: int, epochs: int, metrics: dict[str, float], seconds: float, is_best: bool) -> str:
    parts = [f"epoch {epoch + 1:>3}/{epochs}"]
    told = ("train_loss", "val_loss", "val_acc", "val_map")
    parts += [f"{name} {metrics[name]:.4f}" for name in told if name in metrics]
    parts += [f"lr {metrics['lr']:.2e}", f"{seconds:.0f} s"]
    return "  ".join(parts) + ("  *" if is_best else "")
