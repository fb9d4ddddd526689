"""The image encoders of Hugging Face's CLIP and SigLIP.

The papers are arXiv 2103.00020 (CLIP), 2303.15343 (SigLIP) and 2502.14786 (SigLIP 2, at a fixed size). The file of an
image encoder may also contain the text encoder, which `vitkit.language` reads. Image encoders of both kinds can be
written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.preprocess import CLIP_MEAN, CLIP_STD, HALF
from vitkit.errors import VitkitError
from vitkit.weights.checkpoint import Checkpoint
from vitkit.weights.formats import huggingface_described as json_files
from vitkit.weights.formats.export import check_expressible, model_of, one_or_pair, tensors_under
from vitkit.weights.layout import Layout, Piece, depth_of, joined_pair, pair, pooled_pieces, same, with_axes
from vitkit.weights.tensor_names import matches_of, shape_of

_BLOCK = re.compile(r"^(vision_model\.)?encoder\.layers\.(\d+)\.(?:self_attn\.(?:[qkv]|out)_proj|layer_norm[12])\.")
_TYPES = {  # by `model_type` of the whole model, and of the image encoder
    **dict.fromkeys(("clip", "clip_vision_model"), "clip"),
    **dict.fromkeys(("siglip", "siglip_vision_model"), "siglip"),
}
_USUAL_PREPROCESS: dict[str, dict[str, Any]] = {
    "clip": {"fit": "crop", "crop_pct": 1.0, "interpolation": "bicubic", "mean": CLIP_MEAN, "std": CLIP_STD},
    "siglip": {"fit": "squash", "interpolation": "bicubic", "mean": HALF, "std": HALF},
}
# transformers' defaults, which config.json may omit, and what is assumed without a config.json.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "clip": {"norm_eps": 1e-5, "gelu": "quick"},
    "siglip": {"norm_eps": 1e-6, "gelu": "tanh"},
}
_GELU_ASSUMED = {
    "clip": "quick, as in OpenAI's CLIP; LAION's have the same tensors and the exact GELU: for those, set gelu='erf'",
    "siglip": "tanh, as SigLIP's authors trained it; if wrong: gelu='erf'",
}
_FAMILY_NAMES = {"clip": "CLIP", "siglip": "SigLIP"}
_OTHER_PARTS = {  # what a file of the whole model contains in addition to the image encoder
    r"text_model\.|text_projection\.": "the text encoder",
    r"logit_(scale|bias)$": "the scale of the similarity of images and texts",
    r"visual_projection\.": "the projection to the embedding space that images and texts share",
    r"(vision_model\.)?embeddings\.position_ids$": "the numbers of the positions",
}


def recognise(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint if it is Hugging Face's CLIP or SigLIP; None for any other."""
    names = checkpoint.tensors
    matches = matches_of(_BLOCK, names)
    if not matches or any(".self_attn.qkv." in name for name in names):  # BLIP's
        return None
    prefix = matches[0][1] or ""
    family = _family(checkpoint, prefix)
    has_classifier = any(name.startswith("classifier.") for name in names)
    if family == "clip" and has_classifier:
        raise VitkitError(
            "weights.architecture-unsupported",
            f"{checkpoint.path}: this is CLIPForImageClassification, whose head reads tokens that are not normalised; "
            "it is not supported: use the CLIP model that it was made from",
        )
    pieces = _pieces(prefix, family, depth_of(match[2] for match in matches))
    dropped = {name: reason for name in names for kind, reason in _OTHER_PARTS.items() if re.match(kind, name)}
    if has_classifier:
        pooling = [name for name in names if name.startswith(f"{prefix}head.")]
        dropped |= dict.fromkeys(pooling, "the classifier reads the mean of the patches")
    config = None  # the part of config.json about the image encoder; None if there is no config.json
    if checkpoint.config is not None:
        config = checkpoint.config.get("vision_config", checkpoint.config)
        if config is not None and not isinstance(config, Mapping):
            raise VitkitError(
                "weights.description-invalid", f"config.json: vision_config must be an object, not {config!r:.80}"
            )
    if family == "clip":
        pool = "token"
    elif has_classifier:
        pool = "gap"
    elif config is not None:
        pool = "map" if config.get("vision_use_head", True) else "gap"  # a few SigLIP models pool by the mean
    else:
        pool = "map" if matches_of(r"(vision_model\.)?head\.(probe$|attention\.|layernorm\.|mlp\.)", names) else "gap"
    fields: dict[str, Any] = {
        **_DEFAULTS[family],
        "class_token": family == "clip",
        "embed_norm": family == "clip",
        "patch_bias": family == "siglip",
        "qkv_bias": True,
        "pool": pool,
        "position_resize": "huggingface",
        **({} if config is None else _fields_from_config(config)),
    }
    return Layout(
        **json_files.described_layout(checkpoint, family, _USUAL_PREPROCESS[family]),
        format=f"Hugging Face {_FAMILY_NAMES[family]}",
        pieces=pieces,
        fields=fields,
        assumed={} if config is not None else {"norm_eps": f"{fields['norm_eps']:g}", "gelu": _GELU_ASSUMED[family]},
        classes=json_files.labels(checkpoint.config or {}) if has_classifier else None,
        image_size=None if config is None else json_files.parse_size(json_files.or_default(config, "image_size", 224)),
        dropped=dropped,
    )


def _family(checkpoint: Checkpoint, prefix: str) -> str:
    kernel = shape_of(f"{prefix}embeddings.patch_embedding.weight", checkpoint.tensors)
    kind = (checkpoint.config or {}).get("model_type")
    is_naflex = len(kernel) == 2 if kind is None else kind in ("siglip2", "siglip2_vision_model")
    if is_naflex:
        raise VitkitError(
            "weights.architecture-unsupported",
            f"{checkpoint.path}: this is SigLIP 2 NaFlex, for images of any aspect; it is not supported yet",
        )
    if f"{prefix}embeddings.token_embedding.weight" in checkpoint.tensors:
        raise VitkitError(
            "weights.architecture-unsupported",
            f"{checkpoint.path}: this is a text encoder alone: use a checkpoint that contains the image encoder",
        )
    if kind is None:
        clip_names = (f"{prefix}pre_layrnorm.", f"{prefix}embeddings.class_embedding")
        return "clip" if any(name.startswith(clip_names) for name in checkpoint.tensors) else "siglip"
    if not isinstance(kind, str) or kind not in _TYPES:
        raise VitkitError(
            "weights.architecture-unsupported",
            f"config.json describes a model of type {kind!r}; known: {', '.join(_TYPES)}",
        )
    return _TYPES[kind]


def _fields_from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that config.json states, and transformers' default for `heads` if config.json omits it."""
    fields: dict[str, Any] = {"heads": json_files.or_default(config, "num_attention_heads", 12)}
    if "hidden_act" in config:
        fields |= json_files.activation(config["hidden_act"])
    for ours, theirs in (
        ("norm_eps", "layer_norm_eps"),
        ("layers", "num_hidden_layers"),
        ("patch_size", "patch_size"),
        ("in_channels", "num_channels"),
    ):
        if theirs in config:
            fields[ours] = config[theirs]
    return fields


def _pieces(prefix: str, family: str, depth: int) -> dict[str, Piece]:
    embeddings = f"{prefix}embeddings"
    pieces = {
        **pair("patch_embed.proj", f"{embeddings}.patch_embedding"),
        "pos_embed": with_axes(f"{embeddings}.position_embedding.weight", 1),
        **pair("norm", f"{prefix}post_layernorm"),
        **pair("head", "classifier"),
    }
    if family == "clip":
        pieces["cls_token"] = with_axes(f"{embeddings}.class_embedding", 2)
        pieces |= pair("norm_pre", f"{prefix}pre_layrnorm")  # spelled so in transformers
    else:  # attention pooling
        pool = f"{prefix}head"
        pieces |= {
            **pooled_pieces(f"{pool}.attention.in_proj_"),
            "attn_pool.latent": same(f"{pool}.probe"),
            **pair("attn_pool.proj", f"{pool}.attention.out_proj"),
            **pair("attn_pool.norm", f"{pool}.layernorm"),
            **pair("attn_pool.mlp.fc1", f"{pool}.mlp.fc1"),
            **pair("attn_pool.mlp.fc2", f"{pool}.mlp.fc2"),
        }
    for layer in range(depth):
        pieces |= block_pieces(f"blocks.{layer}", f"{prefix}encoder.layers.{layer}")
    return pieces


def block_pieces(ours: str, theirs: str) -> dict[str, Piece]:
    """Return the `Piece`s of one layer, whose names are the same in image and text encoders."""
    return {
        **pair(f"{ours}.norm1", f"{theirs}.layer_norm1"),
        **joined_pair(f"{ours}.attn.qkv", [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]),
        **pair(f"{ours}.attn.proj", f"{theirs}.self_attn.out_proj"),
        **pair(f"{ours}.norm2", f"{theirs}.layer_norm2"),
        **pair(f"{ours}.mlp.fc1", f"{theirs}.mlp.fc1"),
        **pair(f"{ours}.mlp.fc2", f"{theirs}.mlp.fc2"),
    }


def tower_tensors(classifier: Classifier) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of the image encoder, which has no head, and the content of config.json."""
    config = model_of(classifier).config
    is_clip = config.embed_norm
    family = "clip" if is_clip else "siglip"
    check_expressible(
        config,
        "Hugging Face",
        {
            "num_classes": (0,),
            "embed_norm": (is_clip,),
            "patch_bias": (not is_clip,),
            "class_token": (is_clip,),
            "pool": ("token",) if is_clip else ("map",),
            "mlp_kind": ("mlp",),
            "stem": (None,),
            "fc_norm": (False,),
            "layer_scale": (None,),
            "representation_size": (None,),
            "prefix_positions": (True,) if is_clip else (True, False),
            "distill_token": (False,),
            "registers": (0,),
            "qkv_bias": (True,),
            "gelu": ("erf", "tanh", "quick"),
            "activation": (config.activation,),
        },
    )
    layout = Layout(format=_FAMILY_NAMES[family], pieces=_pieces("", family, config.layers))
    tensors = tensors_under(classifier, layout)
    if not is_clip:  # a `Piece` converts a single tensor of vitkit, but SigLIP stores q and kv in one tensor
        ours = model_of(classifier).state_dict()
        for part in ("weight", "bias"):
            qkv = [ours[f"attn_pool.q.{part}"], ours[f"attn_pool.kv.{part}"]]
            tensors[f"head.attention.in_proj_{part}"] = torch.cat(qkv)
    described = {
        "architectures": ["CLIPVisionModel" if is_clip else "SiglipVisionModel"],
        "model_type": f"{family}_vision_model",
        "dtype": "float32",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.mlp_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_channels": config.in_channels,
        "hidden_act": json_files.hidden_act(config),
        "layer_norm_eps": config.norm_eps,
        "image_size": one_or_pair(config.image_size),
        "patch_size": one_or_pair(config.patch_size),
    }
    return tensors, described
