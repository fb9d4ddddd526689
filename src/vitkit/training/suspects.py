"""Which labels of a run's images are likely wrong, as the weights that the run began from see them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.loading import EvaluationImages
from vitkit.data.overlap import look_up
from vitkit.data.pictures import PictureRecord
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation.doubts import Doubt, from_features, in_words
from vitkit.system.progress import Progress
from vitkit.system.run_files import RECIPE
from vitkit.training.architecture import weights_of
from vitkit.training.probe import Features, compute_features, frozen
from vitkit.training.recipe import Recipe, build
from vitkit.training.recipe_files import load_fields
from vitkit.training.run_folder import Run
from vitkit.training.setup import choose_precision, new_classifier
from vitkit.weights import inspect

MOST = 20_000  # images; more would take long, and memory


def doubt_labels(run: Run, recipe: Recipe, table: ImageTable, known: Features | None) -> list[Doubt] | None:
    """The doubtful labels of all images of a run, the most doubtful first.

    The weights that the run began from are asked, not those that it ended with: these know the labels by heart. Where
    those had been trained on some of these images too, the weights before them are asked.

    Args:
        run: tells of it.
        recipe: what the run began from.
        table: all images.
        known: features that were computed already; of a head on frozen features.

    Returns:
        None where they cannot be looked for: the run began from nothing, or from weights that know these labels and
        have none before them at hand.
    """
    if recipe.weights == "none":
        return None
    if len(table) > MOST:
        run.say(f"label errors are looked for among held-out images only: there are more than {MOST:,} images")
        return None
    started = time.monotonic()
    precision = choose_precision(recipe.precision, recipe.device)
    try:
        begun = frozen(recipe)
        source = unspoilt_weights(recipe, table, run.progress)
        if source is None:
            text = "the weights had been trained on them, and those before are not at hand"
            run.say(f"note: label errors are looked for among held-out images only: {text}")
            return None
        if recipe.head_from == "names":
            known = None  # what a head of the class names reads is not what `frozen` gives
        if source != weights_of(recipe):
            run.say(f"label errors are judged by {source}, which had not seen these images")
            begun, known = begun.replace(weights=source), None
        classifier = new_classifier(begun, table, "", run.progress)
        progress = partial(run.progress, "looking for label errors")
        features = _features(table, known, classifier, recipe, precision, progress)
    except VitkitError as error:  # an image that was readable when the run began
        run.say(f"note: label errors were not looked for: {error}")
        return None
    targets = [table.target(i) for i in range(len(table))] if table.is_multi else table.labels
    doubts = from_features(table, features, torch.tensor(targets, dtype=torch.int64), recipe.seed)
    seconds = time.monotonic() - started
    about = f"of {len(table)} images, frozen features in {precision}, {seconds:.0f} s"
    run.say(f"{in_words(doubts)} ({about})")
    return doubts


def _features(
    table: ImageTable,
    known: Features | None,
    begun: Classifier,
    recipe: Recipe,
    precision: str,
    progress: Callable[[int, int], None],
) -> Tensor:
    """(n, D) of all images; those that are not known are computed."""

    def compute(images: ImageTable) -> Tensor:
        own = EvaluationImages(images, begun.preprocess)
        return compute_features(begun.model, own, recipe, precision, progress)[0]

    if known is None:
        return compute(table)
    place = {path: i for i, path in enumerate(known.paths)}
    there = [i for i, path in enumerate(table.paths) if path in place]
    rest = [i for i, path in enumerate(table.paths) if path not in place]
    features = torch.empty(len(table), known.rows.shape[1])
    features[there] = known.rows[[place[table.paths[i]] for i in there]]
    if rest:
        features[rest] = compute(table.take(rest))
    return features


def unspoilt_weights(recipe: Recipe, table: ImageTable, progress: Progress) -> str | None:
    """The last weights that the run began from, directly or through other runs, and that had seen none of its images.

    Weights without a record, as published ones are, count as such.

    Returns:
        None where there are none, or where they are no longer where they were.
    """
    source, passed = weights_of(recipe), set[str]()
    while source not in passed:
        try:
            plan = inspect(source, use="training", progress=progress)
        except VitkitError:
            return None
        if plan.pictures is None:
            return source
        _, overlap = look_up(PictureRecord.from_bytes(plan.pictures, source), table, progress)
        if not overlap.seen():
            return source
        passed.add(source)
        before = _weights_before(source, plan.provenance)
        if before is None:
            return None
        source = before
    return None


def _weights_before(source: str, provenance: Mapping[str, Any]) -> str | None:
    """What a model began from; a run's recipe says where that lies, its model.json, which travels, only its name."""
    recipe = Path(source) / RECIPE
    if recipe.is_file():
        began = build(load_fields(recipe), str(recipe))
        return None if began.weights == "none" else weights_of(began)
    before = provenance.get("weights")
    found = before.get("source") if isinstance(before, Mapping) else None
    return found if isinstance(found, str) else None
