"""Whether training waits for its pictures: `python benchmarks/feeding.py [PHOTOGRAPHS] [MODEL]`.

Large photographs (12 megapixels, JPEG, made by enlarging generated ones) are read for some epochs as `vitkit train`
reads them, with every `--cache`; the first epoch decodes, the later ones find what it kept. Beside it stands how many
images a second the model trains on, in bfloat16 where the hardware has it. `waits` is the part of an epoch in which the
model waits, where one process does both. Results go to benchmarks/results.

A second table has the part of short epochs that a device waits, if it computes each batch in a fixed time: with the
next epoch prepared during the evaluation, as in training, and without. The device is simulated by pauses.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tables import save_table

from vitkit import create_model
from vitkit.data import ImageData, ImageTable, Preprocess, read_source, split
from vitkit.training import PRESETS, Recipe, augment_of, build_optimizer, choose_precision, label_loss

EPOCHS, BATCH, STEPS = 4, 32, 6
SMALL, STEP_SECONDS = 640, 0.1  # images and the pause of a step in the second table


def write_photographs(folder: Path, count: int) -> ImageTable:
    """So many 4000 x 3000 JPEGs of two classes, all for training but two."""
    for i in range(count):
        pixels = np.random.default_rng(i).integers(0, 256, (30, 40, 3), dtype=np.uint8)
        path = folder / "ab"[i % 2] / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True, parents=True)
        Image.fromarray(pixels).resize((4000, 3000), Image.Resampling.BICUBIC).save(path, quality=90)
    return split(read_source(folder), (1 - 2 / count, 2 / count, 0.0), 0)


def epochs_of(table: ImageTable, recipe: Recipe, cache: str) -> list[float]:
    """Images a second of each epoch's training batches."""
    data = ImageData(
        table,
        Preprocess(size=(224, 224)),
        augment_of(recipe),
        batch_size=BATCH,
        workers=0,
        seed=0,
        cache=cache,
    )
    rates = []
    for epoch in range(EPOCHS):
        started = time.perf_counter()
        images = sum(len(labels) for _, labels in data.train_batches(epoch))
        rates.append(images / (time.perf_counter() - started))
    return rates


def step_rate(name: str, recipe: Recipe) -> float:
    """Images a second of the model's training steps."""
    model = create_model(name, num_classes=2, drop_path=recipe.drop_path).train()
    model.fused_attention = torch.cuda.is_available()
    optimizer, seconds = build_optimizer(model, recipe), []
    images, labels = torch.randn(BATCH, 3, 224, 224), torch.arange(BATCH) % 2
    for _ in range(STEPS):
        started = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=choose_precision("auto") == "bfloat16"):
            loss = label_loss(model.forward_heads(images), labels, 0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    return BATCH / statistics.median(seconds[1:])


def waiting_of(table: ImageTable, recipe: Recipe, *, is_prepared: bool) -> float:
    """The median part of later epochs that a simulated device waits for images."""
    data = ImageData(table, Preprocess(size=(224, 224)), augment_of(recipe), batch_size=BATCH, workers=2, seed=0)
    waiting = []
    for epoch in range(EPOCHS):
        batches, started, waited = data.train_batches(epoch), time.perf_counter(), 0.0
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            waited += time.perf_counter() - asked
            if batch is None:
                break
            time.sleep(STEP_SECONDS)
        waiting.append(waited / (time.perf_counter() - started))
        if is_prepared and epoch + 1 < EPOCHS:
            data.prepare_epoch(epoch + 1)
        for _ in data.val_batches():
            time.sleep(STEP_SECONDS / 3)
    data.close()
    return statistics.median(waiting[1:])


def compare_epochs(folder: Path) -> list[dict[str, str]]:
    """Compare short epochs whose first batches are prepared during the evaluation with others, in turn."""
    for i in range(SMALL):
        pixels = np.random.default_rng(i).integers(0, 256, (30, 40, 3), dtype=np.uint8)
        path = folder / "ab"[i % 2] / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True, parents=True)
        Image.fromarray(pixels).resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=85)
    table, recipe = split(read_source(folder), (0.8, 0.2, 0.0), 0), Recipe(**PRESETS["full"])
    waiting: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(3):
        for is_prepared, values in waiting.items():
            values.append(waiting_of(table, recipe, is_prepared=is_prepared))
    return [
        {
            "next_epoch_prepared": str(is_prepared),
            "images": str(SMALL),
            "batch": str(BATCH),
            "step_seconds": str(STEP_SECONDS),
            "waiting": f"{statistics.median(values):.3f}",
            "waiting_of_rounds": " ".join(f"{value:.3f}" for value in values),
        }
        for is_prepared, values in waiting.items()
    ]


def main(count: int, name: str) -> None:
    """Write photographs, read them, train, and write the table."""
    recipe = Recipe(**PRESETS["full"])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VITKIT_CACHE"] = str(Path(folder) / "cache")
        table = write_photographs(Path(folder) / "photos", count)
        trained = step_rate(name, recipe)
        for cache in ("none", "ram", "disk"):
            rates = epochs_of(table, recipe, cache)
            later = statistics.median(rates[1:])
            rows.append(
                {
                    "cache": cache,
                    "photographs": count,
                    "first_epoch_images_per_second": f"{rates[0]:.1f}",
                    "later_epochs_images_per_second": f"{later:.1f}",
                    "model": name,
                    "step_images_per_second": f"{trained:.1f}",
                    "waits": f"{(1 / later) / (1 / later + 1 / trained):.3f}",
                }
            )
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
        epochs = compare_epochs(Path(folder) / "small")
    save_table("feeding", choose_precision("auto"), rows)
    save_table("feeding-epochs", "float32", epochs)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 64, sys.argv[2] if len(sys.argv) > 2 else "vit_tiny_patch16_224")
