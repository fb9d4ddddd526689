"""What a Vision Transformer is made of: one frozen dataclass with every architectural choice, checked when made.

Nothing here imports torch. The names that stand for configurations are in `names.py`.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from vitkit.errors import VitkitError
from vitkit.model.config_checks import RELATIVE, Pair, as_pair, check_values
from vitkit.model.spellings import canonical
from vitkit.text.fields import as_typed, hints_of, is_number, settle_types

Position = Literal[
    "learned_1d", "learned_2d", "sincos_1d", "sincos_2d", "relative", "relative_bias", "relative_mlp", "none"
]
PositionAt = Literal["input", "every_layer", "shared"]
PositionResize = Literal[
    "reference", "timm", "torchvision", "huggingface", "dinov2", "siglip2", "linear", "linear_aligned"
]
StemKind = Literal["reference", "timm"]
Rotary = Literal["none", "eva", "axial", "mixed", "dinov3"]
IMAGENET_1K = 1000


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
    # sec. 3.1; app. D.3; DINOv2's linear probe; a query's attention to all tokens (arXiv 2106.04560, sec. 2.2)
    pool: Literal["token", "gap", "token+gap", "map"] = "token"
    pool_heads: int | None = None  # of pool "map"; None: as the layers have
    pool_mlp_size: int | None = None
    distill_token: bool = False  # DeiT, arXiv 2012.12877, sec. 4
    distill_head: bool = False
    registers: int = 0  # arXiv 2309.16588
    representation_size: int | None = None  # sec. 3.1: Linear and tanh before the head, for pre-training
    # "unit": Linear without a bias and length 1 instead, for cosines in the head (CLIP, arXiv 2103.00020, fig. 3)
    representation: Literal["tanh", "unit"] = "tanh"
    # app. D.4, Table 8; a bias for each offset (BEiT, arXiv 2106.08254), or an MLP of it (arXiv 2111.09883, sec. 3.3)
    position: Position = "learned_1d"
    relative_size: int = 128  # of `relative_mlp`'s hidden layer
    position_at: PositionAt = "input"  # relative ones act inside attention: every_layer or shared
    position_resize: PositionResize = "reference"  # whose interpolation fits learned positions to another image size
    rotary: Rotary = "none"  # EVA-02, arXiv 2303.11331; arXiv 2403.13298, sec. 3.2; DINOv3, arXiv 2508.10104
    rotary_base: float = 10_000.0  # by which frequencies fall from one pair of features to the last
    rotary_grid: Pair | None = None  # the grid that patches are counted on, whatever their number; None: their own
    rotary_offset: int = 0  # of the first patch; Perception Encoder, arXiv 2504.13181, counts its class token
    prefix_positions: bool = True  # False: class token and registers get none (DeiT III, arXiv 2204.07118)
    # eqs. 2-3; the original Transformer's order; of each branch's result (Swin V2, arXiv 2111.09883, sec. 3.2)
    norm: Literal["pre", "post", "res-post"] = "pre"
    norm_kind: Literal["layer", "rms"] = "layer"  # "rms": no mean is taken off, nothing added (arXiv 1910.07467)
    norm_eps: float = 1e-6
    patch_norm: bool = False
    patch_bias: bool = True  # of E in eq. 1; CLIP has none
    embed_norm: bool = False  # normalise the tokens ahead of the first layer (CLIP, arXiv 2103.00020, sec. 2.4)
    last_norm: bool = True  # of eq. 4; Perception Encoder's dense models, arXiv 2504.13181, have none
    attention_norm: bool = False  # of the joined heads, ahead of their projection (sub-LN, arXiv 2210.06423)
    mlp_norm: bool = False  # of what the MLP's second layer reads (sub-LN, arXiv 2210.06423; EVA-02)
    fc_norm: bool = False  # normalise after pooling instead of before (BEiT, arXiv 2106.08254; MAE's fine-tuning)
    layer_scale: float | None = None  # its initial value; arXiv 2103.17239, sec. 2
    gelu: Literal["erf", "tanh", "quick"] = "erf"  # "quick": x sigmoid(1.702 x), arXiv 1606.08415, sec. 2
    qkv_bias: bool = True
    proj_bias: bool = True  # of attention's projection and the MLP; AIMv2, arXiv 2411.14402, has none
    qk_scale: float | None = None  # None: 1 / sqrt(head size), app. A eq. 6
    dropout: float = 0.0  # after the attention's projection and in the MLP (app. B.1)
    attention_dropout: float = 0.0
    position_dropout: float = 0.0
    drop_path: float = 0.0  # stochastic depth at the last block; the rate grows linearly from 0 at the first
    init: Literal["trunc_normal", "reference"] = "trunc_normal"

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size"):
            object.__setattr__(self, name, as_pair(getattr(self, name), name))
        if self.rotary_grid is not None:
            object.__setattr__(self, "rotary_grid", as_pair(self.rotary_grid, "rotary_grid"))
        settle_types(self)
        if self.class_token is None:
            object.__setattr__(self, "class_token", reads_token(self.pool))
        check_values(self)

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
    def positions_in_layers(self) -> bool:
        """Whether positions act in every layer, which needs each patch in its place, and not on the input alone."""
        is_added_there = self.position != "none" and self.position_at != "input"
        return self.position in RELATIVE or self.rotary != "none" or is_added_there

    @property
    def head_size(self) -> int:
        """D_h of app. A."""
        return self.hidden_size // self.heads

    @property
    def tokens_read(self) -> int | None:
        """How many of the first tokens the head reads; None where it reads all."""
        return 1 + self.distill_head if self.pool == "token" else None

    @property
    def in_words(self) -> str:
        """Its extent, for pages."""
        return f"{self.layers} layers, {self.heads} heads"

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


def reads_token(pool: str) -> bool:
    """Whether the head reads the class token itself."""
    return pool in ("token", "token+gap")


def stride_of(stem: tuple[int, ...] | None) -> int:
    """By how much a stem of these stages divides the image's sides: root and pooling by 4, each further stage by 2."""
    return 1 if stem is None else 4 * 2 ** max(len(stem) - 1, 0)


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
    for name, value in overrides.items():
        if name not in ("image_size", "patch_size"):  # `as_pair` takes one number, too
            as_typed(name, hints_of(ViTConfig)[name], value)
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
        kind in RELATIVE for kind in (config.position, overrides.get("position", config.position))
    )
    if was_relative != is_relative:  # a learned table may be added anywhere, relative positions only inside layers
        changes["position_at"] = "every_layer" if is_relative else "input"
    if "pool" in overrides and config.class_token == reads_token(config.pool):
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
