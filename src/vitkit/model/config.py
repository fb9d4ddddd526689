"""What a Vision Transformer is made of: one frozen dataclass with every architectural choice, checked when made.

Nothing here imports torch. The names that stand for configurations are in `names.py`.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vitkit.errors import VitkitError
from vitkit.model.spellings import canonical

Pair = tuple[int, int]
Position = Literal["learned_1d", "learned_2d", "sincos_1d", "sincos_2d", "relative", "none"]
PositionAt = Literal["input", "every_layer", "shared"]
PositionResize = Literal["reference", "timm", "torchvision", "huggingface", "dinov2"]
StemKind = Literal["reference", "timm"]
IMAGENET_1K = 1000
MAX_LAYERS, MAX_SIZE, MAX_SIDE = 1000, 2**24, 2**20  # what claims more is damaged


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Every architectural choice of a Vision Transformer. Sizes are in pixels or features.

    The defaults are ViT-B/16 at 224 px. `image_size` and `patch_size` take one number or (height, width).
    `replace` changes fields and keeps the proportions that hang together, such as the MLP's ratio.

    Raises:
        VitkitError: a field has a value that cannot be built; the message names the field.
    """

    image_size: Pair = (224, 224)
    patch_size: Pair = (16, 16)  # with a stem: on its feature map
    in_channels: int = 3
    num_classes: int = IMAGENET_1K  # 0: no head, the model returns features
    layers: int = 12
    hidden_size: int = 768
    heads: int = 12
    mlp_size: int = 3072
    mlp_kind: Literal["mlp", "swiglu", "conv"] = "mlp"  # arXiv 2002.05202 (DINOv2 giant); 2103.11816 sec. 3.2
    projection: Literal["linear", "conv"] = "linear"  # of q, k, v; "conv": arXiv 2103.15808, sec. 3.2
    conv_layers: tuple[int, ...] = ()  # layers that mix by convolution instead of attention
    stem: tuple[int, ...] | None = None  # sec. 3.1, hybrids: units of each ResNet stage; (): the root alone
    stem_kind: StemKind = "reference"  # whose weight standardisation and eps
    class_token: bool | None = None  # None: as the pool needs; mean-pooled models may keep an unread one
    pool: Literal["token", "gap", "token+gap"] = "token"  # sec. 3.1; app. D.3; DINOv2's linear probe
    distill_token: bool = False  # DeiT, arXiv 2012.12877, sec. 4
    distill_head: bool = False
    registers: int = 0  # arXiv 2309.16588
    representation_size: int | None = None  # sec. 3.1: Linear and tanh before the head, for pre-training
    position: Position = "learned_1d"  # app. D.4, Table 8
    position_at: PositionAt = "input"  # `relative` acts inside attention: every_layer or shared
    position_resize: PositionResize = "reference"  # whose interpolation fits learned positions to another image size
    prefix_positions: bool = True  # False: class token and registers get none (DeiT III, arXiv 2204.07118)
    norm: Literal["pre", "post"] = "pre"  # eqs. 2-3; "post" is the original Transformer's order
    norm_eps: float = 1e-6
    patch_norm: bool = False
    fc_norm: bool = False  # normalise after pooling instead of before (BEiT, arXiv 2106.08254; MAE's fine-tuning)
    layer_scale: float | None = None  # its initial value; arXiv 2103.17239, sec. 2
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
        for name in ("stem", "conv_layers"):
            if isinstance(getattr(self, name), list):  # as JSON has it
                object.__setattr__(self, name, tuple(getattr(self, name)))
        _check_types(self.__dict__)
        for name in ("layer_scale", "qk_scale"):  # whole numbers are meant as real ones
            if getattr(self, name) is not None:
                object.__setattr__(self, name, float(getattr(self, name)))
        if self.class_token is None:
            object.__setattr__(self, "class_token", self.pool != "gap")
        _check_values(self)

    @property
    def stem_stride(self) -> int:
        """By how much the stem divides the image's sides; 1 without one."""
        return stride_of(self.stem)

    @property
    def grid(self) -> Pair:
        """Patches down and across: (h, w)."""
        height, width = (-(-side // self.stem_stride) for side in self.image_size)  # SAME padding rounds up
        return height // self.patch_size[0], width // self.patch_size[1]

    @property
    def patches(self) -> int:
        """N of eq. 1."""
        return self.grid[0] * self.grid[1]

    @property
    def prefix_tokens(self) -> int:
        """Tokens ahead of the patches: class token, distillation token, registers."""
        return int(bool(self.class_token)) + int(self.distill_token) + self.registers

    @property
    def tokens(self) -> int:
        """Length of the sequence: prefix tokens and patches."""
        return self.prefix_tokens + self.patches

    @property
    def positioned_prefix(self) -> int:
        """Prefix tokens that have a position of their own."""
        return self.prefix_tokens if self.prefix_positions else 0

    @property
    def head_size(self) -> int:
        """D_h of app. A."""
        return self.hidden_size // self.heads

    @property
    def tokens_read(self) -> int | None:
        """How many of the first tokens the head reads; None where it reads all."""
        return 1 + self.distill_head if self.pool == "token" else None

    @property
    def feature_size(self) -> int:
        """Length of the vector that the classification head reads."""
        pooled = 2 * self.hidden_size if self.pool == "token+gap" else self.hidden_size
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
        if not isinstance(fields, dict):
            raise VitkitError(f"the configuration must be an object, not {fields!r:.80}")
        _refuse_unknown(fields, {})
        return cls(**fields)


def stride_of(stem: tuple[int, ...] | None) -> int:
    """By how much a stem of these stages divides the image's sides: root and pooling by 4, each further stage by 2."""
    return 1 if stem is None else 4 * 2 ** max(len(stem) - 1, 0)


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
        if get_args(kind)[1:] == (...,) and not (
            isinstance(value, (tuple, list)) and all(type(n) is int for n in value)
        ):
            raise VitkitError(f"{name} must be a tuple of whole numbers, not {value!r}")
        if kind is bool and type(value) is not bool:
            raise VitkitError(f"{name} must be True or False, not {value!r}")
        if kind is int and type(value) is not int:
            raise VitkitError(f"{name} must be a whole number, not {value!r}")
        if kind is float and not is_number(value):
            raise VitkitError(f"{name} must be a finite number, not {value!r}")


def is_number(value: Any) -> bool:
    """Whether a value read from a file is a finite number, and no bool."""
    return type(value) in (int, float) and abs(value) < 1e300  # neither NaN nor beyond what a float holds


def _check_values(config: ViTConfig) -> None:
    for name in ("in_channels", "layers", "hidden_size", "heads", "mlp_size"):
        if getattr(config, name) < 1:
            raise VitkitError(f"{name} must be at least 1, not {getattr(config, name)}")
    _check_extent(config)
    for name in ("num_classes", "registers"):
        if getattr(config, name) < 0:
            raise VitkitError(f"{name} must be 0 (none) or more, not {getattr(config, name)}")
    for name in ("dropout", "attention_dropout", "position_dropout", "drop_path"):
        if not 0.0 <= getattr(config, name) < 1.0:
            raise VitkitError(f"{name} must be in [0, 1), not {getattr(config, name)}")
    if config.norm_eps <= 0:
        raise VitkitError(f"norm_eps must be positive, not {config.norm_eps}")
    if config.representation_size is not None and config.representation_size < 1:
        raise VitkitError(
            f"representation_size must be a positive whole number or None, not {config.representation_size!r}"
        )
    if config.hidden_size % config.heads:
        raise VitkitError(f"hidden_size {config.hidden_size} is not divisible by heads {config.heads}")
    _check_patches(config)
    _check_tokens(config)
    _check_positions(config)


def _check_extent(config: ViTConfig) -> None:
    """Refuse sizes that no model has, before anything is made of them."""
    if config.layers > MAX_LAYERS:
        raise VitkitError(f"layers must be at most {MAX_LAYERS}, not {config.layers}")
    for name in ("in_channels", "hidden_size", "heads", "mlp_size", "num_classes", "registers", "representation_size"):
        if (getattr(config, name) or 0) > MAX_SIZE:
            raise VitkitError(f"{name} must be at most {MAX_SIZE}, not {getattr(config, name)}")
    if max(config.image_size) > MAX_SIDE or config.patches > MAX_SIZE:
        raise VitkitError(f"image_size {_times(config.image_size)} is larger than any model's")
    if max(config.stem or (), default=0) > MAX_LAYERS:
        raise VitkitError(f"stem must have at most {MAX_LAYERS} units in a stage, not {max(config.stem or ())}")


def _check_patches(config: ViTConfig) -> None:
    if config.stem is not None and (len(config.stem) > 4 or not all(units > 0 for units in config.stem)):
        raise VitkitError(f"stem must be the units of at most 4 stages, each at least 1, not {config.stem}")
    if not all(0 <= layer < config.layers for layer in config.conv_layers):
        raise VitkitError(f"conv_layers must be layers from 0 to {config.layers - 1}, not {config.conv_layers}")
    if config.pool == "token" and config.layers - 1 in config.conv_layers:
        raise VitkitError(
            f"conv_layers {config.conv_layers}: the last layer must attend, for its class token to read the patches"
        )
    if config.conv_layers and config.position == "relative":
        raise VitkitError("conv_layers cannot be combined with position 'relative', which acts inside attention")
    sides = [-(-side // config.stem_stride) for side in config.image_size]
    if any(side % patch for side, patch in zip(sides, config.patch_size, strict=True)):
        whole = f"image_size {_times(config.image_size)}"
        if config.stem is not None:
            whole += f" gives a feature map of {sides[0]}x{sides[1]}, which"
        raise VitkitError(f"{whole} is not divisible by patch_size {_times(config.patch_size)}")


def _check_tokens(config: ViTConfig) -> None:
    if config.pool != "gap" and not config.class_token:
        raise VitkitError(f"pool {config.pool!r} needs class_token=True: it reads the class token")
    if config.distill_head and not config.distill_token:
        raise VitkitError("distill_head needs distill_token=True: the second head reads the distillation token")
    if config.distill_token and config.pool != "token":
        raise VitkitError(f"distill_token needs pool='token', not {config.pool!r}")
    if config.distill_token and config.representation_size is not None:
        raise VitkitError("representation_size cannot be combined with distill_token: DeiT has no representation layer")
    if config.fc_norm and config.norm == "post":
        raise VitkitError("fc_norm cannot be combined with norm 'post', whose last block has normalised its output")
    if config.fc_norm and (config.distill_head or config.pool == "token+gap"):
        raise VitkitError("fc_norm normalises one vector: it cannot be combined with distill_head or token+gap")


def _check_positions(config: ViTConfig) -> None:
    for position, divisor in (("learned_2d", 2), ("sincos_1d", 2), ("sincos_2d", 4)):
        if config.position == position and config.hidden_size % divisor:
            raise VitkitError(
                f"position {position!r} needs a hidden_size divisible by {divisor}, not {config.hidden_size}"
            )
    if config.position == "relative" and config.position_at == "input":
        raise VitkitError(
            "position 'relative' acts inside attention: position_at must be every_layer or shared, not input"
        )
    if not config.prefix_positions and config.position in ("sincos_1d", "relative"):
        raise VitkitError(f"prefix_positions=False has no meaning with position {config.position!r}")


def _times(pair: Pair) -> str:
    return f"{pair[0]}x{pair[1]}"


# Overrides that are not fields: the names other libraries use, and what each means in fields.
_ALIASES = {
    "mlp_ratio": ("mlp_size",),
    "distilled": ("distill_token", "distill_head"),
    "has_logits": ("representation_size",),
}


def override(config: ViTConfig, **overrides: Any) -> ViTConfig:
    """`config` with fields changed. A new `hidden_size` keeps the MLP's ratio and the representation layer's.

    Also understood, as other libraries name them: `mlp_ratio` (mlp_size / hidden_size), `distilled` (both distillation
    fields), `has_logits` (whether there is a representation layer of hidden_size), and the spellings of `spellings`.

    Raises:
        VitkitError: an override is unknown or cannot be built.
    """
    overrides = canonical(overrides)
    _refuse_unknown(overrides, _ALIASES)
    aliases = {name: overrides.pop(name) for name in _ALIASES if name in overrides}
    for name in aliases:
        for meant in _ALIASES[name]:
            if meant in overrides:
                raise VitkitError(f"{name} and {meant} say the same in two ways: give one of them")
    _check_types(overrides)
    hidden_size = overrides.get("hidden_size", config.hidden_size)
    changes = {**_what_follows(config, overrides), **overrides}
    if "mlp_ratio" in aliases:
        if not is_number(aliases["mlp_ratio"]):
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


def _what_follows(config: ViTConfig, overrides: dict[str, Any]) -> dict[str, Any]:
    """What changes with a field because it hung together with it."""
    changes: dict[str, Any] = {}
    hidden_size = overrides.get("hidden_size", config.hidden_size)
    if hidden_size != config.hidden_size:
        changes["mlp_size"] = round(Fraction(config.mlp_size * hidden_size, config.hidden_size))
        if config.representation_size == config.hidden_size:
            changes["representation_size"] = hidden_size
    was_relative, is_relative = (
        kind == "relative" for kind in (config.position, overrides.get("position", config.position))
    )
    if was_relative != is_relative:  # a learned table may be added anywhere, relative positions only inside layers
        changes["position_at"] = "every_layer" if is_relative else "input"
    if "pool" in overrides and config.class_token == (config.pool != "gap"):
        changes["class_token"] = None  # as the new pool needs
    if "layers" in overrides:
        changes["conv_layers"] = tuple(layer for layer in config.conv_layers if layer < overrides["layers"] - 1)
    return changes


def _refuse_unknown(fields: dict[str, Any], aliases: dict[str, tuple[str, ...]]) -> None:
    known = [*(field.name for field in dataclasses.fields(ViTConfig)), *aliases]
    for name in fields:
        if name == "classifier":
            raise VitkitError("classifier is called pool now: the tokens that the head reads")
        if name not in known:
            raise VitkitError(f"unknown model option {name!r}{suggest(name, known)}; known: {', '.join(known)}")


def suggest(name: str, known: list[str]) -> str:
    """` (did you mean ...?)` with names like this one, or nothing."""
    close = difflib.get_close_matches(name, known, n=3)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
