"""From a configuration, or a name, to a model: a Vision Transformer of ours, or a network of another library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.names import config_for
from vitkit.model.network import Network, anatomy_of, check_rates, own_size
from vitkit.model.network_config import Config, NetworkConfig, split_network
from vitkit.model.vit import VisionTransformer

Model = VisionTransformer | Network


def config_of(name: str, num_classes: int | None = None, **overrides: Any) -> Config:
    """The configuration that a name stands for, `vit_tiny_patch16_224` or `torchvision:resnet18`.

    Raises:
        VitkitError: the name or an override is unknown, or cannot be built.
    """
    found = split_network(name)
    if found is None:
        return config_for(name.removeprefix("timm:"), num_classes, **overrides)
    config = NetworkConfig(library=found[0], name=found[1])
    if "image_size" not in overrides:
        overrides["image_size"] = own_size(config)
    if num_classes is not None:
        overrides["num_classes"] = num_classes
    return config.replace(**overrides)


def build(config: Config) -> Model:
    """The model of a configuration, with weights drawn from torch's generator.

    Raises:
        VitkitError: another library has no such network or is not installed, or it does not take the image size.
    """
    return VisionTransformer(config) if isinstance(config, ViTConfig) else Network(config)


def check_buildable(config: Config) -> None:
    """Refuse what `build` would refuse, without weights.

    Raises:
        VitkitError: as `build`.
    """
    if isinstance(config, NetworkConfig):
        anatomy_of(config)
        check_rates(config)


def stored_weights(model: Model) -> dict[str, Tensor]:
    """What is saved of a model: of a network its library's own state dict, of ours our own."""
    own = model if isinstance(model, VisionTransformer) else model.network
    weights: dict[str, Tensor] = own.state_dict()
    return weights


def filled(config: Config, weights: Mapping[str, Tensor]) -> Model:
    """A model of these weights, which are what `stored_weights` gives of one such."""
    if isinstance(config, ViTConfig):
        with torch.device("meta"):
            model = VisionTransformer(config)
        model.load_state_dict({name: _in_row_order(own) for name, own in weights.items()}, assign=True)
        model.rebuild_tables()
        return model
    with torch.random.fork_rng():  # of its initial weights, which are replaced; not all networks can be without
        network = Network(config)
    network.network.load_state_dict(weights)
    return network


def _in_row_order(weight: Tensor) -> Tensor:
    """The tensor with the strides of a new one of its shape, as some files have not; an axis of length one too.

    Gradients have such strides, and the optimiser's one kernel on GPUs wants weights and gradients alike.
    """
    if weight.stride() == torch.empty(weight.shape, device="meta").stride():
        return weight
    return weight.clone(memory_format=torch.contiguous_format)


def vit_of(model: object, what: str) -> VisionTransformer:
    """The model, if it is a Vision Transformer.

    Args:
        model: any.
        what: needs one, for the message.

    Raises:
        VitkitError: it is another library's network.
    """
    if isinstance(model, VisionTransformer):
        return model
    config = getattr(model, "config", None)
    name = config.full_name if isinstance(config, NetworkConfig) else type(model).__name__
    raise VitkitError(f"{what} is of Vision Transformers, and this is {name}")
