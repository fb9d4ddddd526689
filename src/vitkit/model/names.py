"""The names of models, such as `vit_base_patch16_224_in21k`: size, patch, resolution, suffix.

`config_for` turns a name into a configuration. `VARIANTS` contains the sizes: Table 1 of "An Image is Worth 16x16
Words" (arXiv 2010.11929), with Ti and S from "How to train your ViT?" (arXiv 2106.10270). Hybrids have timm's names:
`vit_base_r50_s16_224` is R50+B/16, whose stem and patches together reduce the sides of the image by 16.
"""

from __future__ import annotations

import fnmatch
import re
from typing import Any, NamedTuple

from vitkit.errors import VitkitError
from vitkit.model.config import IMAGENET_1K, ViTConfig, override, suggest
from vitkit.text.arguments import check_arguments

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

    `_in21k` models have 21,843 classes and the representation layer (`has_logits=False` leaves it out); `_gap`
    models average the patches instead of reading a class token; `deit_*_distilled_*` have DeiT's second token and head.

    Raises:
        VitkitError: the name is unknown (similar names are suggested), an override is unknown, or no model can be built
            with it.
    """
    parsed = _parse(name)
    if parsed is None:
        raise VitkitError(f"unknown model {name!r}{suggest(name, list_models())}; `vitkit models` lists them")
    size = VARIANTS[parsed["size"]]
    in21k = parsed["suffix"] == "_in21k"
    distilled = parsed["distilled"] is not None
    fields: dict[str, Any] = {
        **size._asdict(),
        "image_size": int(parsed["resolution"]),
        "num_classes": IMAGENET_21K if in21k else IMAGENET_1K,
        "representation_size": size.hidden_size if in21k else None,
        "pool": "gap" if parsed["suffix"] == "_gap" else "token",
        "distill_token": distilled,
        "distill_head": distilled,
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
    if parsed is None or (parsed["distilled"] and parsed["family"] == "vit"):
        return None
    is_plain = not (parsed["suffix"] or parsed["stem"] or parsed["mixture"])
    return parsed if is_plain or parsed["family"] == "vit" else None


@check_arguments
def list_models(pattern: str = "*") -> list[str]:
    """Return the names of the published models that match a shell pattern (`*base*`) or contain a text (`base`).

    Other patches and resolutions are possible too if the patch divides the resolution, as in `vit_tiny_patch8_96`.
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
    names += ["vit_micro_patch4_16", "vit_micro_r_s4_16", *(f"vit_micro_{mixture}_patch4_16" for mixture in MIXTURES)]
    return [name for name in names if fnmatch.fnmatch(name, pattern) or pattern in name]
