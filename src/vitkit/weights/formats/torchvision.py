"""The layout of torchvision's Vision Transformers, `vit_b_16` to `vit_h_14`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from vitkit.data.preprocess import IMAGENET_MEAN, IMAGENET_STD
from vitkit.weights.checkpoint import Checkpoint, StoredTensor
from vitkit.weights.layout import Layout, Piece, depth_of, pair, same

FIELDS: dict[str, Any] = {
    "gelu": "erf",
    "norm_eps": 1e-6,
    "position_resize": "torchvision",
    "qkv_bias": True,
    "class_token": True,
    "prefix_positions": True,
}
PIXELS = {
    "fit": "crop",
    "interpolation": "bilinear",
    "crop_pct": 224 / 256,
    "mean": IMAGENET_MEAN,
    "std": IMAGENET_STD,
}
_LAYER = "encoder.layers.encoder_layer_"


def recognise(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint if it is torchvision's; None for any other."""
    layers = [m[1] for name in checkpoint.tensors if (m := re.match(rf"{re.escape(_LAYER)}(\d+)\.", name))]
    if not layers:
        return None
    mlp = ("linear_1", "linear_2") if any(".mlp.linear_" in name for name in checkpoint.tensors) else ("0", "3")
    depth = depth_of(layers)
    return Layout(
        format="torchvision",
        pieces=_pieces(depth, mlp),
        fields=FIELDS,
        preprocess=_customary(checkpoint.tensors, depth - 1),
    )


def _pieces(depth: int, mlp: tuple[str, str]) -> dict[str, Piece]:
    pieces = {
        "cls_token": same("class_token"),
        "pos_embed": same("encoder.pos_embedding"),
        **pair("patch_embed.proj", "conv_proj"),
        **pair("norm", "encoder.ln"),
        **pair("pre_logits.fc", "heads.pre_logits"),
        **pair("head", "heads.head"),
    }
    for layer in range(depth):
        ours, theirs = f"blocks.{layer}", f"{_LAYER}{layer}"
        pieces |= {
            **pair(f"{ours}.norm1", f"{theirs}.ln_1"),
            f"{ours}.attn.qkv.weight": same(f"{theirs}.self_attention.in_proj_weight"),
            f"{ours}.attn.qkv.bias": same(f"{theirs}.self_attention.in_proj_bias"),
            **pair(f"{ours}.attn.proj", f"{theirs}.self_attention.out_proj"),
            **pair(f"{ours}.norm2", f"{theirs}.ln_2"),
            **pair(f"{ours}.mlp.fc1", f"{theirs}.mlp.{mlp[0]}"),
            **pair(f"{ours}.mlp.fc2", f"{theirs}.mlp.{mlp[1]}"),
        }
    return pieces


def _customary(tensors: Mapping[str, StoredTensor], last_layer: int) -> dict[str, Any]:
    """Return the preprocessing of torchvision's weights, which depends on the size of the model.

    Models above 224 pixels, or with patches of 14 pixels, are those of SWAG, which are evaluated without a crop.
    """
    positions, kernel = (
        tensors[n].shape if n in tensors else () for n in ("encoder.pos_embedding", "conv_proj.weight")
    )
    is_large = last_layer >= 23
    side = math.isqrt(max(positions[1] - 1, 0)) * kernel[-1] if len(positions) == 3 and len(kernel) == 4 else 224
    is_swag = side > 224 or (len(kernel) == 4 and kernel[-1] == 14)
    if is_swag:
        return {**PIXELS, "crop_pct": 1.0, "interpolation": "bicubic"}
    return {**PIXELS, "crop_pct": 224 / 242} if is_large and kernel[-1:] == (16,) else PIXELS
