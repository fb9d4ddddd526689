"""Average the weights before and after a fine-tuning (`--wise-ft`), or the weights of several runs (`vitkit average`).

Models that were fine-tuned from the same weights usually end in the same valley of the loss. The loss is therefore also
low for the mean of their weights, and for weights between the initial and the fine-tuned ones
(docs/decisions/0047-averages.md).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from statistics import median_high
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.seen import PictureRecord
from vitkit.data.split_file import groups_of_run, images_of_run, read_contents, roles_in_run
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation.figures import AVERAGE, WISE_FT, gain, wise_ft_in_words
from vitkit.evaluation.metrics import Evaluation
from vitkit.model.build import Model, stored_weights
from vitkit.system.files import replacing, without_place
from vitkit.system.progress import Say
from vitkit.system.run_files import RECIPE, SPLIT, START, check_run_folder, fold_folder
from vitkit.training.finalize import PriorCorrection, correction_of, record_correction, shift_head_bias, with_correction
from vitkit.training.optim import has_batch_norms
from vitkit.training.recipe import Recipe
from vitkit.training.request import load_of_run
from vitkit.training.run_folder import ZERO_SHOT
from vitkit.weights import load

# --- Before and after a fine-tuning ---------------------------------------------------------------------------

# A point on the line between the initial and the fine-tuned weights is often more accurate than either end, and loses
# less accuracy on photographs of another kind (Wortsman et al. 2022, arXiv 2109.01903, sec. 3). The initial model must
# be a classifier. Its backbone is pre-trained, and its head is fitted to the backbone's features or made from the class
# names.
#
# The point is chosen on validation images. The accuracy of the best of several points is optimistic, especially with
# few images. The mixed weights therefore replace the fine-tuned weights only if their gain in accuracy is significant:
# the confidence interval of the gain, adjusted for the number of points, must be above zero.

ALPHAS = (0.0, 0.25, 0.5, 0.75)  # the fraction of the fine-tuned weights


def check_start(recipe: Recipe, model: Model) -> None:
    """Refuse averaging if the training does not start from a working head, or if the weights cannot be averaged.

    A head works if it was fitted to features (`lp_ft`) or computed from the class names.

    Raises:
        VitkitError: the initial head is of neither kind, the model has two heads, or the model has batch norms.
    """
    if model.head is None or getattr(model, "head_dist", None) is not None:
        raise VitkitError("leave out --wise-ft: the model has two heads, which are not fitted before the training")
    if not recipe.lp_ft and recipe.head_from != "names":
        raise VitkitError(
            "--wise-ft mixes the fine-tuned weights with those at the start, whose head must classify: use --lp-ft, or "
            "--head-from names"
        )
    if has_batch_norms(model):
        raise VitkitError(
            "leave out --wise-ft: the running statistics of this model's batch norms belong to its own weights and "
            "cannot be mixed"
        )


def keep_start(folder: Path, model: Model, correction: PriorCorrection) -> None:
    """Save the initial weights in the run folder. As in every saved model, the head includes the prior correction.

    Args:
        folder: the run folder.
        model: the model before its first step.
        correction: the correction of the class prior (see `finalize`).
    """
    with with_correction(model, correction), replacing(folder / START) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in stored_weights(model).items()}, temporary)


def check_kept(folder: Path) -> None:
    """Check that the folder of a resumed run contains its initial weights.

    Raises:
        VitkitError: the weights are missing.
    """
    if not (folder / START).is_file():
        raise VitkitError(
            f"{folder / START} is missing, but --wise-ft requires it: set wise_ft = false in {folder / RECIPE}"
        )


def interpolate(start: Mapping[str, Tensor], end: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """Return (1 - alpha) start + alpha end for each floating-point tensor; integer tensors are taken from `end`.

    For alpha 0 and alpha 1, the floating-point tensors are exactly those of `start` and of `end`.
    """
    return {
        name: torch.lerp(start[name].to(tensor), tensor, alpha) if tensor.is_floating_point() else tensor
        for name, tensor in end.items()
    }


def mix_with_start(
    folder: Path, classifier: Classifier, judge: Callable[[Classifier], Evaluation | None], say: Say
) -> None:
    """Average the initial and the fine-tuned weights, and keep the best average if it is significantly better.

    The averages for all `ALPHAS` are compared with the fine-tuned weights, and all results are recorded in the
    provenance of the classifier. A classifier that already has this record is not changed, so that a resumed run does
    not average twice. Neither is a zero-shot model, nor a model without suitable validation images.

    Args:
        folder: the run folder, whose model folder is changed.
        classifier: the classifier of that folder. It is changed in place.
        judge: a function that evaluates a classifier on the validation images that the initial weights had not seen. It
            returns None if there are no such images.
        say: called with a line about the result.

    Raises:
        VitkitError: the file with the initial weights is missing or damaged, or belongs to another model.
    """
    if WISE_FT in classifier.provenance:
        return
    if classifier.provenance["metrics"]["epoch"] == ZERO_SHOT:
        say("wise-ft: the model is the zero-shot one that the training started from, so there is nothing to mix")
        return
    start = _read(folder / START)
    end = {name: value.clone() for name, value in stored_weights(classifier.model).items()}
    if start.keys() != end.keys():
        raise VitkitError(f"{folder / START} belongs to another model: delete the run, and train again")
    plain = judge(classifier)
    if plain is None:
        say("wise-ft: there are no validation images to choose the mix by: the fine-tuned weights stay")
        return
    tried = {alpha: judge(_with_weights(classifier, interpolate(start, end, alpha))) for alpha in ALPHAS}
    gains = {alpha: gain(plain, mixed, len(ALPHAS)) for alpha, mixed in tried.items() if mixed is not None}
    best = max(gains, key=lambda alpha: (gains[alpha].mean, alpha))  # of equals, the closest to fine-tuned weights
    is_kept = gains[best].is_certain
    record: dict[str, Any] = {
        "alpha": best if is_kept else 1.0,
        "start": "class names" if "head" in classifier.provenance else "fitted head",
        "images": len(plain.labels),
        "accuracy": plain.accuracy,
        "best": best,
        "tried": [{"alpha": alpha, "gain": gain.to_dict()} for alpha, gain in gains.items()],
    }
    if is_kept:
        _put(classifier.model, interpolate(start, end, best))
    classifier.provenance[WISE_FT] = record
    classifier.save(folder)
    say(f"wise-ft: {wise_ft_in_words(record)}")


def mix_as_folds(folder: Path, classifier: Classifier, alphas: Sequence[float], say: Say) -> None:
    """Average the initial and the fine-tuned weights of the final model of a cross-validation.

    The fraction of the fine-tuned weights is the median of the fractions that the folds chose. A zero-shot model, or a
    classifier whose weights have been averaged already, is not changed.

    Args:
        folder: the run folder, whose model folder is changed.
        classifier: the classifier of that folder. It is changed in place.
        alphas: the fraction of fine-tuned weights that each fold chose. If it is empty, nothing is averaged.
        say: called with a line about the result.

    Raises:
        VitkitError: the file with the initial weights is missing or damaged.
    """
    if WISE_FT in classifier.provenance or not alphas or classifier.provenance["metrics"]["epoch"] == ZERO_SHOT:
        return
    alpha = median_high(alphas)
    if alpha < 1:
        _put(classifier.model, interpolate(_read(folder / START), stored_weights(classifier.model), alpha))
    classifier.provenance[WISE_FT] = {"alpha": alpha, "folds": list(alphas)}
    classifier.save(folder)
    say(f"wise-ft: {wise_ft_in_words(classifier.provenance[WISE_FT])}")


def _with_weights(classifier: Classifier, weights: Mapping[str, Tensor]) -> Classifier:
    """Return a copy of a classifier with the given weights."""
    other = copy.copy(classifier)
    other.model = copy.deepcopy(classifier.model)
    _put(other.model, weights)
    return other


@torch.no_grad()
def _put(model: Model, weights: Mapping[str, Tensor]) -> None:
    stored = stored_weights(model)
    for name, value in weights.items():
        stored[name].copy_(value)


def _read(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except FileNotFoundError:
        raise VitkitError(f"{file} is missing, but --wise-ft requires it: restore it, or train again") from None
    except SafetensorError as error:
        raise VitkitError(f"{file} is damaged: {error}; delete the run, and train again") from error


# --- Several runs: model soups --------------------------------------------------------------------------------

# The averaged model is as fast as a single model, and often more accurate than the best single model (Wortsman et al.
# 2022, arXiv 2203.05482). This does not hold for runs with different initial weights, so such runs are refused.
#
# Only images that are test images of all runs can test the average. The folds of a cross-validation have no such
# images, because each image was a training or validation image of all folds but one.


@dataclass(frozen=True)
class Ingredient:
    """A run whose weights are averaged.

    Attributes:
        folder: the folder of the run.
        classifier: the trained classifier.
        recipe: the recipe of the run.
        table: the images of the run, with their splits.
        pictures: the record of the images that the weights were trained on.
    """

    folder: Path
    classifier: Classifier
    recipe: Recipe
    table: ImageTable
    pictures: PictureRecord

    @property
    def name(self) -> str:
        """Return the name of the run folder. For a fold, the name of the cross-validation comes first."""
        is_fold = self.folder.name.startswith("fold-")
        return "/".join(self.folder.parts[-2:]) if is_fold else self.folder.name


def open_runs(folders: Sequence[Path]) -> list[Ingredient]:
    """Open the runs to average. For the folder of a cross-validation, open the runs of all its folds.

    Raises:
        VitkitError: a folder contains no run on files, a run is named twice, or there are fewer than two runs; the runs
            differ in initial weights, architecture, classes, preprocessing, data or prior; a run does not record its
            initial weights or its images; or the model has batch norms.
    """
    runs = [member for folder in folders for member in _members(folder)]
    places = [folder.resolve() for folder in runs]
    if len(set(places)) < len(places):
        twice = next(folder for folder, place in zip(runs, places, strict=True) if places.count(place) > 1)
        raise VitkitError(f"{twice} is named twice: name it only once")
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
            "models with batch norms cannot be averaged: their running statistics belong to the weights of one model"
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
            f"{folder} was trained on datasets in Python and cannot be averaged: its files do not record which images "
            "it has seen"
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
    """The images that all runs have in common, with the splits that are valid for the averaged model.

    Attributes:
        table: the images. The split of an image is `train` if any run was trained on the image, else `val` if any run
            was selected on the image, else `test`.
        contents: the digest of each image's content, by path.
        groups: the group number, by path, of each image that belongs to a group of dependent images, such as copies.
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
        every: all runs from which `runs` were chosen. The provenance of the result lists them.
        images: the images that all runs in `every` have in common.
        how: how the runs were chosen: `uniform` or `greedy`.
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
    """Return the weights of a classifier after removing the prior correction from its head.

    The correction is removed because its strength differs between runs.
    """
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
        accuracy: the accuracy of this run's model alone on the validation images.
        with_it: the accuracy of the average of this run and all runs kept before it.
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
    """Try the runs from best to worst, and keep each run that does not make the average worse (algorithm 1).

    Args:
        runs: the runs.
        images: the images that all runs have in common.
        judge: a function that evaluates a classifier on validation images that no run was trained on.

    Returns:
        A record of each run, in the order in which the runs were tried.
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
