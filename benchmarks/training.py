"""A training step beside timm's: `python benchmarks/training.py [--models Ti/16] [--batch 32] [--rounds 15]`.

Images per second, in turn in one process (A B C ... A B C ...): ours and timm's, in float32 and under bfloat16
autocast, on a GPU compiled too; each with its AdamW (ours: as `vitkit train` builds it). In bfloat16 also with
activations computed again (`--checkpointing`, and timm's own) and without half of the patches (`--patch-dropout`).
Then the memory of each, in a process of its own: the peak above what was held with the images and before the model. On
a GPU by its allocator, and by default B/16 and L/16 at batch 256.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import timm.optim
import torch
import torch.nn.functional as F
from peers import MODELS, SMOKE
from rivals import Setting, timm_module
from tables import RESULTS, result_path, show, write_table
from torch import Tensor, nn

from vitkit.model import config_for
from vitkit.profiling import interleave, random_model, stopwatch_for
from vitkit.training import Recipe, build_optimizer, checkpoint_every, drop_patches

Work = Callable[[], None]
BASE = "timm float32"


@dataclass(frozen=True)
class Way:
    """Whose step it is, and how it is made."""

    library: str
    precision: str
    compiled: bool = False
    checkpointing: str = "none"  # a value of `--checkpointing`
    patch_dropout: float = 0.0

    @property
    def name(self) -> str:
        """As the table has it."""
        again = "" if self.checkpointing == "none" else f", checkpointing {self.checkpointing}"
        dropped = f", patch dropout {self.patch_dropout}" if self.patch_dropout else ""
        return f"{self.library}{' compiled' if self.compiled else ''} {self.precision}{again}{dropped}"


def ways(device: torch.device) -> list[Way]:
    """All that are compared."""
    plain = [Way(library, precision) for library in ("timm", "vitkit") for precision in ("float32", "bfloat16")]
    compiled = [replace(own, compiled=True) for own in plain if device.type == "cuda"]
    theirs, ours = Way("timm", "bfloat16"), Way("vitkit", "bfloat16")
    again = [replace(ours, checkpointing=policy) for policy in ("4", "2", "all")]
    return [*plain, *compiled, replace(theirs, checkpointing="all"), *again, replace(ours, patch_dropout=0.5)]


def images_of(model: str, batch: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(B, 3, height, width) and (B,)."""
    config = config_for(model)
    return torch.randn(batch, 3, *config.image_size, device=device), torch.randint(
        0, config.num_classes, (batch,), device=device
    )


def step_of(way: Way, model: str, x: Tensor, y: Tensor) -> Work:
    """One training step: forward, backward, AdamW."""
    own: nn.Module = random_model(config_for(model))
    if way.library == "timm":
        own = timm_module(Setting(own, x, Path()))
        own.set_grad_checkpointing(way.checkpointing == "all")
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            timm.optim.param_groups_weight_decay(own.to(x.device), 0.05), 1e-4
        )
    else:
        own.fused_attention = x.device.type == "cuda"  # as the training task chooses
        own.checkpointing = checkpoint_every(way.checkpointing)
        if way.patch_dropout:
            drop_patches(own, way.patch_dropout)
        optimizer = build_optimizer(own.to(x.device), Recipe(lr=1e-4))
    own.train()
    run = torch.compile(own, dynamic=False) if way.compiled else own

    def step() -> None:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=way.precision == "bfloat16"):
            loss = F.cross_entropy(run(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def measure_speed(label: str, name: str, batch: int, rounds: int, device: torch.device) -> list[dict[str, Any]]:
    """A row for each way."""
    x, y = images_of(name, batch, device)
    all_ways = ways(device)
    works: dict[str, Callable[[], object]] = {way.name: step_of(way, name, x, y) for way in all_ways}
    times = interleave(works, rounds, stopwatch=stopwatch_for(device))
    rows = []
    for way in all_ways:
        own = times[way.name]
        rate = own.rate(batch)
        rows.append(
            {
                "model": label,
                "batch": batch,
                "name": way.name,
                "images_per_s": round(rate.median, 2),
                "images_per_s_q1": round(rate.low, 2),
                "images_per_s_q3": round(rate.high, 2),
                "times_timm_float32": round(own.speedup_over(times[BASE]).median, 3),
                "times_timm_same_precision": round(own.speedup_over(times[f"timm {way.precision}"]).median, 3),
                "rounds": rounds,
            }
        )
    return rows


def peak(device: torch.device) -> int:
    """The most memory that this process has held so far, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def print_peak(way: Way, name: str, batch: int, device: torch.device) -> None:
    """What a process of its own is started for: bytes that three steps needed."""
    x, y = images_of(name, batch, device)
    before = peak(device)
    step = step_of(way, name, x, y)
    for _ in range(3):
        step()
    print(peak(device) - before)


def measure_memory(name: str, batch: int, device: torch.device, way: Way) -> float:
    """MiB."""
    asked = json.dumps([astuple(way), name, batch])
    command = [sys.executable, __file__, "--peak", asked, "--device", str(device)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return round(int(done.stdout.split()[-1]) / 2**20, 1)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", help=f"of {', '.join(MODELS)}; default Ti/16, on a GPU B/16,L/16")
    parser.add_argument("--batch", type=int, help="default 32, on a GPU 256")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="a micro model and two rounds, memory of ours alone")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    on_gpu = options.device.startswith("cuda")
    options.models = options.models or ("B/16,L/16" if on_gpu else "Ti/16")
    options.batch = options.batch or (4 if options.smoke else 256 if on_gpu else 32)
    options.rounds = 2 if options.smoke else options.rounds
    return options


def main() -> None:
    """Measure, print and write the table."""
    options, rows = parse(), []
    device = torch.device(options.device)
    if options.peak:
        way, name, batch = json.loads(options.peak)
        print_peak(Way(*way), name, batch, device)
        return
    models = SMOKE if options.smoke else {label: MODELS[label] for label in options.models.split(",")}
    for label, name in models.items():
        found = measure_speed(label, name, options.batch, options.rounds, device)
        memory = {
            way.name: measure_memory(name, options.batch, device, way)
            for way in ways(device)
            if not options.smoke or way.name == "vitkit bfloat16"
        }
        for own in found:
            own["memory_mib"] = memory.get(own["name"])
            base = memory.get(BASE)
            own["memory_of_timm_float32"] = round(own["memory_mib"] / base, 3) if base and own["memory_mib"] else None
            print(show(own), flush=True)
        rows += found
        path = result_path("training", "float32-bfloat16", device, options.out)
        write_table(path, rows)
        torch.compiler.reset()
    print(path)


if __name__ == "__main__":
    main()
