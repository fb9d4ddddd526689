"""The LiteRT runtime, formerly TensorFlow Lite. It runs files of `exporting.litert_format` without PyTorch."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.errors import VitkitError, first_line
from vitkit.inference.backends.graph_runner import Array, GraphRunner, answer_width, without_stderr
from vitkit.inference.pipeline import threads


def import_runtime(module: str) -> Any:
    """Import a module of the package ai_edge_litert.

    Raises:
        VitkitError: LiteRT is not installed.
    """
    try:
        return import_module(f"ai_edge_litert.{module}")
    except ImportError as error:
        raise VitkitError(
            "inference.package-missing", "LiteRT is not installed: pip install 'vitkit[litert]'"
        ) from error


def from_file(path: Path, precision: str) -> LiteRTRunner:
    """Return a runner of a .tflite file; precision `auto` is float32.

    Raises:
        VitkitError: LiteRT is not installed, the file is damaged, or the precision is not float32.
    """
    if precision not in ("auto", "float32"):
        raise VitkitError(
            "inference.precision-unsupported",
            f"LiteRT computes in float32 here, not {precision}: use --precision float32",
        )
    runtime = import_runtime("interpreter")
    try:
        with without_stderr():
            return LiteRTRunner(runtime.Interpreter(str(path), num_threads=threads()))
    except (KeyError, RuntimeError, ValueError) as error:
        raise VitkitError(
            "inference.graph-unreadable",
            f"{path} cannot be read as a LiteRT model: {first_line(error)}; export it again",
        ) from error


class LiteRTRunner(GraphRunner):
    """An interpreter. It keeps the tensors of one computation, and so computes for one thread at a time."""

    backend = "litert"
    precision = "float32"

    def __init__(self, interpreter: Any) -> None:
        interpreter.allocate_tensors()
        self._compute = interpreter.get_signature_runner()
        outputs = self._compute.get_output_details()
        ((self._input, given),) = self._compute.get_input_details().items()
        self.batch, self.takes_pixels = int(given["shape"][0]), given["dtype"] == np.uint8
        self.outputs = answer_width({name: int(output["shape"][1]) for name, output in outputs.items()})

    def _run(self, images: npt.NDArray[Any]) -> dict[str, Array]:
        results: dict[str, Array] = self._compute(**{self._input: images})
        return results
