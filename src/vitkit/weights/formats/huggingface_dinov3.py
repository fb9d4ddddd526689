"""Hugging Face's DINOv3 (arXiv 2508.10104): rotary positions, which have no tensors; keys without a bias."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vitkit.data.preprocess import IMAGENET_MEAN, IMAGENET_STD
from vitkit.errors import VitkitError
from vitkit.weights.checkpoint import Checkpoint, Stored
from vitkit.weights.formats.huggingface_described import activation, cropped, or_usual, pixels, sides
from vitkit.weights.layout import Layout, Piece, depth_of, joined, pair, same, without_keys

_BLOCK = re.compile(r"(?P<ahead>(?:model\.)?layer\.)(?P<layer>\d+)\.attention\.(?:[qkvo]_proj)\.")
PIXELS = {"fit": "squash", "interpolation": "bilinear", "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
_HEADS = {4096: 32, 1280: 20}  # by hidden size, where a head has not 64 features
_KERNEL = "embeddings.patch_embeddings.weight"
_REGISTERS = "embeddings.register_tokens"
BASE = 100.0
SIDE = 224  # of images, where nothing tells
SIZE_ASSUMED = f"{SIDE} pixels: no tensor tells; image_size=... does"


def recognise(checkpoint: Checkpoint) -> Layout | None:
    """The layout of this checkpoint, if it is one.

    Raises:
        VitkitError: it is, and is made otherwise than DINOv3's published models.
    """
    names, config = checkpoint.tensors, checkpoint.config or {}
    found = [match for name in names if (match := _BLOCK.match(name))]
    if not found:
        return None
    if _REGISTERS not in names:  # which are there where there are none, too
        raise VitkitError(f"{checkpoint.path} (Hugging Face dinov3_vit): {_REGISTERS} is missing")
    kernel = names[_KERNEL].shape if _KERNEL in names else ()
    heads = or_usual(config, "num_attention_heads", _HEADS.get(kernel[0] if kernel else 0))
    is_gated = any(".mlp.gate_proj." in name for name in names)
    if (written := config.get("hidden_act", "silu" if is_gated else "gelu")) != "silu" and is_gated:
        raise VitkitError(f"config.json: a gated MLP with hidden_act {written!r} is not supported; expected silu")
    size = sides(config.get("image_size")) or (SIDE, SIDE)
    fields: dict[str, Any] = {
        "rotary": "dinov3",
        "rotary_base": or_usual(config, "rope_theta", BASE),
        "position": "none",
        "class_token": True,
        "pool": "token",
        "norm_eps": or_usual(config, "layer_norm_eps", 1e-5),
        "gelu": "erf" if is_gated else activation(written),
        **({} if heads is None else {"heads": heads}),
    }
    assumed = {
        "rotary": f"dinov3, of base {BASE:g}, because that is DINOv3's: no tensor tells; if wrong: rotary_base=...",
        "image_size": SIZE_ASSUMED,
    }
    told = pixels(checkpoint.preprocessor)
    return Layout(
        format="Hugging Face dinov3_vit",
        pieces=_pieces(found[0]["ahead"], depth_of(match["layer"] for match in found), names, is_gated=is_gated),
        fields=fields,
        preprocess=told or PIXELS,
        is_preprocess_known=told is not None,
        image_size=size,
        pixel_size=cropped(checkpoint.preprocessor),
        assumed={} if checkpoint.config is not None else assumed,
        dropped=_dropped(names),
    )


def _dropped(names: Mapping[str, Stored]) -> dict[str, str]:
    reasons = {"embeddings.mask_token": "trained to predict masked patches"}
    if 0 in names[_REGISTERS].shape:
        reasons[_REGISTERS] = "there are none"
    return {name: reason for name, reason in reasons.items() if name in names}


def _pieces(layers: str, depth: int, names: Mapping[str, Stored], *, is_gated: bool) -> dict[str, Piece]:
    biases = {part for part in "qkv" if any(name.endswith(f".attention.{part}_proj.bias") for name in names)}
    if biases not in (set(), {*"qv"}, {*"qkv"}):
        told = " and ".join(sorted(biases))
        raise VitkitError(f"biases of {told} alone are not supported; expected those of q and v, of all three, or none")
    pieces = {
        "cls_token": same("embeddings.cls_token"),
        **pair("patch_embed.proj", "embeddings.patch_embeddings"),
        **pair("norm", "norm"),
    }
    if _REGISTERS not in _dropped(names):
        pieces["reg_token"] = same(_REGISTERS)
    for layer in range(depth):
        pieces |= _block(f"blocks.{layer}", f"{layers}{layer}", biases, is_gated=is_gated)
    return pieces


def _block(ours: str, theirs: str, biases: set[str], *, is_gated: bool) -> dict[str, Piece]:
    q, k, v = (f"{theirs}.attention.{part}_proj" for part in "qkv")
    into = ("gate_proj", "up_proj") if is_gated else ("up_proj",)
    block = {
        **pair(f"{ours}.norm1", f"{theirs}.norm1"),
        f"{ours}.attn.qkv.weight": joined(*(f"{part}.weight" for part in (q, k, v))),
        **pair(f"{ours}.attn.proj", f"{theirs}.attention.o_proj"),
        f"{ours}.ls1.gamma": same(f"{theirs}.layer_scale1.lambda1"),
        **pair(f"{ours}.norm2", f"{theirs}.norm2"),
        **{f"{ours}.mlp.fc1.{part}": joined(*(f"{theirs}.mlp.{own}.{part}" for own in into)) for part in _PARTS},
        **pair(f"{ours}.mlp.fc2", f"{theirs}.mlp.down_proj"),
        f"{ours}.ls2.gamma": same(f"{theirs}.layer_scale2.lambda1"),
    }
    if biases:
        of_all = joined(f"{q}.bias", f"{k}.bias", f"{v}.bias")
        block[f"{ours}.attn.qkv.bias"] = of_all if "k" in biases else without_keys(f"{q}.bias", f"{v}.bias")
    return block


_PARTS = ("weight", "bias")
