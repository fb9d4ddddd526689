"""Write the graph of a model in the operations of ONNX or OpenVINO.

Networks of other libraries are first traced by PyTorch's exporter. A traced file contains more than the graph, such as
the source location of each operation. This module therefore writes the graph again, with only its operations,
constants, inputs and outputs. Thus a file reveals nothing about the machine that made it, and code that reads the file
can be strict.

A model that computes features together with its logits (`model.build.with_features`) has a second output,
`features` (batch, D).
"""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import vitkit
from vitkit.errors import VitkitError, first_line
from vitkit.inference.backends.graph_builder import Activation, Pads, emit
from vitkit.inference.backends.graph_runner import import_openvino
from vitkit.model.build import classes_and_features
from vitkit.model.layers import InParts
from vitkit.model.network import Network
from vitkit.model.vit import VisionTransformer

_OPSET = 20  # the first version with GELU
_IR_VERSION = 9  # the file format of that version, which runtimes since 2024 read
_LARGEST = 2**31 - 2**20  # the largest protocol buffer in bytes, with some room for the graph


def write_onnx(model: VisionTransformer, batch: int | None = None, dtype: torch.dtype = torch.float32) -> Any:
    """Write the model as an `onnx.ModelProto`: `images` (batch, C, height, width) -> `logits` (batch, K), float32.

    Args:
        model: the model whose weights are copied.
        batch: the only batch size that the graph accepts; None for any.
        dtype: the dtype of the stored weights; the computation is in float32.

    Raises:
        VitkitError: ONNX is not installed, or the model is too large for an ONNX file.
    """
    try:
        import onnx
    except ImportError as error:
        raise VitkitError("ONNX is not installed: pip install 'vitkit[export]'") from error
    _check_size(model, dtype, "use another dtype, or OpenVINO")
    writer = _OnnxWriter(batch, dtype)
    computed = emit(model, writer)
    K, D = classes_and_features(model)
    widths = {"logits": K, "features": D} if D else {"logits": K or model.config.feature_size}
    parts = [writer.slice(computed, 1, 0, K), writer.slice(computed, 1, K, K + D)] if D else [computed]
    for name, part in zip(widths, parts, strict=True):
        writer.node("Identity", part, name=name)
    outputs = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [batch or "batch", width])
        for name, width in widths.items()
    ]
    return _as_model(writer.nodes, writer.input, outputs, writer.constants)


def _check_size(model: nn.Module, dtype: torch.dtype, cure: str) -> None:
    """Check that the weights of a model are small enough for an ONNX file.

    Raises:
        VitkitError: the weights are too large; the message ends with `cure`, which tells the user what to do.
    """
    size = dtype.itemsize * sum(parameter.numel() for parameter in model.parameters())
    if size > _LARGEST:
        raise VitkitError(f"the weights take {size / 2**30:.1f} GiB, but an ONNX file can hold at most 2 GiB: {cure}")


def _as_model(nodes: list[Any], images: Any, outputs: list[Any], constants: list[Any]) -> Any:
    """Return the `onnx.ModelProto` of a graph that vitkit wrote.

    Args:
        nodes: the operations, in order.
        images: the input, with its shape.
        outputs: the outputs, with their shapes.
        constants: the weights.
    """
    import onnx

    graph = onnx.helper.make_graph(nodes, "vitkit", [images], outputs, constants)
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", _OPSET)])
    made.ir_version, made.producer_name, made.producer_version = _IR_VERSION, "vitkit", vitkit.__version__
    return made


class _OnnxWriter:
    """A `GraphWriter` of ONNX nodes; a value of the graph is represented by its name."""

    def __init__(self, batch: int | None, dtype: torch.dtype) -> None:
        self.batch, self.dtype = batch, dtype
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.input: Any = None

    def node(self, operation: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Write an operation, and return the name of its result."""
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
        else:  # numpy has no bfloat16
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


# --- OpenVINO's operations ------------------------------------------------------------------------------------


def write_openvino(model: VisionTransformer, batch: int | None = None, dtype: torch.dtype = torch.float32) -> Any:
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


# --- Networks of other libraries, which are traced ------------------------------------------------------------


def trace_onnx(model: Network, batch: int | None = None, dtype: torch.dtype = torch.float32) -> Any:
    """Trace the network to an `onnx.ModelProto`: `images` (batch, C, height, width) -> `logits` (batch, K), float32.

    Args:
        model: the model whose weights are copied.
        batch: the only batch size that the graph accepts; None for any.
        dtype: the dtype of the stored weights; the computation is in float32.

    Raises:
        VitkitError: ONNX or its exporter is not installed, the network cannot be traced, or it is too large.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401  # type: ignore[import-untyped]
    except ImportError as error:
        raise VitkitError("ONNX and onnxscript are not installed: pip install 'vitkit[export]'") from error
    _check_size(model, dtype, "use another dtype")
    traced = _trace(model, batch)
    nodes, constants = _parts(traced.graph, dtype)
    config, (K, D) = model.config, classes_and_features(model)
    shapes = {
        "images": [batch or "batch", config.in_channels, *config.image_size],
        "logits": [batch or "batch", K],
        **({"features": [batch or "batch", D]} if D else {}),
    }
    assert [value.name for value in (*traced.graph.input, *traced.graph.output)] == list(shapes)
    images, *outputs = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()
    )
    return _as_model(nodes, images, outputs, constants)


def trace_openvino(model: Network, batch: int | None = None, dtype: torch.dtype = torch.float32) -> Any:
    """Convert the network to an `openvino.Model`, by way of the graph of `trace_onnx`, whose arguments it takes.

    Raises:
        VitkitError: see `trace_onnx`; or OpenVINO is not installed, or does not support an operation.
    """
    openvino = import_openvino()
    content = trace_onnx(model, batch, dtype).SerializeToString()
    try:
        read = openvino.Core().read_model(content)
    except RuntimeError as error:
        raise VitkitError(f"OpenVINO cannot read {model.config.full_name}: {first_line(error)}") from error
    if dtype == torch.float32:  # constants of another dtype would be stored as float32
        from openvino.passes import ConstantFolding, Manager  # type: ignore[import-untyped]

        passes = Manager()
        passes.register_pass(ConstantFolding())
        passes.run_passes(read)
    for number, node in enumerate(read.get_ordered_ops()):
        node.set_friendly_name(f"{node.get_type_name()}_{number}")
    outputs = [made.input_value(0) for made in read.get_results()]
    for name, output in zip(("logits", "features"), outputs, strict=False):
        output.set_names({name})
    return openvino.Model([openvino.opset13.result(output) for output in outputs], read.get_parameters(), "vitkit")


def _trace(model: Network, batch: int | None) -> Any:
    plain = copy.deepcopy(model).cpu().float().eval().requires_grad_(requires_grad=False)
    config = model.config
    images = torch.zeros(batch or 2, config.in_channels, *config.image_size)
    sizes = None if batch else ({0: torch.export.Dim("batch")},)
    has_features = classes_and_features(model)[1] > 0
    try:
        with _quiet():
            program = torch.onnx.export(
                InParts(plain) if has_features else plain,
                (images,),
                dynamo=True,
                dynamic_shapes=sizes,
                input_names=["images"],
                output_names=["logits", "features"] if has_features else ["logits"],
                opset_version=_OPSET,
                verbose=False,
            )
    except (RuntimeError, ValueError, TypeError) as error:
        raise VitkitError(f"{config.full_name} cannot be traced: {first_line(error)}") from error
    assert program is not None
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the output of the exporter."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def _parts(graph: Any, dtype: torch.dtype) -> tuple[list[Any], list[Any]]:
    """Return the operations and the constants of a traced graph, without documentation."""
    import onnx

    nodes: list[Any] = []
    constants = [
        _constant(tensor.name, onnx.numpy_helper.to_array(tensor), dtype, nodes) for tensor in graph.initializer
    ]
    for node in graph.node:
        if node.op_type == "Constant":
            value = onnx.numpy_helper.to_array(node.attribute[0].t)
            constants.append(_constant(node.output[0], value, dtype, nodes))
            continue
        plain = onnx.NodeProto(input=node.input, output=node.output, name=node.name, op_type=node.op_type)
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
            plain.attribute.append(attribute)
        nodes.append(plain)
    return nodes, constants


def _constant(name: str, value: Any, dtype: torch.dtype, nodes: list[Any]) -> Any:
    """Return a constant in the form to store. If its dtype changes, append to `nodes` a node that casts it back."""
    import onnx

    if dtype == torch.float32 or value.dtype.name != "float32" or value.ndim < 2:
        return onnx.numpy_helper.from_array(value, name)
    tensor = torch.from_numpy(value.copy()).to(dtype)
    kind = {torch.float16: onnx.TensorProto.FLOAT16, torch.bfloat16: onnx.TensorProto.BFLOAT16}[dtype]
    nodes.append(onnx.helper.make_node("Cast", [f"{name}_stored"], [name], name=f"{name}_cast", to=1))
    raw = tensor.view(torch.int16).numpy().tobytes()
    return onnx.helper.make_tensor(f"{name}_stored", kind, list(tensor.shape), raw, raw=True)
