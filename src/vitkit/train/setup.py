"""From a recipe and its data to the parts of a run: the model to train, its pixels, its precision, its workers."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import asdict
from typing import Any

import torch

import vitkit
from vitkit.classifier import Classifier
from vitkit.config import ViTConfig
from vitkit.data.augment import Augment, mix_seeds
from vitkit.data.preprocess import Preprocess
from vitkit.data.source import ImageTable
from vitkit.errors import VitkitError
from vitkit.model import VisionTransformer
from vitkit.names import config_for
from vitkit.train.recipe import Recipe

_LIBRARIES = ("torch", "torchvision", "lightning", "numpy", "pillow")


def config_of(recipe: Recipe, classes: int) -> ViTConfig:
    """The architecture that a recipe asks for."""
    config = config_for(
        recipe.model,
        classes,
        dropout=recipe.dropout,
        attention_dropout=recipe.attention_dropout,
        drop_path=recipe.drop_path,
        init=recipe.init,
    )
    return config if recipe.image_size is None else config.replace(image_size=recipe.image_size)


def check_weights(recipe: Recipe) -> None:
    """Refuse to train from scratch unless that was asked for.

    Raises:
        VitkitError: the recipe wants pre-trained weights.
    """
    if recipe.method == "scratch" or recipe.weights == "none":
        return
    wanted = f"weights for {recipe.model}" if recipe.weights == "auto" else f"weights from {recipe.weights}"
    raise VitkitError(f"this version cannot load pre-trained {wanted}; train from scratch with --weights none")


def new_classifier(recipe: Recipe, table: ImageTable, data_hash: str) -> Classifier:
    """An untrained classifier for the table's classes; the same for the same seed."""
    config = config_of(recipe, len(table.classes))
    torch.manual_seed(mix_seeds(recipe.seed))
    preprocess = Preprocess(
        size=config.image_size, fit=recipe.fit, crop_pct=recipe.crop_pct, interpolation=recipe.interpolation
    )
    provenance = {
        "data": table.name,
        "data_hash": data_hash,
        "recipe": {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(recipe).items()},
        "versions": versions(),
    }
    return Classifier(VisionTransformer(config), table.classes, preprocess, provenance=provenance)


def augment_of(recipe: Recipe) -> Augment:
    """The random changes that a recipe asks for."""
    return Augment(
        crop_scale=None if recipe.crop_scale == (0.0, 0.0) else recipe.crop_scale,
        hflip=recipe.hflip,
        rotate=recipe.rotate,
        translate=recipe.translate,
        zoom=recipe.zoom,
        shear=recipe.shear,
        color_jitter=recipe.color_jitter,
    )


def choose_precision(precision: str) -> str:
    """`auto` as bfloat16 where the hardware computes in it, else float32."""
    if precision != "auto":
        return precision
    if torch.cuda.is_available():
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    capabilities: dict[str, Any] = dict(getattr(torch.cpu, "get_capabilities", dict)())
    has_bfloat16 = any(capabilities.get(name) for name in ("amx_bf16", "avx512_bf16"))
    return "bfloat16" if has_bfloat16 else "float32"


def choose_workers(workers: int | None) -> int:
    """Processes that prepare images: none on two cores, where the training step uses both."""
    if workers is not None:
        return workers
    cores = os.cpu_count() or 1
    return 0 if cores <= 2 else min(8, cores - 1)


def versions() -> dict[str, str]:
    """What a run was made with."""
    libraries = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return {"vitkit": vitkit.__version__, "python": platform.python_version(), **libraries}
