"""Every choice of a training run in one dataclass. Recipe files are TOML, and the flags of `vitkit train` are its
fields.

A field has the value of, in this order: the flags, the recipe file, what was chosen for the data, the default. The
resolved recipe is stored in the run.

The `[model]` table of a recipe, and `--set model.FIELD=VALUE`, change fields of a named model's `ViTConfig`. A field
that the recipe has itself (`dropout`, `image_size`, ...) is moved there, so that each choice is in one place
(docs/decisions/0023-the-model-of-a-recipe.md). Values are checked alone and together.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_args

from vitkit.data.layout import LayoutName
from vitkit.errors import VitkitError
from vitkit.model.config import PAIRS, ViTConfig, as_pair, canonical, suggest
from vitkit.system.environment import DeviceName
from vitkit.system.files import without_place
from vitkit.text.fields import Between, as_typed, check_ranges, from_text, hints_of, settle_types, shown

_OF_ALIASES = {"mlp_ratio": float, "distilled": bool, "has_logits": bool}


def settle_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes by field name, each as the type of its field; `none` becomes None if the field allows it.

    Args:
        changes: what `create_model` takes besides a name.

    Raises:
        VitkitError: a field is unknown (close ones are suggested), or a value of another type.
    """
    return {name: _settled(name, value) for name, value in canonical(changes).items()}


def read_change(name: str, text: str) -> dict[str, Any]:
    """Parse a change whose value is text, such as a flag's. The numbers of a tuple are separated by commas.

    Raises:
        VitkitError: as `settle_changes`.
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


def read_sets(texts: Iterable[str]) -> dict[str, Any]:
    """Parse the changes of `--set`, by the names of `ViTConfig`'s fields; `name` is the model's.

    Raises:
        VitkitError: a text is none of `model.FIELD=VALUE`, or a field is unknown, given twice, or of another type.
    """
    fields: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip().startswith(_PREFIX):
            raise VitkitError(
                f"--set {text}: it sets fields of the model, as in --set model.position=none; those of the recipe are "
                "flags of their own"
            )
        name = key.strip().removeprefix(_PREFIX)
        change = {name: value.strip()} if name == "name" else read_change(name, value.strip())
        for field in change:
            _refuse_twice(field, fields, f"--set {_PREFIX}{field}")
        fields |= change
    return fields


def unfold(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a recipe with those of the model in `model` and `model_fields`, and what is the recipe's own in it.

    Args:
        fields: the fields; `model` may be a table, as in TOML, and `model_fields` may have any field of the model.

    Raises:
        VitkitError: a field of the model is unknown, of another type, decided by the data, or given twice; or a table
            has nothing in it.
    """
    unfolded = dict(fields)
    changes: dict[str, Any] = {}
    for place in ("model", "model_fields"):
        if isinstance(fields.get(place), Mapping):
            if not fields[place]:
                raise VitkitError(f"{place} is empty: name or change something in it, or leave it out")
            for name, value in unfolded.pop(place).items():
                _refuse_twice(name, changes, f"model.{name}")
                changes[name] = value
    check_model_fields(unfolded.get("model_fields"))  # which is no table, or None
    if "name" in changes:
        if unfolded.get("model") is not None:
            raise VitkitError(f"model is given twice, as {unfolded['model']} and as {changes['name']}")
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
    """Return the fields of a recipe and its model, overridden by the flags; both flattened."""
    below = {name: value for name, value in (fields.get("model_fields") or {}).items() if name not in flags}
    above = flags.get("model_fields") or {}
    merged = {**fields, **flags, "model_fields": {**below, **above}}
    if "image_size" in above:  # one that is not square takes the place of a side
        merged.pop("image_size", None)
    return merged if merged["model_fields"] else {k: v for k, v in merged.items() if k != "model_fields"}


def check_model_fields(changes: Any) -> dict[str, Any] | None:
    """Check changes of a model and return them as a recipe stores them; None if there are none.

    Raises:
        VitkitError: they are no such changes, or the recipe or the data have a field for one.
    """
    if changes is None or (isinstance(changes, Mapping) and not changes):
        return None
    if not isinstance(changes, Mapping) or not all(isinstance(name, str) for name in changes):
        raise VitkitError(f"model_fields must be a table of the model's fields, not {shown(changes)}")
    settled = settle_changes(changes)
    if "num_classes" in settled:
        raise VitkitError("model.num_classes is what the data have: leave it out")
    for name in OF_THE_RECIPE:
        if name in settled and not (name == "image_size" and settled[name][0] != settled[name][1]):
            raise VitkitError(f"{name} is a field of the recipe itself, not one of model_fields")
    return settled


def to_table(name: str | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Convert changes to the `[model]` table of TOML, which cannot express None."""
    plain = {key: "none" if v is None else list(v) if isinstance(v, tuple) else v for key, v in changes.items()}
    return plain if name is None else {"name": name, **plain}


def in_words(changes: Mapping[str, Any]) -> str:
    """Describe changes, e.g. `position none, layers 6`."""
    return ", ".join(
        f"{name} {','.join(map(str, value)) if isinstance(value, tuple) else str(value).lower()}"
        for name, value in changes.items()
    )


def _refuse_twice(name: str, known_fields: Mapping[str, Any], what: str) -> None:
    if name in known_fields:
        raise VitkitError(f"{what} is given twice: leave out one of them")


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
    """Join a list of weights with commas; return anything else unchanged.

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
    """Return the weights that a recipe asks to choose among, or those that it names.

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
    """Parse `90s`, `10m`, `2h` or plain seconds, and return seconds.

    Raises:
        VitkitError: it is none of these, or not above 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if seconds <= 0:
        raise VitkitError(f"{name} must be a duration such as 90s, 10m or 2h, not {text!r}")
    return seconds


def checkpoint_every(text: str) -> int:
    """Convert `none`, `all` or a number to a value of `VisionTransformer.checkpointing`.

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
    """Refuse fields that contradict one another; what has nothing to act on is a matter of `training.defaults`."""
    if recipe.image_size is not None and "image_size" in (recipe.model_fields or {}):
        raise VitkitError("image_size is given twice, as image_size and as model.image_size: leave out one of them")
    if recipe.ema and recipe.swa:
        raise VitkitError("ema and swa both average the weights; choose one")
    candidates(recipe)
    if recipe.select_time is not None and recipe.folds is not None:
        raise VitkitError(
            "select_time chooses weights by the training images, but with folds every image is also a test image, so "
            "the figures would be too good; leave out select_time or folds"
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


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to train on, which model, and how. A field that is None is chosen for the data or the model."""

    data: Annotated[str | None, "Folder of class folders, or with train/ and val/, or a name such as digits."] = None
    model: Annotated[str | None, "Model name (`vitkit models` lists them); by default the one of --weights."] = None
    model_fields: Annotated[
        dict[str, Any] | None,
        "Fields of the model that differ from its name's, as in {'position': 'none', 'layers': 6}; in TOML the table "
        "[model], whose name is the model.",
    ] = None
    image_size: Annotated[
        int | None, "Side of the input in pixels, instead of the one in the model's name.", Between(1, 1e5)
    ] = None
    weights: Annotated[
        str, "Where to start: auto (published for --model), none, a model folder, a checkpoint, or a published name."
    ] = "auto"
    select_time: Annotated[
        str | None, "Try the several --weights a,b,c on the training images for so long, as in 5m, and take the best."
    ] = None
    method: Annotated[
        Literal["auto", "probe", "probe-sgd", "lora", "full", "scratch"],
        "What is trained: a head fitted to frozen features, a head by gradient, low-rank changes, everything, or "
        "everything from nothing.",
    ] = "auto"
    lora_rank: Annotated[int, "Rank of the changes that lora learns.", Between(1, 1e4)] = 8
    lp_ft: Annotated[
        bool, "Fit the new head to frozen features before the rest learns; the default of full and lora.", BY_METHOD
    ] = False
    head_from: Annotated[
        Literal["auto", "names", "zero"],
        "What the head begins as: what CLIP or SigLIP say of the class names, or zeros; auto: names, if words.",
    ] = "auto"
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
        float, "Rate of each layer, as a part of the one above; 1: all alike.", Between(1e-3, 1), BY_METHOD
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
    ] = (0.3, 1.0)
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
    labels: Annotated[
        str | None,
        "Label file (CSV: path, label), which goes before the data's own labels; no label leaves a picture out.",
    ] = None
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
    logger: Annotated[
        Literal["auto", "tensorboard", "csv", "wandb", "mlflow", "none"],
        "What draws curves beside metrics.csv; auto: tensorboard where it is installed.",
    ] = "auto"
    precision: Annotated[Literal["auto", "float32", "bfloat16"], "auto: bfloat16 where the hardware has it."] = "auto"
    seed: Annotated[int, "Of weights, split, order and augmentation: one seed, one result.", Between(0, 2**63 - 1)] = 0
    split_seed: Annotated[
        int | None,
        "Of the split alone, so that other seeds train and test on the same images; by default the seed.",
        Between(0, 2**63 - 1),
    ] = None
    device: Annotated[DeviceName, "Where it is computed; auto: a GPU if there is one, else the CPU."] = "auto"
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
        object.__setattr__(self, "weights", join_weights(self.weights))
        settle_types(self, exclude=("model_fields",))
        object.__setattr__(self, "model_fields", check_model_fields(self.model_fields))
        check_values(self)
        check_together(self)

    def replace(self, **changes: Any) -> Recipe:
        """Return a copy with changed fields.

        Raises:
            VitkitError: a field is unknown, of the wrong type, or out of range; the message names it.
        """
        return with_fields(self, changes, "recipe")

    def to_toml(self) -> str:
        """Return the recipe as TOML. Fields that are None have no key, and those of the model are in its table."""
        import tomli_w

        fields = {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(self).items()}
        del fields["model_fields"]
        if self.model_fields is not None:
            fields["model"] = to_table(self.model, self.model_fields)
        return tomli_w.dumps({name: value for name, value in fields.items() if value is not None})

    @property
    def seed_of_split(self) -> int:
        """Return `split_seed`, or `seed` if it is None."""
        return self.seed if self.split_seed is None else self.split_seed

    @property
    def budget(self) -> float | None:
        """Return `time` in seconds."""
        return None if self.time is None else parse_duration(self.time)


def build(fields: dict[str, Any], source: str = "recipe") -> Recipe:
    """Build a recipe from plain values, as TOML and flags have them.

    Raises:
        VitkitError: a field is unknown, of the wrong type, or out of range; the message names it and `source`.
    """
    try:
        fields = unfold(fields)
    except VitkitError as error:
        raise VitkitError(f"{source}: {error}") from error
    _check_names(fields, source)
    method = str(fields.get("method"))
    if method in METHODS_RENAMED:
        raise VitkitError(f"{source}: method {method} is called {METHODS_RENAMED[method]} now")
    try:
        return Recipe(**fields)
    except VitkitError as error:
        raise VitkitError(f"{source}: {error}") from error


def with_fields(recipe: Recipe, changes: Mapping[str, Any], source: str) -> Recipe:
    """Return a copy with changed fields; errors name `source`.

    Raises:
        VitkitError: a field is unknown, of the wrong type, or out of range; the message names it and `source`.
    """
    _check_names(changes, source)
    try:
        return dataclasses.replace(recipe, **changes)
    except VitkitError as error:
        raise VitkitError(f"{source}: {error}") from error


def _check_names(fields: Iterable[str], source: str) -> None:
    hints = hints_of(Recipe)
    for name in fields:
        if name in RENAMED:
            raise VitkitError(f"{source}: {name} is called {RENAMED[name]} now")
        if name not in hints:
            close = difflib.get_close_matches(name, hints, n=1)
            suggestion = f" (did you mean {close[0]}?)" if close else ""
            raise VitkitError(f"{source}: unknown field {name!r}{suggestion}; known: {', '.join(hints)}")


@dataclass(frozen=True)
class Request:
    """A requested training. What the request leaves open is chosen to suit the data.

    Attributes:
        fields: those that are named, by the names of `Recipe`.
        recipe: built from them once; the other fields have their defaults.
    """

    fields: dict[str, Any]
    recipe: Recipe

    @classmethod
    def of(cls, fields: Request | Recipe | Mapping[str, Any]) -> Request:
        """Build the recipe of these fields; a request is taken as it is, and so is a recipe, which names them all.

        Raises:
            VitkitError: as `build`.
        """
        if isinstance(fields, Request):
            return fields
        if isinstance(fields, Recipe):
            return cls(dict(fields.__dict__), fields)
        recipe = build(dict(fields), "flags")
        return cls(unfold(fields), recipe)


def without_places(recipe: Recipe) -> Recipe:
    """Return the recipe for other readers: files and folders without the path to them."""
    teacher = recipe.teacher
    if teacher is not None:
        model, colon, file = teacher.partition(":")  # a torchvision model may have its weights in a file
        teacher = f"{model}:{without_place(file)}" if colon and Path(file).is_absolute() else without_place(teacher)
    places = {name: getattr(recipe, name) for name in ("data", "labels", "split_from", "weights")}
    named: dict[str, Any] = {name: None if place is None else without_place(place) for name, place in places.items()}
    return dataclasses.replace(recipe, **named, teacher=teacher)


def name_of(recipe: Recipe) -> str:
    """Return the name of the model, or of the weights it starts from, and the changes made to it."""
    name = recipe.model or Path(recipe.weights).name
    return name if recipe.model_fields is None else f"{name} with {in_words(recipe.model_fields)}"


# --- What a new field is named in, besides the class -----------------------------------------------------------------

ON_STEPS = (  # fields that act in the steps of a training
    *("epochs", "time", "grad_accum", "optimizer", "lr", "find_lr", "weight_decay", "momentum", "schedule"),
    *("warmup", "clip_grad", "ema", "swa", "label_smoothing", "teacher", "mixup", "cutmix", "keep", "patience"),
    *("compile", "logger"),
)
ON_BACKBONE = ("layer_decay", "dropout", "attention_dropout", "drop_path", "patch_dropout", "checkpointing")
ON_PICTURES = (  # fields that change the pictures in training; `data.augment.Augment` has the same fields
    *("crop_scale", "hflip", "rotate", "translate", "zoom", "shear"),
    *("color_jitter", "rand_augment", "random_erasing"),
)
OF_LABELS = (  # fields about learning from labels, or for classifiers alone, which pre-training does not take
    *("labels", "method", "lora_rank", "lp_ft", "head_from", "views", "find_lr", "layer_decay", "ema", "swa", "swa_lr"),
    *("label_smoothing", "teacher", "distillation", "distill_alpha", "distill_temperature", "patch_dropout"),
    *("mixup", "cutmix", "balance", "prior", "folds", "monitor", "strategy", "select_time"),
)

# The fields as keywords, for type checkers and editors. A test holds them equal to the fields of the class.


class SharedFields(TypedDict, total=False):
    """Fields of every kind of training."""

    model_fields: Mapping[str, Any] | None
    image_size: int | None
    weights: str | Path | Sequence[str]
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
    split: tuple[float, float, float]
    split_from: str | Path | None
    group_by: str | None
    max_images: int | None
    keep: Literal["best", "last", "every"]
    patience: int | None
    logger: Literal["auto", "tensorboard", "csv", "wandb", "mlflow", "none"]
    precision: Literal["auto", "float32", "bfloat16"]
    seed: int
    split_seed: int | None
    device: DeviceName
    checkpointing: str
    compile: Literal["auto", "on", "off"]
    cache: Literal["auto", "ram", "disk", "none"]
    workers: int | None


class ComparedFields(SharedFields, total=False):
    """Fields that `vitkit.compare` and `vitkit.lab` give to all their trainings."""

    method: Literal["auto", "probe", "probe-sgd", "lora", "full", "scratch"]
    lora_rank: int
    lp_ft: bool
    head_from: Literal["auto", "names", "zero"]
    views: int
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


class PlannedFields(ComparedFields, total=False):
    """Fields that `vitkit.plan` takes."""

    model: str | None
    devices: int | None
    nodes: int | None
    folds: int | None
    strategy: Literal["auto", "ddp", "fsdp"]


class RecipeFields(PlannedFields, total=False):
    """Fields of a recipe that `vitkit.train` takes; `data` is a parameter."""

    select_time: str | None
