"""Computing with tensors that have shapes and no numbers, while it is written down what they would take.

PyTorch's fake tensors lie on the meta device and say that they lie on another: every operation is dispatched, autocast
and autograd do what they always do, and nothing is allocated or multiplied. What autograd keeps, what is freed when,
and every temporary that is a tensor are therefore those of the real computation. What a kernel allocates inside itself
is not seen.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


@dataclass
class Ledger:
    """What a computation takes, as it goes on.

    Attributes:
        now: bytes of the tensors that are alive.
        peak: the most that `now` has been since `mark`.
        flops: of the matrix products and convolutions since `mark`, two for each multiply-accumulate.
    """

    now: int = 0
    peak: int = 0
    flops: int = 0
    _alive: dict[int, tuple[int, int]] = field(default_factory=dict, repr=False)  # by address: its number, bytes
    _events: list[tuple[int, int]] = field(default_factory=list, repr=False)  # since `mark`: number, bytes more
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)

    def mark(self) -> None:
        """Count from here."""
        self.peak, self.flops = self.now, 0
        self._events.clear()

    def enter(self, tensor: Tensor) -> None:
        """A tensor that an operation returned; what it shares with others counts once."""
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
        """The most since `mark` of all but these tensors, which are alive."""
        own = {self._alive[tensor.untyped_storage()._cdata][0] for tensor in tensors}
        sizes = [size for number, size in self._events if number not in own]
        born = sum(size for number, size in self._events if number in own)
        began = self.now - born - sum(sizes)
        before = sum(size for number, size in self._alive.values() if number in own) - born
        return began - before + max(itertools.accumulate(sizes, initial=0))


@contextmanager
def rehearse() -> Iterator[Ledger]:
    """Let all that is computed inside be computed without numbers, and written down."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # imports the compiler: a second

    ledger = Ledger()
    with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True), _Bookkeeper(ledger):
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # so does copy.deepcopy
        yield ledger


def materialise(module: nn.Module) -> None:
    """Bring a module of the meta device into the rehearsal under way, where it takes what it would take."""
    module.to_empty(device="cpu")


class _Bookkeeper(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation below autograd and autocast."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        from torch.utils.flop_counter import flop_registry

        self.ledger = ledger
        self._flops_of: dict[Any, Callable[..., int]] = _of_fused_attention() | flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func.namespace == "prim":  # asks where a tensor is
            return output
        for part in tree_iter(output):
            if isinstance(part, Tensor):
                self.ledger.enter(part)
        if (count := self._flops_of.get(func.overloadpacket)) is not None:
            self.ledger.flops += count(*args, **kwargs, out_val=output)
        return output


def _of_fused_attention() -> dict[Any, Callable[..., int]]:
    """FLOPs of the kernel that stands for a GPU's here, of which PyTorch 2.11 knows none."""
    from torch.utils import flop_counter

    counts: Any = flop_counter  # its functions have no types

    def forward(*inputs: Any, **_: Any) -> int:
        return int(counts.sdpa_flop_count(*(own.shape for own in inputs[:3])))

    def backward(*inputs: Any, **_: Any) -> int:
        return int(counts.sdpa_backward_flop_count(*(own.shape for own in inputs[:4])))

    kernels = torch.ops.aten
    return {
        kernels._scaled_dot_product_flash_attention_for_cpu: forward,
        kernels._scaled_dot_product_flash_attention_for_cpu_backward: backward,
    }


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Of all of them together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
