"""`NetworkConfig`: a network of another library, named as in `torchvision:resnet18` and `timm:NAME`.

`custom:NAME` is a network that the user registered (`registry.register_model`).

Nothing here imports torch or these libraries.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

from vitkit.errors import VitkitError
from vitkit.model.config import IMAGENET_1K, MAX_SIDE, MAX_SIZE, Pair, ViTConfig, as_pair, suggest
from vitkit.model.names import is_model_name
from vitkit.text.fields import settle_types

Library = Literal["torchvision", "timm", "custom"]
LIBRARIES: tuple[Library, ...] = get_args(Library)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The configuration of a network of torchvision, of timm or of the user. Sizes are in pixels.

    Attributes:
        library: the library that builds the network.
        name: the name of the network in its library.
        image_size: (height, width) of the images; the weights do not depend on it if the network pools.
        in_channels: the channels of the images.
        num_classes: the number of logits; 0 for no head, so that the network returns features.
        dropout: the probability of each dropout layer; None for the library's default.
        drop_path: the stochastic depth at the deepest block, to which the rates of the others are proportional as the
            library defines them; None for the library's default.

    Raises:
        VitkitError: no network can be built with the value of a field; the message names the field.
    """

    library: Library
    name: str
    image_size: Pair = (224, 224)
    in_channels: int = 3
    num_classes: int = IMAGENET_1K
    dropout: float | None = None
    drop_path: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", as_pair(self.image_size, "image_size"))
        settle_types(self)
        if self.library not in LIBRARIES:
            raise VitkitError(f"library must be {' or '.join(LIBRARIES)}, not {self.library!r:.80}")
        for name, least in (("in_channels", 1), ("num_classes", 0)):
            if not least <= getattr(self, name) <= MAX_SIZE:
                raise VitkitError(f"{name} must be from {least} to {MAX_SIZE}, not {getattr(self, name)}")
        if max(self.image_size) > MAX_SIDE:
            raise VitkitError(f"image_size {self.image_size} is larger than any network's")
        for name in ("dropout", "drop_path"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < 1:
                raise VitkitError(f"{name} must be at least 0 and below 1, not {rate}")

    @property
    def full_name(self) -> str:
        """The name as users write it: `torchvision:resnet18`."""
        return f"{self.library}:{self.name}"

    @property
    def in_words(self) -> str:
        """A short description, for reports."""
        return f"the network {self.name}" if self.library == "custom" else f"{self.library}'s {self.name}"

    def replace(self, **changes: Any) -> NetworkConfig:
        """Return a copy with other values of some fields.

        Raises:
            VitkitError: networks have no such field, or none can be built with its value.
        """
        known = [field.name for field in dataclasses.fields(self) if field.name not in ("library", "name")]
        of_vit = {field.name for field in dataclasses.fields(ViTConfig)}
        for name in changes:
            if name not in known:
                why = "exists only in Vision Transformers" if name in of_vit else f"is unknown{suggest(name, known)}"
                raise VitkitError(f"model option {name!r} {why}; {self.full_name} has {', '.join(known)}")
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields in plain JSON types, which `from_dict` reads."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> NetworkConfig:
        """Create the configuration from the fields that `to_dict` returned.

        Raises:
            VitkitError: a field is unknown or missing, or no network can be built with its value.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(fields, dict) or not {"library", "name"} <= fields.keys() <= known:
            raise VitkitError(f"the configuration must be an object with library and name, not {fields!r:.120}")
        return cls(**fields)


Config = ViTConfig | NetworkConfig


def config_from_dict(fields: Any) -> Config:
    """Create a configuration of either kind from the fields that its `to_dict` returned.

    Raises:
        VitkitError: they belong to neither kind.
    """
    is_network = isinstance(fields, dict) and "library" in fields
    return NetworkConfig.from_dict(fields) if is_network else ViTConfig.from_dict(fields)


def split_network(name: str) -> tuple[Library, str] | None:
    """Split `torchvision:NAME`, `timm:NAME` or `custom:NAME` into library and name; return None for any other name.

    None is also returned for a model of timm that is a Vision Transformer of vitkit under the same name.
    """
    for library in LIBRARIES:
        prefix, _, network = name.partition(":")
        if prefix == library and network and "@" not in network:  # NAME@FILE is a checkpoint
            return None if library == "timm" and is_model_name(network.partition(".")[0]) else (library, network)
    return None


def is_network_name(name: str | None) -> bool:
    """Return whether a name stands for a network of another library."""
    return name is not None and split_network(name) is not None
