"""The table of compared models: its columns, the text of its cells, and what each model costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.experiments.comparison_request import ExperimentFolder
from vitkit.model_folder import WEIGHTS
from vitkit.text import interval_text

if TYPE_CHECKING:
    import torch

    from vitkit.classifier import Classifier

PLAN = "plan.json"  # the planned trainings, written before the first one
COMPARISON, TABLE, PAGE = "comparison.json", "comparison.csv", "comparison.html"
FOLDER = ExperimentFolder(PLAN, "comparison")

HEADINGS = {
    "name": "model",
    "accuracy": "accuracy",
    "interval": "95 %",
    "ece": "calibration error",
    "loss": "log loss",
    "parameters": "parameters",
    "gmacs": "GMACs",
    "file_bytes": "MiB",
    "train_images_per_s": "train images/s",
    "predict_images_per_s": "predict images/s",
    "caveats": "caveats",
}


_FORMATS: dict[str, Callable[[Any], str]] = {  # of cells that do not simply show a number
    "name": str,
    "accuracy": lambda value: f"{100 * value:.1f} %",
    "interval": lambda ends: interval_text([100 * end for end in ends], 1),
    "ece": lambda value: f"{value:.3f}",
    "loss": lambda value: f"{value:.3f}",
    "parameters": lambda value: f"{value:,}",
    "file_bytes": lambda value: f"{value / 2**20:.1f}",
    "caveats": lambda texts: "; ".join(texts) or "-",
}


def cells(model: dict[str, Any], keys: Iterable[str] = HEADINGS) -> list[str]:
    """Return the cells of a model's row in the table as text, with a dash for a value that was not measured."""
    texts = []
    for key in keys:
        value = model[key]
        if value is None:
            texts.append("-")
        elif key in _FORMATS:
            texts.append(_FORMATS[key](value))
        else:
            texts.append(f"{value:,.0f}" if value >= 1000 else f"{value:.3g}")
    return texts


def row_of(model: dict[str, Any], keys: Iterable[str] = HEADINGS) -> dict[str, Any]:
    """Return the row of a model in a table of numbers; the interval becomes the columns `low` and `high`."""
    low, high = model["interval"]
    return {key: model[key] for key in keys if key not in ("interval", "caveats")} | {"low": low, "high": high}


BATCH, ROUNDS = 32, 5  # images per batch, and number of timings per model


def costs_of(folders: Mapping[str, Path], device: str) -> dict[str, dict[str, Any]]:
    """Return the size, the operations and the prediction speed of each model, given the folders of runs by any name.

    The speeds are measured in rounds that alternate between the models.
    """
    import torch

    from vitkit.profiling import describe, interleave, stopwatch_for
    from vitkit.system import choose_device
    from vitkit.weights import load

    classifiers = {name: load(folder) for name, folder in folders.items()}
    where = torch.device(choose_device(device))

    def prediction_of_batch(classifier: Classifier) -> Callable[[], torch.Tensor]:
        model, (height, width) = classifier.model.to(where), classifier.preprocess.size
        images = torch.zeros(BATCH, len(classifier.preprocess.mean), height, width, device=where)
        return torch.inference_mode()(lambda: model(images))

    functions = {name: prediction_of_batch(classifier) for name, classifier in classifiers.items()}
    times = interleave(functions, ROUNDS, stopwatch=stopwatch_for(where))
    costs = {}
    for name, folder in folders.items():
        model = classifiers[name].model
        costs[name] = {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "gmacs": describe(model.config).gmacs,
            "file_bytes": (folder / WEIGHTS).stat().st_size,
            "predict_images_per_s": times[name].rate(BATCH).median,
        }
    return costs
