"""Several processes that train one model.

Under torchrun or SLURM the processes exist already; otherwise Lightning Fabric starts the others on this machine, with
the same command. `ProcessGroup` says what one process does alone and what all exchange. Weights can be divided among
the processes (FSDP2, arXiv 2304.11277) and put together again.
"""

from __future__ import annotations

import atexit
import gc
import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
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

from vitkit.errors import VitkitError
from vitkit.model.build import Model, build
from vitkit.model.vit import VisionTransformer
from vitkit.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric  # a second to import, and more where torchmetrics is installed


_FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
_FROM_FIRST = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def share_out(model: VisionTransformer, device: torch.device, processes: int) -> None:
    """Leave each process its part of every block's weights, and of all that lies around the blocks."""
    mesh = init_device_mesh(device.type, (processes,))
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh)
    register_fsdp_forward_method(model, "forward_heads")


def is_sharded(model: nn.Module) -> bool:
    """Return whether each process has only a part of the weights."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def full_weights(model: nn.Module) -> dict[str, Any]:
    """Return all weights of a sharded model in the main process, and nothing in the others; all must call it."""
    return get_model_state_dict(model, options=_FULL)


def set_full_weights(model: nn.Module, weights: dict[str, Any]) -> None:
    """Give each process its part of the first one's weights."""
    set_model_state_dict(model, weights, options=_FROM_FIRST)


def full_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the weights and the optimiser's state by name; for a sharded model, in the main process."""
    if is_sharded(model):
        moments: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=_FULL)
        return full_weights(model), moments.get("state", {})
    names = _names(model, optimizer)
    return model.state_dict(), {names[i]: values for i, values in optimizer.state_dict()["state"].items()}


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
    """Return the names of the optimiser's parameters, in its order."""
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    return [name_of[parameter] for group in optimizer.param_groups for parameter in group["params"]]


T = TypeVar("T")

_PATIENCE = timedelta(days=7)  # the others wait while the first looks through the photographs, or writes the report


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train one model together. A run of one process is a group of one.

    Attributes:
        rank: this process's number, 0 to size - 1.
        size: how many processes there are, on all machines.
        machines: how many machines.
        group: over which they talk; None for one process.
    """

    rank: int = 0
    size: int = 1
    machines: int = 1
    group: Any = None

    @property
    def is_main(self) -> bool:
        """Return whether this is the process that writes and reports."""
        return self.rank == 0

    def broadcast_from_main(self, work: Callable[[], T]) -> T:
        """Do some work in the main process and give its result to all. Where it fails, the others end silently."""
        if self.size == 1:
            return work()
        outcome: list[Any] = [False, None]
        try:
            if self.is_main:
                outcome = [True, work()]
        finally:
            dist.broadcast_object_list(outcome, src=0, group=self.group)
        if not outcome[0]:
            raise SystemExit(2)
        return outcome[1]

    def main_first(self, work: Callable[[], T]) -> T:
        """Do some work in each process, in the main one first: it may download what the others then find on disk."""
        result = work() if self.is_main else None
        self.broadcast_from_main(lambda: None)
        return work() if result is None else result

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        if self.size == 1:
            return [value]
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, value, group=self.group)
        return everyone

    def any(self, flag: bool) -> bool:
        """Return in all processes whether the condition holds in any of them."""
        return any(self.gather(flag))

    def before(self, values: Tensor, length: int) -> Tensor:
        """Return, for each image of this process's share of a batch, the previous one of the whole batch (circular).

        Args:
            values: this process's share (B, ...): the images rank, rank + size, rank + 2 size and so on; if there are
                none, what stands in for them, which comes back as it is.
            length: the length of the whole batch.
        """
        if self.size == 1:
            return values.roll(1, dims=0)
        padded = values.new_zeros(math.ceil(length / self.size), *values.shape[1:])
        padded[: len(values)] = values
        shares = padded.new_empty(self.size * len(padded), *values.shape[1:])
        dist.all_gather_into_tensor(shares, padded)
        whole = shares.view(self.size, *padded.shape).transpose(0, 1).flatten(0, 1)[:length]
        before = whole.roll(1, dims=0)[self.rank :: self.size]
        return before if len(before) else values

    def all_reduce(self, gradients: list[Tensor]) -> None:
        """Replace these tensors by their sums over all processes, unless the strategy has done so."""
        if self.size == 1 or not gradients or isinstance(gradients[0], DTensor):
            return
        together = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(together)
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, summed in zip(gradients, torch.split(together, sizes), strict=True):
            gradient.copy_(summed.view_as(gradient))

    def agree_on(self, model: nn.Module) -> None:
        """Give all processes the first one's weights."""
        if self.size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, src=0)

    def whole(self, model: Model) -> Model:
        """Return the model itself, or a complete copy in the main process if its parts lie on several devices."""
        if not is_sharded(model):
            return model
        state = full_weights(model)
        if not self.is_main:
            return model
        copied = build(model.config)
        copied.load_state_dict(state)
        return copied


ALONE = ProcessGroup()


def assemble(devices: int | None, nodes: int | None, accelerator: str = "auto") -> ProcessGroup:
    """Find or start the other processes of this run.

    Args:
        devices: the devices of each machine; None for what torchrun or SLURM started, else one.
        nodes: machines; None for what torchrun or SLURM started, else one.
        accelerator: auto, cpu, cuda or mps.

    Raises:
        VitkitError: the machine has fewer devices, or another number of processes was started.
    """
    started = _started()
    if started is not None:
        for name, requested, running in (("devices", devices, started[0]), ("nodes", nodes, started[1])):
            if requested not in (None, running):
                raise VitkitError(f"--{name} {requested}, but {running} were started: leave out --{name}")
    devices, nodes = started or (devices or 1, nodes or 1)
    if devices * nodes == 1:
        return ALONE
    there = torch.cuda.device_count() if torch.cuda.is_available() else devices
    there = {"cpu": devices, "mps": 1}.get(accelerator, there)
    if devices > there:
        raise VitkitError(f"--devices {devices}, but this machine has {there}")
    if not dist.is_initialized():
        from lightning_fabric import Fabric

        with _quiet_fabric():
            Fabric(accelerator=accelerator, devices=devices, num_nodes=nodes, strategy="ddp").launch()
        atexit.register(_part)
    group = dist.new_group(backend="gloo", timeout=_PATIENCE)
    return ProcessGroup(dist.get_rank(), dist.get_world_size(), nodes, group)


def fabric_of(precision: str, accelerator: str = "auto", team: ProcessGroup = ALONE) -> Fabric:
    """Return the Fabric of a training: this process's device and its precision.

    Args:
        precision: float32 or bfloat16.
        accelerator: auto, cpu, cuda or mps.
        team: the processes that train together; one by itself has nothing to do with others that may be there.
    """
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment

    mixed = {"float32": "32-true", "bfloat16": "bf16-mixed"}[precision]
    options: dict[str, Any] = {"accelerator": accelerator, "precision": mixed}
    with _quiet_fabric():
        if team.size == 1:
            return Fabric(devices=1, plugins=[LightningEnvironment()], **options)
        fabric = Fabric(devices=team.size // team.machines, num_nodes=team.machines, strategy="ddp", **options)
        fabric.launch()  # where the processes are there already, it lets them find each other
    return fabric


@contextmanager
def _quiet_fabric() -> Iterator[None]:
    """Without its banners."""
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _part() -> None:
    """End the threads that carry the messages: one that is left when the interpreter ends aborts the process."""
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # groups that only a dead cycle still holds


def _started() -> tuple[int, int] | None:
    """Processes on each machine, and machines, where a launcher has started them."""
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    if TorchElasticEnvironment.detect():
        per_node = int(os.environ["LOCAL_WORLD_SIZE"])
        return per_node, int(os.environ["WORLD_SIZE"]) // per_node
    if SLURMEnvironment.detect():
        nodes = int(os.environ.get("SLURM_NNODES", "1"))
        return max(int(os.environ.get("SLURM_NTASKS", "1")) // nodes, 1), nodes
    return None


def check_team(recipe: Recipe, team: ProcessGroup) -> None:
    """Refuse what several processes cannot do together.

    Raises:
        VitkitError: the batch is too small to be shared, or a field needs whole models.
    """
    if recipe.batch_size < team.size:
        raise VitkitError(f"batch_size {recipe.batch_size} is too small for {team.size} processes: give a larger one")
    if team.size == 1 or recipe.strategy != "fsdp":
        return
    if recipe.method == "lora":
        raise VitkitError("with lora each process needs the whole model: leave out --strategy fsdp")
    for name in ("ema", "swa"):
        if getattr(recipe, name):
            raise VitkitError(f"{name} averages whole models, which no process has with --strategy fsdp: take ddp")


def describe_team(recipe: Recipe, team: ProcessGroup) -> list[str]:
    """Return what the user should know about several processes; empty if there is only one."""
    if team.size == 1:
        return []
    if recipe.method == "probe":
        return [f"method probe: one of the {team.size} processes fits it, the others wait"]
    kind = "fsdp" if recipe.strategy == "fsdp" else "ddp"
    return [f"{team.size} processes ({kind}); batch and learning rate are those of all together"]
