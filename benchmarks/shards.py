"""What reading from shards costs: `python benchmarks/shards.py PHOTOGRAPHS`.

CPU seconds of one process, so that other work on the machine disturbs little. Ways take turns in random order, image by
image (`train`: batch by batch), and each row is the median of the rounds with the lowest and the highest. `read` is
bytes alone: from files and from shards, also of pictures of 110 kB. `decode` is vitkit's decoder, of bytes that are in
memory already, of files, and of shards; its `share` is the rate compared with that of memory. `train` is a whole sample
of training with random crop (bicubic) and flip at 224 pixels, compared with torchvision's ImageFolder with its
DataLoader and the same augmentation. Results go to benchmarks/results.
"""

from __future__ import annotations

import io
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tables import save_table
from torch.utils.data import DataLoader, RandomSampler
from torchvision import datasets
from torchvision.transforms import v2

import vitkit
from vitkit.data import IMAGENET_MEAN, IMAGENET_STD, Augment, ImageData, ImageTable, Preprocess, read_source
from vitkit.data.decode import decode

ROUNDS, READ, DECODED, SHORT_SIDE, BATCH = 7, 1000, 300, 256, 50
SCALE = (0.08, 1.0)  # of the area that a random crop keeps
CROP_AND_FLIP = Augment(crop_scale=SCALE, hflip=True)


@dataclass(frozen=True, eq=False)
class Memory:
    """A storage of bytes that are in memory."""

    table: ImageTable

    @cached_property
    def content(self) -> dict[str, bytes]:
        return {key: self.table.open(i).read() for i, key in enumerate(self.table.paths)}

    @property
    def name(self) -> str:
        return "memory"

    def keys(self) -> Any:
        return self.content.keys()

    def open(self, key: str) -> io.BytesIO:
        return io.BytesIO(self.content[key])

    def stamp(self, key: str) -> bytes:
        return self.content[key]


def read(table: ImageTable, index: int) -> None:
    """Read the bytes of an image."""
    with table.open(index) as file:
        file.read()


def decoded(table: ImageTable, index: int) -> None:
    """Decode an image."""
    decode(table.file(index), SHORT_SIDE)


def one_by_one(work: Callable[[ImageTable, int], None], tables: dict[str, ImageTable], count: int) -> dict[str, float]:
    """CPU seconds of an image, for random images, each of which all ways have in random order."""
    seconds = dict.fromkeys(tables, 0.0)
    for index in random.choices(range(len(next(iter(tables.values())))), k=count):
        for way in random.sample(list(tables), len(tables)):
            started = time.process_time()
            work(tables[way], index)
            seconds[way] += (time.process_time() - started) / count
    return seconds


def in_turn(ways: dict[str, Callable[[], int]]) -> dict[str, float]:
    """CPU seconds of an image, for batches, which the ways have in random order."""
    seconds = {}
    for way in random.sample(list(ways), len(ways)):
        started = time.process_time()
        images = ways[way]()
        seconds[way] = (time.process_time() - started) / images
    return seconds


def trains(table: ImageTable, count: int) -> Callable[[], int]:
    """Prepare batches of training as `vitkit train` does."""
    table = replace(table, splits=("train",) * len(table))
    data = ImageData(table, Preprocess(size=(224, 224)), CROP_AND_FLIP, batch_size=BATCH, workers=0, seed=0)
    epochs = iter(range(10**6))

    def run() -> int:
        batches = data.train_batches(next(epochs))
        return sum(len(next(batches)[1]) for _ in range(count // BATCH))

    return run


def torchvision_trains(folder: Path, count: int) -> Callable[[], int]:
    """Prepare batches with torchvision's ImageFolder and a DataLoader."""
    steps = [
        v2.PILToTensor(),
        v2.RandomResizedCrop(224, scale=SCALE, interpolation=v2.InterpolationMode.BICUBIC, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(IMAGENET_MEAN, IMAGENET_STD),
    ]
    images = datasets.ImageFolder(folder, v2.Compose(steps))

    def run() -> int:
        sampler = RandomSampler(images, num_samples=count)
        return sum(len(labels) for _, labels in DataLoader(images, BATCH, sampler=sampler))

    return run


def large_pictures(folder: Path, count: int = 200) -> ImageTable:
    """Write pictures of 110 kB."""
    for i in range(count):
        path = folder / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (191, 191, 3), dtype=np.uint8)).save(path)
    return read_source(folder)


def main(photographs: str) -> None:
    """Write shards, measure all ways in turn, and save the table."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        vitkit.shard(photographs, f"{place}/shards", size="16MB")
        large = large_pictures(Path(place) / "large")
        vitkit.shard(f"{place}/large", f"{place}/large-shards", size="16MB")
        folder, shards = read_source(photographs), read_source(f"{place}/shards")
        memory = replace(folder, storage=Memory(folder))
        memory.open(0)
        large_shards = read_source(f"{place}/large-shards")
        batches = {
            "vitkit, files": trains(folder, DECODED),
            "vitkit, shards": trains(shards, DECODED),
            "torchvision, ImageFolder": torchvision_trains(Path(photographs), DECODED),
        }
        seconds: dict[tuple[str, str], list[float]] = {}
        for number in range(ROUNDS + 1):
            measured = {
                "read": one_by_one(read, {"files": folder, "shards": shards}, READ),
                "read, 110 kB": one_by_one(read, {"files": large, "shards": large_shards}, READ),
                "decode": one_by_one(decoded, {"memory": memory, "files": folder, "shards": shards}, DECODED),
                "train": in_turn(batches),
            }
            if number:  # the first round warms the caches
                for what, of_ways in measured.items():
                    for way, each in of_ways.items():
                        seconds.setdefault((what, way), []).append(each)
    rows = []
    for (what, way), each in seconds.items():
        base = {"decode": (what, "memory"), "train": (what, "torchvision, ImageFolder")}.get(what)
        ratios = [] if base is None else [other / own for own, other in zip(each, seconds[base], strict=True)]
        rows.append(
            {
                "what": what,
                "way": way,
                "cpu_microseconds": f"{statistics.median(each) * 1e6:.1f}",
                "lowest": f"{min(each) * 1e6:.1f}",
                "highest": f"{max(each) * 1e6:.1f}",
                "images_per_cpu_second": f"{1 / statistics.median(each):.0f}",
                "share": f"{statistics.median(ratios):.3f}" if ratios else "",
                "rounds": ROUNDS,
            }
        )
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    save_table("shards", "uint8", rows)


if __name__ == "__main__":
    main(sys.argv[1])
