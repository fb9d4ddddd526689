"""Loggers, which receive the figures of each epoch in addition to metrics.csv: TensorBoard, and those of the caller."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError, first_line
from vitkit.system.progress import Say
from vitkit.system.run_files import BOARD
from vitkit.training.checkpoint import TrainingState
from vitkit.training.loop import HOOKS
from vitkit.training.recipe import Recipe, without_absolute_paths
from vitkit.training.request import Hooks


class LogEpochs:
    """A callback that passes the recipe and the figures of each epoch to loggers with the interface of Lightning's.

    Only their method `log_metrics(metrics, step)` is required; `step` is the epoch. If a logger raises an exception,
    the error is reported and the logger is not called again. The training continues.
    """

    def __init__(self, loggers: Sequence[Any], recipe: Recipe, say: Say) -> None:
        self._loggers, self._recipe, self._say = list(loggers), recipe, say

    def on_fit_start(self, state: TrainingState) -> None:
        """Log the recipe without the folders of this machine, because logs are read elsewhere."""
        fields = without_absolute_paths(self._recipe).to_dict()
        self._call("log_hyperparams", {name: value for name, value in fields.items() if value is not None})

    def on_epoch_end(self, state: TrainingState) -> None:
        """Log all metrics that are numbers, including those that callbacks have added."""
        numbers = dict[str, float]()
        for name, value in state.metrics.items():
            with suppress(TypeError, ValueError, RuntimeError):
                if not isinstance(value, str):
                    numbers[name] = float(value)
        self._call("log_metrics", numbers, state.epoch)

    def close(self, status: str) -> None:
        """End all logs; the status is `success` or `failed`."""
        self._call("finalize", status)

    def _call(self, method: str, *arguments: Any) -> None:
        for logger in list(self._loggers):
            try:
                with suppress(NotImplementedError):  # some loggers do not store the recipe
                    getattr(logger, method, lambda *_: None)(*arguments)
            except Exception as error:  # the logger may be the user's, and its service may be down
                self._loggers.remove(logger)
                self._say(f"note: {type(logger).__name__} failed and is not used any more: {first_line(error)}")


def check_hooks(recipe: Recipe, hooks: Hooks) -> None:
    """Refuse objects of the caller that would never be called, and a loss together with a teacher.

    A callback whose attribute `is_optional` is true may remain uncalled. The recipe need not be complete.
    """
    functions = list(hooks.names())
    if recipe.method == "probe" and functions:
        message = f"method probe takes no steps, so {functions[0]} is never called: set method to full or lora"
        raise VitkitError("training.hook-unused", message)
    if recipe.teacher is not None and hooks.loss:
        message = "loss cannot be combined with teacher, whose loss it replaces: leave out one of them"
        raise VitkitError("training.hook-conflict", message)
    if recipe.logger == "tensorboard" and importlib.util.find_spec("tensorboard") is None:
        message = "--logger tensorboard needs the package tensorboard: pip install tensorboard"
        raise VitkitError("training.package-missing", message)
    for callback in hooks.callbacks:
        has_hook = any(callable(getattr(callback, hook, None)) for hook in HOOKS)
        if isinstance(callback, type) or not has_hook:
            message = f"callbacks: {callback!r:.80} is no object with one of the methods {', '.join(HOOKS)}"
            raise VitkitError("training.hook-invalid", message)
    for logger in hooks.loggers:
        if not callable(getattr(logger, "log_metrics", None)):
            message = f"loggers: {type(logger).__name__} has no log_metrics(metrics, step)"
            raise VitkitError("training.hook-invalid", message)
    if hooks.loggers and recipe.folds is not None:
        raise VitkitError(
            "training.hook-conflict",
            "loggers: an object can log only one training, but --folds makes several: use the option logger instead",
        )
    if recipe.method == "probe":
        is_needed = any(not getattr(callback, "is_optional", False) for callback in hooks.callbacks)
        if is_needed or hooks.loggers or recipe.logger == "tensorboard":
            message = "method probe takes no steps, so callbacks and loggers are never called: use method full or lora"
            raise VitkitError("training.hook-unused", message)


def loggers_of(recipe: Recipe, folder: Path, epoch: int) -> list[Any]:
    """Open TensorBoard if the recipe asks for it. Its entries from `epoch` on, the next one, are removed."""
    if recipe.logger == "none" or importlib.util.find_spec("tensorboard") is None:
        return []
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    return [TensorBoardLogger(folder, name=BOARD, version="", purge_step=epoch)]
