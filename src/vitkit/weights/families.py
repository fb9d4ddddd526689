"""Which published family a checkpoint that cannot be loaded is of: told by names that no other family has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from vitkit.weights.checkpoint import Checkpoint


class Family(NamedTuple):
    """A family by the names of its tensors.

    Attributes:
        name: of the family, and what it has that vitkit's model has not.
        has: patterns that each match the beginning of some tensor's name.
        lacks: patterns that match none.
    """

    name: str
    has: tuple[str, ...]
    lacks: tuple[str, ...] = ()


NAFLEX = "SigLIP 2 NaFlex, for images of any aspect"
_BLOCK = r"blocks\.(?:\d+\.)?\d+\."
# In this order: the first whose names are all there.
_FAMILIES = (
    # Text beside the images
    Family("CLIP with a ResNet", (r"visual\.layer1\.",)),
    Family("CoCa", (r"visual\.attn_pool\.", r"text_decoder\.")),
    Family("CLIP's image encoder by OpenCLIP without its prefix", (r"transformer\.resblocks\.", r"ln_pre\.")),
    Family("BLIP's vision encoder", (r"(vision_model\.)?encoder\.layers\.\d+\.self_attn\.qkv", r".*class_embedding$")),
    # One stack of layers on patches
    Family("SAM's image encoder, with windows and decomposed positions", (_BLOCK + r"attn\.rel_pos_h$", r"neck\.")),
    Family("SAM, with windows and decomposed positions", (r"(vision|image)_encoder\..*\.rel_pos_h$",)),
    Family(
        "Sapiens, with rotary positions and RMS norms",
        (_BLOCK + r"attn\.q_norm\.",),
        (_BLOCK + r"(norm1\.bias|attn\.qkv\.weight)$",),
    ),
    Family("a ViT that normalises queries and keys", (_BLOCK + r"attn\.q_norm\.",)),
    Family("a ViT whose attention is a difference of two", (_BLOCK + r"(attn\.)?lambda_q1$",)),
    Family("a ViT whose attention and MLP run side by side", (_BLOCK + r"in_proj\.",)),
    Family("a ViT whose attention and MLP run side by side", (_BLOCK + r"attns\.0\.",)),
    Family("MobileCLIP's hybrid, with a stem of convolutions", (r"patch_embed\.backbone\.0\.conv\.",)),
    Family("ViTamin, a hybrid", (r"patch_embed\.backbone\.stem\.conv1\.", _BLOCK)),
    Family("YOLOS, a detector", (r".*detection_tokens$",)),
    Family("DPT, a model of depth", (r"neck\.", r".*encoder\.layer\.\d+\.attention")),
    # Stages
    Family("CaiT, with layers for the class token alone", (r"blocks_token_only\.",)),
    Family("XCiT, whose attention is between channels", (r"cls_attn_blocks\.",)),
    Family("Swin V2, with shifted windows", (r"(\w+\.)?(encoder\.)?layers\.\d+\.blocks\.\d+\..*logit_scale$",)),
    Family("Swin, with shifted windows", (r"(\w+\.)?(encoder\.)?layers\.\d+\.blocks\.\d+\..*relative_position_bias",)),
    Family("MViT, with pooled attention", (r"(stages\.\d+\.)?blocks\.\d+\.attn\.pool_[qkv]\.",)),
    Family("DaViT, with attention between channels", (r"stages\.\d+\.blocks\.\d+\.\d+\.cpe1\.",)),
    Family("EfficientFormer", (r"stages\.\d+\.blocks\.\d+\.token_mixer\.attention_biases$",)),
    Family("LeViT", (r"stages\.\d+\.blocks\.\d+\.attn\.attention_biases$", r"stem\.conv1\.linear")),
    Family("LeViT", (r"levit\.",)),
    Family("Hiera", (r"(hiera\.|blocks\.\d+\.attn\.qkv.*)", r"(hiera|pos_embed_window)")),
    Family("FastViT", (r"stages\.\d+\.blocks\.\d+\.token_mixer\.",)),
    Family("EdgeNeXt", (r"stages\.\d+\.blocks\.\d+\.xca\.",)),
    Family("ConvNeXt V2", (r".*\.grn\.",)),
    Family("ConvNeXt", (r"stages\.\d+\.blocks\.\d+\.conv_dw\.", r"stages\.\d+\.blocks\.\d+\.mlp\.fc1")),
    Family("ConvNeXt", (r"(\w+\.)?encoder\.stages\.\d+\.layers\.\d+\.dwconv\.",)),
    Family("ConvNeXt, of DINOv3", (r"(model\.)?stages\.\d+\.layers\.\d+\.depthwise_conv\.",)),
    Family("ConvNeXt, torchvision's", (r"features\.\d+\.\d+\.layer_scale$",)),
    Family("CvT", (r".*convolution_projection_query",)),
    Family("PVT", (r".*\.(sr|sequence_reduction)\.(weight|bias)$",)),
    Family("VOLO", (r"post_network\.",)),
    Family("CrossViT", (r"blocks\.\d+\.fusion\.",)),
    Family("CoaT", (r"serial_blocks\d\.",)),
    Family("PiT", (r"transformers\.\d+\.blocks\.",)),
    Family("TNT", (r"pixel_embed\.",)),
    Family("MLP-Mixer", (r"blocks\.\d+\.mlp_tokens\.",)),
    Family("MobileViT", (r".*\.transformer\.(layer\.)?\d+\.",)),
    Family("EfficientNet or MobileNet, a CNN", (r"conv_stem\.",)),
    Family("ResNet, a CNN", (r"layer1\.0\.conv1\.", r"(fc|layer4)\.")),
    Family("ResNet, a CNN", (r"resnet\.embedder\.",)),
    Family("RegNet, a CNN", (r"s1\.b1\.conv1\.",)),
)
# `model_type` in config.json, where its own spelling is not what people say.
_TYPES = {
    "dinov3_convnext": "ConvNeXt, of DINOv3",
    "siglip2": NAFLEX,
    "siglip2_vision_model": NAFLEX,
    "swin": "Swin, with shifted windows",
    "swinv2": "Swin V2, with shifted windows",
    "convnext": "ConvNeXt",
    "convnextv2": "ConvNeXt V2",
    "resnet": "ResNet, a CNN",
    "levit": "LeViT",
    "cvt": "CvT",
    "pvt": "PVT",
    "sam": "SAM",
    "sam2": "SAM 2",
    "hiera": "Hiera",
    "yolos": "YOLOS, a detector",
    "dpt": "DPT, a model of depth",
}


def family_of(checkpoint: Checkpoint) -> str | None:
    """The family that a checkpoint is of, and what sets it apart; None where its names do not tell."""
    written = _written(checkpoint.config or {})
    if written is not None:
        return written
    names = list(checkpoint.tensors)
    for family in _FAMILIES:
        if all(_any(pattern, names) for pattern in family.has) and not any(_any(p, names) for p in family.lacks):
            return family.name
    return None


def _any(pattern: str, names: list[str]) -> bool:
    matches = re.compile(pattern).match
    return any(matches(name) for name in names)


def _written(config: Mapping[str, Any]) -> str | None:
    kind = config.get("model_type")
    return _TYPES.get(kind) if isinstance(kind, str) else None
