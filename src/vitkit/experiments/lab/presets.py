"""The sizes of an experiment: `small` takes minutes on two cores, and `paper` is the published size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from vitkit.errors import VitkitError
from vitkit.experiments.lab.experiment import Ablation, AblationVariant
from vitkit.model.config import ViTConfig
from vitkit.model.names import config_for
from vitkit.model.network_config import is_network_name
from vitkit.training.recipe import Recipe, unfold
from vitkit.training.recipe_files import published, request_of

Preset = Literal["small", "paper"]
EPOCHS = 15
_SMALL: dict[str, Any] = {"weights": "none", "epochs": EPOCHS, "batch_size": 32}
_MODEL = "vit_micro_patch4_32"  # of photographs, at 32 px; data with a recipe of their own have its model


def base_fields(ablation: Ablation, data: str, preset: Preset, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe that all variants share.

    Args:
        ablation: the ablation whose recipe `paper` takes.
        data: folder or name.
        preset: how large it is.
        fields: what the user asks for; they go before those of the preset.

    Raises:
        VitkitError: a field is unknown or of another type, or there is no published recipe.
    """
    unfolded = unfold(fields)
    if preset == "paper":
        return request_of({**unfolded, "data": data}, published_recipe(ablation)).fields
    model = {} if published({"data": data}) is not None else {"model": _MODEL}
    return request_of({**model, **_SMALL, **unfolded, "data": data}).fields


def published_recipe(ablation: Ablation) -> str:
    """Return the name of the bundled recipe with the published hyper-parameters.

    Raises:
        VitkitError: there is none.
    """
    if ablation.recipe is None:
        raise VitkitError(f"{ablation.name}: it has no published recipe of its own; leave out --preset paper")
    return ablation.recipe


def base_config(fields: Mapping[str, Any]) -> ViTConfig:
    """Return the configuration of the model that the variants modify.

    Raises:
        VitkitError: it is no Vision Transformer, or cannot be built.
    """
    if is_network_name(str(fields["model"])):
        raise VitkitError(f"{fields['model']}: an ablation varies a Vision Transformer; name one with --model")
    size = {} if fields.get("image_size") is None else {"image_size": fields["image_size"]}
    return config_for(str(fields["model"]), **size, **(fields.get("model_fields") or {}))


def variant_fields(base: Mapping[str, Any], shared: Mapping[str, Any], variant: AblationVariant) -> dict[str, Any]:
    """Return the recipe of one variant.

    Args:
        base: what all share.
        shared: what of it the user asked for.
        variant: what differs.

    Raises:
        VitkitError: the user asked for what the experiment varies.
    """
    changed, model = unfold(shared), dict(base.get("model_fields") or {})
    varied = dict(variant.fields)
    changes = varied.pop("model_fields", {})
    for name in changes:
        if name in (changed.get("model_fields") or {}):
            raise VitkitError(f"model.{name} is what this experiment varies: leave it out")
    for name in varied:
        if name in changed:
            raise VitkitError(f"{name} is what this experiment varies: leave it out")
    fields = {**variant.usual, **base, **varied, "model_fields": {**model, **changes}}
    for name, factor in variant.times.items():
        value = fields.get(name, getattr(Recipe(), name))
        fields[name] = max(round(factor * value), 1) if isinstance(value, int) else factor * value
    return unfold({name: value for name, value in fields.items() if value is not None and value != {}})


_OF_BOTH = (  # what a pre-training has from the recipe that it is for: the same model, pixels, split and machine
    *("data", "model", "model_fields", "image_size", "init", "batch_size"),
    *(
        "fit",
        "crop_pct",
        "interpolation",
        "crop_scale",
        "hflip",
        "rotate",
        "translate",
        "zoom",
        "shear",
        "color_jitter",
    ),
    *("layout", "split", "split_seed", "split_from", "group_by", "seed"),
    *("precision", "device", "compile", "cache", "workers"),
)


def pretraining_fields(fields: Mapping[str, Any], variant: AblationVariant) -> dict[str, Any]:
    """Return the recipe of the pre-training before a variant's training.

    All training images are learned from, however few of them the training is given with `max_images`.

    Args:
        fields: the fields of the training.
        variant: which.
    """
    return {**{name: fields[name] for name in _OF_BOTH if name in fields}, "logger": "none", **variant.pretraining}
