"""`vitkit.train`: train a classifier on a folder of photographs, or on datasets in memory."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.evaluation.headline import Headline, headline_of, value_of, verdict_of
from vitkit.system.progress import Progress, display_of_notebook, silent
from vitkit.system.run_files import EVALUATION, FOLDS, RECIPE, REPORT, fold_folder
from vitkit.text.arguments import check_arguments
from vitkit.training.recipe import Recipe, bundled
from vitkit.training.request import NO_HOOKS, Hooks, describe_changed_fields, requested, with_data
from vitkit.verbs.inputs import check_data, path_of
from vitkit.verbs.result import Result, as_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitkit.classifier import Classifier
    from vitkit.data.user_datasets import Datasets
    from vitkit.training.checkpoint import TrainingState


@dataclass(frozen=True, repr=False)
class TrainingRun(Result):
    """A finished or interrupted training run. Its files are read when an attribute is accessed.

        import vitkit

        run = vitkit.train("digits", vitkit.Recipe(epochs=2, max_images=300))
        print(run.folder, run.accuracy)

    Attributes:
        folder: the run folder, which is also the model folder of the best weights.
    """

    folder: Path

    @property
    def report(self) -> Path:
        """The path of the HTML report."""
        return self.folder / REPORT

    @cached_property
    def classifier(self) -> Classifier:
        """The trained model with its classes and preprocessing; for a cross-validation, the final model.

        Raises:
            VitkitError: the folder contains no model.
        """
        from vitkit.weights import load

        return load(self.folder)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of the run, in which every unset field has the default that was chosen for it."""
        return Recipe.load(self.folder / RECIPE)

    @cached_property
    def folds(self) -> tuple[TrainingRun, ...]:
        """The runs of a cross-validation, in order; empty for any other run."""
        return tuple(TrainingRun(fold_folder(self.folder, number)) for number in range(self.recipe.folds or 0))

    @cached_property
    def evaluation(self) -> dict[str, Any]:
        """The figures on held-out images, as in evaluation.json, or in folds.json for a cross-validation.

        The entry `figures` has the names and values of `vitkit.evaluate(run.folder).figures`.

        Raises:
            VitkitError: the file is damaged.
            OSError: the run was stopped before it was evaluated.
        """
        from vitkit.evaluation.registry import read_figures

        numbers = read_figures(self.folder / (EVALUATION if self.recipe.folds is None else FOLDS))
        figures = {name: value for name, value in numbers.items() if name != "label_errors"}
        return {**numbers, "figures": figures}

    @property
    def headline(self) -> Headline:
        """The main metric, with its interval and caveats.

        Raises:
            OSError: the run was stopped before it was evaluated.
        """
        return headline_of(self.evaluation)

    @property
    def accuracy(self) -> float:
        """The fraction of correct predictions on held-out images, 0 to 1, or of exact matches for a multi-label model.

        Images that the weights have seen before the run are not counted. The accuracy of a cross-validation is the mean
        over the folds.

        Raises:
            VitkitError: the weights have seen every held-out image.
            OSError: the run was stopped before it was evaluated.
        """
        return value_of(self.headline)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.csv, one for each epoch.

        The rows of a cross-validation have an additional column `fold`: the number of the fold, or `final` for the
        final model.
        """
        from vitkit.system.run_files import METRICS
        from vitkit.training.run_folder import read_metrics

        rows: list[dict[str, Any]] = [dict(row) for row in read_metrics(self.folder / METRICS)]
        if not self.folds:
            return rows
        rows_of_folds = []
        for number, fold in enumerate(self.folds, start=1):
            rows_of_folds += [{"fold": number, **row} for row in fold.rows()]
        return rows_of_folds + [{"fold": "final", **row} for row in rows]

    def pictures(self) -> dict[str, Callable[[], Figure]]:
        """Return the function that draws the curves, by caption; empty for a cross-validation or without epochs."""
        rows = [] if self.folds else self.rows()
        if not rows:
            return {}
        recipe, metrics = self.recipe, self.classifier.provenance.get("metrics", {})
        best = int(metrics.get("epoch", len(rows) - 1))

        def curves() -> Figure:
            from vitkit.reporting import plots

            return plots.curves(rows, best, is_mixed=bool(recipe.mixup or recipe.cutmix))

        return {"Curves": curves}

    def to_dict(self) -> dict[str, Any]:
        """Return the paths of the run, its recipe and its figures."""
        return {
            "folder": str(self.folder),
            "report": str(self.report),
            "recipe": as_json({name: value for name, value in self.recipe.to_dict().items() if value is not None}),
            "evaluation": {name: value for name, value in self.evaluation.items() if name != "figures"},
        }

    def lines(self) -> list[str]:
        """Return how good the model is in a sentence, and the main metric with the path of the report."""
        try:
            return [f"{verdict_of(self.evaluation).sentence}.", f"{self.headline.words}; report: {self.report}"]
        except FileNotFoundError:
            return [f"no figures; the model is in {self.folder}"]

    @property
    def next_step(self) -> str:  # type: ignore[override]
        """What to do with the model, with a command."""
        report = f"open {shlex.quote(str(self.report))}, or " if self.report.is_file() else ""
        return f"{report}vitkit predict {shlex.quote(str(self.folder))} PHOTOS"

    def __repr__(self) -> str:
        return f"<TrainingRun: {self.lines()[-1]}>"

    def _repr_html_(self) -> str:
        from vitkit.evaluation.registry import METRICS
        from vitkit.text.pages import table

        if not (self.folder / EVALUATION).is_file() and not self.folds:
            return f"<p>{escape(self.lines()[-1])}</p>"
        summary = "".join(f"<p>{escape(line)}</p>" for line in self.lines())
        if self.folds:
            return summary
        metrics = METRICS["multi" if self.evaluation.get("task") == "multi" else "single"]
        figures = {name: self.evaluation.get(name) for name in metrics}
        rows = [[escape(name), f"{value:.4f}"] for name, value in figures.items() if value is not None]
        return summary + (table(rows, ("figure", "value")) if rows else "")


@check_arguments
def train(
    data: str | Path | Datasets | None = None,
    recipe: str | Path | Recipe | None = None,
    *,
    out: Path | str | None = None,
    force: bool = False,
    resume: Path | str | None = None,
    data_root: Path | str | None = None,
    hooks: Hooks = NO_HOOKS,
    progress: Progress = silent,
) -> TrainingRun:
    """Train a classifier on a folder of photographs, and report how good it is.

    `vitkit.train` also trains on datasets in memory (`vitkit.Datasets`).

        import vitkit

        run = vitkit.train("digits", vitkit.Recipe(epochs=2, max_images=300))
        print(run.accuracy, run.classifier.classes, run.report)

    On the command line: `vitkit train digits --epochs 2`.

    Args:
        data: a folder of class folders, a folder with train/ and val/, or a name such as digits.
        recipe: a TOML file, or the name of an included recipe. A `vitkit.Recipe` is accepted, too. The defaults of
            unset fields suit the data and the method.
        out: the run folder; by default the next free runs/NAME-N.
        force: overwrite the run in `out`.
        resume: continue this interrupted run, with its settings.
        data_root: with `resume`, the folder that now contains the run's images, which may have been renamed.
        hooks: callbacks, loggers, a loss, an augmentation or an optimiser of your own.
        progress: called with the current task, the number of finished items and the total number of items.

    Returns:
        The run, whose folder contains the model.

    Raises:
        VitkitError: the data or the recipe cannot be used, `out` exists, or another process is working on it.
        Interrupted: a signal stopped the run; the folder contains the best model so far.
        OSError: the folder cannot be written.
    """
    if display := display_of_notebook():
        hooks = replace(hooks, callbacks=(*hooks.callbacks, LiveCurves(display)))
    if resume is not None:
        # Only datasets in memory must be passed again.
        if isinstance(data, (str, Path)) or (recipe, out, force) != (None, None, False):
            raise VitkitError(
                "verbs.option-conflict",
                "--resume takes everything from the run: leave out the data and the other flags",
            )
        from vitkit.training import resume_on, run

        if data is not None:
            return TrainingRun(resume_on(data, Path(resume), hooks))
        return TrainingRun(run.resume(resume, path_of(data_root), hooks=hooks))
    if data_root is not None:
        raise VitkitError(
            "verbs.option-missing", "--data-root says where the images of a run are now: it requires --resume"
        )
    if isinstance(data, (str, Path, NoneType)):
        requested_recipe, notes = requested_on_files(recipe, data)
        from vitkit.training import run

        return TrainingRun(run.train(requested_recipe, out, force=force, notes=notes, hooks=hooks))
    from vitkit.training import FILE_FIELDS, train_on

    requested_recipe = with_data(recipe)
    # A recipe file may set fields that only apply to files. If the caller has set such a field, `train_on` refuses it.
    from_file = [name for name in FILE_FIELDS if requested_recipe.given.get(name)]
    return TrainingRun(train_on(data, requested_recipe.without(from_file), out, force=force, hooks=hooks))


def requested_on_files(recipe: str | Path | Recipe | None, data: str | Path | None) -> tuple[Recipe, list[str]]:
    """Return the recipe of a training run on files, and notes about fields that differ from a published recipe."""
    requested_recipe = requested(recipe, data)
    check_data(str(requested_recipe.data))
    if requested_recipe.source not in bundled():
        return requested_recipe, []
    from vitkit.training.defaults import without_vit_fields

    # An included recipe may have fields that the model does not have.
    fitting, left_out = without_vit_fields(requested_recipe, requested_recipe.named)
    return fitting, [*describe_changed_fields(requested_recipe), *left_out]


class LiveCurves:
    """A callback that draws the curves of loss and accuracy below a notebook cell after each epoch.

    Args:
        display: a module with `display` and `Image` as in `IPython.display`.
    """

    is_optional = True  # because notebooks add it to every training, even if there are no epochs

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None
        self._rows: list[dict[str, float]] = []

    def on_epoch_end(self, state: TrainingState) -> None:
        """Draw the curves up to this epoch."""
        from vitkit.reporting import plots
        from vitkit.text.pages import to_png

        self._rows.append({"epoch": state.epoch, **state.metrics})
        content = self._display.Image(data=to_png(plots.curves(self._rows, None)))
        if self._handle is None:
            self._handle = self._display.display(content, display_id=True)
        else:
            self._handle.update(content)
