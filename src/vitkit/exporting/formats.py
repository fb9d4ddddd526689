"""The formats of exported files, one row each. Importing this module imports neither torch nor a runtime.

To add a format, add a module and a row. The command line derives its choices and suffixes from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitkit.errors import VitkitError
from vitkit.inference.backends.pixels import Pixels
from vitkit.text.cells import one_of

if TYPE_CHECKING:
    from vitkit.inference.backends.graph_runner import Array, GraphRunner
    from vitkit.model.build import Model

TORCHSCRIPT = "PyTorch has deprecated TorchScript; use --to torch, which writes a program of its successor torch.export"
INT8 = "int8"
PRECISIONS = ("float32", "bfloat16", "float16", INT8)  # of stored weights


@dataclass(frozen=True)
class Storage:
    """How a file stores a model."""

    precision: str = "float32"  # the precision of the weights and, with INT8, of the computation; one of `PRECISIONS`
    batch: int | None = None  # the fixed number of images per batch that the file accepts; None for any number
    # Training images (n, C, height, width), from which INT8 takes the ranges of activations; None otherwise
    images: Array | None = None
    keep: tuple[str, ...] = ()  # with INT8, the modules of `exportable_copy(model)` that stay in floating point
    smooth: bool = False  # whether INT8 first moves outliers of activations into the weights (SmoothQuant)
    # If not None, the graph takes pixels, and normalises them and calibrates logits by these values
    pixels: Pixels | None = None


@dataclass(frozen=True)
class Format:
    """A file format for exported models."""

    name: str  # the name by which users request the format
    runtime: str  # the name of the runtime for which such files are written
    suffix: str  # the suffix of the file
    backend: str  # the name of the backend that computes such files, the `backend` of their runners
    module: str  # the module with the functions `convert`, `save` and `open_file`, which the methods of this class call
    precisions: tuple[str, ...] = ("float32",)  # the precisions in which the format stores weights
    packages: tuple[str, ...] = ()  # the packages that write and run such files
    extra: str = "export"  # the extra of vitkit that installs the packages
    extra_suffixes: tuple[str, ...] = ()  # the suffixes of other files that the runtime reads together with the file
    has_guide: bool = False  # whether a file `NAME.SUFFIX.json` says what an app must do (`card.instructions`)
    batch: int | None = None  # the fixed number of images per batch, if the format requires one
    # Whether INT8 takes the ranges of activations from calibration images (`static`), or at run time from each image
    # (`dynamic`)
    int8: Literal["static", "dynamic"] = "static"
    # Whether files of users are opened as models. Otherwise, only files that were just written are opened, for
    # comparing them with the model, and are computed in the dtype of their weights.
    is_input: bool = True

    def files(self, path: Path) -> list[Path]:
        """Return the paths of all files that the runtime reads; `path` itself is the last one."""
        return [*(path.with_suffix(suffix) for suffix in self.extra_suffixes), path]

    def written_files(self, path: Path) -> list[Path]:
        """Return the paths of all files that an export writes; `path` itself is the last one."""
        guides = [self.guide(path)] if self.has_guide else []
        return [*guides, *self.files(path)]

    def guide(self, path: Path) -> Path:
        """Return the path of the file that says what an app must do."""
        return path.with_name(f"{path.name}.json")

    def check(self, precision: str) -> None:
        """Check that files of this format can be written here, with weights in a precision.

        Raises:
            VitkitError: a package is not installed, or the format has no such precision.
        """
        packages, extra = self.packages, self.extra
        if precision == INT8 and self.int8 == "static":
            packages, extra = (*packages, "nncf"), INT8
        check_writable(self.name, precision, self.precisions, packages, extra)

    def can_take_pixels(self, precision: str) -> bool:
        """Return whether normalisation and calibration can be part of the graph.

        With INT8 they cannot, because the temperature is fitted after the graph has been converted.
        """
        return self.is_input and precision != INT8

    def convert(self, model: Model, storage: Storage) -> Any:
        """Convert a model to the format's own representation, which `save` writes.

        Raises:
            VitkitError: the format does not support the model.
        """
        return import_module(self.module).convert(model, storage)

    def save(self, graph: Any, path: Path, card: str) -> None:
        """Write what `convert` returned, together with the text of a card.

        Raises:
            OSError: the disk is full or not writable.
        """
        import_module(self.module).save(graph, path, card)

    def open(self, path: Path, precision: str) -> tuple[GraphRunner, str]:
        """Open a file for computing in `float32`, `bfloat16` or `auto`; return a runner and the text of its card.

        Raises:
            VitkitError: the file contains something that vitkit never writes, so that the runtime must not read it.
                Files of formats whose `is_input` is False are not checked.
        """
        opened: tuple[GraphRunner, str] = import_module(self.module).open_file(path, precision)
        return opened


def check_writable(
    name: str, precision: str, precisions: tuple[str, ...], packages: tuple[str, ...], extra: str
) -> None:
    """Check that the runtime `name` has a precision, and that the packages that write its files are installed.

    Raises:
        VitkitError: it has no such precision, or a package is missing; the message names the extra that installs it.
    """
    if precision not in precisions:
        reason = f"--to {name} stores weights in {one_of(precisions)}, not {precision}"
        raise VitkitError("exporting.precision-unsupported", reason)
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        subject = "INT8" if missing == ["nncf"] else f"--to {name}"
        reason = f"{subject} needs {' and '.join(missing)}: pip install 'vitkit[{extra}]'"
        raise VitkitError("exporting.package-missing", reason)


_HOME = "vitkit.exporting"
FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format(
            name="onnx",
            runtime="ONNX Runtime",
            suffix=".onnx",
            backend="onnx",
            module=f"{_HOME}.onnx_format",
            precisions=PRECISIONS,
            packages=("onnx", "onnxscript", "onnxruntime"),
        ),
        Format(
            name="openvino",
            runtime="OpenVINO",
            suffix=".xml",
            backend="openvino",
            module=f"{_HOME}.openvino_format",
            precisions=PRECISIONS,
            packages=("openvino",),
            extra_suffixes=(".bin",),
        ),
        Format(
            name="executorch",
            runtime="ExecuTorch",
            suffix=".pte",
            backend="executorch",
            module=f"{_HOME}.executorch_format",
            precisions=("float32", INT8),
            packages=("executorch",),
            extra="executorch",
            has_guide=True,
            batch=1,
            int8="dynamic",
        ),
        Format(
            name="litert",
            runtime="LiteRT",
            suffix=".tflite",
            backend="litert",
            module=f"{_HOME}.litert_format",
            precisions=("float32", INT8),
            packages=("litert_torch", "ai_edge_litert", "ai_edge_quantizer"),
            extra="litert",
            has_guide=True,
            batch=1,
            int8="dynamic",
        ),
        Format(
            name="torch",
            runtime="torch.export",
            suffix=".pt2",
            backend="eager",
            module=f"{_HOME}.program",
            precisions=("float32", "bfloat16", "float16"),
            is_input=False,
        ),
    )
}


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
    raise VitkitError("exporting.suffix-unknown", wrong_suffix(path))


def wrong_suffix(path: Path, possible: tuple[str, ...] | None = None) -> str:
    """Return an error message for a path whose suffix is wrong.

    It lists the allowed suffixes `possible`, by default the suffixes of all export formats.
    """
    message = f"{path} must end in {one_of(possible or suffixes())}"
    if path.suffix.lower() in (".pt", ".ts", ".torchscript"):
        message += f": {TORCHSCRIPT}"
    return message
