"""Fit a head to the features of a frozen backbone, which are computed once (`--method probe`).

The head is a regularised multinomial logistic regression on the class token and the mean of the patches. Both together
are more informative than either alone (docs/log.md).

The penalty is chosen on the validation images. Without validation images, it is chosen by a cross-validation of the
training images. The out-of-fold predictions then also calibrate the model. If there are no test images either, the head
is tested by a nested cross-validation: each training image is predicted by a head that was fitted, selected and
calibrated without the image (`nested_cross_validation`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from vitkit.classifier import Classifier
from vitkit.data.earlier_labels import UNCHANGED, ChangesSinceRuns
from vitkit.data.loading import EvaluationImages
from vitkit.data.splits import fold
from vitkit.data.table import SINGLE_LABEL, ImageTable
from vitkit.evaluation.calibration import calibrate
from vitkit.evaluation.figures import BALANCE
from vitkit.evaluation.linear_models import regress, regression_loss
from vitkit.evaluation.metrics import mean_average_precision
from vitkit.inference.pipeline import thread_pool
from vitkit.system.progress import progress
from vitkit.system.run_files import FOLDS
from vitkit.training.features import compute_features
from vitkit.training.finalize import OutOfFold, prior_correction, shift_head_bias
from vitkit.training.run_folder import ZERO_SHOT, Run
from vitkit.training.start import choose_precision

PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)  # from simple to complex models
DEFAULT_PENALTY = PENALTIES[len(PENALTIES) // 2]
ZERO_SHOT_KEPT = "no trained head was better on the validation images, so the model is the zero-shot one"
_STOP_RATIO = 1.1  # the search ends if the validation loss exceeds this multiple of the best one
MAX_FOLDS = 5  # of a cross-validation
_MAX_CROSS_VALIDATED = 5_000  # images that are cross-validated; more hardly change the penalty


@dataclass(frozen=True)
class Fit:
    """A fitted head. Its losses are log losses; figures of the validation images are None if there are none."""

    weight: Tensor  # (K, D), for features that are not standardised
    bias: Tensor  # (K,)
    penalty: float  # one of PENALTIES; infinite for an initial head that was not fitted
    train_loss: float
    val_loss: float | None
    val_accuracy: float | None
    val_map: float | None = None  # the mean average precision of multi-label data

    @property
    def figures(self) -> dict[str, float]:
        """Return the figures that are not None, by their names in metrics.csv."""
        named = {
            "train_loss": self.train_loss,
            "val_loss": self.val_loss,
            "val_acc": self.val_accuracy,
            "val_map": self.val_map,
        }
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class HeadImages:
    """The images for fitting a head. Each item of a data set is an image (C, height, width) and a label."""

    train: Dataset[Any]  # without augmentation
    val: Dataset[Any]


def head_images(run: Run, classifier: Classifier) -> HeadImages:
    """Return the data sets of a run's files for fitting a head."""
    tables = (run.inputs.table.of_split(name) for name in ("train", "val"))
    train, val = (EvaluationImages(table, classifier.preprocess, run.photographs) for table in tables)
    return HeadImages(train, val)


def fit_head(run: Run, classifier: Classifier, images: HeadImages, seen: Collection[str] = ()) -> None:
    """Compute the features, fit the head, save the model folder, and write metrics.csv.

    Without validation images, the out-of-fold predictions of the cross-validation become `run.out_of_fold`. `seen`
    contains the paths of training images that the weights had seen before the run.
    """
    recipe, table = run.recipe, run.inputs.table
    started = time.monotonic()
    precision = choose_precision(recipe.precision, recipe.device)
    run.say(f"frozen backbone: features of the training images in {precision}, once")
    # The final model of a cross-validation was tested by its folds.
    is_tested = not {"val", "test"} & set(table.splits) and not (run.folder / FOLDS).is_file()
    best = _fit_best_head(run, classifier, images, seen, run.inputs.earlier, is_tested=is_tested)
    counts = list(table.of_split("train").counts().values())
    correction = prior_correction(counts, "none", recipe.prior, classifier.model)
    classifier.provenance[BALANCE] = correction.to_dict()
    shift_head_bias(classifier.model, correction, correction.in_head)
    if best.predictions is not None:
        run.out_of_fold = best.predictions
        run.out_of_fold.write(run.folder)
    seconds = time.monotonic() - started

    def record(name: str, epoch: int, fit: Fit) -> None:
        run.metrics.append({"epoch": epoch, "step": 0, **fit.figures, "seconds": round(seconds, 1)})
        classifier.provenance["metrics"] = {"epoch": epoch, **fit.figures}
        figures = "  ".join(f"{figure} {value:.4f}" for figure, value in fit.figures.items())
        run.say(f"{name}: {figures}  {seconds:.0f} s")

    run.metrics.truncate(ZERO_SHOT)  # from an interrupted fit
    is_zero_shot_best = best.fitted is best.initial
    if best.initial is not None:
        record("zero-shot", ZERO_SHOT, best.initial)
    if not is_zero_shot_best:
        record(f"head fitted, penalty {best.fitted.penalty:g}", 0, best.fitted)
    if best.note is not None:
        run.say(best.note)
    classifier.save(run.folder)
    if is_zero_shot_best:
        run.say(ZERO_SHOT_KEPT)


def initialise_head(run: Run, classifier: Classifier, images: HeadImages | None) -> float:
    """Fit the new head to frozen features before the whole model is trained, and return the seconds that this took.

    Training the whole model with an unfitted head would distort the backbone. The method is called LP-FT, linear
    probing followed by fine-tuning (Kumar et al. 2022, arXiv 2202.10054).
    """
    started = time.monotonic()
    best = _fit_best_head(run, classifier, images or head_images(run, classifier))
    accuracy = "" if best.fitted.val_accuracy is None else f": val_acc {best.fitted.val_accuracy:.4f}"
    seconds = time.monotonic() - started
    run.say(f"the head starts from a fit to frozen features{accuracy} ({seconds:.0f} s)")
    return seconds


@dataclass(frozen=True)
class _BestHead:
    fitted: Fit
    initial: Fit | None  # the head made from the class names; None if the fit started from zeros
    note: str | None = None  # a line for the user about the cross-validation, if there was one
    predictions: OutOfFold | None = None  # of the cross-validation, for images that the initial weights had not seen


@dataclass(frozen=True)
class _Examples:
    """n images with the input of the head, (n, D), and their labels, (n,), or class indicators, (n, K)."""

    images: ImageTable
    x: Tensor
    y: Tensor


def _fit_best_head(
    run: Run,
    classifier: Classifier,
    images: HeadImages,
    seen: Collection[str] = (),
    earlier: ChangesSinceRuns = UNCHANGED,
    *,
    is_tested: bool = False,
) -> _BestHead:
    """Fit a head to the features of the training images, and copy it into the model.

    Without validation images, the penalty is chosen by cross-validation, with the labels of earlier runs.
    """
    table = run.inputs.table
    train = _examples(run, classifier, images.train, table.of_split("train"), "training images")
    held_out = None
    if "val" in table.splits:
        val = _examples(run, classifier, images.val, table.of_split("val"), "validation images")
        held_out = val.x, val.y
    head = [classifier.model.get_parameter(f"head.{name}") for name in ("weight", "bias")]
    initial = None
    if run.recipe.head_from == "names":
        weight, bias = (parameter.detach().clone() for parameter in head)
        initial = _evaluate_head(weight, bias, math.inf, (train.x, train.y), held_out)
    best = None
    if held_out is None:
        testable = _with_earlier_labels(train, earlier)
        fold_of = folds_of(testable.images, run.inputs.groups, run.recipe.seed)
        if fold_of is not None:
            best = _cross_validate_and_fit(train, testable, fold_of, seen, initial, is_tested=is_tested)
    if best is None:
        best = _BestHead(choose_head(train.x, train.y, held_out, len(table.classes), initial=initial), initial)
    with torch.no_grad():
        for parameter, value in zip(head, (best.fitted.weight, best.fitted.bias), strict=True):
            parameter.copy_(value)
    return best


def _examples(run: Run, classifier: Classifier, images: Dataset[Any], table: ImageTable, what: str) -> _Examples:
    """Compute the examples of the images in `table`, which `images` contains preprocessed."""
    if run.features is not None:
        x = run.features.head_features(table, classifier.model.config, what)
        y = torch.tensor(table.labels, dtype=torch.long)
    else:
        precision = choose_precision(run.recipe.precision, run.recipe.device)
        x, y = compute_features(classifier.model, images, run.recipe, precision, partial(progress, what))
    return _Examples(table, x, table.task.targets(y, table.set_targets()))


def choose_head(
    x: Tensor,
    y: Tensor,
    held_out: tuple[Tensor, Tensor] | None,
    classes: int,
    penalty: float = DEFAULT_PENALTY,
    initial: Fit | None = None,
) -> Fit:
    """Fit heads with several penalties, and return the head with the lowest log loss on the held-out images.

    Args:
        x: features of training images, (n, D).
        y: the labels of these images, (n,), or class indicators, (n, K).
        held_out: features and labels of validation images; None if there are none.
        classes: the number of classes, K.
        penalty: the only penalty that is fitted if there are no held-out images.
        initial: an initial head, such as one made from the class names; None for zeros. The penalty applies to the
            distance from it. It is returned if no fitted head is better on the held-out images.
    """
    head = _StandardisedHead(x, classes, initial)

    def fit(candidate: float) -> Fit:
        head.fit(y, candidate)
        weight = head.weight / head.scale  # of the head for features that are not standardised
        return _evaluate_head(weight, head.bias - weight @ head.mean, candidate, (x, y), held_out)

    if held_out is None:
        return fit(penalty)
    best = initial
    for candidate in PENALTIES:
        fitted = fit(candidate)
        if best is None:
            best = fitted
            continue
        loss, best_loss = fitted.val_loss, best.val_loss
        assert loss is not None and best_loss is not None
        if loss < best_loss:
            best = fitted
        elif loss > _STOP_RATIO * best_loss:
            break
    assert best is not None
    return best


class _StandardisedHead:
    """A head on standardised features that can be fitted several times. Each fit starts from the previous solution."""

    def __init__(self, x: Tensor, classes: int, initial: Fit | None) -> None:
        self.mean, self.scale = x.mean(dim=0), x.std(dim=0).clamp(min=1e-6)
        self.x = (x - self.mean) / self.scale
        self.weight, self.bias = torch.zeros(classes, x.shape[1]), torch.zeros(classes)
        if initial is not None:
            self.weight, self.bias = initial.weight * self.scale, initial.bias + initial.weight @ self.mean
        self.anchor = self.weight  # the penalty applies to the distance from these weights

    def fit(self, y: Tensor, penalty: float) -> None:
        self.weight, self.bias = regress(self.x, y, penalty, self.weight, self.bias, self.anchor)


def fold_count(table: ImageTable, groups: Sequence[int]) -> int:
    """Return the number of folds: the largest number of groups (one per image) of a class, but at most `MAX_FOLDS`."""
    pairs = {(label, group) for i, group in enumerate(groups) for label in table.classes_of(i)}
    groups_of_class = Counter(label for label, _ in pairs)
    return min(MAX_FOLDS, max(groups_of_class.values(), default=0))


def folds_of(train: ImageTable, groups: Mapping[str, int], seed: int) -> Tensor | None:
    """Assign n training images to stratified folds; return the fold of each image, (n,).

    At most `_MAX_CROSS_VALIDATED` images get a fold, and all others get -1. All images of a group get the same fold;
    `groups` contains the group number of each image that belongs to a group, by path. The result is None if a
    cross-validation is impossible, because no class has images of at least two groups.
    """
    count = len(train)
    rows = np.sort(np.random.default_rng(seed).permutation(count)[:_MAX_CROSS_VALIDATED]).tolist()
    chosen = train.take(rows)
    # An image without a group is a group of its own, with a negative number.
    group_of = [groups.get(path, -1 - i) for i, path in enumerate(chosen.paths)]
    folds = fold_count(chosen, group_of)
    if folds < 2:
        return None
    fold_of = torch.full((count,), -1)
    fold_of[rows] = torch.tensor(fold(chosen, folds, seed, group_of))
    return fold_of


def cross_validate_head(
    x: Tensor, y: Tensor, fold_of: Tensor, classes: int, is_counted: Tensor | None = None, initial: Fit | None = None
) -> tuple[float, Tensor]:
    """Return the penalty with the lowest cross-validated log loss, and the out-of-fold logits for this penalty, (n, K).

    `x`, `y`, `classes` and `initial` are as for `choose_head`; the penalty is infinite if `initial` is the best.
    `fold_of`, (n,), is the fold of each image, or -1 for images that are neither trained on nor predicted. Images with
    `is_counted`, (n,), count in the loss by which the penalty is chosen. If it is None, or if no image that counts has
    a fold, all images with a fold count.
    """
    n, folds, has_fold = len(fold_of), int(fold_of.max()) + 1, fold_of >= 0
    counted = has_fold if is_counted is None else _select_counted(has_fold, is_counted)
    heads = [_StandardisedHead(x[has_fold & (fold_of != k)], classes, initial) for k in range(folds)]
    best_penalty, best_loss, best_logits = math.inf, math.inf, torch.zeros(n, classes)
    if initial is not None:
        best_logits = x @ initial.weight.T + initial.bias
        best_loss = regression_loss(best_logits[counted], y[counted]).item()
    for penalty in PENALTIES:
        logits = torch.zeros(n, classes)
        for k, head in enumerate(heads):
            head.fit(y[has_fold & (fold_of != k)], penalty)
            standardised = (x[fold_of == k] - head.mean) / head.scale
            logits[fold_of == k] = standardised @ head.weight.T + head.bias
        loss = regression_loss(logits[counted], y[counted]).item()
        if loss < best_loss:
            best_penalty, best_loss, best_logits = penalty, loss, logits
        elif loss > _STOP_RATIO * best_loss:
            break
    return best_penalty, best_logits


def _select_counted(has_fold: Tensor, is_counted: Tensor) -> Tensor:
    """Return which images count in a cross-validation, (n,): all with a fold if none of these `is_counted`."""
    counted = has_fold & is_counted
    return counted if counted.any() else has_fold


def nested_cross_validation(
    x: Tensor, y: Tensor, fold_of: Tensor, classes: int
) -> tuple[Tensor, npt.NDArray[np.float64]]:
    """Predict each fold with a head that was selected, fitted and calibrated on the other folds.

    An inner cross-validation of the other folds chooses the penalty and the temperature (Varma & Simon 2006, doi
    10.1186/1471-2105-7-91). Figures that are computed from these predictions are therefore not biased by the selection.

    The arguments are as for `cross_validate_head`, with one label for each image, (n,), and at least three folds.

    Returns:
        The logits of each image, (n, K), and the temperature of the head that predicts each fold, (folds,).
    """
    n, folds = len(fold_of), int(fold_of.max()) + 1

    def predict_fold(k: int) -> tuple[Tensor, float]:
        rest = fold_of != k
        inner_folds = fold_of[rest] - (fold_of[rest] > k).long()  # numbered from 0 without a gap
        penalty, logits = cross_validate_head(x[rest], y[rest], inner_folds, classes)
        head = choose_head(x[rest], y[rest], None, classes, penalty)
        calibration = calibrate(logits.double().numpy(), y[rest].numpy(), np.zeros(classes))
        return x[~rest] @ head.weight.T + head.bias, calibration.temperature

    logits, temperatures = torch.zeros(n, classes), np.ones(folds)
    with thread_pool(is_concurrent=True) as (pool, *_):
        for k, (logits_of_fold, temperatures[k]) in enumerate(pool.map(predict_fold, range(folds))):
            logits[fold_of == k] = logits_of_fold
            progress("testing heads without their images", k + 1, folds)
    return logits, temperatures


def _with_earlier_labels(train: _Examples, earlier: ChangesSinceRuns) -> _Examples:
    """Return the training images that can test a head, with the targets that they had in earlier runs.

    A person may have changed labels to agree with the predictions of a model. With the changed labels, a head would
    therefore be tested on labels that it has influenced. Images that no person had labelled, or whose class no longer
    exists, are left out.
    """
    images, y = train.images, train.y.clone()
    earlier_names = {item.path: images.task.names_in(item.before) for item in earlier.changed}
    if not earlier_names:
        return train
    number_of = {name: i for i, name in enumerate(images.classes)}
    kept = []
    for i, path in enumerate(images.paths):
        names = earlier_names.get(path)
        if names is None:
            kept.append(i)
        elif number_of.keys() >= set(names):
            kept.append(i)
            numbers = [number_of[name] for name in names]
            if y.ndim == 1:
                y[i] = numbers[0]
            else:
                y[i] = 0
                y[i, numbers] = 1
    return _Examples(images.take(kept), train.x[kept], y[kept])


def _cross_validate_and_fit(
    train: _Examples,
    testable: _Examples,
    fold_of: Tensor,
    seen: Collection[str],
    initial: Fit | None,
    *,
    is_tested: bool,
) -> _BestHead:
    """Choose the penalty by cross-validation, and fit a head with this penalty to all images.

    With `is_tested`, a nested cross-validation also tests the head, provided that the task is single-label, there are
    at least three folds and no `initial` head, and every image is in a fold and new to the initial weights.

    `train` are all training images, and `testable` the n images that are cross-validated, with their earlier labels.
    `fold_of`, (n,), is as for `cross_validate_head`. `seen` are the paths that the initial weights had seen.
    """
    images, x, y = testable.images, testable.x, testable.y
    classes, folds, has_fold = len(images.classes), int(fold_of.max()) + 1, fold_of >= 0
    is_new = torch.tensor([path not in seen for path in images.paths])
    penalty, logits = cross_validate_head(x, y, fold_of, classes, is_new, initial)
    if initial is not None and math.isinf(penalty):
        fitted = initial
    else:
        fitted = choose_head(train.x, train.y, None, classes, penalty, initial)
    counted = _select_counted(has_fold, is_new)
    loss = regression_loss(logits[counted], y[counted]).item()
    figures = f"loss {loss:.4f}, accuracy {_accuracy(logits[counted], y[counted]):.4f}"
    note = f"chosen by cross-validation of the training images: {figures}, flattered by the selection"

    is_independent = has_fold & is_new
    kept = torch.nonzero(is_independent)[:, 0].tolist()
    if not kept:
        return _BestHead(fitted, initial, note)
    tested, temperatures = None, None
    allows_nesting = initial is None and images.task is SINGLE_LABEL and folds > 2
    if is_tested and allows_nesting and bool(is_independent.all()):
        logits_of_tests, temperatures = nested_cross_validation(x, y, fold_of, classes)
        tested = logits_of_tests.numpy()
    predictions = OutOfFold(
        classes=images.classes,
        paths=tuple(images.paths[i] for i in kept),
        labels=y[kept].numpy().astype(np.int64),
        logits=logits[kept].numpy(),
        folds=folds,
        fold=fold_of[kept].numpy(),
        tested=tested,
        temperatures=temperatures,
    )
    return _BestHead(fitted, initial, note, predictions)


def _evaluate_head(
    weight: Tensor, bias: Tensor, penalty: float, train: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor] | None
) -> Fit:
    """Return a head with its figures on the features and targets of the training and the held-out images."""
    x, y = train
    train_loss = regression_loss(x @ weight.T + bias, y).item()
    if held_out is None:
        return Fit(weight, bias, penalty, train_loss, None, None)
    x, y = held_out
    logits = x @ weight.T + bias
    val_loss = regression_loss(logits, y).item()
    val_map = mean_average_precision(y.bool().numpy(), logits.numpy()) if y.ndim == 2 else None
    return Fit(weight, bias, penalty, train_loss, val_loss, _accuracy(logits, y), val_map)


def _accuracy(logits: Tensor, y: Tensor) -> float:
    """Return the fraction of images whose class, or whole set of classes, is correct."""
    is_correct = logits.argmax(dim=1) == y if y.ndim == 1 else ((logits > 0) == (y > 0.5)).all(dim=1)
    return float(is_correct.float().mean())
