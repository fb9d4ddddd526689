"""Time and memory of training steps: `python benchmarks/steps.py [MODEL] [BATCH] [ROUNDS]`.

Every way to train takes a few steps of the whole model in a fresh process, in turn in every round (A B C ... A B C),
medians compared: vitkit with each `--checkpointing` policy and with `--patch-dropout`, and timm with and without its
own checkpointing. bfloat16 by autocast where the hardware has it. Memory is the peak of the process above what it held
with model and optimiser built, before the first step; on a GPU the device's. Results go to benchmarks/results.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import statistics
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path

from vitkit.train.setup import choose_precision

RESULTS = Path(__file__).parent / "results"
_OURS = """
from vitkit import create_model
from vitkit.train.patches import drop_patches
from vitkit.train.recipe import checkpoint_every
model = create_model({name!r}, num_classes=10).train()
model.fused_attention = device == "cuda"
model.checkpointing = checkpoint_every({checkpointing!r})
if {dropped}:
    drop_patches(model, {dropped})
"""
_TIMM = """
import timm
model = timm.create_model({name!r}, num_classes=10).train()
model.set_grad_checkpointing({checkpointing})
"""
_MEASURE = """
import json, resource, time, torch
device = "cuda" if torch.cuda.is_available() else "cpu"
{build}
model = model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device == "cuda" or None)
images = torch.randn({batch}, 3, 224, 224, device=device)
labels = torch.arange({batch}, device=device) % 10
def peak():
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, seconds = peak(), []
for step in range(4):
    started = time.perf_counter()
    with torch.autocast(device, torch.bfloat16, enabled={is_bfloat16}):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds.append(time.perf_counter() - started)
print(json.dumps({{"seconds": sorted(seconds[1:])[1], "above": peak() - before}}))
"""


def programs(name: str, batch: int, precision: str) -> dict[str, str]:
    """What is run for every way to train."""
    ours = {
        "vitkit": {"checkpointing": "none", "dropped": 0.0},
        "vitkit, every 4th block again": {"checkpointing": "4", "dropped": 0.0},
        "vitkit, every 2nd block again": {"checkpointing": "2", "dropped": 0.0},
        "vitkit, all blocks again": {"checkpointing": "all", "dropped": 0.0},
        "vitkit, half of the patches": {"checkpointing": "none", "dropped": 0.5},
    }
    builds = {what: _OURS.format(name=name, **options) for what, options in ours.items()}
    builds["timm"] = _TIMM.format(name=name, checkpointing=False)
    builds["timm, all blocks again"] = _TIMM.format(name=name, checkpointing=True)
    return {
        what: _MEASURE.format(build=build, batch=batch, is_bfloat16=precision == "bfloat16")
        for what, build in builds.items()
    }


def run(program: str) -> dict[str, float]:
    """A few steps in a fresh process."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(name: str, batch: int, rounds: int) -> None:
    """Run, compare, and write the table."""
    precision = choose_precision("auto")
    ways = programs(name, batch, precision)
    found: dict[str, list[dict[str, float]]] = {what: [] for what in ways}
    for _ in range(rounds):
        for what, program in ways.items():
            found[what].append(run(program))
    medians = {
        what: {key: statistics.median(own[key] for own in runs) for key in ("seconds", "above")}
        for what, runs in found.items()
    }
    rows = [
        {
            "way": what,
            "model": name,
            "batch": batch,
            "seconds_per_step": f"{own['seconds']:.3f}",
            "speed_to_timm": f"{medians['timm']['seconds'] / own['seconds']:.3f}",
            "peak_mib": f"{own['above'] / 2**20:.0f}",
            "memory_to_timm": f"{own['above'] / medians['timm']['above']:.3f}",
        }
        for what, own in medians.items()
    ]
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    RESULTS.mkdir(exist_ok=True)
    hardware = f"{platform.machine()}-{os.cpu_count()}core"
    table = RESULTS / f"steps_{hardware}_{precision}_torch{version('torch')}_{date.today():%Y%m%d}.csv"
    with table.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(table)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(
        given[0] if given else "vit_small_patch16_224",
        int(given[1]) if len(given) > 1 else 32,
        int(given[2]) if len(given) > 2 else 5,
    )
