"""Whether rows of predictions that are in a file are a classifier's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.inference.prediction_files import Format
from vitkit.inference.resumable import read_rows
from vitkit.text.cells import JOINT

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.inference.prediction import Prediction

_SAME = 1e-3  # a model's probabilities differ less from one machine or batch to another
_LOOKED_AT = 8  # rows, and classes of each


def is_by(classifier: Classifier, file: Path, form: Format) -> bool:
    """Whether the rows are the classifier's.

    What it says again of the first image that can be read decides, where that agrees to the digits. Else the rows may
    be by another backend or precision, and several may differ by as much as rounding to bfloat16 changes this model.
    """
    rows: list[tuple[str, float]] = []
    exact: list[Prediction] = []
    for _, row in read_rows(file, form):
        if row.name is None or row.confidence is None:
            continue
        prediction = next(classifier.predict(row.path))
        if prediction.confidence is None:
            continue
        if not rows and prediction.label == row.name and abs(prediction.confidence - row.confidence) <= _SAME:
            return True
        rows.append((row.name, row.confidence))
        exact.append(prediction)
        if len(rows) == _LOOKED_AT:
            break
    if not rows:
        return True
    rounded = classifier.use("eager", "bfloat16", images=len(exact)).predict([prediction.path for prediction in exact])
    noise = max(_noise(prediction, other) for prediction, other in zip(exact, rounded, strict=True))
    distances = [_distance(classifier, *row, prediction) for row, prediction in zip(rows, exact, strict=True)]
    return sum(distances) / len(distances) <= 2 * max(noise, _SAME)


def _noise(exact: Prediction, rounded: Prediction) -> float:
    """The largest difference between the logits of the most probable classes."""
    other = dict(rounded.ranking)
    return max(abs(_logit(own) - _logit(other[name])) for name, own in exact.ranking[:_LOOKED_AT])


def _distance(classifier: Classifier, name: str, confidence: float, prediction: Prediction) -> float:
    """Between the logits of a row's confidence and of what the classifier now says of the same classes."""
    probabilities = dict(prediction.ranking)
    if classifier.thresholds is None:
        return abs(_logit(probabilities[name]) - _logit(confidence)) if name in probabilities else math.inf
    assert prediction.confidence is not None
    if name == prediction.label:
        return abs(_logit(prediction.confidence) - _logit(confidence))
    thresholds = dict(zip(classifier.classes, classifier.thresholds, strict=True))
    flipped = set(name.split(JOINT)) ^ set((prediction.label or "").split(JOINT)) - {""}  # may lie at their thresholds
    return max(
        (abs(_logit(probabilities[own]) - _logit(thresholds[own])) if own in thresholds else math.inf)
        for own in flipped - {""}
    )


def _logit(probability: float) -> float:
    """Of a probability that six digits can tell from 0 and 1."""
    probability = min(max(probability, 1e-4), 1 - 1e-4)
    return math.log(probability / (1 - probability))
