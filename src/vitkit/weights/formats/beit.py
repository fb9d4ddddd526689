"""timm's BEiT, BEiTv2 and ViTs with relative positions, whose attention's logits have a bias for each offset."""

from __future__ import annotations

import math
from typing import Any

from vitkit.data.preprocess import HALF
from vitkit.errors import VitkitError
from vitkit.weights.checkpoint import Checkpoint
from vitkit.weights.formats.eva import MLP_PARTS, Names, has, pieces_of, shapes_like
from vitkit.weights.formats.timm import FIELDS, beside, written
from vitkit.weights.layout import Layout, Piece, same

PIXELS = {"fit": "crop", "interpolation": "bicubic", "crop_pct": 0.9, "mean": HALF, "std": HALF}
_TABLE = r"(blocks\.(?P<layer>\d+)\.attn\.(rel_pos\.)?|rel_pos_bias\.|shared_rel_pos\.)relative_position_bias_table$"
_MLP = r"(blocks\.(?P<layer>\d+)\.attn\.rel_pos|shared_rel_pos)\.(?P<part>mlp\.fc[12]\.(weight|bias))$"
_SIDE = 224  # of images, where neither a tensor nor a file beside tells


def recognise(checkpoint: Checkpoint) -> Layout | None:
    """The layout of this checkpoint, if its positions are biases by offset.

    Raises:
        VitkitError: it is, and lacks what tells the sizes.
    """
    names = checkpoint.tensors
    is_table, is_mlp = has(names, _TABLE), has(names, _MLP)
    if not (is_table or is_mlp) or not has(names, r"blocks\.\d+\.norm[12]\.") or has(names, r"(layers|stages)\."):
        return None
    name = "timm (BEiT)" if is_table else "timm (ViT with relative positions)"
    if "patch_embed.proj.weight" not in names:
        raise VitkitError(f"{checkpoint.path} ({name}): patch_embed.proj.weight is missing")
    architecture = str((checkpoint.config or {}).get("architecture", ""))
    if "cls_token" not in names and (is_table or "_cls" in architecture):
        raise VitkitError(f"{checkpoint.path} ({name}): cls_token is missing")
    described = beside(checkpoint)
    told = {**written(checkpoint), **described.get("fields", {})}
    fields, assumed = (_of_tables if is_table else _of_mlps)(names)
    if is_table and "preprocess" not in described:
        assumed["family"] = (
            "BEiT, whose pixels have mean and std 0.5; BEiTv2 has the same tensors and ImageNet's: if this is one, "
            "--preprocess deit says so"
        )
    if not architecture and "cls_token" not in names:
        says = "none, because there is no cls_token; timm's vit_relpos_*_cls_* and vit_relpos_*_clsgap_* have one"
        assumed |= {"class_token": f"{says}: if the file has lost it, the answers are wrong"}
    size = _size_of_tables(names) if is_table else described.get("image_size")
    if size is None:
        size = (_SIDE, _SIDE)
        assumed["image_size"] = f"{_SIDE} pixels, as timm has the family: no tensor tells; image_size=... does"
    return Layout(
        format=name,
        pieces=_pieces(names),
        fields={**FIELDS, **fields, **told},
        preprocess=described.get("preprocess", PIXELS),
        is_preprocess_known="preprocess" in described,
        classes=described.get("classes"),
        image_size=size,
        assumed={field: text for field, text in assumed.items() if field not in told},
        dropped={name: "it follows from the grid" for name in names if name.endswith("relative_position_index")},
    )


def _of_tables(names: Names) -> tuple[dict[str, Any], dict[str, str]]:
    is_shared = not has(names, r"blocks\.\d+\.attn\.(rel_pos\.)?relative_position_bias_table$")
    fields = {
        "position": "relative_bias",
        "position_at": "shared" if is_shared else "every_layer",
        "class_token": True,
        "pool": "gap" if has(names, r"fc_norm\.") else "token",
    }
    return fields | _told_by(shape[1] for shape in shapes_like(names, _TABLE) if len(shape) == 2), {}


def _of_mlps(names: Names) -> tuple[dict[str, Any], dict[str, str]]:
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
    fields |= _told_by(shape[0] for shape in fc2 if shape)
    sizes = [shape[0] for shape in fc1 if shape]
    return fields | ({"relative_size": max(sizes, key=sizes.count)} if sizes else {}), assumed


def _told_by(heads: Any) -> dict[str, Any]:
    found = list(heads)
    return {"heads": max(found, key=found.count)} if found else {}


def _size_of_tables(names: Names) -> tuple[int, int]:
    """(height, width) in pixels of the square grid that the tables are of."""
    rows = [shape[0] for shape in shapes_like(names, _TABLE) if shape]
    offsets = max(rows, key=rows.count) - 3 * ("cls_token" in names)
    across = math.isqrt(max(offsets, 0))
    if across * across != offsets or across % 2 == 0:
        raise VitkitError(
            f"tables of {offsets} offsets are of no square grid of patches: vitkit loads square ones alone"
        )
    kernel = names["patch_embed.proj.weight"].shape
    return (across + 1) // 2 * kernel[-2], (across + 1) // 2 * kernel[-1]


def _pieces(names: Names) -> dict[str, Piece]:
    """As of `eva`; and one table or MLP for all blocks."""
    pieces = pieces_of(names)
    shared = (
        {f"rel_pos.0.{part}": f"shared_rel_pos.{part}" for part in MLP_PARTS} if has(names, r"shared_.*mlp") else {}
    )
    for prefix in ("rel_pos_bias", "shared_rel_pos"):
        if f"{prefix}.relative_position_bias_table" in names:
            shared["rel_pos.0.table"] = f"{prefix}.relative_position_bias_table"
    for ours, theirs in shared.items():
        pieces.pop(theirs, None)
        pieces[ours] = same(theirs)
    return pieces
