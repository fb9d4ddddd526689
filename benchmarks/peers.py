"""Speed beside other libraries: `python benchmarks/peers.py [--models Ti/16,S/16] [--batches 1,8] [--rounds 15]`.

For each model and batch everything takes its turn in one process, round after round (A B C ... A B C ...): ours by each
backend; timm, torchvision, transformers and vit-pytorch; ONNX Runtime and OpenVINO on timm's exports. Where a layout
allows they share one model's random weights (Ti/16: the published DeiT-Ti's, if VITKIT_TEST_DATA has them), and each
one's logits are compared with ours in float32 on the same images (photographs, if VITKIT_TEST_DATA has them). How to
read the table: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rivals import Setting, open_rivals
from tables import RESULTS, read_table, result_path, show, write_table
from torch import Tensor

from vitkit import VisionTransformer
from vitkit.data import IMAGENET_MEAN, IMAGENET_STD, Preprocess, find_images
from vitkit.data.decode import decode
from vitkit.inference import model_on_gpu
from vitkit.model import config_for
from vitkit.profiling import Contender, Speed, compare, open_backends, random_model, row
from vitkit.reporting import save_figure
from vitkit.verbs import chart
from vitkit.weights import load

MODELS = {
    "Ti/16": "vit_tiny_patch16_224",
    "S/16": "vit_small_patch16_224",
    "B/16": "vit_base_patch16_224",
    "L/16": "vit_large_patch16_224",
}
SMOKE = {"micro/4": "vit_micro_patch4_16"}
SMOKE_ONLY = "vitkit eager,timm float32,timm bfloat16,torchvision,vit-pytorch"
OURS = (
    ("eager", "float32"),
    ("eager", "bfloat16"),
    ("compile", "float32"),
    ("compile", "bfloat16"),
    ("openvino", "bfloat16"),
    ("onnx", "float32"),
)
SHOWN = (
    *("model", "batch", "name", "precision", "images_per_s", "times_best_peer", "times_timm_bfloat16"),
    *("times_timm_float32", "largest_difference", "same_top1"),
)
DATA = os.environ.get("VITKIT_TEST_DATA")
Wanted = Callable[[str], bool]


def build(label: str, name: str) -> VisionTransformer:
    """The published DeiT-Ti where it is at hand, else random weights."""
    published = Path(DATA, "weights", "deit_tiny_patch16_224.pth") if DATA else None
    if label == "Ti/16" and published is not None and published.exists():
        return load(published).model
    return random_model(config_for(name))


def read_images(size: tuple[int, int], count: int) -> Tensor:
    """(B, 3, height, width): photographs at even distances in the folder, or noise."""
    folder = Path(DATA, "data", "flowers") if DATA else None
    if folder is None or not folder.is_dir():
        return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(1))
    preprocess = Preprocess(size=size, crop_pct=0.875, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    paths = list(find_images([str(folder)]))
    chosen = [paths[i * len(paths) // count] for i in range(count)]
    return torch.stack([torch.from_numpy(preprocess(decode(path, preprocess.short_side))) for path in chosen])


def ours(model: VisionTransformer, images: Tensor, wanted: Wanted) -> tuple[list[Contender], list[str]]:
    """Our backends, and what is left out; on a GPU the model itself, so that no copy to the CPU is timed."""
    if images.device.type == "cuda":
        return [
            Contender(
                f"vitkit {backend}",
                precision,
                model_on_gpu(model, precision, "cuda", is_compiled=backend == "compile"),
            )
            for backend, precision in OURS
            if backend in ("eager", "compile") and wanted(f"vitkit {backend} {precision}")
        ], []
    chosen = [(backend, precision) for backend, precision in OURS if wanted(f"vitkit {backend} {precision}")]
    contenders, missing = open_backends(model, chosen, images)
    return contenders, [f"vitkit {name} is left out: {reason}" for name, reason in missing.items()]


def measure(label: str, name: str, batch: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All that is wanted, for one model and batch."""
    device, count = torch.device(options.device), -(-options.images // batch) * batch
    model = build(label, name).to(device)
    images = read_images(model.config.image_size, count).to(device)
    patterns = [part.strip() for part in options.only.split(",")]

    def wanted(key: str) -> bool:
        return any(pattern in key for pattern in patterns)

    with tempfile.TemporaryDirectory() as folder:
        contenders, missing = ours(model, images[:batch], wanted)
        for found in open_rivals(Setting(model, images[:batch], Path(folder)), wanted):
            if isinstance(found, str):
                missing.append(found)
            else:
                contenders.append(found)
        for line in missing:
            print(f"note: {label} batch {batch}: {line}", file=sys.stderr, flush=True)
        speeds = compare(model, contenders, images, batch, options.rounds)
    return [{"model": label, **row(speed, references(speeds))} for speed in speeds]


def references(speeds: list[Speed]) -> dict[str, Speed | None]:
    """What each speed is put in relation to; None where it was not measured."""

    def find(name: str, precision: str) -> Speed | None:
        return next((own for own in speeds if (own.name, own.precision) == (name, precision)), None)

    peers = [own for own in speeds if not own.name.startswith("vitkit")]
    best = max(peers, key=lambda own: own.images_per_s.median, default=None)
    return {
        "times_best_peer": best,
        "times_timm_bfloat16": find("timm", "bfloat16"),
        "times_timm_float32": find("timm", "float32"),
    }


def write_results(found: list[dict[str, Any]], device: torch.device, folder: Path) -> Path:
    """Into today's table, in the place of what it held of the same model and batch; and the picture beside it."""
    path = result_path("peers", "float32-bfloat16", device, folder)
    panels: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for own in read_table(path):
        panels.setdefault((own["model"], own["batch"]), []).append(own)
    panels[found[0]["model"], found[0]["batch"]] = found
    write_table(path, [own for rows in panels.values() for own in rows])
    titles = {f"{model}, batch {batch}": rows for (model, batch), rows in panels.items()}
    save_figure(chart(titles), path.with_suffix(".png"))
    return path


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--batches", default=None, help="default 1,8,32; on a GPU 1,32,256")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--images", type=int, default=32, help="whose logits are compared")
    parser.add_argument("--only", default="", help="parts of names, with commas: 'vitkit,timm compiled,openvino'")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="a micro model and two rounds, to see that all works")
    options = parser.parse_args()
    if options.smoke:
        options.rounds, options.images = 2, 4
        options.batches, options.only = options.batches or "1,2", options.only or SMOKE_ONLY
    options.batches = options.batches or ("1,32,256" if options.device == "cuda" else "1,8,32")
    return options


def main() -> None:
    """Measure, print and write; the table grows with each model and batch, so that nothing is lost."""
    options = parse()
    models = SMOKE if options.smoke else {label: MODELS[label] for label in options.models.split(",")}
    for label, name in models.items():
        for batch in map(int, options.batches.split(",")):
            found = measure(label, name, batch, options)
            for own in found:
                print(show(own, SHOWN), flush=True)
            path = write_results(found, torch.device(options.device), options.out)
            torch.compiler.reset()
            gc.collect()
    print(path)


if __name__ == "__main__":
    main()
