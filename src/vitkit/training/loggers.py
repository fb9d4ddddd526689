"""Loggers, which receive the figures of each epoch in addition to metrics.csv: TensorBoard, CSV, W&B and MLflow."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

from vitkit.errors import VitkitError, first_line
from vitkit.system.files import read_json, write_json
from vitkit.system.progress import Say
from vitkit.system.run_files import BOARD, LOGGER_RUNS
from vitkit.training.checkpoint import TrainingState
from vitkit.training.loop import HOOKS
from vitkit.training.recipe import Recipe, without_absolute_paths
from vitkit.training.request import Hooks


class Logger(Protocol):
    """The interface of Lightning's loggers. Only the method `log_metrics` is required; its `step` is the epoch."""

    def log_hyperparams(self, params: dict[str, Any]) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int) -> None: ...

    def finalize(self, status: str) -> None:
        """End the log; the status is `success` or `failed`."""


class LogEpochs:
    """A callback that passes the recipe and the figures of each epoch to loggers.

    If a logger raises an exception, the error is reported and the logger is not called again. The training continues.
    """

    def __init__(self, loggers: Sequence[Logger], recipe: Recipe, say: Say) -> None:
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
    if recipe.method == "probe" and (functions := list(hooks.names())):
        message = f"method probe takes no steps, so {functions[0]} is never called: set method to full or lora"
        raise VitkitError("training.hook-unused", message)
    if recipe.teacher is not None and hooks.loss:
        message = "loss cannot be combined with teacher, whose loss it replaces: leave out one of them"
        raise VitkitError("training.hook-conflict", message)
    if recipe.logger in LOGGERS:
        package = LOGGERS[recipe.logger][0]
        if importlib.util.find_spec(package) is None:
            message = f"--logger {recipe.logger} needs the package {package}: pip install {package}"
            raise VitkitError("training.package-missing", message)
    for callback in hooks.callbacks:
        if isinstance(callback, type):
            message = f"callbacks: {callback.__name__} is a class; give an object: {callback.__name__}()"
            raise VitkitError("training.hook-invalid", message)
        if not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
            message = f"callbacks: {type(callback).__name__} has none of the methods {', '.join(HOOKS)}"
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
    has_needed = any(not getattr(callback, "is_optional", False) for callback in hooks.callbacks)
    if recipe.method == "probe" and (has_needed or hooks.loggers or recipe.logger in LOGGERS):
        message = "method probe takes no steps, so callbacks and loggers are never called: use method full or lora"
        raise VitkitError("training.hook-unused", message)


def loggers_of(recipe: Recipe, folder: Path, epoch: int) -> list[Logger]:
    """Open the logger of a recipe, if it names one. If possible, entries from `epoch` on, the next one, are removed."""
    name = recipe.logger
    if name == "auto" and importlib.util.find_spec("tensorboard") is not None:
        name = "tensorboard"
    return [LOGGERS[name][1](folder, epoch)] if name in LOGGERS else []


def _tensorboard(folder: Path, epoch: int) -> Logger:
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    return cast(Logger, TensorBoardLogger(folder, name=BOARD, version="", purge_step=epoch))


def _csv(folder: Path, epoch: int) -> Logger:
    from lightning_fabric.loggers.csv_logs import CSVLogger

    version = "" if epoch == 0 else f"from-epoch-{epoch}"  # the logger would overwrite an existing file
    return cast(Logger, CSVLogger(folder, name="csv", version=version, flush_logs_every_n_steps=1))


def _saved_id(folder: Path, logger: str, epoch: int) -> str | None:
    # The identifier of a resumed run in a logging service. If it is None, the service starts another run.
    file = folder / LOGGER_RUNS
    return read_json(file).get(logger) if epoch > 0 and file.is_file() else None


class _WandB:
    def __init__(self, folder: Path, epoch: int) -> None:
        import wandb

        saved_id = _saved_id(folder, "wandb", epoch)
        resume = {} if saved_id is None else {"id": saved_id, "resume": "allow"}
        self._run = wandb.init(project="vitkit", name=folder.name, dir=str(folder), **resume)
        write_json(folder / LOGGER_RUNS, {"wandb": self._run.id})

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self._run.config.update(params, allow_val_change=True)

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self._run.log({**metrics, "epoch": step}, step=step)

    def finalize(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "success" else 1)


class _MLflow:
    def __init__(self, folder: Path, epoch: int) -> None:
        import mlflow

        self._mlflow = mlflow
        mlflow.set_experiment("vitkit")
        self._saved_id = _saved_id(folder, "mlflow", epoch)
        run = mlflow.start_run(run_id=self._saved_id, run_name=folder.name)
        write_json(folder / LOGGER_RUNS, {"mlflow": run.info.run_id})

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        if self._saved_id is None:  # MLflow refuses changed parameters, such as another number of workers
            self._mlflow.log_params(params)

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self._mlflow.log_metrics(metrics, step=step)

    def finalize(self, status: str) -> None:
        self._mlflow.end_run("FINISHED" if status == "success" else "FAILED")


# For each name, the package that the logger needs, and the function that opens the logger.
LOGGERS: Mapping[str, tuple[str, Callable[[Path, int], Logger]]] = {
    "tensorboard": ("tensorboard", _tensorboard),
    "csv": ("lightning_fabric", _csv),
    "wandb": ("wandb", _WandB),
    "mlflow": ("mlflow", _MLflow),
}
