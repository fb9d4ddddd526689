"""Hugging Face's BEiT, Data2VecVision and DINOv3.

BEiT (arXiv 2106.08254) and Data2VecVision (2202.03555) add a bias to the attention logits for each offset between two
patches. transformers 5 uses other names of BEiT's layers in memory than in files; both are read. DINOv3 (2508.10104)
has rotary positions, which have no tensors, and its keys have no bias.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from vitkit.data.preprocess import HALF, IMAGENET_MEAN, IMAGENET_STD
from vitkit.errors import VitkitError
from vitkit.weights.checkpoint import Checkpoint, StoredTensor
from vitkit.weights.formats.huggingface_described import activation, described_layout, labels, or_default, parse_size
from vitkit.weights.layout import Layout, Piece, depth_of, joined, joined_pair, pair, require, same, without_key_bias
from vitkit.weights.tensor_names import matches_of, most_common, reasons_of, shape_of

_BLOCK = re.compile(r"(?P<prefix>beit\.|data2vec_vision\.)?(?P<layers>encoder\.layer|layers)\.(?P<layer>\d+)\.")
_BEIT_ONLY = re.compile(
    r"(?:\w+\.)?(?:(?:encoder\.layer|layers)\.\d+\.(?:lambda_[12]$|.*relative_pos)|.*position_bias_table$)"
)
_PREPROCESS = {"fit": "squash", "interpolation": "bicubic", "mean": HALF, "std": HALF}
_TABLE = "relative_position_bias_table"
_TYPES = ("beit", "data2vec-vision")
_PARTS = {  # parts of a block: in files, and in memory
    "qkv": (("query", "key", "value"), ("q_proj", "k_proj", "v_proj")),
    "attention": ("attention.attention", "attention"),
    "attn.proj": ("attention.output.dense", "attention.o_proj"),
    "mlp.fc1": ("intermediate.dense", "mlp.fc1"),
    "mlp.fc2": ("output.dense", "mlp.fc2"),
    "table": (f"attention.attention.relative_position_bias.{_TABLE}", f"relative_position_bias.{_TABLE}"),
}


def recognise_beit(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint if it is BEiT's or Data2VecVision's; None for any other."""
    names, config = checkpoint.tensors, checkpoint.config or {}
    matches = matches_of(_BLOCK, names)
    if not matches:
        return None
    prefix = next((match["prefix"] for match in matches if match["prefix"]), "")
    is_beit = config.get("model_type", "beit") in _TYPES and matches_of(_BEIT_ONLY, names)
    if not prefix and not is_beit:
        return None
    family = config.get("model_type") or prefix.rstrip(".").replace("_", "-") or "beit"
    if any(name.startswith("decode_head.") for name in names):
        raise VitkitError(
            "weights.architecture-unsupported",
            f"{checkpoint.path}: this is {family} for segmentation, which is not supported: "
            "use a model for classification",
        )
    fields = _fields(names, prefix, config)
    dropped = {  # by the pattern of names
        rf"{re.escape(prefix)}embeddings\.mask_token$": "trained to predict masked patches",
        r"lm_head\.": "it predicts visual tokens of masked patches",
        r".*relative_position_index$": "it follows from the grid",
    }
    layers = prefix + matches[0]["layers"]
    described = described_layout(checkpoint, family, _PREPROCESS, resizes=True)
    pieces = _pieces(prefix, layers, depth_of(match["layer"] for match in matches), names, fields)
    classes = labels(config) if "classifier.weight" in names else None

    # The image size, which otherwise follows from the tables of biases, whose patch grid is square.
    size = parse_size(config.get("image_size"))
    kernel = shape_of(f"{prefix}embeddings.patch_embeddings.projection.weight", names)
    rows = most_common(tensor.shape[0] for name, tensor in names.items() if name.endswith(_TABLE) and tensor.shape)
    if size is None and rows and len(kernel) == 4:
        side = (math.isqrt(max(rows - 3, 0)) + 1) // 2  # (2 side - 1) ** 2 offsets, and 3 rows of the class token
        size = (side * kernel[-2], side * kernel[-1]) if side else None
    return Layout(
        **described,
        format=f"Hugging Face {family}",
        pieces=pieces,
        fields=fields,
        classes=classes,
        image_size=size,
        assumed={} if checkpoint.config is not None else {"norm_eps": "1e-12", "gelu": "erf"},
        dropped=reasons_of(dropped, names),
    )


def _shared_tables(prefix: str) -> tuple[str, str]:
    """Return the name of the shared table of biases in files, and its name in a model in memory."""
    return f"{prefix}encoder.relative_position_bias.{_TABLE}", f"{prefix}shared_position_bias.{_TABLE}"


def _fields(names: Mapping[str, StoredTensor], prefix: str, config: Mapping[str, Any]) -> dict[str, Any]:
    tables = [tensor.shape for name, tensor in names.items() if name.endswith(_TABLE) and len(tensor.shape) == 2]
    is_shared = any(name in names for name in _shared_tables(prefix)) or config.get("use_shared_relative_position_bias")
    is_relative = tables or is_shared or config.get("use_relative_position_bias")
    has_positions = f"{prefix}embeddings.position_embeddings" in names or config.get("use_absolute_position_embeddings")
    is_pooled = f"{prefix}pooler.layernorm.weight" in names or config.get("use_mean_pooling")
    if not is_relative and not has_positions and not config:
        raise VitkitError("weights.tensor-missing", f"{_TABLE} is missing: BEiT has one in every layer, or one for all")
    if is_relative and has_positions:
        raise VitkitError(
            "weights.description-unsupported",
            "use_absolute_position_embeddings with relative positions is not supported: vitkit supports one kind",
        )
    fields = {
        "position": "learned_1d" if has_positions else "none",
        "position_resize": "huggingface",
        "class_token": True,
        "pool": "gap" if is_pooled and "lm_head.weight" not in names else "token",
        "norm_eps": or_default(config, "layer_norm_eps", 1e-12),
        **activation(config.get("hidden_act", "gelu")),
        "heads": or_default(config, "num_attention_heads", tables[0][1] if tables else None),
    }
    if is_relative:
        fields |= {"position": "relative_bias", "position_at": "shared" if is_shared else "every_layer"}
    return fields


def _pieces(
    prefix: str, layers: str, depth: int, names: Mapping[str, StoredTensor], fields: Mapping[str, Any]
) -> dict[str, Piece]:
    embeddings = f"{prefix}embeddings"
    norm = f"{prefix}layernorm"
    if "lm_head.weight" in names and f"{norm}.weight" not in names:
        norm = "layernorm"  # in files for masked patches, the last norm may belong to the head
    pieces = {
        "cls_token": same(f"{embeddings}.cls_token"),
        "pos_embed": same(f"{embeddings}.position_embeddings"),
        **pair("patch_embed.proj", f"{embeddings}.patch_embeddings.projection"),
        **(pair("fc_norm", f"{prefix}pooler.layernorm") if fields["pool"] == "gap" else pair("norm", norm)),
        **pair("head", "classifier"),
    }
    index = int(any(".attention.q_proj." in name for name in names))  # 0: names in files, 1: names in memory
    if fields.get("position_at") == "shared":
        pieces["rel_pos.0.table"] = same(_shared_tables(prefix)[index])
    parts = {ours: theirs[index] for ours, theirs in _PARTS.items()}
    for layer in range(depth):
        ours, theirs = f"blocks.{layer}", f"{layers}.{layer}"
        q, k, v = (f"{theirs}.{parts['attention']}.{part}" for part in parts["qkv"])
        pieces |= {
            **pair(f"{ours}.norm1", f"{theirs}.layernorm_before"),
            f"{ours}.attn.qkv.weight": joined(f"{q}.weight", f"{k}.weight", f"{v}.weight"),
            f"{ours}.attn.qkv.bias": without_key_bias(f"{q}.bias", f"{v}.bias"),
            f"{ours}.ls1.gamma": same(f"{theirs}.lambda_1"),
            **pair(f"{ours}.norm2", f"{theirs}.layernorm_after"),
            f"{ours}.ls2.gamma": same(f"{theirs}.lambda_2"),
        }
        for part in ("attn.proj", "mlp.fc1", "mlp.fc2"):
            pieces |= pair(f"{ours}.{part}", f"{theirs}.{parts[part]}")
        if fields.get("position_at") == "every_layer":
            pieces[f"rel_pos.{layer}.table"] = same(f"{theirs}.{parts['table']}")
    return pieces


_DINOV3_BLOCK = re.compile(r"(?P<prefix>(?:model\.)?layer\.)(?P<layer>\d+)\.attention\.(?:[qkvo]_proj)\.")
PREPROCESS = {"fit": "squash", "interpolation": "bilinear", "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
_HEADS = {4096: 32, 1280: 20}  # by hidden size, if a head does not have 64 features
_REGISTERS = "embeddings.register_tokens"
BASE = 100.0
SIDE = 224  # of images, if nothing states it
SIZE_ASSUMED = f"{SIDE} pixels, as is usual; if wrong: image_size=..."


def recognise_dinov3(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint if it is DINOv3's; None for any other."""
    names, config = checkpoint.tensors, checkpoint.config or {}
    matches = matches_of(_DINOV3_BLOCK, names)
    if not matches:
        return None
    require(checkpoint, "Hugging Face dinov3_vit", _REGISTERS)  # models without registers have this tensor, too
    hidden_size = (*shape_of("embeddings.patch_embeddings.weight", names), 0)[0]
    is_gated = any(".mlp.gate_proj." in name for name in names)
    hidden_act = config.get("hidden_act", "silu" if is_gated else "gelu")
    if is_gated and hidden_act != "silu":
        raise VitkitError(
            "weights.description-unsupported",
            f"config.json: a gated MLP with hidden_act {hidden_act!r} is not supported; expected silu",
        )
    size = parse_size(config.get("image_size")) or (SIDE, SIDE)
    fields: dict[str, Any] = {
        "rotary": "dinov3",
        "rotary_base": or_default(config, "rope_theta", BASE),
        "position": "none",
        "class_token": True,
        "pool": "token",
        "norm_eps": or_default(config, "layer_norm_eps", 1e-5),
        **({"gelu": "erf"} if is_gated else activation(hidden_act)),
        "heads": or_default(config, "num_attention_heads", _HEADS.get(hidden_size)),
    }
    assumed = {
        "rotary": f"dinov3, of base {BASE:g}, as in DINOv3; if wrong: rotary_base=...",
        "image_size": SIZE_ASSUMED,
    }
    depth = depth_of(match["layer"] for match in matches)
    pieces = _dinov3_pieces(matches[0]["prefix"], depth, names, is_gated=is_gated)
    dropped = {"embeddings.mask_token": "trained to predict masked patches"}
    if 0 in names[_REGISTERS].shape:
        dropped[_REGISTERS] = "there are none"
    else:
        pieces["reg_token"] = same(_REGISTERS)
    return Layout(
        **described_layout(checkpoint, "dinov3_vit", PREPROCESS, resizes=True),
        format="Hugging Face dinov3_vit",
        pieces=pieces,
        fields=fields,
        image_size=size,
        assumed={} if checkpoint.config is not None else assumed,
        dropped={name: reason for name, reason in dropped.items() if name in names},
    )


def _dinov3_pieces(layers: str, depth: int, names: Mapping[str, StoredTensor], *, is_gated: bool) -> dict[str, Piece]:
    biases = "".join(part for part in "qkv" if any(name.endswith(f".attention.{part}_proj.bias") for name in names))
    if biases not in ("", "qv", "qkv"):
        listed = " and ".join(sorted(biases))
        raise VitkitError(
            "weights.architecture-unsupported",
            f"biases of {listed} alone are not supported; expected those of q and v, of all three, or none",
        )
    pieces = {
        "cls_token": same("embeddings.cls_token"),
        **pair("patch_embed.proj", "embeddings.patch_embeddings"),
        **pair("norm", "norm"),
    }
    fc1 = ("gate_proj", "up_proj") if is_gated else ("up_proj",)
    for layer in range(depth):
        ours, theirs = f"blocks.{layer}", f"{layers}{layer}"
        q, k, v = (f"{theirs}.attention.{part}_proj" for part in "qkv")
        pieces |= {
            **pair(f"{ours}.norm1", f"{theirs}.norm1"),
            f"{ours}.attn.qkv.weight": joined(f"{q}.weight", f"{k}.weight", f"{v}.weight"),
            **pair(f"{ours}.attn.proj", f"{theirs}.attention.o_proj"),
            f"{ours}.ls1.gamma": same(f"{theirs}.layer_scale1.lambda1"),
            **pair(f"{ours}.norm2", f"{theirs}.norm2"),
            **joined_pair(f"{ours}.mlp.fc1", [f"{theirs}.mlp.{name}" for name in fc1]),
            **pair(f"{ours}.mlp.fc2", f"{theirs}.mlp.down_proj"),
            f"{ours}.ls2.gamma": same(f"{theirs}.layer_scale2.lambda1"),
        }
        if "k" in biases:
            pieces[f"{ours}.attn.qkv.bias"] = joined(f"{q}.bias", f"{k}.bias", f"{v}.bias")
        elif biases:
            pieces[f"{ours}.attn.qkv.bias"] = without_key_bias(f"{q}.bias", f"{v}.bias")
    return pieces
