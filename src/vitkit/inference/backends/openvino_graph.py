"""Write the graph of a model in OpenVINO's operations, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitkit.inference.backends.graph_builder import Activation, Pads, emit
from vitkit.inference.backends.graph_runner import import_openvino
from vitkit.inference.features import classes_and_features
from vitkit.model.vit import VisionTransformer


def to_graph(model: VisionTransformer, batch: int | None = None, dtype: torch.dtype = torch.float32) -> Any:
    """Write the model as an `openvino.Model`: `images` (batch, C, height, width) -> `logits` (batch, K), float32.

    A model that computes features together with its logits has a second output, `features` (batch, D).

    Args:
        model: the model whose weights are copied.
        batch: the only batch size that the graph accepts; None for any.
        dtype: the dtype of the stored weights; the runtime chooses the dtype of the computation.
    """
    openvino = import_openvino()
    writer = _OpenVinoWriter(batch, dtype)
    computed = emit(model, writer)
    K, D = classes_and_features(model)
    parts = [writer.slice(computed, 1, 0, K), writer.slice(computed, 1, K, K + D)] if D else [computed]
    for name, part in zip(("logits", "features"), parts, strict=False):
        part.output(0).set_names({name})
    return openvino.Model([writer.op.result(part) for part in parts], [writer.parameter], "vitkit")


class _OpenVinoWriter:
    """A `GraphWriter` of OpenVINO's operations."""

    def __init__(self, batch: int | None, dtype: torch.dtype) -> None:
        self.op: Any = import_openvino().opset13
        self.batch, self.dtype = batch, dtype
        self.parameter: Any = None

    def images(self, channels: int, height: int, width: int) -> Any:
        self.parameter = self.op.parameter([self.batch or -1, channels, height, width], np.float32, name="images")
        self.parameter.output(0).set_names({"images"})
        return self.parameter

    def constant(self, value: Tensor) -> Any:
        return self.op.constant(value.detach().float().numpy())

    def linear(self, x: Any, weight: Tensor) -> Any:
        return self.op.matmul(x, self._weights(weight), transpose_a=False, transpose_b=True)

    def matmul(self, a: Any, b: Any) -> Any:
        return self.op.matmul(a, b, transpose_a=False, transpose_b=False)

    def add(self, a: Any, b: Any) -> Any:
        return self.op.add(a, b)

    def multiply(self, a: Any, b: Any) -> Any:
        return self.op.multiply(a, b)

    def normalise(self, x: Any, size: int, eps: float) -> Any:  # noqa: ARG002
        return self.op.mvn(x, self._numbers(-1), normalize_variance=True, eps=eps, eps_mode="INSIDE_SQRT")

    def activate(self, x: Any, kind: Activation) -> Any:
        if kind.startswith("gelu"):
            return self.op.gelu(x, "tanh" if kind == "gelu_tanh" else "erf")
        return {"relu": self.op.relu, "silu": self.op.swish, "tanh": self.op.tanh}[kind](x)

    def softmax(self, x: Any) -> Any:
        return self.op.softmax(x, -1)

    def reshape(self, x: Any, *shape: int) -> Any:
        return self.op.reshape(x, self._numbers(*shape), special_zero=True)

    def transpose(self, x: Any, *order: int) -> Any:
        return self.op.transpose(x, self._numbers(*order))

    def slice(self, x: Any, axis: int, start: int, stop: int) -> Any:
        return self.op.slice(x, *(self._numbers(number) for number in (start, stop, 1, axis)))

    def concat(self, parts: Sequence[Any], axis: int) -> Any:
        return self.op.concat(list(parts), axis)

    def repeat(self, tokens: Tensor, images: Any) -> Any:
        if self.batch == 1:
            return self.constant(tokens)
        batch = self.op.gather(self.op.shape_of(images), self._numbers(0), self._numbers(0))
        shape = self.op.concat([batch, self._numbers(*tokens.shape[1:])], 0)
        return self.op.broadcast(self.constant(tokens), shape)

    def mean(self, x: Any, axis: int) -> Any:
        return self.op.reduce_mean(x, self._numbers(axis), keep_dims=False)

    def convolve(self, x: Any, kernel: Tensor, stride: int, pads: Pads, groups: int) -> Any:
        shape = [stride, stride], list(pads[:2]), list(pads[2:]), [1, 1]
        if groups == 1:
            return self.op.convolution(x, self._weights(kernel), *shape)
        return self.op.group_convolution(x, self._weights(kernel.view(groups, -1, *kernel.shape[1:])), *shape)

    def max_pool(self, x: Any, size: int, stride: int, pads: Pads) -> Any:
        strides, dilations, window = [stride, stride], [1, 1], [size, size]
        return self.op.max_pool(x, strides, dilations, list(pads[:2]), list(pads[2:]), window).output(0)

    def _weights(self, value: Tensor) -> Any:
        if self.dtype == torch.float32:
            return self.constant(value)
        openvino = import_openvino()
        kind = openvino.Type.f16 if self.dtype == torch.float16 else openvino.Type.bf16
        stored = self.op.constant(value.detach().float().numpy(), dtype=kind)
        return self.op.convert(stored, "f32")

    def _numbers(self, *values: int) -> Any:
        return self.op.constant(np.array(values, dtype=np.int64))
