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
from vitkit.data.earlier_labels import LabelsBefore
from vitkit.data.table import ImageTable
from vitkit.errors import NOT_FINITE, UnansweredError, VitkitError
from vitkit.evaluation.figures import figures, unseen_part
from vitkit.evaluation.intervals import Units, accuracy_bounds, mean_interval
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
    """Run the classifier on every image of a split of the table, or of `all`. Classes are matched by name.

    `progress` is called with the number of images done and the total. If `outcomes` has, by path, the result of
    `Classifier.assess` for each image or the reason why there is none, the classifier is not run.

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
    number_of = align(rows, classifier)
    K, has_unknown = len(classifier.classes), classifier.unknown is not None
    assessed = empty_array((len(rows), K + has_unknown))  # probabilities, and perhaps `Evaluation.familiar`
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
    infinite = [path for path, reason in unreadable.items() if reason == NOT_FINITE]
    if infinite:  # figures of the remaining images alone would flatter the model
        about = f"{NOT_FINITE}. It concerns {len(infinite)} of {len(rows)} images, first {infinite[0]}"
        raise UnansweredError("evaluation.output-not-finite", about)
    if not predicted:
        first = f" (first: {next(iter(unreadable))}: {next(iter(unreadable.values()))})" if unreadable else ""
        message = f"{table.name} has no readable image in its {split} split below {table.place}{first}"
        raise VitkitError("evaluation.images-unreadable", message)
    assessed = assessed[: len(predicted)]
    paths, probabilities = tuple(rows.paths[i] for i in predicted), assessed[:, :K]  # (n,), (n, K)
    if classifier.thresholds is None:
        labels = np.array([number_of[rows.labels[i]] for i in predicted])  # (n,)
        familiar = assessed[:, K] if has_unknown else None
        about_single = (split, classifier.classes, paths, labels, probabilities, unreadable, classifier.temperature)
        return Evaluation(*about_single, familiar=familiar)
    indicators = np.zeros((len(predicted), K), dtype=np.int64)
    for row, i in enumerate(predicted):
        indicators[row, [number_of[label] for label in rows.classes_of(i)]] = 1
    about_multi = (split, classifier.classes, paths, indicators, probabilities, unreadable)
    return MultiEvaluation(*about_multi, thresholds=classifier.thresholds)


def align(rows: ImageTable, classifier: Classifier) -> dict[int, int]:
    """Map the class numbers of the table to those of the classifier, by class name. Refuse unknown classes."""
    number = {name: i for i, name in enumerate(classifier.classes)}
    present = {name: i for i, (name, count) in enumerate(rows.counts().items()) if count}
    unknown = [name for name in present if name not in number]
    if unknown:
        known = ", ".join(classifier.classes[:10]) + (", ..." if len(classifier.classes) > 10 else "")
        raise VitkitError(
            "evaluation.class-unknown",
            f"{rows.name} has classes the model does not know: {', '.join(unknown)} (it knows {known})",
        )
    return {i: number[name] for name, i in present.items()}


def evaluate_before(
    classifier: Classifier,
    table: ImageTable,
    split: str,
    earlier: LabelsBefore,
    progress: Callable[[int, int], None] | None = None,
    outcomes: Outcomes | None = None,
) -> Evaluation:
    """Evaluate with the labels that the images had in earlier runs. The current labels are in `Evaluation.since`.

    Images that no person has labelled are left out, and it is an error if there are no others. The other arguments are
    as for `evaluate`.
    """
    now = evaluate(classifier, tested_images(table, split, earlier), split, progress, outcomes)
    number = {path: i for i, path in enumerate(now.paths)}
    before = {item.path: item.before for item in earlier.changed if item.path in number}
    return replace(with_labels(now, before), since={path: now.label_of(number[path]) for path in before})


def tested_images(table: ImageTable, split: str, earlier: LabelsBefore) -> ImageTable:
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
    names = {path: evaluation.task.names_in(label_of[path]) for path in evaluation.paths if path in label_of}
    if not names:
        return evaluation
    evaluation = evaluation.with_classes(
        sorted({name for each in names.values() for name in each} - set(evaluation.classes))
    )
    number = {name: i for i, name in enumerate(evaluation.classes)}
    labels = evaluation.labels.copy()
    for i, path in enumerate(evaluation.paths):
        if path in names:
            labels[i] = evaluation.label_row([number[name] for name in names[path]])
    return replace(evaluation, labels=labels)


def earlier_figures(evaluation: Evaluation, earlier: LabelsBefore, seen: Mapping[str, str] | None) -> dict[str, Any]:
    """Summarise the labels that have changed since earlier runs, and the test images that are missing.

    The result has entries of evaluation.json: `relabelled` and the main figures `with_labels_now` if labels have
    changed, and `missing_tests` if test images are missing. Images that the weights had `seen` are excluded.
    """
    about: dict[str, Any] = {}
    counted = unseen_part(evaluation, seen)
    if changed := [item for item in earlier.changed if item.path in evaluation.since]:
        now = None if counted is None else with_labels(counted, counted.since)
        every = {} if now is None else figures(now)
        shown = () if now is None else (*now.summary(), "intervals_95")
        runs = sorted({item.by for item in changed})
        about["relabelled"] = {"runs": runs, "paths": [item.path for item in changed]}
        about["with_labels_now"] = {name: every[name] for name in shown if name in every}
    if earlier.missing and counted is not None:
        rights = np.array([item.label == item.predicted for item in earlier.missing], dtype=np.float64)
        hits = (counted.labels == counted.predicted).reshape(len(counted.labels), -1).all(axis=1)
        values = np.concatenate([hits.astype(np.float64), rights])
        own_groups = np.arange(len(rights)) - len(rights)  # negative: each image is a group of its own
        groups = np.concatenate([np.array(counted.groups), own_groups]) if counted.groups else None
        ends = mean_interval(values, 1.0, Units.of(len(values), groups))
        alone = accuracy_bounds(counted, Units.of_evaluation(counted))
        about["missing_tests"] = {
            "images": len(rights),
            "right": int(rights.sum()),
            "runs": sorted({item.run for item in earlier.missing}),
            "accuracy": float(values.mean()),
            # This model may do better on the missing images than the earlier one did, but hardly better than on the
            # other images, so the interval covers theirs, too.
            "interval_95": [min(ends[0], alone[0]), max(ends[1], alone[1])],
        }
    return about
