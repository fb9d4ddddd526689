"""Resolve the names of weights: a bare model name, for prediction or for training; `MODEL.TAG`; `timm:NAME`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitkit.errors import VitkitError
from vitkit.model.config import Pair
from vitkit.model.names import config_for, is_model_name
from vitkit.weights.catalog import CATALOG, Entry, find, find_published, tags_of

Use = Literal["answers", "training"]
TIMM = "timm:"  # ahead of a name: the same weights, with the pixels that timm gives them

# Tags in the order in which they are taken, at the resolution that is named, or else at the nearest.
_ANSWERS = (
    "augreg_in21k_ft_in1k",  # timm's own choice where there is no newer one
    "augreg_best_in21k_ft_in1k",
    "orig_in21k_ft_in1k",
    "fb_in1k",
    "tv_in1k",
    "tv_swag_ft_in1k",
    "tv_swag_lc_in1k",
)
_TRAINING = ("augreg_best_in21k", "augreg_in21k", "orig_in21k")  # as the paper's transfers do (sec. 3.2), at 224 px
_IN21K = ("jx_in21k", "orig_in21k", "augreg_best_in21k")  # with the representation layer where there is one
_MODEL = re.compile(r"(?P<body>(?:vit|deit)_\w+)_(?P<side>\d+)(?P<in21k>_in21k)?")
_TAGGED = re.compile(r"(?P<model>\w+)\.(?P<tag>\w+)")
_SUFFIXES = ("pth", "pt", "bin", "npz", "safetensors", "ckpt", "onnx", "xml", "pt2", "json")


@dataclass(frozen=True)
class Meaning:
    """The published weights that a bare model name means.

    Attributes:
        entry: the weights.
        size: (height, width) in pixels, as the name says.
        says: which they are and why, a line.
    """

    entry: Entry
    size: Pair
    says: str


def split_timm(source: str) -> tuple[str, bool]:
    """Return a name without its prefix `timm:`, and whether it had one.

    Raises:
        VitkitError: what follows is no published name.
    """
    if not source.startswith(TIMM) or Path(source).exists():
        return source, False
    name = source.removeprefix(TIMM)
    if find(name) is None and not is_model_name(name):
        _refuse_unknown_tag(name)
        raise VitkitError(f"{source}: no published weights have that name; `vitkit models --weights` lists them")
    return name, True


def meaning_of(name: str, use: Use) -> Meaning | None:
    """Return what a bare model name means for this use; None for any other source.

    Raises:
        VitkitError: no weights of that model are published, or none for this use, or none with that tag.
    """
    if Path(name).exists() or find_published(name) is not None:
        return None
    _refuse_unknown_tag(name)
    if not is_model_name(name):
        return None
    entry = weights_for(name, use)
    if entry is None:
        raise VitkitError(_nothing_for(name, use))
    size = config_for(name).image_size
    return Meaning(entry, size, _say(name, entry, size, use))


def weights_for(model: str, use: Use) -> Entry | None:
    """Return the weights that a bare model name means.

    For an answer the ImageNet-1k classifier, for training the backbone that fine-tunes best. Names ending in `_in21k`
    mean files of ImageNet-21k for both, and DeiT has its own.
    """
    parsed = _MODEL.fullmatch(model)
    if parsed is None:
        return None
    body, side = parsed["body"], int(parsed["side"])
    if parsed["in21k"]:
        return _first(body, _IN21K)
    if use == "training" and not body.startswith("deit_"):
        return _first(body, _TRAINING)
    return min(
        (entry for entry in _of_body(body) if _tag(entry) in _ANSWERS),
        key=lambda entry: (_side(entry) != side, _ANSWERS.index(_tag(entry)), abs(_side(entry) - side)),
        default=None,
    )


def _of_body(body: str) -> list[Entry]:
    return [entry for entry in CATALOG.values() if re.fullmatch(rf"{re.escape(body)}_\d+\.\w+", entry.name)]


def _first(body: str, tags: tuple[str, ...]) -> Entry | None:
    return next(filter(None, (find(f"{body}_224.{tag}") for tag in tags)), None)


def _tag(entry: Entry) -> str:
    return entry.name.rpartition(".")[2]


def _side(entry: Entry) -> int:
    return entry.preprocess.size[0]


def _say(name: str, entry: Entry, size: Pair, use: Use) -> str:
    what = {
        "imagenet1k": "a classifier of ImageNet-1k",
        "imagenet21k": "of ImageNet-21k with its 21,843 classes",
        "none": "features without a classifier",
    }[entry.classes]
    if use == "training":
        what = "which fine-tunes best" if entry.classes == "imagenet21k" else "DeiT's own"
    resized = "" if entry.preprocess.size == size else f", its positions resized to {size[0]} pixels"
    body = entry.name.partition(".")[0].rpartition("_")[0]
    return (
        f"{entry.name} ({entry.licence}), {what}{resized}; {name} names no tag: "
        f"`vitkit models {body} --weights` lists others"
    )


def _nothing_for(name: str, use: Use) -> str:
    parsed = _MODEL.fullmatch(name)
    known = [] if parsed is None else [entry.name for entry in _of_body(parsed["body"])]
    if not known:
        return f"no weights of {name} are published under that name: it can be built, and trained from scratch"
    wanted = "classifier of ImageNet-1k" if use == "answers" else "backbone to fine-tune"
    return f"no published weights of {name} are a {wanted}; there are: {', '.join(known)}: name one of them"


def _refuse_unknown_tag(name: str) -> None:
    tagged = _TAGGED.fullmatch(name)
    if tagged is None or tagged["tag"] in _SUFFIXES or find_published(name) is not None:
        return
    if tags := tags_of(tagged["model"]):
        raise VitkitError(
            f"{tagged['model']} has no weights {tagged['tag']!r} here, but {', '.join(tags)}; what is newer than that "
            f"may be on the Hugging Face hub: timm/{name}"
        )
    if is_model_name(tagged["model"]):
        raise VitkitError(f"{tagged['model']} has no weights {tagged['tag']!r}: no tag of it is published here")
