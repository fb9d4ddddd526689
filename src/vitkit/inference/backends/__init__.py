"""Backends: faster ways to compute the same logits, and the choice of one for this machine."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from vitkit.errors import VitkitError
from vitkit.inference.backends.registry import BACKENDS, MANY, PLANS, PRECISIONS, backend_names
from vitkit.system.environment import best_precision, check_precision, choose_device

if TYPE_CHECKING:
    from vitkit.inference.backends.registry import Backend, Runner
    from vitkit.model.build import Model

__all__ = ["best_precision", "open_runner"]


def open_runner(
    model: Model,
    backend: str = "auto",
    precision: str = "auto",
    images: int | None = None,
    plan: str = "auto",
    device: str = "auto",
) -> Runner:
    """Return a runner, a function that computes logits, for the model in its present state (`registry.Runner`).

    Args:
        model: the model, which is not changed.
        backend: one of `backend_names()`. `auto` is openvino on a CPU and eager on a GPU. If openvino is not
            installed, fails, or takes longer to prepare than it saves for this number of images, `auto` is eager. (On
            CPUs, compile is slower than eager. On GPUs, it is faster, but takes so long to prepare that half a million
            images are needed to save time.)
        precision: one of `PRECISIONS`. `auto` is bfloat16 if the hardware can multiply in bfloat16, otherwise float32.
            float16 is for GPUs without bfloat16, such as a T4 or a V100.
        images: the number of images to predict; None if it is unknown, which counts as many.
        plan: how backend eager computes on a CPU, one of `PLANS`. `auto` is the plan that a stored measurement found to
            be the fastest on this machine. If there is no measurement, the plans are measured for many images, and
            `auto` is `plain` for few. In float32, `auto` is `plain` unless `images` is large, because the results of
            `plain` are bitwise equal to those of the model.
        device: `cpu`, `cuda` or `mps`. `auto` is the model's device if this is a GPU, otherwise a GPU of this machine,
            or the CPU if there is none. With `auto`, a backend that supports only CPUs computes on the CPU.

    Raises:
        VitkitError: there is no such backend, precision, plan or device; the backend is not installed, cannot run the
            model, or does not support the requested device or precision.
    """
    if backend != "auto" and backend not in BACKENDS:
        reason = f"backend must be one of {', '.join(backend_names())}, not {backend!r}"
        raise VitkitError("inference.backend-unknown", reason)
    if precision not in PRECISIONS:
        reason = f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}"
        raise VitkitError("inference.precision-unknown", reason)
    if plan not in PLANS:
        raise VitkitError("inference.plan-unknown", f"plan must be one of {', '.join(PLANS)}, not {plan!r}")
    if plan != "auto" and backend not in ("auto", "eager"):
        raise VitkitError("inference.plan-unsupported", f"plan {plan!r} requires backend eager, not {backend}")
    requested = BACKENDS.get(backend)  # None for `auto`
    if device == "auto":
        model_device = next(model.parameters()).device
        device = choose_device() if model_device.type == "cpu" else str(model_device)
        if requested is not None and _kind_of(device) not in requested.devices:
            device = "cpu"
    else:
        device = choose_device(device)
    if precision == "auto":
        precision = best_precision(device)
        if requested is not None and requested.precision is not None:
            precision = requested.precision
    check_precision(precision, device)
    if requested is not None and backend != "eager":
        return requested.open(model, precision, device)
    if backend == "auto" and plan == "auto":
        for candidate in BACKENDS.values():
            is_faster = candidate.auto_on == _kind_of(device)  # than eager
            is_worthwhile = images is None or images >= candidate.auto_from
            if is_faster and is_worthwhile:
                with suppress(VitkitError, ImportError, RuntimeError):  # not installed, or cannot run this model
                    return candidate.open(model, precision, device)
    from vitkit.inference.backends.torch import eager

    # In float32, plans are measured only for a number of images that is known to be large (see `plan`).
    may_measure = precision == "bfloat16" if images is None else images >= MANY
    return eager(model, precision, device, plan, may_measure=may_measure)


def _kind_of(device: str) -> str:
    return device.partition(":")[0]  # "cuda" for "cuda:1"
