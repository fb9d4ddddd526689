"""The ONNX Runtime backend. It runs files without PyTorch; `graphs` converts a model to a graph."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError, first_line
from vitkit.inference.backends.graph_runner import Array, GraphRunner, answer_width
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

    _check(precision)  # before the conversion, which takes seconds
    import_runtime()
    return OnnxRunner(to_onnx(model).SerializeToString(), precision)


def from_file(path: Path, precision: str) -> OnnxRunner:
    """Return a runner of an ONNX file; precision `auto` is float32.

    Raises:
        VitkitError: ONNX Runtime is not installed, the file is damaged, or the precision is not float32.
    """
    try:
        return OnnxRunner(path, "float32" if precision == "auto" else precision)
    except _runtime_errors() as error:
        raise VitkitError(
            "inference.graph-unreadable",
            f"{path} cannot be read as an ONNX model: {first_line(error)}; export it again",
        ) from error


def import_runtime() -> Any:
    """Import the package onnxruntime.

    Raises:
        VitkitError: ONNX Runtime is not installed.
    """
    try:
        return import_module("onnxruntime")
    except ImportError as error:
        raise VitkitError(
            "inference.package-missing", "ONNX Runtime is not installed: pip install 'vitkit[export]'"
        ) from error


class OnnxRunner(GraphRunner):
    """A session that computes in float32, since ONNX Runtime has no bfloat16 kernels for CPUs."""

    backend = "onnx"
    precision = "float32"

    def __init__(self, source: Path | bytes, precision: str) -> None:
        _check(precision)
        runtime = import_runtime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads()
        options.log_severity_level = 3  # errors
        model = source if isinstance(source, bytes) else str(source)
        self._session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        given = self._session.get_inputs()[0]
        self.batch = given.shape[0] if isinstance(given.shape[0], int) else None
        self.takes_pixels, self._input = given.type == "tensor(uint8)", given.name
        widths = {output.name: output.shape[1] for output in self._session.get_outputs()}
        self.outputs = answer_width(widths)
        self._names = list(widths)

    def _run(self, images: npt.NDArray[Any]) -> dict[str, Array]:
        return dict(zip(self._names, self._session.run(self._names, {self._input: images}), strict=True))


def _check(precision: str) -> None:
    if precision != "float32":
        raise VitkitError(
            "inference.precision-unsupported",
            f"ONNX Runtime computes in float32 here, not {precision}: use --precision float32",
        )


def _runtime_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that ONNX Runtime raises for an unreadable file; their message may not be text."""
    state = import_runtime().capi.onnxruntime_pybind11_state
    return (
        state.Fail,
        state.InvalidArgument,
        state.InvalidProtobuf,
        state.InvalidGraph,
        state.NotImplemented,
        UnicodeDecodeError,
    )
