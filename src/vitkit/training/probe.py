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
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from vitkit.classifier import Classifier
from vitkit.data.earlier_labels import UNCHANGED, LabelsBefore
from vitkit.data.loading import EvaluationImages
from vitkit.data.splits import fold
from vitkit.data.table import SINGLE_LABEL, ImageTable
from vitkit.evaluation.calibration import calibrate
from vitkit.evaluation.linear_models import regress, regression_loss
from vitkit.evaluation.metrics import mean_average_precision
from vitkit.inference.pipeline import crew
from vitkit.system.progress import progress
from vitkit.system.run_files import FOLDS
from vitkit.training.features import compute_features
from vitkit.training.finalize import OutOfFold, prior_correction, record_correction, shift_head_bias
from vitkit.training.run_folder import ZERO_SHOT, Run
from vitkit.training.start import choose_precision

PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)  # from simple to complex models
MIDDLE = PENALTIES[len(PENALTIES) // 2]
UNBEATEN = "no trained head was better on the validation images, so the model is the zero-shot one"
_WORSE = 1.1  # the search ends at this multiple of the best validation loss
PARTS = 5  # folds of a cross-validation
_MOST = 5_000  # images that are cross-validated; more hardly change the penalty


@dataclass(frozen=True)
class Fit:
    """A fitted head.

    Attributes:
        weight, bias: the parameters of the head, (K, D) and (K,), for features that are not standardised.
        penalty: the penalty, one of PENALTIES; infinite for an initial head that was not fitted.
        train_loss: the log loss on the training images.
        val_loss, val_accuracy: the log loss and the accuracy on the validation images; None if there are none.
        val_map: the mean average precision on the validation images; None unless the data is multi-label.
    """

    weight: Tensor
    bias: Tensor
    penalty: float
    train_loss: float
    val_loss: float | None
    val_accuracy: float | None
    val_map: float | None = None

    @property
    def figures(self) -> dict[str, float]:
        """Return the figures that are not None, by their names in metrics.csv."""
        values = (self.train_loss, self.val_loss, self.val_accuracy, self.val_map)
        named = zip(("train_loss", "val_loss", "val_acc", "val_map"), values, strict=True)
        return {name: value for name, value in named if value is not None}


@dataclass(frozen=True)
class HeadImages:
    """The images for fitting a head. Each item of a data set is an image (C, height, width) and a label.

    Attributes:
        train: the training images without augmentation.
        val: the validation images.
    """

    train: Dataset[Any]
    val: Dataset[Any]


def head_images(run: Run, classifier: Classifier) -> HeadImages:
    """Return the data sets of a run's files for fitting a head."""
    tables = (run.inputs.table.of_split(name) for name in ("train", "val"))
    train, val = (EvaluationImages(table, classifier.preprocess, run.photographs) for table in tables)
    return HeadImages(train, val)


def fit_head(run: Run, classifier: Classifier, images: HeadImages, seen: Collection[str] = ()) -> None:
    """Compute the features, fit the head, save the model folder, and write metrics.csv.

    Without validation images, the out-of-fold predictions of the cross-validation become `run.out_of_fold`.

    Args:
        run: the run.
        classifier: the classifier whose head is fitted.
        images: the images as data sets.
        seen: the paths of training images that the weights had seen before the run.
    """
    recipe, table = run.recipe, run.inputs.table
    started = time.monotonic()
    precision = choose_precision(recipe.precision, recipe.device)
    run.say(f"frozen backbone: features of the training images in {precision}, once")
    # The final model of a cross-validation was tested by its folds.
    is_tested = not {"val", "test"} & set(table.splits) and not (run.folder / FOLDS).is_file()
    best = _put_best_head(run, classifier, images, seen, run.inputs.earlier, is_tested=is_tested)
    standing = prior_correction(list(table.of_split("train").counts().values()), "none", recipe.prior, classifier.model)
    record_correction(classifier, standing)
    shift_head_bias(classifier.model, standing, standing.in_head)
    if best.cross is not None and best.cross.predictions is not None:
        run.out_of_fold = best.cross.predictions
        run.out_of_fold.write(run.folder)
    _keep(run, classifier, best, time.monotonic() - started)


def start_head(run: Run, classifier: Classifier, images: HeadImages | None) -> float:
    """Fit the new head to frozen features before the whole model is trained.

    Training the whole model with an unfitted head would distort the backbone. The method is called LP-FT, linear
    probing followed by fine-tuning (Kumar et al. 2022, arXiv 2202.10054).

    Returns:
        The seconds that the fit took.
    """
    started = time.monotonic()
    best = _put_best_head(run, classifier, images)
    reached = "" if best.fitted.val_accuracy is None else f": val_acc {best.fitted.val_accuracy:.4f}"
    seconds = time.monotonic() - started
    run.say(f"the head starts from a fit to frozen features{reached} ({seconds:.0f} s)")
    return seconds


@dataclass(frozen=True)
class CrossFit:
    """The result of the cross-validation that chose the penalty of a head.

    Attributes:
        loss, accuracy: figures of the out-of-fold predictions with the best penalty. They are optimistic, because the
            same predictions were used to choose the penalty.
        parts: the number of folds.
        predictions: the out-of-fold predictions for the images that the initial weights had not seen; None if these
            weights had seen all images.
    """

    loss: float
    accuracy: float
    parts: int
    predictions: OutOfFold | None

    @property
    def words(self) -> str:
        """Return the figures as a line of text."""
        reached = f"loss {self.loss:.4f}, accuracy {self.accuracy:.4f}"
        return f"chosen by cross-validation of the training images: {reached}, flattered by the selection"


@dataclass(frozen=True)
class _BestHead:
    """The result of fitting a head.

    Attributes:
        begun: the head made from the class names; None if the fit started from zeros.
        fitted: the best head.
        cross: the result of the cross-validation that chose the penalty; None if there was no cross-validation.
    """

    begun: Fit | None
    fitted: Fit
    cross: CrossFit | None = None


def _put_best_head(
    run: Run,
    classifier: Classifier,
    images: HeadImages | None,
    seen: Collection[str] = (),
    earlier: LabelsBefore = UNCHANGED,
    *,
    is_tested: bool = False,
) -> _BestHead:
    """Fit a head to the features of the training images, and copy it into the model.

    The penalty is chosen on the validation images or, if there are none, by cross-validation (`_cross_fit`). The heads
    of the cross-validation are fitted and tested with the labels of earlier runs.

    With `is_tested`, a nested cross-validation also tests the head, if the conditions of `_cross_fit` are met.
    """
    recipe, table = run.recipe, run.inputs.table
    train, val = table.of_split("train"), table.of_split("val")
    (x, y), held_out = _features_of_head(run, classifier, images, train, val)
    sets = table.set_targets()
    y = table.task.targets(y, sets)
    held_out = held_out and (held_out[0], table.task.targets(held_out[1], sets))
    head = [classifier.model.get_parameter(f"head.{name}") for name in ("weight", "bias")]
    begun = None
    if recipe.head_from == "names":
        weight, bias = (parameter.detach().clone() for parameter in head)
        begun = _judge(weight, bias, math.inf, (x, y), held_out)
    tested, tests = _with_earlier_labels(train, x, y, earlier)
    cross, fold_of = None, None if held_out is not None else folds_of(tested, run.inputs.groups, recipe.seed)
    if fold_of is None:
        fitted = choose_head(x, y, held_out, len(table.classes), begun=begun)
    else:
        is_new = torch.tensor([path not in seen for path in tested.paths])
        fitted, cross = _cross_fit((x, y), tests, fold_of, is_new, tested, begun, is_tested=is_tested)
    with torch.no_grad():
        for parameter, value in zip(head, (fitted.weight, fitted.bias), strict=True):
            parameter.copy_(value)
    return _BestHead(begun, fitted, cross)


def _features_of_head(
    run: Run, classifier: Classifier, images: HeadImages | None, train: ImageTable, val: ImageTable
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
    """Return the features that the head reads and the labels of training and of validation images."""
    config, what = classifier.model.config, ("training images", "validation images")
    store = run.features
    if store is not None:
        x, *held_out = [
            (store.head_features(part, config, name), torch.tensor(part.labels, dtype=torch.long))
            for part, name in zip((train, val), what, strict=True)
            if len(part)
        ]
    else:
        recipe, images = run.recipe, images or head_images(run, classifier)
        precision = choose_precision(recipe.precision, recipe.device)
        x, *held_out = [
            compute_features(classifier.model, of, recipe, precision, partial(progress, name))
            for of, name, part in zip((images.train, images.val), what, (train, val), strict=True)
            if len(part)
        ]
    return x, held_out[0] if held_out else None


def _keep(run: Run, classifier: Classifier, best: _BestHead, seconds: float) -> None:
    begun, fitted = best.begun, best.fitted
    run.metrics.truncate(ZERO_SHOT)  # from an interrupted fit
    heads = {"zero-shot": begun, f"head fitted, penalty {fitted.penalty:g}": None if fitted is begun else fitted}
    for what, fit in heads.items():
        if fit is not None:
            epoch = ZERO_SHOT if fit is begun else 0
            row = {"epoch": epoch, "step": 0, **fit.figures, "seconds": round(seconds, 1)}
            run.metrics.append(row)
            classifier.provenance["metrics"] = {"epoch": epoch, **fit.figures}
            shown = "  ".join(f"{name} {value:.4f}" for name, value in fit.figures.items())
            run.say(f"{what}: {shown}  {seconds:.0f} s")
    if best.cross is not None:
        run.say(best.cross.words)
    classifier.save(run.folder)
    if fitted is begun:
        run.say(UNBEATEN)


def choose_head(
    x: Tensor,
    y: Tensor,
    held_out: tuple[Tensor, Tensor] | None,
    classes: int,
    penalty: float = MIDDLE,
    begun: Fit | None = None,
) -> Fit:
    """Fit heads with several penalties, and return the head with the lowest log loss on the held-out images.

    Args:
        x: features of training images, (n, D).
        y: the labels of these images, (n,), or class indicators, (n, K).
        held_out: features and labels of validation images; None if there are none.
        classes: the number of classes, K.
        penalty: the penalty if there are no held-out images. In this case, only one head is fitted.
        begun: an initial head, such as one made from the class names; None for zeros. The penalty applies to the
            distance from the initial head. If no fitted head is better on the held-out images, the initial head is
            returned.
    """
    mean, scale = x.mean(dim=0), x.std(dim=0).clamp(min=1e-6)
    standard = (x - mean) / scale
    best = None if held_out is None else begun
    weight, bias = torch.zeros(classes, x.shape[1]), torch.zeros(classes)
    if begun is not None:
        weight, bias = begun.weight * scale, begun.bias + begun.weight @ mean
    anchor = weight
    for tried in PENALTIES if held_out is not None else (penalty,):
        weight, bias = regress(standard, y, tried, weight, bias, anchor)
        fitted = _judge(weight / scale, bias - (weight / scale) @ mean, tried, (x, y), held_out)
        if best is None or best.val_loss is None or fitted.val_loss is None or fitted.val_loss < best.val_loss:
            best = fitted
        elif fitted.val_loss > _WORSE * best.val_loss:
            break
    assert best is not None
    return best


def folds_of(train: ImageTable, groups: Mapping[str, int], seed: int) -> Tensor | None:
    """Assign the training images to stratified folds.

    Args:
        train: n training images.
        groups: the group number of each image that belongs to a group, by path. All images of a group get the same
            fold.
        seed: the seed of the folds.

    Returns:
        The fold of each image, (n,). At most `_MOST` images get a fold, and all others get -1. The result is None if a
        cross-validation is impossible, because no class has images of at least two groups.
    """
    count = len(train)
    rows = np.sort(np.random.default_rng(seed).permutation(count)[:_MOST]).tolist()
    part = train.take(rows)
    numbers = [groups.get(path, -1 - i) for i, path in enumerate(part.paths)]  # others are groups of their own
    pairs = {(label, numbers[i]) for i in range(len(part)) for label in part.classes_of(i)}
    parts = min(PARTS, max(Counter(label for label, _ in pairs).values(), default=0))
    if parts < 2:
        return None
    fold_of = torch.full((count,), -1)
    fold_of[rows] = torch.tensor(fold(part, parts, seed, numbers))
    return fold_of


def cross_validate_head(
    x: Tensor, y: Tensor, fold_of: Tensor, classes: int, is_judge: Tensor | None = None, begun: Fit | None = None
) -> tuple[float, Tensor]:
    """Return the penalty with the lowest cross-validated log loss, and the out-of-fold logits for this penalty, (n, K).

    Args:
        x: the features of n training images, (n, D).
        y: their labels, (n,), or class indicators, (n, K).
        fold_of: the fold of each image, (n,); -1 for images that are neither trained on nor predicted.
        classes: the number of classes, K.
        is_judge: whether each image counts in the loss by which the penalty is chosen, (n,). If it is None, or if no
            image that counts has a fold, all images with a fold count.
        begun: the initial head (see `choose_head`). The returned penalty is infinite if the initial head is the best.
    """
    n, parts = len(fold_of), int(fold_of.max()) + 1
    judges = fold_of >= 0
    if is_judge is not None and (is_judge & judges).any():
        judges = judges & is_judge
    heads = [_Standardised.of(x[(fold_of >= 0) & (fold_of != k)], classes, begun) for k in range(parts)]
    best, least, logits_of_best = math.inf, math.inf, torch.zeros(n, classes)
    if begun is not None:
        logits_of_best = x @ begun.weight.T + begun.bias
        least = regression_loss(logits_of_best[judges], y[judges]).item()
    for penalty in PENALTIES:
        logits = torch.zeros(n, classes)
        for k, head in enumerate(heads):
            head.fit(y[(fold_of >= 0) & (fold_of != k)], penalty)
            logits[fold_of == k] = head.logits(x[fold_of == k])
        loss = regression_loss(logits[judges], y[judges]).item()
        if loss < least:
            best, least, logits_of_best = penalty, loss, logits
        elif loss > _WORSE * least:
            break
    return best, logits_of_best


def nested_cross_validation(
    x: Tensor, y: Tensor, fold_of: Tensor, classes: int
) -> tuple[Tensor, npt.NDArray[np.float64]]:
    """Predict each fold with a head that was selected, fitted and calibrated on the other folds.

    An inner cross-validation of the other folds chooses the penalty and the temperature (Varma & Simon 2006, doi
    10.1186/1471-2105-7-91). Figures that are computed from these predictions are therefore not biased by the selection.

    Args:
        x: the features of n training images, (n, D).
        y: their labels, (n,).
        fold_of: the fold of each image, (n,); at least three folds.
        classes: the number of classes, K.

    Returns:
        The logits of each image from the head that was fitted without the image's fold, (n, K), and for each fold the
        temperature of the head that predicts it, (folds,).
    """
    n, parts = len(fold_of), int(fold_of.max()) + 1

    def test(k: int) -> tuple[Tensor, float]:
        rest = fold_of != k
        others = fold_of[rest] - (fold_of[rest] > k).long()  # numbered from 0 without a gap
        penalty, logits = cross_validate_head(x[rest], y[rest], others, classes)
        fitted = choose_head(x[rest], y[rest], None, classes, penalty)
        fit = calibrate(logits.double().numpy(), y[rest].numpy(), np.zeros(classes))
        return x[~rest] @ fitted.weight.T + fitted.bias, fit.temperature

    logits, temperatures = torch.zeros(n, classes), np.ones(parts)
    with crew(is_concurrent=True) as (pool, *_):
        for k, (logits_of_fold, temperatures[k]) in enumerate(pool.map(test, range(parts))):
            logits[fold_of == k] = logits_of_fold
            progress("testing heads without their images", k + 1, parts)
    return logits, temperatures


@dataclass
class _Standardised:
    """A head on standardised features that can be fitted several times. Each fit starts from the previous solution."""

    x: Tensor
    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor
    anchor: Tensor

    @classmethod
    def of(cls, x: Tensor, classes: int, begun: Fit | None) -> _Standardised:
        mean, scale = x.mean(dim=0), x.std(dim=0).clamp(min=1e-6)
        weight, bias = torch.zeros(classes, x.shape[1]), torch.zeros(classes)
        if begun is not None:
            weight, bias = begun.weight * scale, begun.bias + begun.weight @ mean
        return cls((x - mean) / scale, mean, scale, weight, bias, weight)

    def fit(self, y: Tensor, penalty: float) -> None:
        self.weight, self.bias = regress(self.x, y, penalty, self.weight, self.bias, self.anchor)

    def logits(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale @ self.weight.T + self.bias


def _with_earlier_labels(
    train: ImageTable, x: Tensor, y: Tensor, earlier: LabelsBefore
) -> tuple[ImageTable, tuple[Tensor, Tensor]]:
    """Return the images that can test a head, their features, and the targets that they had in earlier runs.

    Labels that have changed since contain what a model had learned from the other images. A head that is fitted to them
    would know the images that test it.

    Args:
        train: n training images.
        x: features, as for `cross_validate_head`.
        y: labels or class indicators, as for `cross_validate_head`.
        earlier: the earlier labels. Images that no person has labelled, or whose class no longer exists, are left out.
    """
    before = {item.path: train.task.names_in(item.before) for item in earlier.changed}
    if not before:
        return train, (x, y)
    number = {name: i for i, name in enumerate(train.classes)}
    kept = [i for i, path in enumerate(train.paths) if set(before.get(path, ())) <= number.keys()]
    y = y.clone()
    for i in kept:
        if (names := before.get(train.paths[i])) is None:
            continue
        numbers = [number[name] for name in names]
        if y.ndim == 1:
            y[i] = numbers[0]
        else:
            y[i] = 0
            y[i, numbers] = 1
    return train.take(kept), (x[kept], y[kept])


def _cross_fit(
    whole: tuple[Tensor, Tensor],
    tests: tuple[Tensor, Tensor],
    fold_of: Tensor,
    is_new: Tensor,
    images: ImageTable,
    begun: Fit | None,
    *,
    is_tested: bool,
) -> tuple[Fit, CrossFit]:
    """Choose the penalty by cross-validation, and fit a head with this penalty to all images.

    With `is_tested`, a nested cross-validation also tests the head. This requires a single-label task, at least three
    folds, and no initial head `begun`. Also, every image must be in a fold, and the initial weights must not have seen
    any image. Otherwise, the test is omitted.

    Args:
        whole: the features and the labels or class indicators of all training images, as for `cross_validate_head`.
        tests: the same of those n training images that are cross-validated, with their earlier labels.
        fold_of: the fold of each of these images, (n,), or -1.
        is_new: whether the initial weights had not seen each of these images, (n,).
        images: these n images.
        begun: the initial head; None for zeros.
        is_tested: whether the head is tested.
    """
    classes, (x, y) = len(images.classes), tests
    penalty, logits = cross_validate_head(x, y, fold_of, classes, is_new, begun)
    is_begun = begun is not None and math.isinf(penalty)
    fitted = begun if begun is not None and is_begun else choose_head(*whole, None, classes, penalty, begun)
    is_kept = (fold_of >= 0) & is_new
    judged = is_kept if bool(is_kept.any()) else fold_of >= 0
    rows, true = logits[judged], y[judged]
    hits = rows.argmax(dim=1) == true if true.ndim == 1 else ((rows > 0) == (true > 0.5)).all(dim=1)
    kept = torch.nonzero(is_kept)[:, 0].tolist()
    parts = int(fold_of.max()) + 1
    tested, temperatures = None, None
    if is_tested and begun is None and images.task is SINGLE_LABEL and parts > 2 and bool(is_kept.all()):
        logits_of_tests, temperatures = nested_cross_validation(x, y, fold_of, classes)
        tested = logits_of_tests.numpy()
    predictions = OutOfFold(
        classes=images.classes,
        paths=tuple(images.paths[i] for i in kept),
        labels=y[kept].numpy().astype(np.int64),
        logits=logits[kept].numpy(),
        folds=parts,
        fold=fold_of[kept].numpy(),
        tested=tested,
        temperatures=temperatures,
    )
    loss = regression_loss(rows, true).item()
    return fitted, CrossFit(loss, hits.float().mean().item(), parts, predictions if kept else None)


def _judge(
    weight: Tensor, bias: Tensor, penalty: float, train: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor] | None
) -> Fit:
    losses = [regression_loss(x @ weight.T + bias, y).item() for x, y in (train, *([held_out] if held_out else []))]
    accuracy = precision = None
    if held_out is not None:
        logits, true = held_out[0] @ weight.T + bias, held_out[1]
        hits = logits.argmax(dim=1) == true if true.ndim == 1 else ((logits > 0) == (true > 0.5)).all(dim=1)
        accuracy = hits.float().mean().item()
        if true.ndim == 2:
            precision = mean_average_precision(true.bool().numpy(), logits.numpy())
    return Fit(weight, bias, penalty, losses[0], losses[1] if held_out else None, accuracy, precision)
