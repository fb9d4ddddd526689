"""The layouts of timm's `Eva`, BEiT and NaFlexViT families.

The class `Eva` of timm implements EVA, EVA-02, Perception Encoder, DINOv3 and the rotary ViTs, with the same tensor
names. AIMv2 has some of these names, too. Rotary positions have no tensors (except "mixed"), so their kind is assumed
from the family, and the load report says so.

BEiT, BEiTv2 and the ViTs with relative positions add a bias for each offset between two patches to the attention
logits.

A NaFlexViT adapts its patch grid to the size of each image. vitkit loads it for one image size, at which it is an
ordinary ViT. Examples are SigLIP 2's NaFlex (arXiv 2502.14786) and NVIDIA's C-RADIO (2412.07679). Their patch embedding
is stored as a linear layer, whose weight is reordered to a convolution kernel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitkit.data.preprocess import CLIP_MEAN, CLIP_STD, HALF, IMAGENET_MEAN, IMAGENET_STD
from vitkit.errors import VitkitError
from vitkit.weights.checkpoint import Checkpoint, StoredTensor
from vitkit.weights.formats.timm import FIELDS, architecture_of, fields_from_config, stored_description
from vitkit.weights.layout import Layout, Piece, joined, require, same, without_key_bias
from vitkit.weights.tensor_names import matches_of, most_common, shape_of

MLP_PARTS = ("mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias")
Names = Mapping[str, StoredTensor]
_CROP = {"fit": "crop", "interpolation": "bicubic", "crop_pct": 1.0}
_CLIP = {**_CROP, "crop_pct": 0.9, "mean": CLIP_MEAN, "std": CLIP_STD}
_HALF = {**_CROP, "mean": HALF, "std": HALF}
_IMAGENET = {**_CROP, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
_GRID_16 = "of base 10000 on a grid of 16x16,"
_IF_WRONG = "if wrong: rotary=..., rotary_base=..., rotary_grid=..."
_HEADS = {  # by family and hidden size, for models whose number of heads is not the usual one
    "EVA": {1408: 16, 1792: 16},
    "Perception Encoder": {1536: 16},
    "DINOv3": {4096: 32, 1280: 20},
}


@dataclass(frozen=True)
class Family:
    """A family of timm's Eva or NaFlexViT models.

    Attributes:
        name: the usual name.
        fields: the fields of the configuration that no tensor determines.
        preprocess: the usual preprocessing, as fields of `Preprocess`.
        required: tensors that all models of the family have.
        side: the side of square images in pixels, if nothing else states it; 0 if tensors determine it.
        assumed: for each field with an assumed value, a message about the value and how to change it.
    """

    name: str
    fields: Mapping[str, Any]
    preprocess: Mapping[str, Any]
    required: tuple[str, ...] = ()
    side: int = 0
    assumed: Mapping[str, str] = field(default_factory=dict)


def recognise(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint if it belongs to one of the `Eva` families; None for any other."""
    names = checkpoint.tensors
    if not has(names, r"blocks\.\d+\.(attn|mlp)\."):
        return None
    if has(names, r"blocks\.\d+\.attn\.(q_norm|gate|rel.*table)"):
        return None  # Sapiens, which has fewer keys than queries; BEiT
    family = _family(names, architecture_of(checkpoint))
    if family is None:
        return None
    require(checkpoint, family.name, "patch_embed.proj.weight", *family.required)
    described = stored_description(checkpoint)
    fields = {**fields_from_config(checkpoint), **described.get("fields", {})}
    size = described.get("image_size")
    assumed = dict(family.assumed)
    if size is None and "pos_embed" not in names and family.side:
        size = (family.side, family.side)
        assumed["image_size"] = f"{family.side} pixels, as is usual in timm; if wrong: image_size=..."
    return Layout(
        format=f"timm ({family.name})",
        pieces=pieces_of(names),
        fields={**FIELDS, **family.fields, **fields},
        preprocess=described.get("preprocess", family.preprocess),
        is_preprocess_known="preprocess" in described,
        classes=described.get("classes"),
        image_size=size,
        assumed={name: text for name, text in assumed.items() if name not in fields},
    )


# --- Which family ---------------------------------------------------------------------------------------------


def _family(names: Names, architecture: str) -> Family | None:
    """Return the family whose distinguishing tensors the checkpoint has; None if there is none."""
    has_layer_scale = has(names, r"blocks\.\d+\.gamma_[12]$")
    if has(names, r"norm_pre\."):
        is_encoder = has(names, r"attn_pool\.") or not has(names, r"norm\.")
        return _perception_encoder(names) if is_encoder else None
    if has_layer_scale and has(names, r"blocks\.\d+\.attn\.qkv\.bias$"):
        is_mixed, has_positions = "rope.freqs" in names, "pos_embed" in names
        base = 10.0 if is_mixed else 100.0
        fields: dict[str, Any] = {
            "rotary": "mixed" if is_mixed else "axial", "rotary_base": base, "prefix_positions": False,
            "position": "learned_1d" if has_positions else "none", "pool": "token", "class_token": True,
        }  # fmt: skip
        rotary = "mixed, as in RoPE-ViT with" if is_mixed else "axial, of base 100, as in RoPE-ViT without"
        presence = "present" if has_positions else "absent"
        assumed = {
            "rotary": f"{rotary} rope.freqs; if wrong: rotary_base=...",
            "position": f"{fields['position']}, because pos_embed is {presence}; some models of RoPE-ViT have it",
        }
        return Family("RoPE-ViT", fields, {**_IMAGENET, "crop_pct": 0.9}, ("cls_token",), 224, assumed)
    if has_layer_scale and has(names, r"fc_norm\."):
        if "cls_token" in names:  # BEiT; its tables are missing, otherwise `recognise_beit` would have recognised it
            return Family("BEiT", {}, _HALF, ("rel_pos_bias.relative_position_bias_table",))
        fields = {
            "rotary": "eva", "rotary_base": 10_000.0, "rotary_grid": (16, 16), "position": "none",
            "pool": "gap", "class_token": False,
        }  # fmt: skip
        assumed = {"rotary": f"eva, {_GRID_16} as in timm's vit_*_rope_reg*_gap_256; {_IF_WRONG}"}
        return Family("rotary ViT", fields, {**_HALF, "crop_pct": 0.95}, ("reg_token",), 256, assumed)
    if has_layer_scale:
        pool = "token" if "lingbot" in architecture else "gap"
        fields = {
            "rotary": "dinov3", "rotary_base": 100.0, "position": "none", "norm_eps": 1e-5,
            "pool": pool, "class_token": True, "heads": _HEADS["DINOv3"].get(_sizes(names)[1]),
        }  # fmt: skip
        assumed = {"rotary": "dinov3, of base 100, as in DINOv3; if wrong: rotary_base=..."}
        if not architecture:
            assumed["pool"] = (
                f"{pool}, as in timm's DINOv3; LingBot-Vision has the same tensors and reads its class token, as "
                "DINOv3's authors do: for that, set pool='token'"
            )
        return Family("DINOv3", fields, _IMAGENET, ("cls_token", "reg_token"), 256, assumed)
    if has(names, r"blocks\.\d+\.attn\.(q_bias|v_bias|q_proj\.bias|v_proj\.bias)"):
        return _eva(names, architecture)
    if not has(names, r"blocks\.\d+\.mlp\.fc1_"):
        return None
    fields = {  # AIMv2 (arXiv 2411.14402): its heads have 128 features, which no tensor determines
        "norm_kind": "rms", "norm_eps": 1e-5, "proj_bias": False, "class_token": False, "pool": "gap",
        "heads": max(_sizes(names)[1] // 128, 1),
    }  # fmt: skip
    return Family("AIMv2", fields, _CROP | {"mean": CLIP_MEAN, "std": CLIP_STD}, ("patch_embed.norm.weight",))


def _eva(names: Names, architecture: str) -> Family:
    required = ("cls_token", "pos_embed")
    fields: dict[str, Any] = {"pool": "gap" if has(names, r"fc_norm\.") else "token", "class_token": True}
    # In a gated MLP, fc1 computes gates and values: it has twice as many outputs as fc2 has inputs.
    fc1 = shapes_like(names, r"blocks\.\d+\.mlp\.fc1\.weight$")
    fc2 = shapes_like(names, r"blocks\.\d+\.mlp\.fc2\.weight$")
    gated = 0
    for first, second in zip(fc1, fc2, strict=False):
        if len(first) == len(second) == 2 and first[0] == 2 * second[1]:
            gated += 1
    if has(names, r"blocks\.\d+\.mlp\.fc1_[gx]\.") or gated > len(fc1) / 2:
        rotary = {"rotary": "eva", "rotary_base": 10_000.0, "rotary_grid": (16, 16)}
        assumed = {"rotary": f"eva, {_GRID_16} as in EVA-02 at every image size; {_IF_WRONG}"}
        return Family("EVA-02", {**fields, **rotary}, _CLIP, required, assumed=assumed)
    sizes = _sizes(names)
    is_post = "enormous" in architecture or sizes == (64, 1792)
    assumed = {}
    if fields["pool"] == "token" and not architecture:
        norm, other = ("res-post", "pre") if is_post else ("pre", "res-post")
        model = "EVA-02-CLIP's enormous model" if is_post else "EVA-CLIP's giant model"
        assumed["norm"] = (
            f"{norm}, as in {model}, because there are {sizes[0]} layers of {sizes[1]} features; the enormous and the "
            f"giant model have the same tensor names; if wrong: norm='{other}'"
        )
    fields |= {"norm": "res-post" if is_post else "pre", "heads": _HEADS["EVA"].get(sizes[1])}
    return Family("EVA", fields, _CLIP, required, assumed=assumed)


def _perception_encoder(names: Names) -> Family:
    is_core, has_token = has(names, r"attn_pool\."), "cls_token" in names
    shape = shape_of("pos_embed", names)
    positions = shape[1] if len(shape) == 3 else 0
    patches = max(positions - 1, 0) if has_token else positions
    side = math.isqrt(patches)
    fields: dict[str, Any] = {
        "rotary": "axial",
        "rotary_base": 10_000.0,
        "rotary_offset": 1 if has_token else 0,
        "rotary_grid": (side, side) if 0 < side * side == patches else None,
        "norm_eps": 1e-5,
        "pool": "map" if is_core else "gap",
        "last_norm": is_core,
        "class_token": has_token,
        "heads": _HEADS["Perception Encoder"].get(_sizes(names)[1]),
    }
    grid = "x".join(map(str, fields["rotary_grid"] or ()))
    assumed = {
        "rotary": f"axial, of base 10000 on the grid of the learned positions, {grid}, with patches counted from "
        f"{fields['rotary_offset']}, as in Perception Encoder; if wrong: rotary_base=..., rotary_grid=..., "
        "rotary_offset=..."
    }
    if is_core:
        fields["pool_heads"] = 8
        assumed["pool_heads"] = "8, as in all models of Perception Encoder; if wrong: pool_heads=..."
    return Family("Perception Encoder", fields, _HALF, ("pos_embed",), assumed=assumed)


# --- What the tensors say -------------------------------------------------------------------------------------


def has(names: Names, pattern: str) -> bool:
    return bool(matches_of(pattern, names))


def shapes_like(names: Names, pattern: str) -> list[tuple[int, ...]]:
    return [names[name].shape for name in sorted(names) if re.match(pattern, name)]


def _sizes(names: Names) -> tuple[int, int]:
    """Return the number of layers and the hidden size."""
    layers = {match[1] for match in matches_of(r"blocks\.(\d+)\.", names)}
    norms = shapes_like(names, r"blocks\.\d+\.norm[12]\.weight$")
    return len(layers), most_common(shape[0] for shape in norms if shape)


# --- Tensors under our names ----------------------------------------------------------------------------------


def pieces_of(names: Names) -> dict[str, Piece]:
    """Return the `Piece`s of the tensors of an `Eva` model, which may be stored in several ways.

    vitkit's model has one layer for q, k and v, one layer for gate and value, and LayerScale layers.
    """
    pieces = {name: same(name) for name in names}
    # For each block, all forms in which timm may store its parts, each with vitkit's name of the tensor.
    forms: list[list[tuple[str, Piece]]] = []
    for block in dict.fromkeys(match[1] for match in matches_of(r"(blocks\.\d+)\.", names)):
        table = block.replace("blocks", "rel_pos")
        q, k, v = (f"{block}.attn.{part}_proj" for part in "qkv")
        gate, value = f"{block}.mlp.fc1_g", f"{block}.mlp.fc1_x"
        forms.append(
            [
                (f"{block}.attn.qkv.weight", joined(f"{q}.weight", f"{k}.weight", f"{v}.weight")),
                (f"{block}.attn.qkv.bias", without_key_bias(f"{q}.bias", f"{v}.bias")),
                (f"{block}.attn.qkv.bias", without_key_bias(f"{block}.attn.q_bias", f"{block}.attn.v_bias")),
                (f"{block}.mlp.fc1.weight", joined(f"{gate}.weight", f"{value}.weight")),
                (f"{block}.mlp.fc1.bias", joined(f"{gate}.bias", f"{value}.bias")),
                (f"{block}.ls1.gamma", same(f"{block}.gamma_1")),
                (f"{block}.ls2.gamma", same(f"{block}.gamma_2")),
                (f"{table}.table", same(f"{block}.attn.relative_position_bias_table")),
                (f"{table}.table", same(f"{block}.attn.rel_pos.relative_position_bias_table")),
                *((f"{table}.{part}", same(f"{block}.attn.rel_pos.{part}")) for part in MLP_PARTS),
            ]
        )
    for form in zip(*forms, strict=True):  # the same form in every block
        # If any block uses the form, all blocks are expected to use it.
        if any(name in names for _, piece in form for name in piece.stored_names):
            for ours, piece in form:
                pieces[ours] = piece
                for theirs in piece.stored_names:
                    pieces.pop(theirs, None)
    return pieces


_PREFIX = "embeds."
_CHANNELS = 3
_TABLE, _AXES = f"{_PREFIX}pos_embed", (f"{_PREFIX}pos_embed_y", f"{_PREFIX}pos_embed_x")
# The C-RADIOv3 models whose positions are resized with aligned corners, as (registers, hidden size).
_ALIGNED = {"naflexvit_base_patch16_radio_v3": (7, 768), "naflexvit_huge_patch16_radio_v3": (7, 1280)}


def recognise_naflex(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint if it is a NaFlexViT; None for any other."""
    names = checkpoint.tensors
    if not any(name.startswith(_PREFIX) for name in names):
        return None
    family = _family_naflex(names, architecture_of(checkpoint))
    require(checkpoint, f"timm, {family.name}", f"{_PREFIX}proj.weight", *family.required)
    shape = names[f"{_PREFIX}proj.weight"].shape
    patch = math.isqrt(shape[1] // _CHANNELS) if len(shape) == 2 else 0  # pixels
    if not patch or _CHANNELS * patch * patch != shape[1]:
        raise VitkitError(
            "weights.tensor-misshapen",
            f"{checkpoint.path} (timm): {_PREFIX}proj.weight must have an input for each number of a square patch "
            f"of {_CHANNELS} channels, but its shape is {shape}",
        )
    trained_size = None  # (height, width) in pixels of the grid of the position embeddings
    table, rows, columns = (shape_of(name, names) for name in (_TABLE, *_AXES))
    if len(table) == 4:
        trained_size = table[1] * patch, table[2] * patch
    elif len(rows) == len(columns) == 3:
        trained_size = rows[1] * patch, columns[1] * patch
    described = stored_description(checkpoint)
    fields = {**fields_from_config(checkpoint), **described.get("fields", {})}
    if "gelu" in family.fields:  # timm's config.json does not state it
        fields["gelu"] = family.fields["gelu"]
    size = described.get("image_size", (family.side, family.side))
    resize = family.fields["position_resize"]
    assumed = {
        "image_size": f"{size[0]}x{size[1]} pixels for every image, although {family.name} supports a size for each; "
        "for another size: image_size=...",
        "position_resize": f"{resize}, as for {family.name} in timm; if wrong: position_resize=...",
    }
    if resize == "timm":
        assumed["position_resize"] += (
            ". For images that are not square, naflexvit_base_patch16_par_gap crops the positions of a square instead"
        )
    return Layout(
        format=f"timm ({family.name})",
        pieces=_pieces(names, patch),
        fields={**FIELDS, **family.fields, **fields},
        preprocess=described.get("preprocess", family.preprocess),
        is_preprocess_known="preprocess" in described,
        classes=described.get("classes"),
        image_size=trained_size,
        input_size=size,
        assumed={name: text for name, text in assumed.items() if name not in fields},
    )


def _family_naflex(names: Names, architecture: str) -> Family:
    """Return the family of a NaFlexViT, which follows from the layers after the blocks."""
    no_token = {"class_token": False, "prefix_positions": False}
    if any(name.startswith("attn_pool.") for name in names):
        fields = no_token | {"pool": "map", "gelu": "tanh", "position_resize": "siglip2"}
        return Family("SigLIP 2 NaFlex", fields, _HALF, ("norm.weight",), 384)
    if any(name.startswith(("norm.", "fc_norm.")) for name in names):
        has_axis_tables = any(name in names for name in _AXES)
        fields = no_token | {"pool": "gap", "position_resize": "linear" if has_axis_tables else "timm"}
        return Family("NaFlexViT", fields, _HALF, ("fc_norm.weight", f"{_PREFIX}reg_token"), 384)
    shape = shape_of(f"{_PREFIX}reg_token", names)
    registers, size = shape[-2:] if len(shape) == 3 else (0, 0)
    is_aligned = architecture in _ALIGNED if architecture else (registers, size) in _ALIGNED.values()
    fields = {
        "pool": "token", "class_token": True, "prefix_positions": False, "last_norm": False,
        "position_resize": "linear_aligned" if is_aligned else "linear",
    }  # fmt: skip
    required = (f"{_PREFIX}cls_token", f"{_PREFIX}reg_token", _TABLE)
    return Family("C-RADIO", fields, _HALF | {"mean": CLIP_MEAN, "std": CLIP_STD}, required, 512)


# --- Tensors under our names ----------------------------------------------------------------------------------


def _pieces(names: Names, patch: int) -> dict[str, Piece]:
    pieces = {name.removeprefix(_PREFIX): same(name) for name in names if name not in _AXES}
    # The patch embedding is stored as a linear layer of flattened patches (height, width, C).
    pieces["patch_embed.proj.weight"] = Piece(
        (f"{_PREFIX}proj.weight",),
        lambda rows: rows.unflatten(1, (patch, patch, _CHANNELS)).permute(0, 3, 1, 2),
        lambda ours, _config: (ours.permute(0, 2, 3, 1).flatten(1),),
    )
    pieces["patch_embed.proj.bias"] = same(f"{_PREFIX}proj.bias")
    del pieces["proj.weight"]  # the stored name, without `_PREFIX`
    pieces.pop("proj.bias", None)
    if any(name in names for name in _AXES):  # the sum cannot be divided into its two tables, so `split` returns None
        pieces["pos_embed"] = Piece(
            _AXES, lambda y, x: (y[:, :, None] + x[:, None]).flatten(1, 2), lambda *_: (None, None)
        )
    else:
        pieces["pos_embed"] = Piece(
            (_TABLE,), lambda table: table.flatten(1, 2), lambda ours, config: (ours.reshape(1, *config.grid, -1),)
        )
    return pieces


BEIT_PREPROCESS = {**_HALF, "crop_pct": 0.9}
_TABLE_BEIT = r"(blocks\.\d+\.attn\.(rel_pos\.)?|rel_pos_bias\.|shared_rel_pos\.)relative_position_bias_table$"
_MLP_PREFIX = r"(blocks\.\d+\.attn\.rel_pos|shared_rel_pos)"
_MLP = rf"{_MLP_PREFIX}\.mlp\.fc[12]\.(weight|bias)$"


def recognise_beit(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint with relative positions as attention biases (BEiT, ...); None for any other."""
    names = checkpoint.tensors
    if not has(names, r"blocks\.\d+\.norm[12]\.") or has(names, r"(layers|stages)\."):
        return None
    is_table = has(names, _TABLE_BEIT)
    if not is_table and not has(names, _MLP):
        return None
    name = "timm (BEiT)" if is_table else "timm (ViT with relative positions)"
    require(checkpoint, name, "patch_embed.proj.weight")
    architecture = architecture_of(checkpoint)
    if is_table or "_cls" in architecture:
        require(checkpoint, name, "cls_token")

    described = stored_description(checkpoint)
    settings = {**fields_from_config(checkpoint), **described.get("fields", {})}
    if is_table:  # of biases, (offsets, heads)
        is_in_blocks = has(names, r"blocks\.\d+\.attn\.(rel_pos\.)?relative_position_bias_table$")
        tables = shapes_like(names, _TABLE_BEIT)
        fields: dict[str, Any] = {
            "position": "relative_bias",
            "position_at": "every_layer" if is_in_blocks else "shared",
            "class_token": True,
            "pool": "gap" if has(names, r"fc_norm\.") else "token",
            "heads": most_common(shape[1] for shape in tables if len(shape) == 2) or None,
        }
    else:
        fields = _mlp_fields(names)
    size = _size_of_tables(names) if is_table else described.get("image_size")
    assumed: dict[str, str] = {}
    if fields.get("norm") == "res-post":
        assumed["norm"] = (
            "res-post, because there is no LayerScale, as in timm's vit_relpos_*_rpn_*; if wrong: norm='pre'"
        )
    if is_table and "preprocess" not in described:
        assumed["family"] = (
            "BEiT, whose images have mean and std 0.5; BEiTv2 has the same tensors and ImageNet's mean and std: for "
            "that, use --preprocess deit"
        )
    if not architecture and "cls_token" not in names:
        reason = "none, because there is no cls_token; timm's vit_relpos_*_cls_* and vit_relpos_*_clsgap_* have one"
        assumed |= {"class_token": f"{reason}: if the file has lost it, predictions are wrong"}
    if size is None:
        size = (224, 224)
        assumed["image_size"] = "224 pixels, as is usual in timm; if wrong: image_size=..."
    return Layout(
        format=name,
        pieces=_beit_pieces(names),
        fields={**FIELDS, **fields, **settings},
        preprocess=described.get("preprocess", BEIT_PREPROCESS),
        is_preprocess_known="preprocess" in described,
        classes=described.get("classes"),
        image_size=size,
        assumed={field: text for field, text in assumed.items() if field not in settings},
        dropped={name: "it follows from the grid" for name in names if name.endswith("relative_position_index")},
    )


def _beit_pieces(names: Names) -> dict[str, Piece]:
    """Return the `Piece`s of all tensors, including positions that all blocks share."""
    pieces = pieces_of(names)
    shared = {}  # the stored name of each shared tensor, by vitkit's name
    if has(names, r"shared_.*mlp"):
        shared = {f"rel_pos.0.{part}": f"shared_rel_pos.{part}" for part in MLP_PARTS}
    for prefix in ("rel_pos_bias", "shared_rel_pos"):
        if f"{prefix}.relative_position_bias_table" in names:
            shared["rel_pos.0.table"] = f"{prefix}.relative_position_bias_table"
    for ours, theirs in shared.items():
        pieces.pop(theirs, None)
        pieces[ours] = same(theirs)
    return pieces


def _mlp_fields(names: Names) -> dict[str, Any]:
    """Return the fields of a model whose biases are computed by MLPs, with weights (size, 2) and (heads, size)."""
    has_token = "cls_token" in names
    fc1, fc2 = (shapes_like(names, rf"{_MLP_PREFIX}\.mlp\.{layer}\.weight$") for layer in ("fc1", "fc2"))
    return {
        "position": "relative_mlp",
        "position_at": "shared" if has(names, r"shared_rel_pos\.") else "every_layer",
        "class_token": has_token,
        "pool": "token" if has_token and not has(names, r"fc_norm\.") else "gap",
        "norm": "pre" if has(names, r"blocks\.\d+\.ls[12]\.") else "res-post",
        "heads": most_common(shape[0] for shape in fc2 if shape) or None,
        "relative_size": most_common(shape[0] for shape in fc1 if shape) or None,
    }


def _size_of_tables(names: Names) -> tuple[int, int]:
    """Infer the image size (height, width) in pixels from the tables of biases, whose patch grid must be square."""
    rows = most_common(shape[0] for shape in shapes_like(names, _TABLE_BEIT) if shape)
    offsets = rows - 3 if "cls_token" in names else rows  # the class token has three rows of its own
    side = math.isqrt(max(offsets, 0))  # the number of offsets along one axis, 2 h - 1
    if side * side != offsets or side % 2 == 0:
        raise VitkitError(
            "weights.tensor-misshapen",
            f"the relative position tables have {offsets} offsets, which is not the number for a square grid of "
            "patches",
        )
    kernel = names["patch_embed.proj.weight"].shape
    return (side + 1) // 2 * kernel[-2], (side + 1) // 2 * kernel[-1]
