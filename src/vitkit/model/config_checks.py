"""What the fields of a configuration may be, alone and beside the others."""

from __future__ import annotations

from typing import Any

from vitkit.errors import VitkitError

Pair = tuple[int, int]
RELATIVE = ("relative", "relative_bias", "relative_mlp")  # positions that act inside attention


MAX_LAYERS, MAX_SIZE, MAX_SIDE = 1000, 2**24, 2**20  # what claims more is damaged


def as_pair(value: Any, name: str) -> Pair:
    """One number or (height, width), as (height, width)."""
    pair = (value, value) if isinstance(value, int) else value
    if not (
        isinstance(pair, (tuple, list)) and len(pair) == 2 and all(type(side) is int and side > 0 for side in pair)
    ):
        raise VitkitError(f"{name} must be a positive whole number or a pair (height, width), not {value!r}")
    return pair[0], pair[1]


def check_values(config: Any) -> None:
    for name in ("in_channels", "layers", "hidden_size", "heads", "mlp_size", "relative_size"):
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
    _check_rotary(config)
    _check_norms(config)


def _check_extent(config: Any) -> None:
    """Refuse sizes that no model has, before anything is made of them."""
    if config.layers > MAX_LAYERS:
        raise VitkitError(f"layers must be at most {MAX_LAYERS}, not {config.layers}")
    sizes = ("in_channels", "hidden_size", "heads", "mlp_size", "num_classes", "registers", "representation_size")
    for name in (*sizes, "pool_mlp_size", "relative_size"):
        if (getattr(config, name) or 0) > MAX_SIZE:
            raise VitkitError(f"{name} must be at most {MAX_SIZE}, not {getattr(config, name)}")
    if max(config.image_size) > MAX_SIDE or config.patches > MAX_SIZE:
        raise VitkitError(f"image_size {_times(config.image_size)} is larger than any model's")
    if max(config.stem or (), default=0) > MAX_LAYERS:
        raise VitkitError(f"stem must have at most {MAX_LAYERS} units in a stage, not {max(config.stem or ())}")


def _check_patches(config: Any) -> None:
    if config.stem is not None and (len(config.stem) > 4 or not all(units > 0 for units in config.stem)):
        raise VitkitError(f"stem must be the units of at most 4 stages, each at least 1, not {config.stem}")
    if not all(0 <= layer < config.layers for layer in config.conv_layers):
        raise VitkitError(f"conv_layers must be layers from 0 to {config.layers - 1}, not {config.conv_layers}")
    if config.pool == "token" and config.layers - 1 in config.conv_layers:
        raise VitkitError(
            f"conv_layers {config.conv_layers}: the last layer must attend, for its class token to read the patches"
        )
    if config.conv_layers and config.position in RELATIVE:
        raise VitkitError(
            f"conv_layers cannot be combined with position {config.position!r}, which acts inside attention"
        )
    sides = [-(-side // config.stem_stride) for side in config.image_size]
    if any(side % patch for side, patch in zip(sides, config.patch_size, strict=True)):
        whole = f"image_size {_times(config.image_size)}"
        if config.stem is not None:
            whole += f" gives a feature map of {sides[0]}x{sides[1]}, which"
        raise VitkitError(f"{whole} is not divisible by patch_size {_times(config.patch_size)}")


def _check_tokens(config: Any) -> None:
    if config.pool in ("token", "token+gap") and not config.class_token:
        raise VitkitError(f"pool {config.pool!r} needs class_token=True: it reads the class token")
    if config.distill_head and not config.distill_token:
        raise VitkitError("distill_head needs distill_token=True: the second head reads the distillation token")
    if config.distill_token and config.pool != "token":
        raise VitkitError(f"distill_token needs pool='token', not {config.pool!r}")
    if config.distill_token and config.representation_size is not None:
        raise VitkitError("representation_size cannot be combined with distill_token: DeiT has no representation layer")
    for name in ("pool_heads", "pool_mlp_size"):
        if getattr(config, name) is not None and getattr(config, name) < 1:
            raise VitkitError(f"{name} must be at least 1 or None, not {getattr(config, name)}")
    if config.pool == "map" and config.hidden_size % (config.pool_heads or 1):
        raise VitkitError(f"hidden_size {config.hidden_size} is not divisible by pool_heads {config.pool_heads}")
    if config.pool != "map" and (config.pool_heads is not None or config.pool_mlp_size is not None):
        raise VitkitError(f"pool_heads and pool_mlp_size are of pool 'map' alone, not of {config.pool!r}")
    if config.pool == "map" and config.mlp_kind != "mlp":
        raise VitkitError(
            f"pool 'map' has a plain MLP of its own: it cannot be combined with mlp_kind {config.mlp_kind!r}"
        )
    if config.fc_norm and (config.distill_head or config.pool == "token+gap"):
        raise VitkitError("fc_norm normalises one vector: it cannot be combined with distill_head or token+gap")


def _check_positions(config: Any) -> None:
    for position, divisor in (("learned_2d", 2), ("sincos_1d", 2), ("sincos_2d", 4)):
        if config.position == position and config.hidden_size % divisor:
            raise VitkitError(
                f"position {position!r} needs a hidden_size divisible by {divisor}, not {config.hidden_size}"
            )
    if config.position in RELATIVE[1:] and config.prefix_tokens > 1:
        raise VitkitError(f"position {config.position!r} is of patches and at most one token ahead of them")
    if config.position in RELATIVE and config.position_at == "input":
        raise VitkitError(
            f"position {config.position!r} acts inside attention: position_at must be every_layer or shared, not input"
        )
    if not config.prefix_positions and config.position in ("sincos_1d", *RELATIVE):
        raise VitkitError(f"prefix_positions=False has no meaning with position {config.position!r}")


def _check_rotary(config: Any) -> None:
    if config.rotary == "none":
        return
    if config.head_size % 4:
        raise VitkitError(f"rotary {config.rotary!r} needs a head size divisible by 4, not {config.head_size}")
    if config.rotary_base <= 0:
        raise VitkitError(f"rotary_base must be positive, not {config.rotary_base}")
    if config.rotary_grid is not None and max(config.rotary_grid) > MAX_SIDE:
        raise VitkitError(f"rotary_grid {_times(config.rotary_grid)} is larger than any model's")
    if config.rotary in ("mixed", "dinov3") and (config.rotary_grid is not None or config.rotary_offset):
        raise VitkitError(f"rotary_grid and rotary_offset have no meaning with rotary {config.rotary!r}")
    if config.position in RELATIVE:
        raise VitkitError(f"rotary cannot be combined with position {config.position!r}: both act inside attention")
    if config.conv_layers or config.projection == "conv":
        raise VitkitError("rotary cannot be combined with conv_layers or projection 'conv'")


def _check_norms(config: Any) -> None:
    if config.fc_norm and config.norm == "post":
        raise VitkitError("fc_norm cannot be combined with norm 'post', whose last block has normalised its output")
    if config.norm == "res-post" and config.layer_scale is not None:
        raise VitkitError("layer_scale cannot be combined with norm 'res-post', whose norms scale each branch already")
    if config.mlp_norm and config.mlp_kind == "conv":
        raise VitkitError("mlp_norm cannot be combined with mlp_kind 'conv'")
    if not config.last_norm and (config.norm == "post" or config.fc_norm):
        raise VitkitError("last_norm=False says nothing beside norm 'post' or fc_norm, which have no last norm")
    if config.attention_norm and config.conv_layers:
        raise VitkitError("attention_norm cannot be combined with conv_layers, which have no attention")


def _times(pair: Pair) -> str:
    return f"{pair[0]}x{pair[1]}"
