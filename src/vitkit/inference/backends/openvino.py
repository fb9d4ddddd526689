"""OpenVINO, without PyTorch: a graph compiled for the processor's cores; a model's is written in `openvino_graph`.

The graph of a model written in OpenVINO's operations, in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock, local
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.inference.backends.graph_builder import Activation, Pads, emit
from vitkit.inference.backends.graph_runner import Array, GraphRunner
from vitkit.inference.backends.openvino_package import import_openvino
from vitkit.inference.backends.registry import processor_precision
from vitkit.inference.pipeline import cores, threads
from vitkit.model.vit import VisionTransformer

if TYPE_CHECKING:
    import torch

    from vitkit.model.build import Model


_HINTS = {"float32": "f32", "bfloat16": "bf16"}


def from_model(model: Model, precision: str) -> OpenVINORunner:
    """A runner of a model in memory, of the weights that it has now; ready in seconds when it is first asked.

    Raises:
        VitkitError: OpenVINO is not installed, or cannot compute in this precision here.
    """
    return OpenVINORunner(graph_of(model), precision)


def graph_of(model: Model, batch: int | None = None, dtype: torch.dtype | None = None) -> Any:
    """The model as an `openvino.Model`: ours is emitted, another library's network traced.

    Raises:
        VitkitError: OpenVINO is not installed, or a network cannot be traced.
    """
    from vitkit.inference.backends.onnx_graph import to_openvino
    from vitkit.model.network import Network

    options = {} if dtype is None else {"dtype": dtype}
    return to_openvino(model, batch, **options) if isinstance(model, Network) else to_graph(model, batch, **options)


def from_file(path: Path, precision: str) -> OpenVINORunner:
    """A runner of an OpenVINO model (.xml beside its .bin); precision `auto` is the fastest here.

    Raises:
        VitkitError: OpenVINO is not installed, the file is damaged, or it cannot be computed in this precision here.
    """
    if precision == "auto":
        precision = processor_precision() if _has_bfloat16() else "float32"
    try:
        return OpenVINORunner(_core().read_model(path, path.with_suffix(".bin")), precision)
    except (RuntimeError, UnicodeDecodeError) as error:
        raise VitkitError(f"{path} is no OpenVINO model that can be read: {_first_line(error)}") from error


class OpenVINORunner(GraphRunner):
    """A graph, compiled when it is first asked: for as many threads as PyTorch would take where it is asked.

    That is all of them; or one, in each of several threads that share the cores (`flow`). No core then waits for
    another within a matrix product.
    """

    backend = "openvino"
    is_concurrent = True

    def __init__(self, graph: Any, precision: str) -> None:
        if precision == "bfloat16" and not _has_bfloat16():
            raise VitkitError("this processor has no bfloat16: take --precision float32")
        self.precision = precision
        batch, outputs = graph.input(0).partial_shape[0], graph.output(0).partial_shape[1]
        self.batch = None if batch.is_dynamic else batch.get_length()
        self.outputs = None if outputs.is_dynamic else outputs.get_length()
        self._graph = graph
        self._compiled: dict[int, Any] = {}  # by threads
        self._lock, self._own = Lock(), local()

    def _run(self, images: Array) -> Array:
        requests = self._own.__dict__.setdefault("requests", {})  # of this thread, as a request serves one at a time
        count = threads()
        if count not in requests:
            requests[count] = self._compile(count).create_infer_request()
        logits: Array = requests[count].infer([images], share_inputs=True)[0]
        return logits

    def _compile(self, threads: int) -> Any:
        streams = cores() if threads == 1 else 1
        options = {
            "INFERENCE_PRECISION_HINT": _HINTS[self.precision],
            "INFERENCE_NUM_THREADS": threads * streams,
            "NUM_STREAMS": streams,
        }
        with self._lock:
            if threads not in self._compiled:
                try:
                    self._compiled[threads] = _core().compile_model(self._graph, "CPU", options)
                except (RuntimeError, UnicodeDecodeError) as error:
                    raise VitkitError(f"OpenVINO cannot compute this model: {_first_line(error)}") from error
            return self._compiled[threads]


@cache
def _core() -> Any:
    return import_openvino().Core()


def _has_bfloat16() -> bool:
    return "BF16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _first_line(error: Exception) -> str:
    """What OpenVINO says, without the places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith(("Exception from", "Check"))), "unknown reason")


def to_graph(model: VisionTransformer, batch: int | None = None, dtype: torch.dtype = torch.float32) -> Any:
    """The model as an `openvino.Model`: `images` (batch, C, height, width) float32 -> `logits` (batch, K) float32.

    Args:
        model: whose weights are copied.
        batch: the only number of images that it takes; None: any number.
        dtype: in which the weights are stored; computing in it is the runtime's choice.
    """
    openvino = import_openvino()
    writer = _GraphWriter(batch, dtype)
    logits = emit(model, writer)
    result = writer.op.result(logits)
    logits.output(0).set_names({"logits"})
    return openvino.Model([result], [writer.parameter], "vitkit")


class _GraphWriter:
    """Writes OpenVINO's operations."""

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
