"""PyTorch's own runners: the model itself, its prepared double, or that compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.inference.backends.optimized import prepare
from vitkit.inference.backends.plans import build, choose
from vitkit.inference.backends.prepared_layers import can_pack
from vitkit.inference.backends.token_merging import merge
from vitkit.model.build import Model, vit_of
from vitkit.model.network import Network
from vitkit.system.progress import Say, unsaid

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_BATCH = 8  # images that are first compiled for


class TorchRunner:
    """A `Runner` by PyTorch, on the CPU or a GPU.

    Attributes:
        backend: `eager` or `compile`.
        precision: `float32` or `bfloat16`.
        is_concurrent: several threads may ask at once, as on a CPU where nothing is compiled.
        merged: patches that are merged away in every layer.
        plan: how eager computes on the CPU, one of `PLANS`; empty where it is the model itself, to the last bit.
    """

    def __init__(
        self,
        compute: Callable[[Tensor], Tensor],
        backend: str,
        precision: str,
        device: str,
        merged: int = 0,
        plan: str = "",
    ) -> None:
        self.backend, self.precision, self.merged, self.plan = backend, precision, merged, plan
        self.is_concurrent = backend == "eager" and device == "cpu"
        self._compute, self._device = compute, device
        self._largest = 0  # batch so far

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, height, width) float32 -> (B, K) float32 logits, on the CPU, for any B."""
        B = len(images)
        if self.backend == "compile":  # a batch of another size would be compiled for anew
            self._largest = max(self._largest, B)
            images = torch.cat([images, images.new_zeros(self._largest - B, *images.shape[1:])])
        return self._compute(images.to(self._device, non_blocking=True))[:B].cpu()


def eager(
    model: Model,
    precision: str,
    device: str = "cpu",
    plan: str = "auto",
    *,
    may_measure: bool = False,
    say: Say = unsaid,
) -> TorchRunner:
    """On the CPU by a plan; in float32 the model itself, to the last bit, unless a plan is named or many images come.

    On a GPU the double, in bfloat16.

    Raises:
        VitkitError: plans are not for this device, or this processor has no packed weights.
    """
    if isinstance(model, Network):
        if plan != "auto":
            raise VitkitError(f"--plan is of Vision Transformers, and this is {model.config.full_name}: leave it out")
        return TorchRunner(_double(model, precision, device), "eager", precision, device)
    if device != "cpu":
        if plan not in ("auto", "plain"):
            raise VitkitError(f"--plan {plan} is for CPUs, not for {device}: leave it out")
        double: nn.Module = prepare(model, torch.bfloat16, device) if precision == "bfloat16" else copy.deepcopy(model)
        return TorchRunner(double.to(device).eval(), "eager", precision, device)
    dtype = _DTYPES[precision]
    if plan.startswith("packed") and not can_pack(dtype):
        raise VitkitError(f"--plan {plan}: torch has no packed weights here; take --plan auto or plain")
    if plan == "auto":
        is_exact = precision == "float32" and not may_measure
        plan = "plain" if is_exact else choose(model, dtype, may_measure=may_measure, say=say)
    if precision == "float32" and plan == "plain":
        return TorchRunner(copy.deepcopy(model).eval(), "eager", precision, device)
    return TorchRunner(build(model, plan, dtype), "eager", precision, device, plan=plan)


class InBfloat16(nn.Module):
    """A network whose convolutions and products are in bfloat16, and whose statistics and logits stay float32."""

    def __init__(self, model: Network, device: str) -> None:
        super().__init__()
        self.model, self._kind = model, device.partition(":")[0]

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(self._kind, torch.bfloat16):
            logits: Tensor = self.model(images)
        return logits.float()


def _double(model: Network, precision: str, device: str) -> nn.Module:
    """A copy of a network that computes in a precision on a device."""
    copied = copy.deepcopy(model).to(device).eval()
    return InBfloat16(copied, device) if precision == "bfloat16" else copied


def merging(model: Model, r: int, precision: str, device: str = "cpu") -> TorchRunner:
    """The double that merges r patches away in every layer (`vitkit.inference.backends.token_merging`).

    Raises:
        VitkitError: the model needs each patch in its place, or has not so many.
    """
    model = vit_of(model, "--merge")
    patches = model.config.patches
    if r > patches // 2:
        raise VitkitError(f"--merge {r}: a layer merges at most half of the {patches} patches: up to {patches // 2}")
    return TorchRunner(merge(model, r, _DTYPES[precision], device), "eager", precision, device, r)


def compiled(model: Model, precision: str, device: str = "cpu") -> TorchRunner:
    """The double compiled by inductor, which takes up to a minute.

    Raises:
        VitkitError: it cannot be compiled, for want of a C++ compiler for example.
    """
    double: nn.Module
    if isinstance(model, Network):
        double = _double(model, precision, device)
    else:
        double = prepare(model, _DTYPES[precision], device, pack=False)
    options: dict[str, Any] | None = {"freezing": True} if device == "cpu" else None  # the compiler packs weights
    runner = TorchRunner(torch.compile(double, fullgraph=True, options=options), "compile", precision, device)
    config = model.config
    try:
        runner(torch.zeros(_BATCH, config.in_channels, *config.image_size))
    except RuntimeError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise VitkitError(f"backend compile cannot compile the model here, take eager: {reason}") from error
    return runner
