"""A folder of photographs to classes, end to end: `python benchmarks/folder.py [--rounds 3] [--files 20000]`.

DeiT-Ti over the flowers of VITKIT_TEST_DATA, and over 12-megapixel JPEGs made of them by upsampling. Whole passes, in
turn in one process (A B C ... A B C ...): `Classifier.stream` by the backend that `use()` chooses and by eager; a loop
over timm's `create_transform` and a DataLoader with a worker a core, in float32 and bfloat16; reading alone and the
model alone, of which the bound is made: 1 / (1 / model + 1 / reading), what one would reach who wastes nothing on
bringing them together. Then the memory of a process that streams more and more files (hard links of the photographs).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import timm.data
import torch
from PIL import Image
from rivals import DTYPES, Setting, timm_module
from tables import RESULTS, result_path, show, write_table
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitkit import Classifier, Preprocess
from vitkit.data import IMAGENET_MEAN, IMAGENET_STD, find_images
from vitkit.model import config_for
from vitkit.profiling import Timing, random_model, wall_seconds
from vitkit.weights import load

DATA = os.environ.get("VITKIT_TEST_DATA")
CORES = os.cpu_count() or 1
LARGE = (4000, 3000)
BATCH = 32
DISTINCT = 500  # photographs that the many files are links of
Pass = Callable[[Sequence[str]], list[int]]  # over files; the class of each
REFERENCE = "vitkit eager float32"
READING = "reading alone"


# --- Ways -------------------------------------------------------------------------------------------------------


def stream(classifier: Classifier) -> Pass:
    """Ours."""
    return lambda paths: [int(row.argmax()) for _, row in classifier.stream(paths)]  # type: ignore[union-attr]


def reading_alone(classifier: Classifier) -> Pass:
    """Files to tensors, on all cores."""

    def run(paths: Sequence[str]) -> list[int]:
        with ThreadPoolExecutor(CORES) as pool:
            for start in range(0, len(paths), BATCH):
                list(pool.map(classifier.read, paths[start : start + BATCH]))
        return []

    return run


def model_alone(classifier: Classifier) -> Pass:
    """One batch, again and again."""
    images = torch.randn(BATCH, 3, *classifier.preprocess.size, generator=torch.Generator().manual_seed(1))

    def run(paths: Sequence[str]) -> list[int]:
        for start in range(0, len(paths), BATCH):
            classifier.logits(images[: len(paths) - start])
        return []

    return run


class Photographs(Dataset[Tensor]):
    """As the usual script reads them."""

    def __init__(self, paths: Sequence[str], transform: Callable[[Image.Image], Tensor]) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.paths[index]) as picture:
            return self.transform(picture.convert("RGB"))


def timm_loop(classifier: Classifier, precision: str, workers: int) -> Pass:
    """timm's transform and model, torch's DataLoader."""
    size, pixels = classifier.preprocess.size, classifier.preprocess
    transform = timm.data.create_transform(
        (3, *size), interpolation=pixels.interpolation, mean=pixels.mean, std=pixels.std, crop_pct=pixels.crop_pct
    )
    dtype = DTYPES[precision]
    model = timm_module(Setting(classifier.model, torch.empty(0), Path())).eval().to(dtype)

    @torch.inference_mode()
    def run(paths: Sequence[str]) -> list[int]:
        found: list[int] = []
        for images in DataLoader(Photographs(paths, transform), BATCH, num_workers=workers):
            found += model(images.to(dtype)).argmax(dim=1).tolist()
        return found

    return run


def ways(classifier: Classifier, workers: int, images: int) -> tuple[dict[str, Pass], dict[str, str]]:
    """All that take their turn; and for each stream the pass of its model alone."""
    streams = {
        REFERENCE: classifier.use("eager", "float32"),
        "vitkit eager": classifier.use("eager"),
        "vitkit": classifier.use(images=images),
    }
    found: dict[str, Pass] = {READING: reading_alone(classifier)}
    alone = {}
    for name, own in streams.items():
        alone[name] = f"model alone, {own.backend} {own.precision}"
        found[alone[name]] = model_alone(own)
        found[name] = stream(own)
    for precision in DTYPES:
        found[f"timm loop {precision}"] = timm_loop(classifier, precision, workers)
    return found, alone


# --- Measuring ----------------------------------------------------------------------------------------------


def measure(
    what: str, paths: Sequence[str], classifier: Classifier, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """A row for each way."""
    passes, alone = ways(classifier, options.workers, len(paths))
    answers: dict[str, list[int]] = {}
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for run in passes.values():
        run(paths[: 2 * BATCH])
    for _ in range(options.rounds):
        for name, run in passes.items():

            def work(name: str = name, run: Pass = run) -> None:
                answers[name] = run(paths)

            seconds[name].append(wall_seconds(work))
            print(f"{what}: {name}: {seconds[name][-1]:.2f} s", file=sys.stderr, flush=True)
    times = {name: Timing(tuple(own)) for name, own in seconds.items()}
    return [
        _row(what, name, len(paths), times, alone.get(name), _agreement(answers[name], answers[REFERENCE]))
        for name in passes
    ]


def _agreement(found: list[int], reference: list[int]) -> float | None:
    if not found:
        return None
    return round(sum(a == b for a, b in zip(found, reference, strict=True)) / len(found), 4)


def _row(
    what: str, name: str, images: int, times: dict[str, Timing], alone: str | None, agreement: float | None
) -> dict[str, Any]:
    own, rate = times[name], times[name].rate(images)
    of_bound = None
    if alone is not None:
        parts = zip(times[alone].seconds, times[READING].seconds, strict=True)
        bound = Timing(tuple(model + reading for model, reading in parts))
        of_bound = round(own.speedup_over(bound).median, 3)
    return {
        "what": what,
        "name": name if alone is None else f"{name} ({alone.partition(', ')[2]})",
        "images": images,
        "images_per_s": round(rate.median, 1),
        "images_per_s_q1": round(rate.low, 1),
        "images_per_s_q3": round(rate.high, 1),
        "of_bound": of_bound,
        "times_timm_float32": round(own.speedup_over(times["timm loop float32"]).median, 3),
        "times_timm_bfloat16": round(own.speedup_over(times["timm loop bfloat16"]).median, 3),
        "same_top1": agreement,
        "rounds": len(own.seconds),
    }


def measure_memory(folder: Path, model: Path, paths: Sequence[str], count: int) -> list[dict[str, Any]]:
    """Resident memory of a process that streams, at every twentieth of the files."""
    own, links = folder / "own", folder / "links"
    own.mkdir()
    links.mkdir()
    copies = [shutil.copy(path, own / f"{i}{Path(path).suffix}") for i, path in enumerate(paths[:DISTINCT])]
    for i in range(count):
        os.link(copies[i % len(copies)], links / f"{i}.jpg")
    command = [sys.executable, __file__, "--memory", str(model), str(links)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    samples = json.loads(done.stdout.splitlines()[-1])
    first = samples[0][1]
    return [
        {"images": images, "resident_mib": round(held / 2**20, 1), "of_first": round(held / first, 4)}
        for images, held in samples
    ]


def print_memory(model: str, folder: str) -> None:
    """What a process of its own is started for: bytes held after each twentieth of the files."""
    classifier, paths = load(model).use(), list(find_images([folder]))
    samples = [
        (done, psutil.Process().memory_info().rss)
        for done, _ in enumerate(classifier.stream(paths), start=1)
        if done % max(len(paths) // 20, 1) == 0
    ]
    print(json.dumps(samples))


# --- What is measured ---------------------------------------------------------------------------------------


def enlarge(paths: Sequence[str], folder: Path, count: int, size: tuple[int, int]) -> list[str]:
    """JPEGs of the photographs at another size, upright or not."""
    found = []
    for i in range(count):
        with Image.open(paths[i * len(paths) // count]) as picture:
            turned = size if picture.width >= picture.height else size[::-1]
            file = folder / f"large{i}.jpg"
            picture.convert("RGB").resize(turned, Image.Resampling.BICUBIC).save(file, quality=90)
        found.append(str(file))
    return found


def smoke_material(folder: Path) -> tuple[Classifier, list[str]]:
    """A micro model and a few generated photographs."""
    import numpy as np

    paths = []
    for i in range(40):
        pixels = np.random.default_rng(i).integers(0, 256, (24, 32, 3), dtype=np.uint8)
        paths.append(str(folder / f"photo{i}.jpg"))
        Image.fromarray(pixels).resize((160, 120)).save(paths[-1])
    model = random_model(config_for("vit_micro_patch4_16", num_classes=10))
    return Classifier(model, tuple("abcdefghij"), Preprocess(size=(16, 16))), paths


def material() -> tuple[Classifier, list[str]]:
    """DeiT-Ti and the flowers."""
    if DATA is None:
        sys.exit("set VITKIT_TEST_DATA to the folder that has data/flowers and weights/deit_tiny_patch16_224.pth")
    model = load(Path(DATA, "weights", "deit_tiny_patch16_224.pth")).model
    preprocess = Preprocess(size=(224, 224), crop_pct=0.875, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    classes = tuple(map(str, range(model.config.num_classes)))
    return Classifier(model, classes, preprocess), list(find_images([str(Path(DATA, "data", "flowers"))]))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=CORES, help="of the DataLoader")
    parser.add_argument("--large", type=int, default=100, help="12-megapixel photographs; 0: none")
    parser.add_argument("--files", type=int, default=20_000, help="whose streaming is watched; 0: none")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="a micro model, few and small photographs, two rounds")
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.smoke:
        options.rounds, options.workers, options.large, options.files = 2, 0, 8, 100
    return options


def main() -> None:
    """Measure, print and write the tables."""
    options = parse()
    if options.memory:
        print_memory(*options.memory)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        classifier, paths = smoke_material(folder) if options.smoke else material()
        rows = measure("photographs", paths, classifier, options)
        if options.large:
            size = (400, 300) if options.smoke else LARGE
            what = f"{size[0]}x{size[1]} JPEGs"
            rows += measure(what, enlarge(paths, folder, options.large, size), classifier, options)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        path = result_path("folder", "float32-bfloat16", device, options.out)
        write_table(path, rows)
        for row in rows:
            print(show(row))
        print(path)
        if options.files:
            classifier.save(folder / "model")
            rows = measure_memory(folder, folder / "model", paths, options.files)
            path = result_path("folder-memory", classifier.use().precision, device, options.out)
            write_table(path, rows)
            for row in rows:
                print(show(row))
            print(path)


if __name__ == "__main__":
    main()
