"""Images a second and core, from a JPEG to the tensor: `python benchmarks/pixels.py FLOWERS [ROUNDS]`.

Photographs are enlarged to 500 x 375, the usual size in ImageNet, and are read by one thread, in turn (A B C A B C
...): as `vitkit predict` reads them, and as `vitkit train` does with its usual crops and mirror images, and by default
from scratch. Beside them stand torchvision's loader and transforms for the same purposes, and Pillow's decoding alone,
which is the ceiling. Processor time counts, so that other programs disturb little. The last two rows are images a
second, by the clock, of one process that prepares batches of 64 from pictures in memory: as float32, and as the pixels
that a GPU normalises. Results go to benchmarks/results.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from PIL import Image
from tables import save_table
from torchvision.datasets.folder import default_loader
from torchvision.transforms import v2

from vitkit.data import IMAGENET_MEAN, IMAGENET_STD, ImageData, Preprocess, read_source, split
from vitkit.data.decode import decode
from vitkit.training import PRESETS, Recipe, augment_of

SIZE, COUNT = (500, 375), 64
Read = Callable[[int], object]


def photographs(flowers: Path, folder: Path) -> list[Path]:
    """Enlarge photographs of all classes to one size."""
    chosen = [path for place in sorted(flowers.iterdir()) for path in sorted(place.glob("*.jpg"))[: -(-COUNT // 5)]]
    files = []
    for path in chosen[:COUNT]:
        files.append(folder / path.parent.name / path.name)
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).convert("RGB").resize(SIZE, Image.Resampling.BICUBIC).save(files[-1], quality=90)
    return files


def readers(folder: Path, files: Sequence[Path]) -> dict[str, Read]:
    """Return what reads the image of a number, by name."""
    preprocess = Preprocess(size=(224, 224), mean=IMAGENET_MEAN, std=IMAGENET_STD)
    table = split(read_source(folder), (0.8, 0.1, 0.1), 0)

    def training(preset: str, **fields: float) -> Read:
        recipe = Recipe(**PRESETS[preset] | fields)
        data = ImageData(table, preprocess, augment_of(recipe), batch_size=1, workers=0, seed=0)
        return lambda i: data.train[0, i % len(data.train)]

    normalise = v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)
    to_tensor = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), normalise])
    bicubic = v2.InterpolationMode.BICUBIC
    evaluation = v2.Compose([v2.Resize(256, interpolation=bicubic), v2.CenterCrop(224), to_tensor])
    flip, colours = v2.RandomHorizontalFlip(), v2.ColorJitter(0.2, 0.2, 0.2)
    full, scratch = (
        v2.RandomResizedCrop(224, scale=Recipe(**PRESETS[name]).crop_scale, interpolation=bicubic)
        for name in ("full", "scratch")
    )
    crops, jitter = v2.Compose([full, flip, to_tensor]), v2.Compose([scratch, flip, colours, to_tensor])
    return {
        "Pillow's decoding alone": lambda i: Image.open(files[i]).convert("RGB"),
        "vitkit predict": lambda i: preprocess(decode(files[i], preprocess.short_side)),
        "torchvision resize and crop": lambda i: evaluation(default_loader(files[i])),
        "vitkit crops and mirror images": training("full", color_jitter=0.0),
        "torchvision crops and mirror images": lambda i: crops(default_loader(files[i])),
        "vitkit from scratch": training("scratch"),
        "torchvision crops, mirror images and colours": lambda i: jitter(default_loader(files[i])),
    }


def paces_of_a_process(flowers: Path, rounds: int) -> dict[str, float]:
    """Return the images a second that one process hands over, by what it hands over."""
    preprocess = Preprocess(size=(224, 224), mean=IMAGENET_MEAN, std=IMAGENET_STD)
    table = split(read_source(flowers), (0.4, 0.1, 0.5), 0)
    augment = augment_of(Recipe(**PRESETS["full"] | {"color_jitter": 0.0}))
    paces: dict[str, list[float]] = {}
    made = {}
    for name, gpu in (("float32", None), ("pixels for a GPU", torch.device("cpu"))):
        data = ImageData(table, preprocess, augment, batch_size=64, workers=1, seed=0, cache="ram", normalise_on=gpu)
        made[name] = data._train_loader[1]  # before anything is normalised
        sum(len(labels) for _, labels in made[name])  # pictures are decoded once
    for _ in range(rounds):
        for name, loader in made.items():
            began = time.perf_counter()
            count = sum(len(labels) for _, labels in loader)
            paces.setdefault(name, []).append(count / (time.perf_counter() - began))
    return {f"one process from memory, {name}": statistics.median(values) for name, values in paces.items()}


def main(flowers: Path, rounds: int) -> None:
    """Measure, print and write the table."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        files = photographs(flowers, Path(folder))
        ways = readers(Path(folder), files)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, read in ways.items():
                began = time.process_time()
                for i in range(len(files)):
                    read(i)
                seconds[name].append((time.process_time() - began) / len(files))
    rows = []
    for name, values in seconds.items():
        rows.append({"way": name, "images_per_s_and_core": round(1 / statistics.median(values), 1), "rounds": rounds})
        print(rows[-1], flush=True)
    for name, pace in paces_of_a_process(flowers, rounds).items():
        rows.append({"way": name, "images_per_s_and_core": round(pace, 1), "rounds": rounds})
        print(rows[-1], flush=True)
    save_table("pixels", "float32", rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 9)
