"""Interpolate between the weights before and after a fine-tuning (`--wise-ft`; Wortsman et al. 2022, arXiv 2109.01903).

The initial and the fine-tuned weights lie in one valley of the loss, so the straight line between them crosses no
barrier. A point on this line is often more accurate than either end, and loses less accuracy on photographs of another
kind (sec. 3). The initial model must be a classifier. Its backbone is pre-trained, and its head is fitted to the
backbone's features or made from the class names.

The point is chosen on validation images. The accuracy of the best of several points is optimistic, especially with few
images. The mixed weights therefore replace the fine-tuned weights only if their gain in accuracy is significant: the
confidence interval of the gain, adjusted for the number of points, must be above zero.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median_high
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.errors import VitkitError
from vitkit.evaluation.figures import WISE_FT, wise_ft_in_words
from vitkit.evaluation.metrics import Evaluation
from vitkit.evaluation.paired import gain
from vitkit.model.build import Model, stored_weights
from vitkit.system.files import replacing
from vitkit.system.progress import Say
from vitkit.system.run_files import START
from vitkit.training.finalize import PriorCorrection, with_correction
from vitkit.training.optim import has_batch_norms
from vitkit.training.recipe import Recipe
from vitkit.training.run_folder import ZERO_SHOT

ALPHAS = (0.0, 0.25, 0.5, 0.75)  # the fraction of the fine-tuned weights


def check_start(recipe: Recipe, model: Model) -> None:
    """Refuse a training whose initial model is not a classifier, or whose weights cannot be mixed.

    Raises:
        VitkitError: the initial head is neither fitted to features nor made from class names, there are two heads, or
            the model has batch norms.
    """
    if model.head is None or getattr(model, "head_dist", None) is not None:
        raise VitkitError("--wise-ft: the model has two heads, which are not fitted before the training: leave it out")
    if not recipe.lp_ft and recipe.head_from != "names":
        raise VitkitError(
            "--wise-ft mixes the fine-tuned weights with those at the start, whose head must classify: use --lp-ft, or "
            "--head-from names"
        )
    if has_batch_norms(model):
        raise VitkitError(
            "--wise-ft: the running statistics of this model's batch norms belong to its own weights and cannot be "
            "mixed: leave it out"
        )


def keep_start(folder: Path, model: Model, correction: PriorCorrection) -> None:
    """Save the initial weights of a training in the run folder, with the prior correction that saved models have.

    Args:
        folder: the run folder.
        model: the model before its first step.
        correction: the prior correction that saved models include.
    """
    with with_correction(model, correction), replacing(folder / START) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in stored_weights(model).items()}, temporary)


def check_kept(folder: Path) -> None:
    """Check that the folder of a resumed run contains its initial weights.

    Raises:
        VitkitError: the weights are missing.
    """
    if not (folder / START).is_file():
        raise VitkitError(f"{folder / START} is missing, which --wise-ft mixes with the model: set wise_ft = false")


def interpolate(start: Mapping[str, Tensor], end: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """Return (1 - alpha) start + alpha end for each tensor; alpha 0 and 1 give the ends bit for bit.

    Integer tensors are taken from `end`.
    """
    return {
        name: torch.lerp(start[name].to(tensor), tensor, alpha) if tensor.is_floating_point() else tensor
        for name, tensor in end.items()
    }


def mix_with_start(
    folder: Path, classifier: Classifier, judge: Callable[[Classifier], Evaluation | None], say: Say
) -> None:
    """Mix the initial and the fine-tuned weights, and use the best mix if it is significantly better.

    The results of all mixes are recorded in the provenance of the classifier. A classifier that already has this record
    is not changed, so that a resumed run does not mix twice.

    Args:
        folder: the run folder, whose model folder is changed.
        classifier: the classifier of that folder. It is changed in place.
        judge: evaluates a classifier on the validation images that the weights had not seen; returns None if there are
            none.
        say: called with a line about the result.

    Raises:
        VitkitError: the weights of the start are missing or damaged.
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
    best = max(gains, key=lambda alpha: (gains[alpha].mean, alpha))  # of equal ones, the closest to the fine-tuned
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
    """Mix the initial and the fine-tuned weights of the final model of a cross-validation.

    The fraction of the fine-tuned weights is the median of the fractions that the folds chose. A classifier that has
    been mixed already is not changed.

    Args:
        folder: the run folder, whose model folder is changed.
        classifier: the classifier of that folder. It is changed in place.
        alphas: the fraction of fine-tuned weights that each fold chose.
        say: called with a line about the result.

    Raises:
        VitkitError: the weights of the start are missing or damaged.
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
        raise VitkitError(f"{file} is missing: the weights cannot be mixed with those of the start") from None
    except SafetensorError as error:
        raise VitkitError(f"{file} is damaged: {error}; delete the run, and train again") from error
