"""An image classifier of torchvision's or timm's, with the few methods that everything else asks of a model.

The library builds the network; what its head is, is found by watching one pass: the Linear whose output is the
network's. So nothing here knows an architecture, and what has no such head is refused.

Shapes: B batch, C channels, F features, K classes.

How torchvision and timm build their networks: by which names, for which sizes, with which layers that draw.
"""

from __future__ import annotations

import copy
import difflib
import importlib.metadata
import warnings
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError, first_line
from vitkit.model.network_config import NetworkConfig


def on_meta(config: NetworkConfig) -> nn.Module:
    """The network without storage: its shapes alone.

    Raises:
        VitkitError: as `build_network`.
    """
    try:
        with torch.device("meta"):
            return build_network(config)
    except NotImplementedError:  # its initial weights are computed from one another
        with torch.random.fork_rng():
            return build_network(config).to("meta")


def build_network(config: NetworkConfig) -> nn.Module:
    """The library's own module, with initial weights by the library; it has a head of at least one class.

    Raises:
        VitkitError: the library has no such network or is not installed, or the network has no layer of a rate.
    """
    make = {"torchvision": _of_torchvision, "timm": _of_timm}[config.library]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of initial weights
        network = make(config, max(config.num_classes, 1))
    _set_rates(network, config)
    return network


def _of_torchvision(config: NetworkConfig, num_classes: int) -> nn.Module:
    from torchvision import models

    if config.name not in (names := names_of("torchvision")):
        raise VitkitError(_unknown(config, names))
    if config.in_channels != 3:
        raise VitkitError(f"{config.full_name} takes images of 3 channels, not {config.in_channels}")
    options: dict[str, Any] = {"num_classes": num_classes}
    if config.name in ("googlenet", "inception_v3"):
        options["aux_logits"] = False  # classifiers at the side, which only training has looked at
    if config.name.startswith("vit_"):
        height, width = config.image_size
        if height != width:
            raise VitkitError(f"{config.full_name} takes square images, not {height}x{width}")
        options["image_size"] = height
    network: nn.Module = models.get_model(config.name, weights=None, **options)
    return network


def _of_timm(config: NetworkConfig, num_classes: int) -> nn.Module:
    timm = import_timm()
    name = config.name.partition(".")[0]
    if not timm.is_model(name):
        raise VitkitError(_unknown(config, names_of("timm")))
    options: dict[str, Any] = {"num_classes": num_classes}
    if config.in_channels != 3:
        options["in_chans"] = config.in_channels
    if config.drop_path:
        options["drop_path_rate"] = config.drop_path
    if config.dropout:
        options["drop_rate"] = config.dropout
    try:
        network: nn.Module = _sized(timm, name, config, options)
    except (TypeError, RuntimeError, AssertionError) as error:
        raise VitkitError(f"timm does not build {name} with {options}: {first_line(error)}") from error
    return network


def _sized(timm: Any, name: str, config: NetworkConfig, options: dict[str, Any]) -> Any:
    """Transformers are built for a size, which convolutional networks do not want to know."""
    try:
        return timm.create_model(name, img_size=config.image_size, **options)
    except TypeError:
        return timm.create_model(name, **options)


def names_of(library: str) -> list[str]:
    """The classifiers that a library has.

    Raises:
        VitkitError: it is not installed.
    """
    if library == "timm":
        return list(import_timm().list_models())
    from torchvision import models

    return list(models.list_models(module=models))


def import_timm() -> Any:
    """The package timm.

    Raises:
        VitkitError: it is not installed.
    """
    try:
        import timm
    except ImportError as error:
        raise VitkitError("timm is not installed: pip install 'vitkit[lab]'") from error
    return timm


def own_size(config: NetworkConfig) -> tuple[int, int]:
    """(height, width) in pixels that the library made a network of this name for."""
    if config.library == "torchvision":
        return 224, 224
    published = published_by_timm(config)
    _, height, width = (3, 224, 224) if published is None else published.input_size
    return height, width


def published_by_timm(config: NetworkConfig) -> Any:
    """What timm says of the weights that it has for a network; None where it has none.

    Raises:
        VitkitError: timm is not installed, or has no such network, or no weights of that tag.
    """
    timm = import_timm()
    if not timm.is_model(config.name.partition(".")[0]):
        raise VitkitError(_unknown(config, names_of("timm")))
    try:
        return timm.get_pretrained_cfg(config.name)
    except RuntimeError as error:
        if "." not in config.name:
            return None
        raise VitkitError(f"{config.full_name}: {first_line(error)}") from error


def library_version(config: NetworkConfig) -> str:
    """The version of the library that builds the network here."""
    return importlib.metadata.version(config.library)


def _unknown(config: NetworkConfig, names: list[str]) -> str:
    close = difflib.get_close_matches(config.name, names, n=3)
    hint = f" (did you mean {' or '.join(f'{config.library}:{name}' for name in close)}?)" if close else ""
    return f"{config.library} has no network {config.name!r}{hint}"


# --- Rates ----------------------------------------------------------------------------------------------------


def _set_rates(network: nn.Module, config: NetworkConfig) -> None:
    for name, rate in (("dropout", config.dropout), ("drop_path", config.drop_path)):
        if rate is None:
            continue
        layers = _layers(network)[name]
        own = max((getattr(layer, field) for layer, field in layers), default=0.0)
        if rate and not own and not (name == "dropout" and layers):
            if config.library == "timm" and name == "dropout":
                continue  # which it applies without a layer
            raise VitkitError(f"{config.full_name} has no {name}: leave it out, or 0")
        for layer, field in layers:
            setattr(layer, field, rate * getattr(layer, field) / own if name == "drop_path" and own else rate)


def check_rates(config: NetworkConfig) -> None:
    """Refuse rates of layers that the network has not.

    Raises:
        VitkitError: it has none that draw in this way.
    """
    if config.dropout or config.drop_path:
        on_meta(config)


def _layers(network: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    """The layers that draw, with the attribute that is their rate."""
    found: dict[str, list[tuple[nn.Module, str]]] = {"dropout": [], "drop_path": []}
    for module in network.modules():
        kind = type(module).__name__
        if isinstance(module, (nn.Dropout, nn.Dropout2d)):
            found["dropout"].append((module, "p"))
        elif kind in ("StochasticDepth", "DropPath"):
            found["drop_path"].append((module, "p" if kind == "StochasticDepth" else "drop_prob"))
    return found


def own_rates(config: NetworkConfig) -> dict[str, float]:
    """The dropout and the stochastic depth that the library gives a network of this name."""
    network = on_meta(config.replace(dropout=None, drop_path=None))
    return {
        name: max((float(getattr(layer, field)) for layer, field in layers), default=0.0)
        for name, layers in _layers(network).items()
    }


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
