"""Compute all figures of an evaluation, as in evaluation.json, with confidence intervals for the main ones.

The figures exclude images that the weights had seen, that is, images that were used to train or to select the weights.
The entry `chosen_on` lists choices that were made on the evaluated images, because such choices make the figures too
good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from vitkit.data.doctor.duplicates import SearchDepth
from vitkit.data.seen import PictureRecord, search_readable_images
from vitkit.data.table import SINGLE_LABEL, TASKS, ImageTable, Task
from vitkit.evaluation.calibration import blocks
from vitkit.evaluation.headline import BY_FOLDS, UNRECORDED, headline_of
from vitkit.evaluation.intervals import Units, intervals, mean_interval
from vitkit.evaluation.metrics import Evaluation, MultiEvaluation
from vitkit.evaluation.registry import METRICS
from vitkit.system.files import empty_array
from vitkit.text.cells import interval_text, listed


def figures(evaluation: Evaluation) -> dict[str, Any]:
    """Compute all figures in plain JSON types, `accuracy` first, as in evaluation.json and `vitkit eval --json`."""
    rows = evaluation.per_class()
    numbers = {**evaluation.summary(), "chosen_on": list(evaluation.chosen)}
    is_multi = isinstance(evaluation, MultiEvaluation)
    if not is_multi:
        curves = evaluation.curves  # of the classes that occur, each against all others
        for i, row in enumerate(rows.values()):
            row["roc_auc"] = curves[i].roc_auc if i in curves else None
            row["average_precision"] = curves[i].average_precision if i in curves else None
        roc_areas = [curve.roc_auc for curve in curves.values() if curve.roc_auc is not None]
        numbers["roc_auc"] = float(np.mean(roc_areas)) if roc_areas else None
        numbers["average_precision"] = float(np.mean([curve.average_precision for curve in curves.values()]))
        numbers["temperature"] = evaluation.temperature
        numbers["ece_before_temperature"] = evaluation.reliability_untempered.ece
    numbers["intervals_95"] = {name: list(ends) for name, ends in intervals(evaluation).items()}
    if evaluation.groups:
        numbers["independent_groups"] = len(set(evaluation.groups))
    # The baseline always predicts the most frequent label, or the most frequent set of labels.
    _, examples, counts = np.unique(evaluation.labels, axis=0, return_index=True, return_counts=True)
    most_frequent = int(counts.argmax())
    numbers["baseline"] = {
        "label": evaluation.label_of(int(examples[most_frequent])),
        "accuracy": float(counts[most_frequent] / len(evaluation.labels)),
    }
    numbers["absent_classes"] = list(evaluation.absent)
    if not is_multi:
        numbers["confused"] = [
            {"true": true, "predicted": predicted, "count": count, "share": share}
            for true, predicted, count, share in evaluation.confused(20)
        ]
    numbers["per_class"] = rows
    return numbers


def _zero_shot_templates(provenance: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the prompt templates of a zero-shot classifier; empty if the model learned its classes from images.

    A run in which no epoch was better than the zero-shot start also counts as a zero-shot classifier.
    """
    if "templates" in provenance:
        return tuple(provenance["templates"])
    is_start = provenance.get("metrics", {}).get("epoch", 0) < 0  # training epochs are numbered from 0
    return tuple(provenance["head"]["templates"]) if is_start else ()


def zero_shot_in_words(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return the description of the prompt templates for a page; empty unless the model is zero-shot."""
    templates = ", ".join(map(repr, _zero_shot_templates(provenance)))
    return {"zero-shot": f"by the class names alone, as {templates}"} if templates else {}


def chosen_on(split: str, recipe: Mapping[str, Any], task: Task = SINGLE_LABEL) -> tuple[str, ...]:
    """Describe the choices that a run made on the images of a split; empty unless the split is `val`.

    Each description names the choice and the figure that decided, as in `epoch by val_acc`. `recipe` are the fields of
    the run's recipe.
    """
    if split != "val":
        return ()
    chosen = []
    if recipe.get("method") == "probe":
        chosen.append("penalty by log loss")
    else:
        if recipe.get("lp_ft"):
            chosen.append("penalty of the first head by log loss")
        if recipe.get("keep", "best") != "last":
            chosen.append(f"epoch by {recipe.get('monitor', 'val_acc')}")
    chosen.append(task.chosen)
    return tuple(chosen)


BALANCE = "balance"  # key of the provenance for the result of balanced training
SHARES = {"data": "as frequent as in training", "uniform": "all alike"}


# Why a search may have missed images that the weights had seen, by the kinds of copies that it looked for.
DOUBTS: dict[SearchDepth, str] = {
    "exact": "whether the weights had seen resized or altered copies of others cannot be known",
    "near": "whether the weights had seen altered copies of others cannot be known",
    "altered": "",
}


def find_seen(record: PictureRecord, table: ImageTable, split: str, *, is_of_run: bool) -> tuple[dict[str, str], str]:
    """Find the images of a split (or `all`) that must be excluded because the weights had seen them.

    If the images belong to the run that trained the weights (`is_of_run`), images of the `val` split are excluded only
    if the weights were trained on them, not if they were used to select the weights.

    Returns:
        A mapping from the path of each excluded image to its role (train or val), and the reason why the weights may
        have seen more images. The reason is empty if the search was complete.
    """
    rows = table if split == "all" else table.of_split(split)
    rows, overlap = search_readable_images(record, rows)
    seen = seen_to_exclude(dict(zip(rows.paths, overlap.roles, strict=True)), split if is_of_run else "all")
    return seen, unrecorded_reason(record) or DOUBTS[overlap.looked_for]


def unrecorded_reason(record: PictureRecord | None) -> str:
    """Return why a record may lack images that the weights had seen; empty if it is complete."""
    return "" if record is not None and record.is_whole else UNRECORDED


def seen_to_exclude(roles: Mapping[str, str | None], split: str) -> dict[str, str]:
    """Return the images that must be excluded from the figures of a split, as a mapping from path to role.

    These are the images that the weights were trained on and, except in the `val` split, selected by. For the split
    `BY_FOLDS`, no images are excluded.
    """
    excluded = {"val": ("train",), BY_FOLDS: ()}.get(split, ("train", "val"))
    return {path: role for path, role in roles.items() if role in excluded}


def all_figures(
    evaluation: Evaluation,
    seen: Mapping[str, str] | None,
    provenance: Mapping[str, Any],
    about: Mapping[str, Any] | None = None,
    doubt: str = "",
) -> dict[str, Any]:
    """Compute the content of evaluation.json.

    The figures exclude images that the weights had seen. If there are such images, the entries `with_seen` and
    `without_seen` have the main figures of all images and of the others. If all images had been seen, the
    figures are None.

    Args:
        evaluation: evaluation of all images.
        seen: the images that the weights had seen, as a mapping from path to role (train or val); None if there is no
            record.
        provenance: provenance of the model, which records zero-shot templates.
        about: further entries of the file: how the predictions were computed (`Classifier.computation`), and which
            images of the run have changed (`Changes.to_dict`). None for none.
        doubt: why the weights may have seen more of the images than `seen` lists; empty if `seen` is complete. If
            nothing is recorded of the first weights (`UNRECORDED`) and `seen` is empty, the entry `seen` is None.
    """
    counted = unseen_part(evaluation, seen)
    numbers = figures(counted or evaluation)
    if counted is None:
        numbers |= _NO_FIGURES
    numbers = {"accuracy": numbers["accuracy"], **(about or {}), **numbers}  # `accuracy` stays the first entry
    roles = {path: seen[path] for path in evaluation.paths if path in seen} if seen else {}
    if seen is None or (not roles and doubt == UNRECORDED):
        numbers["seen"] = None
    else:
        numbers["seen"] = {
            "images": len(roles),
            "trained_on": sum(role == "train" for role in roles.values()),
            "chosen_by": sum(role == "val" for role in roles.values()),
            "paths": list(roles),
        }
        if doubt:
            numbers["seen"]["doubt"] = doubt
    if roles:
        rest = without(evaluation, roles)
        numbers["with_seen"] = main_figures(evaluation)
        numbers["without_seen"] = None if rest is None else main_figures(rest)
    templates = _zero_shot_templates(provenance)
    if templates:
        numbers["zero_shot"] = list(templates)
    numbers["headline"] = headline_of(numbers).to_dict()
    return numbers


# The figures if the weights had seen all images, so that none can be computed.
_NO_FIGURES: dict[str, Any] = {
    **{name: None for task in TASKS for name in METRICS[task]},
    **dict.fromkeys(("roc_auc", "average_precision", "ece_before_temperature")),
    "images": 0,
    "intervals_95": {},
    "baseline": None,
}


def unseen_part(evaluation: Evaluation, seen: Mapping[str, Any] | None) -> Evaluation | None:
    """Remove the images that the weights had seen, by path; None if no image is left.

    Nothing is removed if `seen` is None (unknown), or from the training split, all of whose images were seen.
    """
    if evaluation.split == "train" or not seen:
        return evaluation
    return without(evaluation, seen)


def counted_part(evaluation: Evaluation, numbers: Mapping[str, Any]) -> Evaluation:
    """Remove the images that the figures (`all_figures`) of an evaluation exclude. If all are excluded, remove none."""
    seen = numbers.get("seen") or {"paths": []}
    return unseen_part(evaluation, dict.fromkeys(seen["paths"])) or evaluation


def main_figures(evaluation: Evaluation) -> dict[str, Any]:
    """Compute the main figures and their 95 % confidence intervals."""
    return {**evaluation.summary(), "intervals_95": {name: list(ends) for name, ends in intervals(evaluation).items()}}


def without(evaluation: Evaluation, paths: Mapping[str, Any]) -> Evaluation | None:
    """Remove images from an evaluation; None if no image is left."""
    kept = [i for i, path in enumerate(evaluation.paths) if path not in paths]
    if not kept:
        return None
    probabilities = empty_array((len(kept), evaluation.probabilities.shape[1]))
    for rows in blocks(*probabilities.shape):
        probabilities[rows] = evaluation.probabilities[kept[rows]]
    return replace(
        evaluation,
        paths=tuple(evaluation.paths[i] for i in kept),
        labels=evaluation.labels[kept],
        probabilities=probabilities,
        groups=tuple(evaluation.groups[i] for i in kept) if evaluation.groups else (),
        p_known=None if evaluation.p_known is None else evaluation.p_known[kept],
    )


def describe(numbers: Mapping[str, Any]) -> str | None:
    """Describe in a sentence which images the weights had seen; None if they had seen none."""
    seen = numbers.get("seen")
    if not seen or not seen["images"]:
        return None
    how = []
    if seen["trained_on"]:
        how.append(f"{seen['trained_on']} trained on")
    if seen["chosen_by"]:
        how.append(f"{seen['chosen_by']} chosen by")
    with_seen, without_seen = numbers["with_seen"], numbers["without_seen"]
    text = (
        f"{seen['images']} of {with_seen['images']} images had been seen by the weights ({', '.join(how)}): "
        f"{listed(seen['paths'])}"
    )
    if without_seen is None:
        return f"{text}; no other image is left to test on"
    bounds = without_seen["intervals_95"].get("accuracy")
    interval = "" if bounds is None else f" (95 %: {interval_text(bounds)})"
    return (
        f"{text}; without them accuracy {without_seen['accuracy']:.4f}{interval} on {without_seen['images']} images, "
        f"with them {with_seen['accuracy']:.4f}"
    )


# --- Several views of each image ------------------------------------------------------------------------------------


def gain(first: Evaluation, second: Evaluation) -> dict[str, Any]:
    """Compare two evaluations of the same images in the same order, as in evaluation.json.

    The difference of two accuracies depends only on the images that exactly one of the two predicts correctly, so it is
    known more precisely than either accuracy. The interval adds an imaginary image that exactly one of them predicts
    correctly, so it has a positive width even if the two never differ.

    Returns:
        `accuracy`, the accuracy of the second minus that of the first; `interval_95`, the 95 % confidence interval of
        this difference on an unlimited number of such images; and `gained` and `lost`, the images that only the second
        and only the first predicts correctly.
    """
    assert first.paths == second.paths
    before, after = first.is_correct, second.is_correct
    scaled = (1.0 + after - before) / 2  # from -1, 0 or 1 to the range from 0 to 1 of `mean_interval`
    low, high = mean_interval(scaled, 1.0, Units.of_evaluation(first))
    return {
        "accuracy": float(2 * scaled.mean() - 1),
        "interval_95": [2 * low - 1, 2 * high - 1],
        "gained": int((after & ~before).sum()),
        "lost": int((before & ~after).sum()),
    }


def tta_figures(
    plain: Evaluation,
    averaged: Evaluation,
    seen: Mapping[str, str] | None,
    views: tuple[str, int],
    seconds: tuple[float, float],
) -> dict[str, Any]:
    """Return the entry `tta` of evaluation.json: the gain and the cost of averaging over views of each image.

    `plain` is the evaluation with a single view, and `averaged` the one with several. Images that the weights had
    `seen` are excluded. `views` are the names of the views and their number, and `seconds` the times of the two
    evaluations.
    """
    view_names, view_count = views
    plain_seconds, tta_seconds = seconds
    before, after = unseen_part(plain, seen), unseen_part(averaged, seen)
    entry = {
        "views": view_names,
        "per_image": view_count,
        "seconds": {"plain": round(plain_seconds, 3), "tta": round(tta_seconds, 3)},
        "times_slower": round(tta_seconds / plain_seconds, 2),
        "plain": None,
        "gain": None,
    }
    if before is not None and after is not None:
        entry["plain"] = before.summary()
        entry["gain"] = gain(before, after)
    return {"tta": entry}


def tta_lines(numbers: Mapping[str, Any]) -> list[str]:
    """Describe the gain and the cost of averaging over views in one line; empty if there is only one view.

    `numbers` is the content of evaluation.json.
    """
    entry = numbers.get("tta")
    if entry is None:
        return []
    cost = f"{entry['per_image']} views of each image ({entry['views']}), {entry['times_slower']:.1f} times slower"
    if entry["gain"] is None:
        return [f"{cost}; no image is left to compare on"]
    interval = interval_text(entry["gain"]["interval_95"])
    change = f"accuracy {entry['gain']['accuracy']:+.4f} (95 %: {interval})"
    before = f"from {entry['plain']['accuracy']:.4f} with one view"
    return [f"{cost}: {change}, {before}; the temperature and thresholds are those of one view"]
