"""Every figure that is told of an evaluation, with how far chance may have moved the main ones.

What was chosen on the images that a figure is of: such a figure flatters.

Where classes differ much in size: what the same model comes to as the data come, and where every class counts alike.
The two differ by the logarithms of the classes' shares alone, so one evaluation gives both.

The figures of an evaluation without the pictures that the weights had seen: trained on, or been chosen by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import softmax

from vitkit.data.doctor.duplicates import LookedFor
from vitkit.data.seen import PictureRecord, look_up
from vitkit.data.table import ImageTable
from vitkit.data.task import SINGLE_LABEL, TASKS, Task
from vitkit.evaluation.calibration import blocks, log_odds, most_rise, to_probabilities
from vitkit.evaluation.headline import headline_of
from vitkit.evaluation.intervals import intervals
from vitkit.evaluation.metrics import Evaluation
from vitkit.evaluation.multilabel import MultiEvaluation, cross_fitted
from vitkit.evaluation.registry import METRICS
from vitkit.system.progress import Progress
from vitkit.text.cells import interval_text, listed


def figures(evaluation: Evaluation) -> dict[str, Any]:
    """All of them, in plain JSON types, `accuracy` first: evaluation.json, and what `vitkit eval --json` prints."""
    rows: dict[str, dict[str, Any]] = {name: dict(row) for name, row in evaluation.per_class().items()}
    if isinstance(evaluation, MultiEvaluation):
        return {
            **evaluation.summary(),
            "chosen_on": list(evaluation.chosen),
            **({"cross_fitted": cross_fitted(evaluation)} if evaluation.chosen else {}),
            **_intervals(evaluation),
            "absent_classes": list(evaluation.absent),
            "per_class": rows,
        }
    areas = rank_areas(evaluation)
    for name, row in rows.items():
        row |= areas[name]
    found = [own["roc_auc"] for own in areas.values() if own["roc_auc"] is not None]
    precisions = [own["average_precision"] for own in areas.values() if own["average_precision"] is not None]
    return {
        **evaluation.summary(),
        "chosen_on": list(evaluation.chosen),
        "roc_auc": float(np.mean(found)) if found else None,
        "average_precision": float(np.mean(precisions)),
        "temperature": evaluation.temperature,
        "ece_before_temperature": evaluation.untempered.ece,
        **_intervals(evaluation),
        "absent_classes": list(evaluation.absent),
        "confused": [
            {"true": true, "predicted": predicted, "count": count, "share": share}
            for true, predicted, count, share in evaluation.confused(20)
        ],
        "per_class": rows,
    }


def _intervals(evaluation: Evaluation) -> dict[str, Any]:
    found = {name: list(bounds) for name, bounds in intervals(evaluation).items()}
    grouped = {"independent_groups": len(set(evaluation.groups))} if evaluation.groups else {}
    return {"intervals_95": found, **grouped}


def rank_areas(evaluation: Evaluation) -> dict[str, dict[str, float | None]]:
    """Areas under each class's ROC and precision-recall curves, one-vs-rest; None where there is no such curve."""
    areas: dict[str, dict[str, float | None]]
    areas = {name: {"roc_auc": None, "average_precision": None} for name in evaluation.classes}
    for i, own in evaluation.standings.items():
        areas[evaluation.classes[i]] = {"roc_auc": own.roc_auc, "average_precision": own.average_precision}
    return areas


class Rise(NamedTuple):
    """How much larger the calibration error is than at temperature 1, and whether chance may have made it so."""

    by: float
    is_chance: bool


def calibration_rise(evaluation: Evaluation, numbers: Mapping[str, Any]) -> Rise | None:
    """Whether the calibration error of an evaluation, whose figures are known, is larger than at temperature 1."""
    if numbers["ece"] is None:
        return None
    by = numbers["ece"] - numbers["ece_before_temperature"]
    if evaluation.temperature == 1 or by <= 0:
        return None
    return Rise(by, by <= most_rise(evaluation.confidence, evaluation.confidence_before))


def at_temperature(evaluation: Evaluation, temperature: float) -> Evaluation:
    """What a classifier of the same logits and another temperature would say."""
    probabilities = np.empty_like(evaluation.probabilities)
    for own in blocks(*probabilities.shape):
        logits = np.log(np.maximum(evaluation.probabilities[own].astype(np.float64), np.finfo(np.float32).tiny))
        probabilities[own] = softmax(logits * (evaluation.temperature / temperature), axis=1)
    return replace(evaluation, probabilities=probabilities, temperature=temperature)


def asked_by_name(provenance: Mapping[str, Any]) -> tuple[str, ...]:
    """The templates of a model that knows its classes by their names alone; none of one that learned from photographs.

    It is a classifier of class names, or what a run began as, where no epoch was better.
    """
    if "templates" in provenance:
        return tuple(provenance["templates"])
    is_start = provenance.get("metrics", {}).get("epoch", 0) < 0  # epochs of training count from 0
    return tuple(provenance["head"]["templates"]) if is_start else ()


def by_name(provenance: Mapping[str, Any]) -> dict[str, list[str]]:
    """`zero_shot` among the figures: the templates, where `asked_by_name` has some."""
    templates = asked_by_name(provenance)
    return {"zero_shot": list(templates)} if templates else {}


def by_name_in_words(provenance: Mapping[str, Any]) -> dict[str, str]:
    """The same for a page."""
    told = ", ".join(map(repr, asked_by_name(provenance)))
    return {"zero-shot": f"by the class names alone, as {told}"} if told else {}


def chosen_on(split: str, recipe: Mapping[str, Any], task: Task = SINGLE_LABEL) -> tuple[str, ...]:
    """What a run chose on the images of a split of its own, and by what; nothing but on validation images.

    Args:
        split: train, val, test or all.
        recipe: the fields of the run's recipe.
        task: of the run.
    """
    if split != "val":
        return ()
    chosen = []
    if recipe.get("method") == "probe":
        chosen.append("penalty by log loss")
    else:
        if recipe.get("lp_ft"):
            chosen.append("penalty of the first head by log loss")
        if recipe.get("find_lr"):
            chosen.append("learning rate by log loss")
        if recipe.get("keep", "best") != "last":
            chosen.append(f"epoch by {recipe.get('monitor', 'val_acc')}")
    chosen.append(task.chosen)
    return tuple(chosen)


BALANCE = "balance"  # where a model's provenance keeps what balanced training has given it
UNEQUAL = 3  # times the images of the smallest class: with more, classes differ much in size
SHARES = {"data": "as frequent as in training", "uniform": "all alike"}


def differ_much(counts: Sequence[int]) -> bool:
    """Whether the largest class has more than `UNEQUAL` times the images of the smallest that has any."""
    occurring = [count for count in counts if count]
    return bool(occurring) and max(occurring) > UNEQUAL * min(occurring)


def operating_points(evaluation: Evaluation, standing: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Accuracy, balanced accuracy and each class's recall for both; None where there is little to choose.

    Args:
        evaluation: of the model, for the prior that it was trained for.
        standing: the model's `balance` in its provenance; None of a model that knows of no training images.
    """
    if standing is None or isinstance(evaluation, MultiEvaluation):
        return None
    counts, own = standing["counts"], standing["prior"]
    if not differ_much(counts) or len(counts) != evaluation.probabilities.shape[1]:
        return None
    points = {
        prior: evaluation if prior == own else for_prior(evaluation, counts, prior) for prior in ("data", "uniform")
    }
    return {"chosen": own} | {name: _figures(point) for name, point in points.items()}


def for_prior(evaluation: Evaluation, counts: Sequence[int], prior: Literal["data", "uniform"]) -> Evaluation:
    """What the same model says of the images for the other prior (Saerens et al. 2002, eq. 2.4).

    Args:
        evaluation: for one of them.
        counts: training images of each class.
        prior: the one that is wanted.
    """
    shares = np.log(np.maximum(counts, 1))
    found = np.empty_like(evaluation.probabilities)
    for own in blocks(*found.shape):
        labels = evaluation.labels[own]
        logits = log_odds(evaluation.probabilities[own], labels) + (shares if prior == "data" else -shares)
        found[own] = to_probabilities(logits, labels)
    return replace(evaluation, probabilities=found)


def _figures(evaluation: Evaluation) -> dict[str, Any]:
    rows = evaluation.per_class().items()
    return {
        "accuracy": evaluation.accuracy,
        "balanced_accuracy": evaluation.balanced_accuracy,
        "recall": {name: row["recall"] if row["support"] else None for name, row in rows},
    }


DOUBTS: dict[LookedFor, str] = {
    "exact": "whether the weights had seen resized or altered copies of others cannot be known",
    "near": "whether the weights had seen altered copies of others cannot be known",
    "altered": "",
}


def find_seen(
    record: PictureRecord,
    table: ImageTable,
    split: str,
    progress: Progress,
    *,
    is_own: bool,
) -> tuple[dict[str, str], str]:
    """Which images of a split, or of `all`, the weights had seen: train or val by path; and why there may be more.

    Args:
        record: of what the weights were trained on.
        table: the images.
        split: which of them are asked about.
        progress: told what is being done, how many are done, of how many.
        is_own: they are the run's own images; that validation images chose the weights then goes without saying.

    Returns:
        Role by path; and the doubt in words, empty where there is none.
    """
    rows = table if split == "all" else table.of_split(split)
    rows, overlap = look_up(record, rows, progress)
    seen = seen_of(dict(zip(rows.paths, overlap.roles, strict=True)), split if is_own else "all")
    return seen, DOUBTS[overlap.looked_for]


def seen_of(roles: Mapping[str, str | None], split: str) -> dict[str, str]:
    """Those of the images whose role spoils the figures of a split."""
    spoil = ("train",) if split == "val" else ("train", "val")
    return {path: role for path, role in roles.items() if role is not None and role in spoil}


def all_figures(
    evaluation: Evaluation,
    seen: Mapping[str, str] | None,
    provenance: Mapping[str, Any],
    about: Mapping[str, Any] | None = None,
    doubt: str = "",
) -> dict[str, Any]:
    """Everything that evaluation.json holds: the figures of the images that count, what was seen, and the headline.

    Args:
        evaluation: of all images.
        seen: role by path; None where there is no record, and so it cannot be known.
        provenance: the model's, which tells what balancing gave it, and whether it knows its classes by name alone.
        about: what else belongs to them: what computed the answers (`Classifier.computation`), and which of a run's
            images have changed (`Changes.to_dict`).
        doubt: why the weights may have seen more of the images than is known; empty: they have not.
    """
    counted = that_count(evaluation, seen)
    numbers = figures(evaluation) | _NO_FIGURES if counted is None else figures(counted)
    points = None if counted is None else operating_points(counted, provenance.get(BALANCE))
    numbers = {
        "accuracy": numbers["accuracy"],
        **(about or {}),
        **numbers,
        **second_figure(evaluation, seen, doubt),
        **({} if points is None else {"operating_points": points}),
        **by_name(provenance),
    }
    return {**numbers, "headline": headline_of(numbers).to_dict()}


# What nobody can say of images all of which the weights had seen.
_NO_FIGURES: dict[str, Any] = {
    **{name: None for task in TASKS for name in METRICS[task]},
    **dict.fromkeys(("roc_auc", "average_precision", "ece_before_temperature")),
    "images": 0,
    "intervals_95": {},
}


def that_count(evaluation: Evaluation, seen: Mapping[str, Any] | None) -> Evaluation | None:
    """The evaluation of the images that figures may be of: those that the weights had not seen.

    Of the training split all count: whoever asks for it asks about images that were seen.

    Args:
        evaluation: of all images.
        seen: by path, those that the weights had seen; None where it cannot be known.

    Returns:
        None where no image is left.
    """
    return evaluation if evaluation.split == "train" or not seen else without(evaluation, seen)


def counted_in(evaluation: Evaluation, numbers: Mapping[str, Any]) -> Evaluation:
    """The evaluation of the images that the figures are of; of all where none of them could count.

    Args:
        evaluation: of all images.
        numbers: what `all_figures` made of it.
    """
    seen = numbers.get("seen") or {"paths": []}
    return that_count(evaluation, dict.fromkeys(seen["paths"])) or evaluation


def second_figure(evaluation: Evaluation, seen: Mapping[str, str] | None, doubt: str = "") -> dict[str, Any]:
    """`seen`, what was seen of the images; where that is some, the main figures `with_seen` and `without_seen` ones.

    Args:
        evaluation: of all images.
        seen: role by path; None where there is no record, and so it cannot be known.
        doubt: why there may be more of them.
    """
    if seen is None:
        return {"seen": None}
    roles = {path: seen[path] for path in evaluation.paths if path in seen}
    told: dict[str, Any] = {
        "images": len(roles),
        "trained_on": sum(role == "train" for role in roles.values()),
        "chosen_by": sum(role == "val" for role in roles.values()),
        "paths": list(roles),
        **({"doubt": doubt} if doubt else {}),
    }
    if not roles:
        return {"seen": told}
    rest = without(evaluation, roles)
    return {"seen": told, "with_seen": _main(evaluation), "without_seen": None if rest is None else _main(rest)}


def _main(evaluation: Evaluation) -> dict[str, Any]:
    return {**evaluation.summary(), "intervals_95": {name: list(own) for name, own in intervals(evaluation).items()}}


def without(evaluation: Evaluation, paths: Mapping[str, Any]) -> Evaluation | None:
    """The evaluation of the other images; None where there are none."""
    kept = [i for i, path in enumerate(evaluation.paths) if path not in paths]
    if not kept:
        return None
    return replace(
        evaluation,
        paths=tuple(evaluation.paths[i] for i in kept),
        labels=evaluation.labels[kept],
        probabilities=evaluation.probabilities[kept],
        groups=tuple(evaluation.groups[i] for i in kept) if evaluation.groups else (),
    )


def describe(numbers: Mapping[str, Any]) -> str | None:
    """What `second_figure` found, as a sentence; None where there is nothing to tell."""
    seen = numbers.get("seen")
    if not seen or not seen["images"]:
        return None
    ways = {"trained_on": "trained on", "chosen_by": "chosen by"}
    how = [f"{seen[key]} {what}" for key, what in ways.items() if seen[key]]
    every, rest = numbers["with_seen"], numbers["without_seen"]
    text = (
        f"{seen['images']} of {every['images']} images had been seen by the weights ({', '.join(how)}): "
        f"{listed(seen['paths'])}"
    )
    if rest is None:
        return f"{text}; no other is left to judge by"
    bounds = rest["intervals_95"].get("accuracy")
    interval = "" if bounds is None else f" (95 %: {interval_text(bounds)})"
    return (
        f"{text}; without them accuracy {rest['accuracy']:.4f}{interval} on {rest['images']} images, with them "
        f"{every['accuracy']:.4f}"
    )
