"""Parameter groups, optimisers and the learning-rate schedule.

The average of the weights that becomes the model: an exponential one of all steps (EMA), or one of epochs (SWA). The
average begins with the weights of its first update, never with those of before the training, and its decay warms up,
so that a short run is not mostly its beginning. What batch norms remember is averaged as the weights are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from vitkit.model.network import Network
from vitkit.training.recipe import Recipe

_OF_TOKENS = ("cls_token", "dist_token", "reg_token", "mask_token", "pos_embed", "rel_pos", "rope")
_NO_DECAY = (*_OF_TOKENS, "attn_pool.latent")
_OF_BLOCK = re.compile(r"(blocks|rel_pos)\.(\d+)\.")


def parameter_groups(
    model: nn.Module, weight_decay: float, layer_decay: float = 1.0, decay_all: bool = False
) -> list[dict[str, Any]]:
    """Weight matrices, which decay; and biases, norms, tokens and positions, which do not; layer by layer if asked.

    Args:
        model: parameters that require no gradient are left out.
        weight_decay: of the matrices.
        layer_decay: each layer's `lr_scale` is this part of that of the layer above it (BEiT, arXiv
            2106.08254, app. D); the head's is 1. Positions that all layers share, or keep in one tensor, are of the
            lowest.
        decay_all: the others decay too.
    """
    depth = _depth(model)
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            own = name.removeprefix("encoder.").removeprefix("task.")  # the two parts of a pre-training
            is_table = own.startswith(_NO_DECAY) and ".mlp." not in own  # an MLP of offsets is no table
            decays = decay_all or (parameter.ndim > 1 and not is_table)
            scale = layer_decay ** (depth + 1 - layer_of(name, model))
            empty = {"params": [], "weight_decay": weight_decay if decays else 0.0, "lr_scale": scale}
            groups.setdefault((scale, decays), empty)["params"].append(parameter)
    return [groups[key] for key in sorted(groups, reverse=True)]


def layer_of(name: str, model: nn.Module) -> int:
    """The layer that a parameter is of: 0 makes the tokens, then come the blocks, above them what reads their output.

    As in BEiT's and MAE's code; timm counts the last LayerNorm with the last block.
    """
    depth, of_block = _depth(model), _OF_BLOCK.match(name)
    # A table of relative positions is one of its block's weights, unless all blocks share it.
    if of_block is not None and len(model.get_submodule(of_block[1])) == depth:  # type: ignore[arg-type]
        return int(of_block[2]) + 1
    return 0 if name.startswith(("patch_embed.", "norm_pre.", *_OF_TOKENS)) else depth + 1


def _depth(model: nn.Module) -> int:
    return len(getattr(model, "blocks", ()))


def build_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser over the parameters that require a gradient."""
    groups = parameter_groups(model, recipe.weight_decay, recipe.layer_decay, recipe.decay_all)
    # One kernel for a whole step. It rounds otherwise, and saves little on CPUs (docs/log.md), so those keep theirs.
    fused = True if all(parameter.is_cuda for group in groups for parameter in group["params"]) else None
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, fused=fused)
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=recipe.lr, betas=(recipe.momentum, recipe.beta2), fused=fused)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every group its part of the rate (`parameter_groups`)."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


def lr_factor(progress: float, recipe: Recipe, stride: float) -> float:
    """The learning rate as a part of its peak: a linear warm-up, then cosine, linear or constant to `min_lr`.

    Args:
        progress: how much of the training is behind, in [0, 1].
        recipe: `warmup`, `schedule` and `min_lr`.
        stride: how much of the training goes by until the rate is set anew. Warm-up aims at the end of that stretch
            and the fall at its beginning, so that no step is without effect, be it the only one.
    """
    if progress < recipe.warmup:
        return min((progress + stride) / recipe.warmup, 1.0)
    fallen = min(max((progress - recipe.warmup) / max(1 - recipe.warmup, 1e-12), 0.0), 1.0)
    shape = {"cosine": (1 + math.cos(math.pi * fallen)) / 2, "linear": 1 - fallen, "constant": 1.0}[recipe.schedule]
    return recipe.min_lr + (1 - recipe.min_lr) * shape


def swa_start(recipe: Recipe) -> int | None:
    """The first epoch, from 0, whose weights stochastic weight averaging takes in; None without it."""
    return recipe.epochs - max(round(recipe.swa * recipe.epochs), 1) if recipe.swa else None


def swa_factor(epoch: int, recipe: Recipe) -> float | None:
    """The learning rate in epochs that are averaged, as a part of `lr`; None before.

    It goes from where the schedule stood to `swa_lr` by a cosine over ten epochs, as in Lightning's
    StochasticWeightAveraging, or in as many as there are.
    """
    start = swa_start(recipe)
    if start is None or epoch < start:
        return None
    begin = lr_factor(start / recipe.epochs, recipe, 1 / recipe.epochs)
    end = begin if recipe.swa_lr is None else recipe.swa_lr / recipe.lr
    gone = min((epoch - start) / max(min(10, recipe.epochs - 1 - start), 1), 1.0)
    return end + (begin - end) * (1 + math.cos(math.pi * gone)) / 2


def ema_decay(updates: int, limit: float) -> float:
    """How much of the average stays after so many earlier updates: (1 + n) / (10 + n) while that is below the limit."""
    return min(limit, (1 + updates) / (10 + updates))


class Average(nn.Module):
    """A running average of a model's weights, on the model's device; its state is in the checkpoint.

    Args:
        model: whose weights are averaged; it is copied.
        recipe: `ema`, else the equal mean that stochastic weight averaging takes.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        self._limit = recipe.ema
        has_statistics = any(True for _ in model.buffers()) and isinstance(model, Network)
        approach = self._approach if recipe.ema else self._mean if has_statistics else None
        self.averaged = AveragedModel(model, multi_avg_fn=approach, use_buffers=has_statistics)
        for parameter in self.averaged.parameters():
            parameter.requires_grad = False

    @property
    def has_begun(self) -> bool:
        return bool(self.averaged.n_averaged > 0)

    @property
    def model(self) -> nn.Module:
        """The model with the averaged weights."""
        return self.averaged.module

    def update(self, model: nn.Module) -> None:
        """Take in the model's weights as they are now."""
        self.averaged.update_parameters(model)

    @torch.no_grad()
    def _approach(self, averages: Sequence[Tensor], weights: Sequence[Tensor], updates: Tensor | int) -> None:
        _approach(averages, weights, 1 - ema_decay(int(updates), self._limit))

    @torch.no_grad()
    def _mean(self, averages: Sequence[Tensor], weights: Sequence[Tensor], updates: Tensor | int) -> None:
        _approach(averages, weights, 1 / (int(updates) + 1))


def _approach(averages: Sequence[Tensor], values: Sequence[Tensor], part: float) -> None:
    """Bring averages nearer to the values; counters become the latest ones."""
    if averages[0].is_floating_point():
        torch._foreach_lerp_(list(averages), list(values), part)
        return
    for average, value in zip(averages, values, strict=True):
        average.copy_(value)
