"""`--method auto` for medium numbers of images: is a head on frozen features so good that fine-tuning gains little?

Below `defaults.FEW` training images per class, the whole model is not trained at all (`defaults.choose`). With more,
their number does not decide: two kinds of insects are told apart by frozen features alone, and seventeen kinds of
flowers are not. A linear probe is therefore cross-validated on the training images, which takes one pass over them. If
it is right nearly always, it becomes the model, and is trained in seconds.

No validation or test image is used, and the images of the test stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from vitkit.data.table import ImageTable
from vitkit.data.task import SINGLE_LABEL
from vitkit.errors import VitkitError
from vitkit.text.cells import interval_text
from vitkit.training.defaults import without_effect
from vitkit.training.recipe import Recipe, Request
from vitkit.training.select_weights import ProbeAccuracy, probe_accuracy
from vitkit.training.start import Start, resolve

ENOUGH = 0.95  # cross-validated accuracy of a probe above which fine-tuning was not better by a point (docs/log.md)
MOST = 1_000  # training images; with more, fine-tuning gains even where the probe is that good


def resolve_method(
    request: Request,
    reserve: Callable[[ImageTable, Recipe], None] | None,
    runs: Sequence[Path],
    named: Collection[str] = (),
) -> Start:
    """Resolve a request as `start.resolve` does, and try a probe if `auto` has chosen to fine-tune the whole model.

    Args:
        request: the requested fields; `data` must be set.
        reserve: see `resolve`; called with the recipe of the first choice, and again if it becomes a probe.
        runs: see `resolve`.
        named: the fields that the user set for this training.

    Raises:
        VitkitError: the data or the recipe cannot be trained on.
    """
    start = resolve(request, reserve, runs)
    if not _is_open(request, start, named):
        return start
    (part,) = start.parts
    try:
        reached = probe_accuracy(start.blueprint, part.images.table, part.images.groups)
    except VitkitError:  # there are too few images for a cross-validation
        return start
    if reached.value < ENOUGH:
        why = f"a head on frozen features is right for only {_in_words(reached)}"
        return replace(start, reasons=(*start.reasons, f"method full: {why}"))
    probe = _resolve_probe(request, start, runs)
    if reserve is not None:
        reserve(probe.table, probe.recipe)
    why = f"a head on frozen features is right for {_in_words(reached)}, so fine-tuning can gain little"
    return replace(probe, reasons=(f"method probe: {why} (--method full does it anyway)", *probe.reasons))


def _in_words(reached: ProbeAccuracy) -> str:
    bounds = interval_text([100 * end for end in reached.interval], 1)
    return f"{100 * reached.value:.1f} % of {reached.images} training images (95 %: {bounds}), cross-validated"


def _is_open(request: Request, start: Start, named: Collection[str]) -> bool:
    """Return whether a probe could replace the fine-tuning that `auto` has chosen.

    It could not if every image is also a test image, if the weights know some of the images, or if the user has set a
    field that a probe does not have.
    """
    if request.recipe.method != "auto" or start.recipe.method != "full" or start.recipe.folds is not None:
        return False
    (part,) = start.parts
    table = part.images.table
    if table.task is not SINGLE_LABEL or part.overlap.seen() or table.splits.count("train") > MOST:
        return False
    probe = start.recipe.replace(method="probe")
    return not set(named) & without_effect(probe, request.fields, named).keys()


def _resolve_probe(request: Request, start: Start, runs: Sequence[Path]) -> Start:
    """Resolve the same request for a probe, with the same test images."""
    fields = {**request.fields, "method": "probe"}
    probe = resolve(fields, runs=runs)
    if _tested(probe) != _tested(start):  # without validation images, large groups may be divided in another way
        probe = resolve({**fields, "split": start.recipe.split}, runs=runs)
    return probe


def _tested(start: Start) -> frozenset[str]:
    return frozenset(start.parts[0].images.table.of_split("test").paths)
