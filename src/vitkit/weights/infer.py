"""Infer the configuration of a model from the shapes of its tensors.

Most sizes follow from many tensors, and the most common value is chosen. A single damaged tensor therefore does not
change the configuration, and an error can name the tensor. A missing tensor raises an error if other tensors show that
it should exist. Architectures whose tensors have the same names and shapes cannot be distinguished without a
description; the load report then states which one was assumed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitkit.errors import VitkitError
from vitkit.model.config import Pair, ViTConfig, as_pair, format_size, stride_of
from vitkit.model.names import VARIANTS
from vitkit.weights.layout import depth_of, units_of_stages
from vitkit.weights.tensor_names import matches_of, most_common

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Known:
    """Facts about a checkpoint that do not follow from its shapes.

    Attributes:
        fields: fields of the configuration that the format determines or the user sets.
        stored_name: a function that takes vitkit's name of a tensor and returns the checkpoint's name, for messages.
        image_size: the (height, width) that the user requests, or None.
        written_size: the (height, width) in a file next to the weights, or None.
        is_published: whether the user requested the weights by their published name.
        is_described: whether the published name, or a file next to the weights, determines the architecture.
    """

    fields: Mapping[str, Any]
    stored_name: Callable[[str], str]
    image_size: Pair | None = None
    written_size: Pair | None = None
    is_published: bool = False
    is_described: bool = False


def infer(shapes: Mapping[str, Shape], known: Known) -> tuple[ViTConfig, dict[str, str]]:
    """Infer the configuration from the shapes of the tensors, by vitkit's names; also describe the assumed fields."""
    fields = _encoder(shapes, known)
    fields |= _head(shapes, fields, known)
    assumed: dict[str, str] = {}
    settings = {name: value for name, value in known.fields.items() if value is not None}
    if "patch_size" in settings:  # files state one number or a pair
        settings["patch_size"] = as_pair(settings["patch_size"], "patch_size")
    for name, tensor in _TENSOR_OF_FIELD.items():
        if name in settings and settings[name] != fields[name]:
            raise VitkitError(
                "weights.field-contradicted",
                f"{known.stored_name(tensor)}: {name} must be {fields[name]}, as in the weights, not {settings[name]}",
            )
    fields |= settings
    fields["heads"] = _heads(fields, assumed, is_described=known.is_described)
    fields |= _positions(shapes, fields, known, assumed)
    if not known.is_published:
        assumed |= _assumed_absences(shapes, fields, settings, known)
    config = ViTConfig.from_dict(fields)
    written = known.written_size
    if written is not None and written != config.image_size:
        sides = zip(written, config.image_size, config.patch_size, strict=True)
        # Both sizes have the same grid, because the patches of the model ignore a remainder of pixels.
        if all(0 <= stated - used < patch for stated, used, patch in sides):
            assumed["image_size"] = (
                f"{format_size(config.image_size)}, to which photographs are resized: the stated size "
                f"{format_size(written)} is not a multiple of the patch size"
            )
    return config, assumed


def _lengths(shapes: Mapping[str, Shape], pattern: str, axis: int) -> list[int]:
    return [shape[axis] for name, shape in shapes.items() if re.search(pattern, name) and len(shape) > axis]


def _has(shapes: Mapping[str, Shape], pattern: str) -> bool:
    return any(re.search(pattern, name) for name in shapes)


def _encoder(shapes: Mapping[str, Shape], known: Known) -> dict[str, Any]:
    """Return the fields of the encoder, from the patch embedding to the last norm."""
    required = ["patch_embed.proj.weight"]
    if known.fields.get("position", "learned_1d") == "learned_1d":
        required.append("pos_embed")
    for name in required:
        if name not in shapes:
            raise VitkitError("weights.tensor-missing", f"{known.stored_name(name)} is missing")
    is_hybrid = _has(shapes, r"^patch_embed\.backbone\.")
    _check_patch_kernel(shapes, known, is_hybrid=is_hybrid)
    _, in_channels, *patch_size = shapes["patch_embed.proj.weight"]

    layers = depth_of(match[1] for match in matches_of(r"blocks\.(\d+)\.", shapes))
    hidden_size = most_common(_lengths(shapes, r"^(blocks\.\d+\.norm[12]|norm|fc_norm)\.", 0))
    if not layers or not hidden_size:
        raise VitkitError("weights.tensor-missing", "there are no Transformer blocks")
    # CLIP normalises embeddings, and its patch embedding has no bias. In any other model, the bias is expected.
    has_embed_norm = _has(shapes, r"^norm_pre\.")
    fields: dict[str, Any] = {
        "layers": layers,
        "hidden_size": hidden_size,
        "patch_size": tuple(patch_size),
        "in_channels": in_channels,
        **_mlp_fields(shapes),
        "qkv_bias": _has(shapes, r"attn\.qkv\.bias$"),
        "embed_norm": has_embed_norm,
        "patch_bias": "patch_embed.proj.bias" in shapes or not has_embed_norm,
        "patch_norm": _has(shapes, r"^patch_embed\.norm\."),
        "layer_scale": 1e-5 if _has(shapes, r"\.ls[12]\.") else None,
        "attention_norm": _has(shapes, r"\.attn\.norm\."),
        "mlp_norm": _has(shapes, r"^blocks\..*\.mlp\.norm\."),
        "stem": None,
        "class_token": "cls_token" in shapes,
        "distill_token": "dist_token" in shapes or "head_dist.weight" in shapes,
        "distill_head": _has(shapes, r"^head_dist\."),
        "registers": shapes["reg_token"][1] if len(shapes.get("reg_token", ())) == 3 else 0,
    }
    if is_hybrid:  # images are read by a ResNet stem
        last_units = units_of_stages(r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.", shapes)
        stages = range(max(last_units, default=-1) + 1)
        root = shapes.get("patch_embed.backbone.stem.conv.weight", ())
        fields["in_channels"] = root[1] if len(root) == 4 and root[1] in (1, 3) else 3
        fields["stem"] = tuple(last_units.get(stage, 0) + 1 for stage in stages)  # units are numbered from 0
    return fields


def _check_patch_kernel(shapes: Mapping[str, Shape], known: Known, *, is_hybrid: bool) -> None:
    """Check that the kernel of the patch embedding, (D, C, p, q), has plausible channels and a plausible patch."""
    kernel, name = shapes["patch_embed.proj.weight"], known.stored_name("patch_embed.proj.weight")
    if len(kernel) != 4 or 0 in kernel:
        raise VitkitError(
            "weights.tensor-misshapen",
            f"{name} must be a convolution kernel with four dimensions, not of shape {kernel}",
        )
    _, channels, height, width = kernel
    reads_image = not is_hybrid and "stem" not in known.fields  # otherwise it reads the feature map of a stem
    if reads_image and channels not in (1, 3) and "in_channels" not in known.fields:
        raise VitkitError(
            "weights.tensor-misshapen",
            f"{name} has {channels} channels, not 1 or 3: set in_channels={channels} if this is intended",
        )
    if height != width and known.fields.get("patch_size") is None:  # no published model has such a patch
        raise VitkitError(
            "weights.tensor-misshapen",
            f"{name}: a patch of {height}x{width} pixels is not square, and nothing confirms this size",
        )


def _mlp_fields(shapes: Mapping[str, Shape]) -> dict[str, Any]:
    fc1_outputs = _lengths(shapes, r"^blocks\.\d+\.mlp\.fc1\.(weight|bias)$", 0)
    fc2_inputs = _lengths(shapes, r"^blocks\.\d+\.mlp\.fc2\.weight$", 1)
    if not fc1_outputs and not fc2_inputs:
        raise VitkitError(
            "weights.tensor-missing",
            "the blocks have no MLPs: the checkpoint is incomplete, or not of a Vision Transformer",
        )
    # In an ordinary MLP, fc1 has as many outputs as fc2 has inputs. In a gated MLP, fc1 has twice as many. The MLPs are
    # of the kind for which more tensors agree.
    if_plain = fc1_outputs + fc2_inputs
    if_gated = fc1_outputs + [2 * size for size in fc2_inputs]
    plain_size, gated_size = most_common(if_plain), most_common(if_gated)
    if if_gated.count(gated_size) > if_plain.count(plain_size):
        return {"mlp_kind": "swiglu", "mlp_size": gated_size // 2}
    return {"mlp_kind": "mlp", "mlp_size": plain_size}


def _head(shapes: Mapping[str, Shape], fields: Mapping[str, Any], known: Known) -> dict[str, Any]:
    """Return the fields of pooling, representation layer and head; `fields` are those of the encoder."""
    has_fc_norm = _has(shapes, r"^fc_norm\.")
    has_token = known.fields.get("class_token", fields["class_token"])
    pool = "token" if has_token and not has_fc_norm else "gap"
    if _has(shapes, r"^attn_pool\."):
        pool = "map"
    # In DeiT III and DINOv2, only patches have positions. If the class token is lost, they look mean-pooled.
    looks_pooled = pool == "gap" and not has_fc_norm and not fields["class_token"]
    is_deit3 = fields["layer_scale"] and fields["qkv_bias"]
    if looks_pooled and is_deit3 and not {"pool", "class_token"} & known.fields.keys():
        raise VitkitError(
            "weights.tensor-missing",
            f"{known.stored_name('cls_token')} is missing; if the model has none, set pool='gap'",
        )
    pool_mlp_size = most_common(_lengths(shapes, r"^attn_pool\.mlp\.fc1\.(weight|bias)$", 0))
    heads = ("head.weight", "head.bias", "head_dist.weight", "head_dist.bias")
    return {
        "pool": pool,
        "pool_mlp_size": pool_mlp_size if pool_mlp_size not in (0, fields["mlp_size"]) else None,
        "fc_norm": has_fc_norm,
        "representation_size": _majority_length(shapes, ("pre_logits.fc.weight", "pre_logits.fc.bias"), known) or None,
        "num_classes": _majority_length(shapes, heads, known),
    }


def _majority_length(shapes: Mapping[str, Shape], names: Sequence[str], known: Known) -> int:
    """Return the length of the first axis of most of these tensors, 0 if none exists; raise without a majority."""
    lengths = {name: shapes[name][0] for name in names if shapes.get(name)}
    length_of_most = most_common(lengths.values())
    votes = list(lengths.values()).count(length_of_most)
    if lengths and votes <= len(lengths) / 2:
        stated = " and ".join(f"{known.stored_name(name)} ({length})" for name, length in lengths.items())
        raise VitkitError("weights.tensor-misshapen", f"{stated} must have the same first dimension")
    return length_of_most


# Fields that tensors determine, each with one such tensor, which error messages name.
_TENSOR_OF_FIELD = {
    "layers": "norm.weight",
    "hidden_size": "norm.weight",
    "in_channels": "patch_embed.proj.weight",
    "qkv_bias": "blocks.0.attn.qkv.bias",
    "patch_bias": "patch_embed.proj.bias",
    "embed_norm": "norm_pre.weight",
    "registers": "reg_token",
    "distill_token": "dist_token",
    "mlp_size": "blocks.0.mlp.fc1.weight",
    "attention_norm": "blocks.0.attn.norm.weight",
    "mlp_norm": "blocks.0.mlp.norm.weight",
    "patch_size": "patch_embed.proj.weight",
}


# The number of heads by (layers, hidden size), for models that are not in the paper: g, G, So400m (arXiv 2106.04560,
# 2305.13035) and DINOv2's g.
_OTHER_HEADS = {(40, 1408): 16, (48, 1664): 16, (27, 1152): 16, (40, 1536): 24}


def _heads(fields: Mapping[str, Any], assumed: dict[str, str], *, is_described: bool) -> Any:
    if "heads" in fields:
        return fields["heads"]  # `ViTConfig` checks the value
    layers, hidden_size = fields["layers"], fields["hidden_size"]
    later_parts = ("layer_scale", "registers", "embed_norm", "attention_norm", "mlp_norm")
    has_later_part = any(fields[name] for name in later_parts) or fields.get("rotary", "none") != "none"
    is_plain_vit = not has_later_part and fields["stem"] is None
    # The classes of timm and transformers have 12 layers and 12 heads by default.
    may_have_default = is_plain_vit and layers == 12 and hidden_size % 12 == 0
    known = {(size.layers, size.hidden_size): size.heads for size in VARIANTS.values()} | _OTHER_HEADS
    if not fields["class_token"]:
        known[40, 1536] = 16  # SigLIP 2's g-opt
    if (layers, hidden_size) in known:
        heads = known[layers, hidden_size]
        if not is_described and may_have_default and heads != 12:
            assumed["heads"] = (
                f"{heads}, as in published models of {hidden_size} features; the default in timm and transformers is "
                "12, with the same tensors: if the model has that, set heads=12"
            )
        return heads
    heads = max(hidden_size // 64, 1)
    assumed["heads"] = f"{heads}, as 64 features per head are usual; set heads=... to change it"
    return heads


def _assumed_absences(
    shapes: Mapping[str, Shape], fields: Mapping[str, Any], settings: Mapping[str, Any], known: Known
) -> dict[str, str]:
    """Return the assumption, by field, that certain tensors are absent on purpose.

    A file without these tensors has either a rarer architecture, which is assumed, or a common one and is damaged.
    """
    assumed: dict[str, str] = {}
    usual = {size.hidden_size: size.layers for size in VARIANTS.values()}
    usual |= {hidden_size: layers for layers, hidden_size in _OTHER_HEADS}
    layers, hidden_size = fields["layers"], fields["hidden_size"]
    is_aimv2 = fields.get("norm_kind", "layer") == "rms"
    if "layers" not in settings and not is_aimv2 and layers < usual.get(hidden_size, 0):
        assumed["layers"] = (
            f"{layers}, the number of blocks in the file; published models of {hidden_size} features have "
            f"{usual[hidden_size]}: if the file has lost its last blocks, predictions are wrong"
        )
    if "qkv_bias" not in settings and not is_aimv2 and not fields["qkv_bias"]:
        assumed["qkv_bias"] = (
            f"False, because no block has {known.stored_name('blocks.0.attn.qkv.bias').replace('.0.', '.*.')}; if the "
            "file has lost them, predictions are wrong"
        )
    has_class_token_only = (fields["class_token"] or fields["distill_token"]) and not fields["registers"]
    lacks_row = "pos_embed" in shapes and not fields["prefix_positions"]
    if has_class_token_only and lacks_row and "prefix_positions" not in settings:
        assumed["prefix_positions"] = (
            f"False, because {known.stored_name('pos_embed')} has as many rows as there are patches and none for the "
            "class token, as in DeiT III; if the file has lost a row, or its registers, predictions are wrong"
        )
    return assumed


def _positions(
    shapes: Mapping[str, Shape], fields: Mapping[str, Any], known: Known, assumed: dict[str, str]
) -> dict[str, Any]:
    """Return the image size, and whether prefix tokens have positions if there is a table of position embeddings.

    A grid that is assumed although others are possible is added to `assumed`.
    """
    stride = stride_of(fields["stem"])
    patch_height, patch_width = fields["patch_size"]

    def grid_of(size: Pair | None) -> Pair | None:
        if size is None:
            return None
        height, width = (-(-side // stride) for side in size)  # the stem rounds up
        return height // patch_height, width // patch_width

    def size_of(grid: Pair) -> Pair:
        return grid[0] * patch_height * stride, grid[1] * patch_width * stride

    requested, written = grid_of(known.image_size), grid_of(known.written_size)
    if "pos_embed" not in shapes:
        # Tables of relative biases have a fixed size, which `written` describes; other positions fit any grid.
        is_fixed = fields.get("position") == "relative_bias"
        grid = (written or requested) if is_fixed else (requested or written)
        if grid is None:
            raise VitkitError(
                "weights.grid-unknown",
                "there are no learned positions that determine the grid: set image_size=(height, width)",
            )
        return {"image_size": size_of(grid)}

    length = shapes["pos_embed"][1] if len(shapes["pos_embed"]) == 3 else 0
    tokens = int(fields["class_token"]) + int(fields["distill_token"]) + fields["registers"]
    has_prefix = fields.get("prefix_positions")
    prefixes = [tokens if has_prefix else 0]
    if has_prefix is None:  # the format does not determine it, so both are tried
        prefixes = [tokens, 0]
    for prefix in prefixes:  # the number of positions of prefix tokens
        patches = length - prefix
        side = math.isqrt(max(patches, 0))
        candidates = [grid for grid in (written, requested, (side, side)) if grid is not None]
        fitting = [grid for grid in candidates if grid[0] * grid[1] == patches > 0]
        if fitting:
            grid = fitting[0]
            if written is None and grid != (side, side) in fitting:
                assumed["grid"] = f"{format_size(grid)}, as in image_size, and not {side}x{side}"
            return {"image_size": size_of(grid), "prefix_positions": prefix == tokens}
    raise _no_grid(length, fields, known)


def _no_grid(length: int, fields: Mapping[str, Any], known: Known) -> VitkitError:
    """Return the error for a table of `length` positions with no fitting grid: it is not square, or lacks a token."""
    extra = length - math.isqrt(length) ** 2
    number = f"{known.stored_name('pos_embed')} has {length} positions"
    if extra in (1, 2) and not fields["class_token"]:
        missing = known.stored_name("cls_token")
        if not fields["registers"] and (fields["fc_norm"] or fields["pool"] == "map"):
            missing += f" or {known.stored_name('reg_token')}"
        return VitkitError("weights.tensor-missing", f"{missing} is missing: {number}, {extra} more than a square")
    if extra == 2 and not fields["distill_token"]:
        missing = known.stored_name("dist_token")
        return VitkitError("weights.tensor-missing", f"{missing} is missing: {number}, 2 more than a square")
    with_token = " with its class token" if fields["class_token"] else ""
    return VitkitError(
        "weights.grid-unknown",
        f"{number}, which is not a square grid{with_token}: set image_size=(height, width)",
    )


def ambiguous_fields(config: ViTConfig, names: Collection[str], stated: Collection[str]) -> dict[str, str]:
    """Return assumptions about the architecture of a checkpoint with timm's tensor names and no configuration.

    Several architectures have tensors with the same names and shapes, so one of them is assumed. The result maps fields
    of `ViTConfig` that the user has not set (`stated`) to sentences for the user.
    """
    # SigLIP's and I-JEPA's models are mean-pooled without class token, LayerScale and registers.
    is_tokenless = not (config.class_token or config.layer_scale or config.registers) and config.pool == "gap"
    assumed: dict[str, str] = {}
    if is_tokenless and not config.qkv_bias and config.fc_norm:
        assumed["norm"] = (
            f"{config.norm}, as in the paper; timm's vit_base_patch16_rpn_224 has the same tensors and normalises the "
            "output of each sublayer: for that model, set norm='res-post'"
        )
    if config.pool == "map" or (is_tokenless and config.qkv_bias):
        assumed["gelu"] = (
            f"{config.gelu}, as is usual for timm; some of SigLIP's encoders (timm's vit_*_siglip_*) have the same "
            "tensors and GELU with tanh: for those models, set gelu='tanh'"
        )
    if is_tokenless and config.qkv_bias and (config.layers, config.hidden_size) == (12, 768):
        assumed["heads"] = (
            f"{config.heads}, as in ViT-B; timm's vit_base_patch16_gap_224 (I-JEPA) has the same tensors and 16: "
            "for that model, set heads=16"
        )
    if config.embed_norm:
        assumed["gelu"] = (
            f"{config.gelu}, as LAION trained its CLIP models; OpenAI's own, DFN's and MetaCLIP's have the same "
            "tensors and x sigmoid(1.702 x) (timm's vit_*_clip_quickgelu_*): for those models, set gelu='quick'"
        )
    if not config.last_norm:
        assumed["last_norm"] = (
            "False, because there is no norm after the last layer, as in RADIO's and InternViT's encoders; if the file "
            "has lost it, predictions are wrong"
        )
    if config.pool == "gap" and not config.class_token and not config.registers:
        assumed["registers"] = (
            "none, because there is no reg_token; timm's vit_*_reg*_gap_* have some: if the file has lost it, "
            "predictions are wrong"
        )
    if "pos_embedding.pos_embedding" in names and config.qk_scale is None:
        assumed["qk_scale"] = (
            f"1 / sqrt({config.head_size}), the size of a head; code that names its positions "
            "pos_embedding.pos_embedding takes another as an argument, which is not stored in files: set qk_scale=... "
            "if it is different"
        )
    return {field: text for field, text in assumed.items() if field not in stated}
