"""Evaluate a classifier on labelled images.

An evaluation uses the labels that the images had before a model proposed other labels. It includes images that were
excluded because of a proposal. The figures with the current labels are reported in addition
(docs/decisions/0028-label-files.md).

The reason is that test labels drift towards the model's predictions when people accept the model's proposals. In a
simulation with random labels, accuracy rose from 0.19 to 0.76 within three rounds. Leaving out all images with a
proposal would bias the figures as well, because the model already classifies the remaining images correctly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.classifier import Classifier
from vitkit.data.labels import EXCLUDED
from vitkit.data.table import UNLABELLED, ImageTable, Proposal
from vitkit.errors import NOT_FINITE, UnansweredError, VitkitError
from vitkit.evaluation.figures import figures, unseen_part, without
from vitkit.evaluation.metrics import Evaluation, MultiEvaluation
from vitkit.system.files import empty_array

Outcomes = Mapping[str, npt.NDArray[np.float32] | str]  # by path: a row of `assess`, or why there is none


def evaluate(
    classifier: Classifier,
    table: ImageTable,
    split: str,
    progress: Callable[[int, int], None] | None = None,
    outcomes: Outcomes | None = None,
) -> Evaluation:
    """Run the classifier on every image of a split.

    Classes of the table and of the classifier are matched by name.

    Args:
        classifier: classifier to evaluate.
        table: labelled images.
        split: split of the table, or `all`.
        progress: called with the number of images done and the total; None for no reports.
        outcomes: the result of `Classifier.assess` for each image, or the reason why there is none, by path. With
            outcomes, the classifier is not run.

    Raises:
        VitkitError: the split does not exist or has no readable image; an image has a class that the classifier does
            not know; or the images have several classes each but the classifier predicts only one.
        UnansweredError: a predicted probability is not finite.
    """
    if classifier.task == "single":
        table.task.require_single(
            f"{table.name} has images with several classes or none, but the model predicts exactly one for each image"
        )
    splits = sorted(set(filter(None, table.splits)))
    if split not in ("all", *splits):
        raise VitkitError(f"{table.name} has no {split} split: choose {', '.join([*splits, 'all'])}")
    rows = table if split == "all" else table.of_split(split)
    number_of = align(rows, classifier)
    probabilities, unknown, answered, unreadable = _predict(classifier, rows, progress, outcomes)
    if not answered:
        first = f" (first: {next(iter(unreadable))}: {next(iter(unreadable.values()))})" if unreadable else ""
        raise VitkitError(f"{table.name} has no readable image in its {split} split below {table.place}{first}")
    paths = tuple(rows.paths[i] for i in answered)
    if classifier.thresholds is None:
        labels = np.array([number_of[rows.labels[i]] for i in answered])  # (n,)
        return Evaluation(
            split, classifier.classes, paths, labels, probabilities, unreadable, classifier.temperature, unknown=unknown
        )
    return MultiEvaluation(
        split=split,
        classes=classifier.classes,
        paths=paths,
        labels=_sets(rows, answered, number_of, len(classifier.classes)),
        probabilities=probabilities,
        unreadable=unreadable,
        thresholds=classifier.thresholds,
    )


def _predict(
    classifier: Classifier,
    rows: ImageTable,
    progress: Callable[[int, int], None] | None,
    computed: Outcomes | None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None, list[int], dict[str, str]]:
    """Predict the class probabilities of all readable images.

    Returns:
        - Class probabilities, (n, K).
        - `Evaluation.unknown`, (n,); None if the classifier has no score for unknown images.
        - Indices of the n rows that could be predicted.
        - Reasons why the other rows could not be predicted, by path.
    """
    answered: list[int] = []
    unreadable: dict[str, str] = {}
    K, has_unknown = len(classifier.classes), classifier.unknown is not None
    outcomes = empty_array((len(rows), K + has_unknown))
    assessments: Iterable[tuple[str, npt.NDArray[np.float32] | str]]
    if computed is None:
        assessments = classifier.assessments(rows.file(i) for i in range(len(rows)))
    else:
        assessments = ((path, computed[path]) for path in rows.paths)
    for i, (_, outcome) in enumerate(assessments):
        if isinstance(outcome, str):
            unreadable[rows.paths[i]] = outcome
        else:
            outcomes[len(answered)] = outcome
            answered.append(i)
        if progress is not None:
            progress(i + 1, len(rows))
    unanswered = [path for path, reason in unreadable.items() if reason == NOT_FINITE]
    if unanswered:  # figures of the remaining images alone would flatter the model
        raise UnansweredError(
            f"{NOT_FINITE}. It concerns {len(unanswered)} of {len(rows)} images, first {unanswered[0]}"
        )
    outcomes = outcomes[: len(answered)]
    return outcomes[:, :K], outcomes[:, K] if has_unknown else None, answered, unreadable


def _sets(rows: ImageTable, chosen: Sequence[int], number_of: Mapping[int, int], classes: int) -> npt.NDArray[np.int64]:
    """Return class indicators (n, K) of the chosen rows: 1 where an image has a class, otherwise 0."""
    labels = np.zeros((len(chosen), classes), dtype=np.int64)
    for row, i in enumerate(chosen):
        labels[row, [number_of[label] for label in rows.classes_of(i)]] = 1
    return labels


def align(rows: ImageTable, classifier: Classifier) -> dict[int, int]:
    """Map the class numbers of the table to those of the classifier, by class name.

    Raises:
        VitkitError: the classifier does not know some of the classes; the message names all of them.
    """
    number = {name: i for i, name in enumerate(classifier.classes)}
    present = {name: i for i, (name, count) in enumerate(rows.counts().items()) if count}
    unknown = [name for name in present if name not in number]
    if unknown:
        known = ", ".join(classifier.classes[:10]) + (", ..." if len(classifier.classes) > 10 else "")
        raise VitkitError(f"{rows.name} has classes the model does not know: {', '.join(unknown)} (it knows {known})")
    return {i: number[name] for name, i in present.items()}


@dataclass(frozen=True)
class ProposalEvaluation:
    """An evaluation with the labels before any model's proposal, and one with the current labels.

    Attributes:
        before: evaluation with the labels before the first proposal. If no image has such a label, `before` uses the
            current labels.
        now: evaluation with the current labels; None if no model proposed any label, or if all readable images were
            left out because of proposals.
        proposals: proposals for the evaluated images.
    """

    before: Evaluation
    now: Evaluation | None = None
    proposals: tuple[Proposal, ...] = ()

    def map(self, change: Callable[[Evaluation], Evaluation]) -> ProposalEvaluation:
        """Apply a function to both evaluations."""
        return replace(self, before=change(self.before), now=None if self.now is None else change(self.now))


def evaluate_before(
    classifier: Classifier,
    table: ImageTable,
    split: str,
    proposals: Sequence[Proposal],
    progress: Callable[[int, int], None] | None = None,
    outcomes: Outcomes | None = None,
) -> ProposalEvaluation:
    """Evaluate with the labels before any model's proposal, and with the current labels.

    The evaluation with the earlier labels includes images that were excluded because of a proposal.

    Args:
        classifier: classifier to evaluate.
        table: images with their current labels.
        split: split of the table, or `all`.
        proposals: labels that models proposed; proposals for images of other splits are ignored.
        progress: called with the number of images done and the total.
        outcomes: predictions for the images of `evaluated_images`, if they were computed before.

    Raises:
        VitkitError: see `evaluate`; or no readable image has a label.
    """
    rows = table if split == "all" else table.of_split(split)
    in_split = set(rows.paths)
    changed = [proposal for proposal in proposals if proposal.path in in_split]
    left_out = _left_out(table, split, proposals)
    if not len(rows) or not (changed or left_out):
        return ProposalEvaluation(evaluate(classifier, table, split, progress, outcomes))
    more = evaluated_images(table, split, proposals)
    outcome = evaluate(classifier, more, split, progress, outcomes)
    now = without(outcome, dict.fromkeys((proposal.path for proposal in left_out), ""))
    label_before = {proposal.path: proposal.before for proposal in (*changed, *left_out)}
    unlabelled = {path: "" for path, label in label_before.items() if label in (EXCLUDED, UNLABELLED)}
    before = without(outcome, unlabelled)
    about = tuple(proposal for proposal in (*changed, *left_out) if proposal.path not in outcome.unreadable)
    if before is None:
        if now is None:
            raise VitkitError(
                f"{table.name} has no readable image with a label in its {split} split below {table.place}"
            )
        return ProposalEvaluation(now, now, about)
    index = {} if now is None else {path: i for i, path in enumerate(now.paths)}
    since = {
        proposal.path: now.label_of(index[proposal.path]) if now is not None and proposal.path in index else EXCLUDED
        for proposal in about
    }
    return ProposalEvaluation(replace(_relabelled(before, label_before), since=since), now, about)


def evaluated_images(table: ImageTable, split: str, proposals: Sequence[Proposal]) -> ImageTable:
    """Return the images that `evaluate_before` runs the classifier on. Excluded images get a placeholder label."""
    rows = table if split == "all" else table.of_split(split)
    left_out = _left_out(table, split, proposals) if len(rows) else []
    return replace(
        rows,
        paths=(*rows.paths, *(proposal.path for proposal in left_out)),
        labels=(*rows.labels, *(rows.labels[:1] * len(left_out))),
        splits=(*rows.splits, *(split for _ in left_out)),
    )


def _left_out(table: ImageTable, split: str, proposals: Sequence[Proposal]) -> list[Proposal]:
    anywhere = set(table.paths)
    return [proposal for proposal in proposals if proposal.path not in anywhere and split in ("all", proposal.split)]


def _relabelled(evaluation: Evaluation, label_of: Mapping[str, str]) -> Evaluation:
    """Replace the labels of the images with paths in `label_of`. Classes that the model does not know are added."""
    names = {path: evaluation.task.names_in(label_of[path]) for path in evaluation.paths if path in label_of}
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


def proposal_figures(evaluated: ProposalEvaluation, seen: Mapping[str, str] | None) -> dict[str, Any]:
    """Summarise the proposals of models (`proposed`) and the main figures with the current labels (`with_proposals`).

    Args:
        evaluated: evaluations with both sets of labels.
        seen: the images that the weights had seen, as a mapping from path to role (train or val). They are excluded.
            None if this is unknown.

    Returns:
        The two entries of evaluation.json; an empty dictionary if no model proposed a label for these images.
    """
    if evaluated.now is None and not evaluated.proposals:
        return {}
    in_split = set() if evaluated.now is None else set(evaluated.now.paths)
    changed = [proposal for proposal in evaluated.proposals if proposal.path in in_split]
    known = [proposal for proposal in changed if proposal.before not in (EXCLUDED, UNLABELLED)]
    counted = None if evaluated.now is None else unseen_part(evaluated.now, seen)
    every = {} if counted is None else figures(counted)
    shown = () if counted is None else (*counted.summary(), "intervals_95")
    return {
        "proposed": {
            "changed": len(known),
            "labelled": len(changed) - len(known),
            "left_out": len(evaluated.proposals) - len(changed),
            "by": sorted({proposal.by for proposal in evaluated.proposals}),
            "paths": [proposal.path for proposal in evaluated.proposals],
            "has_labels_before": evaluated.before is not evaluated.now,
        },
        "with_proposals": {name: every[name] for name in shown if name in every},
    }
