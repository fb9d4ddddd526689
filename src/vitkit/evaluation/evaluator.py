"""Evaluate a classifier on labelled images.

An evaluation uses the labels that the images had in the runs that the split or the weights come from, because whoever
has seen a model's predictions may have changed labels since (docs/decisions/0028-label-files.md). In a simulation with
random labels, accepting a model's suggestions raised the accuracy with the current labels from 0.19 to 0.76 within
three rounds. The figures with the current labels are reported in addition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.classifier import Classifier
from vitkit.data.earlier_labels import ChangesSinceRuns
from vitkit.data.table import ImageTable
from vitkit.errors import NOT_FINITE, UnansweredError, VitkitError
from vitkit.evaluation.figures import main_figures, unseen_part
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
    splits = sorted({name for name in table.splits if name})
    if split not in ("all", *splits):
        raise VitkitError(
            "evaluation.split-missing", f"{table.name} has no {split} split: choose {', '.join([*splits, 'all'])}"
        )
    rows = table if split == "all" else table.of_split(split)
    number_of = map_classes(rows, classifier)
    K = len(classifier.classes)
    has_unknown = classifier.unknown is not None
    assessed = empty_array((len(rows), K + has_unknown))  # probabilities, and perhaps `Evaluation.p_known`
    predicted: list[int] = []  # indices of the n rows that could be predicted
    unreadable: dict[str, str] = {}
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
        message = f"{table.name} has no readable image in its {split} split below {table.place}"
        if unreadable:
            path, reason = next(iter(unreadable.items()))
            message += f" (first: {path}: {reason})"
        raise VitkitError("evaluation.images-unreadable", message)

    assessed = assessed[: len(predicted)]
    paths = tuple(rows.paths[i] for i in predicted)
    probabilities = assessed[:, :K]
    if classifier.thresholds is None:
        return Evaluation(
            split=split,
            classes=classifier.classes,
            paths=paths,
            labels=np.array([number_of[rows.labels[i]] for i in predicted]),
            probabilities=probabilities,
            unreadable=unreadable,
            temperature=classifier.temperature,
            p_known=assessed[:, K] if has_unknown else None,
        )
    indicators = np.zeros((len(predicted), K), dtype=np.int64)
    for row, i in enumerate(predicted):
        indicators[row, [number_of[label] for label in rows.classes_of(i)]] = 1
    return MultiEvaluation(
        split=split,
        classes=classifier.classes,
        paths=paths,
        labels=indicators,
        probabilities=probabilities,
        unreadable=unreadable,
        thresholds=classifier.thresholds,
    )


def map_classes(rows: ImageTable, classifier: Classifier) -> dict[int, int]:
    """Map the class numbers of the table to those of the classifier, by class name.

    It is an error if an image has a class that the classifier does not know. Classes without images do not matter.
    """
    number_of = {name: i for i, name in enumerate(classifier.classes)}
    numbers = dict[int, int]()
    unknown = []
    for i, (name, count) in enumerate(rows.counts().items()):
        if not count:
            continue
        if name in number_of:
            numbers[i] = number_of[name]
        else:
            unknown.append(name)
    if unknown:
        known = ", ".join(classifier.classes[:10]) + (", ..." if len(classifier.classes) > 10 else "")
        raise VitkitError(
            "evaluation.class-unknown",
            f"{rows.name} has classes the model does not know: {', '.join(unknown)} (it knows {known})",
        )
    return numbers


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
        if path not in names_of:
            continue
        numbers = [number_of[name] for name in names_of[path]]
        if isinstance(evaluation, MultiEvaluation):
            labels[i] = np.isin(np.arange(len(evaluation.classes)), numbers)
        else:
            labels[i] = numbers[0]  # exactly one
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
    changed = [item for item in earlier.changed if item.path in evaluation.current_labels]
    if changed:
        runs = sorted({item.by for item in changed})
        entries["relabelled"] = {"runs": runs, "paths": [item.path for item in changed]}
        entries["with_labels_now"] = {}
        if counted is not None:
            entries["with_labels_now"] = main_figures(with_labels(counted, counted.current_labels))
    if earlier.missing and counted is not None:
        missing = np.array([item.label == item.predicted for item in earlier.missing])  # whether each was correct
        all_images = np.concatenate([counted.is_correct, missing]).astype(np.float64)
        groups = None
        if counted.groups:  # a missing image is a group of its own, with a negative number
            groups = np.concatenate([np.array(counted.groups), np.arange(-len(missing), 0)])
        low, high = mean_interval(all_images, 1.0, Units.of(len(all_images), groups))
        # This model may do better on the missing images than the earlier one did, but hardly better than on the
        # other images, so the interval covers theirs, too.
        others = mean_interval(counted.is_correct.astype(np.float64), 1.0, Units.of_evaluation(counted))
        entries["missing_tests"] = {
            "images": len(missing),
            "right": int(missing.sum()),
            "runs": sorted({item.run for item in earlier.missing}),
            "accuracy": float(all_images.mean()),
            "interval_95": [min(low, others[0]), max(high, others[1])],
        }
    return entries
