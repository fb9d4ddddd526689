"""The out-of-distribution score of images, and its conformal p-value.

The score of an image is the squared distance between its feature vector (the input of the head) and the k-th nearest
training image, for features of length 1 (Sun et al. 2022, arXiv 2204.06507). Higher scores mean less familiar images.

A score is converted to a conformal p-value (Vovk et al. 2005; Bates et al. 2023, arXiv 2104.08279). With n held-out
images, the p-value is (1 + the number of held-out images that are at least as unfamiliar) / (n + 1). For a new image
from the same distribution, the p-value is at most a with a probability of at most a, for every a.

Training fits the score and measures its false acceptance rates (`training.unknown`). This module imports only numpy,
so that predictions start fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.errors import VitkitError

Floats = npt.NDArray[np.floating[Any]]
METHOD = "neighbours"  # the name of the score in files
ACCEPTED = 0.95  # fraction of known images to accept when false acceptance rates are measured
_NEIGHBOURS = 3  # the number k; less if there are fewer than 30 training images
MAX_IMAGES = 1_000  # maximum number of training images that are stored
_TOLERANCE = 1e-9  # for the rounding of fractions such as 1 - 0.95
_CHUNK = 1_024  # images whose distances are computed at a time


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The training images that new images are compared with.

    Attributes:
        points: the unit-length features of m training images, (m, D), in float16.
        nearest: the number k; the score of an image is its squared distance to the k-th nearest point.
    """

    points: npt.NDArray[np.float16]
    nearest: int

    @classmethod
    def fit(cls, features: Floats, seed: int = 0) -> Neighbours:
        """Store the features (n, D) of training images; if there are more than 1,000, a random sample of them."""
        rows = np.sort(np.random.default_rng(seed).permutation(len(features))[:MAX_IMAGES])
        k = max(1, min(_NEIGHBOURS, len(rows) // 10))
        return cls(_unit(features[rows]).astype(np.float16), k)

    def distances(self, features: Floats) -> npt.NDArray[np.float64]:
        """Return the scores (n,) of images with these features (n, D)."""
        points = self.points.astype(np.float64)
        scores = np.empty(len(features))
        k = self.nearest - 1  # counted from 0
        for start in range(0, len(features), _CHUNK):
            x = _unit(features[start : start + _CHUNK])
            squares = (x**2).sum(axis=1)[:, None] + (points**2).sum(axis=1) - 2 * x @ points.T  # (rows, m)
            scores[start : start + _CHUNK] = np.partition(np.maximum(squares, 0), k, axis=1)[:, k]
        return scores


def _unit(features: Floats) -> npt.NDArray[np.float64]:
    x = features.astype(np.float64)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


@dataclass(frozen=True)
class FalseAcceptance:
    """The false acceptance rate for images of other classes.

    It is measured at the threshold that accepts the fraction `Unknown.accepted` of known images.

    Attributes:
        kind: the kind of images, which is left-out classes.
        share: the fraction of these images that are accepted as known.
        bounds: a 95 % prediction interval of `share` for another class, which includes the variation among classes.
        images: the number of images.
        classes: the number of left-out classes.
    """

    kind: str
    share: float
    bounds: tuple[float, float]
    images: int
    classes: int


@dataclass(frozen=True, eq=False)
class Unknown:
    """An out-of-distribution detector: the score, held-out images for p-values, and false acceptance rates.

    Attributes:
        neighbours: the training images that determine the score.
        known: the scores of the n held-out images, (n,).
        limits: the false acceptance rate of left-out classes; empty if it was not measured.
    """

    neighbours: Neighbours
    known: npt.NDArray[np.float64]
    limits: tuple[FalseAcceptance, ...] = ()

    @classmethod
    def fit(cls, train: Floats, held_out: Floats | Sequence[tuple[Floats, Floats]], seed: int = 0) -> Unknown:
        """Fit the score to the features of training images (m, D), and store the scores of held-out images.

        `held_out` are the features of these images (n, D), or a pair for each fold of a cross-validation: the features
        of the images of all other folds, and of the images of the fold.
        """
        neighbours = Neighbours.fit(train, seed)
        if isinstance(held_out, np.ndarray):
            return cls(neighbours, neighbours.distances(held_out))
        by_fold = [Neighbours.fit(rest, seed).distances(fold) for rest, fold in held_out]
        return cls(neighbours, np.concatenate(by_fold))

    @property
    def accepted(self) -> float:
        """The fraction of known images to accept when rates are measured: `ACCEPTED`, or less with few images."""
        return min(ACCEPTED, 1 - 1 / (len(self.known) + 1))

    def passes(self, features: Floats) -> npt.NDArray[np.bool_]:
        """Return whether each image passes as known, (n,). The fraction `accepted` of known images passes."""
        passed: npt.NDArray[np.bool_] = self.p_values(features) > 1 - self.accepted + _TOLERANCE
        return passed

    def p_values(self, features: Floats) -> npt.NDArray[np.float64]:
        """Return the p-values (n,) of images with these features (n, D)."""
        return p_values(self.known, self.neighbours.distances(features))


def p_values(known: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the conformal p-values (m,) of images with these scores (m,), given the scores (n,) of known images."""
    at_least = len(known) - np.searchsorted(np.sort(known), scores, side="left")
    return (1 + at_least) / (len(known) + 1)


def images_needed(level: float) -> int:
    """Return the number of held-out images with which an image can have a p-value as low as `level`."""
    return max(1, math.ceil(1 / level - _TOLERANCE) - 1)


def check_level(unknown: Unknown, level: float) -> None:
    """Check that there are enough held-out images to call images with a p-value of at most `level` unknown.

    Raises:
        VitkitError: the level is not between 0 and 1, or there are too few held-out images for it.
    """
    if not 0 < level < 1:
        raise VitkitError("inference.share-outside", f"--unknown {level} must be above 0 and below 1")
    images, needed = len(unknown.known), images_needed(level)
    if images < needed:
        lowest = math.ceil(1e4 / (images + 1)) / 1e4  # the lowest possible p-value, rounded up
        raise VitkitError(
            "inference.images-too-few",
            f"--unknown {level} requires at least {needed} validation images, and the run had {images}: hardly any "
            f"image could be called unknown; use {lowest:g} or more",
        )


def to_arrays(unknown: Unknown) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Return the arrays of a detector by name, and its other values as plain JSON types."""
    arrays: dict[str, npt.NDArray[Any]] = {"known": unknown.known, f"{METHOD}.points": unknown.neighbours.points}
    limits = [{**vars(limit), "bounds": list(limit.bounds)} for limit in unknown.limits]
    return arrays, {"method": METHOD, "limits": limits, "nearest": {METHOD: unknown.neighbours.nearest}}


def from_arrays(arrays: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any]) -> Unknown:
    """Restore a detector from the result of `to_arrays`."""
    neighbours = Neighbours(arrays[f"{METHOD}.points"], about["nearest"][METHOD])
    limits = [  # models of earlier versions also have rates of generated pictures, without classes
        FalseAcceptance(row["kind"], row["share"], tuple(row["bounds"]), row["images"], row["classes"])
        for row in about["limits"]
        if row["classes"]
    ]
    return Unknown(neighbours, arrays["known"], tuple(limits))
