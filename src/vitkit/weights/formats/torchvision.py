"""The layout of torchvision's Vision Transformers, `vit_b_16` to `vit_h_14`."""

from __future__ import annotations

import math
import re
from typing import Any

from vitkit.data.preprocess import IMAGENET_MEAN, IMAGENET_STD
from vitkit.weights.checkpoint import Checkpoint
from vitkit.weights.layout import Layout, Piece, depth_of, pair, same
from vitkit.weights.tensor_names import matches_of, shape_of

FIELDS: dict[str, Any] = {
    "gelu": "erf",
    "norm_eps": 1e-6,
    "position_resize": "torchvision",
    "qkv_bias": True,
    "class_token": True,
    "prefix_positions": True,
}
PREPROCESS = {
    "fit": "crop",
    "interpolation": "bilinear",
    "crop_pct": 224 / 256,
    "mean": IMAGENET_MEAN,
    "std": IMAGENET_STD,
}
_LAYER = "encoder.layers.encoder_layer_"


def recognise(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint if it is torchvision's; None for any other."""
    matches = matches_of(rf"{re.escape(_LAYER)}(\d+)\.", checkpoint.tensors)
    if not matches:
        return None
    depth = depth_of(match[1] for match in matches)
    has_names = any(".mlp.linear_" in name for name in checkpoint.tensors)  # as in older files
    fc1, fc2 = ("linear_1", "linear_2") if has_names else ("0", "3")
    pieces: dict[str, Piece] = {
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
            **pair(f"{ours}.mlp.fc1", f"{theirs}.mlp.{fc1}"),
            **pair(f"{ours}.mlp.fc2", f"{theirs}.mlp.{fc2}"),
        }

    # The preprocessing of torchvision's published weights of this size.
    names = checkpoint.tensors
    positions, kernel = shape_of("encoder.pos_embedding", names), shape_of("conv_proj.weight", names)
    patch = kernel[-1] if len(kernel) == 4 else 0
    side = math.isqrt(max(positions[1] - 1, 0)) * patch if len(positions) == 3 else 0  # of the images, in pixels
    preprocess = PREPROCESS
    if side > 224 or patch == 14:  # SWAG's models, which are evaluated without a crop
        preprocess = {**PREPROCESS, "crop_pct": 1.0, "interpolation": "bicubic"}
    elif depth >= 24 and patch == 16:  # vit_l_16
        preprocess = {**PREPROCESS, "crop_pct": 224 / 242}
    return Layout(format="torchvision", pieces=pieces, fields=FIELDS, preprocess=preprocess)
