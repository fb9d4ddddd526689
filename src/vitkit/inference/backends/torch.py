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
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError, first_line
from vitkit.inference.backends.optimized import OptimizedModel, can_pack, cast_copy, copy_sharing_parameters, prepare
from vitkit.inference.backends.registry import PLANS
from vitkit.inference.pipeline import BATCH, cores, thread_pool
from vitkit.model.build import Model
from vitkit.model.layers import Layers
from vitkit.model.network import Network
from vitkit.model.vit import VisionTransformer
from vitkit.model.windows import windows_of
from vitkit.system.environment import cache_folder
from vitkit.system.files import read_json, write_json
from vitkit.system.logger import log

GAIN = 1.05  # the minimum speed-up over `plain` for which another plan is used
_TOO_SLOW = 0.8  # candidates with a lower speed-up in the first round are not timed again
_SECONDS = 1.0  # usual duration of a measurement
_TIME_LIMIT = 5.0  # seconds; if they do not suffice for `_MIN_ROUNDS`, because the machine is busy, `plain` is used
_MIN_ROUNDS = 3  # after the first one
_MAX_ROUNDS = 15  # after the first one


def build_plan(model: VisionTransformer, plan: str, dtype: torch.dtype = torch.bfloat16) -> OptimizedModel:
    """Return a copy of the model on the CPU that computes according to `plan`, one of `PLANS` except `auto`."""
    if plan == "plain":
        return cast_copy(model, dtype)
    layout, _, attend = plan.partition("-")
    return prepare(model, dtype, pack=layout == "packed", attend=attend)


def choose_plan(model: VisionTransformer, dtype: torch.dtype = torch.bfloat16, *, may_measure: bool) -> str:
    """Choose one of `PLANS` for this model on this machine.

    The plan comes from a stored measurement, or from a new one, which takes a second, if `may_measure` is True.
    Otherwise it is `plain`.
    """
    # What determines the fastest plan, without the fields of the configuration that do not affect the cost.
    config = {name: value for name, value in asdict(model.config).items() if "drop" not in name and name != "init"}
    key = {
        "processor": processor(),
        "cores": cores(),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "ONEDNN_MAX_CPU_ISA": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        "precision": str(dtype).removeprefix("torch."),
        "batch": BATCH,
        "config": config,
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    file = cache_folder() / "plans" / f"{digest[:24]}.json"
    with suppress(OSError):
        plan: str = read_json(file)["plan"]
        if plan in PLANS:
            return plan
    if not may_measure:
        return "plain"
    ratios = measure_plans(model, dtype)
    plan = fastest_plan(ratios)
    with suppress(OSError):  # otherwise it is measured again next time
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {**key, "plan": plan, "times_as_fast_as_plain": ratios})
    two_fastest = sorted(ratios.items(), key=lambda item: -item[1])[:2]
    listed = ", ".join(f"{name} {ratio:.2f}" for name, ratio in two_fastest)
    log.warning(f"plan {plan}, by a stored measurement of this machine (speed-up over plain: {listed})")
    return plan


def fastest_plan(ratios: Mapping[str, float]) -> str:
    """Return the plan with the largest speed-up over `plain`; `plain` if the speed-up is less than `GAIN`."""
    plan = max(ratios, key=lambda name: ratios[name], default="plain")
    return plan if ratios.get(plan, 0.0) >= GAIN else "plain"


# --- Measuring ----------------------------------------------------------------------------------------------


def measure_plans(model: VisionTransformer, dtype: torch.dtype = torch.bfloat16) -> dict[str, float]:
    """Return each plan's speed-up over `plain` in processor time per batch, as the median over rounds.

    Blocks of the same kind cost the same. Therefore one block of each kind is timed, and its time is multiplied by the
    number of such blocks. If time runs out before the minimum number of rounds, the result contains only `plain`.
    """
    # A copy with one block of each kind and the last block, which is counted apart because it may compute only some of
    # the tokens.
    config = model.config
    kinds = [(i in config.conv_layers, windows_of(config, i)) for i in range(len(model.blocks) - 1)]
    counts = Counter(kinds)
    short_model = copy_sharing_parameters(model)
    first_of_each = [short_model.blocks[kinds.index(kind)] for kind in counts]
    short_model.blocks = Layers(*first_of_each, short_model.blocks[-1])
    repeats = list(counts.values())

    plans = [name for name in PLANS if name != "auto"]
    if not can_pack(dtype):
        plans = [name for name in plans if not name.startswith("packed")]
    candidates = {name: build_plan(short_model, name, dtype) for name in plans}
    images = torch.randn(BATCH, config.in_channels, *config.image_size, generator=torch.Generator().manual_seed(0))
    began = time.monotonic()
    with thread_pool(is_concurrent=True) as (pool, count, _):
        by_core = list(pool.map(lambda _: _time_plans(candidates, repeats, images, began), range(count)))
    if any(len(rounds) <= _MIN_ROUNDS for rounds in by_core):
        return {"plain": 1.0}
    rounds = list(chain.from_iterable(by_core))
    speedups = dict[str, float]()
    for name in plans:
        speedups[name] = statistics.median(seconds["plain"] / seconds[name] for seconds in rounds if name in seconds)
    return speedups


@torch.inference_mode()
def _time_plans(
    candidates: Mapping[str, OptimizedModel], repeats: Sequence[int], images: Tensor, began: float
) -> list[dict[str, float]]:
    """Return the seconds per batch of each plan, for each round; an empty list if time runs out.

    Plans that are slow in the first round are left out of the later rounds.
    """
    first_round: dict[str, float] = {}
    for name in [*candidates, *candidates]:  # the second pass replaces the first, in which kernels are chosen
        first_round[name] = _seconds(candidates[name], repeats, images)
        if time.monotonic() > began + _TIME_LIMIT:
            return []
    remaining = [name for name, seconds in first_round.items() if first_round["plain"] / seconds >= _TOO_SLOW]
    rounds = [first_round]
    while len(rounds) <= _MAX_ROUNDS:
        seconds = _TIME_LIMIT if len(rounds) <= _MIN_ROUNDS else _SECONDS
        if time.monotonic() >= began + seconds:
            break
        rounds.append({name: _seconds(candidates[name], repeats, images) for name in remaining})
    return rounds


def _seconds(optimized: OptimizedModel, repeats: Sequence[int], images: Tensor) -> float:
    """Return the processor time in seconds that this thread needs for a batch with `repeats[i]` blocks like block i."""
    began = time.thread_time()
    x = optimized.embed(images)  # (B, N, D)
    spent = time.thread_time() - began
    for i, count in enumerate(repeats):
        began = time.thread_time()
        x = optimized.model.layer(i, x)
        spent += count * (time.thread_time() - began)
    began = time.thread_time()
    optimized.finish(optimized.model.layer(len(repeats), x, optimized.tokens_read))
    return spent + time.thread_time() - began


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


_REPLAYED = 32  # images of the largest replayed batch: a larger one takes the GPU longer than Python needs to launch it


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
                    graph, static_images, outputs = recorded
                    static_images.copy_(images)
                    graph.replay()
                    return outputs.clone()
        return self._model(images)

    def _record(self, images: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor] | None:
        """Record a CUDA graph for the shape of `images`; return the graph, its input and its output, or None."""
        graph = torch.cuda.CUDAGraph()
        static_images = images.clone()
        side_stream = torch.cuda.Stream(images.device)  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream(images.device))
        with torch.cuda.stream(side_stream):
            for _ in range(3):  # kernels are compiled and chosen, and libraries allocate their memory
                self._model(static_images)
        torch.cuda.current_stream(images.device).wait_stream(side_stream)
        pool = next((other.pool() for other, *_ in self._graphs.values()), None)
        try:
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # other threads may use the GPU
                outputs = self._model(static_images)
        except RuntimeError:
            self._can_record = False
            return None
        self._graphs[tuple(images.shape)] = graph, static_images, outputs
        return graph, static_images, outputs


def model_on_gpu(
    model: VisionTransformer, precision: str, device: str, *, is_compiled: bool = False
) -> Callable[[Tensor], Tensor]:
    """Return the function with which the backends `eager` and `compile` compute the logits of images on a GPU.

    The model is copied. If `is_compiled`, inductor compiles the function when it is first called.
    """
    module: nn.Module
    if is_compiled or precision != "float32":
        module = prepare(model, getattr(torch, precision), device, pack=False)
    else:
        module = copy.deepcopy(model)
    compute: Callable[[Tensor], Tensor] = module.to(device).eval()
    if is_compiled:
        compute = torch.compile(compute, fullgraph=True, dynamic=False)
    return KernelReplay(compute) if device.startswith("cuda") else compute


class TorchRunner:
    """A `Runner` that computes in PyTorch, on the CPU or a GPU.

    Several threads may call a runner of the backend `eager` on the CPU at once.
    """

    def __init__(
        self, compute: Callable[[Tensor], Tensor], backend: str, precision: str, device: str, plan: str = ""
    ) -> None:
        self.backend = backend
        self.precision = precision
        self.plan = plan
        self.is_concurrent = backend == "eager" and device == "cpu"
        self._compute = compute
        self._device = device
        self._largest = 0  # the largest batch so far

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Compute float32 logits (B, K) of images (B, C, height, width), for any B; both tensors are on the CPU."""
        B = len(images)
        if self.backend == "compile":  # each batch size is compiled, so batches are padded to the largest one so far
            size = B
            if self._device != "cpu":  # padding costs little there, and powers of two keep the number of sizes small
                size = 1 << (B - 1).bit_length()
            self._largest = max(self._largest, size)
            images = torch.cat([images, images.new_zeros(self._largest - B, *images.shape[1:])])
        return self._compute(images.to(self._device, non_blocking=True))[:B].cpu()


def eager(
    model: Model, precision: str, device: str = "cpu", plan: str = "auto", *, may_measure: bool = False
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
            reason = f"plan {plan!r} requires a Vision Transformer, and this is {model.config.full_name}"
            raise VitkitError("inference.plan-unsupported", reason)
        return TorchRunner(_eval_copy(model, precision, device), "eager", precision, device)
    if device != "cpu":
        if plan not in ("auto", "plain"):
            raise VitkitError("inference.plan-unsupported", f"plan {plan!r} is for CPUs, not for {device}")
        return TorchRunner(model_on_gpu(model, precision, device), "eager", precision, device)
    dtype = getattr(torch, precision)
    if plan.startswith("packed") and not can_pack(dtype):
        reason = f"plan {plan!r}: torch does not support packed weights here; use plan 'auto' or 'plain'"
        raise VitkitError("inference.plan-unsupported", reason)
    if plan == "auto":
        # Without a measurement, results in float32 should be bitwise equal to those of the model.
        if precision != "float32" or may_measure:
            with suppress(VitkitError):  # the optimised model does not support a layer that is not vitkit's
                return _runner_of_plan(model, precision, choose_plan(model, dtype, may_measure=may_measure))
        plan = "plain"
    return _runner_of_plan(model, precision, plan)


def _runner_of_plan(model: VisionTransformer, precision: str, plan: str) -> TorchRunner:
    if precision == "float32" and plan == "plain":
        return TorchRunner(copy.deepcopy(model).eval(), "eager", precision, "cpu")
    return TorchRunner(build_plan(model, plan, getattr(torch, precision)), "eager", precision, "cpu", plan=plan)


class InHalfPrecision(nn.Module):
    """A network under autocast: convolutions and matrix products in 16 bits, statistics and logits in float32."""

    def __init__(self, model: Network, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.model = model
        self._dtype = dtype
        self._device_type = device.partition(":")[0]

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(self._device_type, self._dtype):
            logits: Tensor = self.model(images)
        return logits.float()


def _eval_copy(model: Network, precision: str, device: str) -> nn.Module:
    copied = copy.deepcopy(model).to(device).eval()
    return copied if precision == "float32" else InHalfPrecision(copied, getattr(torch, precision), device)


def compiled(model: Model, precision: str, device: str = "cpu") -> TorchRunner:
    """Return a runner of the optimised model, compiled by inductor; compilation takes up to a minute.

    Raises:
        VitkitError: the model cannot be compiled, for example because there is no C++ compiler.
    """
    options: dict[str, Any] | None = {"freezing": True} if device == "cpu" else None  # so that it packs weights
    compute: Callable[[Tensor], Tensor]
    if isinstance(model, Network):
        compute = torch.compile(_eval_copy(model, precision, device), fullgraph=True, options=options)
    elif device == "cpu":
        unpacked = prepare(model, getattr(torch, precision), pack=False)
        compute = torch.compile(unpacked, fullgraph=True, options=options)
    else:
        compute = model_on_gpu(model, precision, device, is_compiled=True)
    runner = TorchRunner(compute, "compile", precision, device)
    config = model.config
    try:
        runner(torch.zeros(8, config.in_channels, *config.image_size))
    except RuntimeError as error:
        reason = f"backend compile cannot compile the model on this machine: {first_line(error)}; use eager"
        raise VitkitError("inference.compiler-failed", reason) from error
    return runner
