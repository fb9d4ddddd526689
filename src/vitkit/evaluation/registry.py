"""The registry of the figures (metrics) of an evaluation. Importing this module loads neither numpy nor torch.

To add a figure, write a property of `Evaluation` and add a row. `vitkit eval`, evaluation.json and the pages show the
figures in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

from vitkit.data.table import TASKS, TaskName
from vitkit.errors import VitkitError
from vitkit.system.files import read_json
from vitkit.system.run_files import resume_command
from vitkit.text.arguments import is_number, type_of


@dataclass(frozen=True)
class Metric:
    """A figure of merit of a classifier."""

    name: str  # of the property of evaluations; key in evaluation.json and in printed output
    title: str  # on pages
    has_interval: bool = False  # whether `intervals.bounds_of` computes a confidence interval
    tasks: tuple[TaskName, ...] = tuple(TASKS)  # that the figure applies to
    min_classes: int = 1  # for which the figure is meaningful; with fewer, it is left out
    function: Callable[[Any, Any], float] | None = None  # in place of the property: that of a user (`register_metric`)

    def of(self, evaluation: Any) -> float | None:
        """Compute the figure of an evaluation; None if the figure is undefined."""
        if self.function is None:
            value = getattr(evaluation, self.name)
        else:
            try:
                value = float(self.function(evaluation.labels, evaluation.probabilities))
            except (TypeError, ValueError, IndexError, ZeroDivisionError) as error:
                message = f"the metric {self.name} fails: {type(error).__name__}: {error}"
                raise VitkitError("evaluation.metric-failed", message) from error
        return None if isnan(value) else value


def register_metric(name: str, function: Callable[[Any, Any], float], *, several_classes: bool = False) -> None:
    """Add a figure to all evaluations by the current process: `vitkit.evaluate`, evaluation.json and reports.

        import vitkit

        def worst_class_recall(labels, probabilities):
            answers = probabilities.argmax(axis=1)
            return min((answers[labels == k] == k).mean() for k in set(labels.tolist()))

        vitkit.register_metric("worst_class_recall", worst_class_recall)

    Args:
        name: key in evaluation.json, of letters, digits and `_`. A function that was registered earlier with this name
            is replaced.
        function: takes labels (n,) and probabilities (n, K) as numpy arrays, and returns a number; NaN if undefined.
        several_classes: whether the figure is for images that may have several classes. Labels are then class
            indicators (n, K), 0 or 1.

    Raises:
        VitkitError: the name has other characters, vitkit has a figure with this name, or `function` cannot be called.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise VitkitError(
            "evaluation.metric-name",
            f"the name of a metric must be an identifier of letters, digits and _, not {name!r:.80}",
        )
    if not callable(function):
        raise VitkitError(
            "evaluation.metric-not-callable", f"metric {name}: expected a function, not {type(function).__name__}"
        )
    task: TaskName = "multi" if several_classes else "single"
    before = METRICS[task].get(name)
    if before is not None and before.function is None:
        raise VitkitError("evaluation.metric-name", f"vitkit has a metric {name} already: choose another name")
    METRICS[task][name] = Metric(name, name.replace("_", " "), tasks=(task,), function=function)


def metrics_of(task: TaskName, classes: int) -> list[Metric]:
    """Return the figures that apply to a task and a number of classes."""
    return [metric for metric in METRICS[task].values() if classes >= metric.min_classes]


def summary(evaluation: Any, task: TaskName) -> dict[str, float | None]:
    """Return all figures of an evaluation, by name."""
    return {metric.name: metric.of(evaluation) for metric in metrics_of(task, len(evaluation.classes))}


def read_figures(file: Path) -> dict[str, Any]:
    """Read evaluation.json or folds.json.

    Raises:
        VitkitError: the accuracy is missing or not a number, because the file is damaged or was edited.
        OSError: the file cannot be read.
    """
    figures = read_json(file)
    accuracy = figures.get("accuracy")
    is_of_folds = isinstance(accuracy, dict)  # with a mean and an interval
    is_of_seen_images = accuracy is None and figures.get("seen")  # there is none if all images were seen
    if not is_of_folds and not is_of_seen_images and not is_number(accuracy):
        advice = f"delete it, and repeat the evaluation: {resume_command(file.parent)}"
        reason = f"{file} is damaged: its accuracy is {type_of(accuracy)}; {advice}"
        raise VitkitError("evaluation.figures-damaged", reason)
    return figures


_ROWS = (
    Metric("accuracy", "accuracy", has_interval=True),
    Metric("mean_average_precision", "mAP", tasks=("multi",)),
    Metric("micro_f1", "micro F1", tasks=("multi",)),
    Metric("balanced_accuracy", "balanced accuracy", has_interval=True, tasks=("single",)),
    Metric("macro_f1", "macro F1", has_interval=True, tasks=("single",)),
    Metric("macro_f1", "macro F1", tasks=("multi",)),
    Metric("hamming_loss", "Hamming loss", has_interval=True, tasks=("multi",)),
    Metric("balanced_accuracy", "balanced accuracy", tasks=("multi",)),
    Metric("loss", "log loss", has_interval=True, tasks=("single",)),
    Metric("loss", "log loss", tasks=("multi",)),
    Metric("ece", "calibration error (ECE)", has_interval=True, tasks=("single",)),
    Metric("brier", "Brier score", has_interval=True, tasks=("single",)),
    Metric("top5_accuracy", "top-5 accuracy", has_interval=True, tasks=("single",), min_classes=6),
)
METRICS: dict[TaskName, dict[str, Metric]] = {
    task: {metric.name: metric for metric in _ROWS if task in metric.tasks} for task in TASKS
}
