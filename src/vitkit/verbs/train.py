"""`vitkit.train`: from a folder of photographs to a run folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from vitkit.errors import VitkitError
from vitkit.evaluation.headline import Headline, counted_figures, headline_of, value_of
from vitkit.system.progress import Progress, Say, silent
from vitkit.system.run_files import EVALUATION, FOLDS, RECIPE, REPORT, fold_folder
from vitkit.text.arguments import check_arguments
from vitkit.training.recipe import Recipe, RecipeFields, Request, build, overlay, unfold
from vitkit.training.recipe_files import departures, load_fields, published, request_of
from vitkit.verbs.fields import add_recipe_fields
from vitkit.verbs.inputs import check_data, path_of, watchers
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.data.user_datasets import Labelled


@dataclass(frozen=True, repr=False)
class TrainingRun(Result):
    """A run that training left, read from its folder when it is asked about.

    Attributes:
        folder: the run folder, which is also the model folder of the best weights.
    """

    folder: Path

    @property
    def report(self) -> Path:
        """The page that tells of the run."""
        return self.folder / REPORT

    @cached_property
    def classifier(self) -> Classifier:
        """The trained model with its classes and preprocessing.

        Raises:
            VitkitError: the folder holds none; a cross-validation has one in each of `folds`.
        """
        from vitkit.weights import load

        return load(self.folder)

    @cached_property
    def recipe(self) -> Recipe:
        """What the run was trained by, with everything settled that was left open."""
        return build(load_fields(self.folder / RECIPE), str(self.folder / RECIPE))

    @cached_property
    def folds(self) -> tuple[TrainingRun, ...]:
        """The runs of a cross-validation, in order; of any other run there are none."""
        return tuple(TrainingRun(fold_folder(self.folder, number)) for number in range(self.recipe.folds or 0))

    @cached_property
    def evaluation(self) -> dict[str, Any]:
        """The figures on held-out images, as in evaluation.json; of a cross-validation as in folds.json.

        Raises:
            VitkitError: the file is damaged.
            OSError: the run was stopped before it was evaluated.
        """
        from vitkit.evaluation.registry import read_figures

        file = self.folder / (EVALUATION if self.recipe.folds is None else FOLDS)
        return read_figures(file)

    @property
    def headline(self) -> Headline:
        """The figure to quote, with its interval and caveats.

        Raises:
            OSError: the run was stopped before it was evaluated.
        """
        return headline_of(self.evaluation)

    @property
    def accuracy(self) -> float:
        """The headline figure, 0 to 1: without images that the weights had seen; the exact match if multi-label.

        Of a cross-validation it is the mean over the folds.

        Raises:
            VitkitError: the weights had seen every held-out image.
            OSError: the run was stopped before it was evaluated.
        """
        return value_of(self.headline)

    def to_dict(self) -> dict[str, Any]:
        """The places of the run, its recipe and its figures."""
        return {
            "folder": str(self.folder),
            "report": str(self.report),
            "recipe": {name: value for name, value in dataclasses.asdict(self.recipe).items() if value is not None},
            "evaluation": self.evaluation,
        }

    def lines(self) -> list[str]:
        """What came of it, in a line."""
        try:
            self.evaluation  # noqa: B018  # which may not be there
        except FileNotFoundError:
            return [f"no figures; the model is in {self.folder}"]
        return [f"{self._outcome()}; report: {self.report}"]

    def _outcome(self) -> str:
        return self.headline.words

    def _repr_html_(self) -> str:
        from vitkit.evaluation.registry import METRICS
        from vitkit.text.html import table

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
    say: Say = print,
    progress: Progress = silent,
    **fields: Unpack[RecipeFields],
) -> TrainingRun:
    """Train a classifier on a folder of photographs, and report on it.

    `vitkit.train` takes datasets of your own, too.

        import vitkit

        run = vitkit.train("digits", epochs=2, max_images=300)
        print(run.accuracy, run.classifier.classes, run.report)

    On the command line: `vitkit train digits`.

    Args:
        data: folder of class folders, folder with train/ and val/, or a name such as digits.
        recipe: TOML file, or the name of a bundled recipe.
        out: run folder; by default the next runs/NAME-N.
        force: write over the run in `out`.
        resume: go on with this interrupted run; it takes everything else from there.
        data_root: with `resume`: the folder that holds the run's images now, under these or other names.
        train_dataset: in the place of `data`: gives (image, label) by index, as torchvision's datasets do. A PIL image
            is augmented and preprocessed; a float tensor (C, height, width) is taken as it is.
        val_dataset: with `train_dataset`: what chooses the best epoch and is reported on.
        class_names: of the labels 0, 1, ...; by default `train_dataset.classes`.
        preprocess: with `train_dataset`: how its tensors were made of pictures, so that the trained model can be asked
            about files: a `Preprocess`, or such as "resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5". By
            default what torchvision's transforms in `val_dataset.transform` say; where they cannot be read, the model
            answers about tensors and refuses files.
        callbacks: objects with some of on_fit_start, on_step_end, on_epoch_end, on_fit_end; each of these is given the
            training's state: epoch, step, metrics, model, should_stop (`training.checkpoint.TrainingState`).
        loggers: objects with log_metrics(metrics, step), as Lightning's, beside the one that `logger` names.
        say: takes each line of the story.
        progress: told what is being done, how many are done, of how many.
        fields: of the recipe, see below; they go before those of the recipe file, and what nobody names is chosen to
            suit the data and what is trained. With `select_time`, `weights` may be a list.

    Returns:
        The run, whose folder holds the model.

    Raises:
        VitkitError: the data or the recipe cannot be trained on, or `out` exists, or another process works on it.
        Interrupted: a signal stopped the run; the folder holds the best model so far.
        OSError: the folder cannot be written.
    """
    watching = watchers(callbacks, loggers)
    if train_dataset is not None:
        files = {"data": data, "data_root": data_root, "recipe": recipe if resume is not None else None}
        if named := [name for name, value in files.items() if value is not None]:
            raise VitkitError(f"train_dataset takes the place of files: leave out {named[0]}")
        return _train_on_datasets(
            (train_dataset, val_dataset, class_names, preprocess), {**fields}, recipe, out, force, resume, say, watching
        )
    if val_dataset is not None or class_names is not None or preprocess is not None:
        raise VitkitError("val_dataset, class_names and preprocess go with train_dataset")
    if resume is not None:
        if data is not None or recipe is not None or out is not None or force or fields:
            raise VitkitError("--resume takes everything from the run: leave out the data and the other flags")
        from vitkit.training import run

        return TrainingRun(run.resume(resume, path_of(data_root), **watching, say=say))
    if data_root is not None:
        raise VitkitError("--data-root says where the images of a run are now: it goes with --resume")
    chosen: dict[str, Any] = {**fields} if data is None else {**fields, "data": str(data)}
    request, notes = request_of(chosen, recipe), departures(chosen, recipe)
    check_data(request.fields["data"])
    if published(chosen, recipe) is not None:
        heeded, left_out = _heeded(request.fields, chosen)
        request, notes = Request.of(heeded), [*notes, *left_out]
    from vitkit.training import run

    resolution = {"notes": notes, "named": tuple(chosen)}
    folder = run.train(request, out, force=force, **resolution, **watching, say=say)
    return TrainingRun(folder)


def _heeded(resolved: dict[str, Any], asked: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """The fields without those of a published recipe that its caller's model does not know, and a line for each."""
    from vitkit.training.architecture import without_fields_of_vits

    of_recipe = {name: value for name, value in resolved.items() if name == "model" or name not in asked}
    heeded, left_out = without_fields_of_vits(of_recipe)
    return {name: value for name, value in resolved.items() if name not in of_recipe or name in heeded}, left_out


def _train_on_datasets(
    given: tuple[Labelled, Labelled | None, Sequence[str] | None, Any],
    fields: dict[str, Any],
    recipe: str | Path | None,
    out: str | Path | None,
    force: bool,
    resume: str | Path | None,
    say: Say,
    watching: dict[str, Any],
) -> TrainingRun:
    from vitkit.data.user_datasets import Datasets
    from vitkit.training.run import OF_FILES, resume_on, train_on
    from vitkit.training.run_folder import Observers

    observers = Observers(say, **watching)
    if resume is None:
        # What a recipe file says of files is of no account here; what the caller says of them is refused.
        read = {} if recipe is None else load_fields(recipe)
        asked = overlay({name: value for name, value in read.items() if name not in OF_FILES}, unfold(fields))
        return TrainingRun(
            train_on(Datasets(*given), asked, out, force=force, observers=observers, named=tuple(fields))
        )
    if out is not None or force or fields or given[3] is not None:
        raise VitkitError("--resume takes everything from the run: leave out the other parameters")
    resume_on(Datasets(*given), Path(resume), observers)
    return TrainingRun(Path(resume))


add_recipe_fields(train)
