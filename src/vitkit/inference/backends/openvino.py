"""The OpenVINO backend, without PyTorch: a graph compiled for the processor. `openvino_graph` writes it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from threading import Lock, local
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.inference.backends.graph_runner import Array, GraphRunner, import_openvino
from vitkit.inference.pipeline import cores, threads
from vitkit.system.environment import processor_precision

if TYPE_CHECKING:
    import torch

    from vitkit.model.build import Model


_HINTS = {"float32": "f32", "bfloat16": "bf16"}


def from_model(model: Model, precision: str) -> OpenVINORunner:
    """Return a runner of a model in memory with its present weights; the first call takes seconds to compile.

    Raises:
        VitkitError: OpenVINO is not installed, or cannot compute in this precision here.
    """
    return OpenVINORunner(graph_of(model), precision)


def graph_of(model: Model, batch: int | None = None, dtype: torch.dtype | None = None) -> Any:
    """Return the model as an `openvino.Model`: ours is emitted, another library's network traced.

    Raises:
        VitkitError: OpenVINO is not installed, or a network cannot be traced.
    """
    from vitkit.inference.backends.onnx_graph import to_openvino
    from vitkit.inference.backends.openvino_graph import to_graph
    from vitkit.model.network import Network

    options = {} if dtype is None else {"dtype": dtype}
    return to_openvino(model, batch, **options) if isinstance(model, Network) else to_graph(model, batch, **options)


def from_file(path: Path, precision: str) -> OpenVINORunner:
    """Return a runner of an OpenVINO model (.xml and .bin); precision `auto` is the fastest here.

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
    """A graph, compiled at its first call, for as many threads as PyTorch would use there.

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
        self._lock, self._local = Lock(), local()

    def _run(self, images: Array) -> Array:
        requests = self._local.__dict__.setdefault("requests", {})  # of this thread, as a request serves one at a time
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
    """Return OpenVINO's message without the locations in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith(("Exception from", "Check"))), "unknown reason")
