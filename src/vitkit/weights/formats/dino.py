"""The authors' own files of DINOv2 (arXiv 2304.07193) and of its register models (arXiv 2309.16588).

timm's names but for registers, gated MLP and mask token. The class token has a position, the registers have none.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from vitkit.data.preprocess import IMAGENET_MEAN, IMAGENET_STD
from vitkit.weights.checkpoint import Checkpoint
from vitkit.weights.layout import Layout, folded_positions, same

PIXELS = {
    "fit": "crop",
    "interpolation": "bicubic",
    "crop_pct": 224 / 256,
    "mean": IMAGENET_MEAN,
    "std": IMAGENET_STD,
}
_BLOCK = re.compile(r"^(blocks\.(?:\d+\.)?(\d+)\.)(.+)")  # may be in chunks, as they were trained: chunk, then layer
_RENAMED = {".mlp.w12.": ".mlp.fc1.", ".mlp.w3.": ".mlp.fc2."}


def recognise(checkpoint: Checkpoint) -> Layout | None:
    """The layout of this checkpoint, if it is DINOv2's own."""
    names = checkpoint.tensors
    has_blocks = any(re.match(r"blocks\.(\d+\.)?\d+\.ls1\.gamma$", name) for name in names)
    if not has_blocks or not ({"register_tokens", "mask_token"} & set(names) or any(".mlp.w12." in n for n in names)):
        return None
    pieces = {_our_name(name): same(name) for name in (*_absent(names), *names)}
    has_registers = "register_tokens" in names
    if has_registers:
        pieces |= folded_positions("cls_token", "pos_embed")
    fields: dict[str, Any] = {
        "gelu": "erf",
        "class_token": True,
        "prefix_positions": not has_registers,
        "norm_eps": 1e-6,
        "position_resize": "timm" if has_registers else "dinov2",  # with registers: size and antialias
    }
    dropped = {name: "trained to predict masked patches" for name in names if name == "mask_token"}
    dropped |= {name: "DINOv2's projection head" for name in names if name.startswith(("dino_head.", "ibot_head."))}
    return Layout(format="DINOv2", pieces=pieces, fields=fields, preprocess=PIXELS, dropped=dropped)


def _absent(names: Collection[str]) -> list[str]:
    """What the file would call the tensors that it lacks: what one block has, all have."""
    found = [match for name in names if (match := _BLOCK.fullmatch(name))]
    blocks, parts = ({match[group]: None for match in found} for group in (1, 3))
    expected = ["register_tokens", *(block + part for block in blocks for part in parts)]
    return [name for name in expected if name not in names]


def _our_name(name: str) -> str:
    if name == "register_tokens":
        return "reg_token"
    for theirs, ours in _RENAMED.items():
        name = name.replace(theirs, ours)
    return _BLOCK.sub(r"blocks.\2.\3", name)
