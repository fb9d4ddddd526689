"""Which fields of a comparison's recipe a model can heed, and whether its weights are those of its name."""

from __future__ import annotations

from typing import Any

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.names import config_for, is_model_name
from vitkit.model.network import check_rates
from vitkit.model.network_config import NetworkConfig, split_network
from vitkit.training.architecture import weights_of
from vitkit.training.networks import OF_VIT
from vitkit.training.settling import Settled


def without_fields_of_vits(resolved: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The fields of a model, of another library's network without those that it does not know; a line for each of them.

    What is asked for goes for all models of a comparison, and cannot be left out for one of them alone.
    """
    found = None if resolved.get("model") is None else split_network(resolved["model"])
    if found is None:
        return resolved, []
    own = NetworkConfig(library=found[0], name=found[1])
    unknown = [name for name, nothing in OF_VIT.items() if resolved.get(name, nothing) != nothing]
    lacking = [name for name in ("dropout", "drop_path") if resolved.get(name) and not _has(own, name)]
    notes = [f"{name} {resolved[name]} is of Vision Transformers, and left out" for name in unknown]
    notes += [f"{name} {resolved[name]} is left out: the network has none" for name in lacking]
    return {name: value for name, value in resolved.items() if name not in (*unknown, *lacking)}, notes


def _has(network: NetworkConfig, rate: str) -> bool:
    """Whether a network has layers that drop so."""
    try:
        check_rates(network.replace(**{rate: 0.1}))
    except VitkitError:
        return False
    return True


def check_weights_name(settled: Settled) -> None:
    """Refuse weights of another architecture than the model is called: the name would be of no account.

    Raises:
        VitkitError: they are.
    """
    recipe = settled.recipe
    if recipe.weights in ("auto", "none") or recipe.model is None or not is_model_name(recipe.model):
        return
    named, found = config_for(recipe.model), settled.config
    if not isinstance(found, ViTConfig):
        return  # refused already
    for field in ("layers", "hidden_size", "heads", "patch_size"):
        if field not in (recipe.model_fields or {}) and getattr(named, field) != getattr(found, field):
            raise VitkitError(
                f"{recipe.model} has {field} {getattr(named, field)}, and {weights_of(recipe)} {getattr(found, field)}:"
                " name the model that the weights are of"
            )
