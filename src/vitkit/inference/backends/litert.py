"""The LiteRT runtime, formerly TensorFlow Lite. It runs files of `exporting.litert_format` without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.errors import first_line
from vitkit.inference.backends.graph_runner import (
    Array,
    GraphRunner,
    check_float32,
    import_runtime,
    output_width,
    unreadable,
    without_stderr,
)
from vitkit.inference.pipeline import threads


def from_file(path: Path, precision: str) -> LiteRTRunner:
    """Return a runner of a .tflite file; precision `auto` is float32.

    Raises:
        VitkitError: LiteRT is not installed, the file is damaged, or the precision is not float32.
    """
    check_float32("LiteRT", precision)
    runtime = import_runtime("ai_edge_litert.interpreter", "LiteRT", "litert")
    try:
        with without_stderr():
            return LiteRTRunner(runtime.Interpreter(str(path), num_threads=threads()))
    except (KeyError, RuntimeError, ValueError) as error:
        raise unreadable(path, "a LiteRT model", first_line(error)) from error


class LiteRTRunner(GraphRunner):
    """A runner for one thread at a time, because an interpreter has only one set of input and output tensors."""

    backend = "litert"
    precision = "float32"

    def __init__(self, interpreter: Any) -> None:
        interpreter.allocate_tensors()
        self._compute = interpreter.get_signature_runner()
        outputs = self._compute.get_output_details()
        ((self._input, details),) = self._compute.get_input_details().items()
        self.batch = int(details["shape"][0])
        self.takes_pixels = details["dtype"] == np.uint8
        self.outputs = output_width({name: int(output["shape"][1]) for name, output in outputs.items()})

    def _run(self, images: npt.NDArray[Any]) -> dict[str, Array]:
        results: dict[str, Array] = self._compute(**{self._input: images})
        return results
