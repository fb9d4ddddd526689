"""A block as two residual branches: which parts each has, and in which order they are computed.

What computes a block by itself (optimised layers, graphs for other runtimes, token merging) takes parts and order from
here. A part that this description lacks is refused, since it would be left out of the answers; so is a field's value
that they do not compute (`variants`). `vit.Block` is the same block written out as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import nn

from vitkit.errors import VitkitError
from vitkit.model.hybrids import ConvMixer, ConvProjection
from vitkit.model.layers import Dropout, DropPath, LayerScale, Norm, QuickGELU, RMSNorm, SwiGLU, TokenConvolution
from vitkit.model.vit import MLP, Attention, Block

T = TypeVar("T")

_PARTS: dict[type[nn.Module], Set[str]] = {
    Block: {"norm1", "attn", "ls1", "drop_path1", "norm2", "mlp", "ls2", "drop_path2"},
    Attention: {"convolve", "qkv", "norm", "proj", "attn_drop", "proj_drop"},
    ConvProjection: {"q", "k", "v"},
    ConvMixer: {"depthwise", "act", "proj", "proj_drop"},
    MLP: {"fc1", "conv", "act", "drop1", "drop2", "norm", "fc2"},
    TokenConvolution: {"conv"},
    **dict.fromkeys((nn.Linear, nn.LayerNorm, RMSNorm, nn.Conv2d, nn.Identity), frozenset[str]()),
    **dict.fromkeys((LayerScale, DropPath, Dropout, nn.GELU, QuickGELU, SwiGLU), frozenset[str]()),
}


@dataclass(frozen=True)
class Branch:
    """What is added to the sum that runs through the layers.

    Attributes:
        norm: of the branch's input; in post-norm order of the sum instead.
        mix: between tokens (`Attention`, or what stands in its place) or within each (`MLP`).
        scale: `LayerScale`, or an identity.
        order: see `in_order`.
    """

    norm: Norm
    mix: nn.Module
    scale: nn.Module
    order: str


def branches(block: nn.Module) -> tuple[Branch, Branch]:
    """The branches in the order in which they are computed: the one that mixes tokens, then the MLP.

    Raises:
        VitkitError: the block has a part that this description lacks.
    """
    _refuse_other_parts(block)
    parts: Any = block
    mixing = Branch(parts.norm1, parts.attn, parts.ls1, parts.order)
    if parts.order == "beside":  # one norm and one LayerScale for both
        return replace(mixing, order="pre"), replace(mixing, mix=parts.mlp)
    return mixing, Branch(parts.norm2, parts.mlp, parts.ls2, parts.order)


def reads_normalised(order: str) -> bool:
    """Whether a branch reads what its norm gives, so that the norm's affine part can be left to its first layer."""
    return order in ("pre", "beside")


def in_order(
    order: str,
    x: T,
    norm: Callable[[T], T],
    add: Callable[[T, T | None], T],
    plus: Callable[[T, T], T],
    before: T | None = None,
) -> T:
    """One branch: eqs. 2 and 3, or another order of its norm.

    Args:
        order: `ViTConfig.norm`: what the branch reads is normalised ("pre"); or the sum, as in the original Transformer
            (arXiv 1706.03762, sec. 3.1); or what the branch gives (arXiv 2111.09883, sec. 3.2). A branch "beside" the
            one before it reads the same tokens, normalised (arXiv 2302.05442, sec. 2).
        x: the tokens, as whoever computes them has them.
        norm: normalises tokens.
        add: of what the branch reads and of the sum so far, the sum with the branch's output; the output alone of None.
        plus: of the sum so far and of the branch's output, the sum.
        before: what the branch before this one has read, for an order of "beside".
    """
    if order == "beside":
        assert before is not None
        return add(norm(before), x)
    if order == "pre":
        return add(norm(x), x)
    return norm(add(x, x)) if order == "post" else plus(x, norm(add(x, None)))


def _refuse_other_parts(module: nn.Module, where: str = "block") -> None:
    """A parametrised layer is of a class of its own, and computes as the layer does."""
    kind = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
    parts: Set[str] | None = _PARTS.get(kind, vars(kind).get("PARTS"))  # variants name their parts themselves
    if parts is None:
        raise VitkitError(f"only the model itself can compute its {where}, a {type(module).__name__}")
    for name, part in module.named_children():
        if name == "parametrizations":
            continue
        if name not in parts:
            raise VitkitError(f"only the model itself can compute its {where}, which has a part {name!r}")
        _refuse_other_parts(part, f"{where}.{name}")
