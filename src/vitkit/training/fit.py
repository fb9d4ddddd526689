"""From a run's folder, where recipe and split are settled, to the best model and its report."""

from __future__ import annotations

from vitkit.classifier import Classifier
from vitkit.data.loading import TrainingImages
from vitkit.data.splits import SPLITS
from vitkit.data.table import ImageTable
from vitkit.data.whereabouts import images_of_run
from vitkit.evaluation.headline import headline_of
from vitkit.evaluation.metrics import Evaluation
from vitkit.model_folder import RECORD, WEIGHTS
from vitkit.system.files import from_json
from vitkit.system.run_files import REPORT, SPLIT
from vitkit.training.descent import learn
from vitkit.training.probe import Features, fit_head, head_images
from vitkit.training.recipe import Recipe
from vitkit.training.recipe_names import without_places
from vitkit.training.run_folder import Run, reporting
from vitkit.training.setup import augment_of, new_classifier
from vitkit.training.summary import draw_data, report
from vitkit.training.suspects import doubt_labels
from vitkit.training.teacher import Teacher, teacher_of_run


def fit_and_report(run: Run, recipe: Recipe) -> Evaluation | None:
    """Do everything after the data is settled, reading what a resumed run reads.

    Returns:
        The evaluation of the held-out images that count; None where the weights had seen all.
    """
    table = images_of_run(run.folder / SPLIT, progress=run.progress)
    data_hash = from_json((run.folder / SPLIT).read_text(encoding="utf-8"))["hash"]
    classifier, teacher = before_training(run, recipe, table, data_hash)
    record = run.folder / RECORD
    classifier.pictures = record.read_bytes() if record.is_file() else None
    if run.team.is_first:
        images = TrainingImages(table.of_split("train"), classifier.preprocess, augment_of(recipe), recipe.seed)
        draw_data(run.folder, table, images, recipe.seed)
    counts = ", ".join(f"{len(table.of_split(name))} {name}" for name in SPLITS)
    run.say(f"{len(table.classes)} classes; images: {counts}")
    known: Features | None = None
    if recipe.method == "probe":
        if run.team.is_first and not (run.folder / WEIGHTS).is_file():  # else a resumed run had its head already
            known = fit_head(run, recipe, table, classifier, head_images(recipe, table, classifier))
    else:
        learn(run, recipe, table, classifier, teacher)
    with reporting(run):
        return _conclude(run, recipe, table, known)


def before_training(run: Run, recipe: Recipe, table: ImageTable, data_hash: str) -> tuple[Classifier, Teacher | None]:
    """The classifier that is to be trained, and whom it imitates; what had to be assumed of either is told."""
    classifier = run.team.in_turn(lambda: new_classifier(recipe, table, data_hash, run.progress))
    for caveat in [] if classifier.report is None else classifier.report.caveats(has_new_head=True):
        run.say(f"note: {caveat}")
    for resized in () if classifier.report is None else classifier.report.resized:
        if resized.name not in ("pos_embed", "pos_embed.x", "pos_embed.y"):
            was, now = ("x".join(map(str, own)) for own in (resized.old, resized.new))
            size = "x".join(map(str, classifier.preprocess.size))
            run.say(f"note: patches of {was} pixels are made {now} ({resized.convention}), of images of {size}")
    if recipe.teacher is None:
        return classifier, None
    teacher = teacher_of_run(run.folder, recipe.teacher, classifier.classes, classifier.preprocess.size)
    classifier.provenance["teacher"] = {"name": without_places(recipe).teacher, "sha256": teacher.sha256}
    for note in teacher.notes:
        run.say(f"note: {note}")
    return classifier, teacher


def _conclude(run: Run, recipe: Recipe, table: ImageTable, known: Features | None) -> Evaluation | None:
    """Settle what the trained model's confidences are worth, evaluate it and write the report."""
    numbers, evaluation = run.team.by_first(
        lambda: report(run.folder, recipe, table, run.say, run.progress, doubt_labels(run, recipe, table, known))
    )
    loss = "" if numbers["loss"] is None else f" ({numbers['loss']:.4f} log loss)"
    run.say(f"{headline_of(numbers).words}{loss}; report: {run.folder / REPORT}")
    return evaluation
