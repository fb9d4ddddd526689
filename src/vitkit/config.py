"""What a Vision Transformer is made of: one dataclass, one table of sizes, one grammar of names.

`VARIANTS` is Table 1 of "An Image is Worth 16x16 Words" (arXiv 2010.11929), with Ti and S from
"How to train your ViT?" (arXiv 2106.10270). A name such as `vit_base_patch16_224_in21k` is parsed
against it: size, patch, resolution, suffix. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from vitkit.errors import VitkitError

Pair = tuple[int, int]
Position = Literal["learned_1d", "learned_2d", "sincos_1d", "sincos_2d", "relative", "none"]
PositionAt = Literal["input", "every_layer", "shared"]


class Size(NamedTuple):
    """A row of the paper's Table 1."""

    layers: int
    hidden_size: int
    mlp_size: int
    heads: int


VARIANTS: dict[str, Size] = {
    "micro": Size(4, 128, 512, 4),  # ours: small enough to learn the digits on two cores
    "tiny": Size(12, 192, 768, 3),
    "small": Size(12, 384, 1536, 6),
    "base": Size(12, 768, 3072, 12),
    "large": Size(24, 1024, 4096, 16),
    "huge": Size(32, 1280, 5120, 16),
}
PUBLISHED_SIZES = ("tiny", "small", "base", "large", "huge")
PUBLISHED_PATCHES = (8, 14, 16, 32)
PUBLISHED_RESOLUTIONS = (224, 384)
IMAGENET_1K, IMAGENET_21K = 1000, 21843


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Every architectural choice of a Vision Transformer. Sizes are in pixels or features.

    The defaults are ViT-B/16 at 224 px. `image_size` and `patch_size` take one number or (height, width).
    `replace` changes fields and keeps the proportions that hang together, such as the MLP's ratio.

    Raises:
        VitkitError: a field has a value that cannot be built; the message names the field.
    """

    image_size: Pair = (224, 224)
    patch_size: Pair = (16, 16)
    in_channels: int = 3
    num_classes: int = IMAGENET_1K  # 0: no head, the model returns features
    layers: int = 12
    hidden_size: int = 768
    heads: int = 12
    mlp_size: int = 3072
    classifier: Literal["token", "gap", "token+gap"] = "token"  # sec. 3.1; app. D.3; DINOv2's linear probe
    distill_token: bool = False  # DeiT, arXiv 2012.12877, sec. 4
    distill_head: bool = False
    representation_size: int | None = None  # sec. 3.1: Linear and tanh before the head, for pre-training
    position: Position = "learned_1d"  # app. D.4, Table 8
    position_at: PositionAt = "input"  # `relative` acts inside attention: every_layer or shared
    norm: Literal["pre", "post"] = "pre"  # eqs. 2-3; "post" is the original Transformer's order
    norm_eps: float = 1e-6
    patch_norm: bool = False
    gelu: Literal["erf", "tanh"] = "erf"
    qkv_bias: bool = True
    qk_scale: float | None = None  # None: 1 / sqrt(head size), app. A eq. 6
    dropout: float = 0.0  # after the attention's projection and in the MLP (app. B.1)
    attention_dropout: float = 0.0
    position_dropout: float = 0.0
    drop_path: float = 0.0  # stochastic depth at the last block; the rate grows linearly from 0 at the first
    init: Literal["trunc_normal", "reference"] = "trunc_normal"

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size"):
            object.__setattr__(self, name, as_pair(getattr(self, name), name))
        _check_types(self.__dict__)
        _check_values(self)

    @property
    def grid(self) -> Pair:
        """Patches down and across: (h, w)."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def patches(self) -> int:
        """N of eq. 1."""
        return self.grid[0] * self.grid[1]

    @property
    def prefix_tokens(self) -> int:
        """Tokens ahead of the patches: class and distillation token."""
        return int(self.class_token) + int(self.distill_token)

    @property
    def tokens(self) -> int:
        """Length of the sequence: prefix tokens and patches."""
        return self.prefix_tokens + self.patches

    @property
    def class_token(self) -> bool:
        """Whether the sequence begins with the class token; the paper's mean-pooled models have none (app. D.3)."""
        return self.classifier != "gap"

    @property
    def head_size(self) -> int:
        """D_h of app. A."""
        return self.hidden_size // self.heads

    @property
    def feature_size(self) -> int:
        """Length of the vector that the classification head reads."""
        pooled = 2 * self.hidden_size if self.classifier == "token+gap" else self.hidden_size
        return self.representation_size or pooled

    def replace(self, **overrides: Any) -> ViTConfig:
        """A copy with fields changed, by the same rules as `create_model`'s overrides."""
        return override(self, **overrides)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; `from_dict` turns them back into an equal configuration."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> ViTConfig:
        """The configuration that `to_dict` wrote.

        Raises:
            VitkitError: a field is unknown or its value cannot be built.
        """
        _refuse_unknown(fields, {})
        return cls(**fields)


def as_pair(value: Any, name: str) -> Pair:
    """One number or (height, width), as (height, width)."""
    pair = (value, value) if isinstance(value, int) else value
    if not (
        isinstance(pair, (tuple, list)) and len(pair) == 2 and all(type(side) is int and side > 0 for side in pair)
    ):
        raise VitkitError(f"{name} must be a positive whole number or a pair (height, width), not {value!r}")
    return pair[0], pair[1]


def _check_types(fields: dict[str, Any]) -> None:
    hints = get_type_hints(ViTConfig)
    for name, value in fields.items():  # pairs are checked by `as_pair`
        kinds = get_args(hints[name]) if type(None) in get_args(hints[name]) else (hints[name],)
        if value is None and type(None) in kinds:
            continue
        kind = kinds[0]
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise VitkitError(f"{name} must be one of {', '.join(get_args(kind))}, not {value!r}")
        if kind is bool and type(value) is not bool:
            raise VitkitError(f"{name} must be True or False, not {value!r}")
        if kind is int and type(value) is not int:
            raise VitkitError(f"{name} must be a whole number, not {value!r}")
        if kind is float and not _is_number(value):
            raise VitkitError(f"{name} must be a finite number, not {value!r}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _check_values(config: ViTConfig) -> None:
    for name in ("in_channels", "layers", "hidden_size", "heads", "mlp_size"):
        if getattr(config, name) < 1:
            raise VitkitError(f"{name} must be at least 1, not {getattr(config, name)}")
    if config.num_classes < 0:
        raise VitkitError(f"num_classes must be 0 (no head) or more, not {config.num_classes}")
    if config.hidden_size % config.heads:
        raise VitkitError(f"hidden_size {config.hidden_size} is not divisible by heads {config.heads}")
    if any(side % patch for side, patch in zip(config.image_size, config.patch_size, strict=True)):
        raise VitkitError(
            f"image_size {_times(config.image_size)} is not divisible by patch_size {_times(config.patch_size)}"
        )
    for name in ("dropout", "attention_dropout", "position_dropout", "drop_path"):
        if not 0.0 <= getattr(config, name) < 1.0:
            raise VitkitError(f"{name} must be in [0, 1), not {getattr(config, name)}")
    if config.norm_eps <= 0:
        raise VitkitError(f"norm_eps must be positive, not {config.norm_eps}")
    if config.representation_size is not None and (
        type(config.representation_size) is not int or config.representation_size < 1
    ):
        raise VitkitError(
            f"representation_size must be a positive whole number or None, not {config.representation_size!r}"
        )
    if config.distill_head and not config.distill_token:
        raise VitkitError("distill_head needs distill_token=True: the second head reads the distillation token")
    if config.distill_token and config.classifier != "token":
        raise VitkitError(f"distill_token needs classifier='token', not {config.classifier!r}")
    if config.distill_token and config.representation_size is not None:
        raise VitkitError("representation_size cannot be combined with distill_token: DeiT has no representation layer")
    if config.position == "learned_2d" and config.hidden_size % 2:
        raise VitkitError(f"position 'learned_2d' needs an even hidden_size, not {config.hidden_size}")
    if config.position == "sincos_1d" and config.hidden_size % 2:
        raise VitkitError(f"position 'sincos_1d' needs an even hidden_size, not {config.hidden_size}")
    if config.position == "sincos_2d" and config.hidden_size % 4:
        raise VitkitError(f"position 'sincos_2d' needs a hidden_size divisible by 4, not {config.hidden_size}")
    if config.position == "relative" and config.position_at == "input":
        raise VitkitError(
            "position 'relative' acts inside attention: position_at must be every_layer or shared, not input"
        )


def _times(pair: Pair) -> str:
    return f"{pair[0]}x{pair[1]}"


# --- Names -----------------------------------------------------------------------------------------

_NAME = re.compile(
    rf"(?P<family>vit|deit)_(?P<size>{'|'.join(VARIANTS)})(?P<distilled>_distilled)?"
    r"_patch(?P<patch>\d+)_(?P<resolution>\d+)(?P<suffix>_in21k|_gap)?"
)
# Overrides that are not fields: the names other libraries use, and what each means in fields.
_ALIASES = {
    "mlp_ratio": ("mlp_size",),
    "distilled": ("distill_token", "distill_head"),
    "has_logits": ("representation_size",),
}


def config_for(name: str, num_classes: int | None = None, **overrides: Any) -> ViTConfig:
    """The configuration that a model name stands for, e.g. `vit_base_patch16_224_in21k`.

    `_in21k` models have 21,843 classes and the representation layer (`has_logits=False` leaves it out); `_gap`
    models average the patches instead of reading a class token; `deit_*_distilled_*` have DeiT's second token and head.

    Raises:
        VitkitError: the name is unknown (close ones are suggested), or an override is unknown or cannot be built.
    """
    parsed = _NAME.fullmatch(name)
    if (
        parsed is None
        or (parsed["distilled"] and parsed["family"] == "vit")
        or (parsed["suffix"] and parsed["family"] == "deit")
    ):
        raise VitkitError(f"unknown model {name!r}{_suggest(name, list_models())}; `vitkit models` lists them")
    size = VARIANTS[parsed["size"]]
    in21k = parsed["suffix"] == "_in21k"
    distilled = parsed["distilled"] is not None
    config = ViTConfig(
        **size._asdict(),
        image_size=int(parsed["resolution"]),  # type: ignore[arg-type]  # a pair after __post_init__
        patch_size=int(parsed["patch"]),  # type: ignore[arg-type]
        num_classes=IMAGENET_21K if in21k else IMAGENET_1K,
        representation_size=size.hidden_size if in21k else None,
        classifier="gap" if parsed["suffix"] == "_gap" else "token",
        distill_token=distilled,
        distill_head=distilled,
    )
    if num_classes is not None:
        overrides["num_classes"] = num_classes
    return override(config, **overrides)


def list_models(pattern: str = "*") -> list[str]:
    """Names of the published models, filtered by a shell pattern (`*base*`) or a part of the name (`base`).

    Any other patch or resolution that divides evenly may be named too: `vit_tiny_patch8_96` is a model.
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
        f"deit_{size}{distilled}_patch16_{resolution}"
        for size in ("tiny", "small", "base")
        for distilled in ("", "_distilled")
        for resolution in PUBLISHED_RESOLUTIONS
    ]
    names.append("vit_micro_patch4_16")
    return [name for name in names if fnmatch.fnmatch(name, pattern) or pattern in name]


def override(config: ViTConfig, **overrides: Any) -> ViTConfig:
    """`config` with fields changed. A new `hidden_size` keeps the MLP's ratio and the representation layer's.

    Also understood, as other libraries name them: `mlp_ratio` (mlp_size / hidden_size), `distilled` (both distillation
    fields), `has_logits` (whether there is a representation layer of hidden_size).

    Raises:
        VitkitError: an override is unknown or cannot be built.
    """
    _refuse_unknown(overrides, _ALIASES)
    aliases = {name: overrides.pop(name) for name in _ALIASES if name in overrides}
    for name in aliases:
        for meant in _ALIASES[name]:
            if meant in overrides:
                raise VitkitError(f"{name} and {meant} say the same in two ways: give one of them")
    _check_types(overrides)
    changes = dict(overrides)
    hidden_size = changes.get("hidden_size", config.hidden_size)
    if hidden_size != config.hidden_size:
        changes.setdefault("mlp_size", round(Fraction(config.mlp_size * hidden_size, config.hidden_size)))
        if config.representation_size == config.hidden_size:
            changes.setdefault("representation_size", hidden_size)
    was_relative, is_relative = (
        kind == "relative" for kind in (config.position, changes.get("position", config.position))
    )
    if was_relative != is_relative:  # a learned table may be added anywhere, relative positions only inside layers
        changes.setdefault("position_at", "every_layer" if is_relative else "input")
    if "mlp_ratio" in aliases:
        if not _is_number(aliases["mlp_ratio"]):
            raise VitkitError(f"mlp_ratio must be a finite number, not {aliases['mlp_ratio']!r}")
        changes["mlp_size"] = int(round(hidden_size * aliases["mlp_ratio"], 6))
    for name in ("distilled", "has_logits"):
        if type(aliases.get(name, False)) is not bool:
            raise VitkitError(f"{name} must be True or False, not {aliases[name]!r}")
    if "distilled" in aliases:
        changes["distill_token"] = changes["distill_head"] = aliases["distilled"]
    if "has_logits" in aliases:
        changes["representation_size"] = hidden_size if aliases["has_logits"] else None
    return dataclasses.replace(config, **changes)


def _refuse_unknown(fields: dict[str, Any], aliases: dict[str, tuple[str, ...]]) -> None:
    known = [*(field.name for field in dataclasses.fields(ViTConfig)), *aliases]
    for name in fields:
        if name not in known:
            raise VitkitError(f"unknown model option {name!r}{_suggest(name, known)}; known: {', '.join(known)}")


def _suggest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
