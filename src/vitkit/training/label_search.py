"""Search for label errors in all images of a run, with the features under weights that had not seen the images.

The trained weights may have memorised the labels, so the search uses the initial weights, unless those had seen some of
the images.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from vitkit.data.seen import PictureRecord, search_readable_images
from vitkit.errors import VitkitError
from vitkit.evaluation.label_errors import LabelError, describe_errors, from_features
from vitkit.training.defaults import weights_of
from vitkit.training.features import FeatureStore
from vitkit.training.run_folder import Run
from vitkit.training.start import choose_precision
from vitkit.weights.loading import inspect_source

MOST_SEARCHED = 20_000  # images in which label errors are searched for; more would take too much time and memory


def frozen_features(run: Run) -> Tensor | None:
    """Return the features of all images of a run, (n, D), under weights that had seen none of them.

    The result is None, and a line says why, if there are no such weights, too many images, or an unreadable image.
    """
    recipe, table = run.recipe, run.inputs.table
    if recipe.weights == "none":
        return None
    if len(table) > MOST_SEARCHED:
        reason = f"there are more than {MOST_SEARCHED:,} images"
        run.say(f"only held-out images are searched for label errors, because {reason}")
        return None
    try:
        weights = run.blueprint.weights or inspect_source(weights_of(recipe), use="training")
        pictures = weights.plan().pictures  # None for published weights, which are assumed to have seen none of them
        if pictures is not None:
            _, overlap = search_readable_images(PictureRecord.from_bytes(pictures, weights_of(recipe)), table)
            if overlap.seen():
                reason = "the weights had been trained on some of these images"
                run.say(f"note: only held-out images are searched for label errors: {reason}")
                return None
        store = run.features or FeatureStore(recipe, weights, run.photographs)
        return store.features(table, "looking for label errors")
    except VitkitError as error:  # an image has become unreadable
        run.say(f"note: label errors were not searched for: {error}")
        return None


def find_label_errors(run: Run) -> list[LabelError] | None:
    """Return labels in all images of a run that are likely wrong, the most doubtful first.

    The result is None if the run has no features under weights that had not seen the images (`run.frozen_features`).
    """
    started, table = time.monotonic(), run.inputs.table
    if run.frozen_features is None:
        return None
    targets = table.task.targets(torch.tensor(table.labels), table.set_targets())
    errors = from_features(table, run.frozen_features, targets.to(torch.int64), run.recipe.seed)
    precision = choose_precision(run.recipe.precision, run.recipe.device)
    seconds = time.monotonic() - started
    run.say(f"{describe_errors(errors)} (of {len(table)} images, frozen features in {precision}, {seconds:.0f} s)")
    return errors
