"""Every choice of a training run in one dataclass. TOML files hold recipes; the flags of `vitkit train` are its fields.

Precedence: the defaults here, what is chosen from the data, the recipe file, the flags given. The resolved recipe is
written into the run.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from vitkit.data.layout import LayoutName
from vitkit.errors import VitkitError
from vitkit.system.devices import DeviceName
from vitkit.text.fields import Between, hints_of, settle_types
from vitkit.training.recipe_model import check_model_fields, to_table, unfold
from vitkit.training.recipe_values import (
    BY_METHOD,
    METHODS_RENAMED,
    RENAMED,
    check_together,
    check_values,
    join_weights,
    parse_duration,
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to train on, which model, and how. A field that is None is left to the data or to the model's name."""

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
        settle_types(self, but=("model_fields",))
        object.__setattr__(self, "model_fields", check_model_fields(self.model_fields))
        check_values(self)
        check_together(self)

    def replace(self, **changes: Any) -> Recipe:
        """A copy with fields changed.

        Raises:
            VitkitError: a field is unknown, of the wrong type, or out of range; the message names it.
        """
        return build({**dataclasses.asdict(self), **changes})

    def to_toml(self) -> str:
        """The recipe as TOML; fields that are None have no key, and those of the model are in its table."""
        import tomli_w

        fields = {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(self).items()}
        del fields["model_fields"]
        if self.model_fields is not None:
            fields["model"] = to_table(self.model, self.model_fields)
        return tomli_w.dumps({name: value for name, value in fields.items() if value is not None})

    @property
    def seed_of_split(self) -> int:
        """`split_seed`, or else `seed`."""
        return self.seed if self.split_seed is None else self.split_seed

    @property
    def budget(self) -> float | None:
        """`time` in seconds."""
        return None if self.time is None else parse_duration(self.time)


def build(fields: dict[str, Any], source: str = "recipe") -> Recipe:
    """A recipe from plain values, as TOML and flags have them.

    Raises:
        VitkitError: a field is unknown, of the wrong type, or out of range; the message names it and `source`.
    """
    hints = hints_of(Recipe)
    try:
        fields = unfold(fields)
    except VitkitError as error:
        raise VitkitError(f"{source}: {error}") from error
    for name in fields:
        if name in RENAMED:
            raise VitkitError(f"{source}: {name} is called {RENAMED[name]} now")
        if name not in hints:
            close = difflib.get_close_matches(name, hints, n=1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            raise VitkitError(f"{source}: unknown field {name!r}{meant}; known: {', '.join(hints)}")
    method = str(fields.get("method"))
    if method in METHODS_RENAMED:
        raise VitkitError(f"{source}: method {method} is called {METHODS_RENAMED[method]} now")
    try:
        return Recipe(**fields)
    except VitkitError as error:
        raise VitkitError(f"{source}: {error}") from error
