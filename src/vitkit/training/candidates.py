"""A run that is to begin from one of several weights: which one is settled before anything else of it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vitkit.data.corrected import read_corrected
from vitkit.data.overlap import find_overlap
from vitkit.data.splits import check_trainable
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.system.progress import Progress
from vitkit.training.defaults import complete
from vitkit.training.lineage import Images, ancestry_of
from vitkit.training.recipe import Recipe, build
from vitkit.training.recipe_values import candidates, parse_duration
from vitkit.training.selected import Selection
from vitkit.training.selection import select
from vitkit.training.settling import Settled, settle
from vitkit.training.setup import start_of


def choose_and_settle(
    fields: dict[str, Any],
    progress: Progress,
    take_place: Callable[[ImageTable, Sequence[Recipe]], None],
    runs: Sequence[Path] = (Path("runs"),),
) -> tuple[Settled, Selection | None]:
    """`settle`, of the best of the weights that the fields name; how they fared is None where they name one.

    Every candidate is settled as if it alone had been named, and must lead to the same split.

    Args:
        fields: of the recipe, by name; its `data` must be set.
        progress: told what is being done, how many are done, of how many.
        take_place: as of `settle`, with the recipe of each candidate.
        runs: as of `settle`.

    Raises:
        VitkitError: the data or the recipe cannot be trained on, or a candidate knows some of the images.
    """
    asked = build(fields, "flags")
    if asked.select_time is None:
        return settle(fields, progress, lambda table, recipe: take_place(table, [recipe]), runs), None
    own = [{**fields, "weights": name, "select_time": None} for name in candidates(asked)]
    recipes = _recipes(own, progress)
    first = settle(own[0], progress, lambda table, _: take_place(table, recipes), runs)
    (part,) = first.parts
    for recipe in recipes:
        _refuse_known(part.images, recipe, progress)
    seconds = parse_duration(asked.select_time, "select_time")
    selection = select(recipes, part.images.table, part.images.groups, seconds, progress)
    place = [recipe.weights for recipe in recipes].index(selection.chosen)
    if place == 0:
        return first, selection
    settled = settle(own[place], progress, runs=runs)
    assert settled.parts[0].images.table.splits == part.images.table.splits  # which no candidate has a say in
    return settled, selection


def _recipes(own: list[dict[str, Any]], progress: Progress) -> list[Recipe]:
    """Each candidate's, settled: what cannot be built should fail before the images are read."""
    table = read_corrected(own[0]["data"], own[0].get("labels"), progress, own[0].get("layout", "auto"))
    check_trainable(table)
    recipes = [complete(fields, table)[0] for fields in own]
    for recipe in recipes:
        try:
            start_of(recipe, table.classes, progress)
        except VitkitError as error:
            raise VitkitError(f"{recipe.weights}: {error}") from error
    return recipes


def _refuse_known(images: Images, recipe: Recipe, progress: Progress) -> None:
    """Refuse weights that have learned some of these images: no part of them is a test of what they know."""
    record = ancestry_of(recipe.replace(teacher=None), None, progress)
    told = partial(progress, f"comparing with {recipe.weights}")
    if seen := len(find_overlap(record, images.table, images.facts, told).seen()):
        raise VitkitError(
            f"{recipe.weights} has seen {seen} of these {len(images.table)} images, which would flatter it beside the "
            "others: leave it out, or name the weights that it began from"
        )
