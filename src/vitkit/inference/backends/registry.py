"""The table of backends, one row each. Importing this module imports neither torch nor a runtime.

To add a backend, add a module and a row. The command line derives its choices from this table and `PRECISIONS`.
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


PRECISIONS = ("auto", "float32", "bfloat16", "float16")
PLANS = (
    "auto",
    "plain",
    # Layout of the weights, and kind of attention (`optimized.prepare`)
    "folded-fused",
    "folded-batch",
    "folded-image",
    "packed-fused",
    "packed-batch",
    "packed-image",
)
MANY = 500  # from this number of images on, a few seconds of preparation are worthwhile


@dataclass(frozen=True)
class Backend:
    """A way to compute logits.

    Attributes:
        name: the name by which the backend is requested.
        tells: a short description for users.
        module: the module that creates its runners.
        factory: the name of a function in the module: (model, precision) -> Runner.
        packages: the packages that must be installed.
        hint: how to install the packages.
        precision: the only precision that the backend supports; None for any of `PRECISIONS`.
        auto_on: the kind of device on which `auto` prefers this backend to eager; None for none.
        auto_from: the smallest number of images for which `auto` uses this backend, because its preparation takes time.
        devices: the kinds of device that the backend supports. If there are others than the CPU, the function takes the
            device as a third argument; otherwise its model is always on the CPU.
    """

    name: str
    tells: str
    module: str
    factory: str = "from_model"
    packages: tuple[str, ...] = ()
    hint: str = ""
    precision: str | None = None
    auto_on: Literal["cpu", "cuda"] | None = None
    auto_from: int = 0
    devices: tuple[str, ...] = ("cpu",)

    def open(self, model: Model, precision: str, device: str = "cpu") -> Runner:
        """Return a runner of the model in its present state; `device` is a name as in torch.

        Raises:
            VitkitError: a package is missing, or the backend cannot run the model or does not support the device.
        """
        if device.partition(":")[0] not in self.devices:
            reason = f"backend {self.name} supports only {' or '.join(self.devices)}, not {device}"
            raise VitkitError("inference.device-unsupported", reason)
        missing = [package for package in self.packages if find_spec(package) is None]
        if missing:
            reason = f"backend {self.name} needs {' and '.join(missing)}: {self.hint}"
            raise VitkitError("inference.package-missing", reason)
        factory: Callable[..., Runner] = getattr(import_module(self.module), self.factory)
        if self.devices != ("cpu",):
            return factory(model, precision, device)
        is_on_cpu = next(model.parameters()).device.type == "cpu"
        return factory(model if is_on_cpu else copy.deepcopy(model).cpu(), precision)


BACKENDS: dict[str, Backend] = {}


def register(backend: Backend) -> None:
    """Add a backend. The command line offers the backend if it is registered before the command line is imported.

    Raises:
        ValueError: a backend with this name exists already.
    """
    if backend.name in backend_names():
        raise ValueError(f"there is a backend {backend.name!r} already")
    BACKENDS[backend.name] = backend


def backend_names() -> tuple[str, ...]:
    """Return the names that can be requested: `auto` and all backends."""
    return ("auto", *BACKENDS)


_HOME = "vitkit.inference.backends"
_EXPORT = "pip install 'vitkit[export]'"

for _row in (
    Backend(
        name="eager",
        tells="PyTorch, the model itself or a plan for bfloat16",
        module=f"{_HOME}.torch",
        factory="eager",
        devices=("cpu", "cuda", "mps"),
    ),
    Backend(  # not for `auto`: on a GPU, half a million images are needed to save the time of compiling
        name="compile",
        tells="PyTorch's compiler; takes a minute",
        module=f"{_HOME}.torch",
        factory="compiled",
        devices=("cpu", "cuda"),
    ),
    Backend(
        name="openvino",
        tells="OpenVINO, on processors",
        module=f"{_HOME}.openvino",
        packages=("openvino",),
        hint=_EXPORT,
        auto_on="cpu",
        auto_from=MANY,
    ),
    Backend(  # ONNX Runtime has no bfloat16 kernels for CPUs
        name="onnx",
        tells="ONNX Runtime",
        module=f"{_HOME}.onnx",
        packages=("onnx", "onnxscript", "onnxruntime"),
        hint=_EXPORT,
        precision="float32",
    ),
):
    register(_row)


class Runner(Protocol):
    """A function that computes logits of preprocessed images, with one backend in one precision.

    Attributes:
        backend: the name of the backend in `BACKENDS`.
        precision: the precision of the layers, one of `PRECISIONS` except `auto`.
        is_concurrent: whether several threads may call the runner at once, each with its own batch.
        plan: one of `PLANS` except `auto`; empty if no plan applies.
    """

    backend: str
    precision: str
    is_concurrent: bool
    plan: str

    def __call__(self, images: Tensor) -> Tensor:
        """Compute float32 logits (B, K) of images (B, C, height, width), for any B; both tensors are on the CPU.

        If the model also computes features (`model.build.with_features`), the result is (B, K + D).
        """
        ...
