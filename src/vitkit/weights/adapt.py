"""Fitting a checkpoint's tensors to another image size, patch size or set of classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.load_report import Resized
from vitkit.model.resize import resize_grid, resize_offsets, resize_patch

Read = Callable[[], Tensor]


@dataclass
class Adapted:
    """The tensors of the target, and what had to be done for it.

    Attributes:
        read: every tensor of the target by name, as it will be.
        resized, replaced, dropped: as in `LoadReport`.
    """

    read: dict[str, Read]
    resized: list[Resized] = field(default_factory=list)
    replaced: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)


def adapt(read: Mapping[str, Read], source: ViTConfig, target: ViTConfig, shapes: Mapping[str, torch.Size]) -> Adapted:
    """From the tensors of `source` to those of `target`, which may differ in grid, patch, classes and representation.

    Args:
        read: every tensor of the source.
        source: the configuration of those tensors.
        target: the one that is wanted.
        shapes: of the target's tensors.

    Raises:
        VitkitError: positions of this kind cannot be resized.
    """
    adapted = Adapted(dict(read))
    _resize_positions(adapted, source, target)
    if source.patch_size != target.patch_size:
        name = "patch_embed.proj.weight"
        adapted.read[name] = _then(read[name], lambda kernel: resize_patch(kernel, target.patch_size))
        adapted.resized.append(Resized(name, source.patch_size, target.patch_size, "FlexiViT"))
    if (source.num_classes, source.feature_size) != (target.num_classes, target.feature_size):
        _replace_head(adapted, target, shapes)
    for name in [name for name in adapted.read if name not in shapes]:
        del adapted.read[name]
        is_head = name.startswith("head")
        adapted.dropped[name] = (
            "no head was asked for" if is_head else "the representation layer belongs to the old head"
        )
    return adapted


def _resize_positions(adapted: Adapted, source: ViTConfig, target: ViTConfig) -> None:
    if source.grid == target.grid or source.position in ("none", "sincos_1d", "sincos_2d", "relative_mlp"):
        return
    convention = target.position_resize
    if source.position == "relative_bias":
        for name in [name for name in adapted.read if name.startswith("rel_pos.")]:
            adapted.read[name] = _then(adapted.read[name], partial(resize_offsets, old=source.grid, new=target.grid))
            adapted.resized.append(Resized(name, source.grid, target.grid, "BEiT"))
        return
    if source.position == "relative":
        raise VitkitError(
            f"relative positions were learned for {source.image_size[0]}x{source.image_size[1]} pixels and cannot be "
            f"resized: leave image_size as it is"
        )
    if source.position == "learned_2d":
        for name, axis in (("pos_embed.y", 0), ("pos_embed.x", 1)):
            old, new = (source.grid[axis], 1), (target.grid[axis], 1)
            adapted.read[name] = _then(
                adapted.read[name], partial(resize_grid, old=old, new=new, convention=convention)
            )
            adapted.resized.append(Resized(name, old[:1], new[:1], convention))
        return
    prefix = source.positioned_prefix

    def resize_patches(table: Tensor) -> Tensor:
        patches = resize_grid(table[:, prefix:], source.grid, target.grid, convention)
        return torch.cat([table[:, :prefix], patches], dim=1)  # (tables, prefix + h*w, D)

    adapted.read["pos_embed"] = _then(adapted.read["pos_embed"], resize_patches)
    adapted.resized.append(Resized("pos_embed", source.grid, target.grid, convention))


def _replace_head(adapted: Adapted, target: ViTConfig, shapes: Mapping[str, torch.Size]) -> None:
    """A new head is zero, as the paper's is for fine-tuning (sec. 3.2)."""
    for name in shapes:
        if name.startswith("head"):
            adapted.read[name] = lambda name=name: torch.zeros(shapes[name])  # type: ignore[misc]
            adapted.replaced[name] = f"{target.num_classes} classes, zero until it is trained"


def _then(read: Read, change: Callable[[Tensor], Tensor]) -> Read:
    return lambda: change(read())
