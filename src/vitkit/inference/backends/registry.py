"""The backends, one row each. Importing this module imports neither torch nor a runtime.

To add a backend, add a module and a row. The command line derives its choices from these tables. The module also
chooses the backend and precision that are fastest on this hardware.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, Protocol

from vitkit.errors import VitkitError

if TYPE_CHECKING:
    from torch import Tensor

    from vitkit.model.build import Model


PRECISIONS = ("auto", "float32", "bfloat16")
PLANS = (
    "auto",
    "plain",
    *(f"{layout}-{way}" for layout in ("folded", "packed") for way in ("fused", "batch", "image")),
)
MANY = 500  # images, for which a second or three of preparation are well spent


@dataclass(frozen=True)
class Backend:
    """A way to compute logits.

    Attributes:
        name: the name by which it is requested.
        tells: what it is, in a few words.
        module: the module that opens it.
        opens: the function there: (model, precision) -> Runner.
        packages: the packages that must be installed.
        hint: how to get them.
        precision: the only one it has; None: it takes any of `PRECISIONS`.
        auto_on: the auto on where `auto` takes it in eager's place, as the first there that works; None: nowhere.
        auto_from: images from which its preparation is worth it.
        devices: kinds of device that it computes on; with more than one, the function takes the device as well.
    """

    name: str
    tells: str
    module: str
    opens: str = "from_model"
    packages: tuple[str, ...] = ()
    hint: str = ""
    precision: str | None = None
    auto_on: Literal["cpu", "cuda"] | None = None
    auto_from: int = 0
    devices: tuple[str, ...] = ("cpu",)

    def open(self, model: Model, precision: str, device: str = "cpu") -> Runner:
        """Return a runner of the model in its present state, on a device by torch's name.

        Raises:
            VitkitError: a package is missing, or the backend cannot run the model or compute there.
        """
        if device.partition(":")[0] not in self.devices:
            raise VitkitError(f"backend {self.name} computes on {' or '.join(self.devices)} alone, not on {device}")
        missing = [package for package in self.packages if find_spec(package) is None]
        if missing:
            raise VitkitError(f"backend {self.name} needs {' and '.join(missing)}: {self.hint}")
        opens: Callable[..., Runner] = getattr(import_module(self.module), self.opens)
        if self.devices != ("cpu",):
            return opens(model, precision, device)
        is_here = next(model.parameters()).device.type == "cpu"
        return opens(model if is_here else copy.deepcopy(model).cpu(), precision)


BACKENDS: dict[str, Backend] = {}


def register(backend: Backend) -> None:
    """Add a row; a command line that is imported afterwards offers it.

    Raises:
        ValueError: there is one of this name.
    """
    if backend.name in backend_names():
        raise ValueError(f"there is a backend {backend.name!r} already")
    BACKENDS[backend.name] = backend


def backend_names() -> tuple[str, ...]:
    """Return the names that can be requested: `auto`, and every row."""
    return ("auto", *BACKENDS)


_HOME = "vitkit.inference.backends"
_EXPORT = "pip install 'vitkit[export]'"

for _row in (
    Backend(
        "eager",
        "PyTorch, the model itself or a plan for bfloat16",
        f"{_HOME}.torch",
        "eager",
        devices=("cpu", "cuda", "mps"),
    ),
    Backend(
        "compile",
        "PyTorch's compiler; takes a minute",
        f"{_HOME}.torch",
        "compiled",
        auto_on="cuda",
        auto_from=5_000,
        devices=("cpu", "cuda"),
    ),
    Backend(
        "openvino",
        "OpenVINO, on processors",
        f"{_HOME}.openvino",
        packages=("openvino",),
        hint=_EXPORT,
        auto_on="cpu",
        auto_from=MANY,
    ),
    Backend(  # it has no bfloat16 kernels for processors
        "onnx", "ONNX Runtime", f"{_HOME}.onnx", packages=("onnx", "onnxruntime"), hint=_EXPORT, precision="float32"
    ),
):
    register(_row)


class Runner(Protocol):
    """Compute logits of preprocessed images, by one backend in one precision.

    Attributes:
        backend: its name in `registry.BACKENDS`.
        precision: `float32` or `bfloat16`, in which the layers compute.
        is_concurrent: several threads may ask at once, each for a batch of its own.
        merged: patches that are merged away in every layer.
        plan: one of `PLANS`, never `auto`; empty where there is no choice.
    """

    backend: str
    precision: str
    is_concurrent: bool
    merged: int
    plan: str

    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, height, width) float32 -> (B, K) float32 logits, on the CPU, for any B."""
        ...
