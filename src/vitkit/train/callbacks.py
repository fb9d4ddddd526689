"""What happens around the steps: keep the best model, write the run down, stop when asked."""

from __future__ import annotations

import csv
import io
import math
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from vitkit.classifier import Classifier
from vitkit.errors import Interrupted
from vitkit.files import replacing, write_text
from vitkit.train.recipe import Recipe
from vitkit.train.task import ClassificationTask

COLUMNS = ("epoch", "step", "train_loss", "val_loss", "val_acc", "lr", "seconds")
LAST = Path("checkpoints", "last.ckpt")


class StopOnSignal(Callback):
    """Ctrl-C or SIGTERM ends the run after the current step; a second Ctrl-C at once."""

    def __init__(self) -> None:
        self._received: int | None = None
        self._previous: dict[int, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _receive(self, number: int, frame: Any) -> None:
        if self._received is not None:
            raise KeyboardInterrupt
        self._received = number

    def _stop_if_asked(self) -> None:
        if self._received is not None:
            raise Interrupted(self._received)

    def on_train_batch_end(self, *args: Any) -> None:
        self._stop_if_asked()

    def on_validation_batch_end(self, *args: Any) -> None:
        self._stop_if_asked()


class RunWriter(Checkpoint):
    """After each epoch: a row of metrics.csv, the model folder if this epoch's weights are to be kept, last.ckpt.

    The order matters: whenever the process dies, `last.ckpt` is the last of the three to know of the epoch, so a
    resumed run does that epoch again, to the same result. It also knows whether the run was over early.
    """

    _STATE = ("best", "last_rise", "has_kept", "finished")

    def __init__(self, folder: Path, classifier: Classifier, recipe: Recipe, say: Callable[[str], None]) -> None:
        self.folder, self.classifier, self.recipe, self.say = folder, classifier, recipe, say
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
        append_metrics(self.folder / "metrics.csv", row)
        self._log_scalars(epoch, metrics)
        is_best = self._note_best(epoch, metrics.get(self.recipe.monitor))
        self._keep_model(epoch, metrics, is_best)
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

    def _note_best(self, epoch: int, value: float | None) -> bool:
        """Whether to keep this epoch's weights. A tie goes to the later epoch, which has seen more; NaN is never best.

        Without a val split there is no value, and every epoch is kept.
        """
        if value is None:
            self.last_rise = epoch
            return True
        sign = -1.0 if self.recipe.monitor == "val_loss" else 1.0
        if self.best is None or math.isnan(self.best) or sign * value > sign * self.best:
            self.best, self.last_rise = value, epoch
            return True
        return value == self.best

    def _keep_model(self, epoch: int, metrics: dict[str, float], is_best: bool) -> None:
        self.classifier.provenance["metrics"] = {"epoch": epoch, **metrics}
        if self.recipe.keep == "every":
            self.classifier.save(self.folder / "checkpoints" / f"epoch-{epoch:04d}")
        if is_best or self.recipe.keep == "last":
            self.classifier.save(self.folder)
            self.has_kept = True

    def _log_scalars(self, epoch: int, metrics: dict[str, float]) -> None:
        if self._board is not None:
            for name, value in metrics.items():
                self._board.add_scalar(name, value, epoch)


def save_checkpoint(trainer: Trainer, path: Path) -> None:
    """Lightning's checkpoint of the whole training state, written whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(path) as temporary:
            trainer.save_checkpoint(temporary)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def append_metrics(path: Path, row: dict[str, Any]) -> None:
    """Add a row, under a header where the file is new."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    if not path.exists():
        writer.writeheader()
    writer.writerow(row)
    with path.open("a", encoding="utf-8") as file:
        file.write(text.getvalue())


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of metrics.csv; a column without a value is left out of its row."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]


def truncate_metrics(path: Path, epoch: int) -> None:
    """Drop the rows of this epoch and later ones: a resumed run writes them again."""
    rows = [row for row in read_metrics(path) if row["epoch"] < epoch]
    if path.exists():
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "epoch": int(row["epoch"]), "step": int(row["step"])} for row in rows)
        write_text(path, text.getvalue())


def _line(epoch: int, epochs: int, metrics: dict[str, float], seconds: float, is_best: bool) -> str:
    parts = [f"epoch {epoch + 1:>3}/{epochs}"]
    parts += [f"{name} {metrics[name]:.4f}" for name in ("train_loss", "val_loss", "val_acc") if name in metrics]
    parts += [f"lr {metrics['lr']:.2e}", f"{seconds:.0f} s"]
    return "  ".join(parts) + ("  *" if is_best else "")
