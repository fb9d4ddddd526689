"""The formats of exported files, one row each. Importing this module imports neither torch nor a runtime.

To add a format, add a module and a row. The command line derives its choices and suffixes from this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.errors import VitkitError
from vitkit.text.cells import one_of

if TYPE_CHECKING:
    import torch

    from vitkit.inference.backends.graph_runner import GraphRunner
    from vitkit.model.build import Model

TORCHSCRIPT = "PyTorch has deprecated TorchScript; use --to torch, which writes a program of its successor torch.export"
DTYPES = ("float32", "bfloat16", "float16")  # in which weights are stored


@dataclass(frozen=True)
class Format:
    """A file format for exported models.

    Attributes:
        name: the name by which users request the format.
        runtime: the name of the runtime for which such files are written.
        suffix: the suffix of the file.
        backend: the name of the backend that computes such files, one of `inference.backends.registry.BACKENDS`.
        module: the module with the functions `write` and `open_file`, which the methods of this class call.
        beside: suffixes of further files that belong to the exported file.
        is_input: whether files of users are opened as models. Otherwise, only files that were just written are opened,
            for comparing them with the model, and are computed in the dtype of their weights.
    """

    name: str
    runtime: str
    suffix: str
    backend: str
    module: str
    beside: tuple[str, ...] = ()
    is_input: bool = True

    def files(self, path: Path) -> list[Path]:
        """Return the paths of all files of an exported model; `path` itself is the last one."""
        return [*(path.with_suffix(suffix) for suffix in self.beside), path]

    def write(self, model: Model, path: Path, card: str, batch: int | None, dtype: torch.dtype) -> None:
        """Write a model together with its card.

        Args:
            model: the model.
            path: the file to write.
            card: the text of the card.
            batch: the fixed number of images per batch that the file accepts; None for any number.
            dtype: the dtype of the stored weights.

        Raises:
            VitkitError: the format does not support the model, or a package is not installed.
            OSError: the disk is full or not writable.
        """
        import_module(self.module).write(model, path, card, batch, dtype)

    def open(self, path: Path, precision: str) -> tuple[GraphRunner, str]:
        """Open a file for computing in a precision; return a runner and the text of the file's card.

        Args:
            path: the file.
            precision: `float32`, `bfloat16` or `auto`.

        Raises:
            VitkitError: the file contains anything that `write` does not write. In this case, the runtime never reads
                the file. This does not apply to formats for which `is_input` is False.
        """
        opens: Callable[[Path, str], tuple[GraphRunner, str]] = import_module(self.module).open_file
        return opens(path, precision)


FORMATS: dict[str, Format] = {}


def register(form: Format) -> None:
    """Add an export format. The command line offers it if `vitkit.cli` is imported afterwards.

    Raises:
        ValueError: a format with this name or suffix exists already.
    """
    if form.name in FORMATS or form.suffix in suffixes():
        raise ValueError(f"there is a format {form.name!r} or {form.suffix!r} already")
    FORMATS[form.name] = form


def suffixes() -> tuple[str, ...]:
    """Return the suffixes of exported files."""
    return tuple(form.suffix for form in FORMATS.values())


def is_exported(path: str | Path) -> bool:
    """Return whether a path has the suffix of an exported file."""
    return Path(path).suffix.lower() in suffixes()


def format_of(path: Path) -> Format:
    """Return the format of a file, by its suffix.

    Raises:
        VitkitError: no export format has this suffix.
    """
    for form in FORMATS.values():
        if path.suffix.lower() == form.suffix:
            return form
    raise VitkitError(wrong_suffix(path))


def wrong_suffix(path: Path, possible: tuple[str, ...] | None = None) -> str:
    """Return an error message for a path whose suffix is wrong.

    It lists the allowed suffixes `possible`, by default the suffixes of all export formats.
    """
    is_torchscript = path.suffix.lower() in (".pt", ".ts", ".torchscript")
    return f"{path} must end in {one_of(possible or suffixes())}" + (f": {TORCHSCRIPT}" if is_torchscript else "")


_HOME = "vitkit.exporting"

for _row in (
    Format("onnx", "ONNX Runtime", ".onnx", "onnx", f"{_HOME}.onnx_format"),
    Format("openvino", "OpenVINO", ".xml", "openvino", f"{_HOME}.openvino_format", beside=(".bin",)),
    Format("torch", "torch.export", ".pt2", "eager", f"{_HOME}.program", is_input=False),
):
    register(_row)
