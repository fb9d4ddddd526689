"""How long does a checkpoint hold a training up? `python benchmarks/saving.py [--model NAME] [--batch 8] [--rounds 8]`.

Steps on random images, with AdamW, in turn: a step alone; a step before which a checkpoint is begun; and the steps
during which the thread still writes. `held_s` is what the training itself waits: for the copy before the next step.
`times_alone` compares whole steps, which also compete with the thread for the processor, the memory and the disk.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tables import save_table, show

from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.model import config_for
from vitkit.profiling import random_model
from vitkit.system import LAST
from vitkit.training import Loop, Objective, Recipe, RunWriter, TrainingState, fabric_of


class Batches:
    """What the loop asks of data for one batch after the other."""

    batches = 10**6

    def __init__(self, images: int) -> None:
        self.images = images

    def images_in(self, _first: int, _last: int) -> tuple[int, int]:
        return self.images, self.images

    def positions_in_batch(self, images: int) -> range:
        return range(images)


def measure(name: str, images: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds of steps alone, while a checkpoint is copied, and while it is written."""
    config = config_for(name, num_classes=10)
    recipe = Recipe(batch_size=images, precision="float32")
    model = random_model(config)
    state = TrainingState(model.train(), recipe, 10**6)
    data: Any = Batches(images)
    loop = Loop(state, Objective(recipe, 10), data, fabric_of("float32", "cpu"))
    classes = tuple(map(str, range(10)))
    writer = RunWriter(folder, Classifier(model, classes, Preprocess(size=config.image_size)), recipe, print)
    writer.on_fit_start(state)
    model.train()
    batch = torch.randn(images, 3, *config.image_size), torch.arange(images) % 10

    def step() -> float:
        began = time.perf_counter()
        loop.take_step(state.batch, [batch])
        state.batch += 1
        return time.perf_counter() - began

    for _ in range(2):
        step()
    alone, copying, writing, held, saves = [], [], [], [], []
    for _ in range(rounds):
        alone.append(step())
        began = time.perf_counter()
        writer.on_save(state)
        begun = time.perf_counter() - began
        copying.append(begun + step())
        held.append(begun)
        while writer._writing is not None and not writer._writing.done():
            writing.append(step())
        saves.append(time.perf_counter() - began)
        writer.on_trained(state)
    size = (folder / LAST).stat().st_size
    middle = statistics.median
    return {
        "model": name,
        "batch": images,
        "threads": torch.get_num_threads(),
        "mib": round(size / 2**20),
        "step_s": round(middle(alone), 3),
        "held_s": round(middle(held), 4),
        "held_part": round(middle(own / step_s for own, step_s in zip(held, alone, strict=True)), 4),
        "held_most": round(max(own / step_s for own, step_s in zip(held, alone, strict=True)), 4),
        "times_alone_copying": round(middle(c / a for c, a in zip(copying, alone, strict=True)), 3),
        "times_alone_writing": round(middle(writing) / middle(alone), 3) if writing else None,
        "written_after_s": round(middle(saves), 2),
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="vit_base_patch16_224")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--smoke", action="store_true", help="a micro model, and no table")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if asked.smoke:
            print(show(measure("vit_micro_patch8_16", 4, 2, Path(folder))))
            return
        row = measure(asked.model, asked.batch, asked.rounds, Path(folder))
    print(show(row))
    save_table("saving", "float32", [row])


if __name__ == "__main__":
    main()
