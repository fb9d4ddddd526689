"""The graph of a model written in ONNX's operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import vitkit
from vitkit.errors import VitkitError
from vitkit.inference.backends.graph_builder import draw
from vitkit.inference.backends.pen import Activation, Pads
from vitkit.model.vit import VisionTransformer

OPSET = 20  # the first with GELU
_IR_VERSION = 9  # the container of that time: runtimes since 2024 read them
_LARGEST = 2**31 - 2**20  # bytes that a protocol buffer holds, less room for the graph


def to_graph(model: VisionTransformer, batch: int | None = None, dtype: torch.dtype = torch.float32) -> Any:
    """The model as an `onnx.ModelProto`: `images` (batch, C, height, width) float32 -> `logits` (batch, K) float32.

    Args:
        model: whose weights are copied.
        batch: the only number of images that it takes; None: any number.
        dtype: in which the weights are stored; they are computed with in float32.

    Raises:
        VitkitError: ONNX is not installed, or the model is larger than an ONNX file can be.
    """
    try:
        import onnx
    except ImportError as error:
        raise VitkitError("ONNX is not installed: pip install 'vitkit[export]'") from error
    check_size(model, dtype, "take another dtype, or OpenVINO")
    pen = _Pen(batch, dtype)
    logits = draw(model, pen)
    pen.node("Identity", logits, name="logits")
    config = model.config
    shape = [batch or "batch", config.num_classes or config.feature_size]
    output = onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, shape)
    return as_model(pen.nodes, pen.input, output, pen.constants)


def check_size(model: nn.Module, dtype: torch.dtype, cure: str) -> None:
    """Refuse a model that is larger than an ONNX file can be.

    Raises:
        VitkitError: it is; the message says what to do.
    """
    size = dtype.itemsize * sum(parameter.numel() for parameter in model.parameters())
    if size > _LARGEST:
        raise VitkitError(f"the weights have {size / 2**30:.1f} GiB, ONNX holds 2: {cure}")


def as_model(nodes: list[Any], images: Any, logits: Any, constants: list[Any]) -> Any:
    """The `onnx.ModelProto` of a graph of vitkit's.

    Args:
        nodes: its operations, in their order.
        images: what it is given, with its shape.
        logits: what it gives, with its shape.
        constants: its weights.
    """
    import onnx

    graph = onnx.helper.make_graph(nodes, "vitkit", [images], [logits], constants)
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)])
    made.ir_version, made.producer_name, made.producer_version = _IR_VERSION, "vitkit", vitkit.__version__
    return made


class _Pen:
    """Writes ONNX's operations; a value is its name."""

    def __init__(self, batch: int | None, dtype: torch.dtype) -> None:
        self.batch, self.dtype = batch, dtype
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.input: Any = None

    def node(self, operation: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Write an operation; returns the name of its result."""
        import onnx

        name = name or f"{operation}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(operation, list(inputs), [name], name=name, **attributes))
        return name

    def images(self, channels: int, height: int, width: int) -> str:
        import onnx

        shape = [self.batch or "batch", channels, height, width]
        self.input = onnx.helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, shape)
        return "images"

    def constant(self, value: Tensor) -> str:
        return self._store(value.detach().float().numpy())

    def linear(self, x: str, weight: Tensor) -> str:
        return self.node("MatMul", x, self._weights(weight.t()))

    def matmul(self, a: str, b: str) -> str:
        return self.node("MatMul", a, b)

    def add(self, a: str, b: str) -> str:
        return self.node("Add", a, b)

    def multiply(self, a: str, b: str) -> str:
        return self.node("Mul", a, b)

    def normalise(self, x: str, size: int, eps: float) -> str:
        return self.node("LayerNormalization", x, self.constant(torch.ones(size)), axis=-1, epsilon=eps)

    def activate(self, x: str, kind: Activation) -> str:
        if kind == "silu":
            return self.node("Mul", x, self.node("Sigmoid", x))
        if kind.startswith("gelu"):
            return self.node("Gelu", x, approximate="tanh" if kind == "gelu_tanh" else "none")
        return self.node({"relu": "Relu", "tanh": "Tanh"}[kind], x)

    def softmax(self, x: str) -> str:
        return self.node("Softmax", x, axis=-1)

    def reshape(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self._numbers(*shape))

    def transpose(self, x: str, *order: int) -> str:
        return self.node("Transpose", x, perm=order)

    def slice(self, x: str, axis: int, start: int, stop: int) -> str:
        return self.node("Slice", x, *(self._numbers(number) for number in (start, stop, axis)))

    def concat(self, parts: Sequence[str], axis: int) -> str:
        return self.node("Concat", *parts, axis=axis)

    def repeat(self, tokens: Tensor, images: str) -> str:
        batch = self.node("Shape", images, start=0, end=1)
        shape = self.node("Concat", batch, self._numbers(*tokens.shape[1:]), axis=0)
        return self.node("Expand", self.constant(tokens), shape)

    def mean(self, x: str, axis: int) -> str:
        return self.node("ReduceMean", x, self._numbers(axis), keepdims=0)

    def convolve(self, x: str, kernel: Tensor, stride: int, pads: Pads, groups: int) -> str:
        return self.node("Conv", x, self._weights(kernel), strides=[stride, stride], pads=pads, group=groups)

    def max_pool(self, x: str, size: int, stride: int, pads: Pads) -> str:
        return self.node("MaxPool", x, kernel_shape=[size, size], strides=[stride, stride], pads=pads)

    def _weights(self, value: Tensor) -> str:
        if self.dtype == torch.float32:
            return self.constant(value)
        import onnx

        value = value.detach().to(self.dtype).contiguous()
        if self.dtype == torch.float16:
            stored = self._store(value.numpy())
        else:  # numpy has no such numbers
            stored = f"constant_{len(self.constants)}"
            raw = value.view(torch.int16).numpy().tobytes()
            kind = onnx.TensorProto.BFLOAT16
            self.constants.append(onnx.helper.make_tensor(stored, kind, list(value.shape), raw, raw=True))
        return self.node("Cast", stored, to=onnx.TensorProto.FLOAT)

    def _numbers(self, *values: int) -> str:
        return self._store(np.array(values, dtype=np.int64))

    def _store(self, value: Any) -> str:
        import onnx

        name = f"constant_{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name
