"""`Network`: an image classifier of torchvision or timm, with the methods that vitkit expects of a model.

The library builds the network (`build_network`). `anatomy_of` finds the head by a forward pass: the Linear layer whose
output is the output of the network. Networks without such a head are not supported.

Shapes: B batch, C channels, F features, K classes.
"""

from __future__ import annotations

import copy
import warnings
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError, first_line
from vitkit.model.config import suggest
from vitkit.model.hybrids import ResNet
from vitkit.model.names import NetworkConfig
from vitkit.model.registry import NETWORKS, build_registered

# The paper's ResNet-50, and one of the size of `vit_micro`: the units of each stage, by the name after "custom:".
_BIT = {"bit_resnet50": (3, 4, 6, 3), "bit_resnet_micro": (2, 2)}


def build_on_meta(config: NetworkConfig) -> nn.Module:
    """Build the network on the meta device: its tensors have shapes but no values."""
    if config.library != "custom":  # users' code may compute with values
        with suppress(NotImplementedError), torch.device("meta"):  # so do a few initial weights of libraries
            return build_network(config)
    with torch.random.fork_rng():
        return build_network(config).to("meta")


def build_network(config: NetworkConfig) -> nn.Module:
    """Build the library's module with the library's initial weights and a head of at least one class."""
    num_classes = max(config.num_classes, 1)
    network: nn.Module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about initial weights
        if config.library == "torchvision":
            network = _from_torchvision(config, num_classes)
        elif config.library == "timm":
            network = _from_timm(config, num_classes)
        elif config.name in _BIT and config.name not in NETWORKS:
            network = ResNet(config.in_channels, _BIT[config.name], num_classes)
        else:
            network = build_registered(config.name, num_classes, config.in_channels, config.image_size)

    # A head that is a 1x1 convolution of pooled features, as in BiT's ResNets, is replaced by a linear layer.
    classifier_of: Any = getattr(network, "get_classifier", None)
    head = None if classifier_of is None else classifier_of()
    if isinstance(head, nn.Conv2d) and head.kernel_size == (1, 1):
        name = next(name for name, module in network.named_modules() if module is head)
        linear = _PointwiseHead(head.in_channels, head.out_channels, head.bias is not None, device=head.weight.device)
        linear.weight = nn.Parameter(head.weight.detach().flatten(1))
        if head.bias is not None:
            linear.bias = nn.Parameter(head.bias.detach())
        _replace_module(network, name, linear)

    # A rate of None leaves the library's default.
    layers = _rate_layers(network)
    if config.dropout is not None:
        # timm applies some dropout without a layer.
        if config.dropout and not layers["dropout"] and config.library != "timm":
            raise _no_layer(config, "dropout")
        for layer, field in layers["dropout"]:
            setattr(layer, field, config.dropout)
    if config.drop_path is not None:
        largest = max((getattr(layer, field) for layer, field in layers["drop_path"]), default=0.0)
        if config.drop_path and not largest:
            raise _no_layer(config, "drop_path")
        for layer, field in layers["drop_path"]:
            setattr(layer, field, config.drop_path * getattr(layer, field) / largest if largest else 0.0)
    return network


def _from_torchvision(config: NetworkConfig, num_classes: int) -> nn.Module:
    from torchvision import models

    if config.name not in (names := names_of("torchvision")):
        raise VitkitError("model.name-unknown", _unknown(config, names))
    if config.in_channels != 3:
        raise VitkitError(
            "model.channels-unsupported", f"{config.full_name} requires images of 3 channels, not {config.in_channels}"
        )
    options: dict[str, Any] = {"num_classes": num_classes}
    if config.name in ("googlenet", "inception_v3"):
        options["aux_logits"] = False  # auxiliary classifiers, which only serve training
    if config.name.startswith("vit_"):
        height, width = config.image_size
        if height != width:
            raise VitkitError(
                "model.image-size-unsupported", f"{config.full_name} requires square images, not {height}x{width}"
            )
        options["image_size"] = height
    network: nn.Module = models.get_model(config.name, weights=None, **options)
    return network


def _from_timm(config: NetworkConfig, num_classes: int) -> nn.Module:
    timm = import_timm()
    name = config.name.partition(".")[0]
    if not timm.is_model(name):
        raise VitkitError("model.name-unknown", _unknown(config, names_of("timm")))
    options: dict[str, Any] = {"num_classes": num_classes}
    if config.in_channels != 3:
        options["in_chans"] = config.in_channels
    if config.drop_path:
        options["drop_path_rate"] = config.drop_path
    if config.dropout:
        options["drop_rate"] = config.dropout
    try:
        network: nn.Module
        try:
            network = timm.create_model(name, img_size=config.image_size, **options)
        except TypeError:  # the model takes no image size
            network = timm.create_model(name, **options)
    except (TypeError, RuntimeError, AssertionError) as error:
        raise VitkitError(
            "model.network-not-buildable", f"timm does not build {name} with {options}: {first_line(error)}"
        ) from error
    return network


def names_of(library: str) -> list[str]:
    """Return the names of the classifiers in a library."""
    if library == "timm":
        return list(import_timm().list_models())
    if library == "custom":
        return [*NETWORKS, *_BIT]
    from torchvision import models

    return list(models.list_models(module=models))


def import_timm() -> Any:
    """Import timm and return the module."""
    try:
        import timm
    except ImportError as error:
        raise VitkitError("model.library-missing", "timm is not installed: pip install 'vitkit[lab]'") from error
    return timm


def published_by_timm(config: NetworkConfig) -> Any:
    """Return timm's description of its pretrained weights for a network; None if timm has no weights for it."""
    timm = import_timm()
    if not timm.is_model(config.name.partition(".")[0]):
        raise VitkitError("model.name-unknown", _unknown(config, names_of("timm")))
    try:
        return timm.get_pretrained_cfg(config.name)
    except RuntimeError as error:
        if "." not in config.name:
            return None
        raise VitkitError("model.tag-unknown", f"{config.full_name}: {first_line(error)}") from error


def _unknown(config: NetworkConfig, names: list[str]) -> str:
    return f"{config.library} has no network {config.name!r}{suggest(config.name, names)}"


# --- Rates ----------------------------------------------------------------------------------------------------


def check_rates(config: NetworkConfig) -> None:
    """Check that the network has layers for the rates of dropout and stochastic depth in the configuration."""
    if config.dropout or config.drop_path:
        build_on_meta(config)


def _no_layer(config: NetworkConfig, name: str) -> VitkitError:
    return VitkitError("model.option-unsupported", f"{config.full_name} has no {name}: leave it out, or set it to 0")


def _rate_layers(network: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    """Return the layers of dropout and stochastic depth (`drop_path`), each with the attribute that holds its rate."""
    layers: dict[str, list[tuple[nn.Module, str]]] = {"dropout": [], "drop_path": []}
    for module in network.modules():
        kind = type(module).__name__
        if isinstance(module, (nn.Dropout, nn.Dropout2d)):
            layers["dropout"].append((module, "p"))
        elif kind in ("StochasticDepth", "DropPath"):
            fields = [field for field in ("p", "drop_prob", "rate") if hasattr(module, field)]
            layers["drop_path"] += [(module, field) for field in fields[:1]]
    return layers


def native_rates(config: NetworkConfig) -> dict[str, float]:
    """Return the library's default rates of dropout and stochastic depth for a network of this name.

    Each is the largest rate of all layers, or 0 if there is no such layer.
    """
    network = build_on_meta(config.replace(dropout=None, drop_path=None))
    return {
        name: max((float(getattr(layer, field)) for layer, field in layers), default=0.0)
        for name, layers in _rate_layers(network).items()
    }


# --- The network ----------------------------------------------------------------------------------------------


class _PointwiseHead(nn.Linear):
    """A linear layer that replaces a 1x1 convolution of pooled features, and keeps the convolution's state dict."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits of features: (B, F) or (B, F, 1, 1) -> (B, K)."""
        return super().forward(x.flatten(1))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = destination[f"{prefix}weight"][:, :, None, None]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *settings: Any) -> None:
        if (name := f"{prefix}weight") in state_dict:
            state_dict[name] = state_dict[name].flatten(1)
        super()._load_from_state_dict(state_dict, prefix, *settings)


class NetworkAnatomy(NamedTuple):
    """The head and the last feature map of a network.

    Attributes:
        head: the name of the Linear that computes the logits.
        feature_size: F, the size of the head's input.
        map: the name of the module whose output is the last feature map (B, channels, h, w); None if there is none.
    """

    head: str
    feature_size: int
    map: str | None


class Network(nn.Module):
    """A network of another library: images (B, C, height, width), normalised as the weights expect, to logits (B, K).

    `network` is the module of the library. Files of weights contain the state dict of this module.

    Raises:
        VitkitError: the library has no such network or is not installed, the network does not accept images of this
            size, or its last layer is not a Linear.
    """

    head_dist = None  # only distilled Vision Transformers have one

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.anatomy = anatomy_of(config)
        self.network = build_network(config)
        if config.num_classes == 0:
            _replace_module(self.network, self.anatomy.head, nn.Identity())

    @property
    def head(self) -> nn.Linear | None:
        """The last layer, which computes the logits; None if it was removed."""
        layer = self.network.get_submodule(self.anatomy.head)
        return layer if isinstance(layer, nn.Linear) else None

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits (B, K) of images (B, C, height, width), or features (B, F) without a head."""
        return self.network(images)

    def forward_heads(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the logits of the only head, as a tuple of one."""
        return (self.network(images),)

    def forward_features(self, images: Tensor) -> Tensor:
        """Compute the input of the head for images: (B, C, height, width) -> (B, F)."""
        # A copy without the head computes it. Only the modules that contain the head are copied, and the original does
        # not change, so that several threads may use it.
        headless = parent = _shallow_copy(self.network)
        *parent_names, head_name = self.anatomy.head.split(".")
        for name in parent_names:
            child = _shallow_copy(parent.get_submodule(name))
            parent._modules[name] = child
            parent = child
        parent._modules[head_name] = nn.Identity()
        return headless(images)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Compute the logits of features: (B, F) -> (B, K). With `pre_logits`, return the features unchanged."""
        return features if pre_logits or self.head is None else self.head(features)


def anatomy_of(config: NetworkConfig) -> NetworkAnatomy:
    """Find the head and the last feature map by a forward pass on the meta device, which computes no values."""
    # Without classes, there would be no head to find. The rates do not matter, so they are not part of the cache's key.
    config = config.replace(num_classes=max(config.num_classes, 1), dropout=None, drop_path=None)
    # Custom networks are not cached, because another one may be registered under the same name.
    return _anatomy_of.__wrapped__(config) if config.library == "custom" else _anatomy_of(config)


@lru_cache(maxsize=32)
def _anatomy_of(config: NetworkConfig) -> NetworkAnatomy:
    network = build_on_meta(config).eval()
    names = {module: name for name, module in network.named_modules()}
    calls: list[_Call] = []
    for module in names:
        module.register_forward_hook(lambda *call: calls.append(call))
    height, width = config.image_size
    try:
        with torch.inference_mode():
            logits = network(torch.empty(1, config.in_channels, height, width, device="meta"))
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        raise VitkitError(
            "model.image-size-unsupported",
            f"{config.full_name} does not support images of {height}x{width} pixels: {first_line(error)}",
        ) from error

    # A feature map (B, channels, h, w) has the aspect ratio of the image. Other 4-D outputs, such as tokens by head, do
    # not.
    last_map = None  # the name of the last module whose output is a feature map; None if later outputs are tokens
    for module, _, output in calls:
        shape = output.shape if isinstance(output, Tensor) else ()
        is_pool = isinstance(module, (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d))
        if len(shape) == 4 and shape[2] * shape[3] > 1 and not is_pool:
            # The tolerance allows for sides that were rounded to whole numbers. (B, h, w, channels) does not fit.
            is_map = abs(shape[2] * width - shape[3] * height) <= max(height, width)
            last_map = names[module] if is_map else None
        elif len(shape) == 3 and shape[1] > 1:  # tokens, which still have positions
            last_map = None
    for module, inputs, output in calls:
        if isinstance(module, nn.Linear) and output is logits and output.shape == (1, config.num_classes):
            return NetworkAnatomy(names[module], inputs[0].shape[-1], last_map)
    K = config.num_classes
    if not isinstance(logits, Tensor):
        why = f"returns a {type(logits).__name__}, expected logits (B, K): a tensor with a row for each image"
    elif logits.ndim != 2:
        why = f"returns a tensor of shape {tuple(logits.shape)} for one image, expected (1, {K})"
    elif logits.shape[1] != K:
        why = f"has {logits.shape[1]} outputs, expected {K}: one for each class"
    else:
        why = "does not end in a single linear layer, so its number of classes cannot be changed"
    raise VitkitError("model.head-unsupported", f"{config.full_name} {why}")


_Call = tuple[nn.Module, tuple[Any, ...], Any]  # a module, its inputs and its output


def shapes_of(config: NetworkConfig) -> dict[str, torch.Size]:
    """Return the shapes of a network's tensors, by the library's names."""
    # Custom networks are not cached, because another one may be registered under the same name.
    return _shapes_of.__wrapped__(config) if config.library == "custom" else _shapes_of(config)


@lru_cache(maxsize=4)  # a load needs the shapes of the source and of the target, each more than once
def _shapes_of(config: NetworkConfig) -> dict[str, torch.Size]:
    network, head = build_on_meta(config), anatomy_of(config).head
    if config.num_classes == 0:
        _replace_module(network, head, nn.Identity())
    return {name: tensor.shape for name, tensor in network.state_dict().items()}


def _shallow_copy(module: nn.Module) -> nn.Module:
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied


def _replace_module(network: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    network.get_submodule(parent)._modules[last] = module
