"""What was chosen on the images that a figure is of: such a figure flatters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
