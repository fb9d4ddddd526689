"""Attention and MLP in parallel (ViT-22B, arXiv 2302.05442, sec. 2): both read the same normalised tokens.

    y = LN(x);  x + MSA(y) + MLP(y)

timm stores the input projections of attention and MLP in one matrix. With "fused", it stores the output projections in
one matrix, too. Here the projections are separate, so that attention and MLP are the same modules as in other blocks.
The results are equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.layers import DropPath, layer_scale, norm_layer


class ParallelBlock(nn.Module):
    """One encoder layer, in which attention and MLP are parallel.

    With `queries` = n, it returns only the first n tokens, which still attend to all tokens.

    Args:
        config: the configuration of the model.
        layer: the number of the layer, from 0; the rate of stochastic depth depends on it.
        attn: the layer that mixes tokens.
        mlp: the layer that mixes the features of each token.
    """

    PARTS: ClassVar = frozenset({"norm1", "attn", "mlp", "ls1", "drop_path1"})
    order = "beside"  # see `branches.in_order`

    def __init__(self, config: ViTConfig, layer: int, attn: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attn, self.mlp, self.ls1 = norm_layer(config), attn, mlp, layer_scale(config)
        if config.parallel == "fused":  # the bias of both is that of the MLP's last layer
            attn.get_submodule("proj").register_parameter("bias", None)
        self.drop_path1 = DropPath(config.drop_path * layer / max(config.layers - 1, 1))  # the linear rule

    def forward(self, x: Tensor, queries: int | None = None, relative: Any = None) -> Tensor:
        y = self.norm1(x)
        both = self.attn(y, queries, relative) + self.mlp(y[:, :queries])
        return x[:, :queries] + self.drop_path1(self.ls1(both))


_BLOCK = re.compile(r"(blocks\.\d+\.)(.+)")
_RENAMED = {  # our names: timm's names
    **{f"norm1.{part}": f"in_norm.{part}" for part in ("weight", "bias")},
    **{f"attn.proj.{part}": f"attn_out_proj.{part}" for part in ("weight", "bias")},
    **{f"mlp.fc2.{part}": f"mlp_out_proj.{part}" for part in ("weight", "bias")},
    **{f"attn.lambda_{part}": f"lambda_{part}" for part in ("q1", "k1", "q2", "k2")},
    "attn.sub_norm.weight": "sub_norm.weight",
    "mlp.fc1.bias": "mlp_bias",
    "ls1.gamma": "ls.gamma",
}
Joined = tuple[tuple[str, ...], Callable[..., Tensor]]
# By joined tensor of timm: our tensors, each with the names of timm's tensors and the function that extracts it.
_JOINED: dict[str, dict[str, Joined]] = {
    "in_proj.weight": {
        "mlp.fc1.weight": (("in_proj.weight",), lambda whole: whole[: -3 * whole.shape[1]]),
        "attn.qkv.weight": (("in_proj.weight",), lambda whole: whole[-3 * whole.shape[1] :]),
    },
    "in_proj.bias": {
        "mlp.fc1.bias": (("in_proj.bias", "in_norm.weight"), lambda whole, norm: whole[: -3 * len(norm)]),
        "attn.qkv.bias": (("in_proj.bias", "in_norm.weight"), lambda whole, norm: whole[-3 * len(norm) :]),
    },
    "out_proj.weight": {
        "attn.proj.weight": (("out_proj.weight",), lambda whole: whole[:, : len(whole)]),
        "mlp.fc2.weight": (("out_proj.weight",), lambda whole: whole[:, len(whole) :]),
    },
    "out_proj.bias": {"mlp.fc2.bias": (("out_proj.bias",), lambda whole: whole)},
}


class ParallelTimm:
    """The conversion of parallel blocks to and from timm's (`ParallelScalingBlock`, `DiffParallelScalingBlock`)."""

    @staticmethod
    def read(names: Collection[str]) -> dict[str, Joined]:
        """Map vitkit's tensor names to pairs: timm's names, and a function from timm's tensors to vitkit's tensor."""
        matches = [match for name in names if (match := _BLOCK.fullmatch(name))]
        parts = {match[2] for match in matches}
        pieces: dict[str, Joined] = {
            ours: ((theirs,), lambda tensor: tensor) for ours, theirs in _RENAMED.items() if theirs in parts
        }
        for theirs, joined in _JOINED.items():
            pieces |= joined if theirs in parts else {}
        return {
            prefix + ours: (tuple(prefix + each for each in theirs), join)
            for prefix in {match[1]: None for match in matches}
            for ours, (theirs, join) in pieces.items()
        }

    @staticmethod
    def write(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convert vitkit's tensors to timm's tensors, by name."""
        tensors = dict(tensors)
        for prefix in {match[1]: None for name in tensors if (match := _BLOCK.fullmatch(name))}:
            is_fused, has_bias = f"{prefix}attn.proj.bias" not in tensors, f"{prefix}attn.qkv.bias" in tensors
            for theirs, joined in _JOINED.items():
                if (theirs.startswith("out_proj") and is_fused) or (theirs.startswith("in_proj") and has_bias):
                    whole = [tensors.pop(prefix + ours) for ours in joined]
                    tensors[prefix + theirs] = torch.cat(whole, dim=int(theirs == "out_proj.weight"))
                elif theirs == "in_proj.weight":  # only the MLP has a bias
                    tensors[prefix + theirs] = torch.cat([tensors.pop(prefix + ours) for ours in joined])
            for ours, theirs in _RENAMED.items():
                if prefix + ours in tensors:
                    tensors[prefix + theirs] = tensors.pop(prefix + ours)
        return tensors

    @staticmethod
    def describe(config: ViTConfig) -> tuple[str, dict[str, Any]]:
        """Return the name of a timm model with parallel blocks, and an empty mapping of arguments.

        The name is required because timm has no argument that selects such blocks.

        Raises:
            VitkitError: timm has no such model.
        """
        architectures = {
            ("separate", "softmax"): "vit_pwee_patch16_reg1_gap_256",
            ("fused", "differential"): "vit_dpwee_patch16_reg1_gap_256",
        }
        architecture = architectures.get((config.parallel, config.attention))
        plain = {"attention": config.attention if architecture else None, "mlp_kind": "mlp", "stem": None}
        for name, value in (plain | {"distill_token": False, "embed_norm": False}).items():
            if getattr(config, name) != value:
                raise VitkitError(
                    f"the timm layout cannot express {name} {getattr(config, name)!r} with parallel "
                    f"{config.parallel!r}: the model is not written"
                )
        assert architecture is not None
        return architecture, {}
