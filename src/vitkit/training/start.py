"""Describe the model that a training starts from, and create it: its configuration, weights, head and preprocessing.

A new head starts with zeros or with the text encoder's vectors of the class names. The latter is a zero-shot classifier
before any training, whose validation figures are reported as epoch 0 (WiSE-FT, arXiv 2109.01903, sec. 3).
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import vitkit
from vitkit.classifier import Classifier
from vitkit.data.augment import Augment, CustomAugment
from vitkit.data.loading import mix_seeds
from vitkit.data.preprocess import HALF, Preprocess, conversion_remedy
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.inference.pipeline import cores
from vitkit.language.text_files import TextEncoderInfo
from vitkit.language.zero_shot import (
    build_images_and_words,
    check_tokenizer,
    find_text_encoder,
    names_as_words,
    published_templates,
    why_indistinguishable,
)
from vitkit.model.build import Model, build
from vitkit.model.names import Config, NetworkConfig
from vitkit.model.network import anatomy_of, check_rates
from vitkit.model.vit import VisionTransformer
from vitkit.system import environment as devices
from vitkit.system.environment import best_precision
from vitkit.system.files import public_path
from vitkit.text.arguments import hints_of
from vitkit.training.adapters import heads_of, needs_every_patch
from vitkit.training.defaults import check_network, choose_patch_dropout, config_of, open_weights, plan_of, weights_of
from vitkit.training.recipe import Pixels, Recipe, without_absolute_paths
from vitkit.training.request import ChangePicture
from vitkit.weights.loading import LoadPlan, WeightsSource


def choose_head_start(
    recipe: Recipe, fields: Mapping[str, Any], table: ImageTable, weights: WeightsSource | None
) -> tuple[Recipe, list[str]]:
    """Choose whether the head starts from zeros or from the class names.

    Return the complete recipe with this choice, and lines for the user about it. The arguments are as for
    `resolve_model`; `weights` is None for random weights.

    Raises:
        VitkitError: class names are requested, but cannot be used with these weights.
    """
    if recipe.head_from == "zero":
        return recipe, []
    is_requested = recipe.head_from == "names"
    from_zero = recipe.replace(head_from="zero")
    if weights is None or (weights.is_image_encoder and not is_requested):
        return from_zero, []
    try:
        words = find_text_encoder(weights)
        if words is None:
            if not is_requested:
                return from_zero, []
            message = "the weights have no text encoder; use CLIP or SigLIP with both encoders, or --set head_from=zero"
            raise VitkitError("training.head-names-unsuitable", message)
        check_tokenizer(weights, words)
        reason = _why_names_unsuitable(recipe, fields, table, words)
        if reason is not None:
            raise VitkitError("training.head-names-unsuitable", reason)
    except VitkitError as error:
        if is_requested:
            raise VitkitError(error.code, f"--set head_from=names: {error}") from error
        return from_zero, [f"the head starts from zero: {error}"]
    (template,) = published_templates(is_sigmoid=words.is_sigmoid)
    pairs = zip(table.classes, names_as_words(table.classes), strict=True)
    changed = [f", {name!r} read as {text!r}" for name, text in pairs if name != text]
    example = changed[0] if changed else ""
    line = f"the head starts from the class names, as {template!r}{example}; the zero-shot model is epoch 0"
    return recipe.replace(head_from="names", lp_ft=False), [line]


def _why_names_unsuitable(
    recipe: Recipe, fields: Mapping[str, Any], table: ImageTable, words: TextEncoderInfo
) -> str | None:
    """Return why no head should be made from the class names; None if nothing speaks against it."""
    if fields.get("lp_ft"):
        return "lp_ft fits the head to the photographs"
    if "pool" in (recipe.model_fields or {}):
        return "model.pool differs from the pooling that the text encoder was trained with"
    if table.task.is_sigmoid and not words.is_sigmoid:
        return (
            "images may have several classes, and these weights were trained with softmax, which gives no "
            "probability of each class on its own"
        )
    unsuitable = None if recipe.head_from == "names" else why_indistinguishable(table.classes)
    if unsuitable is not None:
        return f"the class names are not suitable ({unsuitable}); --set head_from=names uses them anyway"
    return None


@dataclass(frozen=True)
class Blueprint:
    """The description of the model that a training starts from. No model is built and no weights are read for it."""

    recipe: Recipe  # complete
    config: Config
    preprocess: Preprocess
    weights: WeightsSource | None = None  # the initial weights, with only names and shapes read; None if random
    plan: LoadPlan | None = None  # for loading the initial weights without their head; None if random

    @property
    def record_bytes(self) -> bytes | None:
        """Return the record of the images that the initial weights were trained on; None if there is none."""
        return None if self.plan is None else self.plan.pictures


def blueprint_of(recipe: Recipe, classes: Sequence[str], weights: WeightsSource | None = None) -> Blueprint:
    """Return the blueprint of a complete recipe's model, whose initial `weights` may have been opened already.

    Raises:
        VitkitError: the model cannot be built, its weights cannot be obtained or understood, or their preprocessing of
            photographs is unknown.
    """
    plan = None
    if recipe.weights == "none":
        config = config_of(recipe, len(classes))
        half = HALF[: config.in_channels]
        preprocess = Preprocess(size=config.image_size, mean=half, std=half)
    else:
        with _offering_scratch(recipe):
            weights = weights or open_weights(recipe)
            config, plan = plan_of(recipe, len(classes), weights)
        preprocess = plan.preprocess
    check_config(config, recipe)
    changes = {name: getattr(recipe, name) for name in hints_of(Pixels) if getattr(recipe, name) is not None}
    preprocess = replace(preprocess, **changes)
    if preprocess.unknown and recipe.data is not None:  # without `data`, the caller's datasets do the preprocessing
        name = weights_of(recipe)
        preprocess.check_known(name, conversion_remedy(name, "train with --weights NEW"))
    return Blueprint(recipe, config, preprocess, weights, plan)


@contextmanager
def _offering_scratch(recipe: Recipe) -> Iterator[None]:
    # If the weights were chosen automatically, advise random weights in the message of an error.
    try:
        yield
    except VitkitError as error:
        if recipe.weights != "auto" or "--weights none" in str(error):
            raise
        advice = ", with" if str(error).endswith("from scratch") else "; or train from scratch with"
        raise VitkitError(error.code, f"{error}{advice} --weights none") from error


def check_config(config: Config, recipe: Recipe) -> None:
    """Refuse a model whose library is not installed, or that does not support a field of the recipe."""
    if isinstance(config, NetworkConfig):
        check_network(config, recipe)
        anatomy_of(config)
        check_rates(config)
        return
    reason = needs_every_patch(config)
    if recipe.patch_dropout and reason is not None:
        raise VitkitError("training.patch-dropout-unsupported", f"--patch-dropout: {reason}")


def new_classifier(blueprint: Blueprint, table: ImageTable, data_hash: str) -> Classifier:
    """Create the classifier for the classes of a table, with its initial weights. Equal seeds give equal weights.

    With pretrained weights, the new head consists of zeros (paper, app. B.1.1) or is made from the class names. The
    hash of the split images, `data_hash`, is recorded in the classifier.
    """
    recipe, config, plan = blueprint.recipe, blueprint.config, blueprint.plan
    torch.manual_seed(mix_seeds(recipe.seed))
    model = build(config)
    fields = without_absolute_paths(recipe).to_dict()
    of_network = (config.library,) if isinstance(config, NetworkConfig) and config.library != "custom" else ()
    libraries = dict.fromkeys(("torch", "torchvision", "lightning-fabric", "numpy", "pillow", *of_network))
    versions = {name: importlib.metadata.version(name) for name in libraries}
    provenance: dict[str, Any] = {
        "data": public_path(table.name),
        "data_hash": data_hash,
        "recipe": {name: list(v) if isinstance(v, tuple) else deepcopy(v) for name, v in fields.items()},
        "versions": {"vitkit": vitkit.__version__, "python": platform.python_version(), **versions},
    }
    report = None
    if plan is not None:
        head: dict[str, Tensor] = {}
        if recipe.head_from == "names":
            assert blueprint.weights is not None
            encoders = build_images_and_words(blueprint.weights, plan)
            templates = published_templates(is_sigmoid=encoders.words.is_sigmoid)
            head = encoders.head(names_as_words(table.classes), templates)
            tensors, report = encoders.images.model.state_dict(), encoders.images.report
            provenance["head"] = {"from": "names", "templates": list(templates)}
        else:
            tensors, report = plan.tensors()

        # The tensors lack exactly the heads. Parameters of heads that `head` lacks become 0.
        target: torch.nn.Module = model if isinstance(model, VisionTransformer) else model.network
        prefix = "head" if isinstance(model, VisionTransformer) else f"{anatomy_of(model.config).head}."
        head_names = {name for name in target.state_dict() if name.startswith(prefix)}
        mismatch = target.load_state_dict(tensors, strict=False)
        assert set(mismatch.missing_keys) == head_names and not mismatch.unexpected_keys, mismatch
        with torch.no_grad():
            for name in head_names:
                parameter = target.get_parameter(name)
                parameter.copy_(head.get(name, torch.zeros_like(parameter)))

        provenance["weights"] = {"source": public_path(weights_of(recipe)), "from": dict(plan.provenance)}
    thresholds = table.task.thresholds(len(table.classes))
    return Classifier(
        model, table.classes, blueprint.preprocess, provenance=provenance, report=report, thresholds=thresholds
    )


def digest_of_backbone(model: Model) -> str:
    """Return the SHA-256 digest of the parameters and buffers of a model, except those of its heads.

    Runs whose initial models have the same digest have started from the same weights.
    """
    # The tensors of the heads are recognised by identity, because their names depend on the library of the model.
    heads = {id(tensor) for head in heads_of(model) for tensor in head.state_dict(keep_vars=True).values()}
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict(keep_vars=True).items()):
        if id(tensor) not in heads:
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def augment_of(recipe: Recipe, change: ChangePicture | None = None) -> Augment:
    """Return the random augmentation of a recipe, which follows the caller's function `change` if there is one."""
    strengths: dict[str, Any] = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(Augment)}
    strengths["crop_scale"] = None if recipe.crop_scale == (0.0, 0.0) else recipe.crop_scale
    return Augment(**strengths) if change is None else CustomAugment(**strengths, change=change)


def choose_device(recipe: Recipe) -> str:
    """Return the Lightning accelerator of a run; `auto` lets Lightning choose. A device that is missing is refused."""
    return "auto" if recipe.device == "auto" else devices.choose_device(recipe.device)


def choose_precision(precision: str, device: str = "auto") -> str:
    """Resolve `auto` to bfloat16 if the hardware supports it, else to float32."""
    return best_precision(device) if precision == "auto" else precision


def choose_compile(recipe: Recipe, images: int) -> bool:
    """Return whether to compile the training steps on `images` images; by default, in long trainings on a GPU."""
    if recipe.compile != "auto":
        return recipe.compile == "on"
    # On an H200, compiling S/16 or B/16 takes 25 s, and saves 60 to 70 microseconds per image.
    if images * recipe.epochs < 500_000:
        return False
    return devices.choose_device(recipe.device) == "cuda" and importlib.util.find_spec("triton") is not None


def choose_workers(recipe: Recipe, size: tuple[int, int], *, bytes_per_pixel: int = 12) -> int:
    """Return the number of processes that prepare images, by default as many as cores and shared memory allow.

    The training processes of a machine share its cores. If each has at most two, the training steps need both, and the
    result is 0. Each worker holds two batches in /dev/shm, which often has only 64 MiB in containers; half of its free
    space is used.

    Args:
        recipe: the recipe.
        size: height and width of the images in a batch.
        bytes_per_pixel: the bytes per pixel in a batch, for all channels.
    """
    if recipe.workers is not None:
        return recipe.workers
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", recipe.devices or 1))  # torchrun may start more than the recipe
    cores_per_process = cores() // processes
    if cores_per_process <= 2:
        return 0
    height, width = size
    worker_bytes = 2 * bytes_per_pixel * recipe.batch_size * height * width
    try:
        free = shutil.disk_usage("/dev/shm").free  # noqa: S108  # only its size is read
    except OSError:  # there is no such folder
        free = sys.maxsize
    return min(cores_per_process - 1, free // 2 // (worker_bytes * processes))


def resolve_model(recipe: Recipe, fields: Mapping[str, Any], table: ImageTable) -> tuple[Blueprint, list[str]]:
    """Return the blueprint of a recipe's model, and lines for the user about the choice of its initial head.

    In the recipe of the blueprint, the fields that depend on the model are set: `head_from`, `lp_ft`, `patch_dropout`.
    `recipe` is complete, and `fields` are those that the user has set.

    Raises:
        VitkitError: the model cannot be built, or its weights cannot be obtained or understood.
    """
    with _offering_scratch(recipe):
        weights = None if recipe.weights == "none" else open_weights(recipe)
    recipe, reasons = choose_head_start(recipe, fields, table, weights)
    blueprint = blueprint_of(recipe, table.classes, weights)
    return replace(blueprint, recipe=choose_patch_dropout(recipe, fields, blueprint.config)), reasons
