"""The figures of an evaluation, one row each: adding one is a function and a row. Nothing here loads numpy or torch.

What `vitkit eval` prints, evaluation.json and the pages follow from this table, in its order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from math import isnan
from pathlib import Path
from typing import Any

from vitkit.data.task import TASKS, TaskName
from vitkit.errors import VitkitError
from vitkit.system.files import read_json
from vitkit.text.fields import is_number, shown


@dataclass(frozen=True)
class Metric:
    """One number that says how good a classifier is.

    Attributes:
        name: in evaluation.json, and where figures are printed.
        title: on pages.
        module: has the function of this name, (evaluation) -> float; empty: the evaluation has a property of this name.
        interval: the function that tells how far chance may have moved it, (evaluation, units) -> (low, high), see
            `intervals`; empty: none does.
        interval_module: where that is.
        tasks: of which evaluations it is a figure.
        least_classes: of fewer it says nothing.
    """

    name: str
    title: str
    module: str = ""
    interval: str = ""
    interval_module: str = "vitkit.evaluation.intervals"
    tasks: tuple[TaskName, ...] = tuple(TASKS)
    least_classes: int = 1

    def of(self, evaluation: object) -> float | None:
        """The figure; None where it is undefined."""
        if self.module:
            compute: Callable[[object], float] = getattr(import_module(self.module), self.name)
            value = compute(evaluation)
        else:
            value = getattr(evaluation, self.name)
        return None if isnan(value) else value

    def bounds(self, evaluation: object, units: object) -> tuple[float, float]:
        """Its 95 % confidence interval."""
        compute: Callable[..., tuple[float, float]] = getattr(import_module(self.interval_module), self.interval)
        return compute(evaluation, units)


METRICS: dict[TaskName, dict[str, Metric]] = {task: {} for task in TASKS}


def register(metric: Metric) -> None:
    """Add a row for each of its tasks.

    Raises:
        ValueError: there is a figure of this name.
    """
    for task in metric.tasks:
        if metric.name in METRICS[task]:
            raise ValueError(f"there is a figure {metric.name!r} already")
        METRICS[task][metric.name] = metric


def metrics_of(task: TaskName, classes: int) -> list[Metric]:
    """The figures of an evaluation of so many classes."""
    return [metric for metric in METRICS[task].values() if classes >= metric.least_classes]


def summary(evaluation: Any, task: TaskName) -> dict[str, float | None]:
    """All of them, by name."""
    return {metric.name: metric.of(evaluation) for metric in metrics_of(task, len(evaluation.classes))}


def read_figures(file: Path) -> dict[str, Any]:
    """The figures in an evaluation.json, or a folds.json, of the types that they were written with.

    Raises:
        VitkitError: the file is damaged, or was edited to say something else; it is named.
        OSError: it cannot be read.
    """
    found = read_json(file)
    known = {name for rows in METRICS.values() for name in rows}
    for name, value in found.items():
        if name in known:
            numbers = list(value.values()) if isinstance(value, dict) else [value]  # of folds: mean and interval
            fits = bool(numbers) and all(own is None or is_number(own) or _is_pair(own) for own in numbers)
        else:
            fits = _FITS.get(name, lambda _: True)(value)
        if not fits:
            raise VitkitError(f"{file} is damaged: {name} is {shown(value)}; vitkit eval writes it anew")
    if found.get("accuracy") is None and not found.get("seen"):  # with none but seen images there is no figure
        raise VitkitError(f"{file} is damaged: it has no accuracy; vitkit eval writes it anew")
    return found


def _is_seen(seen: dict[str, Any]) -> bool:
    return type(seen.get("images")) is int and isinstance(seen.get("paths"), list)


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value))


_FITS: dict[str, Callable[[Any], bool]] = {  # what is read again, beside the figures themselves
    "images": lambda value: type(value) is int,
    "seen": lambda value: value is None or (isinstance(value, dict) and _is_seen(value)),
    **dict.fromkeys(("with_seen", "without_seen"), lambda value: value is None or isinstance(value, dict)),
    "split": lambda value: isinstance(value, str),
    "chosen_on": lambda value: isinstance(value, list) and all(isinstance(own, str) for own in value),
    "intervals_95": lambda value: isinstance(value, dict) and all(map(_is_pair, value.values())),
    "confused": lambda value: (
        isinstance(value, list) and all(isinstance(own, dict) and {"true", "predicted"} <= own.keys() for own in value)
    ),
}

for _row in (
    Metric("accuracy", "accuracy", interval="accuracy_bounds"),
    Metric("mean_average_precision", "mAP", tasks=("multi",)),
    Metric("micro_f1", "micro F1", tasks=("multi",)),
    Metric("balanced_accuracy", "balanced accuracy", interval="balanced_accuracy_bounds", tasks=("single",)),
    Metric("macro_f1", "macro F1", interval="macro_f1_bounds", tasks=("single",)),
    Metric("macro_f1", "macro F1", tasks=("multi",)),
    Metric("hamming_loss", "Hamming loss", interval="hamming_loss_bounds", tasks=("multi",)),
    Metric("balanced_accuracy", "balanced accuracy", tasks=("multi",)),
    Metric("loss", "log loss", interval="loss_bounds", tasks=("single",)),
    Metric("loss", "log loss", tasks=("multi",)),
    Metric("ece", "calibration error (ECE)", interval="ece_bounds", tasks=("single",)),
    Metric("brier", "Brier score", interval="brier_bounds", tasks=("single",)),
    Metric("top5_accuracy", "top-5 accuracy", interval="top5_bounds", tasks=("single",), least_classes=6),
):
    register(_row)
