"""Writing the layout of Hugging Face's transformers: a folder as on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vitkit.classifier import Classifier
from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.weights.formats import huggingface
from vitkit.weights.formats.foreign import Files, one, ours_of, refuse, tensors_under, write_folder
from vitkit.weights.formats.huggingface_described import ACTIVATIONS, processor
from vitkit.weights.formats.huggingface_tower_files import tower_files


def write(classifier: Classifier, destination: Path) -> None:
    """A folder with the tensors, config.json and preprocessor_config.json."""
    write_folder(classifier, destination, _files)


def _files(classifier: Classifier) -> Files:
    config = ours_of(classifier).config
    if config.embed_norm or config.pool == "map":
        return tower_files(classifier)
    family = huggingface.family_of(config)
    is_dino = family.startswith("dinov2")
    has_head = config.num_classes > 0
    refuse(
        config,
        "Hugging Face",
        {
            "mlp_kind": ("mlp", "swiglu") if is_dino else ("mlp",),
            "stem": (None,),
            "fc_norm": (False,),
            "layer_scale": (config.layer_scale,) if is_dino and config.layer_scale is not None else (None,),
            "pool": _pools(family, has_head=has_head),
            "representation_size": (None,) if has_head or family != "vit" else (None, config.hidden_size),
            "prefix_positions": (True, False) if family == "ijepa" else (family != "dinov2_with_registers",),
            "distill_token": (family == "deit",),
        },
    )
    if is_dino and config.layer_scale is None:
        raise VitkitError(
            "the Hugging Face layout cannot express layer_scale None with this head: the model is not written"
        )
    tensors = tensors_under(classifier, huggingface.layout_for(config))
    if is_dino:
        prefix = f"{family}." if has_head else ""
        tensors[f"{prefix}embeddings.mask_token"] = torch.zeros(1, config.hidden_size)  # a part of the class, unread
    described = _config(classifier, family)
    return tensors, {"config.json": described, "preprocessor_config.json": processor(classifier.preprocess)}


def _pools(family: str, *, has_head: bool) -> tuple[str, ...]:
    if family == "ijepa":
        return ("gap",)
    return ("token+gap",) if family.startswith("dinov2") and has_head else ("token", "token+gap")


_CLASSES = {
    "vit": ("ViTModel", "ViTForImageClassification"),
    "deit": ("DeiTModel", "DeiTForImageClassification"),
    "ijepa": ("IJepaModel", "IJepaForImageClassification"),
    "dinov2": ("Dinov2Model", "Dinov2ForImageClassification"),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"),
}


def _config(classifier: Classifier, family: str) -> dict[str, Any]:
    config = ours_of(classifier).config
    architecture = _CLASSES[family][config.num_classes > 0] + ("WithTeacher" if config.distill_head else "")
    described: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": family,
        "dtype": "float32",
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "hidden_act": ACTIVATIONS[config.gelu],
        "layer_norm_eps": config.norm_eps,
        "image_size": one(config.image_size),
        "patch_size": one(config.patch_size),
        "num_channels": config.in_channels,
        "qkv_bias": config.qkv_bias,
        "id2label": dict(enumerate(classifier.classes)),
        "label2id": {name: i for i, name in enumerate(classifier.classes)},
    }
    if family.startswith("dinov2"):
        described |= {
            "mlp_ratio": _mlp_ratio(config),
            "use_swiglu_ffn": config.mlp_kind == "swiglu",
            "layerscale_value": config.layer_scale,
        }
    else:
        described["intermediate_size"] = config.mlp_size
    if family == "dinov2_with_registers":
        described["num_register_tokens"] = config.registers
    return described


def _mlp_ratio(config: ViTConfig) -> int:
    """The ratio from which transformers computes this MLP size; for gated MLPs it takes two thirds, in eights."""
    if config.mlp_kind == "mlp":
        if config.mlp_size % config.hidden_size == 0:
            return config.mlp_size // config.hidden_size
    else:
        for ratio in range(1, 17):
            if (int(int(config.hidden_size * ratio) * 2 / 3) + 7) // 8 * 8 == config.mlp_size:
                return ratio
    raise VitkitError(f"the Hugging Face layout cannot express mlp_size {config.mlp_size}: the model is not written")
