"""Which way of computing is the fastest on this processor: measured where it runs, once, and kept.

There is no telling in advance. The folded and packed double beats the model itself on some processors and loses to it
on others, as their matrix products leave more or less of the time to everything else. So when many images stream, the
ways take turns for about a second, A B C ... A B C ..., each core for itself with whole batches, as the stream will
have it. The model itself is taken, unless another's median is faster by a twentieth.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.inference.backends.optimized import Double, plain, prepare, sharing
from vitkit.inference.backends.prepared_layers import can_pack
from vitkit.inference.backends.registry import PLANS
from vitkit.inference.pipeline import BATCH, cores
from vitkit.model.vit import VisionTransformer
from vitkit.system.cache import cache_folder
from vitkit.system.files import from_json, write_json
from vitkit.system.progress import Say

GAIN = 1.05  # times as fast as the model itself, or more, is worth another way
_HOPELESS = 0.8  # times as fast, after the first round: not timed again
_SECONDS = 1.0  # that the rounds may take
_PATIENCE = 5.0  # seconds for fewer rounds than the least, beside others' work or with a large model; then it is plain
_ROUNDS = (3, 15)  # at least, at most


def build(model: VisionTransformer, plan: str, dtype: torch.dtype = torch.bfloat16) -> Double:
    """The model computed by one of `PLANS` but auto, on the CPU."""
    if plan == "plain":
        return plain(model, dtype)
    layout, _, attend = plan.partition("-")
    return prepare(model, dtype, pack=layout == "packed", attend=attend)


def choose(model: VisionTransformer, dtype: torch.dtype = torch.bfloat16, *, may_measure: bool, say: Say) -> str:
    """One of `PLANS` for this model here: what was kept of an earlier measurement, else a new one, else `plain`.

    Args:
        model: on the CPU.
        dtype: in which it is to compute.
        may_measure: whether enough images are coming for a second to be well spent.
        say: is told what was measured.
    """
    facts = _facts(model, dtype)
    kept = _kept(facts)
    if kept is None and may_measure:
        ratios = measure(model, dtype)
        kept = best(ratios)
        _keep(facts, kept, ratios)
        say(_told(kept, ratios))
    return kept or "plain"


def best(ratios: Mapping[str, float]) -> str:
    """The plan that is the most times as fast as the model itself, if that is at least `GAIN`."""
    plan = max(ratios, key=lambda name: ratios[name], default="plain")
    return plan if ratios.get(plan, 0.0) >= GAIN else "plain"


def _told(plan: str, ratios: Mapping[str, float]) -> str:
    found = ", ".join(f"{name} {ratio:.2f}" for name, ratio in sorted(ratios.items(), key=lambda item: -item[1])[:2])
    return f"plan {plan}, as measured here and kept (times as fast as plain: {found}); --plan fixes it"


# --- Measuring ----------------------------------------------------------------------------------------------


def measure(model: VisionTransformer, dtype: torch.dtype = torch.bfloat16) -> dict[str, float]:
    """How many times as fast as the model itself each way is, in processor time of a batch; medians over rounds.

    Blocks of one kind cost the same, so one of each kind is timed, and counts as often as the model has it. Where the
    time is up before there are rounds enough to tell, the model itself alone is named.
    """
    cut, times = _one_of_each_kind(model)
    plans = [name for name in PLANS if name != "auto" and (can_pack(dtype) or not name.startswith("packed"))]
    doubles = {name: build(cut, name, dtype) for name in plans}
    config = model.config
    images = torch.randn(BATCH, config.in_channels, *config.image_size, generator=torch.Generator().manual_seed(0))
    began = time.monotonic()
    with ThreadPoolExecutor(cores(), initializer=partial(torch.set_num_threads, 1)) as pool:
        before = torch.get_num_threads()
        own = list(pool.map(lambda _: _take_turns(doubles, times, images, began), range(cores())))
    torch.set_num_threads(before)  # what the pool's threads have set is also the default of later threads
    if any(len(of_core) <= _ROUNDS[0] for of_core in own):
        return {"plain": 1.0}
    rounds = [each for of_core in own for each in of_core]
    return {name: statistics.median(each["plain"] / each[name] for each in rounds if name in each) for name in plans}


def _one_of_each_kind(model: VisionTransformer) -> tuple[VisionTransformer, list[int]]:
    """The model with fewer blocks, whose weights it shares, and how often each but the last stands for one."""
    kinds = [i in model.config.conv_layers for i in range(len(model.blocks) - 1)]
    cut = sharing(model)
    cut.blocks = nn.ModuleList([*(cut.blocks[kinds.index(kind)] for kind in Counter(kinds)), cut.blocks[-1]])
    return cut, list(Counter(kinds).values())


@torch.inference_mode()
def _take_turns(
    doubles: Mapping[str, Double], times: Sequence[int], images: Tensor, began: float
) -> list[dict[str, float]]:
    """Seconds of a batch by each way, round after round; the first round only tells which are hopeless."""
    racing: dict[str, float] = {}
    for name in [*doubles, *doubles]:  # the second time kernels are chosen
        racing[name] = _seconds(doubles[name], times, images)
        if time.monotonic() > began + _PATIENCE:
            return []
    least, most = _ROUNDS
    running = [name for name, seconds in racing.items() if racing["plain"] / seconds >= _HOPELESS]
    rounds = [racing]
    while len(rounds) <= most and time.monotonic() < began + (_PATIENCE if len(rounds) <= least else _SECONDS):
        rounds.append({name: _seconds(doubles[name], times, images) for name in running})
    return rounds


def _seconds(double: Double, times: Sequence[int], images: Tensor) -> float:
    """Of this thread's processor time, which another process takes nothing of, for the whole model."""
    began = time.thread_time()
    x = double.embed(images)  # (B, N, D)
    spent = time.thread_time() - began
    for i, often in enumerate(times):
        began = time.thread_time()
        x = double.model.layer(i, x)
        spent += often * (time.thread_time() - began)
    began = time.thread_time()
    double.finish(double.model.layer(len(times), x, double.reads))
    return spent + time.thread_time() - began


# --- What was kept ------------------------------------------------------------------------------------------


def _facts(model: VisionTransformer, dtype: torch.dtype) -> dict[str, Any]:
    """All that a measurement holds for; what the model costs does not depend on its rates of dropout or its start."""
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
    plain: dict[str, Any] = json.loads(json.dumps(facts))  # as it is read back
    return plain


def processor() -> str:
    """The processor's name and a digest of its instruction sets; what Python knows where the system does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    found = {name.strip(): value.strip() for name, _, value in lines}
    flags = " ".join(sorted((found.get("flags") or found.get("Features") or "").split()))
    return f"{found.get('model name', platform.machine())} {hashlib.sha256(flags.encode()).hexdigest()[:8]}"


def _file(facts: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return cache_folder() / "plans" / f"{digest[:24]}.json"


def _kept(facts: Mapping[str, Any]) -> str | None:
    """The plan that was kept for these facts; None where there is no file that can be believed."""
    try:
        kept = from_json(_file(facts).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(kept, dict) or any(kept.get(name) != value for name, value in facts.items()):
        return None
    plan = kept.get("plan")
    return plan if isinstance(plan, str) and plan in PLANS and plan != "auto" else None


def _keep(facts: Mapping[str, Any], plan: str, ratios: Mapping[str, float]) -> None:
    with suppress(OSError):  # else it is measured anew the next time
        file = _file(facts)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {**facts, "plan": plan, "times_as_fast_as_plain": dict(ratios)})
