"""timm's NaFlexViT, whose grid follows each image: loaded at one size, where it is a ViT with a square of positions.

Among them SigLIP 2's NaFlex (arXiv 2502.14786) and NVIDIA's C-RADIO (arXiv 2412.07679). A linear layer takes the
numbers of a patch, pixel by pixel, which is a convolution whose kernel has another order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vitkit.data.preprocess import CLIP_MEAN, CLIP_STD, HALF
from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.weights.checkpoint import Checkpoint, Stored
from vitkit.weights.formats.timm import FIELDS, beside, written
from vitkit.weights.layout import Layout, Piece, same

_AHEAD = "embeds."
_CHANNELS = 3
_TABLE, _AXES = f"{_AHEAD}pos_embed", (f"{_AHEAD}pos_embed_y", f"{_AHEAD}pos_embed_x")
_PIXELS = {"fit": "crop", "interpolation": "bicubic", "crop_pct": 1.0, "mean": HALF, "std": HALF}
_ALIKE = ". Of images that are not square, naflexvit_base_patch16_par_gap cuts its positions out of a square's instead"
# Of C-RADIOv3 those whose positions are resized with aligned corners: registers, and features of a token.
_ALIGNED = {"naflexvit_base_patch16_radio_v3": (7, 768), "naflexvit_huge_patch16_radio_v3": (7, 1280)}


@dataclass(frozen=True)
class Family:
    """One family of these names.

    Attributes:
        name: as people say it.
        fields: of the configuration, which no tensor tells.
        needs: tensors that each of the family has.
        side: of a square image, in pixels, as timm has it.
        pixels: what its images are brought to.
    """

    name: str
    fields: Mapping[str, Any]
    needs: tuple[str, ...]
    side: int
    pixels: Mapping[str, Any]


def recognise(checkpoint: Checkpoint) -> Layout | None:
    """The layout of this checkpoint, if it is a NaFlexViT.

    Raises:
        VitkitError: it is, and lacks what tells its sizes, or has patches that are not square.
    """
    names = checkpoint.tensors
    if not any(name.startswith(_AHEAD) for name in names):
        return None
    architecture = str((checkpoint.config or {}).get("architecture", ""))
    family = _family(names, architecture)
    for name in (f"{_AHEAD}proj.weight", *family.needs):
        if name not in names:
            raise VitkitError(f"{checkpoint.path} (timm, {family.name}): {name} is missing")
    described = beside(checkpoint)
    told = {**written(checkpoint), **described.get("fields", {})}
    told |= {name: family.fields[name] for name in ("gelu",) if name in family.fields}  # timm's config.json is silent
    size = described.get("image_size", (family.side, family.side))
    resize = family.fields["position_resize"]
    assumed = {
        "image_size": f"{size[0]}x{size[1]} pixels, of every image: {family.name} can take each at a size of its own, "
        "which is not used; image_size=... says another",
        "position_resize": f"{resize}, because that is {family.name}'s in timm: no tensor tells; if wrong: "
        f"position_resize=...{_ALIKE if resize == 'timm' else ''}",
    }
    return Layout(
        format=f"timm ({family.name})",
        pieces=_pieces(names, checkpoint),
        fields={**FIELDS, **family.fields, **told},
        preprocess=described.get("preprocess", family.pixels),
        is_preprocess_known="preprocess" in described,
        classes=described.get("classes"),
        image_size=_trained_size(names, checkpoint),
        pixel_size=size,
        assumed={name: text for name, text in assumed.items() if name not in told},
    )


def _family(names: Mapping[str, Stored], architecture: str) -> Family:
    """By how it ends."""
    plain = {"class_token": False, "prefix_positions": False}
    if any(name.startswith("attn_pool.") for name in names):
        fields = plain | {"pool": "map", "gelu": "tanh", "position_resize": "siglip2"}
        return Family("SigLIP 2 NaFlex", fields, ("norm.weight",), 384, _PIXELS)
    if any(name.startswith(("norm.", "fc_norm.")) for name in names):
        is_by_axis = any(name in names for name in _AXES)
        fields = plain | {"pool": "gap", "position_resize": "linear" if is_by_axis else "timm"}
        return Family("NaFlexViT", fields, ("fc_norm.weight", f"{_AHEAD}reg_token"), 384, _PIXELS)
    needs = (f"{_AHEAD}cls_token", f"{_AHEAD}reg_token", _TABLE)
    fields = {"pool": "token", "class_token": True, "prefix_positions": False, "last_norm": False}
    return Family(
        "C-RADIO", fields | _radio(names, architecture), needs, 512, _PIXELS | {"mean": CLIP_MEAN, "std": CLIP_STD}
    )


def _radio(names: Mapping[str, Stored], architecture: str) -> dict[str, Any]:
    shape = names[f"{_AHEAD}reg_token"].shape if f"{_AHEAD}reg_token" in names else ()
    registers, size = shape[-2:] if len(shape) == 3 else (0, 0)
    is_aligned = architecture in _ALIGNED if architecture else (registers, size) in _ALIGNED.values()
    return {"position_resize": "linear_aligned" if is_aligned else "linear"}


# --- Tensors under our names ----------------------------------------------------------------------------------


def _pieces(names: Mapping[str, Stored], checkpoint: Checkpoint) -> dict[str, Piece]:
    pieces = {name.removeprefix(_AHEAD): same(name) for name in names if name not in _AXES}
    pieces["patch_embed.proj.weight"] = _kernel(f"{_AHEAD}proj.weight", _patch(names, checkpoint))
    pieces["patch_embed.proj.bias"] = same(f"{_AHEAD}proj.bias")
    del pieces["proj.weight"]
    pieces.pop("proj.bias", None)
    pieces["pos_embed"] = (
        Piece(_AXES, lambda y, x: (y[:, :, None] + x[:, None]).flatten(1, 2), lambda _ours, _config: (None, None))
        if any(name in names for name in _AXES)
        else Piece(
            (_TABLE,), lambda table: table.flatten(1, 2), lambda ours, config: (ours.reshape(1, *config.grid, -1),)
        )
    )
    return pieces


def _kernel(name: str, side: int) -> Piece:
    def split(ours: Tensor, _config: ViTConfig) -> tuple[Tensor]:
        return (ours.permute(0, 2, 3, 1).flatten(1),)

    return Piece((name,), lambda rows: rows.unflatten(1, (side, side, _CHANNELS)).permute(0, 3, 1, 2), split)


def _patch(names: Mapping[str, Stored], checkpoint: Checkpoint) -> int:
    shape = names[f"{_AHEAD}proj.weight"].shape
    side = math.isqrt(shape[1] // _CHANNELS) if len(shape) == 2 else 0
    if not side or _CHANNELS * side * side != shape[1]:
        raise VitkitError(
            f"{checkpoint.path} (timm): {_AHEAD}proj.weight must take the numbers of a square patch of {_CHANNELS} "
            f"channels, not be of shape {shape}"
        )
    return side


def _trained_size(names: Mapping[str, Stored], checkpoint: Checkpoint) -> tuple[int, int] | None:
    """(height, width) in pixels of the grid that has positions."""
    side = _patch(names, checkpoint)
    if _TABLE in names and len(names[_TABLE].shape) == 4:
        return names[_TABLE].shape[1] * side, names[_TABLE].shape[2] * side
    if all(name in names and len(names[name].shape) == 3 for name in _AXES):
        return names[_AXES[0]].shape[1] * side, names[_AXES[1]].shape[1] * side
    return None
