"""What stands beside a linear layer and is linear itself becomes part of its matrix, exactly; computed in float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitkit.model.layers import LayerScale, Norm, RMSNorm


def after_norm(linear: nn.Linear, norm: Norm | None, times: int = 1) -> tuple[Tensor, Tensor]:
    """Weight (out, in) and bias (out,), float64, of the layer that also does the affine part of the norm before it.

    W (x * g + b) + c = (W * g) x + (W b + c)

    Args:
        linear: with or without a bias.
        norm: None where nothing is to be folded.
        times: how many normalised vectors stand side by side in x.
    """
    weight = linear.weight.double()
    bias = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.double()
    if norm is None:
        return weight, bias
    bias = bias if isinstance(norm, RMSNorm) else bias + weight @ norm.bias.double().repeat(times)
    return weight * norm.weight.double().repeat(times), bias


def qkv_after_norm(qkv: nn.Linear, norm: Norm | None, scale: float) -> tuple[Tensor, Tensor]:
    """As `after_norm` of the layer that makes q, k and v, with the scale of the attention's logits in q."""
    weight, bias = after_norm(qkv, norm)
    scaling = torch.ones_like(bias)
    scaling[: weight.shape[1]] = scale
    return weight * scaling[:, None], bias * scaling


def with_scale(linear: nn.Linear, scale: nn.Module, norm: nn.Module | None = None) -> tuple[Tensor, Tensor]:
    """Weight and bias, float64, of the layer with the LayerScale after it and the norm before it, if they are such."""
    weight, bias = after_norm(linear, norm if isinstance(norm, Norm) else None)
    gamma = scale.gamma.double() if isinstance(scale, LayerScale) else torch.ones_like(bias)
    return weight * gamma[:, None], bias * gamma


def without_affine(norm: nn.Module) -> nn.Module:
    """What is left of a norm whose affine part is folded into the next layer; anything else as it is."""
    if not isinstance(norm, Norm):
        return norm
    kind = RMSNorm if isinstance(norm, RMSNorm) else nn.LayerNorm
    return kind(norm.normalized_shape, norm.eps, elementwise_affine=False)
