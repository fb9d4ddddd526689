"""Images whose label is likely wrong, for people to look at: as rows of a CSV file and in the report."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from vitkit.data.sources import ImageTable
from vitkit.evaluation.calibration import blocks
from vitkit.evaluation.label_errors import find_suspects
from vitkit.evaluation.metrics import Evaluation, held_out_split
from vitkit.system.files import write_text
from vitkit.text.cells import harmless

_SORTED = 2**20  # probabilities at a time


class Doubt(NamedTuple):
    """An image whose label is doubtful.

    Attributes:
        path: as the table has it.
        label: its class.
        suggested: the class that it looks like.
        score: how much more probable that one is, in (0, 1].
    """

    path: str
    label: str
    suggested: str
    score: float


def from_features(table: ImageTable, features: Tensor, labels: Tensor, seed: int = 0) -> list[Doubt]:
    """By probes that did not see the image, the most doubtful first. The labels of test images teach no probe.

    Args:
        table: n images.
        features: (n, D), of a backbone that was not trained on these labels.
        labels: (n,).
        seed: of the folds.
    """
    held_out = held_out_split(table)
    teaches = np.array([name is None or name != held_out for name in table.splits])
    return [
        Doubt(table.paths[own.index], table.classes[own.given], table.classes[own.suggested], own.doubt)
        for own in find_suspects(features, labels, len(table.classes), seed, teaches)
    ]


def from_predictions(evaluations: Iterable[Evaluation]) -> list[Doubt]:
    """By what a model says of images that it was not trained on, the most doubtful first.

    A mistake is no doubt: of images whose label has a probability of 0.2 each fifth should have it. Doubtful are
    those below the highest probability at which twice as many labels are found as the probabilities let expect.
    """
    doubts = []
    for evaluation in evaluations:
        images, labels, predicted = np.arange(len(evaluation.labels)), evaluation.labels, evaluation.predicted
        own, best = (evaluation.probabilities[images, each].astype(np.float64) for each in (labels, predicted))
        most = _least_expected(evaluation.probabilities, own)
        for i in evaluation.mistakes(len(labels)):
            if own[i] <= most:
                names = evaluation.classes[labels[i]], evaluation.classes[predicted[i]]
                doubts.append(Doubt(evaluation.paths[i], *names, float(best[i] - own[i])))
    return sorted(doubts, key=lambda own: -own.score)


def _least_expected(probabilities: npt.NDArray[np.float32], own: npt.NDArray[np.float64]) -> float:
    """The highest probability of a label up to which at least twice as many have one as is expected; -1 without any."""
    given = np.sort(own)
    expected = np.zeros(len(given))  # the sum of all probabilities up to it
    for rows in blocks(len(probabilities), probabilities.shape[1], _SORTED):
        every = np.sort(probabilities[rows], axis=None)
        mass = np.concatenate([[0.0], np.cumsum(every, dtype=np.float64)])
        expected += mass[np.searchsorted(every, given, side="right")]
    found = np.searchsorted(given, given, side="right")
    supported = given[2 * expected <= found]
    return float(supported.max()) if len(supported) else -1.0


def write_doubts(path: Path, doubts: Sequence[Doubt]) -> None:
    """A CSV file with the columns path, label, suggested, score."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Doubt._fields)
    writer.writerows((*map(harmless, own[:3]), f"{own.score:.6f}") for own in doubts)
    write_text(path, text.getvalue())
