"""What happens around the steps: keep the best model, write the run down, stop when asked."""

from __future__ import annotations

import csv
import io
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from vitkit.classifier import Classifier
from vitkit.errors import Interrupted, VitkitError
from vitkit.model.vit import VisionTransformer
from vitkit.system.files import replacing, write_text
from vitkit.system.progress import Say
from vitkit.system.stopping import Deferral
from vitkit.training.balance import standing_so
from vitkit.training.checkpoint import seal
from vitkit.training.distributed import ALONE, Team
from vitkit.training.finalize import standing_of
from vitkit.training.lora import merged
from vitkit.training.optim import swa_start
from vitkit.training.recipe import Recipe
from vitkit.training.task import ClassificationTask

COLUMNS = ("epoch", "step", "train_loss", "train_acc", "val_loss", "val_acc", "lr", "seconds")
LAST = Path("checkpoints", "last.ckpt")


class StopOnSignal(Callback):
    """A signal ends the run after the current step, with `Interrupted`."""

    def __init__(self, stop: Deferral, team: Team = ALONE) -> None:
        self.stop, self.team = stop, team

    def on_train_start(self, *args: Any) -> None:
        self.stop.listen_again()  # Lightning would end the program without a word

    def on_validation_start(self, *args: Any) -> None:
        self.stop.listen_again()

    def on_train_epoch_start(self, *args: Any) -> None:
        """The end of the last epoch may have taken a while."""
        self._ask()

    def on_train_batch_end(self, *args: Any) -> None:
        self._ask()

    def on_validation_batch_end(self, *args: Any) -> None:
        """Alone; several processes have not as many batches each, and meet again in the next step."""
        if self.team.size == 1:
            self._ask()

    def _ask(self) -> None:
        """All processes stop after the same step."""
        received = max(self.team.gather(self.stop.received or 0))
        if received:
            raise Interrupted(received)


class RunWriter(Checkpoint):
    """After each epoch: a row of metrics.csv, the model folder if this epoch's weights are to be kept, last.ckpt.

    The order matters: whenever the process dies, `last.ckpt` is the last of the three to know of the epoch, so a
    resumed run does that epoch again, to the same result. It also knows whether the run was over early.
    """

    _STATE = ("best", "last_rise", "has_kept", "finished")

    def __init__(self, folder: Path, classifier: Classifier, recipe: Recipe, say: Say, team: Team = ALONE) -> None:
        self.folder, self.classifier, self.recipe, self.say, self.team = folder, classifier, recipe, say, team
        self.best: float | None = None
        self.last_rise = 0  # the last epoch that was better than all before it; `patience` counts from here
        self.has_kept = False
        self.finished = False
        self._board: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._STATE}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in self._STATE:
            setattr(self, name, state_dict[name])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.team.is_first:
            return
        truncate_metrics(self.folder / "metrics.csv", trainer.current_epoch)
        with suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self.folder / "tensorboard"), purge_step=trainer.current_epoch)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        assert isinstance(pl_module, ClassificationTask)
        if self.recipe.budget and pl_module.elapsed >= self.recipe.budget:
            trainer.should_stop = True  # Lightning validates, and the epoch ends below

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, ClassificationTask)
        epoch, metrics = trainer.current_epoch, dict(pl_module.metrics)
        row = {"epoch": epoch, "step": trainer.global_step, **metrics, "seconds": round(pl_module.elapsed, 1)}
        if self.team.is_first:
            append_metrics(self.folder / "metrics.csv", row)
        self._log_scalars(epoch, metrics)
        if epoch == swa_start(self.recipe):  # from here on the average is the model, better or not
            self.best = None
        is_best = not pl_module.went_back and self._note_best(epoch, metrics)
        if not pl_module.went_back:
            self._keep_model(epoch, pl_module.kept, metrics, is_best)
        if self.recipe.budget and pl_module.elapsed >= self.recipe.budget:  # validation took the rest of it
            trainer.should_stop = True
        is_stale = self.recipe.patience is not None and epoch - self.last_rise >= self.recipe.patience
        self.finished = is_stale or trainer.should_stop
        save_checkpoint(trainer, self.folder / LAST)
        self.say(_line(epoch, self.recipe.epochs, metrics, pl_module.elapsed, is_best))
        if is_stale:
            self.say(f"no better {self.recipe.monitor} in {self.recipe.patience} epochs: stopping")
            trainer.should_stop = True

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._board is not None:
            self._board.close()

    def _note_best(self, epoch: int, metrics: dict[str, float]) -> bool:
        """Whether to keep this epoch's weights. A tie goes to the later epoch, which has seen more.

        Without a val split there is no value, and every epoch is kept. A loss that is not finite is never best.
        """
        value = metrics.get(self.recipe.monitor)
        if value is None:
            self.last_rise = epoch
            return True
        if not math.isfinite(metrics.get("val_loss", value)):
            return False
        sign = -1.0 if self.recipe.monitor == "val_loss" else 1.0
        if self.best is None or sign * value > sign * self.best:
            self.best, self.last_rise = value, epoch
            return True
        return value == self.best

    def _keep_model(self, epoch: int, model: VisionTransformer, metrics: dict[str, float], is_best: bool) -> None:
        self.classifier.provenance["metrics"] = {"epoch": epoch, **metrics}
        if self.recipe.keep == "every":
            if self.team.is_first:
                for other in (self.folder / "checkpoints").glob(f"epoch-{epoch:04d}*"):  # of a run cut short right here
                    shutil.rmtree(other)
            self.save(self.folder / "checkpoints" / epoch_name(epoch, metrics), model)
        if is_best or self.recipe.keep == "last":
            self.save(self.folder, model)
            self.has_kept = True

    def save(self, folder: Path, model: VisionTransformer) -> None:
        """Write the model folder with these weights, low-rank changes made part of the matrices; all processes meet."""
        model = merged(self.team.whole(model))
        if not self.team.is_first:
            return
        # A new Classifier puts its model into evaluation mode, which the one in training must not be.
        classifier = self.classifier if model is self.classifier.model else replace(self.classifier, model=model)
        standing = standing_of(classifier)
        with nullcontext() if standing is None else standing_so(model, standing):
            classifier.save(folder)

    def _log_scalars(self, epoch: int, metrics: dict[str, float]) -> None:
        if self._board is not None:
            for name, value in metrics.items():
                self._board.add_scalar(name, value, epoch)


def epoch_name(epoch: int, metrics: dict[str, float]) -> str:
    """What an epoch's model folder is called: `epoch-0001-val_loss=0.5312-val_acc=0.9100`."""
    told = [f"{name}={metrics[name]:.4f}" for name in ("val_loss", "val_acc") if name in metrics]
    return "-".join([f"epoch-{epoch:04d}", *told])


def save_checkpoint(trainer: Trainer, path: Path) -> None:
    """Lightning's checkpoint of the whole training state, written whole or not at all."""
    if not trainer.is_global_zero:
        trainer.save_checkpoint(path)  # what the first process writes may lie in parts on all of them
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(path) as temporary:
            trainer.save_checkpoint(temporary)
            seal(temporary)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def append_metrics(path: Path, row: dict[str, Any]) -> None:
    """Add a row, under a header where the file is new."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns([row]), lineterminator="\n")
    if not path.exists():
        writer.writeheader()
    writer.writerow(row)
    with path.open("a", encoding="utf-8") as file:
        file.write(text.getvalue())


def _columns(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Those of every run, and after `val_acc` the mean average precision where images may have several classes."""
    place = COLUMNS.index("val_acc") + 1
    return (*COLUMNS[:place], "val_map", *COLUMNS[place:]) if any("val_map" in row for row in rows) else COLUMNS


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of metrics.csv; a column without a value is left out of its row.

    Raises:
        VitkitError: the file is damaged.
    """
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
        if lacking := next((name for name in ("epoch", "step") for row in rows if name not in row), None):
            raise ValueError(f"a row has no {lacking}")
        if not all(math.isfinite(row["epoch"]) and math.isfinite(row["step"]) for row in rows):
            raise ValueError("a row has no whole number of epochs")
    except (ValueError, TypeError, csv.Error) as error:
        raise VitkitError(f"{path} is damaged: {error}; delete it, and the run goes on without these curves") from error
    return rows


def truncate_metrics(path: Path, epoch: int) -> None:
    """Drop the rows of this epoch and later ones: a resumed run writes them again."""
    rows = [row for row in read_metrics(path) if row["epoch"] < epoch]
    if path.exists():
        text = io.StringIO()
        writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "epoch": int(row["epoch"]), "step": int(row["step"])} for row in rows)
        write_text(path, text.getvalue())


def _line(epoch: int, epochs: int, metrics: dict[str, float], seconds: float, is_best: bool) -> str:
    parts = [f"epoch {epoch + 1:>3}/{epochs}"]
    told = ("train_loss", "val_loss", "val_acc", "val_map")
    parts += [f"{name} {metrics[name]:.4f}" for name in told if name in metrics]
    parts += [f"lr {metrics['lr']:.2e}", f"{seconds:.0f} s"]
    return "  ".join(parts) + ("  *" if is_best else "")
