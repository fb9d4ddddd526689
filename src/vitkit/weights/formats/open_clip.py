"""OpenCLIP's files: an image encoder `visual.*`, and a text encoder that `vitkit.language` reads.

The image encoder is either OpenAI's ViT (arXiv 2103.00020), with the names of OpenAI's code and files, or a model of
timm under the name `visual.trunk`. The file open_clip_config.json next to the weights is read.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from vitkit.data.preprocess import CLIP_MEAN, CLIP_STD, HALF
from vitkit.errors import VitkitError
from vitkit.weights.checkpoint import Checkpoint
from vitkit.weights.formats import timm
from vitkit.weights.formats.huggingface_described import channel_values, or_default, parse_size
from vitkit.weights.layout import Layout, Piece, depth_of, pair, same, with_axes
from vitkit.weights.tensor_names import matches_of

_BLOCK = re.compile(r"visual\.transformer\.resblocks\.(\d+)\.(?:ln_[12]|attn|mlp)\.")
_TRUNK = "visual.trunk."
_OTHER_PARTS = {
    r"(text\.|transformer\.|token_embedding\.|ln_final\.|text_projection(\.|$)|positional_embedding$)": "text encoder",
    r"(attn_mask|input_resolution|context_length|vocab_size)$": "a constant of the text encoder, or of the pixels",
    r"logit_(scale|bias)$": "the scale of the similarity of images and texts",
    r"visual\.(proj$|head\.proj\.)": "the projection to the embedding space that images and texts share",
}
_SIGLIP = {"fit": "squash", "interpolation": "bicubic", "mean": HALF, "std": HALF}
_FILE = "open_clip_config.json"


def recognise(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint if it is OpenCLIP's; None for any other."""
    names = checkpoint.tensors
    if not any(name.startswith("visual.") for name in names):
        return None
    config = checkpoint.config or {}
    model: Mapping[str, Any] | None = config.get("model_cfg")
    vision: Mapping[str, Any] = or_default(model or {}, "vision_cfg", {})
    preprocess = _preprocess(config)
    shared: dict[str, Any] = {
        "format": "OpenCLIP",
        "is_preprocess_known": preprocess is not None,
        "image_size": parse_size(vision.get("image_size"), _FILE),
    }
    others = {name: reason for name in names for start, reason in _OTHER_PARTS.items() if re.match(start, name)}
    if any(name.startswith(_TRUNK) for name in names):
        return _timm_layout(checkpoint, str(vision.get("timm_model_name") or ""), preprocess, others, shared)
    matches = matches_of(_BLOCK, names)
    if not matches:
        return None
    pieces = {
        "cls_token": with_axes("visual.class_embedding", 2),
        "pos_embed": with_axes("visual.positional_embedding", 1),
        **pair("patch_embed.proj", "visual.conv1"),
        **pair("norm_pre", "visual.ln_pre"),
        **pair("norm", "visual.ln_post"),
    }
    for layer in range(depth_of(match[1] for match in matches)):
        pieces |= block_pieces(f"blocks.{layer}", f"visual.transformer.resblocks.{layer}")
    gelu = (
        "erf, as LAION trained its CLIP models; OpenAI's own, DFN's and MetaCLIP's have the same tensors and "
        "x sigmoid(1.702 x): for those, set gelu='quick'"
    )
    fields: dict[str, Any] = {
        "class_token": True,
        "embed_norm": True,
        "patch_bias": False,
        "pool": "token",
        "qkv_bias": True,
        "norm_eps": 1e-5,
        "position_resize": "timm",
    }
    if model is not None:  # open_clip_config.json, with OpenCLIP's defaults for missing fields
        unsupported = "attentional_pool no_ln_pre timm_model_name global_average_pool block_type act_kwargs"
        for name in unsupported.split():
            if vision.get(name):
                message = f"{_FILE}: {name} {vision[name]!r} is not supported"
                raise VitkitError("weights.description-unsupported", message)
        heads = or_default(vision, "width", 768) // or_default(vision, "head_width", 64)
        fields |= {"gelu": "quick" if model.get("quick_gelu") else "erf", "heads": heads}
    return Layout(
        **shared,
        pieces=pieces,
        fields=fields,
        assumed={} if model else {"gelu": gelu},
        preprocess=preprocess or timm.CLIP,
        dropped=others,
    )


def _timm_layout(
    checkpoint: Checkpoint,
    architecture: str,
    preprocess: Mapping[str, Any] | None,
    others: dict[str, str],
    shared: Mapping[str, Any],
) -> Layout | None:
    """Return the layout of an image encoder of timm, whose tensor names have the prefix `visual.trunk.`."""
    in_trunk = [name for name in checkpoint.tensors if name.startswith(_TRUNK)]
    tensors = {name.removeprefix(_TRUNK): checkpoint.tensors[name] for name in in_trunk}
    config = {"architecture": architecture} if architecture else None
    layout = timm.recognise(dataclasses.replace(checkpoint, tensors=tensors, config=config, wrappers=()))
    if layout is None:
        return None
    pieces = {ours: piece.renamed(lambda name: _TRUNK + name) for ours, piece in layout.pieces.items()}
    gelu = "erf; some of SigLIP's encoders have the same tensors and GELU with tanh: for those, set gelu='tanh'"
    return dataclasses.replace(
        layout,
        **shared,
        pieces=pieces,
        preprocess=preprocess or (_SIGLIP if "_siglip_" in architecture else layout.preprocess),
        assumed={} if architecture else {"gelu": gelu},
        dropped={f"{_TRUNK}{name}": reason for name, reason in layout.dropped.items()} | others,
    )


def _preprocess(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Convert `preprocess_cfg` to fields of `Preprocess`, with OpenCLIP's defaults; return None if there is none."""
    described = config.get("preprocess_cfg")
    if not isinstance(described, Mapping):
        return None
    fits = {"shortest": "crop", "squash": "squash", "longest": "pad"}
    mode = or_default(described, "resize_mode", "shortest")
    if not isinstance(mode, str) or mode not in fits:
        raise VitkitError(
            "weights.description-unsupported",
            f"{_FILE}: resize_mode {mode!r} is not supported; expected one of {list(fits)}",
        )
    return {
        "fit": fits[mode],
        "crop_pct": 1.0,
        "interpolation": or_default(described, "interpolation", "bicubic"),
        "mean": channel_values(or_default(described, "mean", CLIP_MEAN), "mean", _FILE),
        "std": channel_values(or_default(described, "std", CLIP_STD), "std", _FILE),
    }


def block_pieces(ours: str, theirs: str) -> dict[str, Piece]:
    """Return the `Piece`s of one layer, whose names are the same in image and text encoders."""
    return {
        **pair(f"{ours}.norm1", f"{theirs}.ln_1"),
        **{f"{ours}.attn.qkv.{part}": same(f"{theirs}.attn.in_proj_{part}") for part in ("weight", "bias")},
        **pair(f"{ours}.attn.proj", f"{theirs}.attn.out_proj"),
        f"{ours}.ls1.gamma": same(f"{theirs}.ls_1.gamma"),
        **pair(f"{ours}.norm2", f"{theirs}.ln_2"),
        **pair(f"{ours}.mlp.fc1", f"{theirs}.mlp.c_fc"),
        **pair(f"{ours}.mlp.fc2", f"{theirs}.mlp.c_proj"),
        f"{ours}.ls2.gamma": same(f"{theirs}.ls_2.gamma"),
    }
