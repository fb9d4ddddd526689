"""The PyTorch runners: the model itself, an optimised copy, or a compiled copy.

An optimised copy can compute in several ways, called plans (`PLANS`). The fastest plan depends on the processor.
Therefore, plans are measured on the machine when many images are predicted, and the fastest plan is stored. In a
measurement, the plans take turns (A B C ... A B C ...) for about a second, with a whole batch on each core. The plan
`plain` is used unless the median of another plan is faster by at least five percent.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import platform
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError, first_line
from vitkit.inference.backends.optimized import OptimizedModel, can_pack, plain, prepare, sharing
from vitkit.inference.backends.registry import PLANS
from vitkit.inference.pipeline import BATCH, cores, crew
from vitkit.model.build import Model
from vitkit.model.layers import Layers
from vitkit.model.network import Network
from vitkit.model.vit import VisionTransformer
from vitkit.model.windows import windows_of
from vitkit.system.environment import cache_folder
from vitkit.system.files import from_json, write_json
from vitkit.system.logger import log

GAIN = 1.05  # the minimum speed-up over `plain` that is worth another plan
_TOO_SLOW = 0.8  # candidates with a lower speed-up in the first round are not timed again
_SECONDS = 1.0  # duration of the rounds
_LONGEST = 5.0  # maximum seconds for the minimum number of rounds, on a busy machine; after that, `plain` is used
_ROUNDS = (3, 15)  # minimum and maximum number of rounds


def build(model: VisionTransformer, plan: str, dtype: torch.dtype = torch.bfloat16) -> OptimizedModel:
    """Return a copy of the model on the CPU that computes according to `plan`, one of `PLANS` except `auto`."""
    if plan == "plain":
        return plain(model, dtype)
    layout, _, attend = plan.partition("-")
    return prepare(model, dtype, pack=layout == "packed", attend=attend)


def choose(model: VisionTransformer, dtype: torch.dtype = torch.bfloat16, *, may_measure: bool) -> str:
    """Choose one of `PLANS` for this model on this machine.

    The plan comes from a stored measurement, or from a new one if `may_measure` is set. Otherwise it is `plain`.

    Args:
        model: the model on the CPU.
        dtype: the dtype of the computation.
        may_measure: whether there are enough images to spend a second on a measurement.
    """
    facts = _facts(model, dtype)
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    file = cache_folder() / "plans" / f"{digest[:24]}.json"
    with suppress(OSError, ValueError):
        stored = from_json(file.read_text(encoding="utf-8"))
        if isinstance(stored, dict) and all(stored.get(name) == value for name, value in facts.items()):
            plan = stored.get("plan")
            if isinstance(plan, str) and plan in PLANS and plan != "auto":
                return plan
    if not may_measure:
        return "plain"
    ratios = measure(model, dtype)
    plan = best(ratios)
    with suppress(OSError):  # otherwise it is measured again next time
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {**facts, "plan": plan, "times_as_fast_as_plain": ratios})
    fastest = sorted(ratios.items(), key=lambda item: -item[1])[:2]
    listed = ", ".join(f"{name} {ratio:.2f}" for name, ratio in fastest)
    log.warning(f"plan {plan}, by a stored measurement of this machine (speed-up over plain: {listed})")
    return plan


def best(ratios: Mapping[str, float]) -> str:
    """Return the plan with the largest speed-up over `plain`; `plain` if the speed-up is less than `GAIN`."""
    plan = max(ratios, key=lambda name: ratios[name], default="plain")
    return plan if ratios.get(plan, 0.0) >= GAIN else "plain"


# --- Measuring ----------------------------------------------------------------------------------------------


def measure(model: VisionTransformer, dtype: torch.dtype = torch.bfloat16) -> dict[str, float]:
    """Return each plan's speed-up over `plain` in processor time per batch, as the median over rounds.

    Blocks of the same kind cost the same. Therefore one block of each kind is timed, and its time is multiplied by the
    number of such blocks. If time runs out before the minimum number of rounds, the result contains only `plain`.
    """
    cut, times = _one_of_each_kind(model)
    plans = [name for name in PLANS if name != "auto" and (can_pack(dtype) or not name.startswith("packed"))]
    candidates = {name: build(cut, name, dtype) for name in plans}
    config = model.config
    images = torch.randn(BATCH, config.in_channels, *config.image_size, generator=torch.Generator().manual_seed(0))
    began = time.monotonic()
    with crew(is_concurrent=True) as (pool, count, _):
        rows = list(pool.map(lambda _: _time_plans(candidates, times, images, began), range(count)))
    if any(len(of_core) <= _ROUNDS[0] for of_core in rows):
        return {"plain": 1.0}
    rounds = [each for of_core in rows for each in of_core]
    return {name: statistics.median(each["plain"] / each[name] for each in rounds if name in each) for name in plans}


def _one_of_each_kind(model: VisionTransformer) -> tuple[VisionTransformer, list[int]]:
    """Return a copy with one block of each kind, and the last block; and how many blocks of each kind the model has."""
    config = model.config
    kinds = [(i in config.conv_layers, windows_of(config, i)) for i in range(len(model.blocks) - 1)]
    cut = sharing(model)
    cut.blocks = Layers(*(cut.blocks[kinds.index(kind)] for kind in Counter(kinds)), cut.blocks[-1])
    return cut, list(Counter(kinds).values())


@torch.inference_mode()
def _time_plans(
    candidates: Mapping[str, OptimizedModel], times: Sequence[int], images: Tensor, began: float
) -> list[dict[str, float]]:
    """Return the seconds per batch of each plan, for each round; an empty list if time runs out.

    Plans that are slow in the first round are left out of the later rounds.
    """
    racing: dict[str, float] = {}
    for name in [*candidates, *candidates]:  # in the second pass, kernels have been chosen
        racing[name] = _seconds(candidates[name], times, images)
        if time.monotonic() > began + _LONGEST:
            return []
    least, most = _ROUNDS
    running = [name for name, seconds in racing.items() if racing["plain"] / seconds >= _TOO_SLOW]
    rounds = [racing]
    while len(rounds) <= most and time.monotonic() < began + (_LONGEST if len(rounds) <= least else _SECONDS):
        rounds.append({name: _seconds(candidates[name], times, images) for name in running})
    return rounds


def _seconds(optimized: OptimizedModel, times: Sequence[int], images: Tensor) -> float:
    """Return the seconds of processor time that this thread needs for a batch. Other threads do not count."""
    began = time.thread_time()
    x = optimized.embed(images)  # (B, N, D)
    spent = time.thread_time() - began
    for i, often in enumerate(times):
        began = time.thread_time()
        x = optimized.model.layer(i, x)
        spent += often * (time.thread_time() - began)
    began = time.thread_time()
    optimized.finish(optimized.model.layer(len(times), x, optimized.reads))
    return spent + time.thread_time() - began


# --- Stored measurements ------------------------------------------------------------------------------------


def _facts(model: VisionTransformer, dtype: torch.dtype) -> dict[str, Any]:
    """Return the values that determine which plan is fastest: the machine, torch, and the model's configuration.

    Fields of the configuration that do not affect the cost, such as dropout, are left out.
    """
    config = {
        name: value for name, value in asdict(model.config).items() if "drop" not in name and name not in ("init",)
    }
    facts = {
        "processor": processor(),
        "cores": cores(),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "ONEDNN_MAX_CPU_ISA": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        "precision": str(dtype).removeprefix("torch."),
        "batch": BATCH,
        "config": config,
    }
    as_stored: dict[str, Any] = json.loads(json.dumps(facts))
    return as_stored


def processor() -> str:
    """Return the processor's name and a digest of its instruction sets; without /proc/cpuinfo, only its name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    flags = " ".join(sorted((fields.get("flags") or fields.get("Features") or "").split()))
    return f"{fields.get('model name', platform.machine())} {hashlib.sha256(flags.encode()).hexdigest()[:8]}"


_REPLAYED = 32  # images; a GPU computes larger batches more slowly than Python launches their kernels


class KernelReplay:
    """A model on a CUDA GPU, which launches all kernels of a small batch at once.

    A GPU computes a few images faster than Python launches the kernels of a forward pass one by one. Therefore, when a
    batch of up to 32 images has a new shape, its kernels are recorded in a CUDA graph. Later batches of this shape
    replay the graph. All graphs share their memory, since they never run at the same time. A model whose kernels cannot
    be recorded, for example because its forward pass waits for results of the GPU, is computed as usual.
    """

    def __init__(self, model: Callable[[Tensor], Tensor]) -> None:
        self._model = model
        self._graphs = dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, Tensor, Tensor]]()
        self._can_record = True
        self._lock = Lock()

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Return the model's output (B, K) for images (B, C, height, width) on its device."""
        if len(images) <= _REPLAYED and self._can_record:
            with self._lock:
                recorded = self._graphs.get(tuple(images.shape)) or self._record(images)
                if recorded is not None:
                    graph, given, outputs = recorded
                    given.copy_(images)
                    graph.replay()
                    return outputs.clone()
        return self._model(images)

    def _record(self, images: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor] | None:
        """Record a CUDA graph for the shape of `images`; return the graph, its input and its output, or None."""
        given, graph = images.clone(), torch.cuda.CUDAGraph()
        aside = torch.cuda.Stream(images.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(images.device))
        with torch.cuda.stream(aside):
            for _ in range(3):  # kernels are compiled and chosen, and libraries allocate their memory
                self._model(given)
        torch.cuda.current_stream(images.device).wait_stream(aside)
        pool = next((other.pool() for other, *_ in self._graphs.values()), None)
        try:
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # other threads may use the GPU
                outputs = self._model(given)
        except RuntimeError:
            self._can_record = False
            return None
        self._graphs[tuple(images.shape)] = graph, given, outputs
        return graph, given, outputs


def model_on_gpu(
    model: VisionTransformer, precision: str, device: str, *, is_compiled: bool = False
) -> Callable[[Tensor], Tensor]:
    """Return the function with which the backends `eager` and `compile` compute the logits of images on a GPU.

    Args:
        model: the model; it is copied.
        precision: `float32`, `bfloat16` or `float16`.
        device: `cuda` or `mps`.
        is_compiled: whether the function is compiled by inductor when it is first called.
    """
    is_optimized = is_compiled or precision != "float32"
    module = prepare(model, getattr(torch, precision), device, pack=False) if is_optimized else copy.deepcopy(model)
    module = module.to(device).eval()
    compute = torch.compile(module, fullgraph=True, dynamic=False) if is_compiled else module
    return KernelReplay(compute) if device.startswith("cuda") else compute


class TorchRunner:
    """A `Runner` that computes in PyTorch, on the CPU or a GPU.

    Several threads may call a runner of the backend `eager` on the CPU at once.
    """

    def __init__(
        self,
        compute: Callable[[Tensor], Tensor],
        backend: str,
        precision: str,
        device: str,
        plan: str = "",
    ) -> None:
        self.backend, self.precision, self.plan = backend, precision, plan
        self.is_concurrent = backend == "eager" and device == "cpu"
        self._compute, self._device = compute, device
        self._largest = 0  # the largest batch so far

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Compute float32 logits (B, K) of images (B, C, height, width), for any B; both tensors are on the CPU."""
        B = len(images)
        if self.backend == "compile":  # another batch size would be compiled again
            self._largest = max(self._largest, B if self._device == "cpu" else 1 << (B - 1).bit_length())
            images = torch.cat([images, images.new_zeros(self._largest - B, *images.shape[1:])])
        return self._compute(images.to(self._device, non_blocking=True))[:B].cpu()


def eager(
    model: Model,
    precision: str,
    device: str = "cpu",
    plan: str = "auto",
    *,
    may_measure: bool = False,
) -> TorchRunner:
    """Return a runner in PyTorch without compilation.

    On the CPU, the runner computes according to `plan`. In float32, the default is the model itself, unless another
    plan was measured to be faster. On a GPU, the runner uses the optimised model in bfloat16 and float16, and the
    model itself in float32.

    Raises:
        VitkitError: plans do not apply to this device, or this processor does not support packed weights.
    """
    if isinstance(model, Network):
        if plan != "auto":
            raise VitkitError(
                "inference.plan-unsupported",
                f"plan {plan!r} requires a Vision Transformer, and this is {model.config.full_name}",
            )
        return TorchRunner(_copy_on(model, precision, device), "eager", precision, device)
    if device != "cpu":
        if plan not in ("auto", "plain"):
            raise VitkitError("inference.plan-unsupported", f"plan {plan!r} is for CPUs, not for {device}")
        return TorchRunner(model_on_gpu(model, precision, device), "eager", precision, device)
    dtype = getattr(torch, precision)
    if plan.startswith("packed") and not can_pack(dtype):
        raise VitkitError(
            "inference.plan-unsupported",
            f"plan {plan!r}: torch does not support packed weights here; use plan 'auto' or 'plain'",
        )
    if plan == "auto":
        # Without a measurement, results in float32 should be bitwise equal to those of the model.
        if precision != "float32" or may_measure:
            with suppress(VitkitError):  # of a layer that is not vitkit's
                return _planned(model, precision, choose(model, dtype, may_measure=may_measure))
        plan = "plain"
    return _planned(model, precision, plan)


def _planned(model: VisionTransformer, precision: str, plan: str) -> TorchRunner:
    if precision == "float32" and plan == "plain":
        return TorchRunner(copy.deepcopy(model).eval(), "eager", precision, "cpu")
    return TorchRunner(build(model, plan, getattr(torch, precision)), "eager", precision, "cpu", plan=plan)


class InHalfPrecision(nn.Module):
    """A network under autocast: convolutions and matrix products in 16 bits, statistics and logits in float32."""

    def __init__(self, model: Network, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.model, self._dtype, self._kind = model, dtype, device.partition(":")[0]

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(self._kind, self._dtype):
            logits: Tensor = self.model(images)
        return logits.float()


def _copy_on(model: Network, precision: str, device: str) -> nn.Module:
    copied = copy.deepcopy(model).to(device).eval()
    return copied if precision == "float32" else InHalfPrecision(copied, getattr(torch, precision), device)


def compiled(model: Model, precision: str, device: str = "cpu") -> TorchRunner:
    """Return a runner of the optimised model, compiled by inductor; compilation takes up to a minute.

    Raises:
        VitkitError: the model cannot be compiled, for example because there is no C++ compiler.
    """
    options: dict[str, Any] | None = {"freezing": True} if device == "cpu" else None  # the compiler packs weights
    compute: Callable[[Tensor], Tensor]
    if isinstance(model, Network):
        compute = torch.compile(_copy_on(model, precision, device), fullgraph=True, options=options)
    elif device == "cpu":
        packed_later = prepare(model, getattr(torch, precision), pack=False)
        compute = torch.compile(packed_later, fullgraph=True, options=options)
    else:
        compute = model_on_gpu(model, precision, device, is_compiled=True)
    runner = TorchRunner(compute, "compile", precision, device)
    config = model.config
    try:
        runner(torch.zeros(8, config.in_channels, *config.image_size))
    except RuntimeError as error:
        raise VitkitError(
            "inference.compiler-failed",
            f"backend compile cannot compile the model on this machine: {first_line(error)}; use eager",
        ) from error
    return runner
