"""Average the weights of runs with the same initial weights: model soups (Wortsman et al. 2022, arXiv 2203.05482).

Fine-tunings of the same weights end in one valley of the loss, so the mean of their weights is a good model, too. The
averaged model is as fast as a single model, and often more accurate than the best single model. This does not hold for
runs with different initial weights, so such runs are refused (docs/decisions/0047-averages.md).

Only images that are test images of all runs can test the average. The folds of a cross-validation have no such images,
because each image was a training or validation image of all folds but one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.seen import PictureRecord
from vitkit.data.split_file import groups_of_run, images_of_run, read_contents, roles_in_run
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation.figures import AVERAGE, WISE_FT
from vitkit.evaluation.metrics import Evaluation
from vitkit.model.build import stored_weights
from vitkit.system.files import without_place
from vitkit.system.run_files import RECIPE, SPLIT, check_run_folder, fold_folder
from vitkit.training.finalize import correction_of, record_correction, shift_head_bias
from vitkit.training.optim import has_batch_norms
from vitkit.training.recipe import Recipe
from vitkit.training.recipe_files import load_of_run
from vitkit.weights import load


@dataclass(frozen=True)
class Ingredient:
    """A run whose weights are averaged.

    Attributes:
        folder: the folder of the run.
        classifier: the trained classifier.
        recipe: the recipe of the run.
        table: the split images of the run.
        pictures: the record of the images that the weights were trained on.
    """

    folder: Path
    classifier: Classifier
    recipe: Recipe
    table: ImageTable
    pictures: PictureRecord

    @property
    def name(self) -> str:
        """Return the name of the run folder. The name of a fold includes the name of the cross-validation."""
        is_fold = self.folder.name.startswith("fold-")
        return "/".join(self.folder.parts[-2:]) if is_fold else self.folder.name


def open_runs(folders: Sequence[Path]) -> list[Ingredient]:
    """Open the runs to average. The folder of a cross-validation is replaced by the folders of its folds.

    Raises:
        VitkitError: a folder contains no run on files, a run is named twice, or there are fewer than two runs; the runs
            differ in initial weights, architecture, classes, preprocessing, data or prior; a run does not record its
            initial weights or its images; or the model has batch norms.
    """
    runs = [member for folder in folders for member in _members(folder)]
    places = [folder.resolve() for folder in runs]
    if len(set(places)) < len(places):
        twice = next(folder for folder, place in zip(runs, places, strict=True) if places.count(place) > 1)
        raise VitkitError(f"{twice} is named twice: leave it out once")
    if len(runs) < 2:
        raise VitkitError("an average needs two runs or more, or a cross-validation: name another one")
    ingredients = [_open(folder) for folder in runs]
    for other in ingredients[1:]:
        if (difference := _difference(ingredients[0], other)) is not None:
            raise VitkitError(
                f"{ingredients[0].folder} and {other.folder} {difference}, so their weights have no meaningful mean"
            )
    if has_batch_norms(ingredients[0].classifier.model):
        raise VitkitError(
            "the running statistics of batch norms belong to the weights of one model: no average of them"
        )
    return ingredients


def _members(folder: Path) -> list[Path]:
    check_run_folder(folder)
    folds = load_of_run(folder / RECIPE).folds
    return [folder] if folds is None else [fold_folder(folder, number) for number in range(folds)]


def _open(folder: Path) -> Ingredient:
    recipe = load_of_run(folder / RECIPE)
    if not (folder / SPLIT).is_file():
        raise VitkitError(
            f"{folder} was trained on datasets in Python: which images it has seen is not recorded in files"
        )
    classifier = load(folder)
    if "sha256" not in classifier.provenance.get("weights", {}):
        why = "started from random values" if recipe.weights == "none" else "does not record what it started from"
        raise VitkitError(f"{folder} {why}: only runs that share their start can be averaged")
    if classifier.pictures is None:
        raise VitkitError(f"{folder} has no record of the images that it has seen: train it again")
    record = PictureRecord.from_bytes(classifier.pictures, folder)
    return Ingredient(folder, classifier, recipe, images_of_run(folder / SPLIT), record)


def _difference(one: Ingredient, other: Ingredient) -> str | None:
    """Describe a difference that prevents an average of two runs; return None if there is none."""
    first, second = one.classifier, other.classifier
    if first.provenance["weights"]["sha256"] != second.provenance["weights"]["sha256"]:
        return "started from different weights"
    if first.model.config != second.model.config:
        return "have different architectures"
    if first.classes != second.classes or first.task != second.task:
        return "have different classes"
    if first.preprocess != second.preprocess:
        return "preprocess images differently"
    if one.table.root != other.table.root:
        return "were trained on images of different folders"
    if one.recipe.prior != other.recipe.prior:
        return "have different priors"
    return None


@dataclass(frozen=True)
class SharedImages:
    """The images that all runs have in common, with a split for the average.

    Attributes:
        table: the images. The split of an image is `train` if any run was trained on the image, else `val` if any run
            was selected on the image, else `test`.
        contents: the digest of each image's content, by path.
        groups: the group number of each image that is not independent of others, by path.
        pictures: the record of the images that any of the runs has seen.
    """

    table: ImageTable
    contents: dict[str, str]
    groups: dict[str, int]
    pictures: PictureRecord


def shared_images(runs: Sequence[Ingredient]) -> SharedImages:
    """Return the images that all runs have in common."""
    pictures = reduce(PictureRecord.merge, (run.pictures for run in runs))
    first = runs[0]
    known = set(first.table.paths).intersection(*(run.table.paths for run in runs[1:]))
    roles = roles_in_run(first.folder / SPLIT, pictures)
    table = first.table.take([i for i, path in enumerate(first.table.paths) if path in known])
    table = replace(table, splits=tuple(roles.get(path) or "train" for path in table.paths))
    contents = {path: digest for path, digest in read_contents(first.folder / SPLIT).items() if path in known}
    groups = {path: group for path, group in groups_of_run(first.folder, first.table).items() if path in known}
    return SharedImages(table, contents, groups, pictures)


def average(runs: Sequence[Ingredient], every: Sequence[Ingredient], images: SharedImages, how: str) -> Classifier:
    """Return an uncalibrated classifier whose weights are the mean of the weights of the runs.

    Args:
        runs: the runs that are averaged.
        every: all runs from which `runs` were chosen. They are recorded in the provenance.
        images: the images that all runs in `every` have in common.
        how: `uniform` or `greedy`.
    """
    first = runs[0].classifier
    model = copy.deepcopy(first.model)
    total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in stored_weights(model).items()}
    for run in runs:
        for name, value in _uncorrected(run.classifier).items():
            total[name] += value.double()
    with torch.no_grad():
        for name, value in stored_weights(model).items():
            value.copy_(total[name] / len(runs))
    provenance = {name: value for name, value in first.provenance.items() if name not in ("metrics", WISE_FT)}
    provenance[AVERAGE] = {
        "how": how,
        "runs": [without_place(str(run.folder)) for run in every],
        "used": [without_place(str(run.folder)) for run in runs],
    }
    thresholds = images.table.task.thresholds(len(first.classes))
    mean = Classifier(model, first.classes, first.preprocess, provenance=provenance, thresholds=thresholds)
    mean.pictures = images.pictures.to_bytes()
    corrections = [correction for run in runs if (correction := correction_of(run.classifier)) is not None]
    if len(corrections) == len(runs):
        shift = np.mean([correction.shift for correction in corrections], axis=0)
        correction = replace(corrections[0], shift=tuple(shift.tolist())).at(1.0, 1.0)
        shift_head_bias(model, correction, correction.in_head)
        record_correction(mean, correction)
    return mean


def _uncorrected(classifier: Classifier) -> dict[str, Tensor]:
    """Return the weights without the prior correction in the head, whose strength differs between runs."""
    correction = correction_of(classifier)
    if correction is None or not any(correction.in_head):
        return stored_weights(classifier.model)
    plain = copy.deepcopy(classifier.model)
    shift_head_bias(plain, correction, [-value for value in correction.in_head])
    return stored_weights(plain)


@dataclass(frozen=True)
class TriedRun:
    """A run that was tried for a greedy average.

    Attributes:
        run: the run.
        accuracy: the accuracy of the run alone on the validation images.
        with_it: the accuracy of the average that includes the run.
        is_used: whether the final average includes the run.
    """

    run: Ingredient
    accuracy: float
    with_it: float
    is_used: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the trial as a dictionary for JSON."""
        return {"run": self.run.name, "accuracy": self.accuracy, "with_it": self.with_it, "used": self.is_used}


def choose_greedily(
    runs: Sequence[Ingredient], images: SharedImages, judge: Callable[[Classifier], Evaluation]
) -> list[TriedRun]:
    """Try the runs in order of accuracy, and keep each run that does not make the average worse (algorithm 1).

    Args:
        runs: the runs.
        images: the images that all runs have in common.
        judge: evaluates a classifier on validation images that no run was trained on.
    """
    alone = [judge(run.classifier).accuracy for run in runs]
    order = sorted(range(len(runs)), key=lambda i: -alone[i])
    first = order[0]
    used, best = [runs[first]], alone[first]
    steps = [TriedRun(runs[first], best, best, is_used=True)]
    for i in order[1:]:
        accuracy = judge(average([*used, runs[i]], runs, images, "greedy")).accuracy
        steps.append(TriedRun(runs[i], alone[i], accuracy, is_used=accuracy >= best))
        if accuracy >= best:
            used, best = [*used, runs[i]], accuracy
    return steps
