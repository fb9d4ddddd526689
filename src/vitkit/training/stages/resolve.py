"""Choose between a linear probe and fine-tuning, for `--method auto`.

Below `defaults.MIN_FOR_FINE_TUNING` training images per class, the method is a linear probe. If there are few images in
total as well, all of them train the probe. As fitting takes about a second, each image can test a probe that was
trained without it.

With more images per class, the choice depends on the classes: frozen features distinguish two kinds of insects, but not
seventeen kinds of flowers. A linear probe is therefore cross-validated on the training images. If its accuracy is high
enough, it becomes the model, and fine-tuning is omitted. The test images stay the same, and this choice uses none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from vitkit.data.splits import fold, order_in_proportion
from vitkit.data.table import SINGLE_LABEL, ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation.intervals import Units, mean_interval
from vitkit.system.progress import progress
from vitkit.text.cells import interval_text
from vitkit.training.defaults import NOT_SET_ASIDE, without_effect
from vitkit.training.features import FeatureStore
from vitkit.training.probe import DEFAULT_PENALTY, MAX_FOLDS, choose_head, fold_count
from vitkit.training.recipe import Recipe
from vitkit.training.run_folder import Run
from vitkit.training.stages.examine import examine_images
from vitkit.training.stages.open import open_data
from vitkit.training.stages.split import split_images

_ENOUGH_ACCURACY = 0.95  # of a cross-validated probe: above it, fine-tuning gained less than a point (docs/log.md)
_MAX_FOR_PROBE = 1_000  # with more training images, fine-tuning gains even if a probe has _ENOUGH_ACCURACY
_MAX_WITHOUT_TEST_SET = 1_000  # with more images, setting a fifth aside as a test set costs little
_MIN_FOR_CROSS_VALIDATION = 20  # training images


def probe_accuracy(
    store: FeatureStore, table: ImageTable, groups: Sequence[int]
) -> tuple[float, tuple[float, float], int]:
    """Cross-validate a linear probe on the training images of a split table.

    Return the accuracy, its 95 % interval, and the number of images.

    The weights of `store` must not have been trained on the images. Images with the same number in `groups` stay in one
    fold.

    Raises:
        VitkitError: there are too few training images.
    """
    seed = store.recipe.seed
    trained = [i for i, split in enumerate(table.splits) if split == "train"]
    shuffled = [trained[i] for i in np.random.default_rng(seed).permutation(len(trained))]
    order = order_in_proportion(shuffled, table.labels)
    train, group_of = table.take(order), [groups[i] for i in order]
    folds = fold_count(train, group_of)
    if len(train) < _MIN_FOR_CROSS_VALIDATION or folds < 2:
        message = f"{len(train)} training images are too few to cross-validate a linear probe"
        raise VitkitError("training.images-too-few", message)
    x = store.features(train, "trying a head on frozen features")
    y, classes = torch.tensor(train.labels), len(train.classes)
    fold_of = torch.tensor(fold(train, folds, seed, group_of))
    is_correct = torch.zeros(len(train), dtype=torch.bool)
    for k in range(folds):
        # This is nested cross-validation: with at least three folds, the penalty is chosen by the log loss on one of
        # the other folds, not on the tested one. With two folds, it has its default value.
        tested = fold_of == k
        validation = fold_of == (k + 1) % folds
        rest = ~(tested | validation)
        penalty = DEFAULT_PENALTY
        if rest.any():
            penalty = choose_head(x[rest], y[rest], (x[validation], y[validation]), classes).penalty
        head = choose_head(x[~tested], y[~tested], None, classes, penalty)
        predicted = (x @ head.weight.T + head.bias).argmax(dim=1)
        is_correct |= tested & (predicted == y)
        progress("cross-validating", k + 1, folds)
    values = is_correct.numpy().astype(np.float64)
    bounds = mean_interval(values, 1.0, Units.of(len(values), np.array(group_of)))
    return float(values.mean()), bounds, len(values)


def resolve(run: Run) -> None:
    """Choose the method if it is `auto`, by the number of images and by testing a linear probe."""
    request = run.request
    if request.method != "auto" or request.weights == "none":
        return
    if _can_train_on_all(run):
        train, _, test = run.recipe.split
        no_test_set = (
            "every image trains the model: with so few, each also tests a head that is trained without it "
            f"(--split {train:g} 0 {test:g} to set test images aside)"
        )
        reasons = [no_test_set if reason == NOT_SET_ASIDE else reason for reason in run.reasons]
        _complete_again(run, request.replace(method="probe", split=(1.0, 0.0, 0.0)))
        run.reasons = reasons
        return

    # A linear probe may replace the fine-tuning that `auto` has chosen, if the fields that the user has set have an
    # effect on the probe, too.
    if run.recipe.method != "full" or run.recipe.folds is not None:
        return
    (part,) = run.parts
    table = part.images.table
    if table.task is not SINGLE_LABEL or part.overlap.seen() or table.splits.count("train") > _MAX_FOR_PROBE:
        return
    unused = without_effect(run.recipe.replace(method="probe"), request)
    if not unused.keys().isdisjoint(request.named):
        return

    run.features = FeatureStore(run.recipe, run.blueprint.weights, run.photographs)
    try:
        accuracy, interval, images = probe_accuracy(run.features, table, part.images.groups)
    except VitkitError:  # there are too few images for a cross-validation
        return
    bounds = interval_text([100 * end for end in interval], 1)
    figures = f"{100 * accuracy:.1f} % of {images} training images (95 %: {bounds}), cross-validated"
    if accuracy < _ENOUGH_ACCURACY:
        run.reasons.append(f"method full: a head on frozen features is right for only {figures}")
        return
    shares = run.recipe.split
    test_paths = _test_paths(run)
    _complete_again(run, request.replace(method="probe"))
    if _test_paths(run) != test_paths:  # without validation images, large groups may be divided in another way
        _complete_again(run, request.replace(method="probe", split=shares))
    reason = f"a head on frozen features is right for {figures}, so fine-tuning can gain little"
    run.reasons.insert(0, f"method probe: {reason} (--method full does it anyway)")


def _complete_again(run: Run, request: Recipe) -> None:
    """Complete another request for the same images, and split them again."""
    run.resolved_request = request
    open_data(run)
    if run.diagnosis.table.classes != run.source.classes:
        examine_images(run)  # a class has no readable image, so the model is adapted to the other classes again
    split_images(run)


def _can_train_on_all(run: Run) -> bool:
    """Return whether all images can be training images, and each can test a head that is fitted without it."""
    recipe = run.recipe
    if recipe.method != "probe" or recipe.folds is not None:
        return False
    if any(run.source.splits) or recipe.split_from is not None:
        return False  # the images are divided already
    if not run.request.given.keys().isdisjoint(("split", "split_seed")):
        return False  # the user has stated how to divide them
    if recipe.head_from == "names" or recipe.prior != "data":
        return False
    (part,) = run.parts
    table = part.images.table
    if table.task is not SINGLE_LABEL or len(table) > _MAX_WITHOUT_TEST_SET or part.overlap.seen():
        return False
    return fold_count(table, part.images.groups) == MAX_FOLDS  # else no class has a group for each fold


def _test_paths(run: Run) -> frozenset[str]:
    return frozenset(run.parts[0].images.table.of_split("test").paths)
