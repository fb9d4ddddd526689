"""What token merging gains and costs: `python benchmarks/merging.py MODEL [DATA] [ROUNDS]`.

For each R the same model predicts the validation images of DATA (the data it was trained on, where DATA is left out and
MODEL is a run folder), and a batch of 32 is timed, all R in turn in every round (A B C ... A B C ...), medians
compared. bfloat16 where the hardware has it. Accuracy is that of the plain model at R = 0; `agreement` is how often the
top class is the plain model's. Results go to benchmarks/results.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import torch
from tables import save_table
from torch import Tensor, nn
from torch.utils.data import DataLoader

import vitkit
from vitkit.data import EvaluationImages, ImageTable, images_of_run, read_source, split
from vitkit.inference import merge, prepare
from vitkit.training import choose_precision

SWEEP = (0, 2, 4, 6, 8, 10, 12, 13, 14, 16, 18, 20)
BATCH = 32


def validation(model: str, data: str | None) -> ImageTable:
    """The validation images of the model's own run, or of data split by seed 0."""
    if data is None:
        return images_of_run(Path(model) / "split.json").of_split("val")
    table = read_source(data)
    return (table if any(table.splits) else split(table, (0.7, 0.1, 0.2), 0)).of_split("val")


@torch.inference_mode()
def logits_of(doubles: dict[int, nn.Module], images: EvaluationImages) -> tuple[dict, Tensor]:
    """What each double says of every image, and the labels."""
    outputs: dict[int, list[Tensor]] = {r: [] for r in doubles}
    labels = []
    for batch, label in DataLoader(images, BATCH):
        labels.append(label)
        for r, double in doubles.items():
            outputs[r].append(double(batch))
    return {r: torch.cat(parts) for r, parts in outputs.items()}, torch.cat(labels)


@torch.inference_mode()
def seconds_of(doubles: dict[int, nn.Module], batch: Tensor, rounds: int) -> dict[int, list[float]]:
    """Seconds of each call, all doubles in turn in every round."""
    seconds: dict[int, list[float]] = {r: [] for r in doubles}
    for number in range(rounds + 1):
        for r, double in doubles.items():
            started = time.perf_counter()
            double(batch)
            if number:  # the first warms up
                seconds[r].append(time.perf_counter() - started)
    return seconds


def main(model: str, data: str | None, rounds: int) -> None:
    """Sweep, print, and write the table."""
    classifier, precision = vitkit.load(model), choose_precision("auto")
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    doubles: dict[int, nn.Module] = {
        r: merge(classifier.model, r, dtype) if r else prepare(classifier.model, dtype) for r in SWEEP
    }
    images = EvaluationImages(validation(model, data), classifier.preprocess)
    logits, labels = logits_of(doubles, images)
    seconds = seconds_of(doubles, torch.randn(BATCH, 3, *classifier.preprocess.size), rounds)
    rows = []
    for r in SWEEP:
        answers = logits[r].argmax(dim=1)
        low, middle, high = statistics.quantiles(seconds[r], n=4)
        row = {
            "r": r,
            "images": len(labels),
            "accuracy": f"{(answers == labels).float().mean().item():.4f}",
            "log_loss": f"{nn.functional.cross_entropy(logits[r], labels).item():.4f}",
            "agreement": f"{(answers == logits[0].argmax(dim=1)).float().mean().item():.4f}",
            "images_per_second": f"{BATCH / middle:.1f}",
            "lower_quartile": f"{BATCH / high:.1f}",
            "upper_quartile": f"{BATCH / low:.1f}",
            "speed": f"{statistics.median(seconds[0]) / middle:.3f}",
        }
        rows.append(row)
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    save_table("merging", precision, rows)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    rounds = int(arguments.pop()) if arguments[-1].isdigit() else 15
    main(arguments[0], arguments[1] if len(arguments) > 1 else None, rounds)
