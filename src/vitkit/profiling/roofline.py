"""The roof over a model's speed: its matrix products alone, as fast as torch computes them on this machine.

Only what must be computed counts: of the last block, what the head reads. A model that did nothing beside its products
(no softmax, GELU, LayerNorm, copies) and wasted nothing on them would run at the ceiling. Williams, Waterman and
Patterson, "Roofline", 2009.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitkit.model.build import build
from vitkit.model.network_config import Config
from vitkit.profiling.timing import Work, stopwatch_for


class Product(NamedTuple):
    """(rows, inner) @ (inner, columns), so many times side by side: one product, or the heads of attention."""

    rows: int
    inner: int
    columns: int
    batch: int = 1

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.batch * self.rows * self.inner * self.columns


def products(config: Config, images: int = 1) -> Counter[Product]:
    """The matrix products of one forward pass over so many images, each with how often it occurs.

    Convolutions count as the product of their unfolded patches.
    """
    with torch.device("meta"):
        model = build(config).eval()
        batch = torch.empty(images, config.in_channels, *config.image_size)
    with torch.inference_mode(), _Collector() as collector:
        model(batch)
    return collector.found


class _Collector(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Product] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func in _PRODUCTS:
            self.found.update(_PRODUCTS[func](output, *args))
        return output


def _of_linear(output: Tensor, _x: Tensor, weight: Tensor, *_: Any) -> list[Product]:
    return [Product(output.numel() // len(weight), weight.shape[1], len(weight))]


def _of_convolution(output: Tensor, _x: Tensor, weight: Tensor, *rest: Any) -> list[Product]:
    groups = rest[4] if len(rest) > 4 else 1  # bias, stride, padding, dilation, groups
    pixels = output.numel() // output.shape[1]
    return [Product(pixels, math.prod(weight.shape[1:]), len(weight) // groups, groups)]


def _of_attention(output: Tensor, _q: Tensor, k: Tensor, _v: Tensor) -> list[Product]:
    B, H, n, D_h = output.shape
    N = k.shape[-2]
    return [Product(n, D_h, N, B * H), Product(n, N, D_h, B * H)]  # q k^T, and with v


def _of_matmul(output: Tensor, left: Tensor, _right: Tensor) -> list[Product]:
    *batch, rows, columns = output.shape
    return [Product(rows, left.shape[-1], columns, math.prod(batch))]


_PRODUCTS: dict[Any, Callable[..., list[Product]]] = {
    F.linear: _of_linear,
    F.conv2d: _of_convolution,
    F.scaled_dot_product_attention: _of_attention,
    Tensor.matmul: _of_matmul,
}


class Ceiling:
    """The products of a model's forward pass, ready to be done: `ceiling()` does them all.

    Each is done in whichever of torch's ways is the fastest here: the weights as a layer stores them, transposed, or
    packed in advance. Operands are drawn once and stay where they are, so that a small model's lie in the cache.

    Attributes:
        macs: multiply-accumulates of one call.
    """

    def __init__(self, config: Config, images: int, precision: str, device: torch.device) -> None:
        found = products(config, images)
        self.macs = sum(product.macs * times for product, times in found.items())
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        with torch.inference_mode():
            self._works = [(_fastest(_ways(product, dtype, device), device), n) for product, n in found.items()]

    @torch.inference_mode()
    def __call__(self) -> None:
        for work, times in self._works:
            for _ in range(times):
                work()


def _ways(product: Product, dtype: torch.dtype, device: torch.device) -> list[Work]:
    B, rows, inner, columns = product.batch, product.rows, product.inner, product.columns
    make: dict[str, Any] = {"dtype": dtype, "device": device}
    if B > 1:
        left, right = torch.rand(B, rows, inner, **make), torch.rand(B, columns, inner, **make)
        out, turned = torch.empty(B, rows, columns, **make), right.mT.contiguous()
        return [lambda: torch.bmm(left, right.mT, out=out), lambda: torch.bmm(left, turned, out=out)]
    x, weight, y = (
        torch.rand(rows, inner, **make),
        torch.rand(columns, inner, **make),
        torch.empty(rows, columns, **make),
    )
    across = weight.t().contiguous()
    ways: list[Work] = [lambda: torch.mm(x, weight.t(), out=y), lambda: torch.mm(x, across, out=y)]
    if device.type == "cpu" and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
        ways.append(lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], ""))
    return ways


def _fastest(ways: list[Work], device: torch.device, tries: int = 5) -> Work:
    stopwatch = stopwatch_for(device)
    for work in ways:
        work()
    return min(ways, key=lambda work: min(stopwatch(work) for _ in range(tries)))
