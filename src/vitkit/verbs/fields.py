"""Keywords of functions that take the fields of a recipe, in their signatures, their help and for type checkers.

The `TypedDict`s say to type checkers and editors what the dataclasses say when vitkit runs; a test holds them equal.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args, get_type_hints

from vitkit.data.layout import LayoutName
from vitkit.system.environment import DeviceName
from vitkit.training.pretraining.options import Target
from vitkit.training.recipe import Recipe


class _SharedFields(TypedDict, total=False):
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


class ComparedFields(_SharedFields, total=False):
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


class PretrainingFields(_SharedFields, total=False):
    """Fields that `vitkit.pretrain` takes."""

    model: str | None
    devices: int | None
    nodes: int | None
    objective: Literal["mae", "masked-patch"]
    mask: float | None
    target: Target
    decoder_layers: int | None
    decoder_width: int | None
    unlabelled: bool


def add_recipe_fields(
    function: Callable[..., Any],
    but: Collection[str] = ("data",),
    owners: Sequence[type[Any]] = (Recipe,),
    heading: str = "Fields of the recipe",
) -> None:
    """Let the signature and the help of a function have fields in the place of its `**fields`.

    Args:
        function: which.
        but: fields that it does not take.
        owners: dataclasses whose fields they are; of a field that several have, the first one's counts.
        heading: over the fields in the help.
    """
    told, seen = "", set(but)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    for owner in owners:
        hints = get_type_hints(owner, include_extras=True)
        for field in dataclasses.fields(owner):
            if field.name in seen:
                continue
            seen.add(field.name)
            kind, text, *_ = get_args(hints[field.name])
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(field.name, keyword, default=field.default, annotation=kind))
            told += f"\n        {field.name}: {text}"
    function.recipe_fields = (tuple(owners), tuple(but))  # type: ignore[attr-defined]  # which cli.flags makes flags of
    function.__signature__ = inspect.signature(function).replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n    {heading}:{told}\n    "
