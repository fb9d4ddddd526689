"""The ONNX Runtime backend. It runs files without PyTorch; `graphs` converts a model to a graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.errors import first_line
from vitkit.inference.backends.graph_runner import (
    Array,
    GraphRunner,
    check_float32,
    import_runtime,
    output_width,
    unreadable,
)
from vitkit.inference.pipeline import threads

if TYPE_CHECKING:
    import numpy.typing as npt

    from vitkit.inference.backends.registry import Runner
    from vitkit.model.build import Model


def from_model(model: Model, precision: str) -> Runner:
    """Return a runner of a model in memory, with its present weights.

    Raises:
        VitkitError: ONNX or its runtime is not installed, the model is too large or cannot be converted, or the
            precision is not float32.
    """
    from vitkit.inference.backends.graphs import to_onnx

    check_float32("ONNX Runtime", precision)  # before the conversion, which takes seconds
    _import_runtime()
    return OnnxRunner(to_onnx(model).SerializeToString())


def from_file(path: Path, precision: str) -> OnnxRunner:
    """Return a runner of an ONNX file; precision `auto` is float32.

    Raises:
        VitkitError: ONNX Runtime is not installed, the file is damaged, or the precision is not float32.
    """
    check_float32("ONNX Runtime", precision)
    state = _import_runtime().capi.onnxruntime_pybind11_state
    errors = (state.Fail, state.InvalidArgument, state.InvalidProtobuf, state.InvalidGraph, state.NotImplemented)
    try:
        return OnnxRunner(path)
    except (*errors, UnicodeDecodeError) as error:  # the latter if the message of another error is not UTF-8
        raise unreadable(path, "an ONNX model", first_line(error)) from error


def _import_runtime() -> Any:
    return import_runtime("onnxruntime", "ONNX Runtime")


class OnnxRunner(GraphRunner):
    """A runner that computes in float32, since ONNX Runtime has no bfloat16 kernels for CPUs."""

    backend = "onnx"
    precision = "float32"

    def __init__(self, source: Path | bytes) -> None:
        runtime = _import_runtime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads()
        options.log_severity_level = 3  # errors
        model = source if isinstance(source, bytes) else str(source)
        self._session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        images = self._session.get_inputs()[0]
        batch = images.shape[0]
        self.batch = batch if isinstance(batch, int) else None  # a text if any size is accepted
        self.takes_pixels = images.type == "tensor(uint8)"
        self._input = images.name
        widths = {output.name: output.shape[1] for output in self._session.get_outputs()}
        self.outputs = output_width(widths)
        self._names = list(widths)

    def _run(self, images: npt.NDArray[Any]) -> dict[str, Array]:
        return dict(zip(self._names, self._session.run(self._names, {self._input: images}), strict=True))
