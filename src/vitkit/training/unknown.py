"""Fit the score that recognises unknown images at the end of a training, and measure which images it misses.

An image is unknown if it belongs to none of the classes. A data set contains no unknown images, so one class at a time
is treated as unknown. The trained weights have learned to distinguish these classes, which would make the task too
easy. The features are therefore computed with the initial weights of the training. If these features are not available,
nothing is measured.

An unknown image *passes* if the score (`inference.unknown`) accepts it as known. The fraction that passes is measured
with a threshold that accepts 95 % of the known images (fewer if there are few known images).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from vitkit.classifier import Classifier
from vitkit.data.storage import Place
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.inference.pipeline import BATCH, BATCH_ALONE, compute_in_order, try_read
from vitkit.inference.unknown import MAX_IMAGES, FalseAcceptance, Floats, Unknown

LEFT_OUT = "unseen classes"
_MAX_LEFT_OUT = 10  # classes that are left out in turn
_MIN_LEFT_OUT = 3  # classes that must be left out for an interval

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LabelledFeatures:
    """The features (n, D) and the classes (n,) of images."""

    features: Floats
    labels: Ints

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, rows: Ints | npt.NDArray[np.bool_]) -> LabelledFeatures:
        """Return some images, given as indices or as a mask."""
        return LabelledFeatures(self.features[rows], self.labels[rows])

    def without_class(self, k: int) -> LabelledFeatures:
        """Return the images of all classes but one."""
        return self.select(self.labels != k)


# Held-out images; for a cross-validation, a pair for each fold: the images of all other folds, and of the fold.
HeldOutFeatures = LabelledFeatures | Sequence[tuple[LabelledFeatures, LabelledFeatures]]


def fit_to_images(
    classifier: Classifier,
    table: ImageTable,
    held_out: Sequence[str],
    frozen: Floats | None,
    *,
    seed: int,
    progress: Callable[[int, int], None],
) -> Unknown | None:
    """Fit the score that recognises unknown images to the training and validation images of a run.

    Args:
        classifier: the trained and calibrated classifier, which computes features (`Classifier.use`).
        table: the images of the run, with the split `train`.
        held_out: the paths of the validation images that are independent and that the weights had not seen.
        frozen: the features of all images in the table under the initial weights, which had not seen them, or None.
        seed: the seed for sampling from many images.
        progress: called with the number of computed images and their total.

    Returns:
        The fitted score; None if no training image or no held-out image can be read.
    """
    row_of = {path: i for i, path in enumerate(table.paths)}
    train = _sample(np.flatnonzero(np.array(table.splits) == "train"), MAX_IMAGES, seed)
    validation = _sample(np.array([row_of[path] for path in held_out]), MAX_IMAGES, seed)
    total = len(train) + len(validation)

    def compute(rows: Ints, computed: int) -> tuple[Floats, Ints]:
        """Return the features of the images that can be read, and their rows; `computed` images come before them."""
        files = [table.file(i) for i in rows.tolist()]
        features, readable = _features(classifier, files, lambda done: progress(computed + done, total))
        return features, rows[readable]

    train_features, train_rows = compute(train, 0)
    held_out_features, held_out_rows = compute(validation, len(train))
    if not len(train_rows) or not len(held_out_rows):
        return None
    frozen_features = None
    if frozen is not None:
        images = LabelledFeatures(frozen, np.array(table.labels))
        frozen_features = images.select(train_rows), images.select(held_out_rows)
    return fit_unknown(train_features, held_out_features, frozen_features, seed=seed)


def fit_out_of_fold(
    classifier: Classifier,
    files: Sequence[Place],
    labels: Ints,
    fold: Ints,
    *,
    seed: int,
    progress: Callable[[int, int], None],
) -> Unknown | None:
    """Fit the score that recognises unknown images to the n training images of a head on frozen features.

    Each image is compared with the images of the other folds; `fold`, (n,), is the fold of each image, and `labels`,
    (n,), its class. The other arguments and the result are as for `fit_to_images`.
    """
    chosen = _sample(np.arange(len(files)), MAX_IMAGES, seed)
    chosen_files = [files[i] for i in chosen.tolist()]
    features, readable = _features(classifier, chosen_files, lambda done: progress(done, len(chosen_files)))
    if not len(features):
        return None
    rows = chosen[readable]
    train, fold = LabelledFeatures(features, labels[rows]), fold[rows]
    pairs = [(train.select(fold != k), train.select(fold == k)) for k in np.unique(fold).tolist()]
    held_out = [(rest.features, of_fold.features) for rest, of_fold in pairs]
    # The backbone was not trained, so that its features are also those under the initial weights.
    return fit_unknown(features, held_out, (train, pairs), seed=seed)


def _sample(indices: Ints, count: int, seed: int) -> Ints:
    return indices[np.sort(np.random.default_rng(seed).permutation(len(indices))[:count])]


def _features(classifier: Classifier, files: Sequence[Place], report: Callable[[int], None]) -> tuple[Floats, Ints]:
    """Return the features (m, D) of the readable images, and their indices (m,)."""
    see = classifier.seeing()
    is_concurrent = classifier.runner is not None and classifier.runner.is_concurrent
    outcomes = compute_in_order(
        files,
        partial(try_read, classifier.pixels),
        lambda pixels: see(pixels).features,
        BATCH if is_concurrent else BATCH_ALONE,
        is_concurrent=is_concurrent,
    )
    features: dict[int, Floats] = {}  # by the index of the image
    for i, (_, outcome) in enumerate(outcomes):
        report(i + 1)
        if not isinstance(outcome, str):  # else it is an error message
            features[i] = outcome
    rows = np.stack(list(features.values())) if features else np.empty((0, 0), np.float32)
    return rows, np.array(list(features), np.int64)


def fit_unknown(
    train: Floats,
    held_out: Floats | Sequence[tuple[Floats, Floats]],
    frozen: tuple[LabelledFeatures, HeldOutFeatures] | None = None,
    seed: int = 0,
) -> Unknown:
    """Fit the score, and measure the fraction of unknown images that it accepts as known.

    Args:
        train: the trained model's features of the training images, (m, D).
        held_out: the features (n, D) of images that the model was not trained on, or a pair for each fold of a
            cross-validation (see `Unknown.fit`).
        frozen: the same as `train` and `held_out`, with labels, but with features from the initial weights. Without
            it, or with fewer than three classes to leave out, nothing is measured.
        seed: the seed for sampling the training images that are stored, and the classes that are left out.

    Raises:
        VitkitError: there are no held-out images.
    """
    if not len(held_out):
        message = "no held-out images: they are required to determine how unfamiliar an image is"
        raise VitkitError("training.held-out-missing", message)
    unknown = Unknown.fit(train, held_out, seed)
    if frozen is None:
        return unknown
    # The classes of the held-out images are left out in turn. For each, the score is fitted to the images of the other
    # classes.
    trained, tested = frozen
    folds = [(trained, tested)] if isinstance(tested, LabelledFeatures) else tested
    classes = np.unique(np.concatenate([fold.labels for _, fold in folds]))
    passed = list[npt.NDArray[np.bool_]]()  # which images of each class pass
    for k in np.sort(np.random.default_rng(seed).permutation(classes)[:_MAX_LEFT_OUT]).tolist():
        known = list[tuple[Floats, Floats]]()
        for others, fold in folds:
            others, fold = others.without_class(k), fold.without_class(k)
            if len(others) and len(fold):
                known.append((others.features, fold.features))
        if not known:  # at most one image is left, which has no other one to be compared with
            continue
        score = Unknown.fit(trained.without_class(k).features, known, seed)
        of_class = np.concatenate([fold.features[fold.labels == k] for _, fold in folds])
        passed.append(score.passes(of_class))
    if len(passed) < _MIN_LEFT_OUT:
        return unknown
    sizes = np.array([len(part) for part in passed], np.float64)
    fractions = np.array([part.mean() for part in passed], np.float64)
    interval = _prediction_interval(fractions, sizes)
    limit = FalseAcceptance(LEFT_OUT, float(fractions.mean()), interval, int(sizes.sum()), len(passed))
    return replace(unknown, limits=(limit,))


def _prediction_interval(fractions: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % prediction interval for the fraction of images that are accepted as known.

    The interval is for a class that was not measured. `fractions` and `sizes` are the fraction and the number of images
    of each measured one. arcsin sqrt(fraction) is assumed to be normally distributed over classes, with at least the
    sampling variance, which is 1 / 4n for a fraction of n images.
    """
    from scipy.special import stdtrit

    n, angles = len(fractions), np.arcsin(np.sqrt(fractions))
    variance = max(float(angles.var(ddof=1)), float((1 / (4 * sizes)).mean()))
    half_width = float(stdtrit(n - 1, 0.975)) * (variance * (1 + 1 / n)) ** 0.5
    low, high = np.clip([angles.mean() - half_width, angles.mean() + half_width], 0, np.pi / 2)
    return float(np.sin(low) ** 2), float(np.sin(high) ** 2)
