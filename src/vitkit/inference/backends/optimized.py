"""A frozen double of a model for prediction: the same answers from fewer and larger steps.

Done in advance, as it is exact: the affine part of a LayerNorm, a LayerScale and the attention's scale become part of
the linear layer beside them. Then patches are projected by a matrix product instead of a convolution, weights are kept
in the layout that the CPU's matrix product reads (oneDNN), GELU and the residual sum are computed while their operand
is at hand.

In bfloat16 the layers' attention and MLP are rounded. The sum that runs through the layers, the making of tokens and
what the head reads stay float32: that costs a few hundredths of the time, and takes a seventh off the logits' error.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.inference.backends.prepared_layers import PreparedBlock, PreparedPatchEmbed, Way, can_pack, freeze, frozen
from vitkit.model.branches import OUTSIDE_BLOCKS, refuse_unknown
from vitkit.model.vit import VisionTransformer

_KNOWN = OUTSIDE_BLOCKS | {
    *("layers", "hidden_size", "heads", "mlp_size", "mlp_kind", "projection", "conv_layers", "position", "position_at"),
    *("norm", "norm_kind", "norm_eps", "layer_scale", "gelu", "qkv_bias", "proj_bias", "qk_scale"),
    *("attention_norm", "mlp_norm"),
    *("relative_size", "rotary", "rotary_base", "rotary_grid", "rotary_offset"),
}


class Double(nn.Module):
    """Images (B, C, height, width) float32 -> logits (B, K) float32; features (B, D) of a model without a head."""

    def __init__(self, model: VisionTransformer, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model, self.reads, self.dtype = model, model.config.tokens_read, dtype

    def forward(self, images: Tensor) -> Tensor:
        return self.finish(self.model.encode(self.embed(images), self.reads))

    def embed(self, images: Tensor) -> Tensor:
        """Images -> tokens (B, N, D)."""
        return self.model.embed(images.to(self.dtype))

    def finish(self, tokens: Tensor) -> Tensor:
        """What the last layer leaves, (B, n, D) -> logits (B, K)."""
        return self.model.forward_head(self.model.norm(tokens)).float()


def prepare(
    model: VisionTransformer,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    *,
    pack: bool = True,
    attend: str | None = None,
) -> Double:
    """The model's double in eval mode, which later changes of the model do not reach.

    Args:
        model: stays as it is.
        dtype: in which the layers compute.
        device: where they do.
        pack: whether weights may be packed, on CPUs; not where a compiler is to see the layers.
        attend: eqs. 6-7 by one `fused` kernel, or written out by `batch` or by `image`; None is as suits most, which
            in bfloat16 on CPUs is not the fused kernel.

    Raises:
        VitkitError: the model has a field or part that would be left out.
    """
    refuse_unknown(model.config, _KNOWN, "the optimised model (vitkit.inference.backends.optimized)")
    packs = pack and device == "cpu" and can_pack(dtype)
    if attend is None:
        written_out = dtype == torch.bfloat16 and torch.device(device).type == "cpu"
        attend = ("image" if packs else "batch") if written_out else "fused"
    way = Way(dtype, torch.device(device), packs, attend)
    with torch.no_grad():
        double = sharing(model)
        for i, block in enumerate(double.blocks):
            is_read_in_part = model.config.tokens_read is not None and i == len(double.blocks) - 1
            double.blocks[i] = PreparedBlock(block, way, is_read_in_part=is_read_in_part)
        double.add_module("patch_embed", PreparedPatchEmbed(double.patch_embed, way))
        for name, child in double.named_children():
            if name not in ("patch_embed", "blocks"):
                freeze(child, way.precise)
        for name, parameter in list(double.named_parameters(recurse=False)):
            setattr(double, name, frozen(parameter, way.precise))
        return Double(double).eval()


def plain(model: VisionTransformer, dtype: torch.dtype = torch.bfloat16) -> Double:
    """The model itself on the CPU with its weights in another dtype, but for the heads'."""
    way = Way(dtype, torch.device("cpu"), pack=False)
    with torch.no_grad():
        double = sharing(model)
        for name, child in double.named_children():
            freeze(child, way.precise if name in ("head", "head_dist", "rope") else way)
        for name, parameter in list(double.named_parameters(recurse=False)):
            setattr(double, name, frozen(parameter, way))
        return Double(double, dtype).eval()


def sharing(model: VisionTransformer) -> VisionTransformer:
    """A copy in eval mode whose parameters are the model's own until they are replaced."""
    kept: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    return copy.deepcopy(model, kept).eval()
