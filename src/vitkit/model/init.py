"""Initialise a model as the paper's reference implementation does, or as its PyTorch re-implementations do."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from vitkit.model.layers import AttentionPool, LayerScale, RMSNorm
from vitkit.model.position import BiasTable, Learned2D, RelativePosition


@torch.no_grad()
def initialise(model: nn.Module, patches: nn.Conv2d, how: Literal["trunc_normal", "reference"]) -> None:
    """Fill every parameter from torch's global generator. A model on the meta device is left as it is.

    Args:
        model: a Vision Transformer.
        patches: the layer of the model that projects patches.
        how: the initialisation; see `ViTConfig.init`.
    """
    if patches.weight.is_meta:
        return
    for module in model.modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm, RMSNorm)):
            nn.init.ones_(module.weight)
            if not isinstance(module, RMSNorm):
                nn.init.zeros_(module.bias)
        elif isinstance(module, (Learned2D, RelativePosition, BiasTable)):
            for parameter in module.parameters():
                nn.init.trunc_normal_(parameter, std=0.02)
        elif callable(fill := getattr(module, "initialise", None)):  # rotary positions and variants of attention
            fill()
        elif isinstance(module, AttentionPool):
            nn.init.trunc_normal_(module.latent, std=module.latent.shape[-1] ** -0.5)
        elif isinstance(module, LayerScale):
            nn.init.constant_(module.gamma, module.value)
        elif isinstance(module, nn.Conv2d) and module is not patches:  # of a stem or a convolutional layer
            _lecun_normal(module.weight)
            _zero_bias(module)
    {"trunc_normal": _trunc_normal, "reference": _reference}[how](model, patches)


def _trunc_normal(model: nn.Module, patches: nn.Conv2d) -> None:
    """Draw truncated normals, as timm, DeiT and the scripts derived from them do."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.01)
            _zero_bias(module)
    nn.init.kaiming_normal_(patches.weight, mode="fan_out")
    _zero_bias(patches)
    for parameter in model.parameters(recurse=False):  # tokens and positions
        nn.init.trunc_normal_(parameter, std=0.02)


def _reference(model: nn.Module, patches: nn.Conv2d) -> None:
    """Initialise as the authors' Flax modules do: Xavier in the encoder, LeCun for patches, zeros for the head."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            _reference_linear(name, module)
        elif isinstance(module, nn.GroupNorm) and name.endswith("norm3"):
            nn.init.zeros_(module.weight)  # so that each residual unit of the stem begins as the identity
    _lecun_normal(patches.weight)
    _zero_bias(patches)
    for name, parameter in model.named_parameters(recurse=False):
        if name == "cls_token":
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, std=0.02)


def _reference_linear(name: str, linear: nn.Linear) -> None:
    _zero_bias(linear)
    if name in ("head", "head_dist"):
        nn.init.zeros_(linear.weight)
    elif name == "pre_logits.fc":
        _lecun_normal(linear.weight)
    elif name.endswith("attn.qkv"):
        for part in linear.weight.chunk(3):  # q, k and v one by one: for the whole matrix, the fan-out would be 3D
            nn.init.xavier_uniform_(part)
    else:
        nn.init.xavier_uniform_(linear.weight)
        if ".mlp." in name and linear.bias is not None:
            nn.init.normal_(linear.bias, std=1e-6)


def _lecun_normal(weight: Tensor) -> None:
    """Draw a normal of variance 1 / fan_in, truncated at two deviations, as `jax.nn.initializers.lecun_normal` does."""
    fan_in = weight[0].numel()
    std = math.sqrt(1.0 / fan_in) / 0.87962566103423978  # the standard deviation of a truncated unit normal
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def _zero_bias(module: nn.Linear | nn.Conv2d) -> None:
    if module.bias is not None:
        nn.init.zeros_(module.bias)
