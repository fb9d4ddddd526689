"""Cross-validate: test each image once, with a model that was not trained on it, and train a final model on all images.

Each fold is a run of its own. The final model has no validation images, so its settings come from the folds. Its
training follows the same schedule as the folds, and ends after the median of the folds' best numbers of epochs. With
`--find-lr`, its learning rate is the median of the rates that the folds have found. Its temperature, its thresholds and
its rules for prediction sets and for withheld labels are based on the predictions of the folds' models
(`finalize.OutOfFold`). A head on frozen features does not need the folds, because a separate cross-validation chooses
its penalty and calibrates it (`probe`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from statistics import median, median_low
from typing import Any

from vitkit.data.earlier_labels import labels_before_run
from vitkit.data.seen import PictureRecord
from vitkit.data.split_file import groups_from_file, images_of_run
from vitkit.data.splits import held_out_split
from vitkit.errors import VitkitError
from vitkit.evaluation import registry
from vitkit.evaluation.evaluator import evaluate_before
from vitkit.evaluation.figures import chosen_on, unseen_part
from vitkit.evaluation.headline import headline_of
from vitkit.evaluation.intervals import Interval, fold_intervals
from vitkit.evaluation.metrics import Evaluation, grouped, pooled
from vitkit.evaluation.registry import read_figures
from vitkit.model_folder import RECORD, read_description
from vitkit.system.files import from_json, write_json
from vitkit.system.progress import progress
from vitkit.system.run_files import EVALUATION, FOLDS, GROUPS, RECIPE, REPORT, SPLIT, fold_folder
from vitkit.text.arguments import is_number
from vitkit.text.cells import interval_text, plural
from vitkit.text.pages import table, write_page
from vitkit.training.finalize import OutOfFold, ValidationFacts
from vitkit.training.inputs import Inputs
from vitkit.training.recipe import Recipe, name_of, without_places
from vitkit.training.request import load_of_run
from vitkit.training.run_folder import ZERO_SHOT, Run, reporting
from vitkit.training.stages.calibrate import calibrate, fit_calibration
from vitkit.training.stages.evaluate import evaluate
from vitkit.training.stages.fit import fit
from vitkit.training.stages.report import report
from vitkit.training.start import choose_device
from vitkit.weights import load

_SHOWN = ("accuracy", "balanced_accuracy", "macro_f1", "hamming_loss", "loss")  # the figures that the report shows


@dataclass(frozen=True)
class FoldFigure:
    """A figure of a cross-validation.

    Attributes:
        mean: the figure, computed over the test images of all folds together; None if there are no images.
        interval: the 95 % confidence interval (see `fold_intervals`); None if the figure has no interval.
    """

    mean: float | None
    interval: Interval | None

    def to_dict(self) -> dict[str, Any]:
        """Return the figure as a dictionary for JSON."""
        return {"mean": self.mean, "interval_95": None if self.interval is None else list(self.interval)}

    def __str__(self) -> str:
        if self.mean is None:
            return "-"
        if self.interval is None:
            return f"{self.mean:.4f}"
        return f"{self.mean:.4f} (95 %: {interval_text(self.interval, 4)})"


def figures_of_folds(evaluations: Sequence[Evaluation]) -> dict[str, FoldFigure]:
    """Compute the figures of a cross-validation, by name, from the evaluations of its folds.

    Without evaluations, the result is only an accuracy whose value is None.
    """
    if not evaluations:
        return {"accuracy": FoldFigure(None, None)}
    whole, bounds = pooled(evaluations), fold_intervals(evaluations)
    numbers = registry.summary(whole, whole.task.name)
    return {name: FoldFigure(value, bounds.get(name)) for name, value in numbers.items()}


def cross_validate(run: Run) -> None:
    """Train and test all folds that are not finished yet, and train the final model on all images.

    The results of all folds are written to folds.json, and to report.html when the final model is finished.

    Raises:
        VitkitError: the folder of a fold or the images of a finished fold are missing.
    """
    recipe = run.recipe
    assert recipe.folds is not None
    folders = [fold_folder(run.folder, number) for number in range(recipe.folds)]
    trained: dict[Path, Run] = {}
    for number, folder in enumerate(folders, start=1):
        if not (folder / RECIPE).is_file():
            raise VitkitError(f"{folder} contains no run; start the cross-validation again with --force")
        if not all((folder / name).is_file() for name in (EVALUATION, REPORT)):
            run.say(f"fold {number} of {recipe.folds}")
            trained[folder] = _train_fold(run, folder)
    has_final = hasattr(run, "inputs")  # cross-validations of earlier versions have none
    figures: dict[str, FoldFigure] = {}
    results: list[dict[str, Any]] = []
    if run.team.is_main:
        results = [
            trained[folder].numbers if folder in trained else read_figures(folder / EVALUATION) for folder in folders
        ]
        needs_predictions = has_final and recipe.method != "probe" and run.out_of_fold is None
        figures = {} if trained or needs_predictions else _known(run.folder / FOLDS)
        if not figures:
            evaluations = [
                trained[folder].evaluation if folder in trained else _evaluated_again(folder, figure, recipe)
                for folder, figure in zip(folders, results, strict=True)
            ]
            figures = figures_of_folds([figure for figure in evaluations if figure is not None])
            if has_final and recipe.method != "probe":
                _write_predictions(run, folders, evaluations)
        numbers = {name: figure.to_dict() for name, figure in figures.items()}
        write_json(run.folder / FOLDS, {**numbers, "folds": results})
        if (unlearned := sum("zero_shot" in figure for figure in results)) > 0:
            run.say(f"note: in {unlearned} of {recipe.folds} folds the model is the zero-shot one: no epoch was better")
        run.say(headline_of({**numbers, "folds": results}).words)
    final = _fit_final(run, folders) if has_final else None
    if run.team.is_main:
        stored: dict[str, Any] = {name: figure.to_dict() for name, figure in figures.items()}
        stored |= {"folds": results} if final is None else {"folds": results, "final": final}
        write_json(run.folder / FOLDS, stored)
        _write_report(run.folder / REPORT, recipe, results, figures, final)
        run.say(f"{headline_of(stored).words}; report: {run.folder / REPORT}")


def _train_fold(run: Run, folder: Path) -> Run:
    """Train and test one fold, and return its run."""
    fold = Run(run.recipe.replace(folds=None), team=run.team, hooks=run.hooks, whole=run.folder)
    fold.recipe, fold.inputs = fold.asked, run.inputs_of_folds.get(folder) or Inputs.read(folder)
    fold.enter(folder)
    fold.out_of_fold = OutOfFold.read(folder)  # of a fold that was interrupted
    if hasattr(run, "blueprint"):
        fold.blueprint = replace(run.blueprint, recipe=fold.recipe)
    fold.photographs, fold.features = run.photographs, run.features
    fit(fold)
    run.features = fold.features  # those under the initial weights are the same for all folds
    with reporting(fold):
        run.team.broadcast_from_main(lambda: [stage(fold) for stage in (calibrate, evaluate, report)])
    return fold


def _write_predictions(run: Run, folders: Sequence[Path], evaluations: Sequence[Evaluation | None]) -> None:
    """Write the predictions that will calibrate the final model: those of each fold's model for its test images."""
    pairs = [(item, folder) for item, folder in zip(evaluations, folders, strict=True) if item is not None]
    if pairs:
        model = load(folders[0]).model
        run.out_of_fold = OutOfFold.of_folds([item for item, _ in pairs], [folder for _, folder in pairs], model)
        run.out_of_fold.write(run.folder)


def _fit_final(run: Run, folders: Sequence[Path]) -> dict[str, Any]:
    """Train the final model on all images, and return its entry in folds.json."""
    plan = run.team.broadcast_from_main(lambda: plan_of_final(run.recipe, folders))
    run.say(plan.words(len(run.inputs.table)))
    run.until, run.recipe = plan.epochs, plan.recipe
    if hasattr(run, "blueprint"):
        run.blueprint = replace(run.blueprint, recipe=plan.recipe)
    fit(run)

    def conclude() -> dict[str, Any]:
        about = calibrate_final(run)
        return about if plan.epochs is None else {**about, "epochs": plan.epochs, "best_epochs": list(plan.best)}

    with reporting(run):
        return run.team.broadcast_from_main(conclude)


def _known(file: Path) -> dict[str, FoldFigure]:
    """Read the figures in folds.json. The result is empty if the file is missing, damaged, or in an older format."""
    known = {}
    try:
        for name, row in from_json(file.read_text(encoding="utf-8")).items():
            if name not in ("folds", "final"):
                mean, ends = row["mean"], row["interval_95"]
                known[name] = FoldFigure(mean, None if ends is None else (ends[0], ends[1]))
                if not all(value is None or is_number(value) for value in (mean, *(known[name].interval or ()))):
                    return {}
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return {}
    return known


def _evaluated_again(folder: Path, numbers: Mapping[str, Any], recipe: Recipe) -> Evaluation | None:
    """Evaluate a finished fold again, on the test images that its initial weights had not seen.

    Return None if the initial weights had seen all of them.
    """
    images = images_of_run(folder / SPLIT)
    split = held_out_split(images)
    classifier = load(folder).use(images=len(images.of_split(split)), device=choose_device(recipe))
    earlier = labels_before_run(folder, images)
    evaluation = evaluate_before(classifier, images, split, earlier, partial(progress, "evaluating"))
    seen = (numbers.get("seen") or {"paths": ()})["paths"]
    return unseen_part(grouped(evaluation, groups_from_file(folder / GROUPS)), dict.fromkeys(seen))


def _unseen(folder: Path) -> str:
    """Return the end of the sentence "Every image was tested once, by a model that ..."."""
    record = fold_folder(folder, 0) / RECORD
    if record.is_file() and PictureRecord.from_bytes(record.read_bytes(), record).is_whole:
        return "had not seen it"
    return "was not trained on it; it is not recorded whether its pretrained weights had seen it"


def _write_report(
    path: Path,
    recipe: Recipe,
    results: Sequence[dict[str, Any]],
    figures: dict[str, FoldFigure],
    final: dict[str, Any] | None,
) -> None:
    shown = {name: item for name, item in figures.items() if name in _SHOWN}
    rows = [
        [
            f'<a href="fold-{number}/{REPORT}">fold {number}</a>{", zero-shot" if "zero_shot" in item else ""}',
            *("-" if item[name] is None else f"{item[name]:.4f}" for name in shown),
            str(item["images"]),
        ]
        for number, item in enumerate(results, start=1)
    ]
    rows.append(["all", *map(str, shown.values()), str(sum(item["images"] for item in results))])
    accuracy = figures["accuracy"]
    numbers = {**{name: item.to_dict() for name, item in figures.items()}, "folds": results}
    headline = headline_of(numbers if final is None else {**numbers, "final": final})
    caveats = [f"<p>{escape(caveat.text[0].upper() + caveat.text[1:])}.</p>" for caveat in headline.caveats]
    first = "<p>No accuracy can be given.</p>"
    if accuracy.mean is not None and accuracy.interval is not None:
        interval = f'<span class="soft">(95 %: {interval_text([100 * end for end in accuracy.interval], 1)})</span>'
        first = f'<p><span class="figure">{100 * accuracy.mean:.1f} %</span> {headline.figure} {interval}</p>'
    title = f"{name_of(recipe)} on {without_places(recipe).data}, {recipe.folds} folds"
    body = [
        f"<h1>{escape(title)}</h1>",
        first,
        *caveats,
        f"<p>Every image was tested once, by a model that {_unseen(path.parent)}.</p>",
        *([] if final is None else [f"<p>{escape(_about_final(final))}</p>"]),
        table(rows, ["", *(name.replace("_", " ") for name in shown), "images"]),
    ]
    write_page(path, title, body)


def _about_final(final: Mapping[str, Any]) -> str:
    """Describe the final model of a cross-validation in sentences, from its entry in folds.json."""
    epochs = final.get("epochs")
    length = "" if epochs is None else f" for {plural(epochs, 'epoch', 'epochs')}, the median of the folds' best,"
    calibrated = (
        "It is not calibrated."
        if final["temperature"] is None
        else f"Its temperature is {final['temperature']:.3f}, fitted on predictions of models without the image."
    )
    every = plural(final["images"], "image", "images")
    return f"The model in this folder was trained{length} on all {every}. {calibrated}"


# --- The final model -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FinalPlan:
    """The plan for training the final model.

    Attributes:
        recipe: the recipe of the final model.
        best: for each fold, the number of epochs after which the model was best; 0 if the zero-shot model was best.
            Empty for a head on frozen features, which has no epochs.
    """

    recipe: Recipe
    best: tuple[int, ...] = ()

    @property
    def epochs(self) -> int | None:
        """The number of epochs after which the training ends; None for a head on frozen features."""
        return int(median(self.best) + 0.5) if self.best else None

    def words(self, images: int) -> str:
        """Describe the training in one line.

        Args:
            images: the number of images that the final model is trained on.
        """
        how = ""
        if self.epochs is not None:
            each = ", ".join(map(str, self.best))
            how = f", for {plural(self.epochs, 'epoch', 'epochs')}: the median of the best ones of the folds ({each})"
        return f"final model: trained on all {plural(images, 'image', 'images')}{how}"


def plan_of_final(recipe: Recipe, folders: Sequence[Path]) -> FinalPlan:
    """Return the plan for the final model, which is based on the choices of the finished folds.

    Args:
        recipe: the recipe of the cross-validation.
        folders: the folders of the folds.
    """
    recipe = recipe.replace(folds=None)
    if recipe.method == "probe":
        return FinalPlan(recipe)
    if recipe.find_lr:
        rates = [load_of_run(folder / RECIPE).lr for folder in folders]
        recipe = recipe.replace(find_lr=False, lr=median_low(rates))
    kept = [read_description(folder)["provenance"]["metrics"]["epoch"] for folder in folders]
    best = tuple(epoch - ZERO_SHOT for epoch in kept)
    return FinalPlan(recipe, best)


def calibrate_final(run: Run) -> dict[str, Any]:
    """Calibrate the final model on out-of-fold predictions, save it, and return its entry in folds.json."""
    recipe, table = run.recipe, run.inputs.table
    chosen = (table.task.chosen,) if recipe.method != "probe" else chosen_on("val", recipe.to_dict(), table.task)
    run.table = table
    fit_calibration(run, ValidationFacts(chosen, run.inputs.groups))
    run.classifier.save(run.folder)
    if run.calibration is None:
        return {"images": len(table), "temperature": None}
    images = plural(len(run.calibration.paths), "image", "images")
    fitted = f"fitted on {images}, each predicted by a model that was trained without it"
    run.say(f"temperature {run.classifier.temperature:.3f} of the final model: {fitted}")
    return {"images": len(table), "temperature": run.classifier.temperature}
