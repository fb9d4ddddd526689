"""Asking a classifier about labelled images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from vitkit.classifier import Classifier
from vitkit.data.table import ImageTable
from vitkit.errors import NOT_FINITE, UnansweredError, VitkitError
from vitkit.evaluation.metrics import Evaluation
from vitkit.evaluation.multilabel import MultiEvaluation


def evaluate(
    classifier: Classifier, table: ImageTable, split: str, progress: Callable[[int, int], None] | None = None
) -> Evaluation:
    """Ask the classifier about every image of a split, or of `all`. Classes are matched by name.

    Raises:
        VitkitError: there is no such split, or it has no readable image, or images of a class that the classifier does
            not know; or images have several classes each, and the classifier says one.
        UnansweredError: an answer is not finite.
    """
    if table.is_multi and classifier.task == "single":
        raise VitkitError(f"{table.name} has images of several classes or none, and the model says one of each image")
    there = sorted(set(filter(None, table.splits)))
    if split not in ("all", *there):
        raise VitkitError(f"{table.name} has no {split} split: choose {', '.join([*there, 'all'])}")
    rows = table if split == "all" else table.of_split(split)
    number_of = align(rows, classifier)
    probabilities, answered, unreadable = _ask(classifier, rows, progress)
    if not answered:
        first = f" (first: {next(iter(unreadable))}: {next(iter(unreadable.values()))})" if unreadable else ""
        raise VitkitError(f"{table.name} has no readable image in its {split} split below {table.root}{first}")
    paths = tuple(rows.paths[i] for i in answered)
    if classifier.thresholds is None:
        labels = np.array([number_of[rows.labels[i]] for i in answered])  # (n,)
        return Evaluation(split, classifier.classes, paths, labels, probabilities, unreadable, classifier.temperature)
    return MultiEvaluation(
        split=split,
        classes=classifier.classes,
        paths=paths,
        labels=_sets(rows, answered, number_of, len(classifier.classes)),
        probabilities=probabilities,
        unreadable=unreadable,
        thresholds=classifier.thresholds,
    )


def _ask(
    classifier: Classifier, rows: ImageTable, progress: Callable[[int, int], None] | None
) -> tuple[npt.NDArray[np.float32], list[int], dict[str, str]]:
    """Probabilities (n, K) of the rows that can be answered, which these are, and why the others cannot be."""
    answered: list[int] = []
    unreadable: dict[str, str] = {}
    found = np.empty((len(rows), len(classifier.classes)), dtype=np.float32)
    for i, (_, outcome) in enumerate(classifier.stream(rows.file(i) for i in range(len(rows)))):
        if isinstance(outcome, str):
            unreadable[rows.paths[i]] = outcome
        else:
            found[len(answered)] = outcome
            answered.append(i)
        if progress is not None:
            progress(i + 1, len(rows))
    refuse_unanswered(unreadable, len(rows))
    return found[: len(answered)], answered, unreadable


def _sets(rows: ImageTable, chosen: Sequence[int], number_of: Mapping[int, int], classes: int) -> npt.NDArray[np.int64]:
    """(n, K): 1 where an image has a class."""
    labels = np.zeros((len(chosen), classes), dtype=np.int64)
    for place, i in enumerate(chosen):
        labels[place, [number_of[label] for label in rows.classes_of(i)]] = 1
    return labels


def refuse_unanswered(reasons: Mapping[str, str], images: int) -> None:
    """Figures of the images alone that a model can answer would flatter it.

    Args:
        reasons: why each image that was left out has no answer, by its path.
        images: how many were asked.

    Raises:
        UnansweredError: some answers are not finite.
    """
    found = [path for path, reason in reasons.items() if reason == NOT_FINITE]
    if found:
        raise UnansweredError(f"{len(found)} of {images} images (first: {found[0]}): {NOT_FINITE}")


def align(rows: ImageTable, classifier: Classifier) -> dict[int, int]:
    """The classifier's number of each class that the rows have.

    Raises:
        VitkitError: the classifier does not know one of them; all such are named.
    """
    number = {name: i for i, name in enumerate(classifier.classes)}
    present = {name: i for i, (name, count) in enumerate(rows.counts().items()) if count}
    unknown = [name for name in present if name not in number]
    if unknown:
        known = ", ".join(classifier.classes[:10]) + (", ..." if len(classifier.classes) > 10 else "")
        raise VitkitError(f"{rows.name} has classes the model does not know: {', '.join(unknown)} (it knows {known})")
    return {own: number[name] for name, own in present.items()}
