"""What was chosen on the images that a figure is of: such a figure flatters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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


def chosen_on(split: str, recipe: Mapping[str, Any], *, is_multi: bool) -> tuple[str, ...]:
    """What a run chose on the images of a split of its own, and by what; nothing but on validation images.

    Args:
        split: train, val, test or all.
        recipe: the fields of the run's recipe.
        is_multi: whether its images may have several classes.
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
    chosen.append("thresholds by F1" if is_multi else "temperature by log loss")
    return tuple(chosen)
