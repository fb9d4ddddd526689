"""Counting what a forward pass computes and keeps, on the meta device.

PyTorch's own flop counter, and its meta kernels for normalisation and GELU, import the compiler: a second that nobody
who asks for a number wants to wait. So the few operations that cost something are met here, before they reach a kernel.
Tests compare with the flop counter, and with the tensors that real models keep, to the byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@dataclass
class Measured:
    """One forward pass.

    Attributes:
        macs: multiply-accumulates of all matrix products and convolutions.
        kept_bytes: the distinct tensors that autograd keeps for the backward pass, the parameters aside.
        shapes: what each module returned, without the batch.
        macs_of: multiply-accumulates of each module, those of its parts included.
    """

    macs: int = 0
    kept_bytes: int = 0
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    macs_of: dict[str, int] = field(default_factory=dict)


def measure(model: nn.Module, images: Tensor) -> Measured:
    """Pass images (B, C, height, width) through a model, both on the meta device, and take note."""
    measured = Measured()
    _pass(model, images, measured, _Meter(measured))
    return measured


def measure_any(model: nn.Module, images: Tensor) -> Measured:
    """As `measure`, of a model of any operations, by PyTorch's own counter."""
    from torch.utils.flop_counter import FlopCounterMode

    measured, counter = Measured(), FlopCounterMode(display=False)
    _pass(model, images, measured, counter)
    measured.macs = counter.get_total_flops() // 2
    counts = counter.get_flop_counts()
    measured.macs_of = {name.partition(".")[2]: sum(own.values()) // 2 for name, own in counts.items() if "." in name}
    return measured


def _pass(model: nn.Module, images: Tensor, measured: Measured, counter: AbstractContextManager[Any]) -> None:
    """Take note of what modules return and of what autograd keeps, while a counter does of the products."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor  # the reference keeps the address taken
        return tensor

    hooks = [hook for name, module in model.named_modules() if name for hook in _watch(module, name, measured)]
    try:
        with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    measured.kept_bytes = sum(
        tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in own
    )


def _watch(module: nn.Module, name: str, measured: Measured) -> list[Any]:
    before: list[int] = []

    def enter(_module: nn.Module, _inputs: Any) -> None:
        before.append(measured.macs)

    def leave(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        if isinstance(output, Tensor):
            measured.shapes[name] = tuple(output.shape[1:])
        measured.macs_of[name] = measured.macs_of.get(name, 0) + measured.macs - before.pop()

    return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]


class _Meter(TorchFunctionMode):
    """Meets each call of the torch library: counts products, and stands in for some kernels."""

    def __init__(self, measured: Measured) -> None:
        super().__init__()
        self.measured = measured

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = _STAND_INS.get(func, func)(*args, **(kwargs or {}))
        if func in _MACS:
            self.measured.macs += _MACS[func](output, *args)
        return output


# Multiply-accumulates of a call, from its output and its arguments.
_MACS: dict[Any, Callable[..., int]] = {
    F.linear: lambda output, _x, weight, *_: output.numel() * weight.shape[1],
    F.conv2d: lambda output, _x, weight, *_: output.numel() * math.prod(weight.shape[1:]),
    F.scaled_dot_product_attention: lambda output, _q, k, _v: 2 * output.numel() * k.shape[-2],  # q k^T, and with v
    Tensor.matmul: lambda output, left, _right: output.numel() * left.shape[-1],
}


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        mean, deviation = (x.new_empty(x.shape[:-1]) for _ in range(2))
        ctx.save_for_backward(x.contiguous(), mean, deviation, weight)
        return x.new_empty(x.shape)


class _RMSNorm(torch.autograd.Function):
    """Written out by torch on CPUs: the input is kept, and what its weight scales."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x.contiguous(), x.new_empty(x.shape[:-1]), x.new_empty(x.shape), weight)
        return x.new_empty(x.shape)


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: int, weight: Tensor) -> Tensor:
        mean, deviation = (x.new_empty(len(x), groups) for _ in range(2))
        ctx.save_for_backward(x, mean, deviation, weight)
        return x.new_empty(x.shape)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x.new_empty(*x.shape[:-1], len(weight))


class _KeepsInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.new_empty(x.shape)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        sizes = zip(x.shape[2:], weight.shape[2:], stride, padding, strict=True)
        return x.new_empty(len(x), len(weight), *((side + 2 * p - k) // s + 1 for side, k, s, p in sizes))


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int, stride: int) -> Tensor:
        shape = (*x.shape[:2], *((side - size) // stride + 1 for side in x.shape[2:]))
        ctx.save_for_backward(x, x.new_empty(shape, dtype=torch.int64))  # and where each maximum was
        return x.new_empty(shape)


class _KeepsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        output = x.new_empty(x.shape)
        ctx.save_for_backward(output)
        return output


class _Product(torch.autograd.Function):
    """Keeps each factor that the other's gradient needs."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        needs_left, needs_right = ctx.needs_input_grad
        ctx.save_for_backward(*([right] if needs_left else []), *([left] if needs_right else []))
        return left.new_empty(torch.broadcast_shapes(left.shape, right.shape))  # type: ignore[no-untyped-call]


class _Variance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: Sequence[int]) -> Tensor:
        ctx.save_for_backward(x)
        return x.new_empty(_reduced(x, dims))


class _KeepsNothing(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, shape: Sequence[int], *parts: Tensor) -> Tensor:
        return parts[0].new_empty(shape)


def _concatenate(parts: Sequence[Tensor], dim: int) -> Tensor:
    shape = list(parts[0].shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    return _KeepsNothing.apply(shape, *parts)


def _add(left: Tensor, right: Tensor | float) -> Tensor:
    if not isinstance(right, Tensor):
        return _KeepsNothing.apply(left.shape, left)
    return _KeepsNothing.apply(max(left.shape, right.shape, key=len), left, right)  # (B, N, D) + (N, D)


def _mean(x: Tensor, dim: int | Sequence[int], keepdim: bool = False) -> Tensor:
    dims = (dim,) if isinstance(dim, int) else dim
    return _KeepsNothing.apply(_reduced(x, dims) if keepdim else [n for i, n in enumerate(x.shape) if i not in dims], x)


def _scale(left: Tensor, right: Tensor | float) -> Tensor:
    """A product or a quotient."""
    return _Product.apply(left, right) if isinstance(right, Tensor) else _KeepsNothing.apply(left.shape, left)


def _reduced(x: Tensor, dims: Sequence[int]) -> list[int]:
    return [1 if dim in dims else side for dim, side in enumerate(x.shape)]


def _convolve(
    x: Tensor, weight: Tensor, _bias: Tensor | None, stride: Sequence[int], padding: Any = (0, 0), *_: Any
) -> Tensor:
    return _Convolution.apply(x, weight, stride, padding)


class _FusedAttention(torch.autograd.Function):
    """Keeps q, k, v, its output and a normaliser a row, never the (N, N) matrix."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        B, H, n, D_h = q.shape
        output = q.new_empty(B, n, H, D_h).transpose(1, 2)
        ctx.save_for_backward(q, k, v, output, q.new_empty(B, H, n))
        return output


def _attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None:  # no fused kernel learns a bias: torch writes attention out
        return F.scaled_dot_product_attention(q, k, v, attn_mask, **options)
    return _FusedAttention.apply(q, k, v)


# What stands in for a kernel: same shapes, same tensors kept.
_STAND_INS: dict[Any, Callable[..., Tensor]] = {
    F.linear: lambda x, weight, _bias: _Linear.apply(x, weight),
    F.conv2d: _convolve,
    F.max_pool2d: lambda x, size, stride, **_: _MaxPool.apply(x, size, stride),
    F.relu: lambda x, **_: _KeepsOutput.apply(x),
    Tensor.sqrt: _KeepsOutput.apply,
    Tensor.div: _scale,
    Tensor.mul: _scale,
    Tensor.sub: lambda left, right: _KeepsNothing.apply(left.shape, left, right),
    Tensor.mean: _mean,
    Tensor.var: lambda x, dims, **_: _Variance.apply(x, dims),
    F.layer_norm: lambda x, _shape, weight, **_: _LayerNorm.apply(x, weight),
    F.rms_norm: lambda x, _shape, weight, *_, **__: _RMSNorm.apply(x, weight),
    F.group_norm: lambda x, groups, weight, *_, **__: _GroupNorm.apply(x, groups, weight),
    torch.cat: _concatenate,
    Tensor.add: _add,
    F.gelu: lambda x, **_: _KeepsInput.apply(x),
    F.silu: lambda x, **_: _KeepsInput.apply(x),
    F.scaled_dot_product_attention: _attention,
}
