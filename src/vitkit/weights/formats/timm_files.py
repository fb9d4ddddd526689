"""Writing timm's layout: a folder as on the hub, or a state dictionary.

Of files, .safetensors alone has room for a note of what tensors cannot say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vitkit.classifier import Classifier
from vitkit.errors import VitkitError, first_line
from vitkit.model.config import ViTConfig
from vitkit.system.files import replacing, to_json
from vitkit.weights.formats import timm
from vitkit.weights.formats.foreign import (
    Files,
    metadata,
    one,
    ours_of,
    refuse,
    said,
    save,
    tensors_under,
    write_folder,
)
from vitkit.weights.formats.registry import CHECKPOINT_FORMATS
from vitkit.weights.tucked import tuck_in


def write(classifier: Classifier, destination: Path) -> None:
    """A folder, or a file by its ending."""
    if destination.suffix in CHECKPOINT_FORMATS["timm"].suffixes:
        _write_state(classifier, destination)
    else:
        write_folder(classifier, destination, _files)


def _write_state(classifier: Classifier, destination: Path) -> None:
    """timm's names in one file."""
    tensors, _ = _files(classifier)
    with replacing(destination) as temporary:
        if destination.suffix == ".safetensors":
            save(tensors, temporary, destination, {**metadata(classifier), "vitkit": to_json(said(classifier))})
        else:
            try:
                torch.save(tensors, temporary)
            except RuntimeError as error:  # how its writer reports a full disk
                raise OSError(f"cannot write {destination}: {first_line(error)}") from error
            tuck_in(temporary, classifier.pictures or b"")


_POOLS = {"token": "token", "gap": "avg", "map": "map"}
_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


def _files(classifier: Classifier) -> Files:
    config = ours_of(classifier).config
    refuse(
        config,
        "timm",
        {
            "mlp_kind": ("mlp", "swiglu"),
            "representation_size": (None,),
            "norm_eps": (timm.eps_of(config.embed_norm),),
            "embed_norm": (False,) if config.pool == "map" else (False, True),
            "patch_bias": (not config.embed_norm,),
            "gelu": ("erf", "tanh") if config.mlp_kind == "swiglu" else ("erf", "tanh", "quick"),
            "pool": ("token", "gap", "map"),
            "stem": (None, *_HYBRIDS),
            "stem_kind": ("timm",) if config.stem is not None else ("reference", "timm"),
            "distill_head": (config.distill_token and config.num_classes > 0,),
        },
    )
    described = {
        "architecture": _architecture(config),
        "num_classes": config.num_classes,
        "num_features": config.hidden_size,
        "global_pool": _POOLS[config.pool],
        "model_args": _arguments(config),
        "pretrained_cfg": _pretrained(classifier),
    }
    return tensors_under(classifier, timm.layout_for(config)), {"config.json": described}


def _architecture(config: ViTConfig) -> str:
    """A model that timm knows, of the right class; the arguments say the rest."""
    if config.stem is not None:
        return _HYBRIDS[config.stem]
    if config.distill_token:
        return "deit_base_distilled_patch16_224"
    if config.embed_norm:
        return "vit_base_patch16_clip_quickgelu_224" if config.gelu == "quick" else "vit_base_patch16_clip_224"
    return "vit_giant_patch14_dinov2" if config.mlp_kind == "swiglu" else "vit_base_patch16_224"


def _arguments(config: ViTConfig) -> dict[str, Any]:
    up = config.mlp_size * (2 if config.mlp_kind == "swiglu" else 1)
    arguments: dict[str, Any] = {
        "img_size": list(config.image_size),
        "patch_size": one(config.patch_size),
        "in_chans": config.in_channels,
        "embed_dim": config.hidden_size,
        "depth": config.layers,
        "num_heads": config.heads,
        "mlp_ratio": up / config.hidden_size,
        "qkv_bias": config.qkv_bias,
        "init_values": config.layer_scale,
        "class_token": bool(config.class_token),
        "global_pool": _POOLS[config.pool],
        "fc_norm": config.fc_norm,
        "reg_tokens": config.registers,
        "no_embed_class": not config.prefix_positions,
    }
    if config.gelu != "erf" and config.mlp_kind == "mlp":
        arguments["act_layer"] = {"tanh": "gelu_tanh", "quick": "quick_gelu"}[config.gelu]
    if int(config.hidden_size * arguments["mlp_ratio"]) != up:  # timm rounds down
        arguments["mlp_ratio"] = (up + 0.5) / config.hidden_size
    return arguments


def _pretrained(classifier: Classifier) -> dict[str, Any]:
    config, preprocess = ours_of(classifier).config, classifier.preprocess
    preprocess.check_known()
    if preprocess.fit == "pad" or preprocess.fit == "squash_crop":
        raise VitkitError(f"the timm layout cannot express preprocess.fit {preprocess.fit!r}: the model is not written")
    return {
        "input_size": [config.in_channels, *config.image_size],
        "num_classes": config.num_classes,
        "interpolation": preprocess.interpolation,
        "crop_pct": 1.0 if preprocess.fit == "squash" else preprocess.crop_pct,
        "crop_mode": "squash" if preprocess.fit == "squash" else "center",
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "first_conv": "patch_embed.backbone.stem.conv" if config.stem else "patch_embed.proj",
        "classifier": ["head", "head_dist"] if config.distill_head else "head",
        "label_names": list(classifier.classes),
    }
