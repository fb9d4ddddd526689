"""Out-of-distribution scores of images, and their conformal p-values.

A score is computed from the feature vector (the input of the head) and the logits of an image. Higher scores mean less
familiar images. The methods are

- `neighbours`: the distance to the k-th nearest training image, for features of length 1 (Sun et al. 2022, arXiv
  2204.06507);
- `mahalanobis`: the distance to the nearest class mean under a covariance that all classes share (Lee et al. 2018,
  arXiv 1807.03888), which is shrunk towards a multiple of the identity (Ledoit & Wolf 2004);
- `energy`: minus the log-sum-exp of the logits (Liu et al. 2020, arXiv 2010.03759);
- `joint`: `neighbours` and `energy` combined, because `neighbours` misses new classes that resemble the known ones, and
  `energy` misses pictures of entirely different things. The weights assign about 30 % of the false alarms to
  `neighbours`.

A score is converted to a conformal p-value (Vovk et al. 2005; Bates et al. 2023, arXiv 2104.08279). With n held-out
images, the p-value is (1 + the number of held-out images that are at least as unfamiliar) / (n + 1). For a new image
from the same distribution, the p-value is at most a with a probability of at most a, for every a.

Training chooses the method and measures its false acceptance rates (`training.strangers`). This module imports only
numpy, so that predictions start fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vitkit.errors import VitkitError

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
Part = Literal["neighbours", "mahalanobis", "energy"]
Method = Literal["neighbours", "mahalanobis", "energy", "joint"]
PARTS: dict[Method, dict[Part, float]] = {  # the scores of each method, with their weights
    "neighbours": {"neighbours": 1.0},
    "mahalanobis": {"mahalanobis": 1.0},
    "energy": {"energy": 1.0},
    "joint": {"neighbours": 0.3, "energy": 0.7},
}
METHODS = tuple(PARTS)
NAMES: dict[Method, str] = {
    "neighbours": "the distance to the nearest training images",
    "mahalanobis": "the Mahalanobis distance to the nearest class",
    "energy": "the energy of the logits",
    "joint": "the distance to the nearest training images and the energy of the logits",
}
ACCEPTED = 0.95  # fraction of known images to accept when methods are compared
_NEIGHBOUR = 3  # k of the nearest neighbours; fewer if there are very few training images
MOST = 1_000  # training images that are stored
_ROWS = 1_024  # images whose distances are computed at a time


@dataclass(frozen=True, eq=False)
class Seen:
    """A model's features and logits of n images, with the labels of the images.

    Attributes:
        features: input of the head, (n, D).
        logits: logits before the temperature, (n, K).
        labels: true classes, (n,); empty for images that belong to no class.
    """

    features: Floats
    logits: Floats
    labels: Ints

    def __len__(self) -> int:
        return len(self.features)

    def at(self, rows: npt.NDArray[Any]) -> Seen:
        """Return the images that these indices or this boolean mask select."""
        return Seen(self.features[rows], self.logits[rows], self.labels[rows] if len(self.labels) else self.labels)

    def without_class(self, k: int) -> Seen:
        """Return a copy whose logits lack class k; features and labels are unchanged."""
        return Seen(self.features, np.delete(self.logits, k, axis=1), self.labels)


HeldOutImages = Seen | Sequence[tuple[Seen, Seen]]


@dataclass(frozen=True, eq=False)
class Strangeness:
    """A fitted out-of-distribution score; higher means less familiar.

    Attributes:
        method: `neighbours`, `mahalanobis` or `energy`.
        points: for `neighbours`, the unit-length features of m training images, (m, D), in float16; for `mahalanobis`,
            the whitened class means, (K, D); for `energy`, empty, (0, 0).
        whitening: for `mahalanobis`, a matrix that makes the shared covariance the identity, (D, D); otherwise (0, 0).
        nearest: the number k of a score that is the distance to the k-th nearest point.
    """

    method: Part
    points: npt.NDArray[np.floating[Any]]
    whitening: npt.NDArray[np.float32]
    nearest: int = 1

    def of(self, seen: Seen) -> npt.NDArray[np.float64]:
        """Return the scores (n,) of images."""
        if self.method == "energy":
            highest = seen.logits.max(axis=1, keepdims=True).astype(np.float64)
            return -(highest[:, 0] + np.log(np.exp(seen.logits - highest).sum(axis=1)))
        k, scores = self.nearest - 1, np.empty(len(seen))
        for start in range(0, len(seen), _ROWS):
            rows = slice(start, start + _ROWS)
            scores[rows] = np.partition(self._distances(seen.features[rows]), k, axis=1)[:, k]
        return scores

    def _distances(self, features: Floats) -> npt.NDArray[np.float64]:
        """Return the squared distances (n, m) of features to the points."""
        x = features.astype(np.float64) @ self.whitening if self.method == "mahalanobis" else _unit(features)
        points = self.points.astype(np.float64)
        squares = (x**2).sum(axis=1)[:, None] + (points**2).sum(axis=1) - 2 * x @ points.T
        return np.maximum(squares, 0)


def fit_score(method: Part, train: Seen, seed: int = 0) -> Strangeness:
    """Fit a score to training images.

    Args:
        method: `neighbours`, `mahalanobis` or `energy`.
        train: the training images with their classes.
        seed: determines which images are stored if there are more than 1,000.
    """
    none = np.zeros((0, 0), np.float32)
    if method == "energy":
        return Strangeness(method, none, none)
    if method == "neighbours":
        rows = np.sort(np.random.default_rng(seed).permutation(len(train))[:MOST])
        nearest = max(1, min(_NEIGHBOUR, len(rows) // 10))
        return Strangeness(method, _unit(train.features[rows]).astype(np.float16), none, nearest)
    present = np.unique(train.labels)
    means = np.stack([train.features[train.labels == k].mean(axis=0, dtype=np.float64) for k in present])
    residuals = train.features - means[np.searchsorted(present, train.labels)]
    whitening = _inverse_root(*_shrunk_covariance(residuals))
    return Strangeness(method, (means @ whitening).astype(np.float32), whitening.astype(np.float32))


def _unit(features: Floats) -> npt.NDArray[np.float64]:
    x = features.astype(np.float64)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def _shrunk_covariance(residuals: Floats) -> tuple[npt.NDArray[np.float64], float]:
    """Return the covariance (D, D) of centred rows (n, D), shrunk by the amount of Ledoit & Wolf (2004, lemma 3.2).

    The second value is a lower bound of the eigenvalues of the shrunk covariance.
    """
    x = residuals.astype(np.float64)
    n, width = x.shape
    sample = x.T @ x / n
    level = np.trace(sample) / width
    spread = ((sample - level * np.eye(width)) ** 2).sum()
    error = (((x**2).sum(axis=1) ** 2).sum() / n - (sample**2).sum()) / n
    amount = 1.0 if spread == 0 else min(max(error / spread, 0.0), 1.0)
    shrunk: npt.NDArray[np.float64] = (1 - amount) * sample + amount * level * np.eye(width)
    return shrunk, float(amount * level)


def _inverse_root(covariance: npt.NDArray[np.float64], least: float) -> npt.NDArray[np.float64]:
    """Return a matrix W (D, D) with W @ W.T = inverse of the covariance.

    All eigenvalues of the covariance are at least `least`.
    """
    root: npt.NDArray[np.float64]
    if least > max(float(np.trace(covariance)) * 1e-9, 1e-12):  # the trace is at least the largest eigenvalue
        from scipy.linalg.lapack import dtrtri

        root = dtrtri(np.linalg.cholesky(covariance), lower=1)[0].T  # five times as fast as the eigenvectors
        return root
    values, vectors = np.linalg.eigh(covariance)
    floor = max(float(values[-1]) * 1e-9, 1e-12)
    root = vectors / np.sqrt(np.maximum(values, floor))
    return root


@dataclass(frozen=True)
class Limit:
    """The false acceptance rate for one kind of images that belong to no known class.

    It is measured at the threshold that accepts the fraction `Unknown.accepted` of known images.

    Attributes:
        kind: the kind of images: left-out classes, or one kind of generated pictures.
        share: the fraction of these images that are accepted as known. Images that were used to choose the method do
            not count.
        bounds: a 95 % interval of `share`. For generated pictures of one sort, it is the interval of Clopper & Pearson
            (1934). For left-out classes, it is a prediction interval for another class, which includes the variation
            among classes; for pictures of several sorts, it is a prediction interval for another sort.
        images: the number of images.
        classes: the number of left-out classes; 0 for generated pictures.
        sorts: the number of sorts of generated pictures if there are several, such as stripes and rings, else 0.
    """

    kind: str
    share: float
    bounds: tuple[float, float]
    images: int
    classes: int = 0
    sorts: int = 0

    @property
    def is_for_another(self) -> bool:
        """Whether `bounds` is a prediction interval for another class or sort."""
        return bool(self.classes or self.sorts)


@dataclass(frozen=True, eq=False)
class Unknown:
    """An out-of-distribution detector: fitted scores, held-out images for p-values, and false acceptance rates.

    Attributes:
        method: one of `METHODS`.
        scores: the fitted scores that the method combines, called parts.
        known: the scores of the held-out images, one row for each part, (parts, n).
        limits: the false acceptance rate of each kind of images.
        passing: for each method that was compared, the false acceptance rate on the images that were used to choose the
            method.
    """

    method: Method
    scores: tuple[Strangeness, ...]
    known: npt.NDArray[np.float64]
    limits: tuple[Limit, ...] = ()
    passing: Mapping[Method, float] = field(default_factory=dict)

    @classmethod
    def fit(cls, method: Method, train: Seen, held_out: HeldOutImages, seed: int = 0) -> Unknown:
        """Fit a method to training images, and store the scores of held-out images for p-values.

        Args:
            method: one of `METHODS`.
            train: the training images.
            held_out: the held-out images, or a pair for each fold of a cross-validation: the images of all other folds,
                and the images of the fold.
            seed: see `fit_score`.
        """
        scores = tuple(fit_score(part, train, seed) for part in PARTS[method])
        if isinstance(held_out, Seen):
            return cls(method, scores, np.stack([score.of(held_out) for score in scores]))
        known = [
            np.concatenate([fit_score(part, rest, seed).of(fold) for rest, fold in held_out]) for part in PARTS[method]
        ]
        return cls(method, scores, np.stack(known))

    @property
    def accepted(self) -> float:
        """The fraction of known images to accept when methods are compared: `ACCEPTED`, or less with few images."""
        return min(ACCEPTED, max(0.0, 1 - _least(self.method) / (self.known.shape[1] + 1)))

    def passes(self, seen: Seen) -> npt.NDArray[np.bool_]:
        """Return whether each image passes as known, (n,). The fraction `accepted` of known images passes."""
        passed: npt.NDArray[np.bool_] = self.of(seen) > 1 - self.accepted + 1e-9
        return passed

    @property
    def width(self) -> int:
        """The number of features that the scores need, D; 0 if they need only logits."""
        return max(score.points.shape[1] for score in self.scores)

    def of(self, seen: Seen) -> npt.NDArray[np.float64]:
        """Return the p-values (n,) of images: the fractions of known images that are at least as unfamiliar."""
        scores = np.stack([score.of(seen) for score in self.scores])
        return p_values(self.known, scores, tuple(PARTS[self.method].values()))


def p_values(
    known: npt.NDArray[np.float64], scores: npt.NDArray[np.float64], weights: Sequence[float] = (1.0,)
) -> npt.NDArray[np.float64]:
    """Return conformal p-values (m,) of images with one or several scores each.

    Each image is pooled with the known images. The tail of an image in one score is the number of images in the pool
    that score at least as high, divided by the weight of the score. The p-value is the fraction of the pool whose
    smallest tail is at most the image's smallest tail. The p-value is exact for any scores and weights, because all
    images of the pool are treated alike.

    Args:
        known: scores of the known images, (parts, n).
        scores: scores of the images, (parts, m).
        weights: the weight of each score, (parts,).
    """
    n = known.shape[1]
    if len(known) == 1:
        at_least = n - np.searchsorted(np.sort(known[0]), scores[0], side="left")
        return (1 + at_least) / (n + 1)
    weight = np.array(weights)[:, None]
    ordered = np.sort(known, axis=1)
    tails = np.stack(
        [n - np.searchsorted(o, k, side="left") for o, k in zip(ordered, known, strict=True)]
    )  # (parts, n)
    values = np.empty(scores.shape[1])
    for i, image in enumerate(scores.T):  # (parts,)
        least = ((tails + (image[:, None] >= known)) / weight).min(axis=0)  # (n,): the image is in each tail, or not
        tail = ((1 + (known >= image[:, None]).sum(axis=1)) / weight[:, 0]).min()
        values[i] = (1 + (least <= tail).sum()) / (n + 1)
    return values


def images_needed(method: Method, level: float) -> int:
    """Return the number of held-out images that suffices for p-values as low as `level`.

    With this number, an image that is less familiar than all held-out images in one score has a p-value of at most
    `level`. If the method combines several scores, held-out images with a high value of another score may count as
    equally unfamiliar. The weights of the scores limit the number of these images (`_least`).

    Args:
        method: the method, one of `METHODS`.
        level: the p-value.
    """
    return max(1, math.ceil(_least(method) / level - 1e-9) - 1)


def _least(method: Method) -> int:
    """Return c such that the p-value of an image is at most c / (n + 1) if it is the most extreme in one score.

    n is the number of known images.
    """
    weights = PARTS[method].values()
    return sum(math.floor(weight / min(weights) + 1e-9) for weight in weights)


def check_level(unknown: Unknown, level: float) -> None:
    """Check that there are enough held-out images to call images with a p-value of at most `level` unknown.

    Raises:
        VitkitError: the level is not between 0 and 1, or there are too few held-out images for it.
    """
    if not 0 < level < 1:
        raise VitkitError(f"--unknown {level} must be above 0 and below 1")
    images = unknown.known.shape[1]
    if images < (needed := images_needed(unknown.method, level)):
        least = math.ceil(1e4 * _least(unknown.method) / (images + 1)) / 1e4
        raise VitkitError(
            f"--unknown {level} requires at least {needed} validation images, and the run had {images}: hardly any "
            f"image could be called unknown; use {least:g} or more"
        )


# --- Storage --------------------------------------------------------------------------------------------------


def to_arrays(unknown: Unknown) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Return the arrays of a detector by name, and its other values as plain JSON types."""
    arrays: dict[str, npt.NDArray[Any]] = {"known": unknown.known}
    for score in unknown.scores:
        for name in ("points", "whitening"):
            if (array := getattr(score, name)).size:
                arrays[f"{score.method}.{name}"] = array
    limits = [{**vars(limit), "bounds": list(limit.bounds)} for limit in unknown.limits]
    nearest = {score.method: score.nearest for score in unknown.scores}
    return arrays, {"method": unknown.method, "limits": limits, "passing": dict(unknown.passing), "nearest": nearest}


def _nearest_before(part: Part, points: int) -> int:
    """Return `Strangeness.nearest` of a score with this number of points, for a file that does not contain it.

    Earlier versions of vitkit wrote such files.
    """
    return max(1, min(10, points // 10)) if part == "neighbours" else 1


def from_arrays(arrays: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any]) -> Unknown:
    """Restore a detector from the result of `to_arrays`.

    Raises:
        KeyError, TypeError, ValueError: the content is damaged.
    """
    none = np.zeros((0, 0), np.float32)
    method: Method = about["method"]
    nearest = dict(about.get("nearest", {}))
    scores = tuple(
        Strangeness(
            part,
            points := arrays.get(f"{part}.points", none),
            arrays.get(f"{part}.whitening", none),
            int(nearest.get(part, _nearest_before(part, len(points)))),
        )
        for part in PARTS[method]
    )
    known = arrays["known"].astype(np.float64)
    if known.ndim != 2 or len(known) != len(scores) or not known.shape[1] or not np.isfinite(known).all():
        raise ValueError(f"scores of known images must be finite, in {len(scores)} non-empty rows; shape {known.shape}")
    for score in scores:
        if (score.method != "energy") != bool(score.points.size) or score.points.ndim != 2:
            raise ValueError(
                f"points of the score {score.method} must be a non-empty matrix, or none for energy, not of the shape "
                f"{score.points.shape}"
            )
        if score.method != "energy" and not 1 <= score.nearest <= len(score.points):
            raise ValueError(
                f"the score {score.method} must count 1 to {len(score.points)} neighbours, not {score.nearest}"
            )
        D = score.points.shape[1]
        if score.whitening.shape != ((D, D) if score.method == "mahalanobis" else (0, 0)):
            raise ValueError(
                f"the matrix of the score {score.method} must be {D}x{D} for mahalanobis and empty for other scores, "
                f"not of the shape {score.whitening.shape}"
            )
    limits = tuple(
        Limit(
            str(row["kind"]),
            float(row["share"]),
            (float(row["bounds"][0]), float(row["bounds"][1])),
            int(row["images"]),
            int(row["classes"]),
            int(row.get("sorts", 0)),
        )
        for row in about["limits"]
    )
    return Unknown(method, scores, known, limits, {name: float(share) for name, share in about["passing"].items()})
