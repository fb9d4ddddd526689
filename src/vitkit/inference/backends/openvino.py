"""The OpenVINO backend. It compiles and runs files without PyTorch; `graphs` converts a model to a graph."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from threading import Lock, local
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.inference.backends.graph_runner import Array, GraphRunner, import_openvino, unreadable
from vitkit.inference.pipeline import cores, threads
from vitkit.system.environment import processor_precision

if TYPE_CHECKING:
    import numpy.typing as npt

    from vitkit.model.build import Model


def from_model(model: Model, precision: str) -> OpenVINORunner:
    """Return a runner of a model in memory with its present weights; the first call takes seconds to compile.

    Raises:
        VitkitError: OpenVINO is not installed, or does not support this precision on this machine.
    """
    from vitkit.inference.backends.graphs import to_openvino

    return OpenVINORunner(to_openvino(model), precision)


def from_file(path: Path, precision: str) -> OpenVINORunner:
    """Return a runner of an OpenVINO model (.xml and .bin); precision `auto` is the fastest on this machine.

    Raises:
        VitkitError: OpenVINO is not installed, the file is damaged, or this machine does not support the precision.
    """
    if precision == "auto":
        precision = processor_precision() if _has_bfloat16() else "float32"
    try:
        return OpenVINORunner(_core().read_model(path, path.with_suffix(".bin")), precision)
    except (RuntimeError, UnicodeDecodeError) as error:
        raise unreadable(path, "an OpenVINO model", _first_line(error)) from error


class OpenVINORunner(GraphRunner):
    """A runner that compiles its graph once for each number of threads that it is called with (`pipeline.threads`).

    If several threads call the runner at once (`pipeline.compute_in_order`), each computes with 1 thread, so that no
    core waits for another within a matrix product. Otherwise the default is the number of cores.
    """

    backend = "openvino"
    is_concurrent = True

    def __init__(self, graph: Any, precision: str) -> None:
        if precision == "bfloat16" and not _has_bfloat16():
            reason = "this processor has no bfloat16: use --precision float32"
            raise VitkitError("inference.precision-unsupported", reason)
        self.precision = precision
        images = graph.input(0)
        self.takes_pixels = images.get_element_type() == import_openvino().Type.u8
        batch = images.partial_shape[0]
        self.batch = None if batch.is_dynamic else batch.get_length()
        self._names = [output.any_name for output in graph.outputs]
        widths = [output.partial_shape[1] for output in graph.outputs if output.any_name != "probabilities"]
        self.outputs = None
        if not any(width.is_dynamic for width in widths):
            self.outputs = sum(width.get_length() for width in widths)
        self._graph = graph
        self._compiled: dict[int, Any] = {}  # by number of threads
        self._lock = Lock()
        self._local = local()

    def _run(self, images: npt.NDArray[Any]) -> dict[str, Array]:
        requests = self._local.__dict__.setdefault("requests", {})  # by number of threads; requests cannot be shared
        count = threads()
        if count not in requests:
            streams = cores() if count == 1 else 1  # calls with one thread run at once, on one core each
            options = {
                "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[self.precision],
                "INFERENCE_NUM_THREADS": count * streams,
                "NUM_STREAMS": streams,
            }
            with self._lock:
                if count not in self._compiled:
                    try:
                        self._compiled[count] = _core().compile_model(self._graph, "CPU", options)
                    except (RuntimeError, UnicodeDecodeError) as error:
                        reason = f"OpenVINO cannot compute this model: {_first_line(error)}"
                        raise VitkitError("inference.runtime-failed", reason) from error
            requests[count] = self._compiled[count].create_infer_request()
        results = requests[count].infer([images], share_inputs=True)
        return {name: results[i] for i, name in enumerate(self._names)}


@cache
def _core() -> Any:
    return import_openvino().Core()


def _has_bfloat16() -> bool:
    return "BF16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _first_line(error: Exception) -> str:
    """Return the first line of OpenVINO's message, without locations in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith(("Exception from", "Check"))), "unknown reason")
