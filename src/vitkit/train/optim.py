"""Parameter groups, optimisers and the learning-rate schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from vitkit.train.recipe import Recipe

_NO_DECAY = ("cls_token", "dist_token", "reg_token", "pos_embed", "rel_pos")


def parameter_groups(model: nn.Module, weight_decay: float, layer_decay: float = 1.0) -> list[dict[str, Any]]:
    """Weight matrices, which decay; and biases, norms, tokens and positions, which do not; layer by layer if asked.

    Args:
        model: parameters that require no gradient are left out.
        weight_decay: of the matrices.
        layer_decay: each layer's `lr_scale` is this part of that of the layer above it (BEiT, arXiv
            2106.08254, app. D); the head's is 1.
    """
    depth = len(getattr(model, "blocks", ()))
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_matrix = parameter.ndim > 1 and not name.startswith(_NO_DECAY)
            scale = layer_decay ** (depth + 1 - _layer(name, depth))
            decay = weight_decay if is_matrix else 0.0
            empty = {"params": [], "weight_decay": decay, "lr_scale": scale}
            groups.setdefault((scale, is_matrix), empty)["params"].append(parameter)
    return [groups[key] for key in sorted(groups, reverse=True)]


def _layer(name: str, depth: int) -> int:
    """0 for what makes the tokens, then the blocks, and above them what reads their output."""
    if name.startswith("blocks."):
        return int(name.split(".")[1]) + 1
    is_input = name.startswith(("patch_embed.", *_NO_DECAY))
    return 0 if is_input else depth + 1


def build_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser over the parameters that require a gradient."""
    groups = parameter_groups(model, recipe.weight_decay, recipe.layer_decay)
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum)
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=recipe.lr, betas=(recipe.momentum, recipe.beta2))


def lr_factor(progress: float, recipe: Recipe) -> float:
    """The learning rate as a part of its peak: a linear warm-up, then cosine, linear or constant to `min_lr`.

    Args:
        progress: how much of the training is behind, in [0, 1].
        recipe: `warmup`, `schedule` and `min_lr`.
    """
    if progress < recipe.warmup:
        return progress / recipe.warmup
    fallen = min(max((progress - recipe.warmup) / max(1 - recipe.warmup, 1e-12), 0.0), 1.0)
    shape = {"cosine": (1 + math.cos(math.pi * fallen)) / 2, "linear": 1 - fallen, "constant": 1.0}[recipe.schedule]
    return recipe.min_lr + (1 - recipe.min_lr) * shape
