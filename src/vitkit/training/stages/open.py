"""Read the list of images, complete the recipe, and open the weights. No image is read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vitkit.data.corrections import read_corrected
from vitkit.data.earlier_labels import run_folders_among
from vitkit.data.splits import check_trainable
from vitkit.data.table import SINGLE_LABEL, ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation.headline import BY_FOLDS
from vitkit.evaluation.registry import read_figures
from vitkit.system.files import public_path
from vitkit.system.run_files import EVALUATION, SPLIT
from vitkit.text.cells import listed
from vitkit.training.defaults import NOT_SET_ASIDE, check_effects, complete, weights_of
from vitkit.training.distributed import check_team
from vitkit.training.loggers import check_hooks
from vitkit.training.recipe import Recipe
from vitkit.training.run_folder import Run, check_output_folder
from vitkit.training.start import resolve_model
from vitkit.training.teacher import load_teacher


def open_data(run: Run) -> None:
    """Read the table of the images and complete the recipe for them, and open the weights and the teacher.

    A model that cannot be built, or a folder that is in use, fails here, before the images are read.
    """
    request = run.resolved_request or run.request
    assert request.data is not None
    table = run.source = read_corrected(request.data, request.labels, request.layout, follow_links=request.follow_links)
    check_trainable(table)
    request, reasons = keep_protocol(request, table, run.earlier_runs)
    recipe, choices = complete(request, table)
    reasons += [reason for reason in choices if reason != NOT_SET_ASIDE or recipe.split[2]]
    if run.reserve is not None:
        run.effect_notes = check_effects(recipe, run.request, table)
        # These checks are repeated, because the method may have been chosen by the number of images.
        check_hooks(recipe, run.hooks)
        check_team(recipe, run.team)
        check_output_folder(run.out, table, recipe.teacher, weights_of(recipe))
        if run.out is not None:
            run.reserve(run.out)
    run.fields = request.set_fields()
    run.blueprint, head_reasons = resolve_model(recipe, run.fields, table)
    run.recipe = run.blueprint.recipe
    run.reasons = [*reasons, *head_reasons]
    run.teacher_record = None
    if recipe.teacher is not None:
        run.teacher_record = load_teacher(recipe.teacher, table.classes).pictures


def keep_protocol(recipe: Recipe, table: ImageTable, folders: Iterable[Path]) -> tuple[Recipe, list[str]]:
    """Return the requested recipe, changed to split and test the images as an earlier run did, and lines about this.

    This is the run in `split_from`. By default, it is a run in `folders` whose model proposed labels of the images: the
    labels contain what the model has learned from its training images, so these cannot test another model.

    Raises:
        VitkitError: the requested method or split cannot test the images in the same way.
    """
    reasons = list[str]()
    if recipe.split_from is None and not any(table.splits):
        proposers = runs_that_proposed(table, folders)
        names = listed([run.name for run in proposers])
        if proposers and recipe.folds is not None:
            text = f"--folds: {names} proposed labels of these images, and may have been trained on any of them"
            raise VitkitError("training.folds-untestable", f"{text}; leave out --folds, so that its split is kept")
        if proposers:
            recipe = recipe.replace(split_from=str(proposers[0]))
            reasons.append(f"labels that {names} proposed contain what it has learned, so its split is kept")
    if recipe.split_from is None or not is_cross_tested(Path(recipe.split_from)):
        return recipe, reasons

    run = public_path(recipe.split_from)
    obstacles = {
        f"--method {recipe.method}": recipe.method not in ("auto", "probe") or recipe.weights == "none",
        "--split": "split" in recipe.given and recipe.split != (1.0, 0.0, 0.0),
        "a multi-label task": table.task is not SINGLE_LABEL,
        "data that come split": any(table.splits),
    }
    for name, is_present in obstacles.items():
        if is_present:
            raise VitkitError(
                "training.protocol-conflict",
                f"{run} tested every image by a head that was trained without it, which {name} does not allow: use "
                f"--method probe with pretrained weights, or leave out --split-from; the figures of the two runs "
                "cannot be compared then",
            )
    reasons.append(f"every image trains a head, and is tested by one that was trained without it, as in {run}")
    recipe = recipe.replace(method="probe", split=(1.0, 0.0, 0.0))  # no image is set aside
    if recipe.head_from == "auto":
        recipe = recipe.replace(head_from="zero")
    return recipe, reasons


def runs_that_proposed(table: ImageTable, folders: Iterable[Path]) -> list[Path]:
    """Return the runs in some folders whose models proposed labels, as the label file records, the newest first."""
    names = {item.by for item in table.earlier if Path(item.by).name == item.by}
    found = run_folders_among(folder / name for folder in folders for name in sorted(names))
    return sorted(found, key=lambda run: (run / SPLIT).stat().st_mtime, reverse=True)


def is_cross_tested(run: Path) -> bool:
    """Return whether a finished run tested each of its images by a head that was trained without it."""
    return (run / EVALUATION).is_file() and read_figures(run / EVALUATION)["split"] == BY_FOLDS
