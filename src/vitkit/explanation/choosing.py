"""Which methods explain a model, and what each of them is to be asked with."""

from __future__ import annotations

from typing import Any

from vitkit.errors import VitkitError
from vitkit.explanation.attention import attending, find_layer
from vitkit.explanation.class_maps import check_map
from vitkit.explanation.gradient import Target
from vitkit.explanation.methods import METHODS, OF_NETWORKS, by_layer, method_names
from vitkit.model.build import Model
from vitkit.model.network import Network


def can_explain(model: Model) -> bool:
    """Whether the model has what `gradient` follows.

    Layers that attend, whose tokens the head reads alike in every image; or a map of features ahead of its head.
    """
    if isinstance(model, Network):
        return model.anatomy.map is not None
    return bool(attending(model.config)) and model.config.pool != "map"


def choose_methods(method: str, layer: int | None, model: Model) -> list[str]:
    """The methods that are meant by a name, or by `all`, for such a model.

    Raises:
        VitkitError: there is no such method or layer, or it is of other models.
    """
    if method not in method_names():
        raise VitkitError(f"there is no method {method!r}: expected {', '.join(METHODS)}, or all")
    if isinstance(model, Network):
        return _methods_of_network(method, layer, model)
    methods = list(METHODS) if method == "all" else [method]
    if method == "all" and model.config.pool == "map":
        methods = ["occlusion"]  # the others follow what the head reads, and refuse by themselves
    if layer is not None and not set(methods) & set(by_layer()):
        raise VitkitError(f"{method} goes through all layers; a layer is for {', '.join(by_layer())}")
    if layer is not None:
        find_layer(model.config, layer)
    return methods


def _methods_of_network(method: str, layer: int | None, model: Network) -> list[str]:
    name = model.config.full_name
    if method != "all" and method not in OF_NETWORKS:
        raise VitkitError(f"{method} is of Vision Transformers; for {name} take {' or '.join(OF_NETWORKS)}")
    if layer is not None:
        raise VitkitError(f"--layer is of Vision Transformers, and this is {name}: leave it out")
    methods = list(OF_NETWORKS) if method == "all" else [method]
    if "gradient" in methods and not can_explain(model):
        if method != "all":
            check_map(model)
        methods.remove("gradient")
    return methods


def options_of(method: str, target: Target, layer: int | None) -> dict[str, Any]:
    """What a method is to be called with, of what it takes."""
    of_class = {"target": target} if METHODS[method].of_class else {}
    of_layer = {"layer": layer} if METHODS[method].of_layer and layer is not None else {}
    return of_class | of_layer
