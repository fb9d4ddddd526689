"""`--method probe`: fit a head to the features of a frozen backbone, which each image passes once.

The head is a regularised multinomial logistic regression on the class token and the mean of the patches, which are
more informative together than either of them (docs/log.md). Its penalty is chosen on the validation images.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from vitkit.classifier import Classifier
from vitkit.data.loading import EvaluationImages, TrainingImages, is_worker_lost, worker_lost
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation.linear_models import regress, regression_loss
from vitkit.evaluation.multilabel import mean_average_precision
from vitkit.model.build import Model
from vitkit.system import environment as devices
from vitkit.system.progress import progress
from vitkit.system.run_files import METRICS
from vitkit.training.extensions import ChangePicture
from vitkit.training.finalize import prior_correction, record_correction, shift_head_bias
from vitkit.training.recipe import Recipe
from vitkit.training.run_folder import ZERO_SHOT, Run, append_metrics, truncate_metrics
from vitkit.training.start import augment_of, choose_precision, choose_workers

PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)  # from simple to complex models
MIDDLE = PENALTIES[len(PENALTIES) // 2]
UNBEATEN = "no trained head was better on the validation images, so the model is the zero-shot one"
_WORSE = 1.1  # the search ends at this multiple of the best validation loss


@dataclass(frozen=True)
class Fit:
    """A fitted head.

    Attributes:
        weight, bias: (K, D) and (K,), for unnormalised features.
        penalty: the chosen one of PENALTIES; infinite for a head that was not fitted.
        train_loss, val_loss, val_accuracy: the figures of the head; the last two are None without validation images.
        val_map: mean average precision on the validation images, for multi-label data.
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
        """Return the known figures by their names in metrics.csv."""
        values = (self.train_loss, self.val_loss, self.val_accuracy, self.val_map)
        named = zip(("train_loss", "val_loss", "val_acc", "val_map"), values, strict=True)
        return {name: value for name, value in named if value is not None}


_BEGAN_FROM = (
    *("model", "model_fields", "weights", "image_size", "fit", "crop_pct", "interpolation", "seed"),
    *("dropout", "drop_path"),
)


def frozen(recipe: Recipe) -> Recipe:
    """Return the recipe of a frozen backbone with the initial weights, whose head reads class token and mean.

    `new_classifier` creates the model that computes the features from it.
    """
    return Recipe(**{name: getattr(recipe, name) for name in _BEGAN_FROM}, method="probe")


@dataclass(frozen=True)
class Features:
    """The features of images.

    Attributes:
        paths: the paths of n images, relative to the data folder.
        rows: the features, (n, D).
    """

    paths: tuple[str, ...]
    rows: Tensor


@dataclass(frozen=True)
class HeadImages:
    """The images that a head is fitted to: data sets of pairs of an image (C, height, width) and a label.

    Attributes:
        train: the training images without augmentation.
        augmented: the augmented training images, by (view, index).
        val: the validation images.
    """

    train: Dataset[Any]
    augmented: Dataset[Any]
    val: Dataset[Any]


def head_images(
    recipe: Recipe, table: ImageTable, classifier: Classifier, change: ChangePicture | None = None
) -> HeadImages:
    """Return the images in the files of a table; `change` is the caller's change of training pictures."""
    train, preprocess = table.of_split("train"), classifier.preprocess
    augmented = TrainingImages(train, preprocess, augment_of(recipe, change), recipe.seed)
    return HeadImages(
        EvaluationImages(train, preprocess), augmented, EvaluationImages(table.of_split("val"), preprocess)
    )


def fit_head(run: Run, recipe: Recipe, table: ImageTable, classifier: Classifier, images: HeadImages) -> Features:
    """Compute the features, fit the head, and save the model folder and the one row of metrics.csv.

    Returns:
        The features of training and validation images without augmentation.
    """
    started = time.monotonic()
    precision = choose_precision(recipe.precision, recipe.device)
    run.say(f"frozen backbone: features of {recipe.views + 1} x the training images in {precision}, once")
    begun, fitted, features = _put_best_head(recipe, table, classifier, images)
    standing = prior_correction(list(table.of_split("train").counts().values()), "none", recipe.prior, classifier.model)
    record_correction(classifier, standing)
    shift_head_bias(classifier.model, standing, standing.in_head)
    _keep(run, classifier, begun, fitted, time.monotonic() - started)
    return features


def start_head(run: Run, recipe: Recipe, table: ImageTable, classifier: Classifier, images: HeadImages) -> float:
    """Fit the new head before the rest of the model is trained, since a random head would distort the backbone.

    This is linear probing followed by fine-tuning (Kumar et al. 2022, arXiv 2202.10054).

    Returns:
        The seconds that it took.
    """
    started = time.monotonic()
    _, fitted, _ = _put_best_head(recipe.replace(views=0), table, classifier, images)
    reached = "" if fitted.val_accuracy is None else f": val_acc {fitted.val_accuracy:.4f}"
    seconds = time.monotonic() - started
    run.say(f"the head starts from a fit to frozen features{reached} ({seconds:.0f} s)")
    return seconds


def _put_best_head(
    recipe: Recipe, table: ImageTable, classifier: Classifier, images: HeadImages
) -> tuple[Fit | None, Fit, Features]:
    """Fit a head to the features of the training images and of their views, and put it into the model.

    Returns:
        The head of the class names, if the fit started from these, the fitted head, and the features of training and
        validation images without augmentation.
    """
    precision = choose_precision(recipe.precision, recipe.device)
    train, val = table.of_split("train"), table.of_split("val")

    def features(of: Dataset[Any], what: str) -> tuple[Tensor, Tensor]:
        return compute_features(classifier.model, of, recipe, precision, partial(progress, what))

    views = [features(images.train, "training images")]
    for view in range(recipe.views):
        views_in_order = Subset(images.augmented, [(view, i) for i in range(len(train))])  # type: ignore[misc]  # its own indices
        views.append(features(views_in_order, f"training images, view {view + 1}"))
    held_out = features(images.val, "validation images") if len(val) else None
    plain = views[0][0] if held_out is None else torch.cat([views[0][0], held_out[0]])
    x, y = (torch.cat(parts) for parts in zip(*views, strict=True)) if recipe.views else views[0]
    sets = table.set_targets()
    y = table.task.targets(y, sets)
    held_out = held_out and (held_out[0], table.task.targets(held_out[1], sets))
    head = [classifier.model.get_parameter(f"head.{name}") for name in ("weight", "bias")]
    begun = None
    if recipe.head_from == "names":
        weight, bias = (parameter.detach().clone() for parameter in head)
        begun = _judge(weight, bias, math.inf, (x, y), held_out)
    fitted = choose_head(x, y, held_out, len(table.classes), begun=begun)
    with torch.no_grad():
        for parameter, value in zip(head, (fitted.weight, fitted.bias), strict=True):
            parameter.copy_(value)
    return begun, fitted, Features((*train.paths, *val.paths), plain)


def _keep(run: Run, classifier: Classifier, begun: Fit | None, fitted: Fit, seconds: float) -> None:
    truncate_metrics(run.folder / METRICS, ZERO_SHOT)  # from an interrupted fit
    heads = {"zero-shot": begun, f"head fitted, penalty {fitted.penalty:g}": None if fitted is begun else fitted}
    for what, fit in heads.items():
        if fit is not None:
            epoch = ZERO_SHOT if fit is begun else 0
            row = {"epoch": epoch, "step": 0, **fit.figures, "seconds": round(seconds, 1)}
            append_metrics(run.folder / METRICS, row)
            classifier.provenance["metrics"] = {"epoch": epoch, **fit.figures}
            shown = "  ".join(f"{name} {value:.4f}" for name, value in fit.figures.items())
            run.say(f"{what}: {shown}  {seconds:.0f} s")
    classifier.save(run.folder)
    if fitted is begun:
        run.say(UNBEATEN)


def compute_features(
    model: Model,
    images: Dataset[Any],
    recipe: Recipe,
    precision: str,
    progress: Callable[[int, int], None],
) -> tuple[Tensor, Tensor]:
    """Return the features of each image, (n, D) float32, and its label, (n,)."""
    device = torch.device(devices.choose_device(recipe.device))
    model.eval().to(device)
    count, done = len(images), 0  # type: ignore[arg-type]  # all data sets here have a length
    features, labels = torch.empty(0), torch.empty(count, dtype=torch.long)
    for batch, label in _batches(images, recipe, choose_workers(recipe, model.config.image_size)):
        with torch.inference_mode():
            with torch.autocast(device.type, getattr(torch, precision), enabled=precision != "float32"):
                tokens = model.forward_features(batch.to(device))  # (B, N, D)
            read = model.forward_head(tokens.float(), pre_logits=True)  # (B, D)
        if not done:
            features = torch.empty(count, read.shape[1])  # one tensor, because many small ones would fragment memory
        span = slice(done, done + len(label))
        features[span], labels[span] = read, label
        done += len(label)
        progress(done, count)
    model.cpu()
    return features, labels


def _batches(images: Dataset[Any], recipe: Recipe, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores, as requested
            batches = iter(DataLoader(images, recipe.batch_size, num_workers=workers))
        yield from batches
    except (RuntimeError, ConnectionError, EOFError) as error:
        if not is_worker_lost(error):
            raise
        raise VitkitError(f"{worker_lost(workers)}; use --workers 0") from error


def choose_head(
    x: Tensor,
    y: Tensor,
    held_out: tuple[Tensor, Tensor] | None,
    classes: int,
    penalty: float = MIDDLE,
    begun: Fit | None = None,
) -> Fit:
    """Return the head whose regularisation has the lowest log loss on the held-out images.

    Args:
        x: features of training images, (n, D).
        y: their labels, (n,), or 0 and 1 for each class, (n, K).
        held_out: features and labels of validation images.
        classes: the number of classes, K.
        penalty: the penalty that is used without held-out images.
        begun: a head that was not fitted to these images. The penalty is then on the distance from this head, which is
            itself returned if no other head is better on the held-out images.
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
