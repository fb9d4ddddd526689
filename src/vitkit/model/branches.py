"""A description of an encoder block as two residual branches: their parts, and the order of their operations.

Optimised layers, graphs for other runtimes and token merging compute a block without calling it. They get the parts of
the block from `branches`, and the order of operations from `in_order`. A block with an unknown part is refused, because
the part would silently be skipped. `variants` refuses unsupported fields of the configuration in the same way.
`vit.Block` is the block as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import nn

from vitkit.errors import VitkitError
from vitkit.model.hybrids import ConvMixer, ConvProjection
from vitkit.model.layers import (
    BatchNorm,
    Dropout,
    DropPath,
    LayerScale,
    Norm,
    QuickGELU,
    RMSNorm,
    SwiGLU,
    TokenConvolution,
)
from vitkit.model.vit import MLP, Attention, Block

T = TypeVar("T")

_PARTS: dict[type[nn.Module], Set[str]] = {
    Block: {"norm1", "attn", "ls1", "drop_path1", "norm2", "mlp", "ls2", "drop_path2"},
    Attention: {"convolve", "qkv", "norm", "proj", "attn_drop", "proj_drop"},
    ConvProjection: {"q", "k", "v"},
    ConvMixer: {"depthwise", "act", "proj", "proj_drop"},
    MLP: {"fc1", "conv", "act", "drop1", "drop2", "norm", "fc2"},
    TokenConvolution: {"conv"},
    **dict.fromkeys((nn.Linear, nn.LayerNorm, RMSNorm, BatchNorm, nn.Conv2d, nn.Identity), frozenset[str]()),
    **dict.fromkeys((LayerScale, DropPath, Dropout, nn.GELU, nn.ReLU, nn.SiLU, QuickGELU, SwiGLU), frozenset[str]()),
}


@dataclass(frozen=True)
class Branch:
    """One residual branch of a block.

    Attributes:
        norm: the normalisation layer; `order` determines what it normalises.
        mix: the layer that mixes tokens (`Attention` or a replacement) or the features of each token (`MLP`).
        scale: a `LayerScale` or an identity.
        order: the order of norm, layer and sum; see `in_order`.
    """

    norm: Norm
    mix: nn.Module
    scale: nn.Module
    order: str


def branches(block: nn.Module) -> tuple[Branch, Branch]:
    """Return the branches of a block in the order of their computation: attention, then the MLP.

    Raises:
        VitkitError: the block has a part that is not described here.
    """
    _refuse_other_parts(block)
    parts: Any = block
    mixing = Branch(parts.norm1, parts.attn, parts.ls1, parts.order)
    if parts.order == "beside":  # both share one norm and one LayerScale
        return replace(mixing, order="pre"), replace(mixing, mix=parts.mlp)
    return mixing, Branch(parts.norm2, parts.mlp, parts.ls2, parts.order)


def reads_normalised(order: str) -> bool:
    """Return whether a branch normalises its input, so that the norm's affine part can be folded into its layer."""
    return order in ("pre", "beside")


def in_order(
    order: str,
    x: T,
    norm: Callable[[T], T],
    add: Callable[[T, T | None], T],
    plus: Callable[[T, T], T],
    before: T | None = None,
) -> T:
    """Compute one residual branch, with norm, layer and sum in the order `order` (eqs. 2 and 3 for "pre").

    Args:
        order: `Branch.order`. "pre" normalises the input of the branch. "post" normalises the sum (the original
            Transformer, arXiv 1706.03762, sec. 3.1). "res-post" normalises the output of the branch (arXiv 2111.09883,
            sec. 3.2). "beside" is the second of two parallel branches; it reads the same normalised tokens as the first
            one (arXiv 2302.05442, sec. 2).
        x: the tokens, in the representation of the caller.
        norm: a function that normalises tokens.
        add: a function of the branch's input and the sum so far. It computes the branch's output and adds it to the
            sum. If the sum is None, it returns the output alone.
        plus: a function that adds the sum so far and the output of a branch.
        before: the tokens before the first branch, for "beside".
    """
    if order == "beside":
        assert before is not None
        return add(norm(before), x)
    if order == "pre":
        return add(norm(x), x)
    return norm(add(x, x)) if order == "post" else plus(x, norm(add(x, None)))


def _refuse_other_parts(module: nn.Module, where: str = "block") -> None:
    # A parametrised layer has a new class without a `forward`; it computes as its base class does.
    kind = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
    parts: Set[str] | None = _PARTS.get(kind, vars(kind).get("PARTS"))  # variants list their parts in PARTS
    if parts is None:
        raise VitkitError(f"the {where} is a {type(module).__name__}, which only the model itself can compute")
    for name, part in module.named_children():
        if name == "parametrizations":
            continue
        if name not in parts:
            raise VitkitError(f"the {where} contains {name!r}, which only the model itself can compute")
        _refuse_other_parts(part, f"{where}.{name}")
