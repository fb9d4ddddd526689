"""`vitkit.train`: train a classifier on a folder of photographs, or on datasets in memory."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from vitkit.errors import VitkitError
from vitkit.evaluation.headline import Headline, counted_figures, headline_of, value_of
from vitkit.model.registry import register_model
from vitkit.system.progress import Progress, Say, display_of_notebook, silent
from vitkit.system.run_files import EVALUATION, FOLDS, RECIPE, REPORT, fold_folder
from vitkit.text.arguments import check_arguments
from vitkit.training.recipe import Recipe, RecipeFields, Request, build, overlay, unfold
from vitkit.training.request import Extensions, add_recipe_fields, bundled_recipe, departures, load_fields, request_of
from vitkit.verbs.inputs import callbacks_and_loggers, check_data, path_of
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitkit.classifier import Classifier
    from vitkit.data.user_datasets import Labelled
    from vitkit.training.checkpoint import TrainingState


@dataclass(frozen=True, repr=False)
class TrainingRun(Result):
    """A finished or interrupted training run. Its files are read when an attribute is accessed.

        import vitkit

        run = vitkit.train("digits", epochs=2, max_images=300)
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
            VitkitError: the folder contains no model; cross-validations of earlier versions have none.
        """
        from vitkit.weights import load

        return load(self.folder)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of the run, in which every unset field has the default that was chosen for it."""
        return build(load_fields(self.folder / RECIPE), str(self.folder / RECIPE))

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
        return {**numbers, "figures": {name: value for name, value in numbers.items() if name != "label_errors"}}

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

        rows = [dict(row) for row in read_metrics(self.folder / METRICS)]
        if not self.folds:
            return rows
        of_folds = [{"fold": i, **row} for i, fold in enumerate(self.folds, start=1) for row in fold.rows()]
        return [*of_folds, *({"fold": "final", **row} for row in rows)]

    def pictures(self) -> dict[str, Callable[[], Figure]]:
        """Return the function that draws the curves, by caption; empty for a cross-validation or without epochs."""
        rows = [] if self.folds else self.rows()
        if not rows:
            return {}
        recipe, record = self.recipe, self.classifier.provenance.get("metrics", {})
        best = int(record.get("epoch", len(rows) - 1))

        def curves() -> Figure:
            from vitkit.reporting import plots

            return plots.curves(rows, best, is_mixed=bool(recipe.mixup or recipe.cutmix))

        return {"Curves": curves}

    def to_dict(self) -> dict[str, Any]:
        """Return the paths of the run, its recipe and its figures."""
        return {
            "folder": str(self.folder),
            "report": str(self.report),
            "recipe": {name: value for name, value in dataclasses.asdict(self.recipe).items() if value is not None},
            "evaluation": {name: value for name, value in self.evaluation.items() if name != "figures"},
        }

    def lines(self) -> list[str]:
        """Return one line with the main metric and the path of the report."""
        try:
            return [f"{self.headline.words}; report: {self.report}"]
        except FileNotFoundError:
            return [f"no figures; the model is in {self.folder}"]

    def _repr_html_(self) -> str:
        from vitkit.evaluation.registry import METRICS
        from vitkit.text.pages import table

        if not (self.folder / EVALUATION).is_file() and not self.folds:
            return f"<p>{escape(self.lines()[0])}</p>"
        shown = METRICS["multi" if self.evaluation.get("task") == "multi" else "single"]
        counted = {} if self.folds else counted_figures(self.evaluation)
        figures = {name: counted[name] for name in shown if name in counted}
        rows = [[escape(name), f"{value:.4f}"] for name, value in figures.items() if value is not None]
        return f"<p>{escape(self.lines()[0])}</p>" + (table(rows, ("figure", "value")) if rows else "")


@check_arguments
def train(
    data: str | Path | None = None,
    *,
    recipe: str | Path | None = None,
    out: Path | str | None = None,
    force: bool = False,
    resume: Path | str | None = None,
    data_root: Path | str | None = None,
    train_dataset: Labelled | None = None,
    val_dataset: Labelled | None = None,
    class_names: Sequence[str] | None = None,
    preprocess: Any = None,
    callbacks: Sequence[Any] = (),
    loggers: Sequence[Any] = (),
    loss: Callable[[Any, Any], Any] | None = None,
    augment: Callable[[Any], Any] | None = None,
    make_optimizer: Callable[[list[dict[str, Any]]], Any] | None = None,
    say: Say = print,
    progress: Progress = silent,
    **fields: Unpack[RecipeFields],
) -> TrainingRun:
    """Train a classifier on a folder of photographs, and report how good it is.

    `vitkit.train` also trains on datasets in memory (`train_dataset`).

        import vitkit

        run = vitkit.train("digits", epochs=2, max_images=300)
        print(run.accuracy, run.classifier.classes, run.report)

    On the command line: `vitkit train digits`.

    Args:
        data: a folder of class folders, a folder with train/ and val/, or a name such as digits.
        recipe: a TOML file, or the name of an included recipe.
        out: the run folder; by default the next free runs/NAME-N.
        force: overwrite the run in `out`.
        resume: continue this interrupted run, with its settings.
        data_root: with `resume`, the folder that now contains the run's images, which may have been renamed.
        train_dataset: a dataset to use instead of `data`, which returns (image, label) by index, as torchvision's
            datasets do. PIL images are augmented and preprocessed; float tensors (C, height, width) are used as they
            are.
        val_dataset: with `train_dataset`, the dataset on which the best epoch is chosen and the figures are computed.
        class_names: the names of the labels 0, 1, ...; by default `train_dataset.classes`.
        preprocess: with `train_dataset`, the preprocessing that produced its tensors from pictures: a `Preprocess`, or
            text such as "resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5". The trained model needs the
            preprocessing to classify files. By default, it is read from torchvision's transforms in
            `val_dataset.transform`. If this is not possible, the model classifies tensors and refuses files.
        callbacks: objects with some of the methods on_fit_start, on_step_end, on_epoch_end and on_fit_end. Each is
            called with the state of the training: epoch, step, metrics, model, should_stop
            (`training.checkpoint.TrainingState`).
        loggers: objects with a method log_metrics(metrics, step), such as Lightning's loggers, in addition to `logger`.
        loss: a function that returns the mean loss and replaces cross-entropy. It takes logits (B, K) and labels (B,);
            for mixed images, for images with several classes, and with class weights (`balance`), it takes targets
            (B, K) instead of labels.
        augment: a function that takes a PIL training image and returns another, called before vitkit's augmentation.
        make_optimizer: a function that takes the parameter groups and returns a `torch.optim.Optimizer`, such as
            `torch.optim.RAdam`. The recipe's schedule sets the learning rates.
        say: called with each line of the run's log.
        progress: called with the current task, the number of finished items and the total number of items.
        fields: the fields of the recipe, see below. They take precedence over the fields of the recipe file. The
            defaults of unset fields suit the data and the method. `model` may also be an `nn.Module`; a copy of it is
            trained (see `vitkit.register_model`). `optimizer` may also be a function like `make_optimizer`.

    Returns:
        The run, whose folder contains the model.

    Raises:
        VitkitError: the data or the recipe cannot be used, `out` exists, or another process is working on it.
        Interrupted: a signal stopped the run; the folder contains the best model so far.
        OSError: the folder cannot be written.
    """
    chosen, make_optimizer = without_objects({**fields}, make_optimizer)
    extensions = Extensions(loss, augment, make_optimizer)
    observing = {**callbacks_and_loggers(callbacks, loggers), "extensions": extensions}
    if display := display_of_notebook():
        observing["callbacks"] = (*observing["callbacks"], LiveCurves(display))
    if train_dataset is not None:
        files = {"data": data, "data_root": data_root, "recipe": recipe if resume is not None else None}
        if named := [name for name, value in files.items() if value is not None]:
            raise VitkitError(f"train_dataset replaces files: leave out {named[0]}")
        return _train_on_datasets(
            (train_dataset, val_dataset, class_names, preprocess),
            chosen,
            recipe,
            out,
            force,
            resume,
            say,
            observing,
        )
    if val_dataset is not None or class_names is not None or preprocess is not None:
        raise VitkitError("val_dataset, class_names and preprocess require train_dataset")
    if resume is not None:
        if data is not None or recipe is not None or out is not None or force or fields:
            raise VitkitError("--resume takes everything from the run: leave out the data and the other flags")
        from vitkit.training import run

        return TrainingRun(run.resume(resume, path_of(data_root), **observing, say=say))
    if data_root is not None:
        raise VitkitError("--data-root says where the images of a run are now: it requires --resume")
    chosen = chosen if data is None else {**chosen, "data": str(data)}
    request, notes = requested(chosen, recipe)
    from vitkit.training import run

    resolution: dict[str, Any] = {"notes": notes, "named": tuple(chosen)}
    folder = run.train(request, out, force=force, **resolution, **observing, say=say)
    return TrainingRun(folder)


class LiveCurves:
    """A callback that draws the curves of loss and accuracy below a notebook cell after each epoch.

    Args:
        display: a module with `display` and `Image` as in `IPython.display`.
    """

    is_optional = True  # because notebooks add it to every training, even if there are no epochs

    def __init__(self, display: Any) -> None:
        self._display, self._handle = display, None
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


def without_objects(
    fields: dict[str, Any], make_optimizer: Callable[[list[dict[str, Any]]], Any] | None
) -> tuple[dict[str, Any], Callable[[list[dict[str, Any]]], Any] | None]:
    """Replace a module in the field `model` by a registered name, and remove a function from `optimizer`.

    Returns the fields, and the function that makes the optimiser; None if there is none.
    """
    model, optimizer = fields.get("model"), fields.get("optimizer")
    if callable(model):
        name = getattr(model, "__name__", type(model).__name__)
        fields["model"] = register_model(re.sub(r"[^\w.-]", "", name) or "network", model)
    if str(fields.get("model")).startswith("custom:"):
        fields.setdefault("weights", "none")
    if callable(optimizer):
        if make_optimizer is not None:
            raise VitkitError("optimizer and make_optimizer both create the optimiser: leave out one of them")
        make_optimizer = optimizer
        del fields["optimizer"]
    return fields, make_optimizer


def requested(chosen: dict[str, Any], recipe: str | Path | None) -> tuple[Request, list[str]]:
    """Return the request of a training on files, and lines about the recipe.

    Args:
        chosen: the fields that the caller has set.
        recipe: a recipe file, or the name of a bundled recipe.

    Raises:
        VitkitError: the data or the recipe do not exist.
    """
    request = request_of(chosen, recipe)
    check_data(request.fields["data"])
    if bundled_recipe(chosen, recipe) is None:
        return request, []
    kept, left_out = _without_vit_fields(request.fields, chosen)
    return Request.of(kept), [*departures(chosen, recipe), *left_out]


def _without_vit_fields(resolved: dict[str, Any], named: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Remove the fields of a published recipe that the caller's model does not have.

    Args:
        resolved: all fields.
        named: the fields that the caller has set.

    Returns:
        The remaining fields, and a line about each removed one.
    """
    from vitkit.training.defaults import without_fields_of_vits

    of_recipe = {name: value for name, value in resolved.items() if name == "model" or name not in named}
    kept, left_out = without_fields_of_vits(of_recipe)
    return {name: value for name, value in resolved.items() if name not in of_recipe or name in kept}, left_out


def _train_on_datasets(
    datasets: tuple[Labelled, Labelled | None, Sequence[str] | None, Any],
    fields: dict[str, Any],
    recipe: str | Path | None,
    out: str | Path | None,
    force: bool,
    resume: str | Path | None,
    say: Say,
    observing: dict[str, Any],
) -> TrainingRun:
    from vitkit.data.user_datasets import Datasets
    from vitkit.training.run import OF_FILES, resume_on, train_on
    from vitkit.training.run_folder import Observers

    observers = Observers(say, **observing)
    if resume is None:
        # Fields about files are ignored in a recipe file, and refused as parameters.
        read = {} if recipe is None else load_fields(recipe)
        requested = overlay({name: value for name, value in read.items() if name not in OF_FILES}, unfold(fields))
        run = train_on(Datasets(*datasets), requested, out, force=force, observers=observers, named=tuple(fields))
        return TrainingRun(run)
    if out is not None or force or fields or datasets[3] is not None:
        raise VitkitError("--resume takes everything from the run: leave out the other parameters")
    resume_on(Datasets(*datasets), Path(resume), observers)
    return TrainingRun(Path(resume))


add_recipe_fields(train)
