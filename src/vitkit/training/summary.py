"""What a run tells about itself: pictures of its data, what was found, and the report at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitkit.classifier import Classifier
from vitkit.data.loading import TrainingImages
from vitkit.data.pictures import PictureRecord
from vitkit.data.proposals import read_proposals
from vitkit.data.split_file import groups_from_file
from vitkit.data.splits import SPLITS
from vitkit.data.table import ImageTable
from vitkit.data.user_datasets import TrainingOf
from vitkit.data.whereabouts import look_over, read_contents, roles_in_run
from vitkit.errors import VitkitError
from vitkit.evaluation import doubts as label_errors
from vitkit.evaluation.chosen import chosen_on
from vitkit.evaluation.doubts import Doubt
from vitkit.evaluation.embedding import embed
from vitkit.evaluation.headline import describe_proposals
from vitkit.evaluation.metrics import Evaluation, grouped, held_out_split
from vitkit.evaluation.multilabel import MultiEvaluation
from vitkit.evaluation.proposed import evaluate_before, proposal_figures
from vitkit.evaluation.unseen import all_figures, describe, seen_of, that_count
from vitkit.explanation import can_explain
from vitkit.explanation.mistakes import explain_mistake
from vitkit.reporting import plots
from vitkit.reporting.evaluation_report import draw, write_report
from vitkit.reporting.report_photographs import Explained
from vitkit.reporting.sections import Tried
from vitkit.reporting.writing import write_predictions
from vitkit.system.files import from_json, without_place, write_json
from vitkit.system.progress import Progress, Say
from vitkit.system.run_files import (
    EVALUATION,
    FINDINGS,
    GROUPS,
    LABEL_ERRORS,
    METRICS,
    PICTURES,
    PREDICTIONS,
    REPORT,
    SELECTION,
    SPLIT,
)
from vitkit.training.confidences import calibrated, settle_and_open
from vitkit.training.metrics_file import ZERO_SHOT, read_metrics
from vitkit.training.recipe import Recipe
from vitkit.training.recipe_names import name_of, without_places
from vitkit.training.selected import Selection
from vitkit.training.setup import choose_precision

_EXPLAINED = 12  # mistakes


def draw_data(folder: Path, table: ImageTable, images: TrainingImages | TrainingOf, seed: int) -> None:
    """Draw classes.png and train_batch.png.

    Args:
        folder: of the run.
        table: all its images.
        images: those of its training split, augmented.
        seed: chooses which of them are drawn.
    """
    counts = {name: table.of_split(name).counts() for name in SPLITS if name in table.splits}
    plots.save_figure(plots.class_counts(counts, table.classes), folder / PICTURES["Images per class"])
    train = table.of_split("train")
    chosen = np.random.default_rng(seed).permutation(len(train))[:32].tolist()
    pictures = [images.preprocess.picture_of(images[0, i][0].numpy()) for i in chosen]
    titles = [train.name_of(i) or "none" for i in chosen]
    sheet = plots.contact_sheet(pictures, titles, "Training images as the model sees them, augmented")
    plots.save_figure(sheet, folder / PICTURES["What the model sees in training"])


class Reported(NamedTuple):
    """What a run says of its model.

    Attributes:
        numbers: what evaluation.json holds.
        evaluation: of the images that count; None where the weights had seen all.
    """

    numbers: dict[str, Any]
    evaluation: Evaluation | None


def report(
    folder: Path,
    recipe: Recipe,
    table: ImageTable,
    say: Say,
    progress: Progress,
    doubts: Sequence[Doubt] | None = None,
) -> Reported:
    """Calibrate and evaluate the model that was kept, and write all that is said of it into the run.

    Args:
        folder: the run, with its model folder.
        recipe: of the run.
        table: its images, split.
        say: takes what is worth a line.
        progress: told what is being done, how many are done, of how many.
        doubts: labels that are likely wrong; None to go by what the model says of held-out images.
    """
    held_out: list[str] = [name for name in ("val", "test") if name in table.splits] or ["all"]
    table, changes = look_over(table, read_contents(folder / SPLIT), held_out, progress)
    if changes:
        say(f"problem: {changes.text}; they are left out")
    classifier, seen = settle_and_open(folder, recipe, table, say, progress)
    split, groups = held_out_split(table), groups_from_file(folder / GROUPS)
    chosen = chosen_on(split, recipe.__dict__, is_multi=table.is_multi)
    judged = evaluate_before(classifier, table, split, read_proposals(folder), partial(progress, "evaluating"))
    judged = judged.map(lambda own: replace(grouped(own, groups), chosen=chosen))
    evaluation = judged.before
    record = None if classifier.pictures is None else PictureRecord.from_bytes(classifier.pictures, folder)
    seen_before = None if record is None else seen_of(roles_in_run(folder / SPLIT, record), evaluation.split)
    about = classifier.computation | changes.to_dict() | proposal_figures(judged, seen_before)
    numbers = all_figures(evaluation, seen_before, classifier.provenance, about)
    if (trained := choose_precision(recipe.precision, recipe.device)) != classifier.precision:
        say(f"trained in {trained}, evaluated in {classifier.precision}, which `vitkit predict` computes in here too")
    spoilt, proposed = describe(numbers), describe_proposals(numbers)
    for told in filter(None, (proposed, spoilt)):
        say(f"note: {told}")
    write_predictions(folder / PREDICTIONS, evaluation)
    counted = that_count(evaluation, seen_before)
    evaluation = evaluation if counted is None else counted
    if not table.is_multi and seen is not None and numbers["ece"] is not None:
        say(calibrated(numbers, seen, evaluation))
    if doubts is None:
        doubts = label_errors.from_predictions(own for own in _held_out(judged.now or evaluation, seen))
        if doubts:
            say(f"{label_errors.in_words(doubts)} (of held-out images, by the model itself)")
    numbers["label_errors"] = label_errors.summary(doubts)
    label_errors.write_doubts(folder / LABEL_ERRORS, doubts)
    rows = read_metrics(folder / METRICS)
    plots.save_figure(plots.curves(rows, classifier.provenance["metrics"]["epoch"]), folder / PICTURES["Curves"])
    laid_out = embed(classifier, evaluation, table.root, partial(progress, "laying out images"))
    for caption, picture in draw(evaluation, laid_out).items():
        plots.save_figure(picture, folder / PICTURES[caption])
    write_json(folder / EVALUATION, numbers)
    pictures = {caption: folder / name for caption, name in PICTURES.items()}
    write_report(
        folder / REPORT,
        title=f"{name_of(recipe)} on {without_place(table.name)}",
        evaluation=evaluation,
        numbers=numbers,
        root=table.root,
        facts=_facts(classifier, record, recipe, table, rows),
        findings=[
            *([f"note: {proposed}"] if proposed else []),
            *([f"problem: {spoilt}"] if spoilt else []),
            *_findings(folder / FINDINGS),
        ],
        pictures={caption: picture.read_bytes() for caption, picture in pictures.items() if picture.is_file()},
        laid_out=laid_out,
        doubts=doubts,
        recipe=without_places(recipe).to_toml(),
        explained=_explain_mistakes(classifier, evaluation, table.root, progress),
        tried=_tried(folder / SELECTION),
    )
    return Reported(numbers, counted)


def _tried(path: Path) -> Tried | None:
    """How the weights fared of which the run's were chosen; None where they were named."""
    if not path.is_file():
        return None
    selection = Selection.from_dict(from_json(path.read_text(encoding="utf-8")), path)
    heading, *rows = selection.table(without_place)
    return Tried(selection.summary(), heading, rows, selection.remarks(without_place))


def _explain_mistakes(
    classifier: Classifier, evaluation: Evaluation, root: Path, progress: Progress
) -> list[Explained]:
    """What speaks for the worst mistakes, by the model itself."""
    chosen = [] if isinstance(evaluation, MultiEvaluation) else evaluation.mistakes(_EXPLAINED)
    chosen = [i for i in chosen if evaluation.label_of(i) in classifier.classes]
    if not can_explain(classifier.model):
        return []
    plain, found = replace(classifier, runner=None), []  # whose gradients the maps are of
    for done, i in enumerate(chosen, start=1):
        progress("explaining mistakes", done, len(chosen))
        true, predicted = (evaluation.classes[own[i]] for own in (evaluation.labels, evaluation.predicted))
        pictures = explain_mistake(plain, str(root / evaluation.paths[i]), true, predicted)
        if not isinstance(pictures, str):  # it could be read a moment ago
            found.append(Explained(i, f"{true}, taken for {predicted}", pictures))
    return found


def _held_out(evaluation: Evaluation, seen: Evaluation | None) -> list[Evaluation]:
    """Of images that were not trained on, each once."""
    both = {own.split: own for own in (seen, evaluation) if own is not None}
    return [own for split, own in both.items() if split in ("val", "test")]


def _kept(recipe: Recipe, table: ImageTable, epoch: int) -> str:
    """What became the model, and what chose it."""
    has_val = "val" in table.splits
    if epoch == ZERO_SHOT:
        return "zero-shot: nothing learned from photographs suited the val images better"
    if recipe.method == "probe":
        return "a head, its penalty chosen by log loss on val images" if has_val else "a head of the middle penalty"
    return f"the best by {recipe.monitor}" if has_val and recipe.keep != "last" else "the last"


def _findings(path: Path) -> list[str]:
    try:
        stored = from_json(path.read_text("utf-8"))
        if not isinstance(stored, list):
            raise TypeError("it is no list")
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        raise VitkitError(f"{path} is damaged: {error}; delete it, and the report does without") from error
    return list(map(str, stored))


def _spent(rows: list[dict[str, float]]) -> str:
    if not rows or "seconds" not in rows[-1]:  # metrics.csv was lost, or edited
        return ""
    epochs = sum(row["epoch"] > ZERO_SHOT for row in rows)
    return f"{epochs} epochs in {rows[-1]['seconds']:.0f} s; "


def _zero_shot(rows: list[dict[str, float]]) -> dict[str, str]:
    """How good the model was before it had learned anything, where it began from the names of its classes."""
    told = [
        f"{name} {row[name]:.4f}"
        for row in rows
        for name in ("val_loss", "val_acc", "val_map")
        if row["epoch"] == ZERO_SHOT and name in row
    ]
    return {"zero-shot": f"{', '.join(told)} by the class names alone, before any training"} if told else {}


def _unseen(record: PictureRecord | None) -> dict[str, str]:
    """What is known of what the weights had seen before the run."""
    if record is None:
        return {}
    if record.is_whole:
        return {"seen before": "all that the weights were ever trained on is recorded, in pictures.npz"}
    return {"seen before": "not known: what the first weights were trained on is not recorded"}


def _facts(
    classifier: Classifier,
    record: PictureRecord | None,
    recipe: Recipe,
    table: ImageTable,
    rows: list[dict[str, float]],
) -> dict[str, str]:
    config, preprocess = classifier.model.config, classifier.preprocess
    parameters = sum(parameter.numel() for parameter in classifier.model.parameters())
    splits = ", ".join(f"{len(table.of_split(name))} {name}" for name in SPLITS)
    h, w = config.image_size
    pixels = (preprocess.fit, preprocess.interpolation, f"mean {preprocess.mean}", f"std {preprocess.std}")
    kept = classifier.provenance["metrics"]["epoch"]
    return {
        "model": f"{name_of(recipe)}: {parameters:,} parameters, {config.in_words}",
        "data": f"{table.root.name}: {splits} images, {len(table.classes)} classes",
        "pixels": ", ".join((f"{h}x{w}", *pixels)),
        "training": f"{_spent(rows)}kept: epoch {kept + 1}, {_kept(recipe, table, kept)}",
        **_zero_shot(rows),
        **_unseen(record),
        "computed": classifier.computed,
        "seed": str(recipe.seed),
        "data hash": classifier.provenance["data_hash"],
        "made with": ", ".join(f"{name} {number}" for name, number in classifier.provenance["versions"].items()),
    }
