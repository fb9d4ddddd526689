"""Train one model with several processes.

Under torchrun or SLURM, the launcher has already started all processes. Otherwise Lightning Fabric starts the other
processes on this machine with the same command. Weights can be sharded over the processes (FSDP2, arXiv 2304.11277) and
gathered again. `GradientSums` sums the gradients of all processes.
"""

from __future__ import annotations

import atexit
import gc
import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from types import ModuleType
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
    from lightning_fabric import Fabric  # importing takes a second

_FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
_FROM_MAIN = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def shard_model(model: VisionTransformer, device: torch.device, processes: int) -> None:
    """Shard the weights of a model over the processes (FSDP): each block on its own, and all other weights together."""
    mesh = init_device_mesh(device.type, (processes,))
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh)
    register_fsdp_forward_method(model, "forward_heads")


def is_sharded(model: nn.Module) -> bool:
    """Return whether the weights are sharded, so that each process has only a part of them."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def full_weights(model: nn.Module) -> dict[str, Any]:
    """Return all weights of a sharded model in the main process, and none in the others. All processes must call it."""
    return get_model_state_dict(model, options=_FULL)


def set_full_weights(model: nn.Module, weights: dict[str, Any]) -> None:
    """Distribute the main process's weights to the shards of all processes."""
    set_model_state_dict(model, weights, options=_FROM_MAIN)


def full_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the weights of a model, and the state of its optimiser by parameter name (see `full_weights`)."""
    if is_sharded(model):
        moments: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=_FULL)
        return full_weights(model), moments.get("state", {})
    names = _parameter_names(model, optimizer)
    return model.state_dict(), {names[i]: values for i, values in optimizer.state_dict()["state"].items()}


def set_full_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, weights: dict[str, Any], moments: dict[str, Any]
) -> None:
    """Load the result of `full_state`. A sharded model can load an unsharded state, and vice versa."""
    names, groups = _parameter_names(model, optimizer), optimizer.state_dict()["param_groups"]
    if not is_sharded(model):
        model.load_state_dict(weights)
        state = {i: moments[name] for i, name in enumerate(names) if name in moments}
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        return
    set_full_weights(model, weights)
    named_groups = [{**group, "params": [names[i] for i in group["params"]]} for group in groups]
    optimizer_state: dict[str, Any] = {"state": moments, "param_groups": named_groups}
    set_optimizer_state_dict(model, optimizer, optimizer_state, options=_FROM_MAIN)


def _parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    # The names of the parameters, in the order of the optimiser.
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    return [name_of[parameter] for group in optimizer.param_groups for parameter in group["params"]]


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

    def unsharded(self, model: Model) -> Model:
        """Return a complete copy of a sharded model in the main process, and in all other cases the model itself."""
        if not is_sharded(model) or not (state := full_weights(model)):
            return model
        copied = build(model.config)
        copied.load_state_dict(state)
        return copied


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
    available = torch.cuda.device_count() if torch.cuda.is_available() else devices
    available = {"cpu": devices, "mps": 1}.get(accelerator, available)
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
    if team.size == 1 or recipe.strategy != "fsdp":
        return
    if recipe.precision == "float16":
        message = "float16 scales gradients, and --strategy fsdp shards them: use ddp, or another --precision"
        raise VitkitError("training.strategy-unsupported", message)
    if recipe.method == "lora":
        message = "lora needs the whole model in each process: leave out --strategy fsdp"
        raise VitkitError("training.strategy-unsupported", message)
    for name in ("ema", "swa"):
        if getattr(recipe, name):
            message = f"{name} averages whole models, but --strategy fsdp shards them: use ddp"
            raise VitkitError("training.strategy-unsupported", message)


def describe_team(recipe: Recipe, team: ProcessGroup) -> list[str]:
    """Describe several processes for the user, in lines."""
    if team.size == 1:
        return []
    if recipe.method == "probe":
        return [f"method probe: one of the {team.size} processes fits the head, and the others wait"]
    kind = "fsdp" if recipe.strategy == "fsdp" else "ddp"
    return [f"{team.size} processes ({kind}); batch size and learning rate are those of all processes together"]


# --- The gradient of a step -----------------------------------------------------------------------------------

_BUCKET = 25 * 2**20  # bytes, as in torch's DistributedDataParallel


def add_gradients(parameters: Iterable[nn.Parameter], loss: Tensor) -> None:
    """Add the gradient of a loss to the gradients of the parameters. If memory runs out, no gradient is changed."""
    trained = list(parameters)
    gradients = [
        _with_strides_of(parameter, gradient) if gradient is not None and parameter.grad is None else gradient
        for parameter, gradient in zip(trained, _gradients_of(loss, trained), strict=True)
    ]
    for parameter, gradient in zip(trained, gradients, strict=True):  # this allocates no memory
        if gradient is None:
            continue
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad.add_(gradient)


def _gradients_of(loss: Tensor, parameters: list[nn.Parameter]) -> tuple[Tensor | None, ...]:
    with torch.autocast(loss.device.type, enabled=False):
        return torch.autograd.grad(loss, parameters, allow_unused=True)


def _with_strides_of(parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    # Optimisers need the strides of the parameter. For channels-last images, the gradient of a convolution has others.
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)


class GradientSums:
    """Sum the gradients of a step over the pieces of its batches (`stability.Pieces`) and over all processes.

    The result is a sum weighted by images, not a mean over processes as in torch's DistributedDataParallel. As there,
    the parameters are divided into buckets. In the last backward pass of a step, a bucket is sent as soon as its
    gradients are complete, while the pass computes those of earlier layers, in the same order in all processes. If the
    pass runs out of memory, the buckets that were sent remain valid, and the others are sent when the batch is computed
    again in smaller pieces.

    `bad_losses`, (), is the number of losses of the step that were not finite. `finish` sums it over all processes.
    With a single process, it is always 0.
    """

    def __init__(self, model: nn.Module, team: ProcessGroup = ALONE) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._team, self._is_sharded = team, is_sharded(model)
        self._buckets: list[list[nn.Parameter]] = []  # each of one type, from the last layer to the first
        if team.size > 1 and not self._is_sharded:
            size = _BUCKET
            for parameter in reversed(self._parameters):
                if size >= _BUCKET or parameter.dtype != self._buckets[-1][0].dtype:
                    self._buckets.append([])
                    size = 0
                self._buckets[-1].append(parameter)
                size += parameter.nbytes
        self._ready: dict[nn.Parameter, Tensor] = {}  # complete gradients that have not been sent
        # For each bucket that was sent: its flattened gradients, the running reduction, and which parameters have any.
        self._sent: list[tuple[Tensor, Any, list[bool]]] = []
        self.bad_losses = torch.zeros((), device=self._parameters[0].device if self._parameters else None)

    def begin(self) -> None:
        """Begin a step. The parameters must not have gradients yet."""
        self.bad_losses = torch.zeros_like(self.bad_losses)
        self._ready.clear()
        self._sent.clear()

    def add(self, loss: Tensor, *, is_last: bool) -> None:
        """Add the gradient of a piece's loss. If memory runs out, nothing is added unless the weights are sharded.

        `loss` is the mean over the piece, multiplied by the number of its images, and divided by the number of images
        of the whole step in all processes. `is_last` is true for the last piece of the step in this process.
        """
        if self._team.size > 1:
            self.bad_losses = self.bad_losses + ~loss.detach().isfinite()
        if self._is_sharded:  # the backward pass averages over processes
            (loss * self._team.size).backward()  # type: ignore[no-untyped-call]
        elif not (is_last and self._buckets):
            add_gradients(self._parameters, loss)
        else:
            hooks = [
                parameter.register_hook(partial(self._receive, parameter))  # type: ignore[no-untyped-call]
                for parameter in chain(*self._buckets[len(self._sent) :])
            ]
            try:
                _gradients_of(loss, self._parameters)
            except BaseException:
                self._ready.clear()
                raise
            finally:
                for hook in hooks:
                    hook.remove()

    @torch.no_grad()
    def _receive(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        # Add the last piece's gradient of a parameter to the earlier ones, and send the buckets that are complete.
        self._ready[parameter] = gradient if parameter.grad is None else parameter.grad + gradient
        for bucket in self._buckets[len(self._sent) :]:
            if not all(other in self._ready for other in reversed(bucket)):  # the last one is usually missing
                break
            self._send(bucket)

    @torch.no_grad()
    def _send(self, bucket: list[nn.Parameter]) -> None:
        # Start summing a bucket over all processes. The last bucket also carries the number of bad losses.
        gradients = [self._ready.pop(parameter, parameter.grad) for parameter in bucket]
        parts = [
            (torch.zeros_like(parameter) if gradient is None else gradient).flatten()
            for parameter, gradient in zip(bucket, gradients, strict=True)
        ]
        if bucket is self._buckets[-1]:
            parts.append(self.bad_losses.to(parts[0]).view(1))
        flat = torch.cat(parts)
        work = dist.all_reduce(flat, async_op=True)
        self._sent.append((flat, work, [gradient is not None for gradient in gradients]))

    def finish(self) -> list[Tensor]:
        """Return the gradients of the parameters that have one, summed over all processes."""
        for bucket in self._buckets[len(self._sent) :]:
            self._send(bucket)
        for bucket, (flat, work, have_gradients) in zip(self._buckets, self._sent, strict=True):
            work.wait()  # on a GPU, the CPU does not wait
            sizes = [parameter.numel() for parameter in bucket]
            summed = torch.split(flat[: sum(sizes)], sizes)
            for parameter, part, has_gradient in zip(bucket, summed, have_gradients, strict=True):
                parameter.grad = _with_strides_of(parameter, part.view_as(parameter)) if has_gradient else None
        if self._buckets:
            self.bad_losses = self._sent[-1][0][-1]
        elif self._team.size > 1:
            dist.all_reduce(self.bad_losses)
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]
