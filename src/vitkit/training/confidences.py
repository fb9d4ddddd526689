"""The model that a run has kept, its confidences settled and told, asked as `vitkit eval RUN` asks it.

Figures of the run and of the command are the same to the last digit: one backend, one precision. The temperature and
the thresholds are fitted on answers of the same kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vitkit.classifier import Classifier
from vitkit.data.table import ImageTable
from vitkit.evaluation.figures import calibration_rise
from vitkit.evaluation.metrics import Evaluation, held_out_split
from vitkit.evaluation.operating import SHARES
from vitkit.system.progress import Progress, Say
from vitkit.training.finalize import settle_confidence, standing_of
from vitkit.training.recipe import Recipe
from vitkit.training.setup import choose_device
from vitkit.weights import load


def settle_and_open(
    folder: Path, recipe: Recipe, table: ImageTable, say: Say, progress: Progress
) -> tuple[Classifier, Evaluation | None]:
    """Settle the confidences of the kept model on the validation images, and say what they came to.

    Args:
        folder: the run, with its model folder, which is changed.
        recipe: of the run; it says where is computed.
        table: its images, split.
        say: takes what is worth a line.
        progress: told what is being done, how many are done, of how many.

    Returns:
        The classifier with what computes its answers, and the validation images as they are said now; None without
        any that can be read.
    """
    classifier = load(folder)
    images = len(table.of_split(held_out_split(table)))  # they decide what computes, as in `vitkit eval`
    asked = classifier.use(images=images, device=choose_device(recipe))
    before = standing_of(asked)
    what = "choosing thresholds" if table.is_multi else "calibrating"
    seen = settle_confidence(folder, asked, table, partial(progress, what))
    if standing_of(asked) != before:  # the head has changed, and what computes has weights of its own
        asked = asked.use(images=images, device=choose_device(recipe))
    (_tell_of_thresholds if table.is_multi else _tell)(asked, seen, say)
    return asked, seen


def _tell(classifier: Classifier, seen: Evaluation | None, say: Say) -> None:
    if seen is None:
        say("no validation images: the confidences are not calibrated (temperature 1)")
    standing = standing_of(classifier)
    if standing is not None and any(standing.shift):
        held = f"{standing.strength:.2f} of the shift between shares holds"
        say(f"confidences are for classes {SHARES[standing.prior]}: {held}")


def _tell_of_thresholds(classifier: Classifier, seen: Evaluation | None, say: Say) -> None:
    assert classifier.thresholds is not None
    if seen is None:
        say("no validation images to choose thresholds by: every class has 0.5")
        return
    say(f"temperature {classifier.temperature:.3f}, fitted on {len(seen.labels)} validation images")
    few = zip(classifier.classes[:10], classifier.thresholds, strict=False)
    named = ", ".join(f"{name} {own:.3f}" for name, own in few)
    say(f"thresholds by F1 on validation images: {named}{', ...' if len(classifier.classes) > 10 else ''}")


def calibrated(numbers: Mapping[str, Any], seen: Evaluation, evaluation: Evaluation) -> str:
    """What the temperature has done to the calibration error, in a line.

    Args:
        numbers: the figures of an evaluation (figures.py).
        seen: the validation images that the temperature was fitted on.
        evaluation: of the images that the figures are of.
    """
    rise, rose = calibration_rise(evaluation, numbers), ""
    if rise is not None:
        found = "no more" if rise.is_chance else "more"
        rose = f"; it rose by {rise.by:.4f}, {found} than chance does with {len(evaluation.labels)} images"
    return (
        f"temperature {numbers['temperature']:.3f}, fitted on {len(seen.labels)} validation images: calibration error "
        f"{numbers['ece_before_temperature']:.4f} -> {numbers['ece']:.4f} on {evaluation.split} images{rose}"
    )
