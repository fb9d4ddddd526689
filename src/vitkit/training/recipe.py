"""Every choice of a training run in one dataclass. TOML files hold recipes; the flags of `vitkit train` are its fields.

Precedence: the defaults here, what is chosen from the data, the recipe file, the flags given. The resolved recipe is
written into the run.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from vitkit.data.layout import LayoutName
from vitkit.data.named import DATASETS
from vitkit.errors import VitkitError
from vitkit.system.files import without_place

BY_METHOD = "by method"  # marks fields whose default training/defaults.py sets by what is trained


@dataclass(frozen=True)
class Between:
    """Marks a field whose value, if it has one, lies from low to high."""

    low: float
    high: float


RENAMED = {  # fields of recipes and runs of before, of which no other meaning may be taken
    "accumulate": "grad_accum",
    "erase": "random_erasing",
    "head_start": "lp_ft",
    "limit": "max_images",
    "rank": "lora_rank",
}
_METHODS_RENAMED = {"head": "probe", "linear": "probe-sgd"}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to train on, which model, and how. A field that is None is left to the data or to the model's name."""

    data: Annotated[str | None, "Folder of class folders, folder with train/ and val/, or a name such as digits."] = (
        None
    )
    model: Annotated[str | None, "Model name (`vitkit models` lists them); by default the one of --weights."] = None
    image_size: Annotated[
        int | None, "Side of the input in pixels, instead of the one in the model's name.", Between(1, 1e5)
    ] = None
    weights: Annotated[
        str, "Where to start: auto (published for --model), none, a model folder, a checkpoint, or a published name."
    ] = "auto"
    method: Annotated[
        Literal["auto", "probe", "probe-sgd", "lora", "full", "scratch"],
        "What is trained: a head fitted to frozen features, a head by gradient, low-rank changes, everything, or "
        "everything from nothing.",
    ] = "auto"
    lora_rank: Annotated[int, "Rank of the changes that lora learns.", Between(1, 1e4)] = 8
    lp_ft: Annotated[
        bool,
        "Fit the new head to frozen features before the rest learns; by default when tuning weights.",
        BY_METHOD,
    ] = False
    views: Annotated[
        int, "Augmented views of each training image that a head on frozen features sees too.", Between(0, 1e4)
    ] = 0
    init: Annotated[Literal["trunc_normal", "reference"], "How weights begin when there are none."] = "trunc_normal"

    epochs: Annotated[int, "Passes over the training images.", Between(1, 1e9), BY_METHOD] = 50
    time: Annotated[str | None, "Wall-clock budget such as 90s, 10m or 2h; the schedule is fitted to it."] = None
    batch_size: Annotated[int, "Images per step.", Between(1, 1e9), BY_METHOD] = 64
    grad_accum: Annotated[int, "Batches whose gradients are added up before a step.", Between(1, 1e6)] = 1
    optimizer: Annotated[Literal["adamw", "adam", "sgd"], "Update rule."] = "adamw"
    lr: Annotated[float, "Peak learning rate.", Between(1e-12, 1e3), BY_METHOD] = 1e-3
    find_lr: Annotated[bool, "Score short runs with a tenth to ten times lr first, and take the best."] = False
    weight_decay: Annotated[
        float, "Decay of weight matrices; biases, norms, tokens and positions have none.", Between(0, 1e3)
    ] = 0.05
    decay_all: Annotated[bool, "Let biases, norms, tokens and positions decay too."] = False
    layer_decay: Annotated[
        float,
        "Each layer learns at this part of the rate of the one above it; 1 is the same rate for all.",
        Between(1e-3, 1),
        BY_METHOD,
    ] = 1.0
    momentum: Annotated[float, "Of sgd; the first beta of adam and adamw.", Between(0, 0.999999)] = 0.9
    beta2: Annotated[float, "Second beta of adam and adamw.", Between(0, 0.999999)] = 0.999
    schedule: Annotated[Literal["cosine", "linear", "constant"], "How the learning rate falls after warm-up."] = (
        "cosine"
    )
    step_per: Annotated[Literal["step", "epoch"], "How often the learning rate is set anew."] = "step"
    warmup: Annotated[
        float, "Part of the training in which the learning rate rises to lr.", Between(0, 1), BY_METHOD
    ] = 0.1
    min_lr: Annotated[float, "Learning rate at the end, as a part of lr.", Between(0, 1)] = 0.0
    clip_grad: Annotated[float, "Largest global norm of the gradient; 0 is no limit.", Between(0, 1e9)] = 1.0
    ema: Annotated[
        float,
        "Decay of a moving average of the weights, such as 0.9999, which becomes the model; 0 is none.",
        Between(0, 0.999999),
    ] = 0.0
    swa: Annotated[
        float,
        "Last part of the training whose epochs' weights are averaged into the model, such as 0.25; 0 is none.",
        Between(0, 1),
    ] = 0.0
    swa_lr: Annotated[
        float | None, "Learning rate that swa goes to; by default it stays where swa begins.", Between(1e-12, 1e3)
    ] = None
    label_smoothing: Annotated[float, "Probability spread over the other classes.", Between(0, 0.999)] = 0.1

    teacher: Annotated[
        str | None, "Imitate this model: a folder or checkpoint, a torchvision CNN, or CNN:FILE for its weights."
    ] = None
    distillation: Annotated[
        Literal["hard", "soft", "soft-deit"],
        "Imitate the teacher's decision, or its probabilities: by DeiT's paper (soft), or by its code, where the "
        "teacher counts for a K-th with K classes (soft-deit).",
    ] = "hard"
    distill_alpha: Annotated[float, "Weight of the teacher in soft distillation.", Between(0, 1)] = 0.1
    distill_temperature: Annotated[float, "Softens both sides of soft distillation.", Between(1e-3, 1e3)] = 3.0

    dropout: Annotated[float, "After attention's projection and in the MLP."] = 0.0
    attention_dropout: Annotated[float, "On the attention weights."] = 0.0
    drop_path: Annotated[float, "Stochastic depth at the last block, growing linearly from 0.", BY_METHOD] = 0.1
    patch_dropout: Annotated[
        float,
        "Part of the patches that each image loses in training, which is quicker by as much; 0 is none.",
        Between(0, 0.99),
        BY_METHOD,
    ] = 0.0
    mixup: Annotated[
        float, "Blend pairs of images and their labels; alpha of the beta distribution, 0 is off.", Between(0, 100)
    ] = 0.0
    cutmix: Annotated[
        float, "Paste a part of one image into another; alpha of the beta distribution, 0 is off.", Between(0, 100)
    ] = 0.0

    fit: Annotated[
        Literal["crop", "pad", "squash"] | None,
        "How a picture is fitted to the input; by default as the weights want.",
    ] = None
    crop_pct: Annotated[
        float | None, "Part of the sides that the centre crop keeps; by default as the weights want.", Between(1e-3, 1)
    ] = None
    interpolation: Annotated[
        Literal["bicubic", "bilinear", "lanczos", "nearest"] | None,
        "Resampling filter; by default as the weights want.",
    ] = None
    crop_scale: Annotated[
        tuple[float, float], "Part of the area a random crop keeps, from to; 0 0 is no crop.", BY_METHOD
    ] = (
        0.3,
        1.0,
    )
    hflip: Annotated[bool, "Mirror half of the pictures; --no-hflip where left and right differ."] = True
    rotate: Annotated[float, "Random rotation, degrees to either side.", Between(0, 180)] = 0.0
    translate: Annotated[float, "Random shift, as a part of the side.", Between(0, 1)] = 0.0
    zoom: Annotated[float, "Random change of size, as a part.", Between(0, 0.99)] = 0.0
    shear: Annotated[float, "Random shear, degrees to either side.", Between(0, 89)] = 0.0
    color_jitter: Annotated[
        float, "Random change of brightness, contrast and saturation, as a part.", Between(0, 10), BY_METHOD
    ] = 0.2
    rand_augment: Annotated[
        int, "Strength, 0 to 10, of two changes drawn from RandAugment's; 0 is none.", Between(0, 10)
    ] = 0
    random_erasing: Annotated[float, "Probability that a rectangle of a picture is erased.", Between(0, 1)] = 0.0

    layout: Annotated[
        LayoutName, "Whether the folders in the data's folder are classes or splits; auto: told by their names."
    ] = "auto"
    split: Annotated[tuple[float, float, float], "Parts for train, val and test, where the data has no folders."] = (
        0.7,
        0.1,
        0.2,
    )
    split_from: Annotated[
        str | None, "Keep the split of this run: pictures that it knows stay where they were, only new ones are dealt."
    ] = None
    group_by: Annotated[str | None, "Regular expression: images in whose path it finds the same stay together."] = None
    balance: Annotated[
        Literal["auto", "loss", "sampler", "none"],
        "Make rare classes count as much as others: by weight in the loss, or by showing them more often; auto: where "
        "the largest has more than 3 x the images of the smallest.",
    ] = "auto"
    prior: Annotated[
        Literal["data", "uniform"],
        "What confidences and answers are for, however training was balanced: classes as frequent as in the training "
        "data, or all alike, which finds more of the rare ones and errs more often in all.",
    ] = "data"
    folds: Annotated[
        int | None, "Cross-validate: this many runs, each testing another part of the data.", Between(2, 1e4)
    ] = None
    max_images: Annotated[
        int | None,
        "Train on at most this many images, of each class in proportion; validation and test images all stay.",
        Between(2, 1e12),
    ] = None
    monitor: Annotated[Literal["val_acc", "val_loss"], "What decides which epoch is the best.", BY_METHOD] = "val_acc"
    keep: Annotated[Literal["best", "last", "every"], "Which epoch's weights become the model."] = "best"
    patience: Annotated[int | None, "Stop after this many epochs without a better one.", Between(1, 1e9)] = None
    precision: Annotated[Literal["auto", "float32", "bfloat16"], "auto: bfloat16 where the hardware has it."] = "auto"
    seed: Annotated[int, "Of weights, split, order and augmentation: one seed, one result.", Between(0, 2**63 - 1)] = 0
    devices: Annotated[
        int | None,
        "Processes of each machine that train together, a GPU each; by default one, or what torchrun started.",
        Between(1, 1e4),
    ] = None
    nodes: Annotated[
        int | None, "Machines that train together; by default one, or what torchrun started.", Between(1, 1e4)
    ] = None
    strategy: Annotated[
        Literal["auto", "ddp", "fsdp"], "Devices hold a whole model each (ddp), or a part of it (fsdp); auto: ddp."
    ] = "auto"
    checkpointing: Annotated[
        str,
        "Blocks that are computed again in the backward pass, which takes less memory and more time: none, all, or N "
        "for every N-th.",
    ] = "none"
    compile: Annotated[
        Literal["auto", "on", "off"],
        "Let torch.compile make steps quicker, after a minute of its own; auto: on GPUs.",
    ] = "auto"
    cache: Annotated[
        Literal["auto", "ram", "disk", "none"],
        "Where decoded pictures are kept for the next epoch; auto: where they fit. The result is the same.",
    ] = "auto"
    workers: Annotated[
        int | None, "Processes that prepare images; 0 is the main one. The result is the same.", Between(0, 1e4)
    ] = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # a place may be given as a path
            if isinstance(value := getattr(self, field.name), Path):
                object.__setattr__(self, field.name, str(value))
        _check_values(self)
        _check_together(self)

    def replace(self, **changes: Any) -> Recipe:
        """A copy with fields changed.

        Raises:
            VitkitError: a field is unknown, of the wrong type, or out of range; the message names it.
        """
        return build({**dataclasses.asdict(self), **changes})

    def to_toml(self) -> str:
        """The recipe as TOML; fields that are None have no key."""
        import tomli_w

        fields = {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(self).items()}
        return tomli_w.dumps({name: value for name, value in fields.items() if value is not None})

    @property
    def budget(self) -> float | None:
        """`time` in seconds."""
        return None if self.time is None else parse_duration(self.time)


def without_places(recipe: Recipe) -> Recipe:
    """The recipe as others may read it: data, weights and teacher without where they lie."""
    teacher = recipe.teacher
    if teacher is not None:
        model, colon, file = teacher.partition(":")  # a torchvision model may have its weights in a file
        teacher = f"{model}:{without_place(file)}" if colon and Path(file).is_absolute() else without_place(teacher)
    data = None if recipe.data is None else without_place(recipe.data)
    return dataclasses.replace(recipe, data=data, weights=without_place(recipe.weights), teacher=teacher)


def name_of(recipe: Recipe) -> str:
    """What to call the model: its name, or that of the weights it starts from."""
    return recipe.model or Path(recipe.weights).name


def build(fields: dict[str, Any], source: str = "recipe") -> Recipe:
    """A recipe from plain values, as TOML and flags have them.

    Raises:
        VitkitError: a field is unknown, of the wrong type, or out of range; the message names it and `source`.
    """
    hints = get_type_hints(Recipe)
    for name in fields:
        if name in RENAMED:
            raise VitkitError(f"{source}: {name} is called {RENAMED[name]} now")
        if name not in hints:
            close = difflib.get_close_matches(name, hints, n=1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            raise VitkitError(f"{source}: unknown field {name!r}{meant}; known: {', '.join(hints)}")
    typed = {name: _coerce(name, hints[name], value, source) for name, value in fields.items()}
    try:
        return Recipe(**typed)
    except VitkitError as error:
        raise VitkitError(f"{source}: {error}") from error


def load_fields(recipe: str | Path) -> dict[str, Any]:
    """The fields of a TOML recipe: a file, or the name of one that vitkit brings along (see `bundled`).

    Raises:
        VitkitError: there is no such file or name, or it is not TOML.
    """
    path = Path(recipe)
    text = bundled().get(str(recipe))
    try:
        if path.is_file():
            text = path.read_text(encoding="utf-8")
        if text is None:
            raise VitkitError(f"no such recipe: {recipe} (a TOML file, or one of: {', '.join(sorted(bundled()))})")
        return tomllib.loads(text)
    except RecursionError as error:
        raise VitkitError(f"{recipe} is not valid TOML: it is nested too deeply") from error
    except ValueError as error:
        if isinstance(error, VitkitError):
            raise
        raise VitkitError(f"{recipe} is not valid TOML: {error}") from error


def bundled() -> dict[str, str]:
    """The text of each recipe inside the package, by name."""
    from importlib import resources  # 20 ms that `vitkit --help` need not wait for

    folder = resources.files("vitkit.recipes")
    return {
        Path(file.name).stem: file.read_text(encoding="utf-8")
        for file in folder.iterdir()
        if file.name.endswith(".toml")
    }


def resolve(flags: dict[str, Any], recipe: str | Path | None = None) -> dict[str, Any]:
    """The fields that a command asks for: its flags over those of a recipe file.

    Data that has a bundled recipe of its own name (`digits`) is trained by it when no other is named.

    Raises:
        VitkitError: no data is named, or a field is unknown, of the wrong type, or out of range.
    """
    name = published(flags, recipe)
    chosen = name or recipe
    fields = {} if chosen is None else load_fields(chosen)
    data = flags.get("data") or fields.get("data")
    if data is None:
        raise VitkitError("no data: name a folder with one sub-folder of images per class, or digits")
    build(fields, str(chosen))
    if name is not None and "model" in flags and fields.get("weights") != "none":
        fields = {**fields, "weights": "auto"}  # those of the recipe are another model's
    fields = {**fields, **flags, "data": data}
    build(fields, "flags")
    return fields


def published(flags: dict[str, Any], recipe: str | Path | None = None) -> str | None:
    """The name of the bundled recipe that a command asks for by name or by its data; None for any other."""
    if recipe is not None:
        return None if Path(recipe).is_file() or str(recipe) not in bundled() else str(recipe)
    data = flags.get("data")
    if data is None or data not in DATASETS or Path(data).exists():
        return None
    return DATASETS[data].name if DATASETS[data].name in bundled() else None


def departures(flags: dict[str, Any], recipe: str | Path | None = None) -> list[str]:
    """A line that says which values of a published recipe the flags change; none where they change none."""
    name = published(flags, recipe)
    if name is None:
        return []
    original, asked = (build(own, name).__dict__ for own in (load_fields(name), resolve(flags, recipe)))
    changed = [field for field in asked if field != "data" and asked[field] != original[field]]
    told = ", ".join(f"{field} {asked[field]} (published: {original[field]})" for field in changed)
    return [f"recipe {name}, changed: {told}"] if changed else []


def parse_duration(text: str) -> float:
    """`90s`, `10m`, `2h` or plain seconds, as seconds.

    Raises:
        VitkitError: it is none of these, or not above 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if seconds <= 0:
        raise VitkitError(f"time must be a duration such as 90s, 10m or 2h, not {text!r}")
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


_LARGEST = 2**63


def _coerce(name: str, hint: Any, value: Any, source: str) -> Any:
    """A TOML or flag value as the field's type: whole numbers serve as floats, lists as tuples; nothing is guessed."""
    options = [option for option in get_args(hint) if option is not type(None)] if _is_optional(hint) else [hint]
    if value is None and _is_optional(hint):
        return None
    kind = options[0]
    if kind is str and isinstance(value, Path):
        return str(value)
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if get_origin(kind) is tuple and isinstance(value, (list, tuple)) and len(value) == len(get_args(kind)):
        return tuple(_coerce(name, item, part, source) for item, part in zip(get_args(kind), value, strict=True))
    if type(value) is int and abs(value) > _LARGEST:
        raise VitkitError(f"{source}: {name} is far too large a number")
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind in (int, str, bool) and type(value) is kind:
        return value
    if name == "method" and value in _METHODS_RENAMED:
        raise VitkitError(f"{source}: method {value} is called {_METHODS_RENAMED[value]} now")
    raise VitkitError(f"{source}: {name} must be {_expected(kind)}, not {value!r}")


def _is_optional(hint: Any) -> bool:
    return type(None) in get_args(hint)


def _expected(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if get_origin(kind) is tuple:
        return f"{len(get_args(kind))} numbers"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]


_OF_STEPS = ("mixup", "cutmix", "ema", "swa", "patch_dropout")  # mean nothing where a head is fitted at once


@cache
def _ranges() -> dict[str, Between]:
    hints = get_type_hints(Recipe, include_extras=True)
    return {
        name: mark
        for name, hint in hints.items()
        for mark in getattr(hint, "__metadata__", ())
        if isinstance(mark, Between)
    }


def _check_values(recipe: Recipe) -> None:
    """Refuse a field that is out of range, or that cannot be read."""
    for name, within in _ranges().items():
        value = getattr(recipe, name)
        if value is not None and not within.low <= value <= within.high:
            raise VitkitError(f"{name} must be between {within.low:g} and {within.high:g}, not {value:g}")
    if not all(0 <= part <= 1 for part in recipe.split) or not abs(sum(recipe.split) - 1) <= 1e-6:
        raise VitkitError(f"split must be three parts of 1 for train, val and test, not {recipe.split}")
    if recipe.crop_scale != (0.0, 0.0) and not 0 < recipe.crop_scale[0] <= recipe.crop_scale[1] <= 1:
        raise VitkitError(f"crop_scale must be two parts of the area, least first, not {recipe.crop_scale}")
    if recipe.time is not None:
        parse_duration(recipe.time)
    checkpoint_every(recipe.checkpointing)
    try:
        re.compile(recipe.group_by or "")
    except re.error as error:
        raise VitkitError(f"group_by must be a regular expression, not {recipe.group_by!r}: {error}") from error


def _check_together(recipe: Recipe) -> None:
    """Refuse fields of which one leaves another nothing to act on."""
    if recipe.ema and recipe.swa:
        raise VitkitError("ema and swa both average the weights; choose one")
    if recipe.split_from is not None and recipe.folds is not None:
        raise VitkitError("split_from keeps one split, and folds make their own; leave out one of them")
    if recipe.swa and recipe.time:
        raise VitkitError("swa counts epochs, whose number a time budget leaves open; leave out swa or time")
    if recipe.find_lr and recipe.method == "probe":
        raise VitkitError("a head on frozen features is fitted without a learning rate; leave out --find-lr")
    if recipe.method == "probe":
        asked = [name for name in _OF_STEPS if getattr(recipe, name)]
        asked += ["balance"] if recipe.balance in ("loss", "sampler") else []
        if asked:
            raise VitkitError(
                f"method probe takes no steps, so {asked[0]} has nothing to act on; leave it out or take "
                "--method probe-sgd"
            )
    if recipe.method == "lora" and recipe.weights == "none":
        raise VitkitError("method lora changes trained weights; name some with --weights, or take --method scratch")
    if recipe.method == "scratch" and recipe.weights not in ("auto", "none"):
        raise VitkitError(f"method scratch starts without weights; leave out --weights {recipe.weights}")
