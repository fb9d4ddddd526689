"""timm's layout, with the same tensor names as vitkit. DeiT, DeiT III, MAE, DINO and files derived from them use it.

Models are written as a folder, as on the hub, or as a file with a state dict. Only .safetensors files can contain a
note about facts that the tensors do not determine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import torch

from vitkit.classifier import Classifier
from vitkit.data.preprocess import CLIP_MEAN, CLIP_STD, HALF, IMAGENET_MEAN, IMAGENET_STD, LEAST_CROP, Interpolation
from vitkit.errors import VitkitError, first_line
from vitkit.model.config import ViTConfig
from vitkit.system.files import to_json
from vitkit.text.arguments import is_number
from vitkit.weights.checkpoint import Checkpoint, embed_in_zip, stored_note
from vitkit.weights.formats import CHECKPOINT_FORMATS, export
from vitkit.weights.formats.export import Files
from vitkit.weights.formats.huggingface_described import channel_values, or_default, parse_size
from vitkit.weights.layout import Layout, require, same
from vitkit.weights.tensor_names import matches_of, reasons_of, shape_of

FIELDS: dict[str, Any] = {"gelu": "erf", "norm_eps": 1e-6, "position_resize": "timm", "stem_kind": "timm"}
_IMAGENET = {"fit": "crop", "interpolation": "bicubic", "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
DEIT = {**_IMAGENET, "crop_pct": 224 / 256}
CLIP = {"fit": "crop", "interpolation": "bicubic", "crop_pct": 1.0, "mean": CLIP_MEAN, "std": CLIP_STD}
AUGREG = {"fit": "crop", "interpolation": "bicubic", "crop_pct": 0.9, "mean": HALF, "std": HALF}
# The scripts that write class_indices.json use torchvision's Resize(256), CenterCrop(224) and Normalize(0.5, 0.5).
TUTORIALS = {"fit": "crop", "interpolation": "bilinear", "crop_pct": 224 / 256, "mean": HALF, "std": HALF}
_TRAINING_PARTS = {  # parts that only training needs, by the start of their names
    r"decoder_|mask_token$": "MAE's decoder",
    r"head\.(mlp|last_layer)\.": "DINO's projection head",
    r"(dino|ibot)_head\.": "DINOv2's projection head",
}
_ACTIVATIONS = {"gelu": "erf", "gelu_tanh": "tanh", "quick_gelu": "quick"}
_POOLS = {"avg": "gap", "token": "token", "map": "map"}
# SigLIP's and SigLIP 2's models were trained with GELU by tanh; timm uses it for only some of them.
_TANH_GELU = re.compile(r"vit_((base_patch32|giantopt_patch16|so400m_patch16)_siglip_|large_patch16_siglip_(gap_)?512)")
_HEADS = {"vit_base_patch16_gap_224": 16, "test_vit": 2, "test_vit2": 2, "test_vit3": 3}


def recognise(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint if it has timm's names; None for any other."""
    names = checkpoint.tensors
    if not matches_of(r"blocks\.\d+\.(attn|norm1|norm2|mlp)\.", names):
        return None
    if re.search(r"_reg\d+_", architecture_of(checkpoint)):
        require(checkpoint, "timm", "reg_token")
    is_clip = any(name.startswith("norm_pre.") for name in names)
    is_beit3 = bool(matches_of(r"blocks\.\d+\.(attn|mlp)\.norm\.", names))
    described = stored_description(checkpoint)
    fields = {**FIELDS, "norm_eps": 1e-5 if is_clip or is_beit3 else 1e-6}
    if "cls_token" in names and not matches_of(r"(norm|fc_norm)\.", names):
        # RADIO's and InternViT's encoders have no last norm.
        positions = shape_of("pos_embed", names)
        is_radio = len(positions) == 3 and math.isqrt(positions[1]) ** 2 == positions[1]  # only patches have positions
        if is_radio and "reg_token" not in names:
            raise VitkitError(
                "weights.tensor-missing",
                f"{checkpoint.path} (timm) has neither reg_token nor norm.weight and norm.bias: save the whole "
                "state_dict",
            )
        if is_radio or matches_of(r"blocks\.\d+\.ls1\.", names):
            fields["last_norm"] = False
    fields |= fields_from_config(checkpoint)
    # These arguments show that tensors are absent on purpose, and were not lost.
    arguments = arguments_of(checkpoint)
    if arguments.get("qkv_bias") is False:
        fields["qkv_bias"] = False
    if arguments.get("no_embed_class") is True:
        fields["prefix_positions"] = False
    root = _ROOT if any(name in names for name in _ROOT) else ()  # errors about missing ones then have timm's names
    return Layout(
        format="timm",
        pieces={_our_name(name): same(name) for name in (*names, *root)},
        fields={**fields, **described.get("fields", {})},
        preprocess=described.get("preprocess", CLIP if is_clip else _usual_preprocess(checkpoint, is_beit3=is_beit3)),
        is_preprocess_known="preprocess" in described,
        classes=described.get("classes"),
        image_size=described.get("image_size"),
        dropped=reasons_of(_TRAINING_PARTS, names),
    )


# A hybrid without ResNet stages consists of timm's stem, whose names lack one level.
_ROOT = tuple(f"patch_embed.backbone.{name}" for name in ("conv.weight", "norm.weight", "norm.bias"))


def _our_name(name: str) -> str:
    if name == "pos_embedding.pos_embedding":  # in the scripts of some tutorials
        return "pos_embed"
    return name.replace("patch_embed.backbone.", "patch_embed.backbone.stem.") if name in _ROOT else name


def architecture_of(checkpoint: Checkpoint) -> str:
    """Return the name of the model in timm's config.json; "" if none is stated."""
    return str((checkpoint.config or {}).get("architecture") or "")


def arguments_of(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the arguments of the model's class in timm's config.json that differ from those of its name."""
    arguments = (checkpoint.config or {}).get("model_args") or {}
    if not isinstance(arguments, Mapping):
        raise VitkitError(
            "weights.description-invalid", f"config.json: model_args must be an object, not {arguments!r:.40}"
        )
    return arguments


def stored_description(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the description stored with the tensors: timm's config.json, or the note of vitkit's export."""
    if note := stored_note(checkpoint):
        return note
    config = checkpoint.config or {}
    pretrained = config.get("pretrained_cfg")
    if not isinstance(pretrained, Mapping):
        return {}
    described: dict[str, Any] = {}
    stated = ("mean", "std", "interpolation", "crop_pct", "crop_mode")  # timm has a default for each of them
    if any(pretrained.get(name) is not None for name in stated):
        described["preprocess"] = preprocess_from_pretrained(pretrained)
    size = arguments_of(checkpoint).get("img_size")
    if size is None and "input_size" in pretrained:
        size = pretrained["input_size"][1:]  # after the channels
    if size is not None:
        described["image_size"] = parse_size(size)
    names = config.get("label_names") or pretrained.get("label_names")
    descriptions = config.get("label_descriptions") or pretrained.get("label_descriptions") or {}
    if names:
        described["classes"] = tuple(descriptions.get(name, name) for name in names)
    return described


def fields_from_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the fields that `model_args` and `architecture` in timm's config.json determine, but no tensor does."""
    arguments, architecture = arguments_of(checkpoint), architecture_of(checkpoint)
    activation = str(arguments.get("act_layer", "gelu"))
    fields: dict[str, Any] = {}
    if architecture in _HEADS:
        fields["heads"] = _HEADS[architecture]
    if "_rpn_" in f"{architecture}_":
        fields["norm"] = "res-post"
    if _TANH_GELU.match(architecture):
        fields["gelu"] = "tanh"
    elif "_quickgelu_" in architecture:
        fields["gelu"] = "quick"
    elif activation in _ACTIVATIONS:
        fields["gelu"] = _ACTIVATIONS[activation]
    for ours, theirs in (
        ("heads", "num_heads"),
        ("layer_scale", "init_values"),
        ("in_channels", "in_chans"),
        ("patch_size", "patch_size"),
    ):
        if theirs in arguments:
            fields[ours] = arguments[theirs]
    pool = str(arguments.get("global_pool", (checkpoint.config or {}).get("global_pool")))
    if pool in _POOLS:
        fields["pool"] = _POOLS[pool]
    return fields


def preprocess_from_pretrained(pretrained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the transform that timm creates from a `pretrained_cfg` as fields of `Preprocess`.

    Missing values are the defaults of timm's `resolve_data_config`.
    """
    crop_pct = pretrained.get("crop_pct") or 0.875
    mode = str(pretrained.get("crop_mode") or "center")
    interpolation = pretrained.get("interpolation") or "bicubic"
    fits = {"center": "crop", "border": "pad", "squash": "squash" if crop_pct == 1 else "squash_crop"}
    fit = fits.get(mode)

    unsupported = ""  # a value that `Preprocess` does not accept; it is replaced by one that it accepts
    if not is_number(crop_pct) or not LEAST_CROP <= crop_pct <= 1:
        unsupported = f"crop_pct {crop_pct!r:.60}"
        crop_pct = 1.0
    elif fit is None or (fit == "pad" and crop_pct != 1):
        unsupported = f"crop_mode {mode!r:.60} with crop_pct {crop_pct}"
    if interpolation == "random":  # timm draws it in training
        interpolation = "bicubic"
    elif interpolation not in get_args(Interpolation):
        unsupported = f"interpolation {interpolation!r:.60}"
        interpolation = "bicubic"

    fields = {
        "fit": fit or "crop",
        "interpolation": interpolation,
        "crop_pct": crop_pct,
        "mean": channel_values(or_default(pretrained, "mean", IMAGENET_MEAN), "mean", "config.json"),
        "std": channel_values(or_default(pretrained, "std", IMAGENET_STD), "std", "config.json"),
    }
    if unsupported:
        fields["unknown"] = f"timm's {unsupported} is not supported"
    return fields


def _usual_preprocess(checkpoint: Checkpoint, *, is_beit3: bool) -> dict[str, Any]:
    """Return the usual preprocessing of models in this layout, for a checkpoint without a configuration."""
    has_layer_scale = any(name.endswith("ls1.gamma") for name in checkpoint.tensors)
    if has_layer_scale or is_beit3:  # DeiT III, DINOv2
        return {**_IMAGENET, "crop_pct": 1.0}
    if checkpoint.wrappers:  # the authors of DeiT, MAE and DINO store the weights under a key such as `model`
        return DEIT
    positions, kernel = (shape_of(name, checkpoint.tensors) for name in ("pos_embed", "patch_embed.proj.weight"))
    if len(positions) != 3 or len(kernel) != 4:
        return AUGREG
    side = math.isqrt(positions[1]) * kernel[-1]  # of the images, in pixels
    return {**AUGREG, "crop_pct": 1.0} if side >= 384 else AUGREG


def write(classifier: Classifier, destination: Path) -> None:
    """Write a folder, or a single file if the destination has the suffix of a file, such as .safetensors."""
    tensors, descriptions = _files(classifier)
    if destination.suffix not in CHECKPOINT_FORMATS["timm"].suffixes:
        export.write_folder(classifier, destination, tensors, descriptions)
        return
    if destination.suffix == ".safetensors":
        note = {"vitkit": to_json(export.export_note(classifier))}
        export.save(tensors, destination, {**export.metadata(classifier), **note})
        return
    try:
        torch.save(tensors, destination)
    except RuntimeError as error:  # raised by PyTorch if the disk is full
        raise OSError(f"cannot write {destination}: {first_line(error)}") from error
    embed_in_zip(destination, classifier.pictures or b"")


_TIMM_POOLS = {"token": "token", "gap": "avg", "map": "map"}
_HYBRIDS = {  # a model of timm with each stem
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


def _files(classifier: Classifier) -> Files:
    config = export.model_of(classifier).config
    export.check_expressible(
        config,
        "timm",
        {
            "mlp_kind": ("mlp", "swiglu"),
            "representation_size": (None,),
            "norm_eps": (1e-5 if config.embed_norm else 1e-6,),
            "embed_norm": (False,) if config.pool == "map" else (False, True),
            "patch_bias": (not config.embed_norm,),
            "gelu": ("erf", "tanh") if config.mlp_kind == "swiglu" else ("erf", "tanh", "quick"),
            "pool": ("token", "gap", "map"),
            "stem": (None, *_HYBRIDS),
            "stem_kind": ("timm",) if config.stem is not None else ("reference", "timm"),
            "distill_head": (config.distill_token and config.num_classes > 0,),
        },
    )
    preprocess = classifier.preprocess
    preprocess.check_known()
    # A timm model of the same class, from which `_arguments` states the differences.
    if config.stem is not None:
        architecture = _HYBRIDS[config.stem]
    elif config.distill_token:
        architecture = "deit_base_distilled_patch16_224"
    elif config.embed_norm:
        is_quick = config.gelu == "quick"
        architecture = "vit_base_patch16_clip_quickgelu_224" if is_quick else "vit_base_patch16_clip_224"
    else:
        architecture = "vit_giant_patch14_dinov2" if config.mlp_kind == "swiglu" else "vit_base_patch16_224"
    described = {
        "architecture": architecture,
        "num_classes": config.num_classes,
        "num_features": config.hidden_size,
        "global_pool": _TIMM_POOLS[config.pool],
        "model_args": _arguments(config),
        "pretrained_cfg": {
            "input_size": [config.in_channels, *config.image_size],
            "num_classes": config.num_classes,
            "interpolation": preprocess.interpolation,
            "crop_pct": preprocess.crop_pct if preprocess.fit.endswith("crop") else 1.0,
            "crop_mode": {"crop": "center", "pad": "border"}.get(preprocess.fit, "squash"),
            "mean": list(preprocess.mean),
            "std": list(preprocess.std),
            "first_conv": "patch_embed.backbone.stem.conv" if config.stem else "patch_embed.proj",
            "classifier": ["head", "head_dist"] if config.distill_head else "head",
            "label_names": list(classifier.classes),
        },
    }
    root = {} if config.stem != () else {_our_name(name): same(name) for name in _ROOT}
    tensors = export.tensors_under(classifier, Layout(format="timm", pieces=root))
    return tensors, {"config.json": described}


def _arguments(config: ViTConfig) -> dict[str, Any]:
    fc1_size = config.mlp_size * (2 if config.mlp_kind == "swiglu" else 1)
    arguments: dict[str, Any] = {
        "img_size": list(config.image_size),
        "patch_size": export.one_or_pair(config.patch_size),
        "in_chans": config.in_channels,
        "embed_dim": config.hidden_size,
        "depth": config.layers,
        "num_heads": config.heads,
        "mlp_ratio": fc1_size / config.hidden_size,
        "qkv_bias": config.qkv_bias,
        "init_values": config.layer_scale,
        "class_token": bool(config.class_token),
        "global_pool": _TIMM_POOLS[config.pool],
        "fc_norm": config.fc_norm,
        "reg_tokens": config.registers,
        "no_embed_class": not config.prefix_positions,
    }
    if config.gelu != "erf" and config.mlp_kind == "mlp":
        arguments["act_layer"] = {"tanh": "gelu_tanh", "quick": "quick_gelu"}[config.gelu]
    if int(config.hidden_size * arguments["mlp_ratio"]) != fc1_size:  # timm rounds down
        arguments["mlp_ratio"] = (fc1_size + 0.5) / config.hidden_size
    return arguments
