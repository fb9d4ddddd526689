"""Layouts of published checkpoints: the names and shapes under which a format stores the tensors of a model.

In names of variables, "ours" is a tensor of vitkit's model, and "theirs" the tensors that the checkpoint stores for it.
A `Layout` consists of pieces, each of which converts one of our tensors in both directions. `account_for` compares a
checkpoint with a layout tensor by tensor, so that no checkpoint is loaded only partly by mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.model.config import MAX_LAYERS, ViTConfig
from vitkit.text.cells import listed
from vitkit.weights.tensor_names import matches_of

if TYPE_CHECKING:
    from vitkit.weights.checkpoint import Checkpoint, StoredTensor

_MAX_MISSING_BLOCKS = 8  # in addition to as many blocks as are present
Task = Literal["single", "multi", "regression"]  # what the outputs of a head mean
Join = Callable[..., Tensor]
Split = Callable[[Tensor, ViTConfig], tuple[Tensor | None, ...]]


@dataclass(frozen=True)
class Piece:
    """The conversion between one of vitkit's tensors and the tensors that a layout stores instead.

    Attributes:
        stored_names: the names of the stored tensors from which our tensor is computed.
        join: a function that computes vitkit's tensor from the stored ones; by default, only the name differs.
        split: a function that computes the stored tensors from vitkit's and the configuration, with None for a tensor
            that another piece writes.
    """

    stored_names: tuple[str, ...]
    join: Join = lambda stored: stored
    split: Split = lambda ours, _config: (ours,)

    def renamed(self, rename: Callable[[str], str]) -> Piece:
        """Return this conversion for stored tensors with other names."""
        return replace(self, stored_names=tuple(map(rename, self.stored_names)))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The names and shapes of the tensors in one checkpoint, and the facts that its format implies.

    Attributes:
        format: the name of the format in reports.
        pieces: where the checkpoint stores each tensor that the format may contain, by vitkit's name of the tensor.
        fields: fields of the configuration that the format, or a file next to the weights, determines.
        preprocess: fields of `Preprocess`, except the size.
        is_preprocess_known: whether `preprocess` was stored with the weights; otherwise it is the format's usual one.
        classes: the class names, if the checkpoint contains them.
        task: what the outputs of the head mean: one class of an image, any number of classes, or numbers.
        image_size: (height, width), if a file next to the weights states it.
        input_size: the (height, width) of the input images for which the publisher's code resizes the position
            embeddings; None if it does not resize them.
        assumed: for each field that nothing determines, a description of the assumed value.
        dropped: tensors that are not part of the classifier, each with the reason.
        notes: other facts that the report states.
    """

    format: str
    pieces: Mapping[str, Piece]
    fields: Mapping[str, Any] = field(default_factory=dict)
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    is_preprocess_known: bool = False
    classes: tuple[str, ...] | None = None
    task: Task = "single"
    image_size: tuple[int, int] | None = None
    input_size: tuple[int, int] | None = None
    assumed: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def stored_names(self, name: str) -> tuple[str, ...]:
        """Return the names under which the checkpoint stores a tensor of vitkit's model."""
        return self.pieces[name].stored_names if name in self.pieces else (name,)

    def shapes(self, tensors: Mapping[str, StoredTensor]) -> dict[str, torch.Size]:
        """Return the shapes of the tensors that the checkpoint contains completely, by their names in vitkit.

        Dropped tensors are not included.
        """
        shapes = {}
        for name, piece in self.pieces.items():
            shape = joined_shape(piece, [tensors.get(stored) for stored in piece.stored_names])
            if shape is not None and not set(piece.stored_names) & set(self.dropped):
                shapes[name] = shape
        return shapes


@dataclass
class Account:
    """The comparison of a checkpoint's tensors with those that the model needs.

    Attributes:
        expected: the shapes of the model's tensors, by vitkit's names.
        used: the names in the checkpoint of all tensors that the model needs, including missing ones.
        missing: the names of needed tensors that the checkpoint lacks.
        left_over: the names of tensors in the checkpoint that the model does not need.
        misshapen: the reason why a tensor of the checkpoint does not fit, by name.
        unfit: vitkit's names of the tensors that cannot be loaded, because a stored tensor is missing or does not fit.
    """

    expected: Mapping[str, torch.Size]
    used: set[str]
    missing: list[str]
    left_over: list[str]
    misshapen: dict[str, str]
    unfit: list[str]

    def describe(self) -> str:
        misshapen = [f"{name} ({why})" for name, why in self.misshapen.items()]
        parts = (("missing", self.missing), ("left over", self.left_over), ("of another shape or type", misshapen))
        return "; ".join(f"{what}: {listed(names, 6)}" for what, names in parts if names)


def account_for(
    tensors: Mapping[str, StoredTensor], layout: Layout, config: ViTConfig, expected: Mapping[str, torch.Size]
) -> Account:
    """Compare the tensors of a checkpoint with the shapes `expected`, which a model of this configuration needs."""
    account = Account(expected, set(), [], [], {}, [])
    for name, shape in expected.items():
        theirs = layout.stored_names(name)
        account.used.update(theirs)
        absent = [part for part in theirs if part not in tensors]
        account.missing += [part for part in absent if part not in account.missing]
        wrong: dict[str, str] = {}  # the stored tensors that do not fit ours, each with the reason
        if not absent and name in layout.pieces:
            piece = layout.pieces[name]
            stored = {part: tensors[part] for part in piece.stored_names}
            expected_parts = piece.split(torch.empty(shape, device="meta"), config)
            for (part, tensor), expected_part in zip(stored.items(), expected_parts, strict=False):
                if expected_part is not None and _squeezed(expected_part.shape) != _squeezed(tensor.shape):
                    wrong[part] = f"expected {tuple(expected_part.shape)}, not {tensor.shape}"
            if not wrong and joined_shape(piece, list(stored.values())) != shape:
                wrong = {part: f"expected {tuple(shape)}, not {tensor.shape}" for part, tensor in stored.items()}
            for part, tensor in stored.items():
                if not tensor.dtype.is_floating_point:
                    wrong[part] = "expected float32, float16 or the like"
        account.misshapen |= wrong
        if absent or wrong:
            account.unfit.append(name)
    known = account.used | set(layout.dropped)
    account.left_over = [name for name in tensors if name not in known]
    return account


def joined_shape(piece: Piece, stored: Sequence[StoredTensor | None]) -> torch.Size | None:
    """Return the shape of the joined stored tensors; None if one is missing or the shapes do not fit together."""
    present = [torch.empty(tensor.shape, device="meta") for tensor in stored if tensor is not None]
    if len(present) < len(stored):
        return None
    try:
        return piece.join(*present).shape
    except (RuntimeError, IndexError):
        return None


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(side for side in shape if side != 1)


def same(name: str) -> Piece:
    """Return the `Piece` of a tensor that only has another name."""
    return Piece((name,))


def joined(*names: str) -> Piece:
    """Return the `Piece` of a tensor that is the concatenation of several stored ones, such as q, k and v."""
    return Piece(names, lambda *parts: torch.cat(parts), lambda ours, _: ours.chunk(len(names)))


def joined_pair(ours: str, theirs: Sequence[str]) -> dict[str, Piece]:
    """Return the `Piece`s for the weight and bias of a layer that is stored as several layers, such as q, k and v."""
    return {f"{ours}.{part}": joined(*(f"{name}.{part}" for name in theirs)) for part in ("weight", "bias")}


def without_key_bias(q: str, v: str) -> Piece:
    """Return the `Piece` of a bias of q, k and v in a layout that does not store the bias of k, because it is zero."""

    def split(ours: Tensor, _config: ViTConfig) -> tuple[Tensor, Tensor]:
        q, _, v = ours.chunk(3)
        return q, v

    return Piece((q, v), lambda q, v: torch.cat([q, torch.zeros_like(q), v]), split)


def pair(ours: str, theirs: str, parts: tuple[str, ...] = ("weight", "bias")) -> dict[str, Piece]:
    """Return the `Piece`s for the weight and bias of a layer that has another name."""
    return {f"{ours}.{part}": same(f"{theirs}.{part}") for part in parts}


def with_axes(name: str, axes: int) -> Piece:
    """Return the `Piece` of a tensor that is stored without its first `axes` dimensions, which have length 1."""
    return Piece((name,), lambda theirs: theirs[(None,) * axes], lambda ours, _: (ours.reshape(ours.shape[axes:]),))


def folded_positions(cls: str, positions: str) -> dict[str, Piece]:
    """Return the `Piece`s for position embeddings that include the class token, but not the registers.

    Loading adds the class token's position embedding to the class token itself, so the model computes the same.
    """

    return {
        "cls_token": Piece((cls, positions), lambda token, table: token + table[:, :1], lambda ours, _: (ours, None)),
        "pos_embed": Piece(
            (positions,),
            lambda table: table[:, 1:],
            lambda ours, _: (torch.cat([ours.new_zeros(1, 1, ours.shape[2]), ours], dim=1),),
        ),
    }


def pooled_pieces(whole: str) -> dict[str, Piece]:
    """Return the `Piece`s of attention pooling whose q, k and v are stored in one tensor, `whole` + weight or bias.

    The stored tensor can be computed neither from q alone nor from k and v, so `split` returns None.
    """
    pieces = {}
    for part in ("weight", "bias"):
        stored = (f"{whole}{part}",)
        pieces[f"attn_pool.q.{part}"] = Piece(stored, lambda qkv: qkv[: qkv.shape[0] // 3], lambda *_: (None,))
        pieces[f"attn_pool.kv.{part}"] = Piece(stored, lambda qkv: qkv[qkv.shape[0] // 3 :], lambda *_: (None,))
    return pieces


def units_of_stages(pattern: str, names: Iterable[str]) -> dict[int, int]:
    """Return the highest unit number of each stage of a ResNet, from names that match a pattern with both numbers."""
    units: dict[int, int] = {}
    for match in matches_of(pattern, names):
        stage, unit = block_number(match[1]), block_number(match[2])
        units[stage] = max(units.get(stage, 0), unit)
    return units


def require(checkpoint: Checkpoint, kind: str, *names: str) -> None:
    """Raise VitkitError if a checkpoint of the given kind lacks one of these tensors."""
    for name in names:
        if name not in checkpoint.tensors:
            raise VitkitError("weights.tensor-missing", f"{checkpoint.path} ({kind}): {name} is missing")


def block_number(digits: str) -> int:
    """Convert the block number in a tensor's name to an integer; raise VitkitError if no model has so many blocks."""
    if len(digits) > len(str(MAX_LAYERS)) or int(digits) >= MAX_LAYERS:
        raise VitkitError(
            "weights.tensor-misnamed",
            f"a tensor's name has the number {digits:.12}, which exceeds the depth of any model",
        )
    return int(digits)


def depth_of(digits: Iterable[str]) -> int:
    """Return the number of blocks from the block numbers in tensor names; raise VitkitError if too many are missing."""
    numbers = {block_number(text) for text in digits}
    depth = max(numbers, default=-1) + 1
    if depth > 2 * len(numbers) + _MAX_MISSING_BLOCKS:
        raise VitkitError(
            "weights.tensor-missing",
            f"the tensors of {depth - len(numbers)} blocks of {depth} are missing: the checkpoint is incomplete",
        )
    return depth
