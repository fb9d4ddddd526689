"""Networks and encoder layers that users register under a name, so that recipes and saved models can refer to them.

Register a network or layer before loading a model that contains it. Loading only looks up the name in the registry, so
a model file cannot cause an import of other code. Nothing here imports torch.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError

if TYPE_CHECKING:
    from torch import nn

NETWORKS: dict[str, Callable[..., Any]] = {}
BLOCKS: dict[str, Callable[..., Any]] = {}


def register_model(name: str, build: Callable[..., nn.Module] | nn.Module) -> str:
    """Register a network under a name, for the field `model` of a recipe, and for loading the trained model.

        import torch
        import vitkit

        def tiny_cnn(num_classes):
            return torch.nn.Sequential(
                torch.nn.Conv2d(3, 8, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
                torch.nn.Linear(8, num_classes),
            )

        print(vitkit.register_model("tiny_cnn", tiny_cnn))  # custom:tiny_cnn

    Args:
        name: letters, digits, `_`, `-` and `.`. A network registered before under this name is replaced.
        build: a function that takes the number of classes, as `num_classes` or as its only required parameter. It
            returns a module that maps images (B, C, height, width) to logits (B, K) and ends in an `nn.Linear`. The
            function may also take `in_channels` and `image_size`. `build` may also be such a module itself; copies of
            it are then trained.

    Returns:
        The name with the prefix `custom:`, for the field `model`.

    Raises:
        VitkitError: the name has other characters, or `build` cannot be called.
    """
    _check(name, build)
    NETWORKS[name] = build
    return f"custom:{name}"


def register_block(name: str, build: Callable[..., nn.Module]) -> None:
    """Register an encoder layer under a name, for the field `block` of `ViTConfig`.

        import vitkit
        from vitkit.model.vit import Block

        class Reversed(Block):
            def forward(self, x, queries=None, relative=None):
                return super().forward(x.flip(1), None, relative).flip(1)[:, :queries]

        vitkit.register_block("reversed", Reversed)
        model = vitkit.VisionTransformer(img_size=32, patch_size=8, depth=2, block="reversed")

    Args:
        name: letters, digits, `_`, `-` and `.`. A layer registered before under this name is replaced.
        build: a class or function that takes the `ViTConfig` and the number of the layer, from 0, and returns a module.
            The module's `forward` takes tokens (B, N, D). It may also have the parameters `queries` (the number of
            leading tokens to return) and `relative` (positions that act inside attention).

    Raises:
        VitkitError: the name has other characters, or `build` cannot be called.
    """
    _check(name, build)
    BLOCKS[name] = build


def _check(name: str, build: object) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name, re.ASCII):
        raise VitkitError(
            "model.name-invalid", f"a registered name must consist of letters, digits, _, - and ., not {name!r:.80}"
        )
    if not callable(build):
        raise VitkitError(
            "model.factory-invalid", f"{name}: expected a function or a module, not {type(build).__name__}"
        )


def build_registered(name: str, num_classes: int, in_channels: int, image_size: tuple[int, int]) -> Any:
    """Create a registered network."""
    from torch import nn

    build = NETWORKS.get(name)
    if build is None:
        raise VitkitError(
            "model.name-unregistered",
            f"no network {name!r} is registered in this program: call vitkit.register_model({name!r}, ...) first",
        )
    if isinstance(build, nn.Module):
        return copy.deepcopy(build)
    sizes = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}
    known = {key: value for key, value in sizes.items() if key in _parameters(build)}
    parameters = inspect.signature(build).parameters.values()
    required = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    try:  # a function whose only required parameter has another name gets the number of classes in it
        network = build(num_classes) if not known and len(required) == 1 else build(**known)
    except (TypeError, ValueError, RuntimeError) as error:
        raise VitkitError(
            "model.network-not-buildable", f"custom:{name} cannot be built: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(network, nn.Module):
        raise VitkitError(
            "model.factory-invalid",
            f"custom:{name}: its function returned {type(network).__name__}, expected an nn.Module",
        )
    return network


def build_registered_block(config: Any, layer: int) -> Any:
    """Create a registered encoder layer, and set its attribute `accepted_inputs`.

    The attribute contains those of the optional parameters `queries` and `relative` that the layer's `forward` has.

    Raises:
        VitkitError: the function does not return a module, or `forward` lacks `relative` although the configuration has
            positions that act inside attention.
    """
    from torch import nn

    block = BLOCKS[config.block](config, layer)
    if not isinstance(block, nn.Module):
        raise VitkitError(
            "model.factory-invalid", f"block {config.block!r}: expected an nn.Module, not {type(block).__name__}"
        )
    accepted_inputs = frozenset({"queries", "relative"} & _parameters(block.forward))
    if "relative" not in accepted_inputs and (config.rotary != "none" or "relative" in config.position):
        raise VitkitError(
            "model.fields-incompatible",
            f"block {config.block!r} takes no relative positions: add the parameter relative to its forward, or leave "
            "out rotary and relative positions",
        )
    block.accepted_inputs = accepted_inputs  # type: ignore[assignment]  # mypy expects a tensor or a module
    return block


def _parameters(function: Callable[..., Any]) -> set[str]:
    """Return the names of the parameters that vitkit may pass: with `**kwargs`, all those that it ever passes."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return {"num_classes", "in_channels", "image_size", "queries", "relative"}
    return {parameter.name for parameter in parameters}
