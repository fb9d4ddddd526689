"""How a foreign checkpoint names and shapes what we call by timm's names: pieces that can be read and written back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.model.config import MAX_LAYERS, ViTConfig

_GAP = 8  # blocks that may be missing of a checkpoint that is loaded in part
Join = Callable[..., Tensor]
Split = Callable[[Tensor, ViTConfig], tuple[Tensor | None, ...]]


@dataclass(frozen=True)
class Piece:
    """One of our tensors, as a layout stores it.

    Attributes:
        theirs: the names of the tensors that hold it.
        join: those tensors -> ours.
        split: ours -> those tensors; None in the place of one that another piece writes.
    """

    theirs: tuple[str, ...]
    join: Join
    split: Split


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A format as one checkpoint uses it.

    Attributes:
        format: its name, as a report says it.
        pieces: every tensor that the format may hold, by our name.
        fields: what the format, or a file beside the weights, says of the configuration.
        preprocess: what it says of the pixels: fields of `Preprocess`, but for the size.
        is_preprocess_known: whether that was written down with the weights, or is the format's custom.
        classes: names, where the checkpoint has them.
        image_size: (height, width), where a file beside the weights says so.
        pixel_size: (height, width) that the pixels are brought to, where the source fits its positions to that.
        assumed: fields that nothing says, and what was taken.
        dropped: tensors that are no part of the classifier, and why.
    """

    format: str
    pieces: Mapping[str, Piece]
    fields: Mapping[str, Any] = field(default_factory=dict)
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    is_preprocess_known: bool = False
    classes: tuple[str, ...] | None = None
    image_size: tuple[int, int] | None = None
    pixel_size: tuple[int, int] | None = None
    assumed: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)

    def theirs(self, name: str) -> tuple[str, ...]:
        """What the checkpoint calls one of our tensors."""
        return self.pieces[name].theirs if name in self.pieces else (name,)


def same(name: str) -> Piece:
    """Under another name, nothing else."""
    return Piece((name,), lambda tensor: tensor, lambda ours, _: (ours,))


def joined(*names: str) -> Piece:
    """Ours is theirs one after another, as q, k and v are in one linear layer."""
    return Piece(names, lambda *parts: torch.cat(parts), lambda ours, _: ours.chunk(len(names)))


def without_keys(q: str, v: str) -> Piece:
    """Biases of q and v alone: that of k stays at zero there."""

    def split(ours: Tensor, _config: ViTConfig) -> tuple[Tensor, Tensor]:
        of_q, _, of_v = ours.chunk(3)
        return of_q, of_v

    return Piece((q, v), lambda q, v: torch.cat([q, torch.zeros_like(q), v]), split)


def pair(ours: str, theirs: str, parts: tuple[str, ...] = ("weight", "bias")) -> dict[str, Piece]:
    """Weight and bias of a layer that has another name."""
    return {f"{ours}.{part}": same(f"{theirs}.{part}") for part in parts}


def with_axes(name: str, axes: int) -> Piece:
    """Under another name, with so many axes of length 1 ahead that theirs lacks."""
    return Piece((name,), lambda theirs: theirs[(None,) * axes], lambda ours, _: (ours.reshape(ours.shape[axes:]),))


def folded_positions(cls: str, positions: str) -> dict[str, Piece]:
    """Theirs give the class token a position and the registers none: we add it to the token, which is the same sum."""

    def unfold(ours: Tensor, _config: ViTConfig) -> tuple[Tensor, ...]:
        return (torch.cat([ours.new_zeros(1, 1, ours.shape[2]), ours], dim=1),)

    return {
        "cls_token": Piece((cls, positions), lambda token, table: token + table[:, :1], lambda ours, _: (ours, None)),
        "pos_embed": Piece((positions,), lambda table: table[:, 1:], unfold),
    }


def numbered(digits: str) -> int:
    """The number in a tensor's name.

    Raises:
        VitkitError: it is larger than that of any model: what is made for each would take hours.
    """
    if len(digits) > len(str(MAX_LAYERS)) or int(digits) >= MAX_LAYERS:
        raise VitkitError(f"a tensor's name has the number {digits:.12}, and no model is as deep as that")
    return int(digits)


def depth_of(digits: Iterable[str]) -> int:
    """How many blocks there are, by the numbers in the names of their tensors.

    Raises:
        VitkitError: a number is too large, or most of those below are missing.
    """
    found = {numbered(own) for own in digits}
    depth = max(found, default=-1) + 1
    if depth > 2 * len(found) + _GAP:
        raise VitkitError(f"a tensor's name has block {depth - 1}, and there are only {len(found)} blocks")
    return depth
