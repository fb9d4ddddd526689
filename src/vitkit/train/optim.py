"""Parameter groups, optimisers and the learning-rate schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from vitkit.train.recipe import Recipe

_NO_DECAY = ("cls_token", "dist_token", "reg_token", "pos_embed", "rel_pos")


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: weight matrices, which decay; and biases, norms, tokens and positions, which do not."""
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_matrix = parameter.ndim > 1 and not name.startswith(_NO_DECAY)
            (decayed if is_matrix else kept).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def build_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser over the parameters that require a gradient."""
    groups = parameter_groups(model, recipe.weight_decay)
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
