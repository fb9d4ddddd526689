"""A block as two residual branches: which parts each has, and in which order they are computed.

What computes a block by itself (optimised layers, graphs for other runtimes, token merging) takes parts and order from
here and names the fields of `ViTConfig` that it computes. A field or part that it does not know is refused, since it
would be left out of the answers. `vit.Block` is the same block written out as in the paper.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.hybrids import ConvMixer, ConvProjection
from vitkit.model.layers import Dropout, DropPath, LayerScale, Norm, QuickGELU, RMSNorm, SwiGLU, TokenConvolution
from vitkit.model.vit import MLP, Attention, Block

T = TypeVar("T")

# Fields that change how weights begin, are trained or are resized, and no answer of a model that has its weights.
WITHOUT_EFFECT = frozenset({"init", "dropout", "attention_dropout", "position_dropout", "drop_path", "position_resize"})
# Fields that act in `VisionTransformer.embed` and `forward_head` alone: who calls these computes them.
OUTSIDE_BLOCKS = frozenset(
    {"image_size", "in_channels", "patch_size", "patch_norm", "patch_bias", "stem", "stem_kind"}  # eq. 1
    | {"class_token", "distill_token", "registers", "prefix_positions", "embed_norm"}
    | {"num_classes", "pool", "pool_heads", "pool_mlp_size", "distill_head", "representation_size", "fc_norm"}  # eq. 4
    | {"last_norm", "representation"}
)
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
        mix: between tokens (`Attention`, `ConvMixer`) or within each (`MLP`).
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
    assert isinstance(block, Block)
    _refuse_other_parts(block)
    return (
        Branch(block.norm1, block.attn, block.ls1, block.order),
        Branch(block.norm2, block.mlp, block.ls2, block.order),
    )


def in_order(order: str, x: T, norm: Callable[[T], T], add: Callable[[T, T | None], T], plus: Callable[[T, T], T]) -> T:
    """One branch: eqs. 2 and 3, or another order of its norm.

    Args:
        order: `ViTConfig.norm`: what the branch reads is normalised ("pre"); or the sum, as in the original Transformer
            (arXiv 1706.03762, sec. 3.1); or what the branch gives (arXiv 2111.09883, sec. 3.2).
        x: the tokens, as whoever computes them has them.
        norm: normalises tokens.
        add: of what the branch reads and of the sum so far, the sum with the branch's output; the output alone of None.
        plus: of the sum so far and of the branch's output, the sum.
    """
    if order == "pre":
        return add(norm(x), x)
    return norm(add(x, x)) if order == "post" else plus(x, norm(add(x, None)))


def refuse_unknown(config: ViTConfig, known: Set[str], who: str) -> None:
    """Refuse a configuration that says more than `who` computes.

    Args:
        config: of the model.
        known: the fields that are computed, beside those of `WITHOUT_EFFECT`.
        who: for the message.

    Raises:
        VitkitError: the configuration has another field.
    """
    unknown = [field.name for field in dataclasses.fields(config) if field.name not in known | WITHOUT_EFFECT]
    if unknown:
        raise VitkitError(
            f"{who} does not know {', '.join(map(repr, unknown))} of ViTConfig, and would compute another model"
        )


def _refuse_other_parts(module: nn.Module, where: str = "block") -> None:
    """A parametrised layer is of a class of its own, and computes as the layer does."""
    parts = next((parts for kind, parts in _PARTS.items() if type(module).forward is kind.forward), None)
    if parts is None:
        raise VitkitError(f"only the model itself can compute its {where}, a {type(module).__name__}")
    for name, part in module.named_children():
        if name == "parametrizations":
            continue
        if name not in parts:
            raise VitkitError(f"only the model itself can compute its {where}, which has a part {name!r}")
        _refuse_other_parts(part, f"{where}.{name}")
