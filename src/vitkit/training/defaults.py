"""What the user leaves open: the weights to start from, what of the model is trained, and how long."""

from __future__ import annotations

import math
from typing import Any

from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.model.network_config import Config, NetworkConfig
from vitkit.training.networks import check_network, network_of, presets_of
from vitkit.training.patches import check_patch_dropout
from vitkit.training.recipe import Recipe, build

DEFAULT_MODEL = "vit_small_patch16_224"
FEW = 40  # training images per class, below which a new head on frozen features generalises better than a whole model
SPARED = 0.3  # of the patches: a fine-tuning step takes two thirds of the time, and no accuracy is lost (docs/log.md)
# Fields whose best value depends on what is trained. Those of `scratch` are the dataclass's own defaults.
PRESETS: dict[str, dict[str, Any]] = {
    "scratch": {},
    "full": {
        "lp_ft": True,
        "epochs": 6,
        "batch_size": 32,
        "lr": 5e-4,
        "layer_decay": 0.75,
        "warmup": 0.15,
        "crop_scale": (0.4, 1.0),
        "color_jitter": 0.1,
        "monitor": "val_loss",
    },
    "lora": {
        "lp_ft": True,
        "epochs": 8,
        "batch_size": 32,
        "lr": 2e-3,
        "warmup": 0.15,
        "drop_path": 0.0,
        "crop_scale": (0.4, 1.0),
        "color_jitter": 0.1,
        "monitor": "val_loss",
    },
    "probe-sgd": {"epochs": 10, "warmup": 0.0, "drop_path": 0.0, "crop_scale": (0.4, 1.0), "color_jitter": 0.1},
    "probe": {"epochs": 1, "batch_size": 64, "crop_scale": (0.4, 1.0), "color_jitter": 0.1},
}


# Where images may have several classes. All of them right is rare early on, so the loss tells epochs apart better; and
# most targets are 0, which smoothing would make as good as never reached.
_MULTI: dict[str, Any] = {"monitor": "val_loss", "label_smoothing": 0.0}


def complete(fields: dict[str, Any], table: ImageTable) -> tuple[Recipe, list[str]]:
    """The recipe with everything settled that its fields leave open, and why, a line each.

    Args:
        fields: what was asked for, by field name.
        table: the images to train on.

    Raises:
        VitkitError: a field is unknown, of the wrong type, or out of range.
    """
    asked = build(fields, "flags")
    if table.is_multi:
        _check_multi(asked)
    trained = sum(split in (None, "train") for split in table.splits)
    share = 1.0 if any(table.splits) else asked.split[0]
    each = min(trained * share, asked.max_images or math.inf) / max(len(table.classes), 1)
    return settle(fields, each, is_multi=table.is_multi)


def settle(fields: dict[str, Any], each: float, *, is_multi: bool) -> tuple[Recipe, list[str]]:
    """`complete`, of data of which no more is known.

    Args:
        fields: what was asked for, by field name.
        each: training images per class.
        is_multi: whether an image may have several classes.

    Raises:
        VitkitError: a field is unknown, of the wrong type, or out of range.
    """
    asked, reasons = build(fields, "flags"), []
    if asked.select_time is not None:
        raise VitkitError("select_time is of `vitkit train` on a folder of photographs: name one of the weights here")
    method = asked.method
    if method == "auto" and asked.weights == "none":
        method = "scratch"
    elif method == "auto":
        method = "probe" if each < FEW else "full"
        why = {"probe": "too few to change the whole model", "full": "enough to fine-tune the whole model"}[method]
        reasons.append(f"method {method}: about {each:.0f} training images per class are {why}")
    network = network_of(asked)
    own = {} if network is None else presets_of(network)
    chosen = {"lp_ft": False} if asked.head_from == "names" else {}  # which then begins as more than noise
    settled = {**PRESETS[method], **own, **(_MULTI if is_multi else {}), **chosen, **fields, "method": method}
    if method == "scratch":
        settled["weights"] = "none"
    if method == "probe" and asked.balance == "auto":
        settled["balance"] = "none"  # a head that is fitted at once needs no help to see the rare classes
    if asked.model is None and asked.weights in ("auto", "none"):
        settled["model"] = DEFAULT_MODEL if method != "scratch" else "vit_tiny_patch16_224"
        reasons.append(f"model {settled['model']}: the default{'' if method == 'scratch' else ' to fine-tune'}")
    recipe = build(settled, "flags")
    if network is not None:
        check_network(network, recipe)
    return recipe, reasons


def spare_patches(recipe: Recipe, fields: dict[str, Any], config: Config) -> Recipe:
    """Without a part of the patches in every step, if the whole model is fine-tuned and can do without.

    Args:
        recipe: settled otherwise.
        fields: what was asked for, by field name.
        config: of the model.
    """
    if recipe.method != "full" or "patch_dropout" in fields or isinstance(config, NetworkConfig):
        return recipe
    try:
        check_patch_dropout(config)
    except VitkitError:
        return recipe
    return recipe.replace(patch_dropout=SPARED)


def _check_multi(asked: Recipe) -> None:
    """Refuse what knows only one class an image."""
    if asked.teacher is not None:
        raise VitkitError("--teacher: a teacher says one class of an image, and these may have several; leave it out")
    if asked.balance == "sampler":
        raise VitkitError("--balance sampler draws images by their one class, and these may have several; take loss")
    if asked.prior == "uniform":
        raise VitkitError(
            "--prior uniform is of single classes; of several, each is said from a threshold of its own on"
        )
