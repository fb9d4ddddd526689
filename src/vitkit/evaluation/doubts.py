"""Images whose label is likely wrong, for people to look at: as rows of a CSV file and in the report."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitkit.data.table import ImageTable
from vitkit.evaluation.label_errors import Suspect, find_suspects, probe_out_of_fold
from vitkit.evaluation.metrics import Evaluation, held_out_split
from vitkit.system.files import write_text
from vitkit.text.cells import JOINT, harmless
from vitkit.text.words import by_chance, plural


class Doubt(NamedTuple):
    """An image whose label is doubtful.

    Attributes:
        path: as the table has it.
        label: its class; several are joined by `;`.
        suggested: the class that it looks like, or the classes.
        score: how much more probable what is suggested is than what is given, in (0, 1].
        chance: how probable it is that the label is right all the same. Over a list they add up to the number of
            labels that are expected to be right.
    """

    path: str
    label: str
    suggested: str
    score: float
    chance: float


def from_features(table: ImageTable, features: Tensor, labels: Tensor, seed: int = 0) -> list[Doubt]:
    """By linear probes that did not see the image, the most doubtful first; none where chance explains all.

    The labels of test images teach no probe: what is suggested for others would carry them into the training.

    Args:
        table: n images.
        features: (n, D), of a backbone that was not trained on these labels.
        labels: (n,), or 1 where an image has a class, (n, K).
        seed: of the folds.
    """
    held_out = held_out_split(table)
    teaches = np.array([name is None or name != held_out for name in table.splits])
    probabilities = probe_out_of_fold(features, labels, len(table.classes), seed, teaches)
    if probabilities is None:
        return []
    return _named(find_suspects(probabilities, labels.numpy(), teaches), table.paths, table.classes)


def from_predictions(evaluations: Iterable[Evaluation]) -> list[Doubt]:
    """By what a model says of images that it was not trained on, the most doubtful first."""
    every = list(evaluations)
    if not every:
        return []
    probabilities, labels = every[0].probabilities, every[0].labels
    if len(every) > 1:
        probabilities = np.concatenate([own.probabilities for own in every])
        labels = np.concatenate([own.labels for own in every])
    paths = [path for own in every for path in own.paths]
    return _named(find_suspects(probabilities, labels), paths, every[0].classes)


def _named(suspects: Iterable[Suspect], paths: Sequence[str], classes: Sequence[str]) -> list[Doubt]:
    doubts = []
    for own in suspects:
        given, suggested = (JOINT.join(classes[i] for i in each) or JOINT for each in (own.given, own.suggested))
        doubts.append(Doubt(paths[own.index], given, suggested, own.doubt, own.chance))
    return doubts


def summary(doubts: Sequence[Doubt]) -> dict[str, float]:
    """How many labels are listed, and how many of them are expected to be right: as evaluation.json has it."""
    return {"listed": len(doubts), "expected_by_chance": sum(own.chance for own in doubts)}


def in_words(doubts: Sequence[Doubt]) -> str:
    """The same as a clause, without an end."""
    if not doubts:
        return "no more labels look wrong than chance explains"
    looks = plural(len(doubts), "label looks wrong", "labels look wrong")
    return f"{looks}; {by_chance(len(doubts), sum(own.chance for own in doubts))}"


def write_doubts(path: Path, doubts: Sequence[Doubt]) -> None:
    """A CSV file with the columns path, label, suggested, score, chance."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Doubt._fields)
    writer.writerows((*map(harmless, own[:3]), f"{own.score:.6f}", f"{own.chance:.6f}") for own in doubts)
    write_text(path, text.getvalue())
