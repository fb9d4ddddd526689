"""Prediction sets with guaranteed coverage: split conformal prediction.

`HeldOut` records how a trained model ranked the classes of images that it was not trained on. The score of a class
measures how poorly the class fits the predicted probabilities of an image. A set contains every class whose score is at
most a quantile of the scores of the held-out images' true classes. For n held-out images and a coverage of c, the
quantile is the ceil((n + 1) c)-th smallest of these scores. If scores are distinct, the set of a new image from the
same distribution contains its class with a probability from c to c + 1 / (n + 1), whatever the model (Vovk et al. 2005;
Angelopoulos & Bates 2021, arXiv 2107.07511, theorem 1). The probability is over the held-out images and the new one.

The sets are deterministic. This module imports only numpy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vitkit.errors import VitkitError
from vitkit.text.cells import listed, plural

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SetScore = Literal["lac", "aps", "raps"]
VALIDATION, CROSS_VALIDATED = "validation images", "cross-validated images"
_PENALTY, _FREE = 0.1, 2  # RAPS: the penalty for each class beyond the first `_FREE`
_EXACT = 1e-9  # rounding of (n + 1) c


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The predictions for n independent labelled images by weights that were not trained on them.

    Attributes:
        label: true class of each image, (n,).
        predicted: most probable class, (n,).
        rest: 1 minus the probability of the true class, (n,), computed without rounding it to 0.
        above: total probability of the classes that are more probable than the true one, (n,).
        rank: number of classes that are more probable than the true one, (n,).
        doubt: 1 minus the probability of the most probable class, (n,).
        chosen: the settings that were chosen on these images, such as `temperature`.
        folds: number of folds if the images were predicted by cross-validation: the model was trained on all of them,
            but each was predicted by another model, trained without its fold. 0 if the model itself predicted them.
    """

    label: Ints
    predicted: Ints
    rest: Floats
    above: Floats
    rank: Ints
    doubt: Floats
    chosen: tuple[str, ...] = ()
    folds: int = 0

    @classmethod
    def of(
        cls, probabilities: npt.NDArray[np.float32], labels: Ints, chosen: tuple[str, ...] = (), folds: int = 0
    ) -> HeldOut:
        """Make the record from probabilities (n, K) and true classes (n,)."""
        rest, above, rank = _against_others(probabilities)
        each, label = np.arange(len(labels)), labels.astype(np.int64)
        predicted = probabilities.argmax(axis=1).astype(np.int64)
        of_true = rest[each, label], above[each, label], rank[each, label]
        return cls(label, predicted, *of_true, doubt_of(probabilities), chosen, folds)

    def __len__(self) -> int:
        return len(self.label)

    @property
    def kind(self) -> str:
        """The name of these images in messages."""
        return CROSS_VALIDATED if self.folds else VALIDATION

    def scores(self, kind: SetScore) -> Floats:
        """Return the scores (n,) of the true classes."""
        return _score(kind, self.rest, self.above, self.rank)


@dataclass(frozen=True, eq=False)
class ClassSets:
    """A rule that assigns each image a set of classes.

    Attributes:
        kind: the score of a class. `lac` is 1 minus the probability of the class (Sadinle et al. 2019, arXiv
            1609.00451); it gives the smallest sets, which can be empty. `aps` is the total probability of all classes
            that are more probable (Romano et al. 2020, arXiv 2006.02544, without its random part); its sets are never
            empty, and exceed the coverage if the model is accurate. `raps` is `aps` plus a penalty for each class
            beyond the second (Angelopoulos et al. 2021, arXiv 2009.14193).
        coverage: the fraction of sets that contain the true class.
        limits: for each class, the highest score with which it is in a set, (K,).
        images: number of held-out images that determine the limits; for limits by class, the smallest number of any
            class.
    """

    kind: SetScore
    coverage: float
    limits: Floats
    images: int

    def of(self, probabilities: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """Return which classes are in the sets of images with these probabilities: (n, K) -> (n, K)."""
        contained: npt.NDArray[np.bool_] = _score(self.kind, *_against_others(probabilities)) <= self.limits
        return contained


def class_sets(
    held_out: HeldOut, classes: tuple[str, ...], coverage: float, kind: SetScore = "lac", *, by_class: bool = False
) -> ClassSets:
    """Return the rule whose sets have the requested coverage.

    Args:
        held_out: the model's predictions of held-out images.
        classes: the names of the model's classes.
        coverage: the fraction of images whose set contains their class, above 0 and below 1.
        kind: the score of a class.
        by_class: whether the coverage must hold for the images of each class, instead of for all images together.

    Raises:
        VitkitError: there are too few images, so that every set would contain all classes; or the coverage is not
            between 0 and 1.
    """
    if not 0 < coverage < 1:
        raise VitkitError(f"--coverage {coverage} must be above 0 and below 1")
    needed = images_needed(coverage)
    scores = held_out.scores(kind)
    if not by_class:
        if len(scores) < needed:
            raise VitkitError(
                f"--coverage {coverage} requires at least {needed} {held_out.kind}, and the run had {len(scores)}: "
                f"every set would contain all classes; at most {most_coverage(len(scores)):.3g} is possible"
            )
        return ClassSets(kind, coverage, np.full(len(classes), quantile(scores, coverage)), len(scores))
    counts = np.bincount(held_out.label, minlength=len(classes))
    few = [f"{name} {count}" for name, count in zip(classes, counts.tolist(), strict=True) if count < needed]
    if few:
        raise VitkitError(
            f"--coverage {coverage} by class requires at least {needed} {held_out.kind} of each class, and the run "
            f"had fewer of {plural(len(few), 'class', 'classes')}: {listed(few)}"
        )
    limits = [quantile(scores[held_out.label == k], coverage) for k in range(len(classes))]
    return ClassSets(kind, coverage, np.array(limits), int(counts.min()))


def quantile(scores: Floats, coverage: float) -> float:
    """Return the ceil((n + 1) coverage)-th smallest of n scores; infinity if n is less than that."""
    k = math.ceil((len(scores) + 1) * coverage - _EXACT)
    return float(np.partition(scores, k - 1)[k - 1]) if k <= len(scores) else math.inf


def images_needed(coverage: float) -> int:
    """Return the smallest number of held-out images for which `quantile` is finite."""
    return max(1, math.ceil(coverage / (1 - coverage) - _EXACT))


def most_coverage(images: int) -> float:
    """Return the highest coverage for which `quantile` is finite with this number of images."""
    return images / (images + 1)


def doubt_of(probabilities: npt.NDArray[np.float32]) -> Floats:
    """Return 1 minus the probability (n,) of the most probable class, without rounding it to 0."""
    p = probabilities.astype(np.float64)
    total = p.sum(axis=1)
    doubt: Floats = (total - p.max(axis=1)) / total
    return doubt


def _against_others(probabilities: npt.NDArray[Any]) -> tuple[Floats, Floats, Ints]:
    """Return `rest`, `above` and `rank` of `HeldOut` with each class in turn as the true one, (n, K) each.

    Classes of equal probability are ranked by their index, so that all ranks of an image differ.
    """
    p = probabilities.astype(np.float64)
    total = p.sum(axis=1, keepdims=True)  # float32 probabilities sum to 1 up to 1e-7
    order = np.argsort(-p, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(p.shape[1])[None], axis=1)
    in_order = np.take_along_axis(p, order, axis=1)
    above = np.take_along_axis(np.cumsum(in_order, axis=1) - in_order, rank, axis=1) / total
    return (total - p) / total, above, rank


def _score(kind: SetScore, rest: Floats, above: Floats, rank: Ints) -> Floats:
    if kind == "lac":
        return rest
    return above if kind == "aps" else above + _PENALTY * np.maximum(0, rank + 1 - _FREE)
