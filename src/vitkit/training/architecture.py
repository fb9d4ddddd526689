"""Determine the configuration of a recipe's model, either from the model's name and changes or from the weights.

For a network of another library, this module also determines which fields of a recipe do not apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.language.zero_shot import look_for_words
from vitkit.model import build
from vitkit.model.config import ViTConfig
from vitkit.model.names import Config, NetworkConfig, config_for, is_model_name, is_network_name, split_network
from vitkit.model.network import check_rates, native_rates
from vitkit.model_folder import is_model_folder, read_description
from vitkit.training.recipe import Recipe, in_words
from vitkit.weights.loading import LoadPlan, WeightsSource, look

# Fields of a recipe that only apply to a Vision Transformer, and the value at which they have no effect.
OF_VIT: dict[str, Any] = {
    "attention_dropout": 0.0,
    "patch_dropout": 0.0,
    "layer_decay": 1.0,
    "checkpointing": "none",
    "init": "trunc_normal",
}


def check_network(config: NetworkConfig, recipe: Recipe) -> None:
    """Refuse a recipe for a network of another library if it sets fields that require a Vision Transformer.

    Raises:
        VitkitError: the recipe sets such a field; the message names it.
    """
    requested = [name for name, nothing in OF_VIT.items() if getattr(recipe, name) != nothing]
    if recipe.method == "lora":
        requested.insert(0, "method lora")
    if recipe.strategy == "fsdp":
        requested.append("strategy fsdp")
    if requested:
        raise VitkitError(f"{requested[0]} requires a Vision Transformer, and this is {config.full_name}: leave it out")


def without_fields_of_vits(fields: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields that apply to the recipe's network, and a note on each field that was left out.

    Use this for recipes that were not written for the network, such as a published recipe, or one recipe for all models
    of a comparison. All fields are kept for a Vision Transformer.
    """
    network = None if fields.get("model") is None else split_network(fields["model"])
    if network is None:
        return dict(fields), []
    config = NetworkConfig(library=network[0], name=network[1])
    unknown = [name for name, nothing in OF_VIT.items() if fields.get(name, nothing) != nothing]
    lacking = [name for name in ("dropout", "drop_path") if fields.get(name) and not _has(config, name)]
    notes = [f"{name} {fields[name]} requires a Vision Transformer, and is left out" for name in unknown]
    notes += [f"{name} {fields[name]} is left out: the network has none" for name in lacking]
    return {name: value for name, value in fields.items() if name not in (*unknown, *lacking)}, notes


def _has(network: NetworkConfig, rate: str) -> bool:
    """Return whether a network has layers with this kind of dropout."""
    try:
        check_rates(network.replace(**{rate: 0.1}))
    except VitkitError:
        return False
    return True


def network_of(recipe: Recipe) -> NetworkConfig | None:
    """Return the library network that a recipe trains, without reading weights; None for our own models.

    Raises:
        VitkitError: the library is not installed, or has no such network.
    """
    folder = Path(recipe.weights)
    if is_model_folder(folder):
        fields = read_description(folder).get("config")
        return NetworkConfig.from_dict(fields) if isinstance(fields, dict) and "library" in fields else None
    network = None if recipe.model is None else split_network(recipe.model)
    return None if network is None else NetworkConfig(library=network[0], name=network[1])


def presets_of(config: NetworkConfig) -> dict[str, Any]:
    """Return the recipe defaults for a network of another library.

    These are the dropout rates that the library uses, and a layer decay of 1, so that all layers have the same learning
    rate.
    """
    return {"layer_decay": 1.0, **native_rates(config)}


def refuse_other_network(config: ViTConfig | NetworkConfig, recipe: Recipe) -> None:
    """Refuse weights of a model other than the one that the recipe names.

    Raises:
        VitkitError: the recipe names a network, and its weights are of another model.
    """
    network = None if recipe.model is None else split_network(recipe.model)
    if network is None:
        return
    of = (config.library, config.name) if isinstance(config, NetworkConfig) else None
    if of != network:
        what = "a Vision Transformer" if of is None else ":".join(of)
        raise VitkitError(f"--weights {recipe.weights} are of {what}, not of {recipe.model}")


_BY_LOAD = ("patch_size", "position_resize")  # `load` adapts the weights to these
_AFTER = ("pool", "position_dropout")  # these do not change the weights


def weights_of(recipe: Recipe) -> str:
    """Return the weights that a recipe starts from, as an argument of `vitkit.load`."""
    return str(recipe.model) if recipe.weights == "auto" else recipe.weights


def config_of(recipe: Recipe, num_classes: int) -> Config:
    """Return the configuration of a model that starts from random weights.

    Raises:
        VitkitError: the recipe names no model, or the model cannot be built.
    """
    if recipe.model is None:
        raise VitkitError("the recipe names neither a model nor weights")
    fields = {"init": recipe.init, **_rates(recipe), **_size(recipe), **(recipe.model_fields or {})}
    if is_network_name(recipe.model):
        return build.config_of(recipe.model, num_classes, **_network_fields(recipe), **_size(recipe))
    config = config_for(recipe.model, num_classes, **fields)
    if config.in_channels not in (1, 3):
        raise VitkitError(f"model.in_channels must be 3, or 1 for grey pictures, not {config.in_channels}")
    return config


def network_of_file(recipe: Recipe) -> str | None:
    """Return the recipe's model if it is a library network whose weights are in a file; otherwise return None."""
    return recipe.model if is_network_name(recipe.model) and recipe.weights not in ("auto", "none") else None


def look_at_weights(recipe: Recipe) -> WeightsSource:
    """Open the weights that a recipe starts from, after downloading them if necessary.

    Call this once per run, and pass the result on.

    Raises:
        VitkitError: the weights cannot be obtained, or the recipe changes a part of the model that they determine.
    """
    if recipe.weights == "auto" and is_model_name(str(recipe.model)):  # before they are downloaded
        _refuse_others(config_for(str(recipe.model)), recipe.model_fields or {}, str(recipe.model))
    return look(weights_of(recipe), use="training", network=network_of_file(recipe))


def plan_of(recipe: Recipe, num_classes: int, weights: WeightsSource) -> tuple[Config, LoadPlan]:
    """Return the configuration of a model that starts from these weights, and the plan to load all except the head.

    Raises:
        VitkitError: the weights cannot be understood, or the recipe changes a part of the model that they determine.
    """
    changes = recipe.model_fields or {}
    fitted = {"image_size", *_BY_LOAD}
    options: dict[str, Any] = {"image_size": recipe.image_size}
    is_vit = network_of_file(recipe) is None
    if is_vit:
        options |= {name: value for name, value in changes.items() if name in fitted}
    plan = weights.plan(0, **options)
    is_changed = is_vit and changes.keys() - fitted - {*_AFTER}
    assumed = {name: value for name, value in changes.items() if is_changed and name in plan.report.assumed}
    if assumed:  # the recipe may set what the tensors do not determine
        plan = weights.plan(0, **{**options, **assumed})
    refuse_other_network(plan.config, recipe)
    if isinstance(plan.config, NetworkConfig):
        return plan.config.replace(num_classes=num_classes, **_network_fields(recipe)), plan
    _refuse_others(plan.config, changes, weights_of(recipe))
    config = started_from(plan.config, recipe, num_classes)
    return (_named(config, recipe, weights) if recipe.head_from == "names" else config), plan


def _named(config: ViTConfig, recipe: Recipe, weights: WeightsSource) -> ViTConfig:
    """Return the configuration for a head that is made from the class names.

    The input of such a head is a unit vector in the space of the text encoder that belongs to the weights.
    """
    words = look_for_words(weights)
    if words is None:
        raise VitkitError(f"head_from names: {weights_of(recipe)} has no text encoder")
    return config.replace(representation_size=words.size, representation="unit")


def named_plan(recipe: Recipe, name: str, num_classes: int) -> ViTConfig:
    """Return the configuration that `plan_of` returns for the published weights of a model, without opening them.

    Raises:
        VitkitError: there is no such model, or the recipe changes a part of the model that its weights determine.
    """
    changes = recipe.model_fields or {}
    config = config_for(name)
    _refuse_others(config, changes, name)
    fitted = {field: value for field, value in changes.items() if field in ("image_size", *_BY_LOAD)}
    return started_from(config.replace(**_size(recipe), **fitted), recipe, num_classes)


def started_from(base: ViTConfig, recipe: Recipe, num_classes: int) -> ViTConfig:
    """Return the configuration of a model that starts from the weights of `base` and has the recipe's changes."""
    changes = recipe.model_fields or {}
    after = {name: changes[name] for name in _AFTER if name in changes}
    after["class_token"] = base.class_token  # the token stays even if the head reads the mean of the patches
    config = base.replace(num_classes=num_classes, representation_size=None, **_rates(recipe), **after)
    reads_token = config.pool == "token" and not (config.fc_norm or config.distill_head)
    if recipe.method == "probe" and reads_token and recipe.head_from != "names":
        config = config if "pool" in changes else config.replace(pool="token+gap")
    return config


def _refuse_others(config: ViTConfig, changes: Mapping[str, Any], source: str) -> None:
    """Refuse changes of the model that would alter the shapes or the meaning of its weights."""
    others = {name: value for name, value in changes.items() if name not in ("image_size", *_BY_LOAD, *_AFTER)}
    changed = config.replace(**others)
    for name, value in config.to_dict().items():
        if name != "representation_size" and (wanted := changed.to_dict()[name]) != value:
            raise VitkitError(
                f"{source} has {name} {_shown(value)}, so its weights cannot be used with model.{name} "
                f"{_shown(wanted)}: leave it out, or train from scratch with --weights none"
            )
    if others.get("representation_size") is not None or others.get("has_logits"):
        raise VitkitError(
            "model.representation_size: the new head of pretrained weights is a single linear layer; leave it out, or "
            "use --weights none"
        )


def _shown(value: Any) -> str:
    return in_words({"": value}).strip()


def _rates(recipe: Recipe) -> dict[str, Any]:
    return {name: getattr(recipe, name) for name in ("dropout", "attention_dropout", "drop_path")}


def _network_fields(recipe: Recipe) -> dict[str, Any]:
    return {"dropout": recipe.dropout, "drop_path": recipe.drop_path, **(recipe.model_fields or {})}


def _size(recipe: Recipe) -> dict[str, Any]:
    return {} if recipe.image_size is None else {"image_size": recipe.image_size}
