"""Train one model with several processes.

Under torchrun or SLURM, the launcher has already started all processes. Otherwise Lightning Fabric starts the other
processes on this machine with the same command. Each process has the whole model and computes its share of a batch.
"""

from __future__ import annotations

import atexit
import gc
import logging
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitkit.errors import VitkitError
from vitkit.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric  # importing takes a second

T = TypeVar("T")

_TIMEOUT = timedelta(days=7)  # the other processes wait while the main process checks images or writes the report


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train one model together. A single process is a group of size 1."""

    rank: int = 0  # of this process; the main process is 0
    size: int = 1  # the number of processes on all machines
    machines: int = 1
    cpu_group: Any = None  # torch's process group for CPU tensors and for objects; None for one process

    @property
    def is_main(self) -> bool:
        """Whether this is the main process, which writes files and reports to the user."""
        return self.rank == 0

    def broadcast_from_main(self, function: Callable[[], T]) -> T:
        """Call a function in the main process, and return its result in all processes.

        If the function raises an exception in the main process, the other processes exit silently.
        """
        if self.size == 1:
            return function()
        outcome: list[Any] = [False, None]  # whether the call succeeded, and its result
        try:
            if self.is_main:
                outcome = [True, function()]
        finally:
            dist.broadcast_object_list(outcome, src=0, group=self.cpu_group)
        if not outcome[0]:
            # torchrun ends all processes as soon as one exits, so wait until the main process has reported its error.
            with suppress(RuntimeError):
                dist.monitored_barrier(self.cpu_group, timeout=timedelta(seconds=10))
            raise SystemExit(2)
        return outcome[1]

    def main_first(self, function: Callable[[], T]) -> T:
        """Call a function in every process, first in the main process, which may download files that all need."""
        results = list[T]()
        self.broadcast_from_main(lambda: results.append(function()))
        return results[0] if results else function()

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.cpu_group)
        return values

    def reduce(self, numbers: Sequence[float], operation: Any = dist.ReduceOp.SUM) -> list[float]:
        """Return the sum of each number over all processes, or the result of another operation."""
        if self.size == 1:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(values, operation, group=self.cpu_group)
        return values.tolist()

    def mean_of(self, mean: float, count: int) -> float:
        """Return the mean over the items of all processes together, of which this one has `count`, or none."""
        if self.size == 1:
            return mean
        total, items = self.reduce((mean * count if count else 0.0, count))
        return total / items

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace these tensors, which have the same dtype and device, by their sums over all processes."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat, group=None if flat.is_cuda else self.cpu_group)
        for tensor, total in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def preceding_images(self, values: Tensor, length: int) -> Tensor:
        """Return, for each image of this process's share, the values of the preceding image in the whole batch.

        `values` (B, ...) are those of this process's share: the images rank, rank + size, rank + 2 size and so on of
        the whole batch, which has `length` images. The last one precedes the first. Placeholders for an empty share are
        returned unchanged.
        """
        if self.size == 1:
            return values.roll(1, dims=0)
        padded = values.new_zeros(math.ceil(length / self.size), *values.shape[1:])  # all shares must be equally long
        padded[: len(values)] = values
        shares = padded.new_empty(self.size * len(padded), *values.shape[1:])
        dist.all_gather_into_tensor(shares, padded)
        batch = shares.view(self.size, *padded.shape).transpose(0, 1).flatten(0, 1)[:length]
        preceding = batch.roll(1, dims=0)[self.rank :: self.size]
        return preceding if len(preceding) else values

    def broadcast_weights(self, model: nn.Module) -> None:
        """Copy the main process's weights to all processes."""
        if self.size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, src=0)


ALONE = ProcessGroup()


def form_process_group(devices: int | None, nodes: int | None, accelerator: str = "auto") -> ProcessGroup:
    """Find or start the other processes of this run, and return the group of all processes.

    `devices` is the number of processes on each machine, and `nodes` is the number of machines. The default of both is
    the number that torchrun or SLURM uses, or 1. The `accelerator` is auto, cpu, cuda or mps.

    Raises:
        VitkitError: the machine has fewer devices, or a launcher started a different number of processes or machines.
    """
    launched = _launched_counts()
    if launched is not None:
        for name, requested, running in (("devices", devices, launched[0]), ("nodes", nodes, launched[1])):
            if requested not in (None, running):
                message = f"--{name} {requested}, but {running} were started by torchrun or SLURM: leave out --{name}"
                raise VitkitError("training.processes-mismatch", message)
    devices, nodes = launched or (devices or 1, nodes or 1)
    if devices * nodes == 1:
        return ALONE
    available = devices
    if accelerator == "mps":
        available = 1
    elif accelerator != "cpu" and torch.cuda.is_available():
        available = torch.cuda.device_count()
    if devices > available:
        raise VitkitError("training.devices-missing", f"--devices {devices}, but this machine has {available}")
    if not dist.is_initialized():
        from lightning_fabric import Fabric

        with _without_banners():
            Fabric(accelerator=accelerator, devices=devices, num_nodes=nodes, strategy="ddp").launch()

        @atexit.register
        def end_communication() -> None:  # a thread that is still running would abort the process at exit
            if dist.is_initialized():
                dist.destroy_process_group()
                gc.collect()  # frees process groups in reference cycles

    group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
    return ProcessGroup(dist.get_rank(), dist.get_world_size(), nodes, group)


def fabric_of(precision: str, accelerator: str = "auto", team: ProcessGroup = ALONE) -> Fabric:
    """Return the Lightning Fabric of a training, which determines the device of this process and the precision."""
    _import_fabric()
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.plugins.precision import MixedPrecision

    options: dict[str, Any] = {"accelerator": accelerator, "plugins": []}
    if precision == "float16":  # with an explicit plugin, because Fabric would use bfloat16 on CPUs
        automatic = "cuda" if torch.cuda.is_available() else "cpu"
        device = automatic if accelerator == "auto" else accelerator
        options["plugins"].append(MixedPrecision("16-mixed", device, torch.amp.GradScaler(device, enabled=False)))
    else:
        options["precision"] = {"float32": "32-true", "bfloat16": "bf16-mixed"}[precision]
    with _without_banners():
        if team.size == 1:
            options["plugins"].append(LightningEnvironment())
            return Fabric(devices=1, **options)
        fabric = Fabric(devices=team.size // team.machines, num_nodes=team.machines, strategy="ddp", **options)
        fabric.launch()  # connects the processes if they exist already
    return fabric


def _import_fabric() -> None:
    """Import lightning_fabric without importing torchmetrics, which takes three seconds if transformers is installed.

    Fabric imports it only to compare its version, and stores the result for pytorch_lightning. During the import, a
    module that has nothing but the version therefore takes its place.
    """
    if "lightning_fabric" in sys.modules or "torchmetrics" in sys.modules:
        return
    stand_in = ModuleType("torchmetrics")
    try:
        stand_in.__version__ = version("torchmetrics")  # type: ignore[attr-defined]
    except PackageNotFoundError:
        return
    sys.modules["torchmetrics"] = stand_in
    try:
        import lightning_fabric  # noqa: F401
    finally:
        del sys.modules["torchmetrics"]


@contextmanager
def _without_banners() -> Iterator[None]:
    # Suppress the messages in which Fabric reports the devices and the precision that it has chosen.
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def launched() -> bool:
    """Return whether torchrun or SLURM has started several processes, of which this is one."""
    return math.prod(_launched_counts() or (1,)) > 1


def _launched_counts() -> tuple[int, int] | None:
    # The numbers of processes per machine and of machines that torchrun or SLURM has started; None without either.
    _import_fabric()
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    if TorchElasticEnvironment.detect():
        per_node = int(os.environ["LOCAL_WORLD_SIZE"])
        return per_node, int(os.environ["WORLD_SIZE"]) // per_node
    if SLURMEnvironment.detect():
        nodes, tasks = (int(os.environ.get(name, "1")) for name in ("SLURM_NNODES", "SLURM_NTASKS"))
        if tasks > 1 and "SLURM_NTASKS_PER_NODE" not in os.environ:  # machines could run different numbers of processes
            message = f"SLURM started {tasks} tasks by --ntasks: use --ntasks-per-node {max(tasks // nodes, 1)}"
            raise VitkitError("training.processes-mismatch", message)
        return max(tasks // nodes, 1), nodes
    return None


def check_team(recipe: Recipe, team: ProcessGroup) -> None:
    """Refuse settings that are not supported with several processes."""
    if recipe.batch_size < team.size:
        message = f"batch_size {recipe.batch_size} is too small for {team.size} processes: increase it"
        raise VitkitError("training.batch-too-small", message)


def describe_team(recipe: Recipe, team: ProcessGroup) -> list[str]:
    """Describe several processes for the user, in lines."""
    if team.size == 1:
        return []
    if recipe.method == "probe":
        return [f"method probe: one of the {team.size} processes fits the head, and the others wait"]
    return [f"{team.size} processes (ddp); batch size and learning rate are those of all processes together"]


# --- The gradient of a step -----------------------------------------------------------------------------------


def add_gradients(parameters: Sequence[nn.Parameter], loss: Tensor) -> None:
    """Add the gradient of a loss to the gradients of the parameters. If memory runs out, no gradient is changed."""
    with torch.autocast(loss.device.type, enabled=False):
        gradients = list(torch.autograd.grad(loss, parameters, allow_unused=True))
    for i, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        if gradient is not None and parameter.grad is None and gradient.stride() != parameter.stride():
            # Optimisers need the parameter's strides. For channels-last images, a convolution's gradient has others.
            gradients[i] = torch.empty_like(parameter).copy_(gradient)
    for parameter, gradient in zip(parameters, gradients, strict=True):  # this allocates no memory
        if gradient is None:
            continue
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad.add_(gradient)


class ForwardHeads(nn.Module):
    """The forward pass of a training step. `function` may be replaced by a compiled one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model  # whose parameters DistributedDataParallel finds here
        self.function: Callable[..., tuple[Tensor, ...]] = model.forward_heads  # type: ignore[assignment]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.function(*inputs)


def parallel(network: ForwardHeads) -> DistributedDataParallel:
    """Wrap a network so that its last backward pass of a step averages the gradients over all processes.

    They are sent in buckets, while the pass computes the gradients of earlier layers.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`broadcast_buffers`", FutureWarning)  # its successor is new in PyTorch 2.15
        return DistributedDataParallel(
            network,
            find_unused_parameters=True,  # some networks have parameters that a training does not use
            gradient_as_bucket_view=True,
            broadcast_buffers=False,  # `stability.RunningStatistics` averages them
            init_sync=False,  # `ProcessGroup.broadcast_weights` has copied the weights
        )
