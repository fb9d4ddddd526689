"""Attention as the model's own softmax gives it, and the kinds of models of which it is read by day."""

from copy import deepcopy
from functools import partial
from typing import Any

from torch import Tensor

from vitkit.model import VisionTransformer

# One of each way to compute a matrix, or to read it.
FEW = frozenset({
    *("token", "gap with a class token", "registers without positions", "qk_scale", "eva02", "rotary mixed", "dinov3"),
    *("relative_bias shared", "relative_mlp", "relative distilled", "interleaved", "interleaved gap"),
    *("all mixtures post-norm", "res-post gap conv", "conv MLP distilled registers", "map of all tokens"),
})  # fmt: skip


def written_out(model: VisionTransformer, batch: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
    """The logits, and the attention (B, H, N, N) of each layer that attends, which keeps its gradient."""
    model, seen = deepcopy(model), dict[int, Tensor]()

    def watch(layer: int, matrix: Any, *arguments: Any) -> Tensor:
        seen[layer] = matrix(*arguments)
        if seen[layer].requires_grad:
            seen[layer].retain_grad()
        return seen[layer]

    model.fused_attention, model.shortcut = False, False
    for layer, block in enumerate(model.blocks):
        if hasattr(block.attn, "matrix"):
            block.attn.matrix = partial(watch, layer, block.attn.matrix)
    return model(batch), seen
