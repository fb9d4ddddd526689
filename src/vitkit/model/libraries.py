"""How torchvision and timm build their networks: by which names, for which sizes, with which layers that draw."""

from __future__ import annotations

import difflib
import importlib.metadata
import warnings
from typing import Any

import torch
from torch import nn

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
