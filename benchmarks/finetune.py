"""Fine-tuning beside an expert's timm: `python benchmarks/finetune.py {head,accuracy,race} FLOWERS WEIGHTS`.

FLOWERS is a folder of photographs in class folders, WEIGHTS DeiT-Ti's ImageNet checkpoint.

head      `--method probe`, beside ten epochs that recompute the frozen backbone (batch 8, SGD,
          random crops, float32: the usual script); one of its epochs is timed and counted ten times. In turn.
accuracy  of `vitkit train` without flags on the test images, of five seeds.
race      seconds until 95 % validation accuracy: `vitkit train` beside timm's model, AdamW 5e-4 with layer decay 0.75,
          cosine, bfloat16, fused attention, six epochs. The same split, a fifth for validation; in turn.
Results go to benchmarks/results.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import timm.optim
import torch
import torch.nn.functional as F
from tables import save_table
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from vitkit.data import IMAGENET_MEAN, IMAGENET_STD, EvaluationImages, ImageTable, Preprocess, split_from_file
from vitkit.data.decode import decode
from vitkit.training import Recipe, read_metrics, train

NAME = "deit_tiny_patch16_224"
PREPROCESS = Preprocess(size=(224, 224), crop_pct=0.875, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def timm_model(weights: Path, classes: int) -> nn.Module:
    """timm's own model with the checkpoint's weights and a new head."""
    model = timm.create_model(NAME, num_classes=classes)
    state = torch.load(weights, weights_only=True)["model"]
    model.load_state_dict({name: tensor for name, tensor in state.items() if not name.startswith("head")}, strict=False)
    return model


class Photographs(torch.utils.data.Dataset[Any]):
    """As the usual script reads them: decoded in full, a random crop, flipped."""

    def __init__(self, table: ImageTable, crop: tuple[float, float]) -> None:
        self.table = table
        normalise = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
        self.transform = v2.Compose([v2.RandomResizedCrop(224, scale=crop), v2.RandomHorizontalFlip(), *normalise])

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(decode(self.table.file(index))), self.table.labels[index]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, precision: torch.dtype) -> None:
    """One training step."""
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        loss = F.cross_entropy(model(x).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def usual_epoch(table: ImageTable, model: nn.Module) -> float:
    """Seconds of one epoch of the usual script: the backbone is frozen, and computed all the same."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("head")
    optimizer = torch.optim.SGD(model.head.parameters(), 1e-3, momentum=0.9, weight_decay=5e-5)
    started = time.perf_counter()
    for x, y in DataLoader(Photographs(table.of_split("train"), (0.08, 1.0)), 8, shuffle=True):
        step(model, optimizer, x, y, torch.float32)
    with torch.inference_mode():
        for x, _ in DataLoader(EvaluationImages(table.of_split("val"), PREPROCESS), 8):
            model(x)
    return time.perf_counter() - started


def measure_head(flowers: Path, weights: Path, rounds: int = 2) -> list[dict[str, Any]]:
    """Accuracy and seconds of fitting a head, and seconds of the usual script."""
    usual, seconds, accuracies = [], [], []
    model = timm_model(weights, 5)
    for seed in range(rounds):
        run, spent, numbers = ours(flowers, weights, method="probe", seed=seed)
        seconds.append(spent)
        accuracies.append(numbers["accuracy"])
        usual.append(10 * usual_epoch(split_from_file(run / "split.json"), model))
    base, own = statistics.median(usual), statistics.median(seconds)
    mean = f"{statistics.mean(accuracies):.4f} ({', '.join(f'{value:.4f}' for value in accuracies)})"
    return [
        {"what": "ten epochs of the usual script", "seconds": round(base, 1), "ratio": 1.0, "accuracy": ""},
        {"what": "--method probe", "seconds": round(own, 1), "ratio": round(own / base, 3), "accuracy": mean},
    ]


def ours(flowers: Path, weights: Path, **fields: Any) -> tuple[Path, float, dict[str, Any]]:
    """A run, the seconds of its training, and its numbers on the test split."""
    folder = Path(tempfile.mkdtemp(), "run")
    train(Recipe(data=str(flowers), weights=str(weights), **fields), folder)
    seconds = read_metrics(folder / "metrics.csv")[-1]["seconds"]
    return folder, seconds, json.loads((folder / "evaluation.json").read_text())


def until(rows: list[tuple[float, float]], accuracy: float) -> float:
    """The seconds after which the accuracy was reached; infinite if never."""
    return next((seconds for seconds, reached in rows if reached >= accuracy), math.inf)


def timm_loop(table: ImageTable, weights: Path, epochs: int = 6) -> list[tuple[float, float]]:
    """Seconds and validation accuracy after each epoch of an expert's loop."""
    model = timm_model(weights, len(table.classes))
    groups = timm.optim.param_groups_layer_decay(model, weight_decay=0.05, layer_decay=0.75)
    for group in groups:
        group["lr"] = 5e-4 * group.pop("lr_scale")
    optimizer = torch.optim.AdamW(groups)
    loader = DataLoader(Photographs(table.of_split("train"), (0.4, 1.0)), 32, shuffle=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    rows, started = [], time.perf_counter()
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            step(model, optimizer, x, y, torch.bfloat16)
            schedule.step()
        rows.append((time.perf_counter() - started, accuracy_of(model, table.of_split("val"))))
        print("timm", rows[-1], flush=True)
    return rows


@torch.inference_mode()
def accuracy_of(model: nn.Module, table: ImageTable) -> float:
    """Of a timm model, in bfloat16."""
    model.eval()
    images, right = EvaluationImages(table, PREPROCESS), 0
    with torch.autocast("cpu", torch.bfloat16):
        for x, y in DataLoader(images, 32):
            right += int((model(x).argmax(1) == y).sum())
    return right / len(images)


def measure_race(flowers: Path, weights: Path, rounds: int = 2) -> list[dict[str, Any]]:
    """Seconds to 94 and 95 % validation accuracy, and what was reached; a fifth of the images are for validation."""
    found = []
    for seed in range(rounds):
        folder, _, _ = ours(flowers, weights, seed=seed, split=(0.8, 0.2, 0.0))
        own = [(row["seconds"], row["val_acc"]) for row in read_metrics(folder / "metrics.csv")]
        theirs = timm_loop(split_from_file(folder / "split.json"), weights)
        for name, rows in (("vitkit train", own), ("timm loop", theirs)):
            reached = {f"to_{percent}": round(until(rows, percent / 100), 1) for percent in (94, 95)}
            ended = {"all": round(rows[-1][0], 1), "last": round(rows[-1][1], 4), "best": max(row[1] for row in rows)}
            found.append({"what": name, "seed": seed, **reached, **ended})
            print(found[-1], flush=True)
    return found


def measure_accuracy(flowers: Path, weights: Path, rounds: int = 5) -> list[dict[str, Any]]:
    """Accuracy on test images without any flag, by seed of split and training."""
    found = []
    for seed in range(rounds):
        _, seconds, numbers = ours(flowers, weights, seed=seed)
        kept = {name: round(numbers[name], 4) for name in ("accuracy", "loss")}
        found.append({"seed": seed, "images": numbers["images"], **kept, "seconds": round(seconds, 1)})
        print(found[-1], flush=True)
    return found


MEASURES: dict[str, Callable[[Path, Path], list[dict[str, Any]]]] = {
    "head": measure_head,
    "accuracy": measure_accuracy,
    "race": measure_race,
}


def main(what: str, flowers: Path, weights: Path) -> None:
    """Measure, print and write the table."""
    rows = MEASURES[what](flowers, weights)
    for row in rows:
        print("   ".join(f"{key} {value}" for key, value in row.items()))
    save_table(f"finetune-{what}", "bfloat16", rows)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
