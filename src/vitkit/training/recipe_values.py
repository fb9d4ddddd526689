"""What a field of a recipe may be: read from TOML and flags, and checked, alone and beside the others."""

from __future__ import annotations

import re
from typing import Any

from vitkit.errors import VitkitError
from vitkit.text.fields import check_ranges

BY_METHOD = "by method"  # marks fields whose default training/defaults.py sets by what is trained


RENAMED = {  # fields of recipes and runs of before, of which no other meaning may be taken
    "accumulate": "grad_accum",
    "erase": "random_erasing",
    "head_start": "lp_ft",
    "limit": "max_images",
    "rank": "lora_rank",
}
METHODS_RENAMED = {"head": "probe", "linear": "probe-sgd"}


def join_weights(weights: Any) -> Any:
    """A list of weights as one text with commas between them; anything else as it is.

    Raises:
        VitkitError: the name of some has a comma itself.
    """
    if not isinstance(weights, (list, tuple)):
        return weights
    names = [str(name) for name in weights]
    for name in names:
        if len(names) > 1 and "," in name:
            raise VitkitError(f"weights: {name!r} has a comma in its name, which stands between several: rename it")
    return ",".join(names)


def candidates(recipe: Any) -> tuple[str, ...]:
    """The weights that a recipe asks to choose among; where nothing is to be chosen, those that it names.

    Raises:
        VitkitError: there are not two, or one is no weights.
    """
    if recipe.select_time is None:
        return (recipe.weights,)
    names = tuple(name.strip() for name in recipe.weights.split(","))
    if len(set(names)) < 2 or len(set(names)) < len(names) or not all(names):
        raise VitkitError(
            f"select_time chooses among several weights, and these are {recipe.weights!r}: name them with commas "
            "between them, as in --weights a,b, each once"
        )
    for name in names:
        if name in ("auto", "none"):
            raise VitkitError(f"select_time tries weights on the photographs, and {name} names none: leave it out")
    return names


def parse_duration(text: str, name: str = "time") -> float:
    """`90s`, `10m`, `2h` or plain seconds, as seconds.

    Raises:
        VitkitError: it is none of these, or not above 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if seconds <= 0:
        raise VitkitError(f"{name} must be a duration such as 90s, 10m or 2h, not {text!r}")
    return seconds


def checkpoint_every(text: str) -> int:
    """`none`, `all` or a number as what `VisionTransformer.checkpointing` takes.

    Raises:
        VitkitError: it is none of these.
    """
    if text in ("none", "all"):
        return int(text == "all")
    if not text.isdecimal() or len(text) > 6 or not 0 < int(text) < 10**6:
        raise VitkitError(f"checkpointing must be none, all, or a whole number above 0, not {text!r}")
    return int(text)


def check_values(recipe: Any) -> None:
    """Refuse a field that is out of range, or that cannot be read."""
    check_ranges(recipe)
    if not all(0 <= part <= 1 for part in recipe.split) or not abs(sum(recipe.split) - 1) <= 1e-6:
        raise VitkitError(f"split must be three parts of 1 for train, val and test, not {recipe.split}")
    if recipe.crop_scale != (0.0, 0.0) and not 0 < recipe.crop_scale[0] <= recipe.crop_scale[1] <= 1:
        raise VitkitError(f"crop_scale must be two parts of the area, least first, not {recipe.crop_scale}")
    for name in ("time", "select_time"):
        if getattr(recipe, name) is not None:
            parse_duration(getattr(recipe, name), name)
    checkpoint_every(recipe.checkpointing)
    try:
        re.compile(recipe.group_by or "")
    except re.error as error:
        raise VitkitError(f"group_by must be a regular expression, not {recipe.group_by!r}: {error}") from error


def check_together(recipe: Any) -> None:
    """Refuse fields that contradict one another; what has nothing to act on is a matter of `training.effects`."""
    if recipe.image_size is not None and "image_size" in (recipe.model_fields or {}):
        raise VitkitError("image_size is given twice, as image_size and as model.image_size: leave out one of them")
    if recipe.ema and recipe.swa:
        raise VitkitError("ema and swa both average the weights; choose one")
    candidates(recipe)
    if recipe.select_time is not None and recipe.folds is not None:
        raise VitkitError(
            "select_time chooses weights by their training images, and folds test every image: the figures of weights "
            "that were chosen by them would flatter; leave out one of the two"
        )
    if recipe.split_from is not None and recipe.folds is not None:
        raise VitkitError("split_from keeps one split, and folds make their own; leave out one of them")
    if recipe.swa and recipe.time:
        raise VitkitError("swa counts epochs, whose number a time budget leaves open; leave out swa or time")
    if recipe.head_from == "names" and (recipe.weights == "none" or recipe.lp_ft):
        what = "lp_ft fits it to photographs" if recipe.lp_ft else "there are no weights whose text encoder knows them"
        raise VitkitError(f"head_from names begins the head from the class names, and {what}; leave out one of the two")
    if recipe.method == "lora" and recipe.weights == "none":
        raise VitkitError("method lora changes trained weights; name some with --weights, or take --method scratch")
    if recipe.method == "scratch" and recipe.weights not in ("auto", "none"):
        raise VitkitError(f"method scratch starts without weights; leave out --weights {recipe.weights}")
