"""What an image classifier of another library is made of: whose it is, its name there, and what may be chosen of it.

Nothing here imports torch or the libraries. `torchvision:resnet18` is torchvision's own ResNet-18, `timm:NAME` timm's.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

from vitkit.errors import VitkitError
from vitkit.model.config import IMAGENET_1K, MAX_SIDE, MAX_SIZE, Pair, ViTConfig, as_pair, suggest
from vitkit.model.names import is_model_name
from vitkit.text.fields import settle_types

Library = Literal["torchvision", "timm"]
LIBRARIES: tuple[Library, ...] = get_args(Library)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """A network of torchvision's or timm's. Sizes are in pixels.

    Attributes:
        library: whose it is.
        name: what it is called there.
        image_size: of what it is trained and asked on; the weights do not depend on it where the network pools.
        in_channels: of the images.
        num_classes: length of the logits; 0: no head, the network returns features.
        dropout: probability of each of its dropout layers; None: the library's own.
        drop_path: stochastic depth at the deepest block, the others in the proportion that the library gives them;
            None: the library's own.

    Raises:
        VitkitError: a field has a value that cannot be built; the message names the field.
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
        """As a user writes it: `torchvision:resnet18`."""
        return f"{self.library}:{self.name}"

    @property
    def in_words(self) -> str:
        """Whose it is, for pages."""
        return f"{self.library}'s {self.name}"

    def replace(self, **changes: Any) -> NetworkConfig:
        """A copy with fields changed.

        Raises:
            VitkitError: a field is none of a network's, or its value cannot be built.
        """
        known = [field.name for field in dataclasses.fields(self) if field.name not in ("library", "name")]
        of_vit = {field.name for field in dataclasses.fields(ViTConfig)}
        for name in changes:
            if name not in known:
                why = "is of Vision Transformers alone" if name in of_vit else f"is unknown{suggest(name, known)}"
                raise VitkitError(f"model option {name!r} {why}; {self.full_name} has {', '.join(known)}")
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; `from_dict` turns them back into an equal configuration."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> NetworkConfig:
        """The configuration that `to_dict` wrote.

        Raises:
            VitkitError: a field is unknown or lacking, or its value cannot be built.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(fields, dict) or not {"library", "name"} <= fields.keys() <= known:
            raise VitkitError(f"the configuration must be an object with library and name, not {fields!r:.120}")
        return cls(**fields)


Config = ViTConfig | NetworkConfig


def config_from_dict(fields: Any) -> Config:
    """What either kind of configuration wrote.

    Raises:
        VitkitError: it is neither.
    """
    is_network = isinstance(fields, dict) and "library" in fields
    return NetworkConfig.from_dict(fields) if is_network else ViTConfig.from_dict(fields)


def split_network(name: str) -> tuple[Library, str] | None:
    """Library and name of `torchvision:NAME` or `timm:NAME`; None for whatever else a name may be.

    What timm calls by a name of vitkit's own is the Vision Transformer of that name, which is vitkit's.
    """
    for library in LIBRARIES:
        own = name.removeprefix(f"{library}:")
        if own != name and own and "@" not in own:  # NAME@FILE is a checkpoint
            return None if library == "timm" and is_model_name(own.partition(".")[0]) else (library, own)
    return None


def is_network_name(name: str | None) -> bool:
    """Whether a name is of another library's network."""
    return name is not None and split_network(name) is not None
