"""From a recipe and its data to the parts of a run: the model to train, its pixels, its precision, its workers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

import vitkit
from vitkit.classifier import Classifier
from vitkit.data.augment import Augment, mix_seeds
from vitkit.data.preprocess import HALF, Preprocess
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation.multilabel import NO_THRESHOLD
from vitkit.inference.backends.precision import best_precision
from vitkit.inference.pipeline import cores
from vitkit.model.build import Model, build, check_buildable
from vitkit.model.network import anatomy_of
from vitkit.model.network_config import Config, NetworkConfig
from vitkit.model.vit import VisionTransformer
from vitkit.system import devices
from vitkit.system.files import without_place
from vitkit.system.progress import Progress
from vitkit.training.architecture import config_of, load_options, plan_of, weights_of
from vitkit.training.first_head import start_from_names
from vitkit.training.networks import check_network
from vitkit.training.patches import check_patch_dropout
from vitkit.training.recipe import Recipe
from vitkit.training.recipe_names import without_places
from vitkit.weights import load

_LIBRARIES = ("torch", "torchvision", "lightning-fabric", "numpy", "pillow")


def start_of(recipe: Recipe, classes: Sequence[str], progress: Progress) -> tuple[Config, Preprocess]:
    """The architecture and the pixels that a recipe asks for; weights are looked at, not read.

    Raises:
        VitkitError: the model cannot be built, or its weights cannot be had or understood.
    """
    if recipe.weights == "none":
        config = config_of(recipe, len(classes))
        _check(config, recipe)
        return config, _preprocess(recipe, _plain_pixels(config))
    try:
        config, plan = plan_of(recipe, len(classes), progress)
    except VitkitError as error:
        if recipe.weights != "auto" or "--weights none" in str(error):
            raise
        raise VitkitError(f"{error}; or train from scratch with --weights none") from error
    _check(config, recipe)
    return config, _preprocess(recipe, plan.preprocess)


def _check(config: Config, recipe: Recipe) -> None:
    if isinstance(config, NetworkConfig):
        check_network(config, recipe)
        check_buildable(config)
    elif recipe.patch_dropout:
        check_patch_dropout(config)


def new_classifier(recipe: Recipe, table: ImageTable, data_hash: str, progress: Progress) -> Classifier:
    """A classifier for the table's classes before its training, the same for the same seed.

    It starts from the recipe's weights with a head of zeros (paper, app. B.1.1) or of the class names, or from none.
    """
    config, preprocess = start_of(recipe, table.classes, progress)
    torch.manual_seed(mix_seeds(recipe.seed))
    model = build(config)
    provenance: dict[str, Any] = {
        "data": without_place(table.name),
        "data_hash": data_hash,
        "recipe": {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(without_places(recipe)).items()},
        "versions": versions(config),
    }
    report = None
    if recipe.weights != "none":
        head: dict[str, Tensor] = {}
        if recipe.head_from == "names":
            source, head, templates = start_from_names(recipe, table.classes, progress)
            provenance["head"] = {"from": "names", "templates": list(templates)}
        else:
            source = load(weights_of(recipe), 0, **load_options(recipe, progress), use="training", progress=progress)
        report = source.report
        take_weights(model, source.model, head)
        provenance["weights"] = {"source": without_place(weights_of(recipe)), "from": source.provenance}
    thresholds = (NO_THRESHOLD,) * len(table.classes) if table.is_multi else None
    return Classifier(model, table.classes, preprocess, provenance=provenance, report=report, thresholds=thresholds)


def take_weights(model: Model, source: Model, first_head: Mapping[str, Tensor]) -> None:
    """Copy all but the heads, which become `first_head`, or zeros: the first step then moves the head alone."""
    is_ours = isinstance(model, VisionTransformer)
    head = "head" if is_ours else f"network.{anatomy_of(model.config).head}."
    heads = {name for name in model.state_dict() if name.startswith(head)}
    left = model.load_state_dict(source.state_dict(), strict=False)
    assert set(left.missing_keys) == heads and not left.unexpected_keys, left
    with torch.no_grad():
        for name in heads:
            own = model.get_parameter(name)
            own.copy_(first_head.get(name, torch.zeros_like(own)))


def _plain_pixels(config: Config) -> Preprocess:
    """Those of a model that starts from no weights."""
    values = HALF[: config.in_channels]
    return Preprocess(size=config.image_size, mean=values, std=values)


def _preprocess(recipe: Recipe, own: Preprocess) -> Preprocess:
    """The weights' own pixels, but for what the recipe says."""
    given = {name: getattr(recipe, name) for name in ("fit", "crop_pct", "interpolation")}
    return replace(own, **{name: value for name, value in given.items() if value is not None})


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
        rand_augment=recipe.rand_augment,
        random_erasing=recipe.random_erasing,
    )


def choose_device(recipe: Recipe) -> str:
    """Where a run computes, as Lightning calls its accelerators, which knows more kinds of GPU for `auto`.

    Raises:
        VitkitError: there is no such device here.
    """
    return "auto" if recipe.device == "auto" else devices.choose_device(recipe.device)


def choose_precision(precision: str, device: str = "auto") -> str:
    """`auto` as bfloat16 where the hardware computes in it, else float32."""
    return best_precision(device) if precision == "auto" else precision


def choose_compile(recipe: Recipe) -> bool:
    """Whether torch.compile is to make the steps quicker: by default on GPUs, where its compiler is installed."""
    if recipe.compile != "auto":
        return recipe.compile == "on"
    has_compiler = devices.choose_device(recipe.device) == "cuda" and importlib.util.find_spec("triton") is not None
    return has_compiler and recipe.strategy != "fsdp"


def choose_workers(recipe: Recipe, size: tuple[int, int]) -> int:
    """Processes that prepare images: what the recipe says, else as many as there are cores and shared memory for.

    None on two cores, where the training step uses both. Each has two batches on their way through /dev/shm, of which
    containers often have 64 MiB: half of what is free there is taken at most.
    """
    if recipe.workers is not None:
        return recipe.workers
    wanted = 0 if cores() <= 2 else min(8, cores() - 1)
    height, width = size
    batch = 4 * 3 * recipe.batch_size * height * width  # bytes
    return min(wanted, _free_shared_memory() // (2 * 2 * batch))


def _free_shared_memory() -> int:
    """Bytes of /dev/shm, through which processes hand over tensors; without end where there is no such folder."""
    try:
        return shutil.disk_usage("/dev/shm").free  # noqa: S108  # asked for its size alone
    except OSError:
        return sys.maxsize


def versions(config: Config | None = None) -> dict[str, str]:
    """What a run was made with; the library of another's network, too."""
    more = (config.library,) if isinstance(config, NetworkConfig) else ()
    libraries = {name: importlib.metadata.version(name) for name in dict.fromkeys((*_LIBRARIES, *more))}
    return {"vitkit": vitkit.__version__, "python": platform.python_version(), **libraries}
