"""Does any way of training flatter itself? `python benchmarks/shuffled_labels.py [--smoke] [--seeds 20]`.

The labels are drawn by lot, so that whoever is right more often than chance has seen the pictures. For each seed, 60
pictures of 64 pixels in 5 classes are trained on in five ways, by a small model that learns them by heart, and it is
counted how often chance (20 %) lies in the 95 % interval of what is reported. As a control, the accuracy on all
pictures of another folder, those that were seen included, must not contain it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from tables import RESULTS, result_path, write_table

from vitkit.data.pictures import PictureRecord
from vitkit.data.sources import read_source
from vitkit.evaluation.evaluator import evaluate
from vitkit.evaluation.figures import figures
from vitkit.evaluation.unseen import find_seen, second_figure
from vitkit.training import run
from vitkit.weights import load

CLASSES, EACH, SIDE, COPIES, SEEDS = 5, 12, 64, 48, 20  # COPIES: pixels of those in the other folder
RECIPE: dict[str, Any] = {
    "epochs": 30,
    "batch_size": 14,
    "precision": "float32",
    "workers": 0,
    "crop_scale": (0.0, 0.0),
    "color_jitter": 0.0,
    "hflip": False,
    "drop_path": 0.0,
    "label_smoothing": 0.0,
    "lr": 4e-3,
    "weight_decay": 0.0,
    "keep": "last",
    "balance": "none",
    "cache": "none",
}
SCRATCH = {**RECIPE, "model": "vit_micro_patch8_16", "weights": "none"}
Interval = tuple[float, float, float]  # accuracy, from, to


def pictures(root: Path, seed: int, start: int = 0) -> Path:
    """Pictures that differ from one another, in classes that mean nothing."""
    rng = np.random.default_rng((seed, start))
    for label in range(CLASSES):
        (root / f"class{label}").mkdir(parents=True, exist_ok=True)
        for i in range(EACH):
            coarse = rng.integers(0, 256, (5, 5, 3), dtype=np.uint8)
            picture = Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            picture.save(root / f"class{label}" / f"{start + i}.png")
    return root


def reported(numbers: Mapping[str, Any]) -> Interval:
    """The accuracy of an evaluation with its interval, without what was seen where it says so."""
    told = numbers.get("without_seen") or numbers
    low, high = told["intervals_95"]["accuracy"]
    return told["accuracy"], low, high


def train(data: Path, out: Path, **fields: Any) -> Interval:
    """Train, and what the run reports: without what was seen where it says so."""
    run.train({"data": str(data), **fields}, out, say=lambda _: None)
    return reported(json.loads((out / "evaluation.json").read_text()))


def one_seed(folder: Path, seed: int) -> dict[str, Interval]:
    """Every way, with what it reports."""
    data = pictures(folder / "photos", seed)
    more = pictures(Path(shutil.copytree(data, folder / "more")), seed, start=100)
    other = Path(shutil.copytree(data, folder / "other"))
    for file in sorted(other.rglob("*.png")):
        Image.open(file).resize((COPIES, COPIES)).save(file.with_name(f"new-{file.stem}.png"))
        file.unlink()
    going_on = {**RECIPE, "weights": str(folder / "first"), "method": "full", "lp_ft": False, "seed": seed + 100}
    told = {
        "from scratch": train(data, folder / "first", **SCRATCH, seed=seed),
        "from that run, another seed": train(data, folder / "second", **going_on),
        "from that run, photographs added": train(more, folder / "third", **going_on),
    }
    run.train({"data": str(data), **SCRATCH, "folds": 3, "seed": seed}, folder / "folds", say=lambda _: None)
    folds = json.loads((folder / "folds" / "folds.json").read_text())["accuracy"]
    told["three folds from scratch"] = (
        folds["mean"],
        folds["mean"] - folds["margin_95"],
        folds["mean"] + folds["margin_95"],
    )
    classifier, table = load(folder / "first"), read_source(other)
    assert classifier.pictures is not None
    outcome = evaluate(classifier, table, "all")
    record = PictureRecord.from_bytes(classifier.pictures, "the run")
    seen = find_seen(record, table, "all", lambda *_: None, is_own=False)
    told["another folder, resized and renamed"] = reported(second_figure(outcome, seen))
    told["control: the same with what was seen"] = reported(figures(outcome))
    return told


def _draw_nothing(_figure: Figure, target: Any, **_options: Any) -> None:
    """Drawing would take half of the time."""
    Image.new("RGB", (2, 1)).save(target, "PNG")


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """How often chance is in the interval, by way."""
    lines = []
    for way in dict.fromkeys(row["way"] for row in rows):
        told = [row for row in rows if row["way"] == way]
        inside = sum(row["low"] <= 1 / CLASSES <= row["high"] for row in told)
        mean = np.mean([row["accuracy"] for row in told])
        lines.append(f"{way:40} chance in the interval {inside:2} of {len(told)} times; mean accuracy {mean:.3f}")
    return lines


def main() -> None:
    """All seeds, one after the other; the table is written after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="one seed, hardly trained, to see that the script works")
    options = parser.parse_args()
    if options.smoke:
        RECIPE["epochs"] = SCRATCH["epochs"] = 1
    Figure.savefig = _draw_nothing
    rows: list[dict[str, Any]] = []
    for seed in range(1 if options.smoke else options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            for way, (accuracy, low, high) in one_seed(Path(folder), seed).items():
                rows.append({"seed": seed, "way": way, "accuracy": accuracy, "low": low, "high": high})
        write_table(result_path("shuffled", "float32", folder=options.out), rows)
        print(f"seed {seed}: " + ", ".join(f"{row['accuracy']:.2f}" for row in rows if row["seed"] == seed), flush=True)
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
