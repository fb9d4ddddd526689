"""Fit the score that recognises unknown images at the end of a training, and measure which images it misses.

An image is unknown if it belongs to none of the classes. A data set contains no unknown images, so two substitutes are
used:

- *Made pictures* are made from the validation images (`make_strangers`): noise, clouds, patterns, shuffled patches.
  There are several sorts of patterns, and the reported interval is for a sort that was not tried.
- *Left-out classes* are classes of the data set that are treated as unknown, one class at a time. The trained weights
  have learned to distinguish these classes, which would make the task too easy. The features are therefore computed
  with the initial weights of the training, and the logits with a head that is fitted without the class. If these
  features are not available, no figure for left-out classes is reported.

An unknown image *passes* if the score accepts it as known. Half of the unknown images are used to choose the method
(`inference.unknown.METHODS`) by the fraction that passes, averaged over made pictures and left-out classes. The default
method combines two scores. Another method is chosen only if it is better by more than two standard errors. The other
half of the unknown images is used to measure the fraction that passes, with a threshold that accepts 95 % of the known
images (fewer if there are few known images).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.classifier import Classifier
from vitkit.errors import VitkitError
from vitkit.inference.pipeline import BATCH, BATCH_ALONE, flow, try_read
from vitkit.inference.unknown import METHODS, MOST, NAMES, Floats, HeldOutImages, Ints, Limit, Method, Seen, Unknown
from vitkit.text.cells import plural

LEFT_OUT = "unseen classes"
_MADE = 100  # made pictures of each kind
_CLASSES = 10  # classes that are left out in turn
_FEWEST = 3  # classes that are left out, for an interval
_PENALTY = 0.01  # penalty of a head that is fitted without a class
_TILES = 4  # rows and columns of tiles in a shuffled picture
_CYCLES = 2, 40  # cycles of a pattern along the longer side, at least and at most

Pixels = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LabelledImages:
    """Images, each of which has one class.

    Attributes:
        read: a function that reads an image by its index, (C, height, width).
        labels: the classes, (n,).
        rows: for each image, the index of its row in the features that were computed with the initial weights, (n,);
            -1 for an image without a row. None if there are no such features.
    """

    read: Callable[[int], Pixels]
    labels: Ints
    rows: Ints | None = None

    def some(self, count: int, seed: int) -> LabelledImages:
        """Return at most `count` of the images, randomly chosen."""
        chosen = np.sort(np.random.default_rng(seed).permutation(len(self.labels))[:count])
        numbers, read = chosen.tolist(), self.read
        rows = None if self.rows is None else self.rows[chosen]
        return LabelledImages(lambda i: read(numbers[i]), self.labels[chosen], rows)


def fit_to_images(
    classifier: Classifier,
    train: LabelledImages,
    held_out: LabelledImages,
    frozen: Floats | None,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Unknown | None:
    """Fit the score that recognises unknown images to the training and validation images of a run.

    Args:
        classifier: the trained and calibrated classifier, which computes features (`Classifier.use`).
        train: the training images without augmentation.
        held_out: the validation images that are independent and that the weights had not seen.
        frozen: the features of m images, computed with initial weights that had not seen the images, (m, D); None if
            there are none.
        seed: the seed for sampling from many images, and for the made pictures.
        progress: called with the number of computed images and their total; None for no reports.

    Returns:
        The fitted score; None if no training image or no held-out image can be read.
    """
    train, held_out = train.some(MOST, seed), held_out.some(MOST, seed)
    n, m = len(train.labels), len(held_out.labels)

    def report(done: int) -> None:
        if progress is not None:
            progress(done, n + m)

    seen, of_train = _see_readable(classifier, train, report)
    known, of_known = _see_readable(classifier, held_out, lambda done: report(n + done))
    if not len(seen) or not len(known):
        return None
    made = _see_made(classifier, held_out.some(_MADE, seed), seed)
    before = None
    if frozen is not None and train.rows is not None and held_out.rows is not None:
        before = tuple(
            _of_frozen(frozen, images.rows[kept], images.labels[kept])  # type: ignore[index]
            for images, kept in ((train, of_train), (held_out, of_known))
        )
    return fit_unknown(seen, known, made, before, seed=seed)  # type: ignore[arg-type]


def fit_out_of_fold(
    classifier: Classifier,
    images: LabelledImages,
    logits: Floats,
    fold: Ints,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Unknown | None:
    """Fit the score that recognises unknown images to the training images of a head on frozen features.

    Each image is compared with the images of the other folds.

    Args:
        classifier: the trained and calibrated classifier, which computes features (`Classifier.use`).
        images: n training images without augmentation.
        logits: the out-of-fold logits of the images, before the temperature, (n, K).
        fold: the fold of each image, (n,).
        seed: the seed for sampling from many images, and for the made pictures.
        progress: called with the number of computed images and their total; None for no reports.

    Returns:
        The fitted score; None if no image can be read.
    """
    made_from = images.some(_MADE, seed)
    images = replace(images, rows=np.arange(len(images.labels))).some(MOST, seed)
    n, chosen = len(images.labels), images.rows
    assert chosen is not None
    train, kept = _see_readable(classifier, images, None if progress is None else lambda done: progress(done, n))
    if not len(train):
        return None
    fold, apart = fold[chosen[kept]], replace(train, logits=logits[chosen[kept]])
    parts = [(train.at(fold != k), apart.at(fold == k)) for k in np.unique(fold).tolist()]
    made = _see_made(classifier, made_from, seed)
    return fit_unknown(train, parts, made, (train, parts), seed=seed)


def _of_frozen(frozen: Floats, rows: Ints, labels: Ints) -> Seen:
    there = rows >= 0
    return Seen(frozen[rows[there]], np.empty((int(there.sum()), 0)), labels[there])


def _see_readable(
    classifier: Classifier, images: LabelledImages, report: Callable[[int], None] | None
) -> tuple[Seen, Ints]:
    """Return the features and logits of the readable images, and the indices of these images.

    `report` is called with the number of finished images.
    """
    rows = list[tuple[int, Pixels]]()
    for done, (i, row) in enumerate(_outcomes(classifier, images), start=1):
        if report is not None:
            report(done)
        if not isinstance(row, str):
            rows.append((i, row))
    kept = np.array([i for i, _ in rows], dtype=np.int64)
    return _seen(classifier, [row for _, row in rows], images.labels[kept]), kept


def _see_made(classifier: Classifier, images: LabelledImages, seed: int) -> dict[str, Seen]:
    """Make pictures from some images (see `make_strangers`), and return their features and logits by kind."""
    outcomes = (try_read(images.read, i) for i in range(len(images.labels)))
    pictures = np.stack([image for image in outcomes if not isinstance(image, str)])
    return {kind: _see(classifier, batch) for kind, batch in make_strangers(pictures, seed).items()}


def _outcomes(classifier: Classifier, images: LabelledImages) -> Iterator[tuple[int, Pixels | str]]:
    see = classifier.seeing()

    def compute(pixels: Pixels) -> Pixels:
        seen = see(pixels)
        return np.concatenate([seen.logits, seen.features], axis=1)

    is_concurrent = classifier.runner is not None and classifier.runner.is_concurrent
    batch = BATCH if is_concurrent else BATCH_ALONE
    return flow(range(len(images.labels)), partial(try_read, images.read), compute, batch, is_concurrent=is_concurrent)


def _seen(classifier: Classifier, rows: list[Pixels], labels: Ints) -> Seen:
    K = len(classifier.classes)
    both = np.stack(rows) if rows else np.empty((0, K), np.float32)
    return Seen(both[:, K:], both[:, :K], labels)


def _see(classifier: Classifier, pictures: Pixels) -> Seen:
    images = LabelledImages(lambda i: pictures[i], np.zeros(len(pictures), np.int64))
    rows = [row for _, row in _outcomes(classifier, images) if not isinstance(row, str)]
    return _seen(classifier, rows, np.empty(0, np.int64))


# --- The choice -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Detection:
    """Whether each unknown image passes as known, for one sort of made pictures or one left-out class.

    Attributes:
        kind: the kind of made pictures, or `LEFT_OUT`.
        choosing: whether each image passes, for the half of the images that are used to choose the method.
        measuring: whether each image passes, for the other half, which is used to measure the fraction that passes.
    """

    kind: str
    choosing: npt.NDArray[np.bool_]
    measuring: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, kind: str, unknown: Unknown, images: Seen, seed: int) -> _Detection:
        passes = unknown.passes(images)
        order = np.random.default_rng(seed).permutation(len(passes))
        half = (len(passes) + 1) // 2
        return cls(kind, passes[order[:half]], passes[order[half:]])


def fit_unknown(
    train: Seen,
    held_out: HeldOutImages,
    made: Mapping[str, Seen],
    before: tuple[Seen, HeldOutImages] | None = None,
    seed: int = 0,
) -> Unknown:
    """Choose the score that accepts the fewest unknown images as known, and measure the fraction that it accepts.

    Args:
        train: the trained model's output for the training images without augmentation.
        held_out: the model's output for labelled images that it was not trained on. For a cross-validated head on
            frozen features, it is a list with a pair for each fold: the images of the other folds, and the images of
            the fold with their out-of-fold logits.
        made: the model's output for pictures that belong to no class, by kind (see `make_strangers`). If a kind has
            several sorts, each has a key of its own, such as `patterns: rings`.
        before: the same as `train` and `held_out`, but with features from the initial weights, for the left-out
            classes; its logits are not used. If it is None, `train` and `held_out` are used, and no figure for left-out
            classes is reported.
        seed: the seed for sampling the training images that are stored, and the unknown images that are used to choose
            the method.

    Raises:
        VitkitError: there are no held-out images.
    """
    if not len(held_out):
        raise VitkitError("no held-out images: they are required to determine how unfamiliar an image is")
    left_out = list(_without_each_class(*(before or (train, held_out)), seed=seed, has_logits=before is None))
    trials: dict[Method, list[_Detection]] = {}
    for method in METHODS:
        unknown = Unknown.fit(method, train, held_out, seed)
        of_made = [
            _Detection.of(name.partition(":")[0], unknown, images, seed) for name, images in made.items() if len(images)
        ]
        of_classes = [
            _Detection.of(LEFT_OUT, Unknown.fit(method, rest, known, seed), stranger, seed)
            for rest, known, stranger in left_out
        ]
        trials[method] = [*of_made, *of_classes]
    passing = {method: _passing(each) for method, each in trials.items()}
    best = _best(trials)
    unknown = Unknown.fit(best, train, held_out, seed)
    if not unknown.accepted:  # with one or two held-out images, the score accepts nothing
        return replace(unknown, passing=passing)
    limits = _limits(trials[best], has_classes=before is not None)
    return replace(unknown, limits=tuple(limits), passing=passing)


def _without_each_class(
    train: Seen, held_out: HeldOutImages, *, seed: int, has_logits: bool
) -> Iterator[tuple[Seen, HeldOutImages, Seen]]:
    """Leave out some classes, one at a time.

    For each left-out class, yield the training images of the other classes, the held-out images of the other classes,
    and images of the left-out class.

    Args:
        train: the output for the training images.
        held_out: the output for the held-out images.
        seed: the seed that determines the classes if there are more than `_CLASSES`.
        has_logits: whether to use the logits of `train` and `held_out`. Otherwise, logits are computed by a head that
            is fitted without the class.
    """
    labels = held_out.labels if isinstance(held_out, Seen) else np.concatenate([fold.labels for _, fold in held_out])
    for k in np.sort(np.random.default_rng(seed).permutation(np.unique(labels))[:_CLASSES]).tolist():
        if not (labels != k).any() or not (train.labels != k).any():
            continue
        if not isinstance(held_out, Seen):
            rest, known, of_class = _folds_without(train, held_out, k)
            if known:  # otherwise a single image is left, which has no other one to be compared with
                yield rest, known, of_class
            continue
        is_known, is_trained = held_out.labels != k, train.labels != k
        if has_logits:
            rest, others = train.without_class(k).at(is_trained), held_out.without_class(k)
        else:
            rest = train.at(is_trained)
            read = _head_of(rest)
            rest, others = (replace(seen, logits=read(seen.features)) for seen in (rest, held_out))
        yield rest, others.at(is_known), others.at(~is_known)


def _folds_without(
    train: Seen, folds: Sequence[tuple[Seen, Seen]], k: int
) -> tuple[Seen, list[tuple[Seen, Seen]], Seen]:
    """Return the training images without class `k`, the folds without class `k`, and the images of class `k`.

    The logits are those of new heads that are fitted without class `k`. The head for a fold is fitted to the other
    folds. The head for the training images and for the images of class `k` is fitted to all folds.
    """
    rest = train.at(train.labels != k)
    read = _head_of(rest)
    known = []
    for others, fold in folds:
        others, fold = others.at(others.labels != k), fold.at(fold.labels != k)
        if len(others) and len(fold):
            known.append((others, replace(fold, logits=_head_of(others)(fold.features))))
    of_class = train.at(train.labels == k)
    return replace(rest, logits=read(rest.features)), known, replace(of_class, logits=read(of_class.features))


def _head_of(train: Seen) -> Callable[[Floats], Floats]:
    """Fit a head to the features, and return a function that computes the logits of the head from features."""
    import torch

    from vitkit.evaluation.linear_models import regress

    present, y = np.unique(train.labels, return_inverse=True)
    x = torch.from_numpy(np.asarray(train.features, np.float32))
    mean, scale = x.mean(dim=0), x.std(dim=0, correction=0).clamp(min=1e-6)
    start = torch.zeros(len(present), x.shape[1]), torch.zeros(len(present))
    weight, bias = regress((x - mean) / scale, torch.from_numpy(y), _PENALTY, *start)

    def read(features: Floats) -> Floats:
        logits = (torch.from_numpy(np.asarray(features, np.float32)) - mean) / scale @ weight.T + bias
        return logits.numpy()

    return read


def _best(trials: Mapping[Method, list[_Detection]]) -> Method:
    """Return the method with the fewest passing images among those that are clearly better than `joint`, else `joint`.

    The passing fractions of a method and of `joint` are compared for each kind of made pictures and each left-out
    class. A method is clearly better if the mean of its differences is below zero by more than two standard errors.
    """
    clear: dict[Method, float] = {}
    for method in trials:
        by_sort = [of - joint for of, joint in zip(*map(_shares, (trials[method], trials["joint"])), strict=True)]
        differences = [values for values in by_sort if len(values)]
        if not differences or min(map(len, differences)) < _FEWEST:
            continue
        mean = float(np.mean([values.mean() for values in differences]))
        error = sum(values.var(ddof=1) / len(values) for values in differences) ** 0.5 / len(differences)
        if mean < -2 * error:
            clear[method] = mean
    return min(clear, key=lambda method: clear[method], default="joint")


def _passing(trials: list[_Detection]) -> float:
    """Return the fraction of unknown images that pass as known, averaged over the kinds of unknown images.

    Only the images for choosing the method count (`_Detection.choosing`).
    """
    means = [float(values.mean()) for values in _shares(trials) if len(values)]
    return float(np.mean(means)) if means else 1.0


def _shares(trials: list[_Detection]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the fractions of unknown images that pass as known, by kind of made picture and by left-out class.

    Only the images for choosing the method count (`_Detection.choosing`).
    """
    made = {trial.kind: list[npt.NDArray[np.bool_]]() for trial in trials if trial.kind != LEFT_OUT}
    classes = list[np.floating[Any]]()
    for trial in trials:
        if trial.kind == LEFT_OUT and len(trial.choosing):
            classes.append(trial.choosing.mean())
        elif len(trial.choosing):
            made[trial.kind].append(trial.choosing)
    means = [np.concatenate(parts).mean() for parts in made.values() if parts]
    return np.array(means, np.float64), np.array(classes, np.float64)


def _limits(trials: list[_Detection], *, has_classes: bool) -> Iterator[Limit]:
    for kind in dict.fromkeys(trial.kind for trial in trials):
        parts = [trial.measuring for trial in trials if trial.kind == kind and len(trial.measuring)]
        images = sum(map(len, parts))
        shares, sizes = (np.array([of(part) for part in parts], np.float64) for of in (np.mean, len))
        if kind == LEFT_OUT:
            if has_classes and len(parts) >= _FEWEST:
                yield Limit(kind, float(shares.mean()), _for_another(shares, sizes), images, classes=len(parts))
        elif len(parts) > 1:
            yield Limit(kind, float(shares.mean()), _for_another(shares, sizes), images, sorts=len(parts))
        elif images:
            passed = int(parts[0].sum())
            yield Limit(kind, passed / images, _clopper_pearson(passed, images), images)


def _for_another(shares: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % prediction interval for the fraction that passes in a class or sort that was not measured.

    arcsin sqrt(fraction) is assumed to be normally distributed over classes or sorts. Its variance is taken to be at
    least the sampling variance, which is 1 / 4n for a fraction of n images.

    Args:
        shares: the fraction that passes, for each class or sort that was measured.
        sizes: the number of images of each class or sort that was measured.
    """
    from scipy.special import stdtrit

    n, angles = len(shares), np.arcsin(np.sqrt(shares))
    spread = max(float(angles.var(ddof=1)), float((1 / (4 * sizes)).mean()))
    reach = float(stdtrit(n - 1, 0.975)) * (spread * (1 + 1 / n)) ** 0.5
    low, high = np.clip([angles.mean() - reach, angles.mean() + reach], 0, np.pi / 2)
    return float(np.sin(low) ** 2), float(np.sin(high) ** 2)


def in_words(unknown: Unknown, kind: str = "validation images") -> str:
    """Describe in a line the fractions of unknown images that pass.

    `kind` is the term, in the plural, for the images that the score was fitted to.
    """
    exact, wide = ([limit for limit in unknown.limits if limit.is_for_another == is_wide] for is_wide in (False, True))
    shares = [f"{limit.kind} {limit.share:.0%}" for limit in exact]
    shares += [
        f"{limit.kind} {limit.share:.0%} (95 %: {limit.bounds[0]:.0%} to {limit.bounds[1]:.0%})" for limit in wide
    ]
    misses = f"; where {unknown.accepted:.0%} of known images pass, so do of {', '.join(shares)}" if shares else ""
    images = unknown.known.shape[1]
    by = f"{NAMES[unknown.method]}, with {plural(images, kind.removesuffix('s'), kind)}"
    return f"unknown images are recognised by {by}{misses}"


def _clopper_pearson(count: int, images: int) -> tuple[float, float]:
    from scipy.special import betaincinv

    low = float(betaincinv(count, images - count + 1, 0.025)) if count else 0.0
    high = float(betaincinv(count + 1, images - count, 0.975)) if count < images else 1.0
    return low, high


# --- Made pictures --------------------------------------------------------------------------------------------


def make_strangers(images: Pixels, seed: int = 0) -> dict[str, Pixels]:
    """Make pictures that belong to no class from preprocessed images of known classes.

    Args:
        images: preprocessed images, (n, C, height, width).
        seed: seed of the pictures.

    Returns:
        Pictures (m, C, height, width) by kind; m is n, except for patterns. `noise` has the mean and spread of the
        images' channels. `clouds` are smooth random fields with the same mean and spread. Their amplitudes fall with
        frequency, as in photographs. `shuffled patches` are images with their 4 x 4 tiles in random order. Patterns are
        in several sorts of n / 4 pictures each. The sorts such as `patterns: rings` are in two colours of an image, and
        the sorts such as `patterns: rings in any colours` in two random colours.
    """
    rng = np.random.default_rng(seed)
    mean, spread = images.mean(axis=(0, 2, 3), keepdims=True), images.std(axis=(0, 2, 3), keepdims=True)
    made = {
        "noise": mean + spread * rng.standard_normal(images.shape).astype(np.float32),
        "clouds": mean + spread * _smooth(rng.standard_normal(images.shape)),
        "shuffled patches": np.stack([_shuffled(image, rng) for image in images]),
    }
    low, high = images.min(axis=(0, 2, 3)), images.max(axis=(0, 2, 3))
    for i, (name, wave) in enumerate(_WAVES.items()):
        if len(part := images[i :: len(_WAVES)]):
            pixels = np.stack([_two_pixels(image, rng) for image in part])
            free = rng.uniform(low, high, pixels.shape)
            for sort, colours in ((name, pixels), (f"{name} in any colours", free)):
                made[f"patterns: {sort}"] = np.stack([_pattern(wave, two, images.shape[2:], rng) for two in colours])
    return {kind: pictures.astype(np.float32) for kind, pictures in made.items()}


Plane = npt.NDArray[np.float64]  # (height, width)
_WAVES: dict[str, Callable[[Plane, Plane], Plane]] = {  # of rotated and scaled coordinates; from -1 to 1
    "stripes": lambda x, _: np.sin(x),
    "checks": lambda x, y: np.sin(x) * np.sin(y),
    "rings": lambda x, y: np.sin(np.hypot(x, y)),
    "dots": lambda x, y: (np.cos(x) + np.cos(y)) / 2,
}


def _two_pixels(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Return two randomly chosen pixels of an image, (2, C)."""
    rows, columns = (rng.integers(size, size=2) for size in image.shape[1:])
    pixels: Pixels = image[:, rows, columns].T
    return pixels


def _pattern(
    wave: Callable[[Plane, Plane], Plane], colours: Floats, size: tuple[int, ...], rng: np.random.Generator
) -> Floats:
    """Draw a wave at a random angle and scale, with sharp or soft edges, in two colours (2, C).

    Return the picture, (C, height, width).
    """
    y, x = (np.mgrid[: size[0], : size[1]] - np.array(size)[:, None, None] / 2) / max(size)
    angle = rng.uniform(0, np.pi)
    a, b = 2 * np.pi * _CYCLES[0] * (_CYCLES[1] / _CYCLES[0]) ** rng.random(2)
    values = wave(a * (x * np.cos(angle) + y * np.sin(angle)), b * (y * np.cos(angle) - x * np.sin(angle)))
    mix = (values + 1) / 2 if rng.random() < 0.5 else values > 0
    first, second = colours[..., None, None]
    pattern: Floats = first + (second - first) * mix
    return pattern


def _smooth(noise: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Filter white noise (n, C, height, width) so that its amplitudes fall with frequency, as in photographs."""
    height, width = noise.shape[-2:]
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    filtered = np.fft.irfft2(np.fft.rfft2(noise) / np.maximum(frequency, 1 / max(height, width)), (height, width))
    centred = filtered - filtered.mean(axis=(2, 3), keepdims=True)
    fields: npt.NDArray[np.float64] = centred / np.maximum(centred.std(axis=(2, 3), keepdims=True), 1e-12)
    return fields


def _shuffled(image: npt.NDArray[np.float32], rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return the image (C, height, width) with its tiles in another order.

    Pixels at the edges that do not fill a whole tile stay in place.
    """
    height, width = (size // _TILES for size in image.shape[1:])
    out, order = image.copy(), rng.permutation(_TILES**2)
    for place, source in enumerate(order.tolist()):
        (i, j), (k, m) = divmod(place, _TILES), divmod(source, _TILES)
        out[:, i * height : (i + 1) * height, j * width : (j + 1) * width] = image[
            :, k * height : (k + 1) * height, m * width : (m + 1) * width
        ]
    return out
