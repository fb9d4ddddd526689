"""Hugging Face's ViT, DeiT, Dinov2 and Dinov2WithRegisters, and the encoders of ViTMAE, ViTMSN and IJepa.

config.json and preprocessor_config.json are read as well. In published files, the query is named
`attention.attention.query`. In memory, transformers 5 names it `attention.q_proj`, so a state dict may have either
name. Models are written as a folder, as on the hub.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.preprocess import HALF, IMAGENET_MEAN, IMAGENET_STD
from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.weights.checkpoint import Checkpoint, StoredTensor
from vitkit.weights.formats import export
from vitkit.weights.formats import huggingface_described as json_files
from vitkit.weights.formats.huggingface_towers import tower_tensors
from vitkit.weights.layout import Layout, Piece, depth_of, folded_positions, joined_pair, pair, require, same
from vitkit.weights.tensor_names import matches_of, reasons_of, shape_of

_BLOCK = re.compile(
    r"(?P<layers>(?P<prefix>(?:vit|deit|dinov2|dinov2_with_registers|ijepa)\.)?(?:encoder\.layer|layers|encoder\.layers))"
    r"\.(?P<number>\d+)\."
    r"(?:attention\.(?:attention\.(?:query|key|value)|output\.dense|[qkvo]_proj)|layernorm_(?:before|after)|norm[12]\.|"
    r"intermediate\.dense|layer_scale[12]\.lambda1)"
)
_IMAGENET = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "interpolation": "bicubic"}
# What the image processor of each family does without a preprocessor_config.json.
_USUAL_PREPROCESS: dict[str, dict[str, Any]] = {
    "vit": {"fit": "squash", "interpolation": "bilinear", "mean": HALF, "std": HALF},
    "deit": {"fit": "squash_crop", "crop_pct": 224 / 256, **_IMAGENET},
    "dinov2": {"fit": "crop", "crop_pct": 224 / 256, **_IMAGENET},
    "dinov2_with_registers": {"fit": "crop", "crop_pct": 224 / 256, **_IMAGENET},
    **{name: {"fit": "crop", "crop_pct": 224 / 256, **_IMAGENET} for name in ("vit_mae", "vit_msn", "ijepa")},
}


def recognise(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint of one of these models; None for any other."""
    names = checkpoint.tensors
    matches = matches_of(_BLOCK, names)
    if not matches:
        return None
    config = checkpoint.config or {}
    # transformers saves ViTMSN's blocks without the prefix of its embeddings, so the embeddings are searched first.
    embeddings = (f"{family}.embeddings." for family in _USUAL_PREPROCESS)
    found = next((start for start in embeddings if any(name.startswith(start) for name in names)), None)
    prefix = (matches[0]["prefix"] or "") if found is None else found.removesuffix("embeddings.")
    family = _family(names, config, prefix)
    is_folded = family == "dinov2_with_registers"
    if is_folded:  # without a config.json, nothing else determines the number of registers
        require(checkpoint, f"Hugging Face {family}", f"{prefix}embeddings.register_tokens")
    assumed = {}
    if checkpoint.config is None:
        hint = "; ViTMSN has the same tensors and 1e-6: for that, set norm_eps=1e-6" if family == "vit" else ""
        assumed = {"norm_eps": f"{_eps(family):g}{hint}", "gelu": "erf"}
    start = re.escape(prefix)
    dropped = {rf"{start}embeddings\.mask_token$": "trained to predict masked patches"}  # reasons, by pattern of names
    if family == "vit_mae":
        dropped[r"decoder\."] = "MAE's decoder"
    if prefix and "classifier.weight" in names:
        dropped[rf"{start}pooler\."] = "the classifier does not read it"
    elif family == "deit":
        dropped[rf"{start}pooler\."] = "DeiT has no representation layer"
    layers, depth = matches[0]["layers"], depth_of(match["number"] for match in matches)
    resizes = family.startswith("dinov2")
    return Layout(
        **json_files.described_layout(checkpoint, family, _USUAL_PREPROCESS[family], resizes=resizes),
        format=f"Hugging Face {family}",
        pieces=_pieces(prefix, layers, depth, names, is_folded=is_folded),
        fields=_fields(family, config, names, is_described=checkpoint.config is not None),
        assumed=assumed,
        classes=json_files.labels(config),
        image_size=json_files.parse_size(config.get("image_size")),
        dropped=reasons_of(dropped, names),
    )


def family_of(config: ViTConfig) -> str:
    """Return the model type of transformers that can express this configuration."""
    if config.registers:
        return "dinov2_with_registers"
    if config.layer_scale is not None or config.mlp_kind == "swiglu" or config.pool == "token+gap":
        return "dinov2"
    if config.pool == "gap" and not config.class_token:
        return "ijepa"
    return "deit" if config.distill_token else "vit"


def _family(names: Mapping[str, StoredTensor], config: Mapping[str, Any], prefix: str) -> str:
    stated = config.get("model_type")
    if stated is not None:
        if not isinstance(stated, str) or stated not in _USUAL_PREPROCESS:
            raise VitkitError(
                "weights.architecture-unsupported",
                f"config.json describes a model of type {stated!r}; known: {', '.join(_USUAL_PREPROCESS)}",
            )
        return stated
    if prefix == "vit." and any(name.startswith("decoder.") for name in names):
        return "vit_mae"
    if prefix:
        return prefix.rstrip(".")
    has_scale = any(".layer_scale1." in name for name in names)
    if "embeddings.cls_token" not in names and not has_scale:
        shape = shape_of("embeddings.position_embeddings", names)
        if len(shape) == 3 and math.isqrt(shape[1]) ** 2 == shape[1]:  # a square grid: only patches have positions
            return "ijepa"
    if any(name.endswith("register_tokens") for name in names):
        return "dinov2_with_registers"
    if has_scale:
        return "dinov2"
    return "deit" if any(name.endswith("distillation_token") for name in names) else "vit"


def _pieces(prefix: str, layers: str, depth: int, names: Collection[str], *, is_folded: bool) -> dict[str, Piece]:
    is_dino = prefix.startswith("dinov2") or any(".layer_scale1." in name for name in names)
    has_two_heads = any(name.startswith("cls_classifier.") for name in names)
    embeddings = f"{prefix}embeddings"
    pieces = {
        "cls_token": same(f"{embeddings}.cls_token"),
        "dist_token": same(f"{embeddings}.distillation_token"),
        "reg_token": same(f"{embeddings}.register_tokens"),
        "pos_embed": same(f"{embeddings}.position_embeddings"),
        **pair("patch_embed.proj", f"{embeddings}.patch_embeddings.projection"),
        **pair("norm", f"{prefix}layernorm"),
        **pair("pre_logits.fc", f"{prefix}pooler.dense"),
        **pair("head", "cls_classifier" if has_two_heads else "classifier"),
        **pair("head_dist", "distillation_classifier"),
    }
    if is_folded:
        pieces |= folded_positions(f"{embeddings}.cls_token", f"{embeddings}.position_embeddings")
    is_in_memory = any(".attention.q_proj." in name for name in names)  # the names in memory, not those in files
    if is_in_memory:
        qkv, out = ("q_proj", "k_proj", "v_proj"), "o_proj"
    else:
        qkv, out = ("attention.query", "attention.key", "attention.value"), "output.dense"
    norm1, norm2 = ("norm1", "norm2") if is_dino else ("layernorm_before", "layernorm_after")
    # The names of the MLP's first layer, which a gated MLP may store as two layers, and of its second layer.
    fc1: tuple[str, ...]
    if any(".mlp.weights_in." in name for name in names):
        fc1, fc2 = ("mlp.weights_in",), "mlp.weights_out"
    elif any(".mlp.gate_proj." in name for name in names):
        fc1, fc2 = ("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj"
    elif is_dino or is_in_memory:
        fc1, fc2 = ("mlp.fc1",), "mlp.fc2"
    else:
        fc1, fc2 = ("intermediate.dense",), "output.dense"
    for layer in range(depth):
        ours, theirs = f"blocks.{layer}", f"{layers}.{layer}"
        pieces |= {
            **pair(f"{ours}.norm1", f"{theirs}.{norm1}"),
            **joined_pair(f"{ours}.attn.qkv", [f"{theirs}.attention.{name}" for name in qkv]),
            **pair(f"{ours}.attn.proj", f"{theirs}.attention.{out}"),
            f"{ours}.ls1.gamma": same(f"{theirs}.layer_scale1.lambda1"),
            **pair(f"{ours}.norm2", f"{theirs}.{norm2}"),
            **joined_pair(f"{ours}.mlp.fc1", [f"{theirs}.{name}" for name in fc1]),
            **pair(f"{ours}.mlp.fc2", f"{theirs}.{fc2}"),
            f"{ours}.ls2.gamma": same(f"{theirs}.layer_scale2.lambda1"),
        }
    return pieces


def _fields(family: str, config: Mapping[str, Any], names: Collection[str], *, is_described: bool) -> dict[str, Any]:
    has_head = any(name.startswith("classifier.") for name in names)
    # The classifiers of DINOv2 read the class token and the mean of the patches.
    token_pool = "token+gap" if family.startswith("dinov2") and has_head else "token"
    fields: dict[str, Any] = {
        "norm_eps": config.get("layer_norm_eps", _eps(family)),
        "class_token": family != "ijepa",
        "prefix_positions": family != "dinov2_with_registers",
        "pool": "gap" if family == "ijepa" else token_pool,
        **json_files.activation(config.get("hidden_act", "gelu")),
        "position_resize": "timm" if family == "dinov2_with_registers" else "huggingface",
    }
    if is_described:
        fields["heads"] = json_files.or_default(config, "num_attention_heads", 12)  # transformers' default
    for ours, theirs in _CONFIG_FIELDS.items():
        if theirs in config:
            fields[ours] = config[theirs]
    if config.get("pooler_act", "tanh") != "tanh" and any("pooler." in name for name in names):
        raise VitkitError(
            "weights.description-unsupported",
            f"config.json: pooler_act {config['pooler_act']!r} is not supported; expected tanh",
        )
    return fields


def _eps(family: str) -> float:
    return 1e-6 if family.startswith("dinov2") or family == "vit_msn" else 1e-12


# Fields of `ViTConfig`, and their names in config.json.
_CONFIG_FIELDS = {
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "patch_size": "patch_size",
    "in_channels": "num_channels",
    "qkv_bias": "qkv_bias",
    "registers": "num_register_tokens",
    "layer_scale": "layerscale_value",
}


def write(classifier: Classifier, destination: Path) -> None:
    """Write a folder with the tensors, config.json and preprocessor_config.json."""
    config = export.model_of(classifier).config
    if config.embed_norm or config.pool == "map":
        tensors, described = tower_tensors(classifier)
    else:
        tensors, described = _tensors(classifier, config)
    descriptions = {"config.json": described, "preprocessor_config.json": json_files.processor(classifier.preprocess)}
    export.write_folder(classifier, destination, tensors, descriptions)


def _tensors(classifier: Classifier, config: ViTConfig) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors, and the content of config.json."""
    family = family_of(config)
    is_dino = family.startswith("dinov2")
    has_head = config.num_classes > 0
    pools = ("token+gap",) if is_dino and has_head else ("token", "token+gap")
    may_represent = family == "vit" and not has_head
    export.check_expressible(
        config,
        "Hugging Face",
        {
            "mlp_kind": ("mlp", "swiglu") if is_dino else ("mlp",),
            "stem": (None,),
            "fc_norm": (False,),
            "layer_scale": (config.layer_scale,) if is_dino else (None,),
            "pool": ("gap",) if family == "ijepa" else pools,
            "representation_size": (None, config.hidden_size) if may_represent else (None,),
            "prefix_positions": (True, False) if family == "ijepa" else (family != "dinov2_with_registers",),
            "distill_token": (family == "deit",),
            "gelu": ("erf", "tanh", "quick"),
            "activation": (config.activation,),  # every activation is allowed
        },
    )
    if is_dino and config.layer_scale is None:
        raise export.inexpressible("Hugging Face", "layer_scale None with this head")
    names: list[str] = [f"{family}."]  # parts of tensor names, from which `_pieces` infers the variant
    if config.distill_head:
        names.append("cls_classifier.weight")
    if config.mlp_kind == "swiglu":
        names.append(".mlp.weights_in.")
    if is_dino:
        names.append(".layer_scale1.")
    prefix = f"{family}." if has_head else ""
    is_folded = family == "dinov2_with_registers"
    pieces = _pieces(prefix, f"{prefix}encoder.layer", config.layers, names, is_folded=is_folded)
    tensors = export.tensors_under(classifier, Layout(format=f"Hugging Face {family}", pieces=pieces))
    if is_dino:
        # transformers requires this tensor, but does not use it in predictions.
        tensors[f"{prefix}embeddings.mask_token"] = torch.zeros(1, config.hidden_size)
    return tensors, _config(classifier, family)


_CLASSES = {
    "vit": ("ViTModel", "ViTForImageClassification"),
    "deit": ("DeiTModel", "DeiTForImageClassification"),
    "ijepa": ("IJepaModel", "IJepaForImageClassification"),
    "dinov2": ("Dinov2Model", "Dinov2ForImageClassification"),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"),
}


def _config(classifier: Classifier, family: str) -> dict[str, Any]:
    config = export.model_of(classifier).config
    architecture = _CLASSES[family][config.num_classes > 0] + ("WithTeacher" if config.distill_head else "")
    described: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": family,
        "dtype": "float32",
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "hidden_act": json_files.hidden_act(config),
        "layer_norm_eps": config.norm_eps,
        "image_size": export.one_or_pair(config.image_size),
        "patch_size": export.one_or_pair(config.patch_size),
        "num_channels": config.in_channels,
        "qkv_bias": config.qkv_bias,
        "problem_type": None if classifier.thresholds is None else "multi_label_classification",
        "id2label": dict(enumerate(classifier.classes)),
        "label2id": {name: i for i, name in enumerate(classifier.classes)},
    }
    if family.startswith("dinov2"):
        # The whole `mlp_ratio` with which transformers' DINOv2 has MLPs of this size.
        for ratio in range(1, max(config.mlp_size // config.hidden_size, 16) + 1):
            size = config.hidden_size * ratio
            if config.mlp_kind == "swiglu":
                size = (int(size * 2 / 3) + 7) // 8 * 8  # transformers rounds 2/3 of it up to a multiple of eight
            if size == config.mlp_size:
                break
        else:
            raise export.inexpressible("Hugging Face", f"mlp_size {config.mlp_size}")
        described |= {
            "mlp_ratio": ratio,
            "use_swiglu_ffn": config.mlp_kind == "swiglu",
            "layerscale_value": config.layer_scale,
        }
    else:
        described["intermediate_size"] = config.mlp_size
    if family == "dinov2_with_registers":
        described["num_register_tokens"] = config.registers
    return described
