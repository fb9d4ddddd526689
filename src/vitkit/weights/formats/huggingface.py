"""Hugging Face's ViT, DeiT, Dinov2 and Dinov2WithRegisters; `config.json` and `preprocessor_config.json` count.

Published files have q, k and v under `attention.attention.query`; version 5 of transformers has `attention.q_proj` in
memory, so state dictionaries saved by hand may have it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from vitkit.data.preprocess import HALF, IMAGENET_MEAN, IMAGENET_STD
from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.weights.checkpoint import Checkpoint
from vitkit.weights.layout import Layout, Piece, depth_of, folded_positions, joined, pair, same

_BLOCK = re.compile(
    r"^(?:(vit|deit|dinov2|dinov2_with_registers)\.)?(encoder\.layer|layers|encoder\.layers)\.(\d+)\."
    r"(?:attention\.(?:attention\.(?:query|key|value)|output\.dense|[qkvo]_proj)|layernorm_(?:before|after)|norm[12]\.|"
    r"intermediate\.dense|layer_scale[12]\.lambda1)"
)
# The gated MLP, in files and in memory: what gives gate and value, and what takes their product.
_GATES = (("weights_in", "weights_out"), ("gate_proj", "up_proj", "down_proj"))
_IMAGENET = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "interpolation": "bicubic"}
# What the image processor of each family does when no preprocessor_config.json says otherwise.
_CUSTOMARY: dict[str, dict[str, Any]] = {
    "vit": {"fit": "squash", "interpolation": "bilinear", "mean": HALF, "std": HALF},
    "deit": {"fit": "squash_crop", "crop_pct": 224 / 256, **_IMAGENET},
    "dinov2": {"fit": "crop", "crop_pct": 224 / 256, **_IMAGENET},
    "dinov2_with_registers": {"fit": "crop", "crop_pct": 224 / 256, **_IMAGENET},
}
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


def recognise(checkpoint: Checkpoint) -> Layout | None:
    """The layout of this checkpoint, if it is Hugging Face's."""
    names = checkpoint.tensors
    found = [match for name in names if (match := _BLOCK.match(name))]
    if not found:
        return None
    config = checkpoint.config or {}
    prefix = f"{found[0][1]}." if found[0][1] else ""
    family = _family(names, config, prefix)
    is_folded = family == "dinov2_with_registers"
    registers = f"{prefix}embeddings.register_tokens"
    if is_folded and registers not in names:  # without a config.json nothing else tells how many
        raise VitkitError(f"{checkpoint.path} (Hugging Face {family}): {registers} is missing")
    depth = depth_of(match[3] for match in found)
    pieces = _pieces(prefix, found[0][2], depth, names, is_folded=is_folded)
    dropped = {f"{prefix}embeddings.mask_token": "trained to predict masked patches"}
    if family == "deit":  # DeiT has no representation layer
        dropped |= {name: "DeiT has no representation layer" for name in names if name.startswith(f"{prefix}pooler.")}
    if not prefix or "classifier.weight" not in names:
        return _layout(checkpoint, family, pieces, config, dropped)
    unread = {name: "the classifier does not read it" for name in names if name.startswith(f"{prefix}pooler.")}
    return _layout(checkpoint, family, pieces, config, dropped | unread)


def _layout(
    checkpoint: Checkpoint,
    family: str,
    pieces: dict[str, Piece],
    config: Mapping[str, Any],
    dropped: dict[str, str],
) -> Layout:
    pixels = _pixels(checkpoint.preprocessor)
    image_size = config.get("image_size")
    return Layout(
        format=f"Hugging Face {family}",
        pieces=pieces,
        fields=_fields(family, config, checkpoint),
        assumed={} if checkpoint.config is not None else {"norm_eps": f"{_eps(family):g}", "gelu": "erf"},
        preprocess=pixels or _CUSTOMARY[family],
        is_preprocess_known=pixels is not None,
        classes=_labels(config),
        pixel_size=_cropped(checkpoint.preprocessor) if family.startswith("dinov2") else None,
        image_size=tuple(image_size) if isinstance(image_size, list) else image_size and (image_size, image_size),
        dropped={name: reason for name, reason in dropped.items() if name in checkpoint.tensors},
    )


def layout_for(config: ViTConfig) -> Layout:
    """How Hugging Face names a model of this configuration."""
    family = family_of(config)
    names: list[str] = [f"{family}."]
    if config.distill_head:
        names.append("cls_classifier.weight")
    if config.mlp_kind == "swiglu":
        names.append(".mlp.weights_in.")
    if family.startswith("dinov2"):
        names.append(".layer_scale1.")
    prefix = f"{family}." if config.num_classes else ""
    is_folded = family == "dinov2_with_registers"
    pieces = _pieces(prefix, "encoder.layer", config.layers, names, is_folded=is_folded)
    return Layout(format=f"Hugging Face {family}", pieces=pieces, preprocess=_CUSTOMARY[family])


def family_of(config: ViTConfig) -> str:
    """The transformers model that has this configuration's parts."""
    if config.registers:
        return "dinov2_with_registers"
    if config.layer_scale is not None or config.mlp_kind == "swiglu" or config.pool == "token+gap":
        return "dinov2"
    return "deit" if config.distill_token else "vit"


def _family(names: Iterable[str], config: Mapping[str, Any], prefix: str) -> str:
    written = config.get("model_type")
    if written is not None:
        if written not in _CUSTOMARY:
            raise VitkitError(f"config.json describes a model of type {written!r}; known: {', '.join(_CUSTOMARY)}")
        return str(written)
    if prefix:
        return prefix.rstrip(".")
    if any(name.endswith("register_tokens") for name in names):
        return "dinov2_with_registers"
    if any(".layer_scale1." in name for name in names):
        return "dinov2"
    return "deit" if any(name.endswith("distillation_token") for name in names) else "vit"


def _pieces(prefix: str, layers: str, depth: int, names: Iterable[str], *, is_folded: bool) -> dict[str, Piece]:
    is_dino = prefix.startswith("dinov2") or any(".layer_scale1." in name for name in names)
    has_pair = any(name.startswith("cls_classifier.") for name in names)
    embeddings = f"{prefix}embeddings"
    pieces = {
        "cls_token": same(f"{embeddings}.cls_token"),
        "dist_token": same(f"{embeddings}.distillation_token"),
        "reg_token": same(f"{embeddings}.register_tokens"),
        "pos_embed": same(f"{embeddings}.position_embeddings"),
        **pair("patch_embed.proj", f"{embeddings}.patch_embeddings.projection"),
        **pair("norm", f"{prefix}layernorm"),
        **pair("pre_logits.fc", f"{prefix}pooler.dense"),
        **pair("head", "cls_classifier" if has_pair else "classifier"),
        **pair("head_dist", "distillation_classifier"),
    }
    if is_folded:
        pieces |= folded_positions(f"{embeddings}.cls_token", f"{embeddings}.position_embeddings")
    is_new = any(".attention.q_proj." in name for name in names)
    gate = next((kind for kind in _GATES if any(f".mlp.{kind[0]}." in name for name in names)), ())
    for layer in range(depth):
        theirs = f"{prefix}{layers}.{layer}"
        pieces |= _block(f"blocks.{layer}", theirs, is_dino=is_dino, is_new=is_new, gate=gate)
    return pieces


def _block(ours: str, theirs: str, *, is_dino: bool, is_new: bool, gate: tuple[str, ...]) -> dict[str, Piece]:
    attention = f"{theirs}.attention"
    q, k, v, out = (
        f"{attention}.{part}"
        for part in (
            ("q_proj", "k_proj", "v_proj", "o_proj")
            if is_new
            else ("attention.query", "attention.key", "attention.value", "output.dense")
        )
    )
    norm1, norm2 = ("norm1", "norm2") if is_dino else ("layernorm_before", "layernorm_after")
    fc1, fc2 = ("mlp.fc1", "mlp.fc2") if is_dino or is_new else ("intermediate.dense", "output.dense")
    up = (fc1,) if not gate else tuple(f"mlp.{name}" for name in gate[:-1])
    fc2 = f"mlp.{gate[-1]}" if gate else fc2
    return {
        **pair(f"{ours}.norm1", f"{theirs}.{norm1}"),
        **{f"{ours}.attn.qkv.{part}": joined(*(f"{name}.{part}" for name in (q, k, v))) for part in ("weight", "bias")},
        **pair(f"{ours}.attn.proj", out),
        f"{ours}.ls1.gamma": same(f"{theirs}.layer_scale1.lambda1"),
        **pair(f"{ours}.norm2", f"{theirs}.{norm2}"),
        **{
            f"{ours}.mlp.fc1.{part}": joined(*(f"{theirs}.{name}.{part}" for name in up)) for part in ("weight", "bias")
        },
        **pair(f"{ours}.mlp.fc2", f"{theirs}.{fc2}"),
        f"{ours}.ls2.gamma": same(f"{theirs}.layer_scale2.lambda1"),
    }


def _fields(family: str, config: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "norm_eps": config.get("layer_norm_eps", _eps(family)),
        "class_token": True,
        "prefix_positions": family != "dinov2_with_registers",
        "pool": _pool(family, checkpoint),
        "gelu": _activation(config.get("hidden_act", "gelu")),
        "position_resize": "timm" if family == "dinov2_with_registers" else "huggingface",
    }
    for ours, theirs in _WRITTEN.items():
        if theirs in config:
            fields[ours] = config[theirs]
    if isinstance(patch := config.get("patch_size"), (int, list, tuple)):
        fields["patch_size"] = (patch, patch) if isinstance(patch, int) else tuple(patch)
    if config.get("pooler_act", "tanh") != "tanh" and any("pooler." in name for name in checkpoint.tensors):
        raise VitkitError(f"config.json: pooler_act {config['pooler_act']!r} is not supported; expected tanh")
    if config.get("apply_layernorm") is False:
        raise VitkitError("config.json: apply_layernorm false is not supported: vitkit's features are normalised")
    return fields


def _pool(family: str, checkpoint: Checkpoint) -> str:
    """Dinov2's head reads the class token and the mean of the patches."""
    has_head = any(name.startswith("classifier.") for name in checkpoint.tensors)
    return "token+gap" if family.startswith("dinov2") and has_head else "token"


def _eps(family: str) -> float:
    """transformers' default."""
    return 1e-6 if family.startswith("dinov2") else 1e-12


# Ours and theirs of the fields that config.json has.
_WRITTEN = {
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "heads": "num_attention_heads",
    "in_channels": "num_channels",
    "qkv_bias": "qkv_bias",
    "registers": "num_register_tokens",
    "layer_scale": "layerscale_value",
}


def _activation(name: str) -> str:
    if name == "gelu":
        return "erf"
    if name in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"):
        return "tanh"
    raise VitkitError(f"config.json: hidden_act {name!r} is not supported; expected gelu or gelu_pytorch_tanh")


def _labels(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    labels = config.get("id2label")
    if not isinstance(labels, Mapping):
        return None
    try:
        by_index = {int(index): str(label) for index, label in labels.items()}
    except ValueError as error:
        raise VitkitError("config.json: id2label does not name classes by number") from error
    if sorted(by_index) != list(range(len(by_index))):
        raise VitkitError("config.json: id2label does not number the classes from 0 without gaps")
    return tuple(by_index[index] for index in range(len(by_index)))


def _pixels(written: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """preprocessor_config.json as fields of `Preprocess`.

    Raises:
        VitkitError: it asks for something that a `Preprocess` cannot do.
    """
    if written is None:
        return None
    if not written.get("do_rescale", True):
        raise VitkitError("preprocessor_config.json: do_rescale false is not supported: pixels are scaled to 0 ... 1")
    if abs(written.get("rescale_factor", 1 / 255) - 1 / 255) > 1e-9:
        raise VitkitError(f"preprocessor_config.json: rescale_factor {written['rescale_factor']} is not supported")
    pixels: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    if written.get("do_normalize", True):
        pixels = {"mean": tuple(written.get("image_mean", HALF)), "std": tuple(written.get("image_std", HALF))}
    resample = written.get("resample", 2)
    if resample not in _RESAMPLING:
        raise VitkitError(f"preprocessor_config.json: resample {resample!r} is not supported")
    return {**pixels, "interpolation": _RESAMPLING[resample], **_fit(written)}


def _fit(written: Mapping[str, Any]) -> dict[str, Any]:
    resized, is_short_side = _side(written.get("size", 224), "size")
    if not written.get("do_center_crop", False):
        return {"fit": "crop", "crop_pct": 1.0, "floor_crop": True} if is_short_side else {"fit": "squash"}
    cropped, _ = _side(written.get("crop_size", resized), "crop_size")
    if cropped > resized:
        raise VitkitError(f"preprocessor_config.json: a crop of {cropped} from {resized} pixels is not supported")
    fit = "crop" if is_short_side else "squash_crop"
    return {"fit": fit, "crop_pct": cropped / resized, "floor_crop": True}


def _cropped(written: Mapping[str, Any] | None) -> tuple[int, int] | None:
    """(height, width) of what the image processor gives, where it crops."""
    if written is None or not written.get("do_center_crop", False) or "crop_size" not in written:
        return None
    side, _ = _side(written["crop_size"], "crop_size")
    return side, side


def _side(size: Any, name: str) -> tuple[int, bool]:
    """The side of a square, and whether it is the picture's short side alone."""
    if isinstance(size, int):
        return size, False
    if isinstance(size, Mapping) and "shortest_edge" in size:
        return int(size["shortest_edge"]), True
    sides = {size[key] for key in ("height", "width") if key in size} if isinstance(size, Mapping) else set()
    if len(sides) != 1:
        raise VitkitError(f"preprocessor_config.json: {name} {size} is not supported; expected a square")
    return int(sides.pop()), False
