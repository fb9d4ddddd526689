"""Fit the score that recognises unknown images at the end of a training, and measure which images it misses.

An image is unknown if it belongs to none of the classes. A data set contains no unknown images, so two substitutes are
used:

- *Synthetic pictures* are computed from the validation images (`make_pictures`): noise, clouds, patterns and shuffled
  patches. There are several sorts of patterns, and the reported interval is for a sort that was not tried.
- *Left-out classes* are classes of the data set that are treated as unknown, one class at a time. The trained weights
  have learned to distinguish these classes, which would make the task too easy. The features are therefore computed
  with the initial weights of the training. If these features are not available, no figure for left-out classes is
  reported.

An unknown image *passes* if the score (`inference.unknown`) accepts it as known. The fraction that passes is measured
with a threshold that accepts 95 % of the known images (fewer if there are few known images).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from vitkit.text.cells import plural

LEFT_OUT = "unseen classes"
_SYNTHETIC_IMAGES = 100  # of each kind
_MAX_LEFT_OUT = 10  # classes that are left out in turn
_MIN_LEFT_OUT = 3  # classes that must be left out for an interval
_TILES = 4  # rows and columns of tiles in a shuffled picture
_CYCLES = 2, 40  # cycles of a pattern along the longer side, at least and at most

Ints = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.float32]


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
        seed: the seed for sampling from many images, and for the synthetic pictures.
        progress: called with the number of computed images and their total.

    Returns:
        The fitted score; None if no training image or no held-out image can be read.
    """
    row_of = {path: i for i, path in enumerate(table.paths)}
    train = _sample(np.flatnonzero(np.array(table.splits) == "train"), MAX_IMAGES, seed)
    validation = _sample(np.array([row_of[path] for path in held_out]), MAX_IMAGES, seed)
    train_files, held_out_files = ([table.file(i) for i in indices.tolist()] for indices in (train, validation))
    total = len(train) + len(validation)
    train_features, kept = _features(classifier, train_files, lambda done: progress(done, total))
    held_out_features, known = _features(classifier, held_out_files, lambda done: progress(len(train) + done, total))
    train_rows, held_out_rows = train[kept], validation[known]
    if not len(train_rows) or not len(held_out_rows):
        return None
    frozen_features = None
    if frozen is not None:
        images = LabelledFeatures(frozen, np.array(table.labels))
        frozen_features = images.select(train_rows), images.select(held_out_rows)
    synthetic = _synthetic_features(classifier, held_out_files, seed)
    return fit_unknown(train_features, held_out_features, synthetic, frozen_features, seed=seed)


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
    features, kept = _features(classifier, chosen_files, lambda done: progress(done, len(chosen_files)))
    if not len(features):
        return None
    rows = chosen[kept]
    train, fold = LabelledFeatures(features, labels[rows]), fold[rows]
    pairs = [(train.select(fold != k), train.select(fold == k)) for k in np.unique(fold).tolist()]
    synthetic = _synthetic_features(classifier, files, seed)
    held_out = [(rest.features, of_fold.features) for rest, of_fold in pairs]
    # The backbone was not trained, so that its features are also those under the initial weights.
    return fit_unknown(features, held_out, synthetic, (train, pairs), seed=seed)


def _sample(indices: Ints, count: int, seed: int) -> Ints:
    return indices[np.sort(np.random.default_rng(seed).permutation(len(indices))[:count])]


def _features(
    classifier: Classifier, images: Sequence[Place] | Pixels, report: Callable[[int], None] = lambda _: None
) -> tuple[Floats, Ints]:
    """Return the features (m, D) of the readable images among files or preprocessed pixels, and their indices (m,)."""
    see = classifier.seeing()
    is_concurrent = classifier.runner is not None and classifier.runner.is_concurrent
    outcomes = compute_in_order(
        images,
        (lambda pixels: pixels) if isinstance(images, np.ndarray) else partial(try_read, classifier.pixels),
        lambda pixels: see(pixels).features,
        BATCH if is_concurrent else BATCH_ALONE,
        is_concurrent=is_concurrent,
    )
    rows, kept = list[Pixels](), list[int]()
    for i, (_, row) in enumerate(outcomes):
        report(i + 1)
        if not isinstance(row, str):
            rows.append(row)
            kept.append(i)
    return np.stack(rows) if rows else np.empty((0, 0), np.float32), np.array(kept, np.int64)


def _synthetic_features(classifier: Classifier, files: Sequence[Place], seed: int) -> dict[str, Floats]:
    """Return the features of synthetic pictures that are made from some of the files, by kind."""
    chosen = _sample(np.arange(len(files)), _SYNTHETIC_IMAGES, seed)
    outcomes = (try_read(classifier.pixels, files[i]) for i in chosen.tolist())
    pixels = np.stack([image for image in outcomes if not isinstance(image, str)])
    return {kind: _features(classifier, pictures)[0] for kind, pictures in make_pictures(pixels, seed).items()}


def fit_unknown(
    train: Floats,
    held_out: Floats | Sequence[tuple[Floats, Floats]],
    synthetic: Mapping[str, Floats],
    frozen: tuple[LabelledFeatures, HeldOutFeatures] | None = None,
    seed: int = 0,
) -> Unknown:
    """Fit the score, and measure the fraction of unknown images that it accepts as known.

    Args:
        train: the trained model's features of the training images, (m, D).
        held_out: the features (n, D) of images that the model was not trained on, or a pair for each fold of a
            cross-validation (see `Unknown.fit`).
        synthetic: the features of pictures that belong to no class, by kind (see `make_pictures`). If a kind has
            several sorts, each has a key of its own, such as `patterns: rings`.
        frozen: the same as `train` and `held_out`, with labels, but with features from the initial weights. Without
            it, no figure for left-out classes is reported.
        seed: the seed for sampling the training images that are stored, and the classes that are left out.

    Raises:
        VitkitError: there are no held-out images.
    """
    from scipy.stats import binomtest

    if not len(held_out):
        message = "no held-out images: they are required to determine how unfamiliar an image is"
        raise VitkitError("training.held-out-missing", message)
    unknown = Unknown.fit(train, held_out, seed)
    passed: dict[str, list[npt.NDArray[np.bool_]]] = {}  # which images of each sort or class pass, by kind
    for name, features in synthetic.items():
        if len(features):
            passed.setdefault(name.partition(":")[0], []).append(unknown.passes(features))
    if frozen is not None:
        # The classes of the held-out images are left out in turn. For each, the score is fitted to the images of the
        # other classes.
        trained, tested = frozen
        folds = [(trained, tested)] if isinstance(tested, LabelledFeatures) else tested
        classes = np.unique(np.concatenate([fold.labels for _, fold in folds]))
        passed[LEFT_OUT] = []
        for k in np.sort(np.random.default_rng(seed).permutation(classes)[:_MAX_LEFT_OUT]).tolist():
            pairs = [(others.select(others.labels != k), fold.select(fold.labels != k)) for others, fold in folds]
            known = [(others.features, fold.features) for others, fold in pairs if len(others) and len(fold)]
            if known:  # otherwise at most one image is left, which has no other one to be compared with
                of_class = np.concatenate([fold.select(fold.labels == k).features for _, fold in folds])
                rest = trained.select(trained.labels != k).features
                passed[LEFT_OUT].append(Unknown.fit(rest, known, seed).passes(of_class))
    limits = list[FalseAcceptance]()
    for kind, parts in passed.items():
        sizes = np.array([len(part) for part in parts], np.float64)
        fractions = np.array([part.mean() for part in parts], np.float64)
        images = int(sizes.sum())
        if kind == LEFT_OUT and len(parts) < _MIN_LEFT_OUT:
            continue
        if kind == LEFT_OUT or len(parts) > 1:
            counts = {"classes" if kind == LEFT_OUT else "sorts": len(parts)}
            limits.append(
                FalseAcceptance(kind, float(fractions.mean()), _prediction_interval(fractions, sizes), images, **counts)
            )
        else:
            exact = binomtest(int(parts[0].sum()), images).proportion_ci(0.95, "exact")
            limits.append(FalseAcceptance(kind, float(fractions[0]), (float(exact.low), float(exact.high)), images))
    return replace(unknown, limits=tuple(limits))


def _prediction_interval(fractions: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % prediction interval for the fraction of images that are accepted as known.

    The interval is for a class, or a sort of synthetic pattern, that was not measured. `fractions` and `sizes` are the
    fraction and the number of images of each measured one. arcsin sqrt(fraction) is assumed to be normally distributed
    over classes or sorts, with at least the sampling variance, which is 1 / 4n for a fraction of n images.
    """
    from scipy.special import stdtrit

    n, angles = len(fractions), np.arcsin(np.sqrt(fractions))
    variance = max(float(angles.var(ddof=1)), float((1 / (4 * sizes)).mean()))
    half_width = float(stdtrit(n - 1, 0.975)) * (variance * (1 + 1 / n)) ** 0.5
    low, high = np.clip([angles.mean() - half_width, angles.mean() + half_width], 0, np.pi / 2)
    return float(np.sin(low) ** 2), float(np.sin(high) ** 2)


def describe_unknown(unknown: Unknown, kind: str) -> str:
    """Describe in a line the fractions of unknown images that pass. `kind` names the held-out images."""
    shares = []
    for limit in sorted(unknown.limits, key=lambda limit: limit.is_for_another):  # intervals last
        low, high = limit.bounds
        interval = f" (95 %: {low:.0%} to {high:.0%})" if limit.is_for_another else ""
        shares.append(f"{limit.kind} {limit.share:.0%}{interval}")
    by = plural(len(unknown.known), kind.removesuffix("s"), kind)
    line = f"unknown images are recognised by the distance to the nearest training images, with {by}"
    passing = f"; if {unknown.accepted:.0%} of known images pass as known, so do these unknown ones: "
    return line + passing + ", ".join(shares) if shares else line


# --- Synthetic pictures -------------------------------------------------------------------------------------------


def make_pictures(images: Pixels, seed: int = 0) -> dict[str, Pixels]:
    """Make pictures that belong to no class from preprocessed images (n, C, height, width) of known classes.

    Return n pictures of each kind: `noise` with the mean and spread of the images' channels; `clouds`, which are smooth
    random fields with the same mean and spread, whose amplitudes fall with frequency as in photographs; and `shuffled
    patches`, which are the images with their 4 x 4 tiles in random order. There are several sorts of patterns, of n / 4
    pictures each. `patterns: rings` has two colours of an image, `patterns: rings in any colours` two random colours.
    """
    rng = np.random.default_rng(seed)
    mean, std = images.mean(axis=(0, 2, 3), keepdims=True), images.std(axis=(0, 2, 3), keepdims=True)
    pictures = {
        "noise": mean + std * rng.standard_normal(images.shape).astype(np.float32),
        "clouds": mean + std * _smooth_fields(rng.standard_normal(images.shape)),
        "shuffled patches": np.stack([_shuffle_tiles(image, rng) for image in images]),
    }
    low, high = images.min(axis=(0, 2, 3)), images.max(axis=(0, 2, 3))
    for i, (name, wave) in enumerate(_WAVE_FUNCTIONS.items()):
        if len(part := images[i :: len(_WAVE_FUNCTIONS)]):
            positions = [[rng.integers(size, size=2) for size in image.shape[1:]] for image in part]  # two per image
            pixels = np.stack([image[:, y, x].T for image, (y, x) in zip(part, positions, strict=True)])  # (n, 2, C)
            random_colours = rng.uniform(low, high, pixels.shape)
            for sort, pairs in ((name, pixels), (f"{name} in any colours", random_colours)):
                patterns = [_draw_pattern(wave, colours, images.shape[2:], rng) for colours in pairs]
                pictures[f"patterns: {sort}"] = np.stack(patterns)
    return {kind: pixels.astype(np.float32) for kind, pixels in pictures.items()}


Plane = npt.NDArray[np.float64]  # (height, width)
_WAVE_FUNCTIONS: dict[str, Callable[[Plane, Plane], Plane]] = {  # of rotated and scaled coordinates; from -1 to 1
    "stripes": lambda x, _: np.sin(x),
    "checks": lambda x, y: np.sin(x) * np.sin(y),
    "rings": lambda x, y: np.sin(np.hypot(x, y)),
    "dots": lambda x, y: (np.cos(x) + np.cos(y)) / 2,
}


def _draw_pattern(
    wave: Callable[[Plane, Plane], Plane], colours: Floats, size: tuple[int, ...], rng: np.random.Generator
) -> Floats:
    """Draw a wave at a random angle and scale, with sharp or soft edges, in two colours (2, C): (C, height, width)."""
    y, x = (np.mgrid[: size[0], : size[1]] - np.array(size)[:, None, None] / 2) / max(size)
    angle = rng.uniform(0, np.pi)
    a, b = 2 * np.pi * _CYCLES[0] * (_CYCLES[1] / _CYCLES[0]) ** rng.random(2)
    values = wave(a * (x * np.cos(angle) + y * np.sin(angle)), b * (y * np.cos(angle) - x * np.sin(angle)))
    mix = (values + 1) / 2 if rng.random() < 0.5 else values > 0
    first, second = colours[..., None, None]
    pattern: Floats = first + (second - first) * mix
    return pattern


def _smooth_fields(noise: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Filter white noise (n, C, height, width) so that its amplitudes fall with frequency, as in photographs."""
    height, width = noise.shape[-2:]
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    filtered = np.fft.irfft2(np.fft.rfft2(noise) / np.maximum(frequency, 1 / max(height, width)), (height, width))
    centred = filtered - filtered.mean(axis=(2, 3), keepdims=True)
    fields: npt.NDArray[np.float64] = centred / np.maximum(centred.std(axis=(2, 3), keepdims=True), 1e-12)
    return fields


def _shuffle_tiles(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Return an image (C, height, width) with its tiles in random order; pixels outside whole tiles stay in place."""
    channels, height, width = len(image), *(size // _TILES for size in image.shape[1:])
    out, rows, columns = image.copy(), _TILES * height, _TILES * width
    tiles = image[:, :rows, :columns].reshape(channels, _TILES, height, _TILES, width).transpose(1, 3, 0, 2, 4)
    shuffled = tiles.reshape(_TILES**2, channels, height, width)[rng.permutation(_TILES**2)].reshape(tiles.shape)
    out[:, :rows, :columns] = shuffled.transpose(2, 0, 3, 1, 4).reshape(channels, rows, columns)
    return out
