"""Writing a classifier in the layouts of others, so that they load what was trained here.

What a layout cannot say is refused by name, never left out: a model that others would compute differently is not the
same model.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.pictures import to_text
from vitkit.data.preprocess import Preprocess
from vitkit.errors import VitkitError, first_line
from vitkit.model.config import ViTConfig
from vitkit.model.config_checks import Pair
from vitkit.system.files import replacing, to_json, write_json
from vitkit.weights.formats import google_npz, huggingface, timm
from vitkit.weights.layout import Layout
from vitkit.weights.read import PICTURES
from vitkit.weights.tucked import tuck_in

To = Literal["folder", "npz", "timm", "hf"]
_PLAIN: dict[str, Any] = {  # what no foreign layout can say
    "norm": "pre",
    "qk_scale": None,
    "patch_norm": False,
    "position": "learned_1d",
    "position_at": "input",
    "projection": "linear",
    "conv_layers": (),
}
STATE_FILES = (".safetensors", ".pth", ".pt")
_NPZ_COMMENT = 65535  # bytes that a zip file has room for


def write(classifier: Classifier, destination: Path, to: To) -> None:
    """Write a classifier: `folder` is vitkit's own, `npz` a file, `timm` and `hf` folders as their hub has them.

    `timm` into a name that ends in .safetensors, .pth or .pt is the bare state dictionary; of these .safetensors alone
    has room for a note of what tensors cannot say. All of them take the record of what the weights were trained on.
    Others than vitkit's own know no temperature, so the heads are divided by it (`settled`).

    Raises:
        VitkitError: the layout cannot express the model; the message names the field.
        OSError: the disk is full or not writable; nothing is left behind.
    """
    if to != "folder" and classifier.thresholds is not None:
        raise VitkitError(
            f"the {to} layout has no place for thresholds, and this model may name several classes of an image;\n"
            "give --to folder, take `vitkit export`, or leave the head out: --num-classes 0"
        )
    if to == "folder":
        classifier.save(destination)
    elif to == "npz":
        _write_npz(classifier, destination)
    elif to == "timm" and destination.suffix in STATE_FILES:
        _write_state(classifier, destination)
    else:
        _write_folder(classifier, destination, _timm_files if to == "timm" else _hf_files)


def _refuse(config: ViTConfig, to: str, allowed: Mapping[str, tuple[Any, ...]]) -> None:
    for name, values in {**{name: (value,) for name, value in _PLAIN.items()}, **allowed}.items():
        if getattr(config, name) not in values:
            raise VitkitError(
                f"the {to} layout cannot express {name} {getattr(config, name)!r}: the model is not written"
            )


def settled(classifier: Classifier) -> dict[str, Tensor]:
    """The model's tensors as layouts have them that know no temperature: the same probabilities at temperature 1."""
    tensors = classifier.model.state_dict()
    if classifier.temperature != 1:
        heads = [name for name in tensors if name.partition(".")[0] in ("head", "head_dist")]
        tensors |= {name: tensors[name] / classifier.temperature for name in heads}
    return tensors


def _tensors(classifier: Classifier, layout: Layout) -> dict[str, Tensor]:
    """The model's tensors under a layout's names."""
    config, tensors = classifier.model.config, {}
    for name, ours in settled(classifier).items():
        if name not in layout.pieces:
            tensors[name] = ours.contiguous()
            continue
        piece = layout.pieces[name]
        for theirs, part in zip(piece.theirs, piece.split(ours, config), strict=False):
            if part is not None:
                tensors[theirs] = part.contiguous()
    return tensors


# --- Google's npz ------------------------------------------------------------------------------------------


def _write_npz(classifier: Classifier, destination: Path) -> None:
    config = classifier.model.config
    _refuse(
        config,
        "npz",
        {
            "mlp_kind": ("mlp",),
            "layer_scale": (None,),
            "registers": (0,),
            "distill_token": (False,),
            "fc_norm": (False,),
            "qkv_bias": (True,),
            "norm_eps": (1e-6,),
            "stem_kind": ("reference",) if config.stem is not None else ("reference", "timm"),
            "class_token": (config.pool != "gap",),
            "pool": ("token", "gap"),
            "prefix_positions": (True,) if config.class_token else (True, False),
        },
    )
    arrays = {name: tensor.numpy() for name, tensor in _tensors(classifier, google_npz.layout_for(config)).items()}
    with replacing(destination) as temporary:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        tuck_in(temporary, classifier.pictures or b"", _comment(classifier))


def _comment(classifier: Classifier) -> bytes:
    """The note, where every reader of zip files passes it over."""
    said = _said(classifier)
    if len(to_json({"vitkit": said}).encode()) > _NPZ_COMMENT:
        del said["classes"]
    return to_json({"vitkit": said}).encode()


def _said(classifier: Classifier) -> dict[str, Any]:
    """What arrays cannot say."""
    config = classifier.model.config
    fields = ("gelu", "position_resize", "heads", "pool", "in_channels")
    return {
        "config": {name: getattr(config, name) for name in fields},
        "patch_size": list(config.patch_size),
        "image_size": list(config.image_size),
        "preprocess": _pixels(classifier.preprocess),
        "classes": list(classifier.classes),
    }


def _write_state(classifier: Classifier, destination: Path) -> None:
    """timm's names in one file."""
    tensors, _ = _timm_files(classifier)
    with replacing(destination) as temporary:
        if destination.suffix == ".safetensors":
            _save(tensors, temporary, destination, {**_metadata(classifier), "vitkit": to_json(_said(classifier))})
        else:
            try:
                torch.save(tensors, temporary)
            except RuntimeError as error:  # how its writer reports a full disk
                raise OSError(f"cannot write {destination}: {first_line(error)}") from error
            tuck_in(temporary, classifier.pictures or b"")


def _save(tensors: dict[str, Tensor], path: Path, destination: Path, metadata: dict[str, str]) -> None:
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:  # how safetensors reports a full disk
        raise OSError(f"cannot write {destination}: {first_line(error)}") from error


def _metadata(classifier: Classifier) -> dict[str, str]:
    """Of a safetensors file: what transformers wants, and the record of what the weights were trained on."""
    pictures = {} if classifier.pictures is None else {PICTURES: to_text(classifier.pictures)}
    return {"format": "pt", **pictures}


def _pixels(preprocess: Preprocess) -> dict[str, Any]:
    return {name: value for name, value in preprocess.to_dict().items() if name != "size"}


# --- Folders as on the Hugging Face hub -----------------------------------------------------------------------


Files = tuple[dict[str, Tensor], dict[str, dict[str, Any]]]  # the tensors, and the JSON files beside them


def _write_folder(classifier: Classifier, destination: Path, describe: Callable[[Classifier], Files]) -> None:
    tensors, descriptions = describe(classifier)
    temporary = destination.with_name(f".{destination.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        _save(tensors, temporary / "model.safetensors", destination, _metadata(classifier))
        for name, content in descriptions.items():
            write_json(temporary / name, content)
        if destination.exists():
            shutil.rmtree(destination)
        temporary.replace(destination)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


_TIMM_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


def _timm_files(classifier: Classifier) -> Files:
    config = classifier.model.config
    _refuse(
        config,
        "timm",
        {
            "mlp_kind": ("mlp", "swiglu"),
            "representation_size": (None,),
            "norm_eps": (1e-6,),
            "pool": ("token", "gap"),
            "stem": (None, *_TIMM_HYBRIDS),
            "stem_kind": ("timm",) if config.stem is not None else ("reference", "timm"),
            "distill_head": (config.distill_token and config.num_classes > 0,),
        },
    )
    described = {
        "architecture": _timm_architecture(config),
        "num_classes": config.num_classes,
        "num_features": config.hidden_size,
        "global_pool": "avg" if config.pool == "gap" else "token",
        "model_args": _timm_arguments(config),
        "pretrained_cfg": _timm_pretrained(classifier),
    }
    return _tensors(classifier, timm.layout_for(config)), {"config.json": described}


def _timm_architecture(config: ViTConfig) -> str:
    """A model that timm knows, of the right class; the arguments say the rest."""
    if config.stem is not None:
        return _TIMM_HYBRIDS[config.stem]
    if config.distill_token:
        return "deit_base_distilled_patch16_224"
    return "vit_giant_patch14_dinov2" if config.mlp_kind == "swiglu" else "vit_base_patch16_224"


def _timm_arguments(config: ViTConfig) -> dict[str, Any]:
    up = config.mlp_size * (2 if config.mlp_kind == "swiglu" else 1)
    arguments: dict[str, Any] = {
        "img_size": list(config.image_size),
        "patch_size": _one(config.patch_size),
        "in_chans": config.in_channels,
        "embed_dim": config.hidden_size,
        "depth": config.layers,
        "num_heads": config.heads,
        "mlp_ratio": up / config.hidden_size,
        "qkv_bias": config.qkv_bias,
        "init_values": config.layer_scale,
        "class_token": bool(config.class_token),
        "global_pool": "avg" if config.pool == "gap" else "token",
        "fc_norm": config.fc_norm,
        "reg_tokens": config.registers,
        "no_embed_class": not config.prefix_positions,
    }
    if config.gelu == "tanh" and config.mlp_kind == "mlp":
        arguments["act_layer"] = "gelu_tanh"
    if int(config.hidden_size * arguments["mlp_ratio"]) != up:  # timm rounds down
        arguments["mlp_ratio"] = (up + 0.5) / config.hidden_size
    return arguments


def _timm_pretrained(classifier: Classifier) -> dict[str, Any]:
    config, preprocess = classifier.model.config, classifier.preprocess
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


def _hf_files(classifier: Classifier) -> Files:
    config = classifier.model.config
    family = huggingface.family_of(config)
    is_dino = family.startswith("dinov2")
    has_head = config.num_classes > 0
    _refuse(
        config,
        "Hugging Face",
        {
            "mlp_kind": ("mlp", "swiglu") if is_dino else ("mlp",),
            "stem": (None,),
            "fc_norm": (False,),
            "layer_scale": (config.layer_scale,) if is_dino and config.layer_scale is not None else (None,),
            "pool": ("token+gap",) if is_dino and has_head else ("token", "token+gap"),
            "representation_size": (None,) if has_head or family != "vit" else (None, config.hidden_size),
            "prefix_positions": (family != "dinov2_with_registers",),
            "distill_token": (family == "deit",),
        },
    )
    if is_dino and config.layer_scale is None:
        raise VitkitError(
            "the Hugging Face layout cannot express layer_scale None with this head: the model is not written"
        )
    tensors = _tensors(classifier, huggingface.layout_for(config))
    if is_dino:
        prefix = f"{family}." if has_head else ""
        tensors[f"{prefix}embeddings.mask_token"] = torch.zeros(1, config.hidden_size)  # a part of the class, unread
    described = _hf_config(classifier, family)
    return tensors, {"config.json": described, "preprocessor_config.json": _hf_pixels(classifier.preprocess)}


_HF_CLASSES = {
    "vit": ("ViTModel", "ViTForImageClassification"),
    "deit": ("DeiTModel", "DeiTForImageClassification"),
    "dinov2": ("Dinov2Model", "Dinov2ForImageClassification"),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"),
}


def _hf_config(classifier: Classifier, family: str) -> dict[str, Any]:
    config = classifier.model.config
    architecture = _HF_CLASSES[family][config.num_classes > 0] + ("WithTeacher" if config.distill_head else "")
    described: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": family,
        "dtype": "float32",
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "hidden_act": "gelu" if config.gelu == "erf" else "gelu_pytorch_tanh",
        "layer_norm_eps": config.norm_eps,
        "image_size": _one(config.image_size),
        "patch_size": _one(config.patch_size),
        "num_channels": config.in_channels,
        "qkv_bias": config.qkv_bias,
        "id2label": dict(enumerate(classifier.classes)),
        "label2id": {name: i for i, name in enumerate(classifier.classes)},
    }
    if family.startswith("dinov2"):
        described |= {
            "mlp_ratio": _hf_mlp_ratio(config),
            "use_swiglu_ffn": config.mlp_kind == "swiglu",
            "layerscale_value": config.layer_scale,
        }
    else:
        described["intermediate_size"] = config.mlp_size
    if family == "dinov2_with_registers":
        described["num_register_tokens"] = config.registers
    return described


def _hf_mlp_ratio(config: ViTConfig) -> int:
    """The ratio from which transformers computes this MLP size; for gated MLPs it takes two thirds, in eights."""
    if config.mlp_kind == "mlp":
        if config.mlp_size % config.hidden_size == 0:
            return config.mlp_size // config.hidden_size
    else:
        for ratio in range(1, 17):
            if (int(int(config.hidden_size * ratio) * 2 / 3) + 7) // 8 * 8 == config.mlp_size:
                return ratio
    raise VitkitError(f"the Hugging Face layout cannot express mlp_size {config.mlp_size}: the model is not written")


def _hf_pixels(preprocess: Preprocess) -> dict[str, Any]:
    if preprocess.fit == "pad":
        raise VitkitError("the Hugging Face layout cannot express preprocess.fit 'pad': the model is not written")
    (height, width), (full_height, full_width) = preprocess.size, preprocess.before_crop
    is_cropped = preprocess.fit != "squash"
    size: dict[str, int] = (
        {"height": full_height, "width": full_width} if is_cropped else {"height": height, "width": width}
    )
    if preprocess.fit == "crop":
        if height != width:
            raise VitkitError(
                f"the Hugging Face layout cannot express a crop of {height}x{width}: the model is not written"
            )
        size = {"shortest_edge": full_height}
    processor = {"crop": "BitImageProcessor", "squash": "ViTImageProcessor", "squash_crop": "DeiTImageProcessor"}
    return {
        "image_processor_type": processor[preprocess.fit],
        "do_convert_rgb": True,
        "do_resize": True,
        "size": size,
        "resample": {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}[preprocess.interpolation],
        "do_center_crop": is_cropped,
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }


def _one(pair: Pair) -> int | list[int]:
    return pair[0] if pair[0] == pair[1] else list(pair)
