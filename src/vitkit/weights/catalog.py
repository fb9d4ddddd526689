"""The catalog of published weights, with their addresses, preprocessing, classes, licences, papers and accuracies.

Names are those of timm, MODEL.TAG, if timm has the same weights. `augreg_in21k` and `augreg_in21k_ft_in1k` are the
AugReg weights that timm chose; `augreg_best_in21k` and `augreg_best_in21k_ft_in1k` are those that AugReg's authors
recommend (arXiv 2106.10270). `orig_*` are the files of the first paper. `jx_in21k` are some of these files, converted
together with the representation layer. `tv_*` are torchvision's weights. Repositories on the Hugging Face hub are named
by id.

The facts are in data files next to this module. catalog.csv, which is written by hand, has the weights of `CATALOG`.
published.csv has further facts about these, and all of timm's other weights; `benchmarks/catalog.py` writes it, and
names the sources. An empty cell means that no source is known.

`choose_weights` finds the published weights for a model name without a tag, for prediction or for training.
`split_timm` handles names with the prefix `timm:`.
"""

from __future__ import annotations

import csv
import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from vitkit.data.preprocess import Preprocess
from vitkit.errors import VitkitError
from vitkit.model import config
from vitkit.model.config import Pair
from vitkit.model.names import IMAGENET_21K, config_for, is_model_name

Classes = Literal["imagenet1k", "imagenet21k", "other", "none"]

# Names in timm's style that timm does not have.
_NOT_IN_TIMM = (
    "vit_base_patch8_224.orig_in21k",
    "vit_base_r26_s32_224.orig_in21k",
    "vit_large_r50_s32_224.orig_in21k",
    "vit_base_patch32_384.orig_in21k_ft_in1k",
    "vit_large_patch16_384.orig_in21k_ft_in1k",
    "vit_large_patch16_224.orig_in21k_ft_in1k",
)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One set of published weights: a file at `url`, or a repository on the Hugging Face `hub`.

    Attributes:
        name: the name that users type.
        architecture: the name of the model in vitkit, or timm's name if vitkit has none, as for DINOv2.
        preprocess: the preprocessing of the authors' evaluation. The `preprocessor_config.json` of a hub repository may
            differ from it.
        classes: the classes of the head: `imagenet1k`, `imagenet21k`, `other` for other classes or a projection, or
            `none` if the model has no head.
        sha256: the file's SHA-256, all digits or the first ones; None if it is not published.
        licence: the SPDX identifier, or a name if there is none; empty if no licence is stated.
        paper: the arXiv number; empty for weights of timm that are not in `CATALOG`.
        top1: the published accuracy on ImageNet-1k in percent, at `preprocess.size`.
    """

    name: str
    architecture: str
    preprocess: Preprocess
    licence: str
    paper: str
    url: str | None = None
    hub: str | None = None
    classes: Classes = "none"
    sha256: str | None = None
    top1: float | None = None

    @property
    def timm(self) -> Preprocess | None:
        """Return the preprocessing that timm uses for the weights with this name; None if timm has no such name."""
        if not self.paper:  # an entry from timm's table
            return self.preprocess
        if self.hub or self.name in _NOT_IN_TIMM or re.search(r"\.(augreg_best_\w+|jx_in21k|tv_\w+)$", self.name):
            return None
        is_small = self.preprocess.size[0] < 384
        return replace(self.preprocess, fit="crop", interpolation="bicubic", crop_pct=0.9 if is_small else 1.0)

    @property
    def tag(self) -> str:
        """The last part of the name, such as `augreg_in21k`."""
        return self.name.rpartition(".")[2]


FILE = Path(__file__).with_name("published.csv")
COLUMNS = (
    *("name", "hub", "url", "family", "data", "licence", "gated"),
    *("height", "width", "fit", "crop_pct", "interpolation", "mean", "std", "classes"),
    *("parameters", "gmacs", "top1", "measured", "source"),
)
_CLASSES: dict[str, Classes] = {"1000": "imagenet1k", "21843": "imagenet21k", "0": "none"}


@dataclass(frozen=True)
class ModelFacts:
    """Facts that help a user to choose weights.

    Attributes:
        family: the model family according to the name, such as CLIP.
        data: the data sets that the weights were trained on, first to last, according to the name.
        gated: `yes` if the download requires an account and accepting the terms, `no` if not; empty if unknown.
        parameters: the number of parameters; None if unknown.
        gmacs: 10^9 multiply-accumulate operations per image; None if unknown.
        top1: the published accuracy on ImageNet-1k in percent; None if unknown.
        measured: how the weights were trained for `top1`: `linear` (only a head), `fine-tuned` (after training on other
            data) or `trained` (on ImageNet-1k only).
        source: the source of `top1`.
    """

    family: str = ""
    data: str = ""
    gated: str = ""
    parameters: int | None = None
    gmacs: float | None = None
    top1: float | None = None
    measured: str = ""
    source: str = ""


@cache
def _rows() -> dict[str, dict[str, str]]:
    with FILE.open(newline="", encoding="utf-8") as text:
        return {row["name"]: row for row in csv.DictReader(text)}


def facts_of(name: str) -> ModelFacts:
    """Return the facts about published weights with this name; for any other name, all facts are unknown."""
    row = _rows().get(name)
    if row is None:
        return ModelFacts()
    facts: dict[str, Any] = {name: row[name] for name in ("family", "data", "gated", "measured", "source")}
    for name, kind in (("parameters", int), ("gmacs", float), ("top1", float)):
        facts[name] = kind(row[name]) if row[name] else None
    return ModelFacts(**facts)


def _entry(row: Mapping[str, str]) -> Entry:
    fields: dict[str, Any] = {name: row[name] for name in ("name", "architecture", "classes", "licence", "paper")}
    pixels: dict[str, Any] = {name: row[name] for name in ("fit", "interpolation")}
    mean, std = (tuple(map(float, row[column].split())) for column in ("mean", "std"))
    size = (int(row["height"]), int(row["width"]))
    return Entry(
        **fields,
        preprocess=Preprocess(size=size, crop_pct=float(row["crop_pct"]), mean=mean, std=std, **pixels),
        url=row["url"] or None,
        hub=row["hub"] or None,
        sha256=row["sha256"] or None,
        top1=float(row["top1"]) if row["top1"] else None,
    )


# Models that vitkit loads only as networks of timm: attention is a difference of two maps, or parallel to the MLP.
ONLY_TIMMS = re.compile(r"vit_(dwee|dlittle|pwee|dpwee)_\w+")
HUB = "hf:"  # prefix of a repository on the hub, even if a path on disk has its name

with FILE.with_name("catalog.csv").open(newline="", encoding="utf-8") as _text:
    CATALOG: dict[str, Entry] = {row["name"]: _entry(row) for row in csv.DictReader(_text)}


def find(name: str) -> Entry | None:
    """Return the entry of this name in `CATALOG` or among timm's weights; None if there is none."""
    if name in CATALOG or name not in _rows():
        return CATALOG.get(name)
    row = _rows()[name]
    kind = _CLASSES.get(row["classes"], "other")
    return _entry({**row, "architecture": name.partition(".")[0], "classes": kind, "paper": "", "sha256": ""})


def names() -> list[str]:
    """Return the names of all published weights: those in `CATALOG`, then timm's others."""
    return list(_rows())


def search(pattern: str = "*") -> list[Entry]:
    """Return the entries whose name matches a shell pattern (`*base*`) or contains a text (`base`)."""
    matches = [name for name in names() if fnmatch.fnmatch(name, pattern) or pattern in name]
    return [entry for entry in map(find, matches) if entry is not None]


def tags_of(model: str) -> list[str]:
    """Return the tags of the published weights of a model."""
    return [name.partition(".")[2] for name in names() if name.startswith(f"{model}.")]


def suggest(name: str) -> str:
    """Return a suggestion in parentheses: similar names, or the tags of a model; "" if there are none."""
    if known := tags_of(name):
        instead = f"{name}.{known[0]}" if len(known) == 1 else f"one of its tags: {', '.join(known)}"
        return f" (name {instead})"
    return config.suggest(name, names())


def is_hub_id(name: str) -> bool:
    """Return whether an unknown name has the form of a repository on the hub, `owner/name`, and is not a path.

    A name is a path if its parent folder exists or is called `runs`, or if it has the suffix of a weight file.
    """
    if not re.fullmatch(r"\w[\w-]*/\w[\w.-]*", name, re.ASCII) or ".." in name or "--" in name:
        return False
    if name.endswith((".", "-")) or Path(name).suffix in (".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt"):
        return False
    owner = Path(name).parent
    return owner.name != "runs" and not owner.exists()


_CLASS_FILES = {
    1000: ("imagenet_classes.txt", "ImageNet's names"),
    IMAGENET_21K: ("imagenet21k_classes.txt", "ImageNet-21k's names in the order of Google's files"),
}


def class_names(count: int) -> tuple[tuple[str, ...], str]:
    """Return names for the classes of a head with `count` classes, and a note about their source.

    A head with as many classes as ImageNet-1k or ImageNet-21k gets their names. Any other head gets numbers.
    """
    if count not in _CLASS_FILES:
        return tuple(map(str, range(count))), f"numbers, as no names of the {count} classes were found"
    file, description = _CLASS_FILES[count]
    text = resources.files("vitkit.weights").joinpath(file).read_text(encoding="utf-8")
    return tuple(text.splitlines()), f"{description}, as the head has {count} classes"


def imagenet_synsets() -> dict[str, str]:
    """Return the names of ImageNet's classes by their WordNet ids, such as `n01440764`."""
    folder = resources.files("vitkit.weights")
    ids, names = (
        folder.joinpath(f"imagenet_{what}.txt").read_text(encoding="utf-8").splitlines()
        for what in ("synsets", "classes")
    )
    return dict(zip(ids, names, strict=True))


def unique(names: Sequence[str]) -> tuple[str, ...]:
    """Make class names unique by appending its class number to each repetition of a name.

    For example, ImageNet-21k has a bird and a machine called crane. The machine becomes `crane (6017)`.
    """
    first: dict[str, int] = {}  # the first class with each name
    return tuple(name if first.setdefault(name, i) == i else f"{name} ({i})" for i, name in enumerate(names))


Use = Literal["answers", "training"]
TIMM = "timm:"  # prefix of a name: the same weights with timm's preprocessing

# Tags in order of preference for each use.
_ANSWERS = (
    "augreg_in21k_ft_in1k",  # timm's default unless there is a newer one
    "augreg_best_in21k_ft_in1k",
    "orig_in21k_ft_in1k",
    "fb_in1k",
    "tv_in1k",
    "tv_swag_ft_in1k",
    "tv_swag_lc_in1k",
)
_TRAINING = ("augreg_best_in21k", "augreg_in21k", "orig_in21k")  # as the paper's transfers do (sec. 3.2), at 224 px
_IN21K = ("jx_in21k", "orig_in21k", "augreg_best_in21k")  # weights with a representation layer first
_MODEL = re.compile(r"(?P<body>(?:vit|deit)_\w+)_(?P<side>\d+)(?P<in21k>_in21k)?")
_TAGGED = re.compile(r"(?P<model>\w+)\.(?P<tag>\w+)")
_SUFFIXES = ("pth", "pt", "bin", "npz", "safetensors", "ckpt", "onnx", "xml", "pt2", "json")


@dataclass(frozen=True)
class ChosenWeights:
    """The published weights that were chosen for a model name without a tag.

    Attributes:
        entry: the weights.
        size: the (height, width) in the model name, in pixels.
        note: a line for the user about the chosen weights and the reason.
    """

    entry: Entry
    size: Pair
    note: str


def split_timm(source: str) -> tuple[str, bool]:
    """Remove the prefix `timm:` from the name of weights or a model; also return whether it had the prefix."""
    if not source.startswith(TIMM) or Path(source).exists():
        return source, False
    name = source.removeprefix(TIMM)
    if name not in CATALOG and not is_model_name(name):
        _check_tag(name)
        raise VitkitError(
            "weights.name-unknown",
            f"{source}: no published weights have that name; `vitkit models --weights` lists them",
        )
    return name, True


def choose_weights(name: str, use: Use) -> ChosenWeights | None:
    """Choose the published weights for a model name without a tag.

    Return None for an existing path, for the full name of published weights, and for a name that is no model's.

    Raises:
        VitkitError: the model has no published weights, or none for this use; or the name has an unknown tag.
    """
    if Path(name).exists() or name in _rows():
        return None
    _check_tag(name)
    if not is_model_name(name):
        return None
    entry = weights_for(name, use)
    if entry is None:
        parsed = _MODEL.fullmatch(name)
        known = [] if parsed is None else _entries_of(parsed["body"])
        if not known:
            raise VitkitError(
                "weights.weights-unpublished",
                f"no weights of {name} are published under that name: it can only be trained from scratch",
            )
        wanted = "classifier of ImageNet-1k" if use == "answers" else "backbone to fine-tune"
        raise VitkitError(
            "weights.weights-unpublished",
            f"no published weights of {name} are a {wanted}; use one of these: "
            f"{', '.join(other.name for other in known)}",
        )
    size = config_for(name).image_size
    resized = "" if entry.preprocess.size == size else f", its positions resized to {size[0]} pixels"
    body = entry.name.partition(".")[0].rpartition("_")[0]
    note = (
        f"{entry.name} ({entry.licence}){resized}; {name} names no tag: `vitkit models {body} --weights` lists others"
    )
    return ChosenWeights(entry, size, note)


def weights_for(model: str, use: Use) -> Entry | None:
    """Return the best published weights for a model name without a tag; None if there are none for this use.

    For predictions, the best weights are an ImageNet-1k classifier. For training, they are the backbone that fine-tunes
    best. In both cases, names that end with `_in21k` stand for weights of ImageNet-21k, and DeiT's names stand for
    DeiT's weights.
    """
    parsed = _MODEL.fullmatch(model)
    if parsed is None:
        return None
    body, side = parsed["body"], int(parsed["side"])
    if parsed["in21k"] or (use == "training" and not body.startswith("deit_")):
        names = [f"{body}_224.{tag}" for tag in (_IN21K if parsed["in21k"] else _TRAINING)]
        return next((CATALOG[name] for name in names if name in CATALOG), None)

    def preference(entry: Entry) -> tuple[bool, int, int]:
        """Prefer the named resolution, then the order of the tags, then the nearest resolution."""
        entry_side = entry.preprocess.size[0]
        return entry_side != side, _ANSWERS.index(entry.tag), abs(entry_side - side)

    return min((entry for entry in _entries_of(body) if entry.tag in _ANSWERS), key=preference, default=None)


def _entries_of(body: str) -> list[Entry]:
    """Return the weights of a model, such as `vit_base_patch16`, at any resolution."""
    return [entry for entry in CATALOG.values() if re.fullmatch(rf"{re.escape(body)}_\d+\.\w+", entry.name)]


def _check_tag(name: str) -> None:
    tagged = _TAGGED.fullmatch(name)
    if tagged is None or tagged["tag"] in _SUFFIXES or name in _rows():
        return
    tags = tags_of(tagged["model"])
    if tags or is_model_name(tagged["model"]):
        raise VitkitError(
            "weights.tag-unknown",
            f"{tagged['model']} has no weights {tagged['tag']!r} in the catalog, only {', '.join(tags) or 'none'}; "
            f"newer ones may be on the Hugging Face hub: timm/{name}",
        )
