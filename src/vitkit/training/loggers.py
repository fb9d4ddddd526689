"""Where the figures of each epoch go beside metrics.csv: programs that draw curves, if they are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

from vitkit.errors import VitkitError, first_line
from vitkit.system.files import from_json, write_json
from vitkit.system.progress import Say
from vitkit.system.run_files import BOARD, LOGGER_RUNS
from vitkit.training.checkpoint import TrainingState
from vitkit.training.loop import HOOKS
from vitkit.training.recipe import Recipe, without_places


class Logger(Protocol):
    """Any logger of Lightning's, or an object like one; `log_metrics` is enough."""

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """Take the recipe's fields."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Take the figures of an epoch, which is the `step`."""

    def finalize(self, status: str) -> None:
        """The training is over: success or failed."""


class LogEpochs:
    """A callback that gives loggers the recipe, and the figures of each epoch.

    A logger that fails is told of in a line, and hears no more: no training is lost for a curve.
    """

    def __init__(self, loggers: Sequence[Logger], recipe: Recipe, say: Say) -> None:
        self._loggers, self._recipe, self._say = list(loggers), recipe, say

    def on_fit_start(self, state: TrainingState) -> None:
        """Tell what is trained, and not where it lies: what loggers keep is read elsewhere."""
        fields = {name: value for name, value in vars(without_places(self._recipe)).items() if value is not None}
        self._each("log_hyperparams", dict(fields))

    def on_epoch_end(self, state: TrainingState) -> None:
        """Tell the figures, and what callbacks have added to them that is a number."""
        numbers = {name: float(own) for name, own in state.metrics.items() if _is_number(own)}
        self._each("log_metrics", numbers, state.epoch)

    def close(self, status: str) -> None:
        """The training is over: success or failed."""
        self._each("finalize", status)

    def _each(self, method: str, *told: Any) -> None:
        for logger in list(self._loggers):
            try:
                with suppress(NotImplementedError):  # not every logger has a place for the recipe
                    getattr(logger, method, lambda *_: None)(*told)
            except Exception as error:  # of the caller's code, or a service that is gone
                self._loggers.remove(logger)
                self._say(f"note: {type(logger).__name__} failed and hears no more: {first_line(error)}")


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return not isinstance(value, str)


def check_watchers(recipe: Recipe, callbacks: Sequence[Any], loggers: Sequence[Any]) -> None:
    """Refuse who would never be told anything.

    Args:
        recipe: what is asked for, or settled.
        callbacks: the caller's.
        loggers: the caller's.

    Raises:
        VitkitError: an object has no hook, a package is not installed, or the method takes no steps.
    """
    if recipe.logger in LOGGERS:
        package = LOGGERS[recipe.logger][0]
        if importlib.util.find_spec(package) is None:
            raise VitkitError(f"--logger {recipe.logger} needs the package {package}: pip install {package}")
    for callback in callbacks:
        if isinstance(callback, type):
            raise VitkitError(f"callbacks: {callback.__name__} is a class; give an object: {callback.__name__}()")
        if not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
            raise VitkitError(f"callbacks: {type(callback).__name__} has none of {', '.join(HOOKS)}")
    for logger in loggers:
        if not callable(getattr(logger, "log_metrics", None)):
            raise VitkitError(f"loggers: {type(logger).__name__} has no log_metrics(metrics, step)")
    if loggers and recipe.folds is not None:
        raise VitkitError("loggers: an object follows one training, and --folds makes several: name one by logger=")
    if recipe.method == "probe" and (callbacks or loggers or recipe.logger in LOGGERS):
        raise VitkitError(
            "method probe takes no steps, so callbacks and loggers hear nothing: take method full or lora"
        )


def loggers_of(recipe: Recipe, folder: Path, epoch: int) -> list[Logger]:
    """Those that a recipe asks for: one, or none.

    Args:
        recipe: of the run.
        folder: of the run.
        epoch: the first that they are told of; what a run that is resumed told of later ones does not count.
    """
    name = recipe.logger
    if name == "auto":
        name = "tensorboard" if importlib.util.find_spec("tensorboard") is not None else "none"
    return [LOGGERS[name][1](folder, epoch)] if name in LOGGERS else []


def _tensorboard(folder: Path, epoch: int) -> Logger:
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    return cast(Logger, TensorBoardLogger(folder, name=BOARD, version="", purge_step=epoch))


def _csv(folder: Path, epoch: int) -> Logger:
    from lightning_fabric.loggers.csv_logs import CSVLogger

    part = "" if epoch == 0 else f"from-epoch-{epoch}"  # a file that is there would be written over
    return cast(Logger, CSVLogger(folder, name="csv", version=part, flush_logs_every_n_steps=1))


def _run_of(folder: Path, logger: str, epoch: int) -> str | None:
    """The run that a logger has for this folder, to go on with; None at the beginning of a training."""
    if epoch == 0:
        return None
    try:
        return str(from_json((folder / LOGGER_RUNS).read_text(encoding="utf-8"))[logger])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it begins another


def _keep_run(folder: Path, logger: str, known: str) -> None:
    write_json(folder / LOGGER_RUNS, {logger: known})


class _WandB:
    def __init__(self, folder: Path, epoch: int) -> None:
        import wandb

        known = _run_of(folder, "wandb", epoch)
        going_on = {} if known is None else {"id": known, "resume": "allow"}
        self._run = wandb.init(project="vitkit", name=folder.name, dir=str(folder), **going_on)
        _keep_run(folder, "wandb", self._run.id)

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
        self._known = _run_of(folder, "mlflow", epoch)
        run = mlflow.start_run(run_id=self._known, run_name=folder.name)
        _keep_run(folder, "mlflow", run.info.run_id)

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        if self._known is None:  # what it was told once it lets nobody change, as the number of workers is
            self._mlflow.log_params(params)

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self._mlflow.log_metrics(metrics, step=step)

    def finalize(self, status: str) -> None:
        self._mlflow.end_run("FINISHED" if status == "success" else "FAILED")


LOGGERS: Mapping[str, tuple[str, Callable[[Path, int], Logger]]] = {  # the package that each needs
    "tensorboard": ("tensorboard", _tensorboard),
    "csv": ("lightning_fabric", _csv),
    "wandb": ("wandb", _WandB),
    "mlflow": ("mlflow", _MLflow),
}
