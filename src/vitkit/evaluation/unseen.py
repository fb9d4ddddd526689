"""The figures of an evaluation without the pictures that the weights had seen: trained on, or been chosen by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitkit.data.doctor.duplicates import LookedFor
from vitkit.data.overlap import look_up
from vitkit.data.pictures import PictureRecord
from vitkit.data.table import ImageTable
from vitkit.evaluation.chosen import by_name
from vitkit.evaluation.figures import figures
from vitkit.evaluation.headline import headline_of
from vitkit.evaluation.intervals import intervals
from vitkit.evaluation.metrics import Evaluation
from vitkit.evaluation.operating import BALANCE, operating_points
from vitkit.evaluation.registry import METRICS, TASKS
from vitkit.system.progress import Progress
from vitkit.text.words import interval_text, listed

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
