"""Is the plan chosen for bfloat16 at least as fast as the model itself? `python benchmarks/plans.py [--smoke]`.

For each model the plan is chosen as `vitkit predict` chooses it for many images, measured anew; then it and the plain
model take turns (A B A B ...), each core computing whole batches of its own as when images stream. `ratio` is the
median over rounds of the plain model's wall-clock time in that of the chosen plan: 0.97 or more is asked for;
`ratio_cpu` is the same of the threads' processor time, which other processes take nothing of. Where the plain model is
chosen it is timed against another copy of itself, which shows the noise. `beside` says whether a second
process computes matrix products without end meanwhile. ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 stands for a processor
without AMX; it is an environment variable of oneDNN's, so it is set before the start.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peers import MODELS, SMOKE
from tables import RESULTS, read_table, result_path, show, write_table
from torch import Tensor

from vitkit.inference import BATCH, OptimizedModel, build_plan, cores, fastest_plan, measure_plans, processor
from vitkit.model import config_for
from vitkit.profiling import random_model

_BUSY = "import torch; torch.set_num_threads(1); a = torch.randn(512, 512)\nwhile True: a @ a"


@contextmanager
def beside(busy: bool) -> Iterator[None]:
    """Another process that computes without end, or none."""
    other = subprocess.Popen([sys.executable, "-c", _BUSY]) if busy else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()
            other.wait()


@torch.inference_mode()
def _processor_seconds(double: OptimizedModel, images: Tensor) -> float:
    began = time.thread_time()
    double(images)
    return time.thread_time() - began


def ratios_of(
    plan: OptimizedModel, plain: OptimizedModel, images: Tensor, rounds: int
) -> tuple[list[float], list[float]]:
    """Of each round the plain model's time in that of the plan, all cores at work: wall clock, and processor."""
    wall, processors = [], []
    before = torch.get_num_threads()
    with ThreadPoolExecutor(cores(), initializer=partial(torch.set_num_threads, 1)) as pool:

        def seconds(double: OptimizedModel) -> tuple[float, float]:
            began = time.perf_counter()
            own = list(pool.map(lambda _: _processor_seconds(double, images), range(cores())))
            return time.perf_counter() - began, sum(own)

        for double in (plan, plain):
            seconds(double)
        for _ in range(rounds):
            own, other = seconds(plan), seconds(plain)
            wall.append(other[0] / own[0])
            processors.append(other[1] / own[1])
    torch.set_num_threads(before)
    return wall, processors


def row_of(label: str, name: str, rounds: int, *, busy: bool) -> dict[str, Any]:
    """One model, alone or beside a busy process."""
    model = random_model(config_for(name))
    with beside(busy):
        began = time.perf_counter()
        measured = measure_plans(model)
        seconds, chosen = time.perf_counter() - began, fastest_plan(measured)
        images = torch.randn(BATCH, model.config.in_channels, *model.config.image_size)
        found, processors = ratios_of(build_plan(model, chosen), build_plan(model, "plain"), images, rounds)
    low, middle, high = statistics.quantiles(found, n=4, method="inclusive")
    return {
        "model": label,
        "batch": BATCH,
        "beside": "a busy process" if busy else "nothing of ours",
        "chosen": chosen,
        "ratio": f"{middle:.3f}",
        "ratio_q1": f"{low:.3f}",
        "ratio_q3": f"{high:.3f}",
        "ratio_cpu": f"{statistics.median(processors):.3f}",
        "rounds": rounds,
        "probe_seconds": f"{seconds:.2f}",
        **{f"probe_{plan}": f"{ratio:.3f}" for plan, ratio in measured.items()},
        "isa": os.environ.get("ONEDNN_MAX_CPU_ISA", "all"),
        "load_before": f"{os.getloadavg()[0]:.1f}",
        "processor": processor(),
    }


def main() -> None:
    """Measure, print, and add to the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="S/16,B/16")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="a tiny model, to see that the script works")
    options = parser.parse_args()
    models = SMOKE if options.smoke else {label: MODELS[label] for label in options.models.split(",")}
    rounds = 2 if options.smoke else options.rounds
    path = result_path("plans", "bfloat16", folder=options.out)
    rows = read_table(path)
    for label, name in models.items():
        for busy in (False, True):
            row = row_of(label, name, rounds, busy=busy)
            print(show(row), flush=True)
            rows.append(row)
            write_table(path, rows)
    print(path)


if __name__ == "__main__":
    main()
