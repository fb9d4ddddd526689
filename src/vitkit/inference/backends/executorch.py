"""The ExecuTorch runtime, which runs programs of `exporting.executorch_format`."""

from __future__ import annotations

import logging
import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.errors import first_line
from vitkit.inference.backends.graph_runner import (
    Array,
    GraphRunner,
    check_float32,
    not_installed,
    output_names,
    output_width,
    unreadable,
    without_stderr,
)

if TYPE_CHECKING:
    import numpy.typing as npt


def from_file(path: Path, precision: str) -> ExecuTorchRunner:
    """Return a runner of a program; precision `auto` is float32.

    Raises:
        VitkitError: ExecuTorch is not installed, the file is damaged, or the precision is not float32.
    """
    check_float32("ExecuTorch", precision)
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # otherwise importing the runtime prints a warning
    try:
        with without_stderr(), warnings.catch_warnings(action="ignore"):  # that the Python interface is experimental
            runtime = import_module("executorch.runtime")
            load = runtime.Runtime.get().load_program
    except ImportError as error:
        raise not_installed("ExecuTorch", "executorch") from error
    try:
        with without_stderr():
            return ExecuTorchRunner(load(path, verification=runtime.Verification.InternalConsistency))
    except RuntimeError as error:
        raise unreadable(path, "a program of ExecuTorch", first_line(error)) from error


class ExecuTorchRunner(GraphRunner):
    """A runner of a program, which takes one image at a time."""

    backend = "executorch"
    precision = "float32"

    def __init__(self, program: Any) -> None:
        self._program = program
        self._forward = program.load_method("forward")
        metadata = self._forward.metadata
        images = metadata.input_tensor_meta(0)
        self.batch = images.sizes()[0]
        self.takes_pixels = images.dtype() == 0  # 0 is PyTorch's number of uint8
        self._names = output_names(metadata.num_outputs(), takes_pixels=self.takes_pixels)
        widths = {name: metadata.output_tensor_meta(i).sizes()[1] for i, name in enumerate(self._names)}
        self.outputs = output_width(widths)

    def constant(self, name: str) -> Any:
        """Return the value of a method that takes no input.

        Raises:
            RuntimeError: there is no such method.
        """
        return self._program.load_method(name).execute([])[0]

    def _run(self, images: npt.NDArray[Any]) -> dict[str, Array]:
        import torch

        results = self._forward.execute([torch.from_numpy(images)])
        # The results are copied, because the next call overwrites their memory.
        return {name: result.numpy().copy() for name, result in zip(self._names, results, strict=True)}
