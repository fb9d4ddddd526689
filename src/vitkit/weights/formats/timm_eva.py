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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitkit.data.preprocess import CLIP_MEAN, CLIP_STD, HALF, IMAGENET_MEAN, IMAGENET_STD
from vitkit.errors import VitkitError
from vitkit.weights.checkpoint import Checkpoint, StoredTensor
from vitkit.weights.formats.timm import FIELDS, description_of, written
from vitkit.weights.layout import Layout, Piece, joined, require, same, without_keys

MLP_PARTS = ("mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias")
Names = Mapping[str, StoredTensor]
_CROP = {"fit": "crop", "interpolation": "bicubic", "crop_pct": 1.0}
_CLIP = {**_CROP, "crop_pct": 0.9, "mean": CLIP_MEAN, "std": CLIP_STD}
_HALF = {**_CROP, "mean": HALF, "std": HALF}
_IMAGENET = {**_CROP, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
_HEADS = {  # by family and hidden size, if a head does not have 64 features or families differ
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
        pixels: the preprocessing, as fields of `Preprocess`.
        needs: tensors that all models of the family have.
        side: the side of square images in pixels, if nothing else states it; 0 if tensors determine it.
        assumed: for each field with an assumed value, a message about the value and how to change it.
    """

    name: str
    fields: Mapping[str, Any]
    pixels: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    side: int = 0
    assumed: Mapping[str, str] = field(default_factory=dict)


def recognise(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint if it belongs to one of the `Eva` families; None for any other.

    Raises:
        VitkitError: the checkpoint lacks a tensor that all models of its family have.
    """
    names = checkpoint.tensors
    if not has(names, r"blocks\.\d+\.(attn|mlp)\.") or has(names, r"blocks\.\d+\.attn\.(q_norm|gate|rel.*table)"):
        return None  # Sapiens, which has fewer keys than queries; BEiT
    architecture = str((checkpoint.config or {}).get("architecture", ""))
    family = _family(names, architecture)
    if family is None:
        return None
    require(checkpoint, family.name, "patch_embed.proj.weight", *family.needs)
    described = description_of(checkpoint)
    fields = {**written(checkpoint), **described.get("fields", {})}
    size = described.get("image_size")
    assumed = dict(family.assumed)
    if size is None and "pos_embed" not in names and family.side:
        size = (family.side, family.side)
        assumed["image_size"] = f"{family.side} pixels, as timm has the family: no tensor tells; image_size=... does"
    return Layout(
        format=f"timm ({family.name})",
        pieces=pieces_of(names),
        fields={**FIELDS, **family.fields, **fields},
        preprocess=described.get("preprocess", family.pixels),
        is_preprocess_known="preprocess" in described,
        classes=described.get("classes"),
        image_size=size,
        assumed={name: text for name, text in assumed.items() if name not in fields},
    )


# --- Which family ---------------------------------------------------------------------------------------------


def _family(names: Names, architecture: str) -> Family | None:
    """Return the family whose distinguishing tensors the checkpoint has; None if there is none."""
    is_scaled = has(names, r"blocks\.\d+\.gamma_[12]$")
    if has(names, r"norm_pre\."):
        is_encoder = has(names, r"attn_pool\.") or not has(names, r"norm\.")
        return _perception_encoder(names) if is_encoder else None
    if is_scaled and has(names, r"blocks\.\d+\.attn\.qkv\.bias$"):
        return _rope_vit(names)
    if is_scaled and has(names, r"fc_norm\."):
        is_beit = "cls_token" in names  # without its tables, or `recognise_beit` would have recognised it
        table = ("rel_pos_bias.relative_position_bias_table",)
        if is_beit:
            return Family("BEiT", {}, _HALF, table)
        fields = {
            "rotary": "eva", "rotary_base": 10_000.0, "rotary_grid": (16, 16), "position": "none",
            "pool": "gap", "class_token": False,
        }  # fmt: skip
        says = "eva, of base 10000 on a grid of 16x16, because that is timm's vit_*_rope_reg*_gap_256: no tensor tells"
        assumed = {"rotary": f"{says}; if wrong: rotary=..., rotary_base=..., rotary_grid=..."}
        return Family("rotary ViT", fields, {**_HALF, "crop_pct": 0.95}, ("reg_token",), 256, assumed)
    if is_scaled:
        return _dinov3(names, architecture)
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
    needs = ("cls_token", "pos_embed")
    fields = {"pool": "gap" if has(names, r"fc_norm\.") else "token", "class_token": True}
    into, out_of = (shapes_like(names, rf"blocks\.\d+\.mlp\.{layer}\.weight$") for layer in ("fc1", "fc2"))
    gated = [a for a, b in zip(into, out_of, strict=False) if len(a) == len(b) == 2 and a[0] == 2 * b[1]]
    if has(names, r"blocks\.\d+\.mlp\.fc1_[gx]\.") or 2 * len(gated) > len(into):
        says = "eva, of base 10000 on a grid of 16x16, because that is EVA-02's, at all of its sizes"
        turn = {"rotary": "eva", "rotary_base": 10_000.0, "rotary_grid": (16, 16)}
        assumed = {"rotary": f"{says}: no tensor tells; if wrong: rotary=..., rotary_base=..., rotary_grid=..."}
        return Family("EVA-02", {**fields, **turn}, _CLIP, needs, assumed=assumed)
    sizes = _sizes(names)
    is_after = "enormous" in architecture or sizes == (64, 1792)
    assumed = {}
    if fields["pool"] == "token" and not architecture:
        taken, other = ("res-post", "pre") if is_after else ("pre", "res-post")
        which = "EVA-02-CLIP's enormous model" if is_after else "EVA-CLIP's giant one"
        assumed["norm"] = (
            f"{taken}, because {sizes[0]} layers of {sizes[1]} features are taken for {which}; the two have tensors of "
            f"the same names; if wrong: norm='{other}'"
        )
    heads = _HEADS["EVA"].get(sizes[1])
    more = {"norm": "res-post" if is_after else "pre", **({} if heads is None else {"heads": heads})}
    return Family("EVA", {**fields, **more}, _CLIP, needs, assumed=assumed)


def _perception_encoder(names: Names) -> Family:
    is_core = has(names, r"attn_pool\.")
    shape = names["pos_embed"].shape if "pos_embed" in names else ()
    patches = max(shape[1] - ("cls_token" in names), 0) if len(shape) == 3 else 0
    side = math.isqrt(patches)
    fields: dict[str, Any] = {
        "rotary": "axial", "rotary_base": 10_000.0, "rotary_offset": int("cls_token" in names),
        "rotary_grid": (side, side) if 0 < side * side == patches else None, "norm_eps": 1e-5,
        "pool": "map" if is_core else "gap",
        "last_norm": is_core, "class_token": "cls_token" in names,
    }  # fmt: skip
    heads = _HEADS["Perception Encoder"].get(_sizes(names)[1])
    fields |= {} if heads is None else {"heads": heads}
    grid = "x".join(map(str, fields["rotary_grid"] or ()))
    assumed = {
        "rotary": f"axial, of base 10000 on a grid of {grid}, patches counted from {fields['rotary_offset']}, because "
        "that is Perception Encoder's, of the grid that its positions were learned on: no tensor tells; if wrong: "
        "rotary_base=..., rotary_grid=..., rotary_offset=..."
    }
    if is_core:
        fields["pool_heads"] = 8
        assumed["pool_heads"] = "8, as all of Perception Encoder's have; pool_heads=... says otherwise"
    return Family("Perception Encoder", fields, _HALF, ("pos_embed",), assumed=assumed)


def _rope_vit(names: Names) -> Family:
    is_mixed, is_placed = "rope.freqs" in names, "pos_embed" in names
    base = 10.0 if is_mixed else 100.0
    fields = {
        "rotary": "mixed" if is_mixed else "axial", "rotary_base": base, "prefix_positions": False,
        "position": "learned_1d" if is_placed else "none", "pool": "token", "class_token": True,
    }  # fmt: skip
    says = "mixed, as rope.freqs is there" if is_mixed else "axial, of base 100, as rope.freqs is not there"
    assumed = {
        "rotary": f"{says}, because that is RoPE-ViT's; if wrong: rotary_base=...",
        "position": f"{fields['position']}, as pos_embed is {'there' if is_placed else 'not there'}: RoPE-ViT has both",
    }
    return Family("RoPE-ViT", fields, {**_IMAGENET, "crop_pct": 0.9}, ("cls_token",), 224, assumed)


def _dinov3(names: Names, architecture: str) -> Family:
    pool = "token" if "lingbot" in architecture else "gap"
    fields = {
        "rotary": "dinov3", "rotary_base": 100.0, "position": "none", "norm_eps": 1e-5,
        "pool": pool, "class_token": True,
    }  # fmt: skip
    heads = _HEADS["DINOv3"].get(_sizes(names)[1])
    fields |= {} if heads is None else {"heads": heads}
    assumed = {
        "rotary": "dinov3, of base 100, because that is DINOv3's: no tensor tells; if wrong: rotary_base=...",
        "pool": f"{pool}, as timm reads DINOv3; LingBot-Vision has the same tensors and reads its class token, as "
        "DINOv3's authors do: pool='token' says so",
    }
    if architecture:
        del assumed["pool"]
    return Family("DINOv3", fields, _IMAGENET, ("cls_token", "reg_token"), 256, assumed)


# --- What the tensors say -------------------------------------------------------------------------------------


def has(names: Names, pattern: str) -> bool:
    return any(map(re.compile(pattern).match, names))


def shapes_like(names: Names, pattern: str) -> list[tuple[int, ...]]:
    return [names[name].shape for name in sorted(names) if re.match(pattern, name)]


def _sizes(names: Names) -> tuple[int, int]:
    """Return the number of layers and the hidden size."""
    layers = {match[1] for name in names if (match := re.match(r"blocks\.(\d+)\.", name))}
    sizes = [shape[0] for shape in shapes_like(names, r"blocks\.\d+\.norm[12]\.weight$") if shape]
    return len(layers), max(sizes, key=sizes.count, default=0)


# --- Tensors under our names ----------------------------------------------------------------------------------


def pieces_of(names: Names) -> dict[str, Piece]:
    """Return the `Piece`s of the tensors of an `Eva` model, which may be stored in several ways.

    vitkit's model has one layer for q, k and v, one layer for gate and value, and LayerScale layers.
    """
    pieces = {name: same(name) for name in names}
    blocks = {match[1] for name in names if (match := re.match(r"(blocks\.\d+)\.", name))}
    forms: dict[str, list[tuple[str, Piece]]] = {}  # for each block, the parts that timm stores in different ways
    used: set[int] = set()  # the ways that any block uses
    for block in blocks:
        table = block.replace("blocks", "rel_pos")
        q, k, v, gate, value = (
            f"{block}.{part}" for part in ("attn.q_proj", "attn.k_proj", "attn.v_proj", "mlp.fc1_g", "mlp.fc1_x")
        )
        forms[block] = [
            (f"{block}.attn.qkv.weight", joined(f"{q}.weight", f"{k}.weight", f"{v}.weight")),
            (f"{block}.attn.qkv.bias", without_keys(f"{q}.bias", f"{v}.bias")),
            (f"{block}.attn.qkv.bias", without_keys(f"{block}.attn.q_bias", f"{block}.attn.v_bias")),
            (f"{block}.mlp.fc1.weight", joined(f"{gate}.weight", f"{value}.weight")),
            (f"{block}.mlp.fc1.bias", joined(f"{gate}.bias", f"{value}.bias")),
            (f"{block}.ls1.gamma", same(f"{block}.gamma_1")),
            (f"{block}.ls2.gamma", same(f"{block}.gamma_2")),
            (f"{table}.table", same(f"{block}.attn.relative_position_bias_table")),
            (f"{table}.table", same(f"{block}.attn.rel_pos.relative_position_bias_table")),
            *((f"{table}.{part}", same(f"{block}.attn.rel_pos.{part}")) for part in MLP_PARTS),
        ]
        used |= {i for i, (_, piece) in enumerate(forms[block]) if any(name in names for name in piece.theirs)}
    for parts in forms.values():
        for ours, piece in (parts[i] for i in sorted(used)):
            pieces[ours] = piece
            for theirs in piece.theirs:
                pieces.pop(theirs, None)
    return pieces


_AHEAD = "embeds."
_CHANNELS = 3
_TABLE, _AXES = f"{_AHEAD}pos_embed", (f"{_AHEAD}pos_embed_y", f"{_AHEAD}pos_embed_x")
# The C-RADIOv3 models whose positions are resized with aligned corners, as (registers, hidden size).
_ALIGNED = {"naflexvit_base_patch16_radio_v3": (7, 768), "naflexvit_huge_patch16_radio_v3": (7, 1280)}


def recognise_naflex(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint if it is a NaFlexViT; None for any other."""
    names = checkpoint.tensors
    if not any(name.startswith(_AHEAD) for name in names):
        return None
    architecture = str((checkpoint.config or {}).get("architecture", ""))
    family = _family_naflex(names, architecture)
    require(checkpoint, f"timm, {family.name}", f"{_AHEAD}proj.weight", *family.needs)
    shape = names[f"{_AHEAD}proj.weight"].shape
    patch = math.isqrt(shape[1] // _CHANNELS) if len(shape) == 2 else 0  # pixels
    if not patch or _CHANNELS * patch * patch != shape[1]:
        raise VitkitError(
            "weights.tensor-misshapen",
            f"{checkpoint.path} (timm): {_AHEAD}proj.weight must take the numbers of a square patch of {_CHANNELS} "
            f"channels, not be of shape {shape}",
        )
    trained_size = None  # (height, width) in pixels of the grid of the position embeddings
    if _TABLE in names and len(names[_TABLE].shape) == 4:
        trained_size = names[_TABLE].shape[1] * patch, names[_TABLE].shape[2] * patch
    elif all(name in names and len(names[name].shape) == 3 for name in _AXES):
        trained_size = names[_AXES[0]].shape[1] * patch, names[_AXES[1]].shape[1] * patch
    described = description_of(checkpoint)
    fields = {**written(checkpoint), **described.get("fields", {})}
    if "gelu" in family.fields:  # timm's config.json does not state it
        fields["gelu"] = family.fields["gelu"]
    size = described.get("image_size", (family.side, family.side))
    resize = family.fields["position_resize"]
    assumed = {
        "image_size": f"{size[0]}x{size[1]} pixels, of every image: {family.name} can take each at a size of its own, "
        "which is not used; image_size=... says another",
        "position_resize": f"{resize}, because that is {family.name}'s in timm: no tensor tells; if wrong: "
        "position_resize=...",
    }
    if resize == "timm":
        assumed["position_resize"] += (
            ". Of images that are not square, naflexvit_base_patch16_par_gap cuts its positions out of a square's "
            "instead"
        )
    return Layout(
        format=f"timm ({family.name})",
        pieces=_pieces(names, patch),
        fields={**FIELDS, **family.fields, **fields},
        preprocess=described.get("preprocess", family.pixels),
        is_preprocess_known="preprocess" in described,
        classes=described.get("classes"),
        image_size=trained_size,
        pixel_size=size,
        assumed={name: text for name, text in assumed.items() if name not in fields},
    )


def _family_naflex(names: Names, architecture: str) -> Family:
    """Return the family of a NaFlexViT, which the last layers of the model determine."""
    plain = {"class_token": False, "prefix_positions": False}
    if any(name.startswith("attn_pool.") for name in names):
        fields = plain | {"pool": "map", "gelu": "tanh", "position_resize": "siglip2"}
        return Family("SigLIP 2 NaFlex", fields, _HALF, ("norm.weight",), 384)
    if any(name.startswith(("norm.", "fc_norm.")) for name in names):
        is_by_axis = any(name in names for name in _AXES)
        fields = plain | {"pool": "gap", "position_resize": "linear" if is_by_axis else "timm"}
        return Family("NaFlexViT", fields, _HALF, ("fc_norm.weight", f"{_AHEAD}reg_token"), 384)
    shape = names[f"{_AHEAD}reg_token"].shape if f"{_AHEAD}reg_token" in names else ()
    registers, size = shape[-2:] if len(shape) == 3 else (0, 0)
    is_aligned = architecture in _ALIGNED if architecture else (registers, size) in _ALIGNED.values()
    fields = {
        "pool": "token", "class_token": True, "prefix_positions": False, "last_norm": False,
        "position_resize": "linear_aligned" if is_aligned else "linear",
    }  # fmt: skip
    needs = (f"{_AHEAD}cls_token", f"{_AHEAD}reg_token", _TABLE)
    return Family("C-RADIO", fields, _HALF | {"mean": CLIP_MEAN, "std": CLIP_STD}, needs, 512)


# --- Tensors under our names ----------------------------------------------------------------------------------


def _pieces(names: Names, patch: int) -> dict[str, Piece]:
    pieces = {name.removeprefix(_AHEAD): same(name) for name in names if name not in _AXES}
    # The patch embedding is stored as a linear layer of flattened patches (height, width, C).
    pieces["patch_embed.proj.weight"] = Piece(
        (f"{_AHEAD}proj.weight",),
        lambda rows: rows.unflatten(1, (patch, patch, _CHANNELS)).permute(0, 3, 1, 2),
        lambda ours, _config: (ours.permute(0, 2, 3, 1).flatten(1),),
    )
    pieces["patch_embed.proj.bias"] = same(f"{_AHEAD}proj.bias")
    del pieces["proj.weight"]  # the stored name, without `_AHEAD`
    pieces.pop("proj.bias", None)
    pieces["pos_embed"] = (
        Piece(_AXES, lambda y, x: (y[:, :, None] + x[:, None]).flatten(1, 2), lambda _ours, _config: (None, None))
        if any(name in names for name in _AXES)
        else Piece(
            (_TABLE,), lambda table: table.flatten(1, 2), lambda ours, config: (ours.reshape(1, *config.grid, -1),)
        )
    )
    return pieces


BEIT_PIXELS = {**_HALF, "crop_pct": 0.9}
_TABLE_BEIT = (
    r"(blocks\.(?P<layer>\d+)\.attn\.(rel_pos\.)?|rel_pos_bias\.|shared_rel_pos\.)relative_position_bias_table$"
)
_MLP = r"(blocks\.(?P<layer>\d+)\.attn\.rel_pos|shared_rel_pos)\.(?P<part>mlp\.fc[12]\.(weight|bias))$"


def recognise_beit(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint with relative positions as attention biases (BEiT, ...); None for any other."""
    names = checkpoint.tensors
    is_table, is_mlp = has(names, _TABLE_BEIT), has(names, _MLP)
    if not (is_table or is_mlp) or not has(names, r"blocks\.\d+\.norm[12]\.") or has(names, r"(layers|stages)\."):
        return None
    name = "timm (BEiT)" if is_table else "timm (ViT with relative positions)"
    require(checkpoint, name, "patch_embed.proj.weight")
    architecture = str((checkpoint.config or {}).get("architecture", ""))
    if is_table or "_cls" in architecture:
        require(checkpoint, name, "cls_token")
    described = description_of(checkpoint)
    settings = {**written(checkpoint), **described.get("fields", {})}
    if is_table:
        is_shared = not has(names, r"blocks\.\d+\.attn\.(rel_pos\.)?relative_position_bias_table$")
        fields: dict[str, Any] = {
            "position": "relative_bias",
            "position_at": "shared" if is_shared else "every_layer",
            "class_token": True,
            "pool": "gap" if has(names, r"fc_norm\.") else "token",
            **_heads(shape[1] for shape in shapes_like(names, _TABLE_BEIT) if len(shape) == 2),
        }
        assumed: dict[str, str] = {}
    else:
        fields, assumed = _mlp_fields(names)
    if is_table and "preprocess" not in described:
        assumed["family"] = (
            "BEiT, whose pixels have mean and std 0.5; BEiTv2 has the same tensors and ImageNet's: if this is one, "
            "--preprocess deit says so"
        )
    if not architecture and "cls_token" not in names:
        says = "none, because there is no cls_token; timm's vit_relpos_*_cls_* and vit_relpos_*_clsgap_* have one"
        assumed |= {"class_token": f"{says}: if the file has lost it, the answers are wrong"}
    pieces = pieces_of(names)
    shared = (
        {f"rel_pos.0.{part}": f"shared_rel_pos.{part}" for part in MLP_PARTS} if has(names, r"shared_.*mlp") else {}
    )
    for prefix in ("rel_pos_bias", "shared_rel_pos"):
        if f"{prefix}.relative_position_bias_table" in names:
            shared["rel_pos.0.table"] = f"{prefix}.relative_position_bias_table"
    for ours, theirs in shared.items():  # of all blocks
        pieces.pop(theirs, None)
        pieces[ours] = same(theirs)
    size = _size_of_tables(names) if is_table else described.get("image_size")
    if size is None:
        size = (224, 224)
        assumed["image_size"] = "224 pixels, as timm has the family: no tensor tells; image_size=... does"
    return Layout(
        format=name,
        pieces=pieces,
        fields={**FIELDS, **fields, **settings},
        preprocess=described.get("preprocess", BEIT_PIXELS),
        is_preprocess_known="preprocess" in described,
        classes=described.get("classes"),
        image_size=size,
        assumed={field: text for field, text in assumed.items() if field not in settings},
        dropped={name: "it follows from the grid" for name in names if name.endswith("relative_position_index")},
    )


def _mlp_fields(names: Names) -> tuple[dict[str, Any], dict[str, str]]:
    has_token, is_after = "cls_token" in names, not has(names, r"blocks\.\d+\.ls[12]\.")
    fields: dict[str, Any] = {
        "position": "relative_mlp",
        "position_at": "shared" if has(names, r"shared_rel_pos\.") else "every_layer",
        "class_token": has_token,
        "pool": "token" if has_token and not has(names, r"fc_norm\.") else "gap",
        "norm": "res-post" if is_after else "pre",
    }
    assumed = {}
    if is_after:
        assumed["norm"] = (
            "res-post, because there is no LayerScale, as in timm's vit_relpos_*_rpn_*; if wrong: norm='pre'"
        )
    fc1, fc2 = (shapes_like(names, _MLP.replace("fc[12]", f"fc{i}").replace("(weight|bias)", "weight")) for i in (1, 2))
    fields |= _heads(shape[0] for shape in fc2 if shape)
    sizes = [shape[0] for shape in fc1 if shape]
    return fields | ({"relative_size": max(sizes, key=sizes.count)} if sizes else {}), assumed


def _heads(counts: Iterable[int]) -> dict[str, int]:
    heads = list(counts)
    return {"heads": max(heads, key=heads.count)} if heads else {}


def _size_of_tables(names: Names) -> tuple[int, int]:
    """Infer the image size (height, width) in pixels from the tables of biases, whose patch grid must be square."""
    rows = [shape[0] for shape in shapes_like(names, _TABLE_BEIT) if shape]
    offsets = max(rows, key=rows.count) - 3 * ("cls_token" in names)
    across = math.isqrt(max(offsets, 0))
    if across * across != offsets or across % 2 == 0:
        raise VitkitError(
            "weights.tensor-misshapen",
            f"the relative position tables have {offsets} offsets, which is not the number for a square grid of "
            "patches",
        )
    kernel = names["patch_embed.proj.weight"].shape
    return (across + 1) // 2 * kernel[-2], (across + 1) // 2 * kernel[-1]
