"""What an explanation costs beside a prediction, ViT-B/16, one image: `python benchmarks/explaining.py [ROUNDS]`.

Memory: the peak of a process of its own (VmHWM) that builds the model and predicts, or explains, one 384-pixel image in
float32; as it is, and relative to the weights. Speed: a plain forward pass and each method, in turn in one process
(A B C ... A B C ...), at 224 and 384 pixels in float32 and bfloat16; medians. Results go to benchmarks/results.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tables import save_table
from torch import Tensor

from vitkit import VisionTransformer, create_model
from vitkit.explanation import METHODS

PREDICT = "predict"
ATTENTION = [name for name in METHODS if name != "occlusion"]  # which costs a pass for each place of its square
SIZES, DTYPES = (224, 384), (torch.float32, torch.bfloat16)


def build(size: int) -> tuple[VisionTransformer, Tensor]:
    """A random B/16 and an image for it."""
    torch.manual_seed(0)
    model = create_model(f"vit_base_patch16_{size}").eval()
    torch.nn.init.normal_(model.head.weight)  # a new head is zero, and has no gradient
    return model, torch.randn(1, 3, size, size)


@torch.inference_mode()
def predict(model: VisionTransformer, images: Tensor) -> Tensor:
    """As `vitkit predict` does."""
    return model(images).softmax(dim=-1)


def peak() -> int:
    """The most memory that this process ever held, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def measure_memory() -> list[dict[str, object]]:
    """One process for each method; the ratio is to the process that predicts."""
    rows: list[dict[str, object]] = []
    first = 0
    for name in (PREDICT, *ATTENTION):
        command = [sys.executable, __file__, "--peak", name]
        held, weights = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
        first = first or held
        row = {"what": "peak, 384 px float32", "method": name, "value": f"{held / 2**20:.0f} MiB"}
        rows.append(row | {"ratio": f"{held / first:.3f}", "ratio_to_weights": f"{held / weights:.2f}"})
    return rows


def measure_speed(rounds: int) -> list[dict[str, object]]:
    """The ratio is to a plain forward pass of the same precision."""
    rows: list[dict[str, object]] = []
    for size in SIZES:
        for dtype in DTYPES:
            model, images = build(size)
            model, images = model.to(dtype), images.to(dtype)
            work: dict[str, Callable[..., Tensor]] = {PREDICT: predict} | {name: METHODS[name] for name in ATTENTION}
            times: dict[str, list[float]] = {name: [] for name in work}
            for _ in range(rounds + 1):
                for name, function in work.items():
                    started = time.perf_counter()
                    function(model, images)
                    times[name].append(time.perf_counter() - started)
            medians = {name: statistics.median(values[1:]) for name, values in times.items()}  # the first warms up
            what = f"time, {size} px {str(dtype).removeprefix('torch.')}"
            rows += [
                {"what": what, "method": name, "value": f"{s * 1e3:.0f} ms", "ratio": f"{s / medians[PREDICT]:.3f}"}
                for name, s in medians.items()
            ]
    return rows


def main(rounds: int) -> None:
    """Measure, print and write the table."""
    rows = measure_memory() + measure_speed(rounds)
    for row in rows:
        print(f"{row['what']:24} {row['method']:20} {row['value']:>10}  {row['ratio']} x")
    save_table("explaining", "float32-bfloat16", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        vit, image = build(384)
        ({PREDICT: predict} | METHODS)[sys.argv[2]](vit, image)
        print(peak(), sum(parameter.nbytes for parameter in vit.parameters()))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
