"""Cross-validate: test each image once, with a model that was not trained on it, and train a final model on all images.

Each fold is a run of its own. The final model has no validation images, so its settings come from the folds. Its
training follows the same schedule as the folds, and ends after the median of the folds' best numbers of epochs. Its
temperature, its thresholds and its rules for prediction sets and for withheld labels are based on the predictions of
the folds' models (`finalize.OutOfFold`). A head on frozen features does not need the folds, because a separate
cross-validation chooses its penalty and calibrates it (`probe`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from vitkit.data.earlier_labels import changes_since_run
from vitkit.data.seen import PictureRecord
from vitkit.data.split_file import groups_from_file, images_of_run
from vitkit.data.splits import held_out_split
from vitkit.errors import VitkitError
from vitkit.evaluation import registry
from vitkit.evaluation.evaluator import evaluate_with_earlier_labels
from vitkit.evaluation.figures import chosen_on, unseen_part
from vitkit.evaluation.headline import headline_of, verdict_of
from vitkit.evaluation.intervals import fold_intervals
from vitkit.evaluation.metrics import Evaluation, grouped, pooled
from vitkit.evaluation.registry import read_figures
from vitkit.model_folder import RECORD, read_description
from vitkit.system.files import write_json
from vitkit.system.progress import progress
from vitkit.system.run_files import EVALUATION, FOLDS, GROUPS, RECIPE, REPORT, SPLIT, fold_folder
from vitkit.text.cells import interval_text, plural
from vitkit.text.pages import component, panel, table, wide, write_page
from vitkit.training.finalize import OutOfFold, ValidationFacts
from vitkit.training.inputs import Inputs
from vitkit.training.recipe import Recipe, name_of, without_absolute_paths
from vitkit.training.run_folder import ZERO_SHOT, Run
from vitkit.training.stages.calibrate import fit_calibration
from vitkit.training.stages.fit import fit
from vitkit.training.start import choose_device
from vitkit.weights import load


def figures_of_folds(evaluations: Sequence[Evaluation]) -> dict[str, dict[str, Any]]:
    """Compute the figures of a cross-validation, by name, from the evaluations of its folds.

    `mean` is the figure of the test images of all folds together; None if there are no images. `interval_95` is its
    95 % interval (`fold_intervals`); None if the figure has none. Without evaluations, the only figure is an accuracy.
    """
    if not evaluations:
        return {"accuracy": {"mean": None, "interval_95": None}}
    together = pooled(evaluations)
    intervals = fold_intervals(evaluations)
    figures: dict[str, dict[str, Any]] = {}
    for name, value in registry.summary(together, together.task.name).items():
        figures[name] = {"mean": value, "interval_95": list(intervals[name]) if name in intervals else None}
    return figures


def cross_validate(final_stages: Sequence[Callable[[Run], None]], run: Run) -> None:
    """Train and test all folds that are not finished yet, and train the final model on all images.

    `final_stages` are the stages of each fold after its training. The results of all folds are written to folds.json,
    and to report.html when the final model is finished.
    """
    recipe, say = run.recipe, run.say
    assert recipe.folds is not None
    folders = [fold_folder(run.folder, number) for number in range(recipe.folds)]
    for folder in folders:
        if not (folder / RECIPE).is_file() or not (folder / SPLIT).is_file():
            message = f"{folder} contains no run; start the cross-validation again with --force"
            raise VitkitError("training.fold-missing", message)
    trained: dict[Path, Run] = {}  # the folds that this process trains
    for number, folder in enumerate(folders, start=1):
        if not (folder / EVALUATION).is_file() or not (folder / REPORT).is_file():
            say(f"fold {number} of {recipe.folds}")
            trained[folder] = _train_fold(run, folder, final_stages)
    stored: dict[str, Any] = {}  # the content of folds.json
    if run.team.is_main:
        results = [trained[path].numbers if path in trained else read_figures(path / EVALUATION) for path in folders]
        stored = {**_figures(run, folders, trained, results), "folds": results}
        write_json(run.folder / FOLDS, stored)
        zero_shot = sum("zero_shot" in numbers for numbers in results)
        if zero_shot:
            say(f"note: in {zero_shot} of {recipe.folds} folds the model is the zero-shot one: no epoch was better")
        say(headline_of(stored).words)
    stored["final"] = _fit_final(run, folders)
    if run.team.is_main:
        write_json(run.folder / FOLDS, stored)
        _write_report(run.folder / REPORT, recipe, stored)
        say(f"{verdict_of(stored).sentence}.")
        say(f"{headline_of(stored).words}; report: {run.folder / REPORT}")


def _train_fold(run: Run, folder: Path, final_stages: Sequence[Callable[[Run], None]]) -> Run:
    recipe = run.recipe.replace(folds=None)
    fold = Run(recipe, team=run.team, hooks=run.hooks, photographs=run.photographs, features=run.features)
    fold.recipe = recipe
    fold.inputs = run.inputs_of_folds.get(folder) or Inputs.read(folder)
    fold.set_folder(folder)
    fold.out_of_fold = OutOfFold.read(folder)  # of a fold that was interrupted
    if hasattr(run, "blueprint"):
        fold.blueprint = replace(run.blueprint, recipe=recipe)
    fit(fold)
    run.features = fold.features  # those under the initial weights are the same for all folds
    run.team.broadcast_from_main(lambda: [stage(fold) for stage in final_stages])
    return fold


def _figures(
    run: Run, folders: Sequence[Path], trained: Mapping[Path, Run], results: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the figures of all folds together, and write the predictions that will calibrate the final model.

    `trained` contains the folds that were trained just now, and `results` the content of each fold's evaluation.json. A
    head on frozen features is not calibrated on the folds, so no predictions are written for it.
    """
    evaluations: dict[Path, Evaluation] = {}
    for folder, numbers in zip(folders, results, strict=True):
        if folder in trained:
            evaluation = trained[folder].evaluation
        else:  # test the model of the finished fold again, on the images that the initial weights had not seen
            images = images_of_run(folder / SPLIT)
            split = held_out_split(images)
            classifier = load(folder).use(images=len(images.of_split(split)), device=choose_device(run.recipe))
            changes, show_progress = changes_since_run(folder, images), partial(progress, "evaluating")
            tested = evaluate_with_earlier_labels(classifier, images, split, changes, show_progress)
            seen = numbers.get("seen") or {"paths": []}  # None if nothing is known about it
            evaluation = unseen_part(grouped(tested, groups_from_file(folder / GROUPS)), dict.fromkeys(seen["paths"]))
        if evaluation is not None:
            evaluations[folder] = evaluation
    if run.recipe.method != "probe" and evaluations:
        model = load(folders[0]).model
        run.out_of_fold = OutOfFold.of_folds(list(evaluations.values()), list(evaluations), model)
        run.out_of_fold.write(run.folder)
    return figures_of_folds(list(evaluations.values()))


def _fit_final(run: Run, folders: Sequence[Path]) -> dict[str, Any]:
    """Train the final model on all images with settings from the finished folds; return its entry in folds.json."""
    recipe, table = run.recipe.replace(folds=None), run.inputs.table

    def best_epochs() -> list[int]:
        """Return the best number of epochs of each fold; 0 for the zero-shot model."""
        if recipe.method == "probe":  # a head on frozen features has no epochs
            return []
        return [read_description(folder)["provenance"]["metrics"]["epoch"] - ZERO_SHOT for folder in folders]

    run.recipe = recipe
    best = run.team.broadcast_from_main(best_epochs)
    length = ""
    if best:
        run.stop_after = int(median(best) + 0.5)
        epochs = plural(run.stop_after, "epoch", "epochs")
        length = f", for {epochs}: the median of the best ones of the folds ({', '.join(map(str, best))})"
    run.say(f"final model: trained on all {plural(len(table), 'image', 'images')}{length}")
    if hasattr(run, "blueprint"):
        run.blueprint = replace(run.blueprint, recipe=recipe)
    fit(run)

    def calibrate_final() -> dict[str, Any]:
        chosen: tuple[str, ...] = (table.task.chosen,)
        if recipe.method == "probe":
            chosen = chosen_on("val", recipe.to_dict(), table.task)
        run.table = table
        fit_calibration(run, ValidationFacts(chosen, run.inputs.groups))
        run.classifier.save(run.folder)
        entry: dict[str, Any] = {"images": len(table), "temperature": None}
        if run.calibration is not None:
            images = plural(len(run.calibration.paths), "image", "images")
            fitted = f"fitted on {images}, each predicted by a model that was trained without it"
            run.say(f"temperature {run.classifier.temperature:.3f} of the final model: {fitted}")
            entry["temperature"] = run.classifier.temperature
        if best:
            entry |= {"epochs": run.stop_after, "best_epochs": best}
        return entry

    return run.team.broadcast_from_main(calibrate_final)


_FIGURES_IN_REPORT = ("accuracy", "balanced_accuracy", "macro_f1", "hamming_loss", "loss")


def _write_report(path: Path, recipe: Recipe, stored: Mapping[str, Any]) -> None:
    """Write the HTML report; `stored` is the content of folds.json, which has the figures of each fold."""
    accuracy, headline, verdict = stored["accuracy"], headline_of(stored), verdict_of(stored)
    figure, caption = "No figure", ""
    if accuracy["mean"] is not None and accuracy["interval_95"] is not None:
        figure = f"{100 * accuracy['mean']:.1f} %"
        caption = f"{headline.figure} (95 %: {interval_text([100 * end for end in accuracy['interval_95']], 1)})"
    record = fold_folder(path.parent, 0) / RECORD
    history = "was not trained on it; it is not recorded whether its pretrained weights had seen it"
    if record.is_file() and PictureRecord.from_bytes(record.read_bytes(), record).is_whole:
        history = "had not seen it"
    title = f"{name_of(recipe)} on {without_absolute_paths(recipe).data}, {recipe.folds} folds"

    # A row for each fold, and one with the figures of all folds together.
    names = [name for name in stored if name in _FIGURES_IN_REPORT]
    rows = []
    for number, fold in enumerate(stored["folds"], start=1):
        link = f'<a href="fold-{number}/{REPORT}">fold {number}</a>'
        kind = ", zero-shot" if "zero_shot" in fold else ""
        rows.append([link + kind, *(_cell(fold[name]) for name in names), str(fold["images"])])
    together = [_cell(stored[name]["mean"], stored[name]["interval_95"]) for name in names]
    rows.append(["all", *together, str(sum(fold["images"] for fold in stored["folds"]))])
    headings = ["", *(name.replace("_", " ") for name in names), "images"]

    final, length, calibrated = stored["final"], "", "It is not calibrated."
    if "epochs" in final:
        length = f" for {plural(final['epochs'], 'epoch', 'epochs')}, the median of the folds' best,"
    if final["temperature"] is not None:
        value = f"{final['temperature']:.3f}"
        calibrated = f"Its temperature is {value}, fitted on predictions of models without the image."
    images = plural(final["images"], "image", "images")
    about_final = f"The model in this folder was trained{length} on all {images}. {calibrated}"

    body = [
        f"<h1>{escape(title)}</h1>",
        component("verdict", verdict.level, verdict.sentence, figure, caption),
        panel("Each fold", wide(table(rows, headings))),
        panel(
            "What this says",
            f"<p>Every image was tested once, by a model that {history}.</p>",
            f"<p>{escape(about_final)}</p>",
            *(f"<p>{escape(caveat.text[0].upper() + caveat.text[1:])}.</p>" for caveat in headline.caveats),
        ),
    ]
    write_page(path, title, body)


def _cell(value: float | None, interval: Sequence[float] | None = None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if interval is None else f"{value:.4f} (95 %: {interval_text(interval, 4)})"
