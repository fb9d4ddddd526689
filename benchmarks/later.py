"""Speed of later architectures beside timm's: `python benchmarks/later.py [--batch 8] [--rounds 15] [--smoke]`.

Each of timm's models is built with random weights, which vitkit loads from timm's layout. The eager backend (`vitkit
predict --backend eager --precision float32`) as it is, by the plan packed-fused, and timm's model then take their turn
in one process (A B C A B C ...).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from tables import RESULTS, result_path, show, write_table

from vitkit.inference import open_runner
from vitkit.profiling import Contender, compare, row
from vitkit.weights import load

MODELS = {
    "EVA-02-S": "eva02_small_patch14_224",
    "DINOv3-S": "vit_small_patch16_dinov3",
    "SigLIP-B": "vit_base_patch16_siglip_224",
}
OURS = {"vitkit eager": "auto", "vitkit eager packed-fused": "packed-fused"}  # by their plans
SHOWN = (
    "model",
    "batch",
    "name",
    "images_per_s",
    "images_per_s_q1",
    "images_per_s_q3",
    "times_timm",
    "largest_difference",
)


def measure(label: str, batch: int, rounds: int, sizes: dict[str, int]) -> list[dict[str, Any]]:
    """A row for each of the three."""
    torch.manual_seed(0)
    theirs = timm.create_model(MODELS[label], num_classes=1000, **sizes).eval()
    torch.nn.init.normal_(theirs.head.weight, std=theirs.num_features**-0.5)  # for logits of a trained model's size
    with tempfile.TemporaryDirectory() as folder:
        save_file(theirs.state_dict(), Path(folder) / "bare.safetensors")
        ours = load(Path(folder) / "bare.safetensors").model
    images = torch.randn(batch, 3, *ours.config.image_size)
    contenders = [
        Contender(name, "float32", open_runner(ours, "eager", "float32", plan=plan)) for name, plan in OURS.items()
    ]
    contenders.append(Contender("timm", "float32", theirs))
    speeds = compare(ours, contenders, images, batch, rounds)
    return [{"model": label, **row(speed, {"times_timm": speeds[-1]})} for speed in speeds]


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="tiny models and two rounds, to see that all works")
    options = parser.parse_args()
    batch, rounds, sizes = options.batch, options.rounds, dict[str, int]()
    if options.smoke:
        batch, rounds, sizes = 1, 2, {"depth": 1, "embed_dim": 64, "num_heads": 1}
    rows = []
    for label in MODELS:
        rows += measure(label, batch, rounds, sizes)
        print(*(show(own, SHOWN) for own in rows[-3:]), sep="\n", flush=True)
    path = result_path("later", "float32", folder=options.out)
    write_table(path, rows)
    print(path)


if __name__ == "__main__":
    main()
