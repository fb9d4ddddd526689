"""Divide the images into training, validation and test images, or into the folds of a cross-validation.

A test image keeps the label that it had in the runs that the split or the weights come from, and an image whose label
only a model proposed is never a test image (docs/decisions/0028-label-files.md).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from vitkit.data.doctor.examine import check_unreadable_held_out
from vitkit.data.earlier_labels import compare_with_runs, run_folders_among
from vitkit.data.seen import Overlap
from vitkit.data.splits import fold, held_out_split, limit_training, split
from vitkit.errors import VitkitError
from vitkit.system.files import public_path
from vitkit.training.defaults import weights_of
from vitkit.training.lineage import RunImages, SplitImages, ancestry_of, assign_splits, check_unseen, move_to_training
from vitkit.training.recipe import Recipe
from vitkit.training.run_folder import Run
from vitkit.training.stages.open import is_cross_tested, runs_that_proposed


def split_images(run: Run) -> None:
    """Divide the readable images. Copies of a picture, and images of one scene, stay in one split."""
    recipe = run.recipe
    images = RunImages(run.diagnosis.table, run.diagnosis.facts, run.groups)
    seen_before = run.seen_before = ancestry_of(recipe, run.blueprint.record_bytes, run.teacher_record)
    sources = (recipe.split_from, None if recipe.weights == "none" else weights_of(recipe), recipe.teacher)
    earlier_runs = [*run_folders_among(filter(None, sources)), *runs_that_proposed(run.source, run.earlier_runs)]
    untested = compare_with_runs(images.table, images.contents, earlier_runs).untested
    if recipe.split_from is not None and is_cross_tested(Path(recipe.split_from)):
        check_unseen(images, recipe, seen_before, f"the protocol of {public_path(recipe.split_from)}")
    if recipe.folds is None:
        parts = [assign_splits(images, recipe, seen_before, untested)]
    else:
        if any(images.table.splits):
            text = f"{images.table.name} is already split, but --folds makes its own splits"
            raise VitkitError("training.already-split", f"{text}: pass a folder of class folders")
        overlap = check_unseen(images, recipe, seen_before, "--folds")
        parts = _folds(images, overlap, recipe, untested)
        # All images train the final model. Earlier labels only matter where images are tested, which is in the folds.
        trained = replace(images.table, splits=("train",) * len(images.table))
        run.final_images = SplitImages(replace(images, table=trained), overlap)
    # Add the labels that the images had in earlier runs. Missing images of classes that were removed do not matter.
    for i, part in enumerate(parts):
        table = part.images.table
        held_out = held_out_split(table)
        tested = table.paths if held_out == "all" else table.of_split(held_out).paths
        earlier = compare_with_runs(table, part.images.contents, earlier_runs, tested)
        classes = set(table.classes)
        missing = tuple(item for item in earlier.missing if classes.issuperset(table.task.names_in(item.label)))
        parts[i] = replace(part, earlier=replace(earlier, missing=missing))
    if recipe.max_images is not None:
        parts = [limit(part, recipe.max_images, recipe.seed) for part in parts]
        if run.final_images is not None:
            run.final_images = limit(run.final_images, recipe.max_images, recipe.seed)
    run.parts = tuple(parts)
    run.findings = (*run.diagnosis.findings, *check_unreadable_held_out(run.source, run.diagnosis.unreadable))


def _folds(images: RunImages, overlap: Overlap, recipe: Recipe, untested: Collection[str]) -> list[SplitImages]:
    """Return a split for each fold of a cross-validation, with the images of the fold as test images.

    Images in `untested` are never validation or test images.
    """
    assert recipe.folds is not None
    table, groups = images.table, images.groups
    fold_of = fold(table, recipe.folds, recipe.seed_of_split, groups)
    train, val, _ = recipe.split
    shares = (train / (train + val), val / (train + val), 0.0)
    parts = []
    for number in range(recipe.folds):
        tested = replace(table, splits=tuple("test" if other == number else "train" for other in fold_of))
        kept, left_out = move_to_training(replace(images, table=tested), (None,) * len(table), untested)
        divided = split(tested, shares, recipe.seed_of_split, groups, kept)
        part = SplitImages(replace(images, table=divided), overlap)
        if left_out:
            part = part.take([i for i in range(len(table)) if i not in left_out])
        if len(set(part.images.table.of_split("train").labels)) < 2 and not table.sets:
            raise VitkitError(
                "training.class-alone",
                f"--folds {recipe.folds}: with {len(table)} images, fold {number + 1} would be trained on one class "
                "alone: add images, or leave out --folds",
            )
        parts.append(part)
    return parts


def limit(part: SplitImages, max_images: int, seed: int) -> SplitImages:
    """Keep at most `max_images` of the training images, chosen by `seed`, and all validation and test images."""
    table = limit_training(part.images.table, max_images, seed)
    index_of = {path: i for i, path in enumerate(part.images.table.paths)}
    kept = part.take([index_of[path] for path in table.paths])
    return replace(kept, images=replace(kept.images, table=table))
