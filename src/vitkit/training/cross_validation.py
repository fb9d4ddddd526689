"""Cross-validation: each part of the data is tested once, by a model that was trained on the others."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np
from scipy.stats import t

from vitkit.data.pictures import PictureRecord
from vitkit.errors import VitkitError
from vitkit.evaluation.registry import read_figures
from vitkit.model_folder import RECORD
from vitkit.system.files import write_json
from vitkit.system.run_files import EVALUATION, FOLDS, RECIPE, REPORT, fold_folder
from vitkit.text.html import table, write_page
from vitkit.training.fit import fit_and_report
from vitkit.training.recipe import Recipe
from vitkit.training.recipe_names import name_of, without_places
from vitkit.training.run_folder import Run


@dataclass(frozen=True)
class Spread:
    """A mean over folds with its 95 % confidence interval, mean - margin to mean + margin.

    The folds share training images, so the interval is somewhat narrower than independent repetitions would give
    (Bengio & Grandvalet 2004).
    """

    mean: float
    margin: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Of two values or more, by Student's t distribution."""
        error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
        return cls(float(np.mean(values)), float(t.ppf(0.975, len(values) - 1)) * error)

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.margin:.4f}"


def cross_validate(run: Run, recipe: Recipe) -> dict[str, Spread]:
    """Train and test every fold that is not done yet, and put their results together in folds.json and report.html.

    Returns:
        Mean and interval of accuracy, balanced accuracy and log loss.

    Raises:
        VitkitError: a fold's folder is gone.
    """
    assert recipe.folds is not None
    results = []
    for number in range(recipe.folds):
        folder = fold_folder(run.folder, number)
        if not (folder / RECIPE).is_file():
            raise VitkitError(f"{folder} holds no run; begin the cross-validation again with --force")
        if not (folder / REPORT).is_file():
            run.say(f"fold {number + 1} of {recipe.folds}")
            fit_and_report(replace(run, folder=folder, whole=run.folder), recipe.replace(folds=None))
        results.append(read_figures(folder / EVALUATION))
    spreads = {name: Spread.of([own[name] for own in results]) for name in ("accuracy", "balanced_accuracy", "loss")}
    if run.team.is_first:
        numbers = {name: {"mean": own.mean, "margin_95": own.margin} for name, own in spreads.items()}
        write_json(run.folder / FOLDS, {**numbers, "folds": results})
        _write_report(run.folder / REPORT, recipe, results, spreads)
    if (unlearned := sum("zero_shot" in own for own in results)) > 0:
        run.say(f"note: in {unlearned} of {recipe.folds} folds the model is the zero-shot one: no training was better")
    run.say(f"accuracy {spreads['accuracy']} (95 %) over {recipe.folds} folds; report: {run.folder / REPORT}")
    return spreads


def _unseen(folder: Path) -> str:
    """What is known of the images that the folds' models were tested on."""
    record = fold_folder(folder, 0) / RECORD
    if record.is_file() and PictureRecord.from_bytes(record.read_bytes(), record).is_whole:
        return "had not seen it"
    return "was not trained on it; whether the weights that it began from had seen it is not recorded"


def _write_report(path: Path, recipe: Recipe, results: list[dict[str, float]], spreads: dict[str, Spread]) -> None:
    rows = [
        [
            f'<a href="fold-{number}/{REPORT}">fold {number}</a>{", zero-shot" if "zero_shot" in own else ""}',
            *(f"{own[name]:.4f}" for name in spreads),
            str(own["images"]),
        ]
        for number, own in enumerate(results, start=1)
    ]
    rows.append(["mean", *map(str, spreads.values()), str(sum(own["images"] for own in results))])
    percent = f"{100 * spreads['accuracy'].mean:.1f} ± {100 * spreads['accuracy'].margin:.1f} %"
    title = f"{name_of(recipe)} on {without_places(recipe).data}, {recipe.folds} folds"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p><span class="figure">{percent}</span> accuracy (mean and 95 % interval)</p>',
        f"<p>Every image was tested once, by a model that {_unseen(path.parent)}.</p>",
        table(rows, ["", *(name.replace("_", " ") for name in spreads), "images"]),
    ]
    write_page(path, title, body)
