"""The settings of a training run, as a dataclass.

`Recipe` has all settings, in groups. The flags of `vitkit train` are its fields, and recipe files contain the fields as
TOML. The value of a field comes from the first of these sources that sets it: the flag, the recipe file, an automatic
choice for the data, the default. The complete recipe is stored in the run folder.

The `[model]` table of a recipe, and `--set model.FIELD=VALUE`, change fields of a named model's `ViTConfig`
(docs/decisions/0023-the-model-of-a-recipe.md).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Self

from vitkit.data.layout import LayoutName
from vitkit.errors import VitkitError
from vitkit.model.config import PAIRS, ViTConfig, as_pair, canonical, suggest
from vitkit.system.environment import DeviceName
from vitkit.system.files import public_path
from vitkit.text.arguments import Between, Options, alternatives, as_typed, from_text, hints_of, type_of

SAVE_EVERY = "10m"  # the default of `save_every`
BY_METHOD = "by method"  # marks fields whose default depends on the method (training/defaults.py)


@dataclass(frozen=True, kw_only=True)
class Data(Options):
    """Data and split."""

    data: str | None = None
    """Folder of class folders, or with train/ and val/, or a name such as digits."""
    layout: LayoutName = "auto"
    """Whether the folders in the data folder are classes or splits; auto: depends on their names."""
    follow_links: bool = False
    """Also search what links lead to outside of the data folder."""
    split: tuple[float, float, float] = (0.7, 0.1, 0.2)
    """Fractions of train, val and test, if the data has no split folders."""
    split_from: str | None = None
    """Keep the split of this run: pictures that it knows keep their split, only new ones are assigned."""
    split_seed: Annotated[int | None, Between(0, 2**63 - 1)] = None
    """Seed of the split alone, so that other seeds train and test on the same images; by default the seed."""
    group_by: str | None = None
    """Regular expression: images with the same match in their path stay together."""
    max_images: Annotated[int | None, Between(2, 1e12)] = None
    """Train on at most this many images, in the same class proportions; validation and test images are all kept."""


@dataclass(frozen=True, kw_only=True)
class Labels(Options):
    """Labels."""

    labels: str | None = None
    """Label file (CSV: path, label), which overrides the labels of the data; an empty label removes a picture."""
    balance: Literal["auto", "loss", "sampler", "none"] = "auto"
    """Give rare classes as much weight as others: by weights in the loss, or by showing them more often; auto: if the
    largest class has more than 3 x the images of the smallest.
    """
    prior: Literal["data", "uniform"] = "data"
    """Class frequencies that predictions and confidences assume: those of the training data, or uniform, which finds
    more of the rare classes and makes more errors overall.
    """
    folds: Annotated[int | None, Between(2, 1e4)] = None
    """Number of runs of a cross-validation, each tested on another part of the data; a final model uses all of it."""
    monitor: Annotated[Literal["val_acc", "val_loss"], BY_METHOD] = "val_acc"
    """Figure that decides which epoch is the best."""


@dataclass(frozen=True, kw_only=True)
class Start(Options):
    """Model and initial weights."""

    model: str | None = None
    """Model name (`vitkit models` lists them); by default the model of `weights`."""
    model_fields: dict[str, Any] | None = None
    """Fields of the model that differ from the named model, as in {'position': 'none', 'layers': 6}; in TOML the table
    [model], whose `name` is the model.
    """
    image_size: Annotated[int | None, Between(1, 1e5)] = None
    """Side of the input in pixels, instead of that in the model's name."""
    weights: str = "auto"
    """Initial weights: auto (published for `model`), none, a model folder, a checkpoint, or a published name."""
    init: Literal["trunc_normal", "reference"] = "trunc_normal"
    """Random initialisation of weights."""


@dataclass(frozen=True, kw_only=True)
class Method(Options):
    """Method."""

    method: Literal["auto", "probe", "probe-sgd", "lora", "full", "scratch"] = "auto"
    """What is trained: a head on the frozen model (probe fits it once, probe-sgd in epochs), LoRA, all weights (full),
    or all weights from random values (scratch).
    """
    lora_rank: Annotated[int, Between(1, 1e4)] = 8
    """Rank of the matrices that lora learns."""
    lp_ft: Annotated[bool, BY_METHOD] = False
    """Fit the new head to frozen features before training the rest; the default of full and lora."""
    head_from: Literal["auto", "names", "zero"] = "auto"
    """Initial head: the class names as encoded by CLIP or SigLIP, or zeros; auto: names, if they are words."""
    layer_decay: Annotated[float, Between(0.001, 1), BY_METHOD] = 1.0
    """Learning rate of each layer as a fraction of that of the next layer; 1: all equal."""
    patch_dropout: Annotated[float, Between(0, 0.99), BY_METHOD] = 0.0
    """Fraction of each image's patches that is dropped in training, saving about that fraction of time; 0 is none."""
    ema: Annotated[float, Between(0, 0.999999)] = 0.0
    """Decay of an exponential moving average of the weights, which becomes the model, such as 0.9999; 0 is none."""
    swa: Annotated[float, Between(0, 1)] = 0.0
    """Average the weights of the epochs in this last fraction of the training, such as 0.25; 0 is none."""
    swa_lr: Annotated[float | None, Between(1e-12, 1e3)] = None
    """Learning rate during swa; by default that at the start of swa."""


@dataclass(frozen=True, kw_only=True)
class Optimiser(Options):
    """Schedule and optimiser."""

    epochs: Annotated[int, Between(1, 1e9), BY_METHOD] = 50
    """Passes over the training images."""
    time: str | None = None
    """Wall-clock budget such as 90s, 10m or 2h; the schedule is fitted to it."""
    batch_size: Annotated[int, Between(1, 1e9), BY_METHOD] = 64
    """Images per step."""
    grad_accum: Annotated[int, Between(1, 1e6)] = 1
    """Batches whose gradients are accumulated for a step."""
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    """Update rule."""
    lr: Annotated[float, Between(1e-12, 1e3), BY_METHOD] = 1e-3
    """Peak learning rate."""
    weight_decay: Annotated[float, Between(0, 1e3)] = 0.05
    """Weight decay of matrices; biases, norms, tokens and positions have none."""
    decay_all: bool = False
    """Apply weight decay to biases, norms, tokens and positions, too."""
    momentum: Annotated[float, Between(0, 0.999999)] = 0.9
    """Momentum of sgd; the first beta of adam and adamw."""
    beta2: Annotated[float, Between(0, 0.999999)] = 0.999
    """Second beta of adam and adamw."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate falls after warm-up."""
    step_per: Literal["step", "epoch"] = "step"
    """How often the learning rate is updated."""
    warmup: Annotated[float, Between(0, 1), BY_METHOD] = 0.1
    """Fraction of the training in which the learning rate rises to lr."""
    min_lr: Annotated[float, Between(0, 1)] = 0.0
    """Final learning rate, as a fraction of lr."""
    clip_grad: Annotated[float, Between(0, 1e9)] = 1.0
    """Largest global norm of the gradient; 0 is no limit."""


@dataclass(frozen=True, kw_only=True)
class Targets(Options):
    """Targets."""

    label_smoothing: Annotated[float, Between(0, 0.999)] = 0.1
    """Probability spread over the other classes."""
    mixup: Annotated[float, Between(0, 100)] = 0.0
    """Blend pairs of images and their labels; alpha of the beta distribution, 0 is off."""
    cutmix: Annotated[float, Between(0, 100)] = 0.0
    """Paste a part of one image into another; alpha of the beta distribution, 0 is off."""
    teacher: str | None = None
    """Imitate this model: a folder, a checkpoint, or the name of a torchvision CNN."""
    distillation: Literal["hard", "soft"] = "hard"
    """Learn the teacher's decisions (hard) or its probabilities (soft)."""
    distill_alpha: Annotated[float, Between(0, 1)] = 0.1
    """Weight of the teacher in soft distillation."""
    distill_temperature: Annotated[float, Between(0.001, 1e3)] = 3.0
    """Temperature of soft distillation, for both models."""


@dataclass(frozen=True, kw_only=True)
class Regularise(Options):
    """Regularisation."""

    dropout: float = 0.0
    """Dropout after the projection of attention and in the MLP."""
    attention_dropout: float = 0.0
    """Dropout of the attention weights."""
    drop_path: Annotated[float, BY_METHOD] = 0.1
    """Rate of stochastic depth in the last block, growing linearly from 0."""


@dataclass(frozen=True, kw_only=True)
class Pixels(Options):
    """Preprocessing."""

    fit: Literal["crop", "pad", "squash"] | None = None
    """How a picture is fitted to the input; by default as the weights expect."""
    crop_pct: Annotated[float | None, Between(0.001, 1)] = None
    """Fraction of the sides that the centre crop keeps; by default as the weights expect."""
    interpolation: Literal["bicubic", "bilinear", "lanczos", "nearest"] | None = None
    """Resampling filter; by default as the weights expect."""


@dataclass(frozen=True, kw_only=True)
class Augment(Options):
    """Augmentation."""

    crop_scale: Annotated[tuple[float, float], BY_METHOD] = (0.3, 1.0)
    """Smallest and largest fraction of the area that a random crop keeps; 0 0 is no crop."""
    hflip: bool = True
    """Mirror half of the pictures; switch it off if left and right differ."""
    rotate: Annotated[float, Between(0, 180)] = 0.0
    """Largest random rotation in degrees, in both directions."""
    translate: Annotated[float, Between(0, 1)] = 0.0
    """Largest random shift, as a fraction of the side."""
    zoom: Annotated[float, Between(0, 0.99)] = 0.0
    """Largest random change of size, as a fraction."""
    shear: Annotated[float, Between(0, 89)] = 0.0
    """Largest random shear in degrees, in both directions."""
    color_jitter: Annotated[float, Between(0, 10), BY_METHOD] = 0.2
    """Largest random change of brightness, contrast and saturation, as a fraction."""
    rand_augment: Annotated[int, Between(0, 10)] = 0
    """Strength, 0 to 10, of two random operations of RandAugment; 0 is none."""
    random_erasing: Annotated[float, Between(0, 1)] = 0.0
    """Probability that a rectangle of a picture is erased."""


@dataclass(frozen=True, kw_only=True)
class Keep(Options):
    """Choice of the best, and curves."""

    keep: Literal["best", "last", "every"] = "best"
    """Which epoch's weights become the model."""
    save_every: str | None = None
    """Time between two checkpoints within an epoch, by default 10m; a checkpoint is also written after each epoch."""
    patience: Annotated[int | None, Between(1, 1e9)] = None
    """Stop after this many epochs without improvement."""
    logger: Literal["auto", "tensorboard", "none"] = "auto"
    """Logger of the curves, in addition to metrics.csv; auto: tensorboard if it is installed. Others are objects of
    `vitkit.Hooks(loggers=...)`.
    """


@dataclass(frozen=True, kw_only=True)
class Machine(Options):
    """Machine."""

    seed: Annotated[int, Between(0, 2**63 - 1)] = 0
    """Seed of weights, split, order and augmentation; equal seeds give equal results."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision; auto: bfloat16 if the hardware supports it. float16, with scaled gradients, is for older GPUs."""
    device: DeviceName = "auto"
    """Device to compute on; auto: a GPU if there is one, else the CPU."""
    devices: Annotated[int | None, Between(1, 1e4)] = None
    """Number of processes per machine, one GPU each; by default one, or what torchrun started."""
    nodes: Annotated[int | None, Between(1, 1e4)] = None
    """Number of machines; by default one, or what torchrun started."""
    checkpointing: str = "none"
    """Blocks that are recomputed in the backward pass, which saves memory and takes time: none, all, or N for every
    N-th.
    """
    compile: Literal["auto", "on", "off"] = "auto"
    """Make steps faster with torch.compile, which first takes half a minute; auto: on GPUs, from 500,000 images (in all
    epochs together) on.
    """
    cache: Literal["auto", "ram", "disk", "none"] = "auto"
    """Where decoded pictures are cached for the next epoch; auto: where they fit. The result is the same."""
    workers: Annotated[int | None, Between(0, 1e4)] = None
    """Number of processes that prepare images; 0: the main process. The result is the same."""


# The groups are listed backwards, because the fields of the last base class come first.
@dataclass(frozen=True, kw_only=True)
class Recipe(Machine, Keep, Augment, Pixels, Regularise, Targets, Optimiser, Method, Start, Labels, Data):
    """All settings of a training. Unset fields are chosen for the data and the model.

        >>> import vitkit
        >>> recipe = vitkit.Recipe(epochs=20, lr=3e-4)
        >>> recipe.replace(epochs=5).epochs
        5

    Raises:
        VitkitError: a field is unknown, of the wrong type, or out of range, or fields contradict one another.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "model_fields", _check_model_fields(self.model_fields))
        if self.weights == "auto" and str(self.model).startswith("custom:"):
            object.__setattr__(self, "weights", "none")  # none are published
        sums_to_one = abs(sum(self.split) - 1) <= 1e-6  # False for NaN
        if not sums_to_one or self.split[0] <= 0 or min(self.split) < 0:
            raise VitkitError(
                "training.split-shares",
                "split must be the fractions of train, val and test, which sum to 1, the first above 0, "
                f"not {self.split}",
            )
        if self.crop_scale != (0.0, 0.0) and not 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1:
            message = f"crop_scale must be two fractions of the area, the smaller first, not {self.crop_scale}"
            raise VitkitError("training.crop-scale", message)
        for name, duration in (("time", self.time), ("save_every", self.save_every)):
            if duration is not None:
                parse_duration(duration, name)
        checkpoint_every(self.checkpointing)
        try:
            re.compile(self.group_by or "")
        except re.error as error:
            message = f"group_by must be a regular expression, not {self.group_by!r}: {error}"
            raise VitkitError("training.group-pattern", message) from error
        self._check_conflicts()

    def _check_conflicts(self) -> None:
        """Refuse fields that contradict one another. Fields without any effect are refused in `training.defaults`."""
        if self.image_size is not None and "image_size" in (self.model_fields or {}):
            message = "image_size is given twice, as image_size and as model.image_size: leave out one of them"
            raise VitkitError("training.field-repeated", message)
        if self.ema and self.swa:
            raise VitkitError("training.averages-twice", "ema and swa both average the weights; choose one")
        conflict = None
        has_names = self.head_from == "names"
        if self.split_from is not None and self.folds is not None:
            conflict = "split_from keeps the split of a run, but folds make their own splits; leave out one of them"
        elif self.swa and self.time:
            conflict = "swa needs the number of epochs, which is unknown with a time budget; leave out swa or time"
        elif has_names and self.lp_ft:
            reason = "lp_ft fits it to photographs: leave out one of them"
            conflict = f"head_from 'names' makes the head from the class names, but {reason}"
        elif has_names and self.weights == "none":
            reason = "weights is none: set weights of CLIP or SigLIP, or leave out head_from"
            conflict = f"head_from 'names' makes the head from the class names, but {reason}"
        elif self.method == "lora" and self.weights == "none":
            conflict = "method lora adapts pretrained weights; set --weights, or use --method scratch"
        elif self.method == "scratch" and self.weights not in ("auto", "none"):
            conflict = f"method scratch starts without weights; leave out --weights {self.weights}"
        if conflict is not None:
            raise VitkitError("training.fields-conflict", conflict)

    @classmethod
    def load(cls, source: str | Path) -> Self:
        """Read a recipe from a TOML file, or the recipe of this name that comes with vitkit.

        Raises:
            VitkitError: there is no such file or name, the file is not TOML, or a field is wrong.
        """
        try:
            text = Path(source).read_text(encoding="utf-8") if Path(source).is_file() else bundled().get(str(source))
            fields = None if text is None else tomllib.loads(text)
        except ValueError as error:
            raise VitkitError("training.recipe-damaged", f"{source} is not valid TOML: {error}") from error
        if fields is None:
            message = f"no such recipe: {source} (a TOML file, or one of: {', '.join(sorted(bundled()))})"
            raise VitkitError("training.recipe-unknown", message)
        with prefix_errors(str(source)):
            return cls.of(fields, str(source))

    @classmethod
    def of(cls, fields: Mapping[str, Any], source: str = "") -> Self:
        """Build a recipe from plain values, as in TOML and flags.

        Args:
            fields: the values by name; `model` may be a table of the model's fields, as in TOML.
            source: the source of the values, such as a file; empty if the caller has set them.

        Raises:
            VitkitError: a field is unknown, of the wrong type, or out of range. The message names the field.
        """
        recipe = cls(**flatten_fields(fields))
        return recipe.with_given(dict.fromkeys(recipe.given, source))

    @property
    def source(self) -> str | None:
        """The file or the bundled recipe from which fields were read; None if there is none."""
        return next(filter(None, self.given.values()), None)

    @property
    def named(self) -> list[str]:
        """The fields that the caller has set, without those of a file."""
        return [name for name, source in self.given.items() if not source]

    def updated(self, other: Recipe) -> Self:
        """Return a copy with the fields that another recipe sets. The changed fields of both models are combined.

        If this recipe is bundled, its weights are dropped if the other recipe sets a model, and its model is dropped if
        the other recipe sets only weights.
        """
        fields, new_fields = self.set_fields(), other.set_fields()
        if self.source in bundled():
            if "model" in new_fields and self.weights != "none":
                fields["weights"] = "auto"
            elif "model" not in new_fields and other.weights not in ("auto", "none"):
                fields.pop("model", None)
        old_changes = fields.pop("model_fields", None) or {}
        new_changes = new_fields.pop("model_fields", None) or {}
        if "image_size" in new_changes:  # (height, width) replaces the side of a square
            fields.pop("image_size", None)
        fields |= new_fields
        changes = {name: value for name, value in old_changes.items() if name not in new_fields} | new_changes
        if changes:
            fields["model_fields"] = changes
        merged = self.of(fields)
        sources = {**self.given, **other.given}
        return merged.with_given({name: sources.get(name, "") for name in merged.given})

    def complete(self, chosen: Mapping[str, Any]) -> Self:
        """Return a copy with values that were chosen for fields; they do not count as `given`."""
        return self.replace(**chosen).with_given(self.given)

    def without(self, names: Iterable[str]) -> Self:
        """Return a copy in which these fields are not set."""
        kept = {name: value for name, value in self.set_fields().items() if name not in set(names)}
        return type(self)(**kept).with_given({name: self.given[name] for name in kept})

    def to_toml(self) -> str:
        """Return the recipe as TOML, without fields that are None. Fields of the model are in the table `[model]`."""
        import tomli_w

        fields = {name: list(v) if isinstance(v, tuple) else v for name, v in self.to_dict().items()}
        del fields["model_fields"]
        if self.model_fields is not None:
            fields["model"] = model_table(self.model, self.model_fields)
        return tomli_w.dumps({name: value for name, value in fields.items() if value is not None})

    @property
    def seed_of_split(self) -> int:
        """Return `split_seed`, or `seed` if `split_seed` is None."""
        return self.seed if self.split_seed is None else self.split_seed

    @property
    def budget(self) -> float | None:
        """Return `time` in seconds."""
        return None if self.time is None else parse_duration(self.time)


@contextmanager
def prefix_errors(source: str) -> Iterator[None]:
    """Prefix error messages in this context with the source of the fields."""
    try:
        yield
    except VitkitError as error:
        raise VitkitError(error.code, f"{source}: {error}") from error


def bundled() -> dict[str, str]:
    """Return the text of each recipe that comes with the package, by name."""
    from importlib import resources  # 20 ms that `vitkit --help` need not wait for

    files = [file for file in resources.files("vitkit.recipes").iterdir() if file.name.endswith(".toml")]
    return {Path(file.name).stem: file.read_text(encoding="utf-8") for file in files}


# --- Checks ---------------------------------------------------------------------------------------------------


def parse_duration(text: str, name: str = "time") -> float:
    """Parse `90s`, `10m`, `2h` or plain seconds, and return seconds, which must be above 0."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if seconds <= 0:
        message = f"{name} must be a duration such as 90s, 10m or 2h, not {text!r}"
        raise VitkitError("training.duration-invalid", message)
    return seconds


def checkpoint_every(text: str) -> int:
    """Convert `none`, `all` or a number to a value of `VisionTransformer.checkpointing`."""
    if text in ("none", "all"):
        return 0 if text == "none" else 1  # every block
    if not text.isdecimal() or len(text) > 6 or int(text) == 0:
        message = f"checkpointing must be none, all, or a whole number above 0, not {text!r}"
        raise VitkitError("training.checkpointing-invalid", message)
    return int(text)


# --- Fields of the model --------------------------------------------------------------------------------------

_ALIASES = {"mlp_ratio": float, "distilled": bool, "has_logits": bool}  # `canonical` replaces them by other fields
_ALSO_IN_RECIPE = ("image_size", "dropout", "attention_dropout", "drop_path", "init")


def _convert_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Convert changes of a model to names and types of `ViTConfig`. `none` becomes None if a field can be None."""
    converted = dict[str, Any]()
    for name, value in canonical(changes).items():
        hint, label = _hint(name), f"model.{name}"
        if NoneType in alternatives(hint)[0] and value in ("none", None):
            converted[name] = None
        elif name in PAIRS:
            converted[name] = as_pair(value, label)
        else:
            converted[name] = as_typed(label, hint, value)
    return converted


def _hint(name: str) -> Any:
    hints = {**hints_of(ViTConfig), **_ALIASES}
    if name not in hints:
        suggestion = suggest(name, list(hints)) or f"; known: {', '.join(hints)}"
        raise VitkitError("training.model-field-unknown", f"unknown field model.{name}{suggestion}")
    return hints[name]


def _shared_fields(changes: Mapping[str, Any]) -> list[str]:
    # The changed fields that are also fields of the recipe, whose `image_size` is the side of a square.
    is_square = "image_size" in changes and len(set(changes["image_size"])) == 1
    return [name for name in _ALSO_IN_RECIPE if name in changes and (name != "image_size" or is_square)]


def parse_set_arguments(texts: Iterable[str], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the arguments of `--set`, such as `shear=5` or `model.position=none`, into fields.

    `hints` has the types of the recipe's fields by name. Changes of the model, and its `name`, are in the mapping
    `model_fields` of the result. Commas separate the numbers of a tuple.
    """
    fields, changes = dict[str, Any](), dict[str, Any]()
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            message = f"--set {text}: --set expects FIELD=VALUE, as in --set shear=5 or --set model.position=none"
            raise VitkitError("training.set-syntax", message)
        if key.startswith("model."):
            for field, part in _parse_model_change(key.removeprefix("model."), value).items():
                _check_not_repeated(field, changes, f"--set model.{field}")
                changes[field] = part
            continue
        if key not in hints or key == "model_fields":
            Recipe.check_names([key])
            message = f"--set {text}: set fields of the model by --set model.FIELD=VALUE"
            raise VitkitError("training.set-syntax", message)
        _check_not_repeated(key, fields, f"--set {key}")
        fields[key] = from_text(key, hints[key], value)
    if changes:
        fields["model_fields"] = changes
    return fields


def _parse_model_change(name: str, text: str) -> dict[str, Any]:
    """Parse the value of `--set model.NAME`. An alias can stand for several fields."""
    if name == "name":
        return {name: text}
    change = dict[str, Any]()
    for field, value in canonical({name: text}).items():
        is_single_number = field in PAIRS and value != "none" and "," not in value
        change[field] = from_text(f"model.{field}", int if is_single_number else _hint(field), value)
    return _convert_changes(change)


def flatten_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten the fields of a recipe: `model` becomes a name, and the changes of the model become `model_fields`.

    `model` may be a table, as in TOML, and `model_fields` may have any field of the model. If a changed field of the
    model is also a field of the recipe, such as `dropout`, its value is moved to the recipe.
    """
    flat, changes = dict(fields), dict[str, Any]()
    for key in ("model", "model_fields"):
        if isinstance(fields.get(key), Mapping):
            for name, value in flat.pop(key).items():
                _check_not_repeated(name, changes, f"model.{name}")
                changes[name] = value
    _check_model_fields(flat.get("model_fields"))  # it may be None or not a table
    if "name" in changes:
        if flat.get("model") is not None:
            message = f"model is given twice, as {flat['model']} and as {changes['name']}: leave out one of them"
            raise VitkitError("training.field-repeated", message)
        flat["model"] = changes.pop("name")
    changes = _convert_changes(changes)
    for name in _shared_fields(changes):
        if flat.get(name) is not None:
            message = f"{name} is given twice, as {name} and as model.{name}: leave out one of them"
            raise VitkitError("training.field-repeated", message)
        value = changes.pop(name)
        flat[name] = value[0] if name == "image_size" else value
    if changes:
        flat["model_fields"] = changes
    return flat


def _check_model_fields(changes: Any) -> dict[str, Any] | None:
    if changes is None or changes == {}:
        return None
    if not isinstance(changes, Mapping) or not all(isinstance(name, str) for name in changes):
        message = f"model_fields must be a table of the model's fields, not {type_of(changes)}"
        raise VitkitError("training.model-fields-type", message)
    converted = _convert_changes(changes)
    if "num_classes" in converted:
        raise VitkitError("training.model-field-refused", "model.num_classes is determined by the data: leave it out")
    for name in _shared_fields(converted):
        message = f"{name} is a field of the recipe itself, not one of model_fields"
        raise VitkitError("training.model-field-refused", message)
    return converted


def model_table(name: str | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the name and the changed fields of a model to a `[model]` table. TOML has no null, so None is `none`."""
    table: dict[str, Any] = {} if name is None else {"name": name}
    for field, value in changes.items():
        plain = list(value) if isinstance(value, tuple) else value
        table[field] = "none" if plain is None else plain
    return table


def describe_changes(changes: Mapping[str, Any]) -> str:
    """Describe the changed fields of a model in words, as in `position none, layers 6`."""
    words = []
    for name, value in changes.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
        words.append(f"{name} {text}")
    return ", ".join(words)


def _check_not_repeated(name: str, known_fields: Mapping[str, Any], what: str) -> None:
    if name in known_fields:
        raise VitkitError("training.field-repeated", f"{what} is given twice: leave out one of them")


def without_absolute_paths(recipe: Recipe) -> Recipe:
    """Return a copy of the recipe for publication, which keeps only the last part of each absolute path."""
    paths = {name: getattr(recipe, name) for name in ("data", "labels", "split_from", "weights", "teacher")}
    return recipe.replace(**{name: public_path(path) for name, path in paths.items() if path is not None})


def name_of(recipe: Recipe) -> str:
    """Return the name of a recipe's model with its changed fields, or of the initial weights if it names no model."""
    name = recipe.model or Path(recipe.weights).name
    return name if recipe.model_fields is None else f"{name} with {describe_changes(recipe.model_fields)}"
