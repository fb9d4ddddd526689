"""Asking a classifier about labelled images.

Figures with the labels that images had before a model proposed others. Whoever accepts what a model suggests for test
images moves the test towards the model: labels drawn by lot came from 0.19 to 0.76 in three rounds. So an evaluation
is of the labels of before, images that were left out on a model's doubt included, and the figure with the labels as
they are now stands behind it (docs/decisions/0028-label-files.md). The images whose label no model proposed would be
no fair test: they are those that the models had right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.classifier import Classifier
from vitkit.data.labels import EXCLUDED, Proposal
from vitkit.data.table import UNLABELLED, ImageTable
from vitkit.errors import NOT_FINITE, UnansweredError, VitkitError
from vitkit.evaluation.figures import figures, that_count, without
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
    if classifier.task == "single":
        table.task.require_single(
            f"{table.name} has images of several classes or none, and the model says one of each image"
        )
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


@dataclass(frozen=True)
class Judged:
    """An evaluation by labels that no model proposed, and by those that the images have now.

    Attributes:
        before: with the labels before the first proposal; with those of now where no image has such a label.
        now: with the labels as they are now; None: no model proposed any.
        proposals: those that concern the images.
    """

    before: Evaluation
    now: Evaluation | None = None
    proposals: tuple[Proposal, ...] = ()

    def map(self, change: Callable[[Evaluation], Evaluation]) -> Judged:
        """The same with both evaluations changed."""
        return replace(self, before=change(self.before), now=None if self.now is None else change(self.now))


def evaluate_before(
    classifier: Classifier,
    table: ImageTable,
    split: str,
    proposals: Sequence[Proposal],
    progress: Callable[[int, int], None] | None = None,
) -> Judged:
    """Ask the classifier about every image of a split, or of `all`, and about those that were left out on a proposal.

    Args:
        classifier: which is asked.
        table: the images with their labels as they are now.
        split: of them.
        proposals: labels that models proposed, of any images.
        progress: told how many are done, of how many.

    Raises:
        VitkitError: as of `evaluator.evaluate`.
    """
    rows = table if split == "all" else table.of_split(split)
    there, anywhere = set(rows.paths), set(table.paths)
    changed = [own for own in proposals if own.path in there]
    left_out = [own for own in proposals if own.path not in anywhere and split in ("all", own.split)]
    if not len(rows) or not (changed or left_out):
        return Judged(evaluate(classifier, table, split, progress))
    more = replace(
        rows,
        paths=(*rows.paths, *(own.path for own in left_out)),
        labels=(*rows.labels, *(rows.labels[:1] * len(left_out))),  # which are put right below
        splits=(*rows.splits, *(split for _ in left_out)),
    )
    outcome = evaluate(classifier, more, split, progress)
    now = without(outcome, dict.fromkeys((own.path for own in left_out), ""))
    known = {own.path: own.before for own in (*changed, *left_out)}
    unlabelled = {path: "" for path, label in known.items() if label in (EXCLUDED, UNLABELLED)}
    before = without(outcome, unlabelled)
    about = tuple(own for own in (*changed, *left_out) if own.path not in outcome.unreadable)
    if now is None or before is None:
        return Judged(outcome if now is None else now, now, about)
    place = {path: i for i, path in enumerate(now.paths)}
    since = {own.path: now.label_of(place[own.path]) if own.path in place else EXCLUDED for own in about}
    return Judged(replace(_relabelled(before, known), since=since), now, about)


def _relabelled(evaluation: Evaluation, known: Mapping[str, str]) -> Evaluation:
    """The evaluation with other labels of some images; a class that the model does not know is never said."""
    names = {path: evaluation.task.names_in(known[path]) for path in evaluation.paths if path in known}
    evaluation = evaluation.with_classes(
        sorted({name for each in names.values() for name in each} - set(evaluation.classes))
    )
    number = {name: i for i, name in enumerate(evaluation.classes)}
    labels = evaluation.labels.copy()
    for i, path in enumerate(evaluation.paths):
        if path in names:
            labels[i] = evaluation.label_row([number[name] for name in names[path]])
    return replace(evaluation, labels=labels)


# --- Figures -------------------------------------------------------------------------------------------------


def proposal_figures(judged: Judged, seen: Mapping[str, str] | None) -> dict[str, Any]:
    """`proposed`, what models proposed of the images, and `with_proposals`, the main figures with the labels of now.

    Args:
        judged: the evaluation by either labels.
        seen: role by path of the images that the weights had seen, which count in neither; None: it cannot be known.

    Returns:
        Nothing where no label of theirs was proposed.
    """
    if judged.now is None:
        return {}
    there = set(judged.now.paths)
    changed = [own for own in judged.proposals if own.path in there]
    known = [own for own in changed if own.before not in (EXCLUDED, UNLABELLED)]
    counted = that_count(judged.now, seen)
    every = {} if counted is None else figures(counted)
    return {
        "proposed": {
            "changed": len(known),
            "labelled": len(changed) - len(known),
            "left_out": len(judged.proposals) - len(changed),
            "by": sorted({own.by for own in judged.proposals}),
            "paths": [own.path for own in judged.proposals],
            "has_labels_before": judged.before is not judged.now,
        },
        "with_proposals": {name: every[name] for name in (*judged.now.summary(), "intervals_95") if name in every},
    }
