"""What a plan is asked for, settled as a training would settle it, of data of which only the size is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from vitkit.data.named_sets import DATASETS
from vitkit.data.splits import trained_of
from vitkit.errors import VitkitError
from vitkit.experiments.plan_step import without_numbers
from vitkit.model.names import config_for, is_model_name
from vitkit.model.network_config import Config, NetworkConfig, is_network_name
from vitkit.system.progress import silent
from vitkit.training.architecture import config_of, named_plan, plan_of
from vitkit.training.defaults import settle, spare_patches
from vitkit.training.effects import check_effects
from vitkit.training.networks import check_network
from vitkit.training.patches import check_patch_dropout
from vitkit.training.recipe import Recipe, build
from vitkit.training.recipe_files import bundled, load_fields
from vitkit.training.recipe_model import overlay, unfold


@dataclass(frozen=True)
class Job:
    """A training with everything settled.

    Attributes:
        recipe: how.
        config: of the model.
        images: in an epoch.
        notes: what was assumed, a line each.
    """

    recipe: Recipe
    config: Config
    images: int
    notes: tuple[str, ...]


def job_of(recipe: str | Path, fields: dict[str, Any], images: int | None, classes: int | None) -> Job:
    """The training that a recipe asks for.

    Args:
        recipe: a TOML file, the name of a bundled recipe, or a model's name.
        fields: of a recipe, that go before its own.
        images: to train on; None: as many as the recipe's data has, if that is known.
        classes: None: as many as the data has, or as the model's name says.

    Raises:
        VitkitError: there is no such recipe or model, or the number of images is not known.
    """
    own, notes = _fields_of(recipe)
    asked = overlay(own, unfold(fields))
    named = DATASETS[asked["data"]] if asked.get("data") in DATASETS else None
    if classes is None and named is not None:
        classes = named.classes
    first = build(asked, str(recipe))
    if images is None:
        if named is None or named.splits:
            raise VitkitError(f"{recipe}: say how many images it trains on, with --images")
        if named.per_class:
            images = trained_of(named.per_class, first.split)
            notes.append(f"images: {images:,} of {named.name} to train on, as its classes are divided")
        else:
            images = round(named.images * first.split[0])
            notes.append(f"images: {first.split[0]:.0%} of {named.name}, about {images:,}")
    images = min(images, first.max_images or images)
    known = classes or _classes_of(first)
    settled, reasons = settle(asked, images / known, is_multi=False)
    idle = check_effects(settled, asked, named=fields)
    config = _config_of(settled, known)
    if isinstance(config, NetworkConfig):
        check_network(config, settled)
    elif settled.patch_dropout:
        check_patch_dropout(config)
    settled = spare_patches(settled, asked, config)
    return Job(settled, config, images, (*notes, *reasons, *idle, *_left_out(settled)))


def _fields_of(recipe: str | Path) -> tuple[dict[str, Any], list[str]]:
    name = str(recipe)
    if Path(name).is_file() or name in bundled():
        return load_fields(name), []
    if is_model_name(name) or is_network_name(name):
        return {"model": name, "weights": "none"}, ["weights none: a model by its name is planned from scratch"]
    if name.endswith(".toml") or "/" in name:
        return load_fields(name), []  # says that there is no such file
    config_for(name)  # says which names are like it
    raise AssertionError(name)


def _classes_of(recipe: Recipe) -> int:
    name = _model_name(recipe)
    return 1000 if name is None else config_for(name).num_classes


def _model_name(recipe: Recipe) -> str | None:
    """Of the recipe's model, or of the published weights that it starts from."""
    name = recipe.model or recipe.weights.split(".")[0]
    return name if is_model_name(name) else None


def _config_of(recipe: Recipe, classes: int) -> Config:
    """Without asking anybody else: weights that are not here count as those of their name."""
    if recipe.weights == "none" or (recipe.weights == "auto" and is_network_name(recipe.model)):
        return config_of(recipe, classes)
    if recipe.weights != "auto" and Path(recipe.weights).exists():
        return plan_of(recipe, classes, silent)[0]
    name = _model_name(recipe)
    if name is None:
        raise VitkitError(
            f"weights {recipe.weights} are not here, and do not say which model they are of: name it with --model"
        )
    return named_plan(recipe, name, classes)


def _left_out(recipe: Recipe) -> list[str]:
    """What a training does beside its steps, and a plan does not count."""
    asked = {
        f"time {recipe.time}: the epochs are planned, not the budget": recipe.time is not None,
        f"folds {recipe.folds}: one of the runs is planned": recipe.folds is not None,
        "find_lr: the short runs are not counted": recipe.find_lr,
        "lp_ft: fitting the head to frozen features first is not counted: a forward pass over the images": recipe.lp_ft
        and recipe.method != "probe",
    }
    return [what for what, is_so in asked.items() if is_so]


def passes(recipe: Recipe, images: int) -> tuple[int, int]:
    """How many images a training computes, and how many steps it takes; a head that is fitted at once takes none."""
    if recipe.method == "probe":
        return images * (1 + recipe.views), 0
    batches = math.ceil(images / recipe.batch_size)
    return images * recipe.epochs, math.ceil(batches / recipe.grad_accum) * recipe.epochs


def tokens_of(recipe: Recipe, config: Config) -> int:
    """That go through the layers for an image in training; 0 where there are none."""
    if isinstance(config, NetworkConfig):
        return 0
    return config.prefix_tokens + max(1, round(config.patches * (1 - recipe.patch_dropout)))


def teacher_network(recipe: Recipe, config: Config) -> nn.Module | None:
    """The network that is imitated, on the meta device; None without one.

    Raises:
        VitkitError: it is not known without its weights.
    """
    if recipe.teacher is None:
        return None
    from vitkit.training.teacher import torchvision_names
    from vitkit.weights import inspect

    name = recipe.teacher.partition(":")[0]
    model = name.split(".")[0]
    if Path(recipe.teacher).exists():
        return without_numbers(inspect(recipe.teacher).config).eval()
    if name in torchvision_names():
        return without_numbers(NetworkConfig(library="torchvision", name=name)).eval()
    if is_model_name(model):
        return without_numbers(config_for(model, image_size=config.image_size)).eval()
    raise VitkitError(f"teacher {recipe.teacher}: there is no such file, nor a model of this name to plan with")
