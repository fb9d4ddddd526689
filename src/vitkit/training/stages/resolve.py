"""Choose between a linear probe and fine-tuning, for `--method auto`.

Below `defaults.FEW` training images per class, the method is a linear probe. If there are few images in total as well,
all of them train the probe. As fitting takes about a second, each image can test a probe that was trained without it.

With more images per class, the choice depends on the classes: frozen features distinguish two kinds of insects, but not
seventeen kinds of flowers. A linear probe is therefore cross-validated on the training images. If its accuracy is high
enough, it becomes the model, and fine-tuning is omitted. The test images stay the same, and this choice uses none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitkit.data.splits import fold, in_proportion
from vitkit.data.table import SINGLE_LABEL, ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation.intervals import Units, mean_interval
from vitkit.system.progress import progress
from vitkit.text.cells import interval_text
from vitkit.training.defaults import NOT_SET_ASIDE, without_effect
from vitkit.training.features import FeatureStore
from vitkit.training.probe import MIDDLE, PARTS, choose_head, fold_count
from vitkit.training.recipe import Recipe
from vitkit.training.run_folder import Run
from vitkit.training.stages.examine import examine_images
from vitkit.training.stages.open import open_data
from vitkit.training.stages.split import split_images

_ENOUGH = 0.95  # above this cross-validated accuracy of a probe, fine-tuning gained less than a point (docs/log.md)
_MOST_FOR_PROBE = 1_000  # with more training images, fine-tuning gains even if the probe's accuracy exceeds _ENOUGH
_FEW_ALTOGETHER = 1_000  # with more images, setting a fifth aside as a test set costs little
_FEWEST = 20  # training images for a cross-validation


@dataclass(frozen=True)
class ProbeAccuracy:
    """The cross-validated accuracy of a linear probe on frozen features."""

    value: float
    interval: tuple[float, float]  # 95 %
    images: int  # that were tested


def probe_accuracy(store: FeatureStore, table: ImageTable, groups: Sequence[int]) -> ProbeAccuracy:
    """Return the cross-validated accuracy of a linear probe on the training images of a split table.

    The weights of `store` have not seen the images. Images with the same number in `groups` stay in one fold.

    Raises:
        VitkitError: there are too few training images.
    """
    seed = store.recipe.seed
    trained = [i for i, split in enumerate(table.splits) if split == "train"]
    drawn = [trained[i] for i in np.random.default_rng(seed).permutation(len(trained))]
    order = in_proportion(drawn, table.labels)
    train, group_of = table.take(order), [groups[i] for i in order]
    parts = fold_count(train, group_of)
    if len(train) < _FEWEST or parts < 2:
        raise VitkitError(
            "training.images-too-few", f"{len(train)} training images are too few to cross-validate a linear probe"
        )
    x = store.features(train, "trying a head on frozen features")
    y = torch.tensor(train.labels)
    fold_of = torch.tensor(fold(train, parts, seed, group_of))
    is_right = torch.zeros(len(train), dtype=torch.bool)
    for part in range(parts):
        is_right |= _right_of_part(x, y, fold_of, part, len(train.classes))
        progress("cross-validating", part + 1, parts)
    values = is_right.numpy().astype(np.float64)
    bounds = mean_interval(values, 1.0, Units.of(len(values), np.array(group_of)))
    return ProbeAccuracy(float(values.mean()), bounds, len(values))


def _right_of_part(x: Tensor, y: Tensor, fold_of: Tensor, part: int, classes: int) -> Tensor:
    """Return whether each image is in fold `part` and classified correctly by a probe fitted to the other folds, (n,).

    With at least three folds, the penalty is chosen on one of the other folds, so that no image tests its own penalty.
    """
    tested = fold_of == part
    judging = fold_of == (part + 1) % int(fold_of.max() + 1)
    fitted = ~(tested | judging)
    penalty = MIDDLE
    if fitted.any():
        penalty = choose_head(x[fitted], y[fitted], (x[judging], y[judging]), classes).penalty
    head = choose_head(x[~tested], y[~tested], None, classes, penalty)
    return ((x @ head.weight.T + head.bias).argmax(dim=1) == y) & tested


def resolve(run: Run) -> None:
    """Choose the method if it is `auto`, by the number of images and by testing a linear probe."""
    asked = run.asked
    if asked.method != "auto" or asked.weights == "none":
        return
    if _can_train_on_all(run):
        train, _, test = run.recipe.split
        why = (
            "every image trains the model: with so few, each also tests a head that is trained without it "
            f"(--split {train:g} 0 {test:g} to set test images aside)"
        )
        reasons = [why if reason == NOT_SET_ASIDE else reason for reason in run.reasons]
        _complete_again(run, asked.replace(method="probe", split=(1.0, 0.0, 0.0)))
        run.reasons = reasons
        return
    if not _may_become_probe(run):
        return
    (part,) = run.parts
    run.features = FeatureStore(run.recipe, run.blueprint.weights, run.photographs)
    try:
        reached = probe_accuracy(run.features, part.images.table, part.images.groups)
    except VitkitError:  # there are too few images for a cross-validation
        return
    if reached.value < _ENOUGH:
        run.reasons.append(f"method full: a head on frozen features is right for only {_in_words(reached)}")
        return
    tested, shares = _tested(run), run.recipe.split
    _complete_again(run, asked.replace(method="probe"))
    if _tested(run) != tested:  # without validation images, large groups may be divided in another way
        _complete_again(run, asked.replace(method="probe", split=shares))
    why = f"a head on frozen features is right for {_in_words(reached)}, so fine-tuning can gain little"
    run.reasons.insert(0, f"method probe: {why} (--method full does it anyway)")


def _complete_again(run: Run, tried: Recipe) -> None:
    # Complete another recipe for the same images, and split them again, without examining them again.
    run.tried = tried
    open_data(run)
    if run.diagnosis.table.classes != run.source.classes:
        examine_images(run)
    split_images(run)


def _in_words(reached: ProbeAccuracy) -> str:
    bounds = interval_text([100 * end for end in reached.interval], 1)
    return f"{100 * reached.value:.1f} % of {reached.images} training images (95 %: {bounds}), cross-validated"


def _can_train_on_all(run: Run) -> bool:
    """Return whether all images can be training images, and each can test a head that is fitted without it."""
    recipe = run.recipe
    if recipe.method != "probe" or recipe.folds is not None:
        return False
    if any(run.source.splits) or {"split", "split_seed"} & run.asked.given.keys() or recipe.split_from is not None:
        return False  # the user has divided the images
    if recipe.head_from == "names" or recipe.prior != "data":
        return False
    (part,) = run.parts
    table = part.images.table
    if table.task is not SINGLE_LABEL or len(table) > _FEW_ALTOGETHER or part.overlap.seen():
        return False
    return fold_count(table, part.images.groups) == PARTS  # else no class has a group for each fold


def _may_become_probe(run: Run) -> bool:
    """Return whether a linear probe may replace the fine-tuning that `auto` has chosen."""
    if run.recipe.method != "full" or run.recipe.folds is not None:
        return False
    (part,) = run.parts
    table = part.images.table
    if table.task is not SINGLE_LABEL or part.overlap.seen() or table.splits.count("train") > _MOST_FOR_PROBE:
        return False
    probe = run.recipe.replace(method="probe")  # on which each field that the user has set must have an effect
    return not set(run.asked.named) & without_effect(probe, run.asked).keys()


def _tested(run: Run) -> frozenset[str]:
    return frozenset(run.parts[0].images.table.of_split("test").paths)
