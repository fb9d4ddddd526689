"""Weights in parts, each process having its own: FSDP2 (Zhao et al., arXiv 2304.11277). And the whole of them again."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from vitkit.model.vit import VisionTransformer

_FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
_FROM_FIRST = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def share_out(model: VisionTransformer, device: torch.device, processes: int) -> None:
    """Leave each process its part of every block's weights, and of all that lies around the blocks."""
    mesh = init_device_mesh(device.type, (processes,))
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh)
    register_fsdp_forward_method(model, "forward_heads")


def is_sharded(model: nn.Module) -> bool:
    """Whether each process has but a part of the weights."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def full_weights(model: nn.Module) -> dict[str, Any]:
    """The weights of a model in parts, in the first process; all call it, and the others get nothing."""
    return get_model_state_dict(model, options=_FULL)


def set_full_weights(model: nn.Module, weights: dict[str, Any]) -> None:
    """Give each process its part of the first one's weights."""
    set_model_state_dict(model, weights, options=_FROM_FIRST)


def full_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights, and what the optimiser knows of each by its name; of a model in parts, in the first process."""
    if is_sharded(model):
        moments: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=_FULL)
        return full_weights(model), moments.get("state", {})
    names = _names(model, optimizer)
    return model.state_dict(), {names[i]: own for i, own in optimizer.state_dict()["state"].items()}


def set_full_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, weights: dict[str, Any], moments: dict[str, Any]
) -> None:
    """Take up what `full_state` gave, whether it was of a model in parts or not."""
    names, groups = _names(model, optimizer), optimizer.state_dict()["param_groups"]
    if not is_sharded(model):
        model.load_state_dict(weights)
        optimizer.load_state_dict(
            {
                "state": {i: moments[name] for i, name in enumerate(names) if name in moments},
                "param_groups": groups,
            }
        )
        return
    set_full_weights(model, weights)
    named = [{**group, "params": [names[i] for i in group["params"]]} for group in groups]
    set_optimizer_state_dict(model, optimizer, {"state": moments, "param_groups": named}, options=_FROM_FIRST)


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Of the optimiser's parameters, in its order."""
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    return [name_of[parameter] for group in optimizer.param_groups for parameter in group["params"]]
