"""Whether plans hold: `python benchmarks/planning.py [--models Ti/16,S/16,B/16] [--batch 8]`.

`vitkit plan` rehearses a step with tensors that have no numbers. Here the step is taken: by the training loop, on this
machine's CPU, with AdamW, clipping and a batch of noise. PyTorch's flop counter counts its FLOPs, and its memory is the
allocator's own record of what it gave and took back (`torch.profiler`) over the second step, when the optimiser has its
moments. In float32 and under bfloat16 autocast, with nothing and with everything checkpointed; attention written out,
as on CPUs, and by the fused kernel, as on GPUs. With `--device cuda` the step is taken on the GPU, and the memory is
the most that its allocator held, beside what the matrix library keeps for itself (65 MiB on an H100). A row is the
rehearsal beside the step. Then what the paper's trainings would take on its TPUs, beside what its Table 2 says they
took, and how many images a core prepares.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch
from tables import RESULTS, result_path, show, write_table
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import vitkit
from vitkit.data import BatchedImages, Preprocess, TrainingImages, read_source
from vitkit.experiments import rehearse_step
from vitkit.model import VisionTransformer, config_for
from vitkit.training import Loop, Objective, Recipe, TrainingState, augment_of, checkpoint_every, fabric_of

MIB = 2**20
NAMES = {"Ti/16": "vit_tiny_patch16_224", "S/16": "vit_small_patch16_224", "B/16": "vit_base_patch16_224"}
# Recipe, images, classes, and TPUv3-core-days of the paper's Table 2.
PAPER: dict[str, tuple[str, int, int, float]] = {
    "H/14 JFT": ("paper-vit-h14-jft", 303_000_000, 18_291, 2_500.0),
    "L/16 JFT": ("paper-vit-l16-jft", 303_000_000, 18_291, 680.0),
    "L/16 I21k": ("paper-vit-l16-imagenet21k", 14_197_122, 21_843, 230.0),
}


class _Batches:
    """What the loop asks of its data in one step."""

    batches = 1

    def images_in(self, _first: int, _last: int) -> tuple[int, int]:
        return 1, 1

    def places(self, images: int) -> range:
        return range(images)


def real_loop(name: str, recipe: Recipe, precision: str, fused: bool, device: str) -> Loop:
    """A loop whose model has numbers and whose optimiser has taken a step, on one image."""
    model = VisionTransformer(config_for(name)).to(device).train()
    model.fused_attention, model.checkpointing = fused, checkpoint_every(recipe.checkpointing)
    state = TrainingState.begin(model, recipe, 2)
    objective = Objective(recipe, model.config.num_classes)
    loop = Loop(state, objective, cast(BatchedImages, _Batches()), fabric_of(precision, device))
    step(loop, 1)
    return loop


def step(loop: Loop, images: int) -> None:
    """One step on noise."""
    size, device = loop.state.model.config.image_size, loop.fabric.device
    loop.take_step(0, [(torch.rand(images, 3, *size).to(device), torch.zeros(images, dtype=torch.int64).to(device))])


def recorded(work: Any) -> tuple[int, int, Any]:
    """What the allocator holds more after the work than before, the most that it did meanwhile, and what came of it."""
    gc.collect()  # what an earlier row left must not be given back in this one's record
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as record:
        outcome = work()
    events = record.profiler.kineto_results.events()  # type: ignore[union-attr]
    moves = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    held = most = 0
    for _, size in moves:
        held += size
        most = max(most, held)
    return held, most, outcome


def peak_of_step(name: str, recipe: Recipe, images: int, precision: str, fused: bool, device: str) -> tuple[int, Loop]:
    """The most that the allocator holds while a step is taken, with what the loop holds before it."""
    if device == "cuda":
        before = held_by_libraries()
        loop = real_loop(name, recipe, precision, fused, device)
        torch.cuda.reset_peak_memory_stats()
        step(loop, images)
        return torch.cuda.max_memory_allocated() - before, loop
    held, _, loop = recorded(lambda: real_loop(name, recipe, precision, fused, device))
    _, most, _ = recorded(lambda: step(loop, images))
    return held + most, loop


def held_by_libraries() -> int:
    """What the GPU's matrix library keeps for itself once it has computed, forwards and backwards: no step's own."""
    gc.collect()  # an earlier row's loop refers to itself
    weights = torch.rand(8, 8, device="cuda", requires_grad=True)
    (weights @ weights).sum().backward()
    del weights
    return torch.cuda.memory_allocated()


def real_step(
    name: str, recipe: Recipe, images: int, precision: str, *, fused: bool = False, device: str = "cpu"
) -> dict[str, int]:
    """Parameters, FLOPs and peak memory of a step that is taken."""
    peak, loop = peak_of_step(name, recipe, images, precision, fused, device)
    with FlopCounterMode(display=False) as counter:  # by itself: it holds on to what checkpointing would free
        step(loop, images)
    parameters = sum(own.numel() for own in loop.state.model.parameters())
    return {"parameters": parameters, "flops": counter.get_total_flops(), "peak": peak}


def compare(
    name: str, images: int, precision: str, checkpointing: str, fused: bool, device: str, **fields: Any
) -> dict[str, Any]:
    """A row: the rehearsal beside the step."""
    recipe = Recipe(**{"model": name, "weights": "none", "method": "scratch", "drop_path": 0.0, **fields}).replace(
        checkpointing=checkpointing
    )
    real = real_step(name, recipe, images, precision, fused=fused, device=device)
    config = config_for(name)
    ours = rehearse_step(config, recipe, images, precision=precision, on_gpu=fused)
    return {
        "model": name,
        "batch": images,
        "precision": precision,
        "checkpointing": checkpointing,
        "attention": "fused" if fused else "written out",
        "parameters": ours.parameters,
        "parameters_real": real["parameters"],
        "gflops": round(ours.flops / 1e9, 3),
        "gflops_real": round(real["flops"] / 1e9, 3),
        "peak_mib": round(ours.peak / MIB, 1),
        "peak_mib_real": round(real["peak"] / MIB, 1),
        "ratio": round(ours.peak / real["peak"], 4),
    }


def paper() -> list[dict[str, Any]]:
    """Core-days of the paper's pre-trainings at 40 % of a TPUv3 core's peak, and the part that would give its own."""
    rows = []
    for what, (name, images, classes, days) in PAPER.items():
        planned = vitkit.plan(name, images=images, classes=classes, devices=512, accelerator="tpu-v3")
        ours = planned.device_hours / 24
        rows.append(
            {
                "training": what,
                "exaflops": round(planned.flops / 1e18),
                "core_days": round(ours),
                "core_days_paper": days,
                "ratio": round(ours / days, 2),
                "utilisation_of_paper": round(planned.utilisation * ours / days, 3),
            }
        )
    return rows


def preparing(folder: Path, images: int = 500) -> float:
    """Photographs that one core reads and augments in a second, to 224 pixels, as a training does."""
    table = read_source(folder)
    prepared = TrainingImages(table, Preprocess(size=(224, 224)), augment_of(Recipe()), 0)
    picked = range(0, len(table), math.ceil(len(table) / images))
    began = time.process_time()
    for index in picked:
        prepared[(0, index)]
    return len(picked) / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="Ti/16,S/16,B/16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    own = parser.parse_args()
    names = ["vit_micro_patch4_16"] if own.smoke else [NAMES[name] for name in own.models.split(",")]
    rows = []
    kernels = (True,) if own.device == "cuda" else (False, True)
    for name, fused, precision, way in product(names, kernels, ("float32", "bfloat16"), ("none", "all")):
        rows.append(compare(name, own.batch, precision, way, fused, own.device))
        print(show(rows[-1]), flush=True)
    write_table(result_path("planning", "float32-bfloat16", torch.device(own.device), own.out), rows)
    if own.smoke or own.device == "cuda":
        return
    rows = paper()
    print(*map(show, rows), sep="\n")
    write_table(result_path("planning-paper", "bfloat16", folder=own.out), rows)
    if data := os.environ.get("VITKIT_TEST_DATA"):
        print(f"one core prepares {preparing(Path(data) / 'data' / 'flowers'):.0f} images a second", file=sys.stderr)


if __name__ == "__main__":
    main()
