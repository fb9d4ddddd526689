"""`ViTConfig`: every architectural choice of a Vision Transformer in one frozen dataclass.

A configuration checks its values when it is created. `override` changes fields, and accepts the names of other
libraries for them. The names of models are in `names.py`. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Literal

from vitkit.errors import VitkitError
from vitkit.model.registry import BLOCKS
from vitkit.text.arguments import as_typed, coerce_types, hints_of, is_number

Pair = tuple[int, int]
RELATIVE = ("relative", "relative_bias", "relative_mlp")  # positions that act inside attention
MAX_LAYERS, MAX_SIZE, MAX_SIDE = 1000, 2**24, 2**20  # larger values mean that a file is damaged
PAIRS = ("image_size", "patch_size", "window_size")  # fields that take one number or (height, width)
WINDOW = 7  # rows and columns of a window in Swin, arXiv 2103.14030 sec. 3.2


def as_pair(value: Any, name: str) -> Pair:
    """Convert one number or a pair to (height, width); `name` is the field's name in error messages.

    Raises:
        VitkitError: the value is neither a positive whole number nor a pair of them.
    """
    pair = (value, value) if isinstance(value, int) else value
    is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
    if not is_pair or not all(type(side) is int and side > 0 for side in pair):
        raise _invalid(f"{name} must be a positive whole number or a pair (height, width), not {value!r}")
    return pair[0], pair[1]


_invalid = partial(VitkitError, "model.value-invalid")
_conflict = partial(VitkitError, "model.fields-incompatible")
_indivisible = partial(VitkitError, "model.size-not-divisible")
_too_large = partial(VitkitError, "model.size-too-large")


def _check_sizes(config: ViTConfig) -> None:
    for name in ("in_channels", "layers", "hidden_size", "heads", "mlp_size", "relative_size"):
        if getattr(config, name) < 1:
            raise _invalid(f"{name} must be at least 1, not {getattr(config, name)}")
    # Implausibly large sizes are refused before anything is allocated.
    if config.layers > MAX_LAYERS:
        raise _too_large(f"layers must be at most {MAX_LAYERS}, not {config.layers}")
    sizes = ("in_channels", "hidden_size", "heads", "mlp_size", "num_classes", "registers", "representation_size")
    for name in (*sizes, "pool_mlp_size", "relative_size"):
        if (getattr(config, name) or 0) > MAX_SIZE:
            raise _too_large(f"{name} must be at most {MAX_SIZE}, not {getattr(config, name)}")
    if max(config.image_size) > MAX_SIDE or config.patches > MAX_SIZE:
        limits = f"at most {MAX_SIDE} pixels a side and {MAX_SIZE} patches"
        raise _too_large(f"image_size {format_size(config.image_size)} is too large: {limits}")
    if max(config.stem or (), default=0) > MAX_LAYERS:
        raise _too_large(f"stem must have at most {MAX_LAYERS} units in a stage, not {max(config.stem or ())}")
    for name in ("num_classes", "registers"):
        if getattr(config, name) < 0:
            raise _invalid(f"{name} must be 0 (none) or more, not {getattr(config, name)}")
    for name in ("dropout", "attention_dropout", "position_dropout", "drop_path"):
        if not 0.0 <= getattr(config, name) < 1.0:
            raise _invalid(f"{name} must be in [0, 1), not {getattr(config, name)}")
    if config.norm_eps <= 0:
        raise _invalid(f"norm_eps must be positive, not {config.norm_eps}")
    if config.representation_size is not None and config.representation_size < 1:
        raise _invalid(
            f"representation_size must be a positive whole number or None, not {config.representation_size!r}"
        )
    if config.hidden_size % config.heads:
        raise _indivisible(f"hidden_size {config.hidden_size} is not divisible by heads {config.heads}")


def _check_tokens(config: ViTConfig) -> None:
    if config.stem is not None and (len(config.stem) > 4 or not all(units > 0 for units in config.stem)):
        raise _invalid(f"stem must list the residual units of 1 to 4 stages, each number at least 1, not {config.stem}")
    if not all(0 <= layer < config.layers for layer in config.conv_layers):
        raise _invalid(f"conv_layers must be layers from 0 to {config.layers - 1}, not {config.conv_layers}")
    if config.pool == "token" and config.layers - 1 in config.conv_layers:
        raise _conflict(
            f"conv_layers {config.conv_layers} must not contain the last layer: without attention there, the class "
            "token receives nothing from the patches"
        )
    if config.conv_layers and config.position in RELATIVE:
        raise _conflict(
            f"conv_layers cannot be combined with position {config.position!r}, which acts inside attention"
        )
    sides = [-(-side // config.stem_stride) for side in config.image_size]
    if any(side % patch for side, patch in zip(sides, config.patch_size, strict=True)):
        whole = f"image_size {format_size(config.image_size)}"
        if config.stem is not None:
            whole += f" gives a feature map of {sides[0]}x{sides[1]}, which"
        raise _indivisible(f"{whole} is not divisible by patch_size {format_size(config.patch_size)}")
    if config.pool in ("token", "token+gap") and not config.class_token:
        raise _conflict(f"pool {config.pool!r} needs class_token=True: it reads the class token")
    if config.distill_head and not config.distill_token:
        raise _conflict("distill_head needs distill_token=True: the second head reads the distillation token")
    if config.distill_token and config.pool != "token":
        raise _conflict(f"distill_token needs pool='token', not {config.pool!r}")
    if config.distill_token and config.representation_size is not None:
        raise _conflict("representation_size cannot be combined with distill_token: DeiT has no representation layer")
    for name in ("pool_heads", "pool_mlp_size"):
        size = getattr(config, name)
        if size is not None and size < 1:
            raise _invalid(f"{name} must be at least 1 or None, not {size}")
        if size is not None and config.pool != "map":
            raise _conflict(f"pool_heads and pool_mlp_size apply only to pool 'map', not to {config.pool!r}")
    if config.pool == "map" and config.hidden_size % (config.pool_heads or 1):
        raise _indivisible(f"hidden_size {config.hidden_size} is not divisible by pool_heads {config.pool_heads}")
    if config.pool == "map" and config.mlp_kind != "mlp":
        raise _conflict(f"pool 'map' has its own MLP, so it cannot be combined with mlp_kind {config.mlp_kind!r}")
    if config.fc_norm and (config.distill_head or config.pool == "token+gap"):
        raise _conflict("fc_norm normalises one vector: it cannot be combined with distill_head or token+gap")


def _check_positions(config: ViTConfig) -> None:
    for position, divisor in (("learned_2d", 2), ("sincos_1d", 2), ("sincos_2d", 4)):
        if config.position == position and config.hidden_size % divisor:
            raise _indivisible(
                f"position {position!r} requires a hidden_size divisible by {divisor}, not {config.hidden_size}"
            )
    if config.position in RELATIVE[1:] and config.prefix_tokens > 1:
        raise _conflict(f"position {config.position!r} supports at most one token before the patches")
    if config.position in RELATIVE and config.position_at == "input":
        raise _conflict(
            f"position {config.position!r} acts inside attention: position_at must be every_layer or shared, not input"
        )
    if not config.prefix_positions and config.position in ("sincos_1d", *RELATIVE):
        raise _conflict(f"prefix_positions=False has no meaning with position {config.position!r}")
    if config.rotary == "none":
        return
    if config.head_size % 4:
        raise _indivisible(f"rotary {config.rotary!r} needs a head size divisible by 4, not {config.head_size}")
    if config.rotary_base <= 0:
        raise _invalid(f"rotary_base must be positive, not {config.rotary_base}")
    if config.rotary_grid is not None and max(config.rotary_grid) > MAX_SIDE:
        raise _too_large(f"rotary_grid {format_size(config.rotary_grid)} is too large: at most {MAX_SIDE} a side")
    if config.rotary in ("mixed", "dinov3") and (config.rotary_grid is not None or config.rotary_offset):
        raise _conflict(f"rotary_grid and rotary_offset have no meaning with rotary {config.rotary!r}")
    if config.position in RELATIVE:
        raise _conflict(f"rotary cannot be combined with position {config.position!r}: both act inside attention")
    if config.conv_layers or config.projection == "conv":
        raise _conflict("rotary cannot be combined with conv_layers or projection 'conv'")


def _check_layers(config: ViTConfig) -> None:
    if config.block != "standard" and config.block not in BLOCKS:
        raise VitkitError(
            "model.name-unregistered",
            f"no encoder layer {config.block!r} is registered in this program: call "
            f"vitkit.register_block({config.block!r}, ...) first",
        )
    kind = config.attention
    if kind != "window" and (config.window_size is not None or config.global_layers):
        raise _conflict(f"window_size and global_layers apply only to attention 'window', not to {kind!r}")
    if not all(0 <= layer < config.layers for layer in config.global_layers):
        raise _invalid(f"global_layers must be layers from 0 to {config.layers - 1}, not {config.global_layers}")
    if kind in ("axial", "window") and config.position == "relative":
        raise _conflict(
            f"attention {kind!r} cannot be combined with position 'relative', whose offsets run over the sequence: "
            "take relative_bias or relative_mlp"
        )
    if kind == "axial" and config.layers % 2:
        raise _conflict(
            f"attention 'axial' needs an even number of layers, not {config.layers}: they attend within rows and "
            "within columns in turn"
        )
    if kind == "axial" and config.conv_layers:
        raise _conflict("attention 'axial' cannot be combined with conv_layers, as its layers come in pairs")
    if config.fc_norm and config.norm == "post":
        raise _conflict("fc_norm cannot be combined with norm 'post', whose last block has normalised its output")
    if config.norm == "res-post" and config.layer_scale is not None:
        raise _conflict("layer_scale cannot be combined with norm 'res-post', whose norms scale each branch already")
    if config.mlp_norm and config.mlp_kind == "conv":
        raise _conflict("mlp_norm cannot be combined with mlp_kind 'conv'")
    if not config.last_norm and (config.norm == "post" or config.fc_norm):
        raise _conflict("last_norm=False has no effect with norm 'post' or fc_norm, which have no last norm")
    if config.attention_norm and config.conv_layers:
        raise _conflict("attention_norm cannot be combined with conv_layers, which have no attention")


def format_size(pair: Pair) -> str:
    return f"{pair[0]}x{pair[1]}"


_SYNONYMS = {  # the names of timm and of common training scripts
    "img_size": "image_size",
    "in_chans": "in_channels",
    "in_c": "in_channels",
    "embed_dim": "hidden_size",
    "depth": "layers",
    "num_heads": "heads",
    "init_values": "layer_scale",
    "reg_tokens": "registers",
    "proj_drop_rate": "dropout",
    "proj_drop_ratio": "dropout",
    "proj_drop": "dropout",
    "attn_drop": "attention_dropout",
    "pos_drop_rate": "position_dropout",
    "attn_drop_rate": "attention_dropout",
    "attn_drop_ratio": "attention_dropout",
    "drop_path_rate": "drop_path",
    "drop_path_ratio": "drop_path",
}
_POOLS = {"token": "token", "avg": "gap", "map": "map"}
# Layer classes, by class name and by timm's name, and the fields of `ViTConfig` that select them.
_LAYERS: dict[str, dict[str, dict[str, Any]]] = {
    "act_layer": {
        "gelu": {"activation": "gelu", "gelu": "erf"},
        "gelu_erf": {"activation": "gelu", "gelu": "erf"},
        "gelu_tanh": {"activation": "gelu", "gelu": "tanh"},
        "gelutanh": {"activation": "gelu", "gelu": "tanh"},
        "quick_gelu": {"activation": "gelu", "gelu": "quick"},
        "quickgelu": {"activation": "gelu", "gelu": "quick"},
        "relu": {"activation": "relu"},
        "silu": {"activation": "silu"},
        "swish": {"activation": "silu"},
        "tanh": {"activation": "tanh"},
        "leaky_relu": {"activation": "leaky_relu"},
        "leakyrelu": {"activation": "leaky_relu"},
    },
    "norm_layer": {
        "layernorm": {"norm_kind": "layer"},
        "rmsnorm": {"norm_kind": "rms"},
    },
    "embed_layer": {"patchembed": {}},
}
_LIBRARIES = ("torch.nn.", "timm.layers.", "vitkit.model.")  # other classes of the same name may compute anything
_TORCH_EPS = {"layer": 1e-5, "rms": 2.0**-23}  # torch's defaults; RMSNorm's is that of float32
_SUBCLASS = "for your own, subclass vitkit.model.vit.Block, set {} in its __init__, and use vitkit.register_block"
# For each option, the supported classes, and what to do with other classes.
_SUPPORTED_CLASSES = {
    "act_layer": ("torch's GELU, ReLU, SiLU, Tanh and LeakyReLU", _SUBCLASS.format("self.mlp.act")),
    "norm_layer": ("torch's LayerNorm and RMSNorm", _SUBCLASS.format("self.norm1 and self.norm2")),
    "embed_layer": (
        "vitkit's PatchEmbed and timm's",
        "for your own, build the model without it, with patch_size as its stride, and assign it to model.patch_embed",
    ),
}


def canonical(options: Mapping[str, Any]) -> dict[str, Any]:
    """Translate options of other libraries to fields of `ViTConfig`. Unknown names stay unchanged.

    `drop_ratio` sets `dropout` and `position_dropout`, as in the scripts that use this name. timm's `drop_rate` is
    dropout before the head, and `patch_drop_rate` drops patches. The models here have neither, so only 0 is accepted.

    Raises:
        VitkitError: an option or a layer class has no counterpart here, or two options set the same field.
    """
    fields: dict[str, Any] = {}
    for name, value in options.items():
        changes: dict[str, Any] = {}
        if name in ("drop_rate", "patch_drop_rate"):
            if value not in (0, None):
                raise VitkitError(
                    "model.option-unsupported",
                    f"{name} is not supported: use dropout (timm's proj_drop_rate), position_dropout or "
                    "attention_dropout; vitkit train --patch-dropout drops patches",
                )
        elif name in _LAYERS:
            changes = _fields_of_layer(name, value)
        elif name == "drop_ratio":
            changes = {"dropout": value, "position_dropout": value}
        elif name == "global_pool":
            if value not in _POOLS:
                raise _invalid(f"global_pool must be one of {', '.join(_POOLS)}, not {value!r}; or use pool")
            changes = {"pool": _POOLS[value]}
        else:
            changes = {_SYNONYMS.get(name, name): value}
        for field, field_value in changes.items():
            if field in fields:
                raise VitkitError(
                    "model.option-repeated", f"{name} and another option both set {field}: give one of them"
                )
            fields[field] = field_value
    return fields


def _fields_of_layer(option: str, layer: Any) -> dict[str, Any]:
    """Return the fields of `ViTConfig` that select a layer class, such as `nn.GELU`.

    `layer` is a class of torch, timm or vitkit, a `functools.partial` of it, its name, or None for the default.
    """
    if layer is None:
        return {}
    # Of a `functools.partial`, these are the class and its arguments.
    kind = getattr(layer, "func", layer)
    arguments = dict(getattr(layer, "keywords", {}))
    unsupported = [repr(value) for value in getattr(layer, "args", ())]

    module = "" if isinstance(kind, str) else str(getattr(kind, "__module__", ""))
    name = kind if isinstance(kind, str) else getattr(kind, "__name__", type(kind).__name__)
    is_known = isinstance(kind, str) or (isinstance(kind, type) and module.startswith(_LIBRARIES))
    if is_known and name.lower() in _LAYERS[option]:
        # Arguments that have a field are removed from `arguments`. If others remain, the layer is refused below.
        fields = dict(_LAYERS[option][name.lower()])
        if option == "norm_layer" and "eps" in arguments:
            fields["norm_eps"] = arguments.pop("eps")
        elif option == "norm_layer" and module.startswith("torch."):
            fields["norm_eps"] = _TORCH_EPS[fields["norm_kind"]]
        if option == "act_layer" and arguments.get("approximate") in ("none", "tanh"):
            fields["gelu"] = "tanh" if arguments.pop("approximate") == "tanh" else "erf"
        arguments.pop("inplace", None)
        if not arguments and not unsupported:
            return fields

    unsupported += arguments
    extra = f" with {', '.join(unsupported)}" if unsupported else ""
    if not isinstance(kind, str):
        has_name = hasattr(kind, "__name__")  # a class or a function
        name = f"{module}.{name}" if has_name else f"an object of {name}: pass the class"
    names, advice = _SUPPORTED_CLASSES[option]
    raise VitkitError("model.option-unsupported", f"{option} must be one of {names}, not {name}{extra}; {advice}")


Features = Literal["head", "class", "mean", "patches"]  # what `build.read_features` returns
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

    The defaults are those of ViT-B/16 at 224 pixels. `image_size` and `patch_size` take one number or (height, width).
    `replace` changes fields and adjusts those that depend on them, such as the size of the MLP.

        >>> from vitkit import ViTConfig
        >>> config = ViTConfig(image_size=32, patch_size=8, layers=2, num_classes=10)
        >>> config.image_size, config.grid, config.replace(hidden_size=96, heads=3).mlp_size
        ((32, 32), (4, 4), 384)

    Raises:
        VitkitError: no model can be built with the value of a field; the message names the field.
    """

    image_size: Pair = (224, 224)
    patch_size: Pair = (16, 16)  # with a stem, in pixels of its feature map
    in_channels: int = 3
    num_classes: int = IMAGENET_1K  # 0: no head, the model returns features
    layers: int = 12
    hidden_size: int = 768
    heads: int = 12
    mlp_size: int = 3072
    # "swiglu": arXiv 2002.05202, as in DINOv2 giant; "conv": arXiv 2103.11816, sec. 3.2
    mlp_kind: Literal["mlp", "swiglu", "conv"] = "mlp"
    # "axial": within rows, then columns of the patch grid (app. D.6); "window": within windows (arXiv 2103.14030, sec.
    # 3.2; 2203.16527, sec. 3)
    attention: Literal["softmax", "axial", "window"] = "softmax"
    window_size: Pair | None = None  # of attention "window", in patches; None: 7 x 7, as in Swin
    global_layers: tuple[int, ...] = ()  # of attention "window": layers that attend to all patches
    projection: Literal["linear", "conv"] = "linear"  # of q, k, v; "conv": arXiv 2103.15808, sec. 3.2
    block: str = "standard"  # or the name of an encoder layer, see `register_block`
    conv_layers: tuple[int, ...] = ()  # layers that mix by convolution instead of attention
    stem: tuple[int, ...] | None = None  # sec. 3.1, hybrids: units of each ResNet stage; (): only the root
    stem_kind: StemKind = "reference"  # the implementation that defines weight standardisation and eps
    class_token: bool | None = None  # None: True if the pool reads it; with pool "gap", it may exist without being read
    # "token": sec. 3.1; "gap": app. D.3; "token+gap": DINOv2's linear probe; "map": the attention of a learned query to
    # all tokens (arXiv 2106.04560, sec. 2.2)
    pool: Literal["token", "gap", "token+gap", "map"] = "token"
    pool_heads: int | None = None  # of pool "map"; None: as many as the layers have
    pool_mlp_size: int | None = None
    distill_token: bool = False  # DeiT, arXiv 2012.12877, sec. 4
    distill_head: bool = False
    registers: int = 0  # arXiv 2309.16588
    representation_size: int | None = None  # sec. 3.1: Linear and tanh before the head, for pre-training
    # "unit": Linear without bias, then scaled to length 1, for cosines in the head (CLIP, arXiv 2103.00020, fig. 3)
    representation: Literal["tanh", "unit"] = "tanh"
    # app. D.4, Table 8; "relative_bias": a bias for each offset (BEiT, arXiv 2106.08254); "relative_mlp": the bias is
    # an MLP of the offset (arXiv 2111.09883, sec. 3.3)
    position: Position = "learned_1d"
    relative_size: int = 128  # hidden size of the MLP of "relative_mlp"
    position_at: PositionAt = "input"  # relative positions require "every_layer" or "shared": they act inside attention
    position_resize: PositionResize = "reference"  # the library whose interpolation fits positions to other image sizes
    # "eva": EVA-02, arXiv 2303.11331; "axial", "mixed": arXiv 2403.13298, sec. 3.2; "dinov3": arXiv 2508.10104
    rotary: Rotary = "none"
    rotary_base: float = 10_000.0  # the ratio of the largest to the smallest frequency
    rotary_grid: Pair | None = None  # the grid to which patch positions are stretched; None: the grid of the patches
    rotary_offset: int = 0  # number of the first patch; Perception Encoder, arXiv 2504.13181, counts its class token
    prefix_positions: bool = True  # False: class token and registers have none (DeiT III, arXiv 2204.07118)
    # "pre": eqs. 2-3; "post": the original Transformer; "res-post": norm of each branch's output (Swin V2, arXiv
    # 2111.09883, sec. 3.2)
    norm: Literal["pre", "post", "res-post"] = "pre"
    # "rms": neither subtracts a mean nor adds a bias (arXiv 1910.07467)
    norm_kind: Literal["layer", "rms"] = "layer"
    norm_eps: float = 1e-6
    patch_norm: bool = False
    patch_bias: bool = True  # of E in eq. 1; CLIP has none
    embed_norm: bool = False  # normalise the tokens before the first layer (CLIP, arXiv 2103.00020, sec. 2.4)
    last_norm: bool = True  # LN of eq. 4; Perception Encoder's dense models, arXiv 2504.13181, have none
    attention_norm: bool = False  # normalise the joined heads before their projection (sub-LN, arXiv 2210.06423)
    mlp_norm: bool = False  # normalise the input of the MLP's second layer (sub-LN, arXiv 2210.06423; EVA-02)
    fc_norm: bool = False  # normalise after pooling instead of before (BEiT, arXiv 2106.08254; MAE's fine-tuning)
    layer_scale: float | None = None  # the initial value; None: no LayerScale; arXiv 2103.17239, sec. 2
    activation: Literal["gelu", "relu", "silu", "tanh", "leaky_relu"] = "gelu"  # of the MLP; sec. 3.1 has GELU
    gelu: Literal["erf", "tanh", "quick"] = "erf"  # "quick": x sigmoid(1.702 x), arXiv 1606.08415, sec. 2
    qkv_bias: bool = True
    proj_bias: bool = True  # of the attention's projection and the MLP; AIMv2, arXiv 2411.14402, has none
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
        if self.window_size is not None or self.attention == "window":
            size = WINDOW if self.window_size is None else self.window_size
            object.__setattr__(self, "window_size", as_pair(size, "window_size"))
        coerce_types(self)
        if self.class_token is None:
            object.__setattr__(self, "class_token", reads_token(self.pool))
        _check_sizes(self)
        _check_tokens(self)
        _check_positions(self)
        _check_layers(self)

    @property
    def stem_stride(self) -> int:
        """The factor by which the stem reduces the sides of the image; 1 without a stem."""
        return stride_of(self.stem)

    @property
    def grid(self) -> Pair:
        """The number of rows and columns of patches: (h, w)."""
        height, width = (-(-side // self.stem_stride) for side in self.image_size)  # SAME padding rounds up
        return height // self.patch_size[0], width // self.patch_size[1]

    @property
    def patches(self) -> int:
        """The number of patches, N of eq. 1."""
        return self.grid[0] * self.grid[1]

    @property
    def prefix_tokens(self) -> int:
        """The number of tokens that precede the patches: class token, distillation token, registers."""
        return int(bool(self.class_token)) + int(self.distill_token) + self.registers

    @property
    def tokens(self) -> int:
        """The length of the sequence: prefix tokens and patches."""
        return self.prefix_tokens + self.patches

    @property
    def positioned_prefix(self) -> int:
        """The number of prefix tokens that have a position."""
        return self.prefix_tokens if self.prefix_positions else 0

    @property
    def positions_in_layers(self) -> bool:
        """Whether every layer uses positions, so that each patch must keep its place in the sequence."""
        is_added_there = self.position != "none" and self.position_at != "input"
        return self.position in RELATIVE or self.rotary != "none" or is_added_there

    @property
    def head_size(self) -> int:
        """The number of features of a head, D_h of app. A."""
        return self.hidden_size // self.heads

    @property
    def tokens_read(self) -> int | None:
        """The number of leading tokens that the head reads; None if it reads all tokens."""
        return 1 + self.distill_head if self.pool == "token" else None

    @property
    def description(self) -> str:
        """A short description of the size, for reports."""
        return f"{self.layers} layers, {self.heads} heads"

    @property
    def feature_size(self) -> int:
        """The length of the vector that the classification head reads."""
        pooled = 2 * self.hidden_size if self.pool == "token+gap" else self.hidden_size
        return self.representation_size or pooled

    def number_of(self, layer: int) -> int:
        """Convert a layer number, which may count from the end (-1 is the last layer), to a number from 0.

        Raises:
            VitkitError: there is no such layer.
        """
        depth = self.layers
        if not -depth <= layer < depth:
            raise VitkitError(
                "model.layer-missing",
                f"there is no layer {layer}: layers are numbered 0 to {depth - 1}, or -{depth} to -1 from the end",
            )
        return layer % depth

    def replace(self, **overrides: Any) -> ViTConfig:
        """Return a copy with other values of some fields; see `override`."""
        return override(self, **overrides)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types, which `from_dict` reads."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> ViTConfig:
        """Create the configuration from the fields that `to_dict` returned.

        Raises:
            VitkitError: a field is unknown, or no model can be built with its value.
        """
        if not isinstance(fields, dict):
            raise VitkitError("model.config-damaged", f"the configuration must be an object, not {fields!r:.80}")
        _check_names(fields, {})
        return cls(**fields)


def reads_token(pool: str) -> bool:
    """Return whether the head reads the class token with this kind of pooling."""
    return pool in ("token", "token+gap")


def stride_of(stem: tuple[int, ...] | None) -> int:
    """Return the factor by which a stem reduces the sides of the image.

    The root, including its pooling, reduces them by a factor of 4, and each stage after the first by a factor of 2.
    """
    return 1 if stem is None else 4 * 2 ** max(len(stem) - 1, 0)


# Options of other libraries that are not fields here, and the fields that each of them sets.
_ALIASES = {
    "mlp_ratio": ("mlp_size",),
    "distilled": ("distill_token", "distill_head"),
    "has_logits": ("representation_size",),
}


def override(config: ViTConfig, **overrides: Any) -> ViTConfig:
    """Return a copy of a configuration with other values of some fields.

    A new `hidden_size` also scales `mlp_size` in proportion. If `representation_size` equals the old hidden size, it is
    set to the new one. New values of `pool`, `position`, `attention` and `layers` also adjust the fields that depend on
    them, such as `class_token` and `position_at`.

    Names of other libraries are accepted too: `mlp_ratio` (mlp_size / hidden_size), `distilled` (both distillation
    fields), `has_logits` (whether there is a representation layer of size `hidden_size`), and those that `canonical`
    translates.

    Raises:
        VitkitError: an override is unknown, or no model can be built with its value.
    """
    overrides = canonical(overrides)
    _check_names(overrides, _ALIASES)
    aliases = {name: overrides.pop(name) for name in _ALIASES if name in overrides}
    for name in aliases:
        for field in _ALIASES[name]:
            if field in overrides:
                raise VitkitError("model.option-repeated", f"{name} and {field} set the same field: give one of them")
    for name, value in overrides.items():
        if name not in PAIRS:  # they may be one number; see `as_pair`
            as_typed(name, hints_of(ViTConfig)[name], value)
    hidden_size = overrides.get("hidden_size", config.hidden_size)

    # The fields that depend on others follow them, unless they are overridden, too.
    changes: dict[str, Any] = {}
    if hidden_size != config.hidden_size:
        changes["mlp_size"] = round(Fraction(config.mlp_size * hidden_size, config.hidden_size))
        if config.representation_size == config.hidden_size:
            changes["representation_size"] = hidden_size
    is_relative = overrides.get("position", config.position) in RELATIVE
    was_relative = config.position in RELATIVE
    if is_relative != was_relative:  # a learned table may be added anywhere, relative positions only inside layers
        changes["position_at"] = "every_layer" if is_relative else "input"
    if "pool" in overrides and config.class_token == reads_token(config.pool):
        changes["class_token"] = None  # True if the new pool reads it
    if overrides.get("attention", "window") != "window":
        changes |= {"window_size": None, "global_layers": ()}
    if "layers" in overrides:
        changes["global_layers"] = tuple(layer for layer in config.global_layers if layer < overrides["layers"])
        changes["conv_layers"] = tuple(layer for layer in config.conv_layers if layer < overrides["layers"] - 1)
    changes |= overrides

    if "mlp_ratio" in aliases:
        if not is_number(aliases["mlp_ratio"]):
            raise _invalid(f"mlp_ratio must be a finite number, not {aliases['mlp_ratio']!r}")
        changes["mlp_size"] = int(round(hidden_size * aliases["mlp_ratio"], 6))
    for name in ("distilled", "has_logits"):
        if type(aliases.get(name, False)) is not bool:
            raise _invalid(f"{name} must be True or False, not {aliases[name]!r}")
    if "distilled" in aliases:
        changes["distill_token"] = changes["distill_head"] = aliases["distilled"]
    if "has_logits" in aliases:
        changes["representation_size"] = hidden_size if aliases["has_logits"] else None
    return dataclasses.replace(config, **changes)


def _check_names(fields: dict[str, Any], aliases: dict[str, tuple[str, ...]]) -> None:
    known = [*(field.name for field in dataclasses.fields(ViTConfig)), *aliases]
    for name in fields:
        if name not in known:
            raise VitkitError(
                "model.option-unknown",
                f"unknown model option {name!r}{suggest(name, known)}; known: {', '.join(known)}",
            )


def suggest(name: str, known: list[str]) -> str:
    """Return ` (did you mean ...?)` with similar names, or an empty string."""
    close = difflib.get_close_matches(name, known, n=3)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
