"""The last step of a run: confidences, and thresholds, that suit the validation images. It alone changes the model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vitkit.classifier import Classifier
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation.calibration import Calibration, Floats, calibrate, log_odds, to_probabilities
from vitkit.evaluation.evaluator import evaluate
from vitkit.evaluation.metrics import Evaluation
from vitkit.evaluation.multilabel import MultiEvaluation, best_thresholds
from vitkit.evaluation.operating import BALANCE
from vitkit.training.balance import Standing, class_weights, give_heads, shift_answers

Labels = npt.NDArray[np.int64]


def keep_standing(classifier: Classifier, standing: Standing) -> None:
    """Write down what the heads that are saved have been given."""
    classifier.provenance[BALANCE] = standing.to_dict()


def standing_of(classifier: Classifier) -> Standing | None:
    """What a run's model was given; None of a model that no run has made."""
    found = classifier.provenance.get(BALANCE)
    return None if found is None else Standing.from_dict(found)


def settle_confidence(
    folder: Path, classifier: Classifier, table: ImageTable, progress: Callable[[int, int], None]
) -> Evaluation | None:
    """Fit the temperature, how much of a shift of the classes' shares holds, and thresholds, and save them.

    Doing so again changes nothing.

    Args:
        folder: of the model.
        classifier: that lies there; it is changed too.
        table: whose validation images decide.
        progress: told how many of them have been looked at.

    Returns:
        The validation images as they are said now; None without any that can be read, which leaves temperature 1.
    """
    if "val" not in table.splits:
        return settle_by(folder, classifier, None)
    return settle_by(folder, classifier, lambda: evaluate(classifier, table, "val", progress))


def settle_by(folder: Path, classifier: Classifier, ask: Callable[[], Evaluation] | None) -> Evaluation | None:
    """`settle_confidence` by what the classifier, asked so, says of validation images; None: there are none."""
    before = classifier.temperature, classifier.thresholds, standing_of(classifier)
    classifier.temperature = 1.0
    seen: Evaluation | None = None
    if ask is not None:
        with suppress(VitkitError):  # none of them can be read
            seen = _settle(classifier, ask())
    if (classifier.temperature, classifier.thresholds, standing_of(classifier)) != before:
        classifier.save(folder)
    return seen


def _settle(classifier: Classifier, plain: Evaluation) -> Evaluation | None:
    known = np.isfinite(plain.probabilities).all(axis=1)  # logits that overflow tell nothing
    if not known.any():
        return None
    standing = standing_of(classifier)
    logits = log_odds(plain.probabilities, plain.labels)
    now, shift = _shifts(classifier, standing)
    found = calibrate(logits[known] - now, plain.labels[known], shift, _weights(standing, plain.labels[known]))
    _apply(classifier, standing, found)
    probabilities = to_probabilities((logits - now) / found.temperature + found.strength * shift, plain.labels)
    if not isinstance(plain, MultiEvaluation):
        return replace(plain, probabilities=probabilities, temperature=found.temperature)
    classifier.thresholds = best_thresholds(plain.labels[known], probabilities[known])
    return replace(plain, probabilities=probabilities, thresholds=classifier.thresholds)


def _shifts(classifier: Classifier, standing: Standing | None) -> tuple[Floats, Floats]:
    """What the classifier's logits have been given, and the whole of what they may be given once calibrated, (K,)."""
    if standing is None:
        return np.zeros(len(classifier.classes)), np.zeros(len(classifier.classes))
    whole = standing.settled(1.0, 1.0)
    now, shift = (shift_answers(classifier.model, own).double().numpy() for own in (standing, whole))
    return now, shift


def _weights(standing: Standing | None, labels: Labels) -> Floats | None:
    """What each image counts: where the classes are to be alike, as if there were as many images of each."""
    if standing is None or standing.prior == "data" or labels.ndim > 1:
        return None
    weights: Floats = class_weights([max(own, 1) for own in standing.counts]).double().numpy()[labels]
    return weights / weights.mean()


def _apply(classifier: Classifier, standing: Standing | None, found: Calibration) -> None:
    classifier.temperature = found.temperature
    if standing is not None and any(standing.shift):
        after = standing.settled(found.temperature, found.strength)
        pairs = zip(after.in_head, standing.in_head, strict=True)
        give_heads(classifier.model, standing, [new - old for new, old in pairs])
        keep_standing(classifier, after)
