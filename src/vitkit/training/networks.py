"""What training a network of another library needs beside the loop: which fields of a recipe mean nothing to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.network import own_rates
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
