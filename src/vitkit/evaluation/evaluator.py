"""Evaluate a classifier on labelled images.

An evaluation uses the labels that the images had in the runs that the split or the weights come from, because whoever
has seen a model's predictions may have changed labels since (docs/decisions/0028-label-files.md). In a simulation with
random labels, accepting a model's suggestions raised the accuracy with the current labels from 0.19 to 0.76 within
three rounds. The figures with the current labels are reported in addition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.classifier import Classifier
from vitkit.data.earlier_labels import ChangesSinceRuns
from vitkit.data.table import ImageTable
from vitkit.errors import NOT_FINITE, UnansweredError, VitkitError
from vitkit.evaluation.figures import figures, unseen_part
from vitkit.evaluation.intervals import Units, mean_interval
from vitkit.evaluation.metrics import Evaluation, MultiEvaluation
from vitkit.system.files import empty_array

Outcomes = Mapping[str, npt.NDArray[np.float32] | str]  # by path: a row of `Classifier.assessing`, or why there is none


def evaluate(
    classifier: Classifier,
    table: ImageTable,
    split: str,
    progress: Callable[[int, int], None] | None = None,
    outcomes: Outcomes | None = None,
) -> Evaluation:
    """Run the classifier on every image of a split of the table, or of `all`. Classes are matched by name.

    `progress` is called with the number of images done and the total. If `outcomes` has, by path, the result of
    `Classifier.assessing` for each image or the reason why there is none, the classifier is not run.

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
        raise VitkitError(
            "evaluation.split-missing", f"{table.name} has no {split} split: choose {', '.join([*splits, 'all'])}"
        )
    rows = table if split == "all" else table.of_split(split)
    number_of = map_classes(rows, classifier)
    K, has_unknown = len(classifier.classes), classifier.unknown is not None
    assessed = empty_array((len(rows), K + has_unknown))  # probabilities, and perhaps `Evaluation.p_known`
    predicted: list[int] = []  # indices of the n rows that could be predicted
    unreadable: dict[str, str] = {}
    assessments: Iterable[tuple[str, npt.NDArray[np.float32] | str]]
    if outcomes is None:
        assessments = classifier.assessments(rows.file(i) for i in range(len(rows)))
    else:
        assessments = ((path, outcomes[path]) for path in rows.paths)
    for i, (_, outcome) in enumerate(assessments):
        if isinstance(outcome, str):
            unreadable[rows.paths[i]] = outcome
        else:
            assessed[len(predicted)] = outcome
            predicted.append(i)
        if progress is not None:
            progress(i + 1, len(rows))
    not_finite = [path for path, reason in unreadable.items() if reason == NOT_FINITE]
    if not_finite:  # figures of the remaining images alone would be too good
        message = f"{NOT_FINITE}. It concerns {len(not_finite)} of {len(rows)} images, first {not_finite[0]}"
        raise UnansweredError("evaluation.output-not-finite", message)
    if not predicted:
        first = f" (first: {next(iter(unreadable))}: {next(iter(unreadable.values()))})" if unreadable else ""
        message = f"{table.name} has no readable image in its {split} split below {table.place}{first}"
        raise VitkitError("evaluation.images-unreadable", message)
    assessed = assessed[: len(predicted)]
    paths, probabilities = tuple(rows.paths[i] for i in predicted), assessed[:, :K]  # (n,), (n, K)
    if classifier.thresholds is None:
        labels = np.array([number_of[rows.labels[i]] for i in predicted])  # (n,)
        p_known = assessed[:, K] if has_unknown else None
        temperature = classifier.temperature
        return Evaluation(
            split, classifier.classes, paths, labels, probabilities, unreadable, temperature, p_known=p_known
        )
    indicators = np.zeros((len(predicted), K), dtype=np.int64)
    for row, i in enumerate(predicted):
        indicators[row, [number_of[label] for label in rows.classes_of(i)]] = 1
    thresholds = classifier.thresholds
    return MultiEvaluation(
        split, classifier.classes, paths, indicators, probabilities, unreadable, thresholds=thresholds
    )


def map_classes(rows: ImageTable, classifier: Classifier) -> dict[int, int]:
    """Map the class numbers of the table to those of the classifier, by class name.

    It is an error if an image has a class that the classifier does not know. Classes without images do not matter.
    """
    number_of = {name: i for i, name in enumerate(classifier.classes)}
    present = {name: i for i, (name, count) in enumerate(rows.counts().items()) if count}
    unknown = [name for name in present if name not in number_of]
    if unknown:
        known = ", ".join(classifier.classes[:10]) + (", ..." if len(classifier.classes) > 10 else "")
        raise VitkitError(
            "evaluation.class-unknown",
            f"{rows.name} has classes the model does not know: {', '.join(unknown)} (it knows {known})",
        )
    return {i: number_of[name] for name, i in present.items()}


def evaluate_with_earlier_labels(
    classifier: Classifier,
    table: ImageTable,
    split: str,
    earlier: ChangesSinceRuns,
    progress: Callable[[int, int], None] | None = None,
    outcomes: Outcomes | None = None,
) -> Evaluation:
    """Evaluate with the labels that the images had in earlier runs.

    Labels that have changed since then are in `Evaluation.current_labels`. Images that no person has labelled are left
    out, and it is an error if there are no others. The other arguments are as for `evaluate`.
    """
    now = evaluate(classifier, tested_images(table, split, earlier), split, progress, outcomes)
    index_of = {path: i for i, path in enumerate(now.paths)}
    before = {item.path: item.before for item in earlier.changed if item.path in index_of}
    current_labels = {path: now.label_of(index_of[path]) for path in before}
    return replace(with_labels(now, before), current_labels=current_labels)


def tested_images(table: ImageTable, split: str, earlier: ChangesSinceRuns) -> ImageTable:
    """Return the images of a split (or `all`) whose labels were given by a person, not by a model alone."""
    rows = table if split == "all" else table.of_split(split)
    untested = earlier.untested
    kept = [i for i, path in enumerate(rows.paths) if path not in untested]
    if len(rows) and not kept:
        raise VitkitError(
            "evaluation.labels-proposed",
            f"every label of the {split} images of {table.name} was proposed by a model, so they can test none: label "
            "some of them yourself",
        )
    return rows if len(kept) == len(rows) else rows.take(kept)


def with_labels(evaluation: Evaluation, label_of: Mapping[str, str]) -> Evaluation:
    """Return a copy in which images have the labels in `label_of`, by path. Classes unknown to the model are added."""
    names_of = {path: evaluation.task.names_in(label_of[path]) for path in evaluation.paths if path in label_of}
    if not names_of:
        return evaluation
    names = {name for image_names in names_of.values() for name in image_names}
    evaluation = evaluation.with_classes(sorted(names - set(evaluation.classes)))
    number_of = {name: i for i, name in enumerate(evaluation.classes)}
    labels = evaluation.labels.copy()
    for i, path in enumerate(evaluation.paths):
        if path in names_of:
            labels[i] = evaluation.label_row([number_of[name] for name in names_of[path]])
    return replace(evaluation, labels=labels)


def earlier_figures(
    evaluation: Evaluation, earlier: ChangesSinceRuns, seen: Mapping[str, str] | None
) -> dict[str, Any]:
    """Summarise the labels that have changed since earlier runs, and the test images that are missing.

    The result has entries of evaluation.json: `relabelled` and the main figures `with_labels_now` if labels have
    changed, and `missing_tests` if test images are missing. Images that the weights had `seen` are excluded.
    """
    entries: dict[str, Any] = {}
    counted = unseen_part(evaluation, seen)
    if changed := [item for item in earlier.changed if item.path in evaluation.current_labels]:
        runs = sorted({item.by for item in changed})
        entries["relabelled"] = {"runs": runs, "paths": [item.path for item in changed]}
        entries["with_labels_now"] = {}
        if counted is not None:
            now = with_labels(counted, counted.current_labels)
            numbers, shown = figures(now), (*now.summary(), "intervals_95")
            entries["with_labels_now"] = {name: numbers[name] for name in shown if name in numbers}
    if earlier.missing and counted is not None:
        missing = np.array([item.label == item.predicted for item in earlier.missing])  # whether each was correct
        values = np.concatenate([counted.is_correct, missing]).astype(np.float64)
        groups = None
        if counted.groups:  # a missing image is a group of its own, with a negative number
            groups = np.concatenate([np.array(counted.groups), np.arange(len(missing)) - len(missing)])
        ends = mean_interval(values, 1.0, Units.of(len(values), groups))
        alone = mean_interval(counted.is_correct.astype(np.float64), 1.0, Units.of_evaluation(counted))
        entries["missing_tests"] = {
            "images": len(missing),
            "right": int(missing.sum()),
            "runs": sorted({item.run for item in earlier.missing}),
            "accuracy": float(values.mean()),
            # This model may do better on the missing images than the earlier one did, but hardly better than on the
            # other images, so the interval covers theirs, too.
            "interval_95": [min(ends[0], alone[0]), max(ends[1], alone[1])],
        }
    return entries
