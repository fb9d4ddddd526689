"""An image classifier of torchvision's or timm's, with the few methods that everything else asks of a model.

The library builds the network; what its head is, is found by watching one pass: the Linear whose output is the
network's. So nothing here knows an architecture, and what has no such head is refused.

Shapes: B batch, C channels, F features, K classes.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError, first_line
from vitkit.model.libraries import build_network, on_meta
from vitkit.model.network_config import NetworkConfig

_POOLS = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)


class Anatomy(NamedTuple):
    """What one pass through a network shows of it.

    Attributes:
        head: the name of the Linear that makes the logits.
        feature_size: F, what it reads.
        map: the name of the module that gives the last map of features (B, channels, h, w), None where none does.
    """

    head: str
    feature_size: int
    map: str | None


class Network(nn.Module):
    """Images (B, C, height, width), normalised as the weights expect, to class logits (B, K).

    `network` is the library's own module, whose state dict has the library's own keys; that is what is saved.

    Raises:
        VitkitError: the library has no such network or is not installed, it takes no images of this size, or its last
            layer is no Linear.
    """

    head_dist = None  # which a distilled Vision Transformer has

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.anatomy = anatomy_of(config)
        self.network = build_network(config)
        if config.num_classes == 0:
            _put(self.network, self.anatomy.head, nn.Identity())

    @property
    def head(self) -> nn.Linear | None:
        """The last layer, which makes logits of features; None where there is none."""
        found = self.network.get_submodule(self.anatomy.head)
        return found if isinstance(found, nn.Linear) else None

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, height, width) -> logits (B, K); features (B, F) without a head."""
        return self.network(images)

    def forward_heads(self, images: Tensor) -> tuple[Tensor, ...]:
        """The logits as the only head's."""
        return (self.network(images),)

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, height, width) -> what the head reads, (B, F)."""
        return _bare(self.network, self.anatomy.head)(images)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """(B, F) -> logits (B, K); or with `pre_logits` the features as they are."""
        return features if pre_logits or self.head is None else self.head(features)


def anatomy_of(config: NetworkConfig) -> Anatomy:
    """What one pass through the network shows of it; nothing is computed, for its tensors have no storage.

    Raises:
        VitkitError: as `Network`.
    """
    return _anatomy_of(config.replace(num_classes=max(config.num_classes, 1), dropout=None, drop_path=None))


@lru_cache(maxsize=32)
def _anatomy_of(config: NetworkConfig) -> Anatomy:
    network = on_meta(config).eval()
    names = {module: name for name, module in network.named_modules()}
    passed: list[tuple[nn.Module, tuple[Any, ...], Any]] = []
    for module in names:
        module.register_forward_hook(lambda *call: passed.append(call))
    height, width = config.image_size
    try:
        with torch.inference_mode():
            logits = network(torch.empty(1, config.in_channels, height, width, device="meta"))
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        raise VitkitError(f"{config.full_name} cannot take {height}x{width} pixels: {first_line(error)}") from error
    for module, given, made in passed:
        if isinstance(module, nn.Linear) and made is logits and made.shape == (1, config.num_classes):
            return Anatomy(names[module], given[0].shape[-1], _last_map(passed, names, config.image_size))
    raise VitkitError(
        f"{config.full_name} does not end in one Linear that makes the logits, so that it cannot be given other classes"
    )


def _last_map(
    passed: list[tuple[nn.Module, tuple[Any, ...], Any]], names: dict[nn.Module, str], image: tuple[int, int]
) -> str | None:
    """The last module whose result is a map of more than one place, if what comes after has no places any more.

    A map is as wide for its height as the image is; the tokens of several heads are not.
    """
    found = None
    for module, _, made in passed:
        shape = made.shape if isinstance(made, Tensor) else ()
        if len(shape) == 4 and shape[2] * shape[3] > 1 and not isinstance(module, _POOLS):
            is_map = abs(shape[2] * image[1] - shape[3] * image[0]) <= max(image)  # not (B, h, w, channels)
            found = names[module] if is_map else None
        elif len(shape) == 3 and shape[1] > 1:  # tokens: places go on in another form
            found = None
    return found


@lru_cache(maxsize=4)  # one load asks for the source, and again for the target
def shapes_of(config: NetworkConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a network of this configuration, by the library's names.

    Raises:
        VitkitError: as `Network`.
    """
    network, head = on_meta(config), anatomy_of(config).head
    if config.num_classes == 0:
        _put(network, head, nn.Identity())
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


# --- Parts ----------------------------------------------------------------------------------------------------


def _bare(network: nn.Module, head: str) -> nn.Module:
    """The network without its head, of the very same other modules: those on the way to the head are copied, shallow.

    The network itself is not touched, so that several threads may ask at once.
    """
    bare = _shallow(network)
    *parents, last = head.split(".")
    place = bare
    for name in parents:
        place._modules[name] = place = _shallow(place.get_submodule(name))
    place._modules[last] = nn.Identity()
    return bare


def _shallow(module: nn.Module) -> nn.Module:
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied


def _put(network: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    network.get_submodule(parent)._modules[last] = module
