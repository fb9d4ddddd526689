"""The names of models, such as `vit_base_patch16_224_in21k`: size, patch, resolution, suffix.

`config_for` turns a name into a configuration. `VARIANTS` contains the sizes: Table 1 of "An Image is Worth 16x16
Words" (arXiv 2010.11929), with Ti and S from "How to train your ViT?" (arXiv 2106.10270). Hybrids have timm's names:
`vit_base_r50_s16_224` is R50+B/16, in which stem and patch embedding together reduce the sides of the image by a factor
of 16.

`NetworkConfig` is the configuration of any other network. Networks of other libraries have names such as
`torchvision:resnet18` or `timm:NAME`. Networks that users register (`registry.register_model`) have names such as
`custom:NAME`.

Nothing here imports torch, torchvision or timm.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from vitkit.errors import VitkitError
from vitkit.model.config import IMAGENET_1K, MAX_SIDE, MAX_SIZE, Pair, ViTConfig, as_pair, override, suggest
from vitkit.text.arguments import check_arguments, coerce_types

IMAGENET_21K = 21843


class Size(NamedTuple):
    """A row of the paper's Table 1."""

    layers: int
    hidden_size: int
    mlp_size: int
    heads: int


VARIANTS: dict[str, Size] = {
    "micro": Size(4, 128, 512, 4),  # not published: small enough to learn the digits on two cores
    "tiny": Size(12, 192, 768, 3),
    "small": Size(12, 384, 1536, 6),
    "base": Size(12, 768, 3072, 12),
    "large": Size(24, 1024, 4096, 16),
    "huge": Size(32, 1280, 5120, 16),
}
PUBLISHED_SIZES = ("tiny", "small", "base", "large", "huge")
PUBLISHED_PATCHES = (8, 14, 16, 32)
PUBLISHED_RESOLUTIONS = (224, 384)

# The paper's hybrids: units of each ResNet stage, and the patch on the stem's feature map.
STEMS: dict[str, dict[str, Any]] = {
    "r_s16_p8": {"stem": (), "patch_size": 8},  # only the root of the stem: 32 pixels a patch, in spite of the name
    "r_s4": {"stem": (), "patch_size": 1},  # not published: only the root, for the digits
    "r26_s32": {"stem": (2, 2, 2, 2), "patch_size": 1},
    "r50_s16": {"stem": (3, 4, 9), "patch_size": 1},
    "r50_s32": {"stem": (3, 4, 6, 3), "patch_size": 1},
}
PUBLISHED_HYBRIDS = ("tiny_r_s16_p8", "small_r26_s32", "base_r26_s32", "base_r50_s16", "large_r50_s32")

# Convolution inside the Transformer: the fields that each word in a name sets.
MIXTURES: dict[str, dict[str, Any]] = {
    "convmlp": {"mlp_kind": "conv"},
    "convproj": {"projection": "conv"},
    "interleaved": {"conv_layers": (0, 2)},
}

_NAME = re.compile(
    rf"(?P<family>vit|deit)_(?P<size>{'|'.join(VARIANTS)})(?P<distilled>_distilled)?(_(?P<mixture>{'|'.join(MIXTURES)}))?"
    rf"_(patch(?P<patch>\d+)|(?P<stem>{'|'.join(STEMS)}))_(?P<resolution>\d+)(?P<suffix>_in21k|_gap)?"
)


def config_for(name: str, num_classes: int | None = None, **overrides: Any) -> ViTConfig:
    """Return the configuration of a model name such as `vit_base_patch16_224_in21k`.

    `_in21k` models have 21,843 classes and a representation layer (unless `has_logits=False`). `_gap` models average
    the patches instead of reading a class token. `deit_*_distilled_*` models have DeiT's distillation token and its
    second head. `num_classes` and `overrides` replace values that follow from the name.

    Raises:
        VitkitError: the name is unknown (the message suggests similar names), an override is unknown, or no model can
            be built with its value.
    """
    parsed = _parse(name)
    if parsed is None:
        hint = suggest(name, list_models())
        if "/" in name:
            hint = " (it contains no model)" if Path(name).exists() else " (there is no such run or model folder)"
        raise VitkitError("model.name-unknown", f"unknown model {name!r}{hint}; `vitkit models` lists them")
    size = VARIANTS[parsed["size"]]
    is_in21k = parsed["suffix"] == "_in21k"
    is_distilled = parsed["distilled"] is not None
    fields: dict[str, Any] = {
        **size._asdict(),
        "image_size": int(parsed["resolution"]),
        "num_classes": IMAGENET_21K if is_in21k else IMAGENET_1K,
        "representation_size": size.hidden_size if is_in21k else None,
        "pool": "gap" if parsed["suffix"] == "_gap" else "token",
        "distill_token": is_distilled,
        "distill_head": is_distilled,
        **(STEMS[parsed["stem"]] if parsed["stem"] else {"patch_size": int(parsed["patch"])}),
        **(MIXTURES[parsed["mixture"]] if parsed["mixture"] else {}),
    }
    if num_classes is not None:
        overrides["num_classes"] = num_classes
    return override(ViTConfig(**fields), **overrides)


def is_model_name(name: str) -> bool:
    """Return whether `config_for` understands a name."""
    return _parse(name) is not None


def _parse(name: str) -> re.Match[str] | None:
    parsed = _NAME.fullmatch(name)
    if parsed is None:
        return None
    only_other_family = ("distilled",) if parsed["family"] == "vit" else ("suffix", "stem", "mixture")
    return None if any(parsed[part] for part in only_other_family) else parsed


@check_arguments
def list_models(pattern: str = "*") -> list[str]:
    """Return the names of the published models that match a shell pattern (`*base*`) or contain a text (`base`).

    Other patches and resolutions are possible too if the patch divides the resolution, as in `vit_tiny_patch8_96`.

        >>> import vitkit
        >>> vitkit.list_models("vit_huge*224")
        ['vit_huge_patch8_224', 'vit_huge_patch14_224', 'vit_huge_patch16_224', 'vit_huge_patch32_224']
    """
    names = [
        f"vit_{size}_patch{patch}_{resolution}{suffix}"
        for size in PUBLISHED_SIZES
        for patch in PUBLISHED_PATCHES
        for resolution in PUBLISHED_RESOLUTIONS
        if resolution % patch == 0
        for suffix in ("", "_in21k", "_gap")
    ]
    names += [
        f"vit_{hybrid}_{resolution}{suffix}"
        for hybrid in PUBLISHED_HYBRIDS
        for resolution in PUBLISHED_RESOLUTIONS
        for suffix in ("", "_in21k")
    ]
    names += [
        f"deit_{size}{distilled}_patch16_{resolution}"
        for size in ("tiny", "small", "base")
        for distilled in ("", "_distilled")
        for resolution in PUBLISHED_RESOLUTIONS
    ]
    names += ["vit_micro_patch4_16", "vit_micro_r_s4_16"]
    names += [f"vit_micro_{mixture}_patch4_16" for mixture in MIXTURES]
    return [name for name in names if fnmatch.fnmatch(name, pattern) or pattern in name]


# --- Networks of other libraries --------------------------------------------------------------------------------------

Library = Literal["torchvision", "timm", "custom"]
LIBRARIES: tuple[Library, ...] = get_args(Library)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The configuration of a network of torchvision or timm, or of a registered network. Sizes are in pixels.

    Attributes:
        library: the library that builds the network.
        name: the name of the network in its library.
        image_size: (height, width) of the images. If the network pools its features, its weights do not depend on this
            size.
        in_channels: the channels of the images.
        num_classes: the number of logits; 0 for no head, so that the network returns features.
        dropout: the probability of each dropout layer; None for the library's default.
        drop_path: the rate of stochastic depth at the deepest block; None for the library's default. The rates of the
            other blocks are scaled in proportion.

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
        coerce_types(self)
        if self.library not in LIBRARIES:
            raise VitkitError(
                "model.value-invalid", f"library must be {' or '.join(LIBRARIES)}, not {self.library!r:.80}"
            )
        for name, minimum in (("in_channels", 1), ("num_classes", 0)):
            if not minimum <= getattr(self, name) <= MAX_SIZE:
                raise VitkitError(
                    "model.value-invalid", f"{name} must be from {minimum} to {MAX_SIZE}, not {getattr(self, name)}"
                )
        if max(self.image_size) > MAX_SIDE:
            raise VitkitError(
                "model.size-too-large", f"image_size {self.image_size} is too large: at most {MAX_SIDE} pixels a side"
            )
        for name in ("dropout", "drop_path"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < 1:
                raise VitkitError("model.value-invalid", f"{name} must be at least 0 and below 1, not {rate}")

    @property
    def full_name(self) -> str:
        """The name as users write it: `torchvision:resnet18`."""
        return f"{self.library}:{self.name}"

    @property
    def description(self) -> str:
        """A short description, for reports."""
        return f"the network {self.name}" if self.library == "custom" else f"{self.library}'s {self.name}"

    def replace(self, **changes: Any) -> NetworkConfig:
        """Return a copy with other values of some fields."""
        known = [field.name for field in dataclasses.fields(self) if field.name not in ("library", "name")]
        vit_fields = {field.name for field in dataclasses.fields(ViTConfig)}
        for name in changes:
            if name not in known:
                is_of_vit = name in vit_fields
                why = "exists only in Vision Transformers" if is_of_vit else f"is unknown{suggest(name, known)}"
                raise VitkitError(
                    "model.option-unknown", f"model option {name!r} {why}; {self.full_name} has {', '.join(known)}"
                )
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types, which `from_dict` reads."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> NetworkConfig:
        """Create the configuration from the fields that `to_dict` returned.

        Raises:
            VitkitError: a field is unknown or missing, or no network can be built with its value.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(fields, dict) or not {"library", "name"} <= fields.keys() <= known:
            raise VitkitError(
                "model.config-damaged",
                f"the configuration must be an object with library and name, not {fields!r:.120}",
            )
        return cls(**fields)


Config = ViTConfig | NetworkConfig


def split_network(name: str) -> tuple[Library, str] | None:
    """Split `torchvision:NAME`, `timm:NAME` or `custom:NAME` into library and name; return None for any other name.

    None is also returned for `timm:NAME` if vitkit itself has a Vision Transformer of that name.
    """
    prefix, _, network = name.partition(":")
    if not network or "@" in network:  # NAME@FILE is a checkpoint
        return None
    for library in LIBRARIES:
        if prefix == library:
            is_ours = library == "timm" and is_model_name(network.partition(".")[0])
            return None if is_ours else (library, network)
    return None


def is_network_name(name: str | None) -> bool:
    """Return whether a name stands for a network that `split_network` recognises; False for None."""
    return name is not None and split_network(name) is not None
