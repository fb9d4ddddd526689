"""Parameter groups, optimisers, the learning-rate schedule, and averages of the weights.

The final model can have averaged weights: an exponential moving average over all steps (EMA), or an equal mean over the
last epochs (SWA). The first update of an average copies the current weights, so the initial weights do not count. The
decay of the EMA rises over the first updates, because otherwise the first steps would dominate the average of a short
run. The running statistics of batch norms are averaged like the weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from vitkit.errors import VitkitError
from vitkit.training.recipe import Recipe
from vitkit.training.request import MakeOptimizer

_TOKEN_PARAMETERS = ("cls_token", "dist_token", "reg_token", "mask_token", "pos_embed", "rel_pos", "rope")
_NO_DECAY = (*_TOKEN_PARAMETERS, "attn_pool.latent")
_BLOCK_PARAMETER = re.compile(r"(blocks|rel_pos)\.(\d+)\.")


def parameter_groups(
    model: nn.Module, weight_decay: float, layer_decay: float = 1.0, decay_all: bool = False
) -> list[dict[str, Any]]:
    """Split a model's parameters into groups for the optimiser, by weight decay and by layer.

    Args:
        model: the model to train. Its parameters that require no gradient are left out.
        weight_decay: the weight decay of weight matrices. It is 0 for biases, norms, tokens and position embeddings.
        layer_decay: the ratio of the `lr_scale` of a layer to the `lr_scale` of the next layer (BEiT, arXiv 2106.08254,
            app. D). The `lr_scale` of the head is 1.
        decay_all: whether weight decay applies to all parameters.

    Returns:
        The groups, each with its `params`, `weight_decay` and `lr_scale`, the factor of its learning rate.
    """
    depth = len(getattr(model, "blocks", ()))
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        local = name.removeprefix("encoder.").removeprefix("task.")  # the two parts of a pre-training
        is_token_or_table = local.startswith(_NO_DECAY) and ".mlp." not in local  # an MLP has ordinary weights
        decays = decay_all or (parameter.ndim > 1 and not is_token_or_table)
        scale = layer_decay ** (depth + 1 - _layer_of(name, model, depth))
        new_group = {"params": [], "weight_decay": weight_decay if decays else 0.0, "lr_scale": scale}
        groups.setdefault((scale, decays), new_group)["params"].append(parameter)
    return [groups[key] for key in sorted(groups, reverse=True)]


def _layer_of(name: str, model: nn.Module, depth: int) -> int:
    """Return the layer of a parameter, as in BEiT and MAE.

    The embeddings are layer 0, the L = `depth` blocks are 1 to L, and what follows is L + 1. A table of relative
    positions belongs to its block, unless all blocks share one table.
    """
    match = _BLOCK_PARAMETER.match(name)
    if match is not None and len(model.get_submodule(match[1])) == depth:  # type: ignore[arg-type]
        return int(match[2]) + 1
    return 0 if name.startswith(("patch_embed.", "norm_pre.", *_TOKEN_PARAMETERS)) else depth + 1


def build_optimizer(model: nn.Module, recipe: Recipe, make: MakeOptimizer | None = None) -> torch.optim.Optimizer:
    """Build the recipe's optimiser for the trainable parameters, or call `make` with their groups if it is given."""
    groups = parameter_groups(model, recipe.weight_decay, recipe.layer_decay, recipe.decay_all)
    if make is not None:
        scales = [group["lr_scale"] for group in groups]  # before `make` may change the groups
        optimizer = make(groups)
        if not isinstance(optimizer, torch.optim.Optimizer):
            message = f"optimizer must return a torch.optim.Optimizer, not {type(optimizer).__name__}"
            raise VitkitError("training.optimizer-type", message)
        if [group.get("lr_scale") for group in optimizer.param_groups] != scales:
            message = "optimizer must keep the groups of parameters that it receives, in their order"
            raise VitkitError("training.optimizer-groups", message)
        return optimizer
    # A fused optimiser takes a step in one kernel. On CPUs, it saves little and rounds in another way (docs/log.md).
    fused = True if all(parameter.is_cuda for group in groups for parameter in group["params"]) else None
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, fused=fused)
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=recipe.lr, betas=(recipe.momentum, recipe.beta2), fused=fused)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group to `lr` times its `lr_scale` (see `parameter_groups`)."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


def lr_factor(progress: float, recipe: Recipe, stride: float) -> float:
    """Return the scheduled learning rate as a fraction of its peak, after the fraction `progress` of the training.

    The rate rises linearly in the warm-up, and then falls to `min_lr` along a cosine or a line, or stays constant.
    `stride` is the fraction of the training between two updates of the rate. The warm-up is computed at the end of this
    interval, and the decay at its start, so that the rate is never 0, even in a training of one step.
    """
    if progress < recipe.warmup:
        return min((progress + stride) / recipe.warmup, 1.0)
    decayed = min(max((progress - recipe.warmup) / max(1 - recipe.warmup, 1e-12), 0.0), 1.0)
    shape = {"cosine": (1 + math.cos(math.pi * decayed)) / 2, "linear": 1 - decayed, "constant": 1.0}[recipe.schedule]
    return recipe.min_lr + (1 - recipe.min_lr) * shape


def swa_start(recipe: Recipe) -> int | None:
    """Return the first epoch, from 0, that stochastic weight averaging includes; None without `swa`."""
    return recipe.epochs - max(round(recipe.swa * recipe.epochs), 1) if recipe.swa else None


def swa_factor(epoch: int, recipe: Recipe) -> float | None:
    """Return the learning rate of an epoch whose weights are averaged, as a fraction of `lr`; None for earlier epochs.

    The rate anneals along a cosine from the schedule's value to `swa_lr`, over ten epochs as in Lightning's
    StochasticWeightAveraging, or over fewer if the training ends earlier.
    """
    start = swa_start(recipe)
    if start is None or epoch < start:
        return None
    begin = lr_factor(start / recipe.epochs, recipe, 1 / recipe.epochs)
    end = begin if recipe.swa_lr is None else recipe.swa_lr / recipe.lr
    annealed = min((epoch - start) / max(min(10, recipe.epochs - 1 - start), 1), 1.0)
    return end + (begin - end) * (1 + math.cos(math.pi * annealed)) / 2


def ema_decay(updates: int, limit: float) -> float:
    """Return the decay of the EMA after n = `updates` updates: (1 + n) / (10 + n), but at most `limit`."""
    return min(limit, (1 + updates) / (10 + updates))


class WeightAverage(nn.Module):
    """A running average of a model's weights, with the decay `ema` of the recipe; if it is 0, their plain mean."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        self._limit = recipe.ema
        # Running statistics are valid only for the weights with which they were computed, so they are averaged, too.
        self.averaged = AveragedModel(model, multi_avg_fn=self._update, use_buffers=True)
        for parameter in self.averaged.parameters():
            parameter.requires_grad = False

    @property
    def has_begun(self) -> bool:
        return bool(self.averaged.n_averaged > 0)

    @property
    def model(self) -> nn.Module:
        """Return the model with the averaged weights."""
        return self.averaged.module

    def update(self, model: nn.Module) -> None:
        """Include the model's current weights in the average."""
        self.averaged.update_parameters(model)

    @torch.no_grad()
    def _update(self, averages: Sequence[Tensor], weights: Sequence[Tensor], updates: Tensor | int) -> None:
        n = int(updates)
        if averages[0].is_floating_point():
            share = 1 - ema_decay(n, self._limit) if self._limit else 1 / (n + 1)
            torch._foreach_lerp_(list(averages), list(weights), share)
        else:  # counters
            torch._foreach_copy_(list(averages), list(weights))
