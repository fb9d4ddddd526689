"""Write the figures, the predictions and the page of a run. Nothing that is computed here changes the model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from vitkit.data.splits import SPLITS
from vitkit.evaluation import label_errors
from vitkit.evaluation.figures import describe
from vitkit.evaluation.headline import BY_FOLDS, describe_labels, headline_of, verdict_of
from vitkit.evaluation.metrics import MultiEvaluation
from vitkit.explanation import can_explain
from vitkit.explanation.explanation import explain_mistake
from vitkit.model_folder import RECORD
from vitkit.reporting import plots
from vitkit.reporting.evaluation_report import pictures_of, write_predictions, write_report
from vitkit.reporting.report_data import Explained, embed
from vitkit.system.files import public_path, write_json
from vitkit.system.progress import progress
from vitkit.system.run_files import EVALUATION, LABEL_ERRORS, PICTURES, PREDICTIONS, REPORT
from vitkit.training.recipe import name_of, without_absolute_paths
from vitkit.training.run_folder import ZERO_SHOT, Run

_MAX_EXPLAINED = 12  # mistakes


def report(run: Run) -> None:
    """Write the predictions, the label errors, evaluation.json, the pictures and the page of a run."""
    classifier, recipe, table, numbers = run.classifier, run.recipe, run.table, run.numbers
    evaluation = run.evaluation or run.tested
    write_predictions(run.folder / PREDICTIONS, run.tested)
    label_errors.write_label_errors(run.folder / LABEL_ERRORS, run.label_errors)
    best_epoch = classifier.provenance["metrics"]["epoch"]
    is_mixed = bool(recipe.mixup or recipe.cutmix)
    run.draw("Curves", plots.curves(run.metrics.rows, best_epoch, is_mixed=is_mixed))
    laid_out = embed(classifier, evaluation, table.place, partial(progress, "laying out images"))
    for caption, draw in pictures_of(evaluation).items():
        run.draw(caption, draw())
    write_json(run.folder / EVALUATION, numbers)

    explained = []  # the worst mistakes of the model, if it supports explanations and has made the predictions itself
    # Mistakes of a head that was trained without the fold cannot be explained by the final head.
    is_explained = evaluation.split != BY_FOLDS and can_explain(classifier.model)
    if is_explained and not isinstance(evaluation, MultiEvaluation):
        classes = evaluation.classes
        worst = [i for i in evaluation.mistakes(_MAX_EXPLAINED) if evaluation.label_of(i) in classifier.classes]
        with_gradients = replace(classifier, runner=None)  # the maps need the gradients of the model itself
        for done, i in enumerate(worst, start=1):
            progress("explaining mistakes", done, len(worst))
            true, predicted = classes[evaluation.labels[i]], classes[evaluation.predicted[i]]
            pictures = explain_mistake(with_gradients, table.place / evaluation.paths[i], true, predicted)
            if not isinstance(pictures, str):  # it may have become unreadable
                explained.append(Explained(i, f"{true}, taken for {predicted}", pictures))

    notes = (("note", describe_labels(numbers)), ("problem", describe(numbers)))
    write_report(
        run.folder / REPORT,
        title=f"{name_of(recipe)} on {public_path(table.name)}",
        evaluation=evaluation,
        numbers=numbers,
        root=table.place,
        facts=_facts(run),
        findings=[*(f"{severity}: {text}" for severity, text in notes if text), *map(str, run.inputs.findings)],
        pictures=pictures_for_page(run),
        laid_out=laid_out,
        label_errors=run.label_errors,
        recipe=without_absolute_paths(recipe).to_toml(),
        explained=explained,
    )
    loss = "" if numbers["loss"] is None else f" ({numbers['loss']:.4f} log loss)"
    run.say(f"{verdict_of(numbers).sentence}.")
    run.say(f"{headline_of(numbers).words}{loss}; report: {run.folder / REPORT}")


def pictures_for_page(run: Run) -> dict[str, bytes]:
    """Return the pictures for the report, by caption. With a single row of metrics.csv, the curves are left out."""
    pictures = {caption: run.pictures[caption] for caption in PICTURES if caption in run.pictures}
    if len(run.metrics.rows) <= 1:
        pictures.pop("Curves", None)
    return pictures


def _facts(run: Run) -> dict[str, str]:
    classifier, table, rows, record = run.classifier, run.table, run.metrics.rows, run.inputs.record
    config, preprocess = classifier.model.config, classifier.preprocess
    epoch = classifier.provenance["metrics"]["epoch"]
    parameters = sum(parameter.numel() for parameter in classifier.model.parameters())
    splits = ", ".join(f"{len(table.of_split(name))} {name}" for name in SPLITS)
    h, w = config.image_size
    pixels = (f"{h}x{w}", preprocess.fit, preprocess.interpolation, f"mean {preprocess.mean}", f"std {preprocess.std}")
    spent = ""
    if rows and "seconds" in rows[-1]:  # unless metrics.csv was lost, or edited
        spent = f"{sum(row['epoch'] > ZERO_SHOT for row in rows)} epochs in {rows[-1]['seconds']:.0f} s; "
    facts = {
        "model": f"{name_of(run.recipe)}: {parameters:,} parameters, {config.description}",
        "data": f"{table.root.name}: {splits} images, {len(table.classes)} classes",
        "pixels": ", ".join(pixels),
        "training": f"{spent}kept: epoch {epoch + 1}, {_choice_of_epoch(run)}",
    }
    zero_shot = next((row for row in rows if row["epoch"] == ZERO_SHOT), {})
    figures = [f"{name} {zero_shot[name]:.4f}" for name in ("val_loss", "val_acc", "val_map") if name in zero_shot]
    if figures:
        facts["zero-shot"] = f"{', '.join(figures)} with the class names alone, before any training"
    if record is not None and record.is_whole:
        facts["seen before"] = f"all images that the weights were ever trained on are recorded in {RECORD}"
    elif record is not None:
        facts["seen before"] = "not known: what the first weights were trained on is not recorded"
    return facts | {
        "computed": classifier.computed,
        "seed": str(run.recipe.seed),
        "data hash": classifier.provenance["data_hash"],
        "made with": ", ".join(f"{name} {number}" for name, number in classifier.provenance["versions"].items()),
    }


def _choice_of_epoch(run: Run) -> str:
    """Describe why the weights of an epoch were kept."""
    has_val = "val" in run.table.splits
    if run.classifier.provenance["metrics"]["epoch"] == ZERO_SHOT:
        return "zero-shot: no epoch was better on the val images"
    if run.recipe.method != "probe":
        return f"the best by {run.recipe.monitor}" if has_val and run.recipe.keep != "last" else "the last"
    if has_val:
        return "a head, its penalty chosen by the log loss on val images"
    if run.classifier.trust is not None:
        return "a head, its penalty chosen by a cross-validation of the training images"
    return "a head with the middle penalty"
