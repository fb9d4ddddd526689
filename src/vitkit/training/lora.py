"""`--method lora`: each weight matrix of the blocks may change by a product of two thin ones (arXiv 2106.09685)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitkit.model.build import Model, vit_of
from vitkit.model.vit import VisionTransformer

_ADAPTED = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")


class LowRank(nn.Module):
    """W -> W + alpha / r * B A (sec. 4.1); B begins as zeros, so nothing changes at first.

    Args:
        weight: (out, in), the matrix that stays as it is.
        rank: r, of the change.
        generator: draws A.
    """

    def __init__(self, weight: Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.a = nn.Parameter(torch.empty(rank, inputs).normal_(std=1 / math.sqrt(inputs), generator=generator))
        self.b = nn.Parameter(torch.zeros(outputs, rank))
        self.scale = 2.0  # alpha / r, as is usual

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.scale * (self.b @ self.a)  # (out, in)


def add_low_rank(model: VisionTransformer, rank: int, seed: int) -> list[str]:
    """Freeze the model but for its heads, and let the blocks' matrices change by products of this rank.

    Returns:
        The names of the matrices.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("head")
    generator, adapted = torch.Generator().manual_seed(seed), []
    for name, module in model.blocks.named_modules():
        if isinstance(module, nn.Linear) and name.split(".", 1)[-1] in _ADAPTED:
            parametrize.register_parametrization(module, "weight", LowRank(module.weight, rank, generator))
            adapted.append(f"blocks.{name}.weight")
    return adapted


def count_trained(model: Model) -> str:
    """`294,912 of 22,000,000 parameters`."""
    own = list(model.parameters())
    return f"{sum(p.numel() for p in own if p.requires_grad):,} of {sum(p.numel() for p in own):,} parameters"


def merged(model: Model) -> Model:
    """A plain model in which the changes are part of the matrices; the model itself where there are none."""
    changed = {name: module for name, module in model.named_modules() if parametrize.is_parametrized(module)}
    if not changed:
        return model
    state = {name: tensor for name, tensor in model.state_dict().items() if ".parametrizations." not in name}
    state |= {f"{name}.weight": module.weight.detach() for name, module in changed.items()}
    plain = VisionTransformer(vit_of(model, "method lora").config)
    plain.load_state_dict(state)
    return plain
