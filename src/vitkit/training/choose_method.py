"""`--method auto`: choose between a linear probe and fine-tuning, and decide whether images are set aside.

Below `defaults.FEW` training images per class, the method is a linear probe (`defaults.choose`). If the total number of
images is small as well, the probe is trained on all images, and no image is set aside. Fitting a probe takes about a
second, so each image can test a probe that was trained without it.

With more images per class, the choice depends on the classes: frozen features distinguish two kinds of insects, but not
seventeen kinds of flowers. A linear probe is therefore cross-validated on the training images, which takes one pass
over them. If its accuracy is high enough, the probe becomes the model, and fine-tuning is omitted. No validation or
test image is used for this choice, and the test images stay the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from vitkit.data.table import ImageTable
from vitkit.data.task import SINGLE_LABEL
from vitkit.errors import VitkitError
from vitkit.text.cells import interval_text
from vitkit.training.defaults import NOT_SET_ASIDE, without_effect
from vitkit.training.probe import PARTS
from vitkit.training.recipe import Recipe, Request
from vitkit.training.select_weights import ProbeAccuracy, probe_accuracy
from vitkit.training.start import Start, resolve

ENOUGH = 0.95  # above this cross-validated accuracy of a probe, fine-tuning gained less than a point (docs/log.md)
MOST = 1_000  # with more training images, fine-tuning gains even if the accuracy of the probe exceeds ENOUGH
_FEW_ALTOGETHER = 1_000  # with more images, setting a fifth aside as a test set costs little


def resolve_method(
    request: Request,
    reserve: Callable[[ImageTable, Recipe], None] | None,
    runs: Sequence[Path],
    named: Collection[str] = (),
) -> Start:
    """Resolve a request as `start.resolve` does. If its method is `auto`, choose the method by testing a linear probe.

    Args:
        request: the requested fields; `data` must be set.
        reserve: see `resolve`; called with the first recipe, and again if another recipe replaces it.
        runs: see `resolve`.
        named: the fields that the user set for this training.

    Raises:
        VitkitError: the data or the recipe cannot be trained on.
    """
    start = resolve(request, reserve, runs)
    if _can_train_on_all(request, start, named):
        train, _, test = start.recipe.split
        why = (
            "every image trains the model: with so few, each also tests a head that is trained without it "
            f"(--split {train:g} 0 {test:g} to set test images aside)"
        )
        reasons = [why if reason == NOT_SET_ASIDE else reason for reason in start.reasons]
        on_all = resolve({**request.fields, "method": "probe", "split": (1.0, 0.0, 0.0)}, reserve, runs)
        return replace(on_all, reasons=tuple(reasons))
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


def _can_train_on_all(request: Request, start: Start, named: Collection[str]) -> bool:
    """Return whether no image needs to be set aside, because each can test a head that is fitted without it.

    This requires few images, a probe that `auto` has chosen, and no request about the split. No image may be split
    already, have been seen by the weights, or have a label that a model proposed.
    """
    recipe = start.recipe
    is_few = request.recipe.method == "auto" and recipe.method == "probe" and recipe.folds is None
    is_named = {"split", "split_seed"} & ({*request.fields} | {*named}) or recipe.split_from is not None
    if not is_few or is_named or any(start.table.splits) or recipe.head_from == "names" or recipe.prior != "data":
        return False
    (part,) = start.parts
    table = part.images.table
    if table.task is not SINGLE_LABEL or len(table) > _FEW_ALTOGETHER or part.proposals or part.overlap.seen():
        return False
    pairs = set(zip(table.labels, part.images.groups, strict=True))
    return max(Counter(label for label, _ in pairs).values()) >= PARTS


def _is_open(request: Request, start: Start, named: Collection[str]) -> bool:
    """Return whether a probe could replace the fine-tuning that `auto` has chosen.

    It could not in a cross-validation, for multi-label images, or for many images. Neither could it if the weights had
    seen some of the images, or if the user has set a field that has no effect on a probe.
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
    """Resolve the user's request with `method="probe"`, and with the test images of `start`."""
    fields = {**request.fields, "method": "probe"}
    probe = resolve(fields, runs=runs)
    if _tested(probe) != _tested(start):  # without validation images, large groups may be divided in another way
        probe = resolve({**fields, "split": start.recipe.split}, runs=runs)
    return probe


def _tested(start: Start) -> frozenset[str]:
    return frozenset(start.parts[0].images.table.of_split("test").paths)
