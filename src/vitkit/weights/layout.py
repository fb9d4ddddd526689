"""Layouts of published checkpoints: how each stores the tensors that vitkit calls by timm's names.

A `Layout` is made of pieces that can be read and written back. `account_for` compares a checkpoint with it, tensor by
tensor, so that nothing is loaded only in part by mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.model.config import MAX_LAYERS, ViTConfig
from vitkit.text.cells import listed

if TYPE_CHECKING:
    from vitkit.weights.checkpoint import StoredTensor

_GAP = 8  # blocks that a partially loaded checkpoint may lack
Join = Callable[..., Tensor]
Split = Callable[[Tensor, ViTConfig], tuple[Tensor | None, ...]]


@dataclass(frozen=True)
class Piece:
    """One of vitkit's tensors, as a layout stores it.

    Attributes:
        theirs: the names of the tensors that hold it.
        join: the function from those tensors to ours; None if the tensor merely has another name.
        split: the function from ours to those tensors; it returns None for a tensor that another piece writes. None if
            the tensor merely has another name.
    """

    theirs: tuple[str, ...]
    join: Join | None = None
    split: Split | None = None

    def joined(self, *parts: Tensor) -> Tensor:
        """Join the stored tensors into ours."""
        return parts[0] if self.join is None else self.join(*parts)

    def parts_of(self, ours: Tensor, config: ViTConfig) -> tuple[Tensor | None, ...]:
        """Split our tensor into the stored ones."""
        return (ours,) if self.split is None else self.split(ours, config)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A format as one checkpoint uses it.

    Attributes:
        format: the name that reports show.
        pieces: every tensor that the format may hold, by our name.
        fields: fields of the configuration that the format, or a file beside the weights, determines.
        preprocess: fields of `Preprocess`, except for the size.
        is_preprocess_known: whether `preprocess` was recorded with the weights, rather than being usual for the format.
        classes: the class names, if the checkpoint has them.
        image_size: (height, width), if a file beside the weights names it.
        pixel_size: (height, width) that images are resized to, if the source resizes its positions to that.
        assumed: fields that nothing determines, and the assumption in words.
        dropped: tensors that are not part of the classifier, and why.
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
        """Return the checkpoint's names for one of our tensors."""
        return self.pieces[name].theirs if name in self.pieces else (name,)

    def shapes(self, tensors: Mapping[str, StoredTensor]) -> dict[str, torch.Size]:
        """Return the shapes of our tensors that a checkpoint holds completely and does not drop."""
        shapes = {}
        for name, piece in self.pieces.items():
            shape = _joined_shape(piece, [tensors.get(theirs) for theirs in piece.theirs])
            if shape is not None and not set(piece.theirs) & set(self.dropped):
                shapes[name] = shape
        return shapes


@dataclass
class Account:
    """The comparison of a checkpoint's tensors with those that the model expects, by the checkpoint's names."""

    expected: Mapping[str, torch.Size]
    used: set[str]
    missing: list[str]
    left_over: list[str]
    misshapen: dict[str, str]
    unfit: list[str]

    @property
    def is_clean(self) -> bool:
        return not (self.missing or self.left_over or self.misshapen)

    def describe(self) -> str:
        parts = [("missing", self.missing), ("left over", self.left_over)]
        parts.append(("of another shape", [f"{name} ({why})" for name, why in self.misshapen.items()]))
        return "; ".join(f"{what}: {listed(names, 6)}" for what, names in parts if names)


def account_for(
    tensors: Mapping[str, StoredTensor], layout: Layout, config: ViTConfig, expected: Mapping[str, torch.Size]
) -> Account:
    """Compare the tensors of a checkpoint with the expected shapes of a model of this configuration."""
    account = Account(expected, set(), [], [], {}, [])
    for name, shape in expected.items():
        theirs = layout.theirs(name)
        account.used.update(theirs)
        absent = [part for part in theirs if part not in tensors]
        account.missing += [part for part in absent if part not in account.missing]
        piece = None if absent else layout.pieces.get(name)
        wrong = {} if piece is None else _wrong_shapes(piece, [tensors[part] for part in theirs], shape, config)
        account.misshapen |= wrong
        if absent or wrong:
            account.unfit.append(name)
    known = account.used | set(layout.dropped)
    account.left_over = [name for name in tensors if name not in known]
    return account


def _wrong_shapes(piece: Piece, stored: Sequence[StoredTensor], shape: torch.Size, config: ViTConfig) -> dict[str, str]:
    parts = piece.parts_of(torch.empty(shape, device="meta"), config)
    wrong = {
        theirs: f"expected {tuple(part.shape)}, not {tensor.shape}"
        for theirs, tensor, part in zip(piece.theirs, stored, parts, strict=False)
        if part is not None and _squeezed(part.shape) != _squeezed(tensor.shape)
    }
    integers = {
        theirs: "expected plain floats"
        for theirs, tensor in zip(piece.theirs, stored, strict=True)
        if not tensor.dtype.is_floating_point
    }
    if not wrong and _joined_shape(piece, stored) != shape:
        wrong = {
            theirs: f"expected {tuple(shape)}, not {tensor.shape}"
            for theirs, tensor in zip(piece.theirs, stored, strict=True)
        }
    return wrong | integers


def _joined_shape(piece: Piece, stored: Sequence[StoredTensor | None]) -> torch.Size | None:
    """Return the shape of one of our tensors; None if a part is missing or the parts cannot be joined."""
    if any(tensor is None for tensor in stored):
        return None
    try:
        return piece.joined(*(torch.empty(t.shape, device="meta") for t in stored if t is not None)).shape
    except (RuntimeError, IndexError):
        return None


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(side for side in shape if side != 1)


def same(name: str) -> Piece:
    """Return the piece of a tensor that merely has another name."""
    return Piece((name,))


def joined(*names: str) -> Piece:
    """Return the piece of several tensors that are concatenated in ours, as q, k and v are in one linear layer."""
    return Piece(names, lambda *parts: torch.cat(parts), lambda ours, _: ours.chunk(len(names)))


def without_keys(q: str, v: str) -> Piece:
    """Return the piece of biases for q and v alone; the bias of k is zero in such checkpoints."""

    def split(ours: Tensor, _config: ViTConfig) -> tuple[Tensor, Tensor]:
        q, _, v = ours.chunk(3)
        return q, v

    return Piece((q, v), lambda q, v: torch.cat([q, torch.zeros_like(q), v]), split)


def pair(ours: str, theirs: str, parts: tuple[str, ...] = ("weight", "bias")) -> dict[str, Piece]:
    """Return the pieces for the weight and bias of a layer that has another name."""
    return {f"{ours}.{part}": same(f"{theirs}.{part}") for part in parts}


def with_axes(name: str, axes: int) -> Piece:
    """Return the piece of a tensor that lacks so many leading axes of length 1."""
    return Piece((name,), lambda theirs: theirs[(None,) * axes], lambda ours, _: (ours.reshape(ours.shape[axes:]),))


def folded_positions(cls: str, positions: str) -> dict[str, Piece]:
    """Return the pieces for positions that include the class token, but not the registers.

    The class token's position is added to the token itself, which gives the same sum.
    """

    def unfold(ours: Tensor, _config: ViTConfig) -> tuple[Tensor, ...]:
        return (torch.cat([ours.new_zeros(1, 1, ours.shape[2]), ours], dim=1),)

    return {
        "cls_token": Piece((cls, positions), lambda token, table: token + table[:, :1], lambda ours, _: (ours, None)),
        "pos_embed": Piece((positions,), lambda table: table[:, 1:], unfold),
    }


def numbered(digits: str) -> int:
    """Convert the number in a tensor's name.

    Raises:
        VitkitError: the number is larger than any model is deep, so that building so many blocks would take hours.
    """
    if len(digits) > len(str(MAX_LAYERS)) or int(digits) >= MAX_LAYERS:
        raise VitkitError(f"a tensor's name has the number {digits:.12}, and no model is as deep as that")
    return int(digits)


def depth_of(digits: Iterable[str]) -> int:
    """Return the number of blocks, judged by the numbers in the names of their tensors.

    Raises:
        VitkitError: a number is too large, or most of those below it are missing.
    """
    numbers = {numbered(text) for text in digits}
    depth = max(numbers, default=-1) + 1
    if depth > 2 * len(numbers) + _GAP:
        raise VitkitError(f"a tensor's name has block {depth - 1}, and there are only {len(numbers)} blocks")
    return depth
