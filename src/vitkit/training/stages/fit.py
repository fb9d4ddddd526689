"""Create the model and train it: by gradient descent, or by fitting a head to the features of a frozen backbone."""

from __future__ import annotations

from vitkit.classifier import Classifier
from vitkit.data.loading import BatchedImages
from vitkit.data.seen import PictureRecord
from vitkit.data.splits import SPLITS
from vitkit.model_folder import WEIGHTS
from vitkit.reporting import plots
from vitkit.training.features import FeatureStore, shares_features
from vitkit.training.fine_tune import draw_some, learn
from vitkit.training.probe import HeadImages, fit_head, head_images
from vitkit.training.recipe import without_absolute_paths
from vitkit.training.run_folder import ZERO_SHOT, Run
from vitkit.training.stages.examine import keep_pictures
from vitkit.training.start import blueprint_of, digest_of_backbone, new_classifier
from vitkit.training.teacher import Teacher, teacher_of_run
from vitkit.weights import load


def fit(run: Run) -> None:
    """Train the model of a run, in all of its processes. `run.classifier` is then the model that was kept."""
    classifier, teacher = begin_model(run)
    classifier.pictures = run.inputs.record_bytes
    if run.team.is_main:
        if run.keeps_pictures and run.photographs is None:  # the run is resumed
            run.photographs = keep_pictures(run, run.inputs.table, run.blueprint.preprocess)
        if not shares_features(run.blueprint):
            run.features = None
        elif run.features is None:
            run.features = FeatureStore(run.recipe, run.blueprint.weights, run.photographs)
        draw_classes(run)
    table = run.inputs.table
    counts = ", ".join(f"{table.splits.count(name)} {name}" for name in SPLITS)
    run.say(f"{len(table.classes)} classes; images: {counts}")
    if run.stop_after == 0:  # the zero-shot model was the best in most folds of a cross-validation
        classifier.provenance["metrics"] = {"epoch": ZERO_SHOT}
        if run.team.is_main:
            classifier.save(run.folder)
        run.say("the final model is the zero-shot one, as in most folds no epoch was better")
        run.classifier = classifier
    else:
        run.classifier = train_model(run, classifier, teacher)


def train_model(
    run: Run,
    classifier: Classifier,
    teacher: Teacher | None,
    data: BatchedImages | None = None,
    images: HeadImages | None = None,
) -> Classifier:
    """Train a model by the method of the recipe, and return the model of the epoch that was kept.

    `data` has the images in batches, and `images` those to which a head is fitted; by default, the files of the run.
    """
    if run.recipe.method != "probe":
        return learn(run, classifier, teacher, data, images)
    if not run.team.is_main:
        return classifier
    if (run.folder / WEIGHTS).is_file():  # a resumed run may have its head already
        return load(run.folder)
    seen = frozenset[str]()  # the images on which the initial weights were trained or selected
    if images is None and run.blueprint.record_bytes is not None:
        roles = PictureRecord.from_bytes(run.blueprint.record_bytes, run.folder).roles_of(run.inputs.contents)
        seen = frozenset(path for path, role in roles.items() if role in ("train", "val"))
    images = images or head_images(run, classifier)
    draw_some(run, images.train, classifier.preprocess)
    fit_head(run, classifier, images, seen)
    return classifier


def begin_model(run: Run) -> tuple[Classifier, Teacher | None]:
    """Create the classifier to train and its teacher, which is None if the recipe names none. Print notes on both."""
    recipe, table = run.recipe, run.inputs.table
    # Only the process that has started the run has a blueprint. The main process goes first, to download the weights.
    run.blueprint = run.team.main_first(lambda: getattr(run, "blueprint", None) or blueprint_of(recipe, table.classes))
    classifier = run.team.main_first(lambda: new_classifier(run.blueprint, table, run.inputs.hash))
    if recipe.weights != "none":
        classifier.provenance["weights"]["sha256"] = digest_of_backbone(classifier.model)
    functions = run.hooks.names()
    if functions:
        classifier.provenance["extensions"] = functions
        run.say("; ".join(f"{part}: {name}" for part, name in functions.items()))
    if classifier.report is not None:
        for caveat in classifier.report.caveats(has_new_head=True):
            run.say(f"note: {caveat}")
        for resized in classifier.report.resized:
            if resized.name in ("pos_embed", "pos_embed.x", "pos_embed.y"):  # resizing these is usual
                continue
            sizes = (resized.old, resized.new, classifier.preprocess.size)
            old, new, image = ("x".join(map(str, sides)) for sides in sizes)
            run.say(
                f"note: patch embedding resized from {old} to {new} pixels ({resized.convention}) at {image} pixels"
            )
    if recipe.teacher is None:
        return classifier, None
    teacher = teacher_of_run(run.folder, recipe.teacher, classifier.classes)
    classifier.provenance["teacher"] = {"name": without_absolute_paths(recipe).teacher, "sha256": teacher.sha256}
    for note in teacher.notes:
        run.say(f"note: {note}")
    return classifier, teacher


def draw_classes(run: Run) -> None:
    """Draw the number of images per class and split."""
    table = run.inputs.table
    counts = {name: table.of_split(name).counts() for name in SPLITS if name in table.splits}
    run.draw("Images per class", plots.class_counts(counts, table.classes))
