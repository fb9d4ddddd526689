"""What training a network of another library needs beside the loop: which fields of a recipe mean nothing to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.libraries import check_rates, own_rates
from vitkit.model.network_config import NetworkConfig, split_network
from vitkit.model_folder import is_model_folder, read_description
from vitkit.training.recipe import Recipe

# Fields of a recipe that only a Vision Transformer heeds, and the value at which they do nothing.
OF_VIT: dict[str, Any] = {
    "attention_dropout": 0.0,
    "patch_dropout": 0.0,
    "layer_decay": 1.0,
    "checkpointing": "none",
    "init": "trunc_normal",
}


def check_network(config: NetworkConfig, recipe: Recipe) -> None:
    """Refuse what needs a Vision Transformer.

    Raises:
        VitkitError: the recipe asks for such a thing; the message names it.
    """
    asked = [name for name, nothing in OF_VIT.items() if getattr(recipe, name) != nothing]
    if recipe.method == "lora":
        asked.insert(0, "method lora")
    if recipe.strategy == "fsdp":
        asked.append("strategy fsdp")
    if asked:
        raise VitkitError(f"{asked[0]} is of Vision Transformers, and this is {config.full_name}: leave it out")


def without_fields_of_vits(fields: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The fields of a recipe, of a network without those that it does not know; and a line for each of these.

    For recipes that were not written for it: a published one, or one for all models of a comparison.
    """
    found = None if fields.get("model") is None else split_network(fields["model"])
    if found is None:
        return dict(fields), []
    own = NetworkConfig(library=found[0], name=found[1])
    unknown = [name for name, nothing in OF_VIT.items() if fields.get(name, nothing) != nothing]
    lacking = [name for name in ("dropout", "drop_path") if fields.get(name) and not _has(own, name)]
    notes = [f"{name} {fields[name]} is of Vision Transformers, and left out" for name in unknown]
    notes += [f"{name} {fields[name]} is left out: the network has none" for name in lacking]
    return {name: value for name, value in fields.items() if name not in (*unknown, *lacking)}, notes


def _has(network: NetworkConfig, rate: str) -> bool:
    """Whether a network has layers that drop so."""
    try:
        check_rates(network.replace(**{rate: 0.1}))
    except VitkitError:
        return False
    return True


def network_of(recipe: Recipe) -> NetworkConfig | None:
    """The network that a recipe trains, as far as its fields tell without reading weights; None of our own models.

    Raises:
        VitkitError: the library that the model's name calls is not installed, or has no such network.
    """
    folder = Path(recipe.weights)
    if is_model_folder(folder):
        fields = read_description(folder).get("config")
        return NetworkConfig.from_dict(fields) if isinstance(fields, dict) and "library" in fields else None
    found = None if recipe.model is None else split_network(recipe.model)
    return None if found is None else NetworkConfig(library=found[0], name=found[1])


def presets_of(config: NetworkConfig) -> dict[str, Any]:
    """Fields whose values by method are for Vision Transformers, with those that suit this network.

    What the library drops by itself stays; every weight learns at the same rate.
    """
    return {"layer_decay": 1.0, **own_rates(config)}


def refuse_other_network(config: ViTConfig | NetworkConfig, recipe: Recipe) -> None:
    """Refuse weights of another model than the one that is named beside them.

    Raises:
        VitkitError: the recipe names a network, and its weights are of another model.
    """
    found = None if recipe.model is None else split_network(recipe.model)
    if found is None:
        return
    of = (config.library, config.name) if isinstance(config, NetworkConfig) else None
    if of != found:
        what = "a Vision Transformer" if of is None else ":".join(of)
        raise VitkitError(f"--weights {recipe.weights} are of {what}, not of {recipe.model}")
