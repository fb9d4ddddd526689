"""The settings of a training run, as a dataclass.

The flags of `vitkit train` are the fields of `Recipe`, and recipe files contain the fields as TOML. The value of a
field comes from the first of these sources that sets it: the flag, the recipe file, an automatic choice for the data,
the default. The complete recipe is stored in the run folder.

The `[model]` table of a recipe, and `--set model.FIELD=VALUE`, change fields of a named model's `ViTConfig`. If the
recipe has a field of the same name (`dropout`, `image_size`, ...), the value is moved to the recipe, so that each
setting has one place (docs/decisions/0023-the-model-of-a-recipe.md).
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_args

from vitkit.data.layout import LayoutName
from vitkit.errors import VitkitError
from vitkit.model.config import PAIRS, ViTConfig, as_pair, canonical, suggest
from vitkit.system.environment import DeviceName
from vitkit.system.files import without_place
from vitkit.text.arguments import Between, as_typed, from_text, hints_of, settle_types, shown

_OF_ALIASES = {"mlp_ratio": float, "distilled": bool, "has_logits": bool}


def settle_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Convert changed fields of a model to the types of `ViTConfig`. `none` becomes None if the field can be None.

    Args:
        changes: the changed fields, as for the keyword arguments of `create_model`.

    Raises:
        VitkitError: a field is unknown (similar names are suggested), or a value has the wrong type.
    """
    return {name: _settled(name, value) for name, value in canonical(changes).items()}


def read_change(name: str, text: str) -> dict[str, Any]:
    """Parse a change of a model's field from text, such as a flag. Commas separate the numbers of a tuple.

    Raises:
        VitkitError: see `settle_changes`.
    """
    return {field: _settled(field, _read(field, value)) for field, value in canonical({name: text}).items()}


def _read(name: str, text: str) -> Any:
    is_one = name in PAIRS and text != "none" and "," not in text
    return from_text(f"model.{name}", int if is_one else _hint(name), text)


def _settled(name: str, value: Any) -> Any:
    hint = _hint(name)
    if type(None) in get_args(hint) and value in ("none", None):
        return None
    if name in PAIRS:
        return as_pair(value, f"model.{name}")
    return as_typed(f"model.{name}", hint, value)


def _hint(name: str) -> Any:
    hints = {**hints_of(ViTConfig), **_OF_ALIASES}
    if name not in hints:
        suggestion = suggest(name, list(hints)) or f"; known: {', '.join(hints)}"
        raise VitkitError(f"unknown field model.{name}{suggestion}")
    return hints[name]


OF_THE_RECIPE = ("image_size", "dropout", "attention_dropout", "drop_path", "init")
_PREFIX = "model."
SET_ONLY = (  # fields without a flag of their own, which `--set` changes
    *("init", "decay_all", "step_per", "swa_lr", "fit", "crop_pct", "interpolation", "zoom", "shear", "split_seed"),
    "head_from",
)


def read_sets(texts: Iterable[str], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the arguments of `--set` into fields.

    `model.FIELD=VALUE` sets a field of `ViTConfig`. These fields, and `name`, which is the name of the model, are in
    the mapping `model_fields` of the result.

    Args:
        texts: the arguments, such as `shear=5` or `model.position=none`.
        hints: the type of each field that can be set, by name.

    Raises:
        VitkitError: a text is not `FIELD=VALUE`, or a field is unknown, given twice, or of the wrong type.
    """
    fields: dict[str, Any] = {}
    of_model: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise VitkitError(
                f"--set {text}: --set expects FIELD=VALUE, as in --set shear=5 or --set model.position=none"
            )
        if not key.startswith(_PREFIX):
            if key not in hints or key == "model_fields":
                raise VitkitError(f"--set {text}: unknown field {key!r}{suggest(key, list(hints))}")
            _refuse_twice(key, fields, f"--set {key}")
            fields[key] = from_text(key, hints[key], value)
            continue
        name = key.removeprefix(_PREFIX)
        change = {name: value} if name == "name" else read_change(name, value)
        for field in change:
            _refuse_twice(field, of_model, f"--set {_PREFIX}{field}")
        of_model |= change
    return fields | ({"model_fields": of_model} if of_model else {})


def unfold(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten the fields of a recipe: `model` becomes a name, and the changes of the model become `model_fields`.

    If a changed field of the model is also a field of the recipe, such as `dropout`, its value is moved to the recipe.

    Args:
        fields: the fields; `model` may be a table, as in TOML, and `model_fields` may have any field of the model.

    Raises:
        VitkitError: a field of the model is unknown, has the wrong type, depends on the data, or is given twice; or a
            table is empty.
    """
    unfolded = dict(fields)
    changes: dict[str, Any] = {}
    for place in ("model", "model_fields"):
        if isinstance(fields.get(place), Mapping):
            if not fields[place]:
                raise VitkitError(f"{place} is empty: set a field in it, or leave it out")
            for name, value in unfolded.pop(place).items():
                _refuse_twice(name, changes, f"model.{name}")
                changes[name] = value
    check_model_fields(unfolded.get("model_fields"))  # it may be None or not a table
    if "name" in changes:
        if unfolded.get("model") is not None:
            raise VitkitError(
                f"model is given twice, as {unfolded['model']} and as {changes['name']}: leave out one of them"
            )
        unfolded["model"] = changes.pop("name")
    changes = settle_changes(changes)
    for name in OF_THE_RECIPE:
        if name in changes:
            if unfolded.get(name) is not None:
                raise VitkitError(f"{name} is given twice, as {name} and as model.{name}: leave out one of them")
            value = changes[name]
            if name != "image_size" or value[0] == value[1]:
                unfolded[name] = changes.pop(name) if name != "image_size" else changes.pop(name)[0]
    if changes:
        unfolded["model_fields"] = changes
    return unfolded


def overlay(fields: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Override the fields of a recipe, and those of its model, by flags. Both arguments must be results of `unfold`."""
    below = {name: value for name, value in (fields.get("model_fields") or {}).items() if name not in flags}
    above = flags.get("model_fields") or {}
    merged = {**fields, **flags, "model_fields": {**below, **above}}
    if "image_size" in above:  # a size that is not square replaces a side
        merged.pop("image_size", None)
    return merged if merged["model_fields"] else {k: v for k, v in merged.items() if k != "model_fields"}


def check_model_fields(changes: Any) -> dict[str, Any] | None:
    """Check the changed fields of a model, and convert them to the right types. Return None if there are none.

    Raises:
        VitkitError: a change is not a field of a model, has the wrong type, or concerns a field that the recipe or the
            data determines.
    """
    if changes is None or (isinstance(changes, Mapping) and not changes):
        return None
    if not isinstance(changes, Mapping) or not all(isinstance(name, str) for name in changes):
        raise VitkitError(f"model_fields must be a table of the model's fields, not {shown(changes)}")
    settled = settle_changes(changes)
    if "num_classes" in settled:
        raise VitkitError("model.num_classes is determined by the data: leave it out")
    for name in OF_THE_RECIPE:
        if name in settled and not (name == "image_size" and settled[name][0] != settled[name][1]):
            raise VitkitError(f"{name} is a field of the recipe itself, not one of model_fields")
    return settled


def to_table(name: str | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the name and the changed fields of a model to a `[model]` table.

    None becomes the text `none`, because TOML has no null.
    """
    plain = {key: "none" if v is None else list(v) if isinstance(v, tuple) else v for key, v in changes.items()}
    return plain if name is None else {"name": name, **plain}


def in_words(changes: Mapping[str, Any]) -> str:
    """Describe the changed fields of a model in words, as in `position none, layers 6`."""
    return ", ".join(
        f"{name} {','.join(map(str, value)) if isinstance(value, tuple) else str(value).lower()}"
        for name, value in changes.items()
    )


def _refuse_twice(name: str, known_fields: Mapping[str, Any], what: str) -> None:
    if name in known_fields:
        raise VitkitError(f"{what} is given twice: leave out one of them")


SAVE_EVERY = "10m"  # the default of `save_every`
BY_METHOD = "by method"  # marks fields whose default training/defaults.py sets by what is trained


RENAMED = {  # former names of fields; these names must not get another meaning
    "accumulate": "grad_accum",
    "erase": "random_erasing",
    "head_start": "lp_ft",
    "limit": "max_images",
    "rank": "lora_rank",
}
METHODS_RENAMED = {"head": "probe", "linear": "probe-sgd"}
# Fields of earlier versions, with the values that had no effect; the recipe of each earlier run has them.
RETIRED = {"views": 0, "wise_ft": False}


def parse_duration(text: str, name: str = "time") -> float:
    """Parse `90s`, `10m`, `2h` or plain seconds, and return seconds.

    Raises:
        VitkitError: the text is not a positive duration.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if seconds <= 0:
        raise VitkitError(f"{name} must be a duration such as 90s, 10m or 2h, not {text!r}")
    return seconds


def checkpoint_every(text: str) -> int:
    """Convert `none`, `all` or a number to a value of `VisionTransformer.checkpointing`.

    Raises:
        VitkitError: the text is none of these.
    """
    if text in ("none", "all"):
        return int(text == "all")
    if not text.isdecimal() or len(text) > 6 or not 0 < int(text) < 10**6:
        raise VitkitError(f"checkpointing must be none, all, or a whole number above 0, not {text!r}")
    return int(text)


def check_values(recipe: Any) -> None:
    """Refuse a field that is out of range or cannot be parsed."""
    if recipe.split[0] <= 0 or min(recipe.split) < 0 or not abs(sum(recipe.split) - 1) <= 1e-6:
        raise VitkitError(
            f"split must be the fractions of train, val and test, which sum to 1, the first above 0, not {recipe.split}"
        )
    if recipe.crop_scale != (0.0, 0.0) and not 0 < recipe.crop_scale[0] <= recipe.crop_scale[1] <= 1:
        raise VitkitError(f"crop_scale must be two fractions of the area, the smaller first, not {recipe.crop_scale}")
    for name in ("time", "save_every"):
        if getattr(recipe, name) is not None:
            parse_duration(getattr(recipe, name), name)
    checkpoint_every(recipe.checkpointing)
    try:
        re.compile(recipe.group_by or "")
    except re.error as error:
        raise VitkitError(f"group_by must be a regular expression, not {recipe.group_by!r}: {error}") from error


def check_together(recipe: Any) -> None:
    """Refuse fields that contradict one another. Fields without any effect are refused in `training.defaults`."""
    if recipe.image_size is not None and "image_size" in (recipe.model_fields or {}):
        raise VitkitError("image_size is given twice, as image_size and as model.image_size: leave out one of them")
    if recipe.ema and recipe.swa:
        raise VitkitError("ema and swa both average the weights; choose one")
    if recipe.split_from is not None and recipe.folds is not None:
        raise VitkitError("split_from keeps the split of a run, but folds make their own splits; leave out one of them")
    if recipe.swa and recipe.time:
        raise VitkitError("swa needs the number of epochs, which is unknown with a time budget; leave out swa or time")
    if recipe.head_from == "names" and (recipe.weights == "none" or recipe.lp_ft):
        what = (
            "lp_ft fits it to photographs: leave out one of them"
            if recipe.lp_ft
            else "weights is none: set weights of CLIP or SigLIP, or leave out head_from"
        )
        raise VitkitError(f"head_from 'names' makes the head from the class names, but {what}")
    if recipe.method == "lora" and recipe.weights == "none":
        raise VitkitError("method lora adapts pretrained weights; set --weights, or use --method scratch")
    if recipe.method == "scratch" and recipe.weights not in ("auto", "none"):
        raise VitkitError(f"method scratch starts without weights; leave out --weights {recipe.weights}")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings of a training. A field that is None is chosen for the data or the model."""

    data: Annotated[str | None, "Folder of class folders, or with train/ and val/, or a name such as digits."] = None
    model: Annotated[str | None, "Model name (`vitkit models` lists them); by default the model of --weights."] = None
    model_fields: Annotated[
        dict[str, Any] | None,
        "Fields of the model that differ from the named model, as in {'position': 'none', 'layers': 6}; in TOML the "
        "table [model], whose `name` is the model.",
    ] = None
    image_size: Annotated[
        int | None, "Side of the input in pixels, instead of that in the model's name.", Between(1, 1e5)
    ] = None
    weights: Annotated[
        str, "Initial weights: auto (published for --model), none, a model folder, a checkpoint, or a published name."
    ] = "auto"
    method: Annotated[
        Literal["auto", "probe", "probe-sgd", "lora", "full", "scratch"],
        "What is trained: a head fitted to frozen features, a head by gradient descent, LoRA, all weights, or all "
        "weights from random values.",
    ] = "auto"
    lora_rank: Annotated[int, "Rank of the matrices that lora learns.", Between(1, 1e4)] = 8
    lp_ft: Annotated[
        bool, "Fit the new head to frozen features before training the rest; the default of full and lora.", BY_METHOD
    ] = False
    head_from: Annotated[
        Literal["auto", "names", "zero"],
        "Initial head: the class names as encoded by CLIP or SigLIP, or zeros; auto: names, if they are words.",
    ] = "auto"
    init: Annotated[Literal["trunc_normal", "reference"], "Random initialisation of weights."] = "trunc_normal"

    epochs: Annotated[int, "Passes over the training images.", Between(1, 1e9), BY_METHOD] = 50
    time: Annotated[str | None, "Wall-clock budget such as 90s, 10m or 2h; the schedule is fitted to it."] = None
    batch_size: Annotated[int, "Images per step.", Between(1, 1e9), BY_METHOD] = 64
    grad_accum: Annotated[int, "Batches whose gradients are accumulated for a step.", Between(1, 1e6)] = 1
    optimizer: Annotated[Literal["adamw", "adam", "sgd"], "Update rule."] = "adamw"
    lr: Annotated[float, "Peak learning rate.", Between(1e-12, 1e3), BY_METHOD] = 1e-3
    find_lr: Annotated[bool, "First compare short runs with a tenth to ten times lr, and use the best."] = False
    weight_decay: Annotated[
        float, "Weight decay of matrices; biases, norms, tokens and positions have none.", Between(0, 1e3)
    ] = 0.05
    decay_all: Annotated[bool, "Apply weight decay to biases, norms, tokens and positions, too."] = False
    layer_decay: Annotated[
        float,
        "Learning rate of each layer as a fraction of that of the next layer; 1: all equal.",
        Between(1e-3, 1),
        BY_METHOD,
    ] = 1.0
    momentum: Annotated[float, "Momentum of sgd; the first beta of adam and adamw.", Between(0, 0.999999)] = 0.9
    beta2: Annotated[float, "Second beta of adam and adamw.", Between(0, 0.999999)] = 0.999
    schedule: Annotated[Literal["cosine", "linear", "constant"], "How the learning rate falls after warm-up."] = (
        "cosine"
    )
    step_per: Annotated[Literal["step", "epoch"], "How often the learning rate is updated."] = "step"
    warmup: Annotated[
        float, "Fraction of the training in which the learning rate rises to lr.", Between(0, 1), BY_METHOD
    ] = 0.1
    min_lr: Annotated[float, "Final learning rate, as a fraction of lr.", Between(0, 1)] = 0.0
    clip_grad: Annotated[float, "Largest global norm of the gradient; 0 is no limit.", Between(0, 1e9)] = 1.0
    ema: Annotated[
        float,
        "Decay of an exponential moving average of the weights, which becomes the model, such as 0.9999; 0 is none.",
        Between(0, 0.999999),
    ] = 0.0
    swa: Annotated[
        float,
        "Average the weights of the epochs in this last fraction of the training, such as 0.25; 0 is none.",
        Between(0, 1),
    ] = 0.0
    swa_lr: Annotated[
        float | None, "Learning rate during swa; by default that at the start of swa.", Between(1e-12, 1e3)
    ] = None
    label_smoothing: Annotated[float, "Probability spread over the other classes.", Between(0, 0.999)] = 0.1

    teacher: Annotated[
        str | None, "Imitate this model: a folder or checkpoint, a torchvision CNN, or CNN:FILE for its weights."
    ] = None
    distillation: Annotated[
        Literal["hard", "soft", "soft-deit"],
        "Learn the teacher's decisions (hard) or its probabilities, as in DeiT's paper (soft) or in DeiT's code, where "
        "the teacher's weight is divided by the number of classes (soft-deit).",
    ] = "hard"
    distill_alpha: Annotated[float, "Weight of the teacher in soft distillation.", Between(0, 1)] = 0.1
    distill_temperature: Annotated[float, "Temperature of soft distillation, for both models.", Between(1e-3, 1e3)] = (
        3.0
    )

    dropout: Annotated[float, "Dropout after the projection of attention and in the MLP."] = 0.0
    attention_dropout: Annotated[float, "Dropout of the attention weights."] = 0.0
    drop_path: Annotated[float, "Rate of stochastic depth in the last block, growing linearly from 0.", BY_METHOD] = 0.1
    patch_dropout: Annotated[
        float,
        "Fraction of each image's patches that is dropped in training, saving about that fraction of time; 0 is none.",
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
        "How a picture is fitted to the input; by default as the weights expect.",
    ] = None
    crop_pct: Annotated[
        float | None,
        "Fraction of the sides that the centre crop keeps; by default as the weights expect.",
        Between(1e-3, 1),
    ] = None
    interpolation: Annotated[
        Literal["bicubic", "bilinear", "lanczos", "nearest"] | None,
        "Resampling filter; by default as the weights expect.",
    ] = None
    crop_scale: Annotated[
        tuple[float, float],
        "Smallest and largest fraction of the area that a random crop keeps; 0 0 is no crop.",
        BY_METHOD,
    ] = (0.3, 1.0)
    hflip: Annotated[bool, "Mirror half of the pictures; use --no-hflip if left and right differ."] = True
    rotate: Annotated[float, "Largest random rotation in degrees, in both directions.", Between(0, 180)] = 0.0
    translate: Annotated[float, "Largest random shift, as a fraction of the side.", Between(0, 1)] = 0.0
    zoom: Annotated[float, "Largest random change of size, as a fraction.", Between(0, 0.99)] = 0.0
    shear: Annotated[float, "Largest random shear in degrees, in both directions.", Between(0, 89)] = 0.0
    color_jitter: Annotated[
        float, "Largest random change of brightness, contrast and saturation, as a fraction.", Between(0, 10), BY_METHOD
    ] = 0.2
    rand_augment: Annotated[
        int, "Strength, 0 to 10, of two random operations of RandAugment; 0 is none.", Between(0, 10)
    ] = 0
    random_erasing: Annotated[float, "Probability that a rectangle of a picture is erased.", Between(0, 1)] = 0.0

    layout: Annotated[
        LayoutName, "Whether the folders in the data folder are classes or splits; auto: depends on their names."
    ] = "auto"
    follow_links: Annotated[bool, "Also search what links lead to outside of the data folder."] = False
    labels: Annotated[
        str | None,
        "Label file (CSV: path, label), which overrides the labels of the data; an empty label removes a picture.",
    ] = None
    split: Annotated[
        tuple[float, float, float], "Fractions of train, val and test, if the data has no split folders."
    ] = (
        0.7,
        0.1,
        0.2,
    )
    split_from: Annotated[
        str | None, "Keep the split of this run: pictures that it knows keep their split, only new ones are assigned."
    ] = None
    group_by: Annotated[str | None, "Regular expression: images with the same match in their path stay together."] = (
        None
    )
    balance: Annotated[
        Literal["auto", "loss", "sampler", "none"],
        "Give rare classes as much weight as others: by weights in the loss, or by showing them more often; auto: if "
        "the largest class has more than 3 x the images of the smallest.",
    ] = "auto"
    prior: Annotated[
        Literal["data", "uniform"],
        "Class frequencies that predictions and confidences assume: those of the training data, or uniform, which "
        "finds more of the rare classes and makes more errors overall.",
    ] = "data"
    folds: Annotated[
        int | None,
        "Number of runs of a cross-validation, each tested on another part of the data; a final model uses all of it.",
        Between(2, 1e4),
    ] = None
    max_images: Annotated[
        int | None,
        "Train on at most this many images, in the same class proportions; validation and test images are all kept.",
        Between(2, 1e12),
    ] = None
    monitor: Annotated[Literal["val_acc", "val_loss"], "Figure that decides which epoch is the best.", BY_METHOD] = (
        "val_acc"
    )
    keep: Annotated[Literal["best", "last", "every"], "Which epoch's weights become the model."] = "best"
    save_every: Annotated[
        str | None,
        "Time between two checkpoints within an epoch, by default 10m; a checkpoint is also written after each epoch.",
    ] = None
    patience: Annotated[int | None, "Stop after this many epochs without improvement.", Between(1, 1e9)] = None
    logger: Annotated[
        Literal["auto", "tensorboard", "csv", "wandb", "mlflow", "none"],
        "Loggers of the curves, in addition to metrics.csv; auto: tensorboard if it is installed.",
    ] = "auto"
    precision: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        "Precision; auto: bfloat16 if the hardware supports it. float16, with scaled gradients, is for older GPUs.",
    ] = "auto"
    seed: Annotated[
        int, "Seed of weights, split, order and augmentation; equal seeds give equal results.", Between(0, 2**63 - 1)
    ] = 0
    split_seed: Annotated[
        int | None,
        "Seed of the split alone, so that other seeds train and test on the same images; by default the seed.",
        Between(0, 2**63 - 1),
    ] = None
    device: Annotated[DeviceName, "Device to compute on; auto: a GPU if there is one, else the CPU."] = "auto"
    devices: Annotated[
        int | None,
        "Number of processes per machine, one GPU each; by default one, or what torchrun started.",
        Between(1, 1e4),
    ] = None
    nodes: Annotated[int | None, "Number of machines; by default one, or what torchrun started.", Between(1, 1e4)] = (
        None
    )
    strategy: Annotated[
        Literal["auto", "ddp", "fsdp"], "Each device has the whole model (ddp) or a shard of it (fsdp); auto: ddp."
    ] = "auto"
    checkpointing: Annotated[
        str,
        "Blocks that are recomputed in the backward pass, which saves memory and takes time: none, all, or N "
        "for every N-th.",
    ] = "none"
    compile: Annotated[
        Literal["auto", "on", "off"],
        "Make steps faster with torch.compile, which first takes half a minute; auto: on GPUs, from 500,000 images "
        "(in all epochs together) on.",
    ] = "auto"
    cache: Annotated[
        Literal["auto", "ram", "disk", "none"],
        "Where decoded pictures are cached for the next epoch; auto: where they fit. The result is the same.",
    ] = "auto"
    workers: Annotated[
        int | None,
        "Number of processes that prepare images; 0: the main process. The result is the same.",
        Between(0, 1e4),
    ] = None

    def __post_init__(self) -> None:
        settle_types(self, exclude=("model_fields",))
        object.__setattr__(self, "model_fields", check_model_fields(self.model_fields))
        check_values(self)
        check_together(self)

    def replace(self, **changes: Any) -> Recipe:
        """Return a copy with changed fields.

        Raises:
            VitkitError: a field is unknown, of the wrong type, or out of range. The message names the field.
        """
        return with_fields(self, changes, "recipe")

    def to_toml(self) -> str:
        """Return the recipe as TOML, without fields that are None. Fields of the model are in the table `[model]`."""
        import tomli_w

        fields = {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(self).items()}
        del fields["model_fields"]
        if self.model_fields is not None:
            fields["model"] = to_table(self.model, self.model_fields)
        return tomli_w.dumps({name: value for name, value in fields.items() if value is not None})

    @property
    def seed_of_split(self) -> int:
        """Return `split_seed`, or `seed` if `split_seed` is None."""
        return self.seed if self.split_seed is None else self.split_seed

    @property
    def budget(self) -> float | None:
        """Return `time` in seconds."""
        return None if self.time is None else parse_duration(self.time)


def build(fields: dict[str, Any], source: str | None = "recipe") -> Recipe:
    """Build a recipe from plain values, as in TOML and flags.

    Args:
        fields: the fields that differ from their defaults.
        source: the source of the fields, such as a file. Error messages start with it. None for function arguments.

    Raises:
        VitkitError: a field is unknown, of the wrong type, or out of range. The message names the field and `source`.
    """
    with naming(source):
        fields = unfold(fields)
        _check_names(fields)
        method = str(fields.get("method"))
        if method in METHODS_RENAMED:
            raise VitkitError(f"method {method} is called {METHODS_RENAMED[method]} now")
        return Recipe(**fields)


def with_fields(recipe: Recipe, changes: Mapping[str, Any], source: str | None) -> Recipe:
    """Return a copy of a recipe with changed fields; for `source`, see `build`.

    Raises:
        VitkitError: a field is unknown, of the wrong type, or out of range. The message names the field and `source`.
    """
    with naming(source):
        _check_names(changes)
        return dataclasses.replace(recipe, **changes)


@contextmanager
def naming(source: str | None) -> Iterator[None]:
    """Prefix error messages in this context with the source of the fields. For None, leave them unchanged."""
    try:
        yield
    except VitkitError as error:
        if source is None:
            raise
        raise VitkitError(f"{source}: {error}") from error


def _check_names(fields: Iterable[str]) -> None:
    hints = hints_of(Recipe)
    for name in fields:
        if name in RENAMED:
            raise VitkitError(f"{name} is called {RENAMED[name]} now")
        if name not in hints:
            close = difflib.get_close_matches(name, hints, n=1)
            suggestion = f" (did you mean {close[0]}?)" if close else ""
            raise VitkitError(f"unknown field {name!r}{suggestion}; known: {', '.join(hints)}")


@dataclass(frozen=True)
class Request:
    """A request for a training, in which only some fields are set. The other fields will be chosen for the data.

    Attributes:
        fields: the fields that are set, by their names in `Recipe`.
        recipe: the recipe with these fields, and with the defaults of all other fields.
    """

    fields: dict[str, Any]
    recipe: Recipe

    @classmethod
    def of(cls, fields: Request | Recipe | Mapping[str, Any]) -> Request:
        """Build a request from fields. If `fields` is a recipe, the request has all of its fields.

        If `fields` is already a request, it is returned unchanged.

        Raises:
            VitkitError: see `build`.
        """
        if isinstance(fields, Request):
            return fields
        if isinstance(fields, Recipe):
            return cls(dict(fields.__dict__), fields)
        recipe = build(dict(fields), None)
        return cls(unfold(fields), recipe)


def without_places(recipe: Recipe) -> Recipe:
    """Return a copy of the recipe for publication, which keeps only the last part of each absolute path."""
    return Recipe(**fields_without_places(recipe))


def fields_without_places(recipe: Recipe) -> dict[str, Any]:
    """Return the fields of a recipe for publication, with only the last part of each absolute path."""
    teacher = recipe.teacher
    if teacher is not None:
        model, colon, file = teacher.partition(":")  # a torchvision model may have its weights in a file
        teacher = f"{model}:{without_place(file)}" if colon and Path(file).is_absolute() else without_place(teacher)
    places = {name: getattr(recipe, name) for name in ("data", "labels", "split_from", "weights")}
    named: dict[str, Any] = {name: None if place is None else without_place(place) for name, place in places.items()}
    return {**vars(recipe), **named, "teacher": teacher}


def name_of(recipe: Recipe) -> str:
    """Return the name of a recipe's model, or of its initial weights if it names no model.

    Changed fields of the model are appended to the name.
    """
    name = recipe.model or Path(recipe.weights).name
    return name if recipe.model_fields is None else f"{name} with {in_words(recipe.model_fields)}"


# --- Lists to which a new field must be added, in addition to the class -------------------------------------------

ON_STEPS = (  # fields that act in the steps of a training
    *("epochs", "time", "grad_accum", "optimizer", "lr", "find_lr", "weight_decay", "momentum", "schedule"),
    *("warmup", "clip_grad", "ema", "swa", "label_smoothing", "teacher", "mixup", "cutmix", "keep", "patience"),
    *("compile", "logger", "save_every"),
)
ON_BACKBONE = ("layer_decay", "dropout", "attention_dropout", "drop_path", "patch_dropout", "checkpointing")
ON_PICTURES = (  # fields that change the pictures in training; `data.augment.Augment` has the same fields
    *("crop_scale", "hflip", "rotate", "translate", "zoom", "shear"),
    *("color_jitter", "rand_augment", "random_erasing"),
)
OF_LABELS = (  # fields that pre-training does not have, because they are about labels or only for classifiers
    *(
        "labels",
        "method",
        "lora_rank",
        "lp_ft",
        "head_from",
        "find_lr",
        "layer_decay",
        "ema",
        "swa",
        "swa_lr",
    ),
    *("label_smoothing", "teacher", "distillation", "distill_alpha", "distill_temperature", "patch_dropout"),
    *("mixup", "cutmix", "balance", "prior", "folds", "monitor", "strategy"),
)

# The fields as keywords, for type checkers and editors. A test ensures that they match the fields of the class.


class SharedFields(TypedDict, total=False):
    """Keyword arguments that every kind of training accepts, with their types."""

    model_fields: Mapping[str, Any] | None
    image_size: int | None
    weights: str | Path
    init: Literal["trunc_normal", "reference"]
    epochs: int
    time: str | None
    batch_size: int
    grad_accum: int
    optimizer: Literal["adamw", "adam", "sgd"]
    lr: float
    weight_decay: float
    decay_all: bool
    momentum: float
    beta2: float
    schedule: Literal["cosine", "linear", "constant"]
    step_per: Literal["step", "epoch"]
    warmup: float
    min_lr: float
    clip_grad: float
    dropout: float
    attention_dropout: float
    drop_path: float
    fit: Literal["crop", "pad", "squash"] | None
    crop_pct: float | None
    interpolation: Literal["bicubic", "bilinear", "lanczos", "nearest"] | None
    crop_scale: tuple[float, float]
    hflip: bool
    rotate: float
    translate: float
    zoom: float
    shear: float
    color_jitter: float
    rand_augment: int
    random_erasing: float
    layout: LayoutName
    follow_links: bool
    split: tuple[float, float, float]
    split_from: str | Path | None
    group_by: str | None
    max_images: int | None
    keep: Literal["best", "last", "every"]
    save_every: str | None
    patience: int | None
    logger: Literal["auto", "tensorboard", "csv", "wandb", "mlflow", "none"]
    precision: Literal["auto", "float32", "bfloat16", "float16"]
    seed: int
    split_seed: int | None
    device: DeviceName
    checkpointing: str
    compile: Literal["auto", "on", "off"]
    cache: Literal["auto", "ram", "disk", "none"]
    workers: int | None


class ComparedFields(SharedFields, total=False):
    """Keyword arguments that `vitkit.compare` and `vitkit.lab` pass to all their trainings."""

    method: Literal["auto", "probe", "probe-sgd", "lora", "full", "scratch"]
    lora_rank: int
    lp_ft: bool
    head_from: Literal["auto", "names", "zero"]
    find_lr: bool
    layer_decay: float
    ema: float
    swa: float
    swa_lr: float | None
    label_smoothing: float
    teacher: str | Path | None
    distillation: Literal["hard", "soft", "soft-deit"]
    distill_alpha: float
    distill_temperature: float
    patch_dropout: float
    mixup: float
    cutmix: float
    labels: str | Path | None
    balance: Literal["auto", "loss", "sampler", "none"]
    prior: Literal["data", "uniform"]
    monitor: Literal["val_acc", "val_loss"]


class RecipeFields(ComparedFields, total=False):
    """Fields of a recipe that `vitkit.train` accepts as keywords. `data` is a separate parameter."""

    model: str | None
    devices: int | None
    nodes: int | None
    folds: int | None
    strategy: Literal["auto", "ddp", "fsdp"]
