"""Faster ways to the same logits: which there are, and which suits this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.errors import VitkitError
from vitkit.inference.backends.registry import BACKENDS, MANY, PLANS, PRECISIONS, Backend, backend_names
from vitkit.system.environment import best_precision, choose_device
from vitkit.system.progress import Say, ignore

if TYPE_CHECKING:
    from vitkit.inference.backends.registry import Runner
    from vitkit.model.build import Model

__all__ = ["best_precision", "open_runner"]


def open_runner(
    model: Model,
    backend: str = "auto",
    precision: str = "auto",
    images: int | None = None,
    merge: int = 0,
    plan: str = "auto",
    say: Say = ignore,
    device: str = "auto",
) -> Runner:
    """Return a runner of the model in its present state.

    Args:
        model: stays as it is.
        backend: one of `backend_names()`. `auto` is openvino on a CPU, compile on a GPU; and eager where that is not
            installed, cannot be opened, or takes longer to prepare than so few images. (On CPUs compile is slower than
            eager.)
        precision: one of `PRECISIONS`; `auto` is bfloat16 where the hardware multiplies such numbers, else float32.
        images: how many will be asked; None for many.
        merge: patches that are merged away in every layer: quicker, and not quite the same. Backend eager does it.
        plan: how backend eager computes on a CPU, one of `PLANS`. `auto` is what was measured here and kept; else it is
            measured now if many images are asked, else `plain`. In float32 it is `plain`, the model itself to the last
            bit, unless so many images are named.
        say: receives what was measured.
        device: `cpu`, `cuda` or `mps`; `auto` is where the model is, if that is no CPU, else a GPU if there is one. A
            backend that knows processors alone then computes there.

    Raises:
        VitkitError: there is no such backend, precision, plan or device; the backend is not installed, cannot run the
            model, or does not compute on the device that was named; tokens are to be merged by another than eager, or
            of a model that needs each patch in its place.
    """
    _check(backend, precision, plan, merge)
    here = _place(model, device)
    if backend in BACKENDS and device == "auto" and here.partition(":")[0] not in BACKENDS[backend].devices:
        here = "cpu"
    if precision == "auto":
        precision = (BACKENDS[backend].precision if backend in BACKENDS else None) or best_precision(here)
    if merge:
        from vitkit.inference.backends.torch import merging

        return merging(model, merge, precision, here)
    if plan != "auto":
        backend = "eager"
    if backend not in ("auto", "eager"):
        return BACKENDS[backend].open(model, precision, here)
    for row in _faster(here) if backend == "auto" else ():
        if images is None or images >= row.auto_from:
            try:
                return row.open(model, precision, here)
            except (VitkitError, ImportError, RuntimeError):  # not installed, or it cannot run this model
                continue
    from vitkit.inference.backends.torch import eager

    is_unsaid = precision == "bfloat16"  # in float32 whoever names no number has the model itself
    may_measure = is_unsaid if images is None else images >= MANY
    return eager(model, precision, here, plan, may_measure=may_measure, say=say)


def _check(backend: str, precision: str, plan: str, merge: int) -> None:
    """Refuse an unknown backend or precision, and combinations that do not exist."""
    if backend not in backend_names():
        raise VitkitError(f"backend must be one of {', '.join(backend_names())}, not {backend!r}")
    if precision not in PRECISIONS:
        raise VitkitError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    if plan not in PLANS:
        raise VitkitError(f"plan must be one of {', '.join(PLANS)}, not {plan!r}")
    if plan != "auto" and (merge or backend not in ("auto", "eager")):
        raise VitkitError(
            f"--plan is of backend eager: leave it out with {'--merge' if merge else f'--backend {backend}'}"
        )
    if merge and backend not in ("auto", "eager"):
        raise VitkitError(f"--merge is computed by backend eager: leave out --backend {backend}")


def _place(model: Model, device: str) -> str:
    """Return the device of the computation, by torch's name."""
    here = next(model.parameters()).device
    return str(here) if device == "auto" and here.type != "cpu" else choose_device(device)


def _faster(here: str) -> list[Backend]:
    """Return the backends that are faster than eager on this device, fastest first."""
    return [row for row in BACKENDS.values() if row.auto_on == here.partition(":")[0]]
