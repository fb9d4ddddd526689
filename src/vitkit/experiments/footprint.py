"""Simulate one training step to measure its FLOPs and its memory.

The step of the real training loop runs with PyTorch's fake tensors, which have shapes but no data. Autocast, autograd,
checkpointing, patch dropout, a teacher, gradient clipping and the optimiser behave as in a real step, but no memory is
allocated and nothing is computed. Therefore the tensors that autograd keeps, the moment when each tensor is freed, and
all temporary tensors are the same as in the real step. Memory that a kernel allocates internally is not counted.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from vitkit.data.loading import Batch, BatchedImages
from vitkit.model.build import Model, build
from vitkit.model.names import Config
from vitkit.model.network import Network
from vitkit.model.vit import VisionTransformer
from vitkit.system.progress import ignore
from vitkit.training.adapters import add_low_rank, drop_patches, freeze_backbone
from vitkit.training.checkpoint import TrainingState
from vitkit.training.distributed import fabric_of
from vitkit.training.loop import Draws, Loop
from vitkit.training.losses import Objective
from vitkit.training.recipe import Recipe, checkpoint_every
from vitkit.training.stability import FiniteCheck, StabilityGuard


@dataclass
class Ledger:
    """The memory and operations of a simulated computation.

    Attributes:
        now: bytes of the tensors that are alive.
        peak: the largest value of `now` since `mark`.
        flops: FLOPs of matrix products and convolutions since `mark`; a multiply-accumulate counts as two.
    """

    now: int = 0
    peak: int = 0
    flops: int = 0
    _alive: dict[int, tuple[int, int]] = field(default_factory=dict, repr=False)  # by address: number, bytes
    _events: list[tuple[int, int]] = field(default_factory=list, repr=False)  # since `mark`: number, change in bytes
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)

    def mark(self) -> None:
        """Begin a new measurement: reset the peak to the current memory, and the FLOPs to 0."""
        self.peak, self.flops = self.now, 0
        self._events.clear()

    def enter(self, tensor: Tensor) -> None:
        """Record a tensor that an operation returned; tensors that share memory count once."""
        storage = tensor.untyped_storage()
        if (address := storage._cdata) not in self._alive:
            self._alive[address] = number, size = next(self._numbers), storage.nbytes()
            self._change(number, size)
            weakref.finalize(storage, self._leave, address)

    def _leave(self, address: int) -> None:
        number, size = self._alive.pop(address)
        self._change(number, -size)

    def _change(self, number: int, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)
        self._events.append((number, size))

    def peak_without(self, tensors: Iterable[Tensor]) -> int:
        """Return the peak in bytes since `mark`, not counting these tensors, which must still be alive."""
        numbers = {self._alive[tensor.untyped_storage()._cdata][0] for tensor in tensors}
        sizes = [size for number, size in self._events if number not in numbers]
        born = sum(size for number, size in self._events if number in numbers)
        began = self.now - born - sum(sizes)
        before = sum(size for number, size in self._alive.values() if number in numbers) - born
        return began - before + max(itertools.accumulate(sizes, initial=0))


@contextmanager
def rehearse() -> Iterator[Ledger]:
    """Run a `with` block on fake tensors, and record its memory and FLOPs in a `Ledger`."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # imports the compiler, which takes a second

    ledger = Ledger()
    with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True), _Bookkeeper(ledger):
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # caused by copy.deepcopy
        yield ledger


def materialise(module: nn.Module) -> None:
    """Replace a module's meta tensors by fake tensors of the current simulation, so that their memory is counted."""
    module.to_empty(device="cpu")


class _Bookkeeper(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record the memory and FLOPs of every operation, including those that autograd and autocast add."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        from torch.utils.flop_counter import flop_registry

        self.ledger = ledger
        self._flops_of: dict[Any, Callable[..., int]] = _of_fused_attention() | flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func.namespace == "prim":  # queries the device of a tensor
            return output
        for part in tree_iter(output):
            if isinstance(part, Tensor):
                self.ledger.enter(part)
        if (count := self._flops_of.get(func.overloadpacket)) is not None:
            self.ledger.flops += count(*args, **kwargs, out_val=output)
        return output


def _of_fused_attention() -> dict[Any, Callable[..., int]]:
    """Return functions that count the FLOPs of the CPU's fused attention kernel, which PyTorch 2.11 does not count.

    The simulation uses this kernel in place of the fused attention kernel of a GPU.
    """
    from torch.utils import flop_counter

    counts: Any = flop_counter  # its functions have no types

    def forward(*inputs: Any, **_: Any) -> int:
        return int(counts.sdpa_flop_count(*(part.shape for part in inputs[:3])))

    def backward(*inputs: Any, **_: Any) -> int:
        return int(counts.sdpa_backward_flop_count(*(part.shape for part in inputs[:4])))

    kernels = torch.ops.aten
    return {
        kernels._scaled_dot_product_flash_attention_for_cpu: forward,
        kernels._scaled_dot_product_flash_attention_for_cpu_backward: backward,
    }


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the total size of tensors in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class Footprint:
    """The cost of one training step on one device. Sizes are in bytes.

    Attributes:
        images: the number of images of the step on this device.
        parameters, trained: the number of all parameters, and the number of trained parameters.
        flops: FLOPs of the step, including attention products and recomputation; a multiply-accumulate counts as two.
        forward_flops: FLOPs of the forward pass alone, including the forward pass of a teacher.
        weights, gradients, optimizer, average: sizes of the weights, of the gradients of the trained weights, of the
            optimiser's moments, and of the average of the weights, if the recipe has one.
        teacher: size of the teacher's weights.
        activations: size of the tensors that the forward pass keeps for the backward pass, including the images.
        peak: the largest total at any moment of the step. It is less than the sum of the parts, because activations
            are freed while gradients are computed.
        moving: the largest total at any moment of all tensors except weights, moments, average, teacher and
            accumulated gradients.
        block, around: size of the weights of a Vision Transformer's largest block, and size of all weights outside the
            blocks.
    """

    images: int
    parameters: int
    trained: int
    flops: int
    forward_flops: int
    weights: int
    gradients: int
    optimizer: int
    average: int
    teacher: int
    activations: int
    peak: int
    moving: int
    block: int
    around: int


def rehearse_step(
    config: Config, recipe: Recipe, images: int, *, precision: str, on_gpu: bool, teacher: nn.Module | None = None
) -> Footprint:
    """Simulate the second step of a training, in which the optimiser already has its moments.

    Args:
        config: the configuration of the model.
        recipe: the complete recipe.
        images: the number of images that the device processes at a time.
        precision: float32 or bfloat16.
        on_gpu: whether to use fused attention and a fused optimiser, as training does on GPUs.
        teacher: a network on the meta device in evaluation mode, whose logits include the student's classes.
    """
    model = without_numbers(config)
    with rehearse() as ledger:
        network = _prepared(model, recipe, on_gpu=on_gpu)
        if teacher is not None:
            materialise(teacher)
        if recipe.method == "probe":
            return _probed(network, images, precision, ledger)
        return _stepped(network, recipe, images, precision, on_gpu, teacher, ledger)


def without_numbers(config: Config) -> Model:
    """Build a model on the meta device, which allocates no memory."""
    try:
        with torch.device("meta"):
            return build(config)
    except NotImplementedError:  # some initial weights are computed from others
        with torch.random.fork_rng():
            return build(config).to("meta")


def _prepared(model: Model, recipe: Recipe, *, on_gpu: bool) -> Model:
    """Prepare the model for training as `training.fine_tune` does."""
    materialise(model)
    if isinstance(model, VisionTransformer):
        model.fused_attention = on_gpu
        model.checkpointing = checkpoint_every(recipe.checkpointing)
        if recipe.patch_dropout:
            drop_patches(model, recipe.patch_dropout)
    if recipe.method == "probe-sgd":
        freeze_backbone(model)
    if recipe.method == "lora" and isinstance(model, VisionTransformer):
        add_low_rank(model, recipe.lora_rank, 0)
    return model.train()


def _probed(model: Model, images: int, precision: str, ledger: Ledger) -> Footprint:
    """Simulate the method `probe`, which only computes the features of each batch and has no training steps."""
    fabric = fabric_of(precision, "cpu")
    ledger.mark()
    with torch.no_grad(), fabric.autocast():
        model.eval()(_images(model.config, images))
    sizes = _sizes(model)
    return Footprint(
        **sizes,
        images=images,
        flops=ledger.flops,
        forward_flops=ledger.flops,
        gradients=0,
        optimizer=0,
        average=0,
        teacher=0,
        activations=0,
        peak=ledger.peak,
        moving=ledger.peak - sizes["weights"],
    )


def _stepped(
    model: Model,
    recipe: Recipe,
    images: int,
    precision: str,
    on_gpu: bool,
    teacher: nn.Module | None,
    ledger: Ledger,
) -> Footprint:
    fabric = fabric_of(precision, "cpu")
    state = TrainingState.begin(model, recipe, 2, StabilityGuard(ignore))
    _give_moments(state.optimizer, model)
    if on_gpu:
        _set(state.optimizer, fused=True, foreach=False)
    imitate = None if teacher is None else partial(_logits, teacher, model.config)
    objective = Objective(recipe, model.config.num_classes, imitate=imitate)
    loop = _Rehearsal(state, objective, cast(BatchedImages, _Batches(images)), fabric)
    if isinstance(model, Network):
        loop.draw_nothing()
    loop.ledger, loop.config = ledger, model.config
    loop.check = _Unasked(state.guard, lambda *_: {})
    ledger.mark()
    before = ledger.now
    loop.take_step(0, loop.batches(min(recipe.grad_accum, 2)))  # a third part would cost as much as the second
    parts = min(recipe.grad_accum, 2)
    trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
    moments = [
        part for tensor in state.optimizer.state.values() for part in tensor.values() if isinstance(part, Tensor)
    ]
    return Footprint(
        **_sizes(model),
        images=images * recipe.grad_accum,
        flops=ledger.flops * recipe.grad_accum // parts,
        forward_flops=loop.forward_flops * recipe.grad_accum,
        gradients=bytes_of(trained),
        optimizer=bytes_of(moments),
        average=0 if state.average is None else bytes_of(state.average.parameters()),
        teacher=0 if teacher is None else bytes_of(teacher.parameters()),
        activations=loop.after_forward - before,
        peak=ledger.peak,
        moving=ledger.peak_without(tensor.grad for tensor in trained if tensor.grad is not None) - before,
    )


def _give_moments(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Initialise the moments of the optimiser by a step with zero gradients."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    _set(optimizer, foreach=True)  # quicker, and the moments are the same
    optimizer.step()
    optimizer.zero_grad()
    _set(optimizer, foreach=None)


def _set(optimizer: torch.optim.Optimizer, **options: bool | None) -> None:
    for group in optimizer.param_groups:
        group.update(options)


def _sizes(model: Model) -> dict[str, int]:
    parameters = list(model.parameters())
    blocks = [bytes_of(block.parameters()) for block in getattr(model, "blocks", ())]
    weights = bytes_of(parameters)
    return {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trained": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        "weights": weights,
        "block": max(blocks, default=0),
        "around": weights - sum(blocks),
    }


def _logits(teacher: nn.Module, config: Config, images: Tensor) -> Tensor:
    """Compute the teacher's logits (B, K) of images (B, C, height, width).

    If the teacher has more classes than the student, its first K classes are assumed to be the student's classes.
    """
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        logits: Tensor = teacher(images.float()).float()
    return logits[:, : config.num_classes] if logits.shape[1] >= config.num_classes else logits


def _images(config: Config, images: int) -> Tensor:
    return torch.empty(images, config.in_channels, *config.image_size)


class _Rehearsal(Loop):
    """The training loop, extended to record the memory and FLOPs of the forward pass."""

    ledger: Ledger
    config: Config
    after_forward = forward_flops = 0

    def batches(self, number: int) -> Iterator[Batch]:
        """Yield `number` fake batches, all of the same size."""
        data = cast(_Batches, self.data)
        for _ in range(number):
            yield _images(self.config, data.images), torch.zeros(data.images, dtype=torch.int64)

    def draw_nothing(self) -> None:
        """Disable the seeding of torch's generator in each step, because the seed is a fake tensor without a value."""
        self._draws = _Undrawn(self.state.model)

    def loss_of(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        began = self.ledger.flops
        loss = super().loss_of(images, targets)
        self.after_forward, self.forward_flops = self.ledger.now, self.ledger.flops - began
        return loss


class _Undrawn(Draws):
    @contextmanager
    def using(self, *_: Any) -> Iterator[None]:
        yield


class _Unasked(FiniteCheck):
    """A disabled check for finite losses, because a fake loss has no value."""

    def note_loss(self, *_: Any) -> None:
        pass

    def allows(self, *_: Any) -> bool:
        return True


@dataclass(frozen=True)
class _Batches:
    """Fake data with the interface that the loop needs for one step."""

    images: int
    batches: int = 1

    def images_in(self, _first: int, _last: int) -> tuple[int, int]:
        return self.images, self.images

    def places(self, images: int) -> range:
        return range(images)
