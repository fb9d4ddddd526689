"""Every tensor of both sides held against the other: nothing loads by half unnoticed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import torch

from vitkit.model import network
from vitkit.model.config import ViTConfig
from vitkit.model.network_config import Config, NetworkConfig
from vitkit.model.vit import VisionTransformer
from vitkit.text.words import listed
from vitkit.weights.checkpoint import Checkpoint, Stored
from vitkit.weights.layout import Layout


@functools.lru_cache(maxsize=4)  # one load asks for the source, and again for the target
def shapes_of(config: Config) -> Mapping[str, torch.Size]:
    """The tensors of a model of this configuration, as they are saved."""
    if isinstance(config, NetworkConfig):
        return {name: torch.Size(shape) for name, shape in network.shapes_of(config).items()}
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in VisionTransformer(config).state_dict().items()}


def joined_shape(layout: Layout, name: str, stored: Sequence[Stored | None]) -> torch.Size | None:
    """The shape of one of our tensors, or None where the checkpoint lacks a part or its parts do not join."""
    if any(tensor is None for tensor in stored):
        return None
    try:
        return layout.pieces[name].join(*(torch.empty(t.shape, device="meta") for t in stored if t is not None)).shape
    except (RuntimeError, IndexError):
        return None


@dataclasses.dataclass
class Account:
    """Every tensor of both sides: what is expected, and what is wrong with it, by the checkpoint's names."""

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


def account_for(checkpoint: Checkpoint, layout: Layout, config: ViTConfig) -> Account:
    account = Account(shapes_of(config), set(), [], [], {}, [])
    for name, shape in account.expected.items():
        theirs = layout.theirs(name)
        account.used.update(theirs)
        absent = [part for part in theirs if part not in checkpoint.tensors]
        account.missing += [part for part in absent if part not in account.missing]
        wrong = {} if absent else _wrong_shapes(checkpoint, layout, name, shape, config)
        account.misshapen |= wrong
        if absent or wrong:
            account.unfit.append(name)
    known = account.used | set(layout.dropped)
    account.left_over = [name for name in checkpoint.tensors if name not in known]
    return account


def _wrong_shapes(
    checkpoint: Checkpoint, layout: Layout, name: str, shape: torch.Size, config: ViTConfig
) -> dict[str, str]:
    if name not in layout.pieces:
        return {}
    piece = layout.pieces[name]
    stored = [checkpoint.tensors[part] for part in piece.theirs]
    parts = piece.split(torch.empty(shape, device="meta"), config)
    wrong = {
        theirs: f"expected {tuple(part.shape)}, not {tensor.shape}"
        for theirs, tensor, part in zip(piece.theirs, stored, parts, strict=False)
        if part is not None and _squeezed(part.shape) != _squeezed(tensor.shape)
    }
    integers = {
        t: "expected plain floats" for t, s in zip(piece.theirs, stored, strict=True) if not s.dtype.is_floating_point
    }
    if not wrong and joined_shape(layout, name, stored) != shape:
        wrong = {
            theirs: f"expected {tuple(shape)}, not {tensor.shape}"
            for theirs, tensor in zip(piece.theirs, stored, strict=True)
        }
    return wrong | integers


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(side for side in shape if side != 1)
