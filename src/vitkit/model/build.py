"""Create models from names or configurations: Vision Transformers, or networks of other libraries.

`config_of` turns a name into a configuration, `build` a configuration into a model with initial weights, `filled` a
configuration and weights into a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.names import config_for
from vitkit.model.network import Network, anatomy_of, check_rates, native_size
from vitkit.model.network_config import Config, NetworkConfig, split_network
from vitkit.model.vit import VisionTransformer

Model = VisionTransformer | Network


def config_of(name: str, num_classes: int | None = None, **overrides: Any) -> Config:
    """Return the configuration of a name such as `vit_tiny_patch16_224` or `torchvision:resnet18`.

    Raises:
        VitkitError: the name or an override is unknown, or no model can be built with it.
    """
    network = split_network(name)
    if network is None:
        return config_for(name.removeprefix("timm:"), num_classes, **overrides)
    config = NetworkConfig(library=network[0], name=network[1])
    if "image_size" not in overrides:
        overrides["image_size"] = native_size(config)
    if num_classes is not None:
        overrides["num_classes"] = num_classes
    return config.replace(**overrides)


def build(config: Config) -> Model:
    """Create the model of a configuration, with weights drawn from torch's generator.

    Raises:
        VitkitError: the other library has no such network or is not installed, or the network does not accept the image
            size.
    """
    return VisionTransformer(config) if isinstance(config, ViTConfig) else Network(config)


def check_buildable(config: Config) -> None:
    """Check that `build` accepts a configuration, without creating weights.

    Raises:
        VitkitError: `build` would raise it.
    """
    if isinstance(config, NetworkConfig):
        anatomy_of(config)
        check_rates(config)


def stored_weights(model: Model) -> dict[str, Tensor]:
    """Return the weights of a model as they are saved; those of a network have the names of its library."""
    module = model if isinstance(model, VisionTransformer) else model.network
    weights: dict[str, Tensor] = module.state_dict()
    return weights


def filled(config: Config, weights: Mapping[str, Tensor]) -> Model:
    """Create a model with these weights, which have the names that `stored_weights` returns."""
    if isinstance(config, ViTConfig):
        with torch.device("meta"):
            model = VisionTransformer(config)
        model.load_state_dict({name: _in_row_order(weight) for name, weight in weights.items()}, assign=True)
        model.rebuild_tables()
        return model
    with torch.random.fork_rng():  # not all networks can be built without initial weights, which are replaced here
        network = Network(config)
    network.network.load_state_dict(weights)
    return network


def _in_row_order(weight: Tensor) -> Tensor:
    """Return the tensor with the strides of a new tensor of its shape, even along axes of length one.

    Tensors from some files have other strides. Gradients have these, and the fused optimiser on GPUs requires that
    weights and gradients agree.
    """
    if weight.stride() == torch.empty(weight.shape, device="meta").stride():
        return weight
    return weight.clone(memory_format=torch.contiguous_format)


def vit_of(model: object, what: str) -> VisionTransformer:
    """Return a model if it is a Vision Transformer.

    Args:
        model: any model.
        what: the operation that requires a Vision Transformer, for the message.

    Raises:
        VitkitError: it is a network of another library.
    """
    if isinstance(model, VisionTransformer):
        return model
    config = getattr(model, "config", None)
    name = config.full_name if isinstance(config, NetworkConfig) else type(model).__name__
    raise VitkitError(f"{what} requires a Vision Transformer, and this is {name}")
