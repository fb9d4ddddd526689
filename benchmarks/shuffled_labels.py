"""Does any way of training flatter itself? `python benchmarks/shuffled_labels.py [--smoke] [SEEDS]`.

The labels are drawn by lot, so that whoever is right more often than chance has seen the pictures. For each seed, 60
pictures of 64 pixels in 5 classes are trained on in five ways, by a small model that learns them by heart, and it is
counted how often chance (20 %) lies in the 95 % interval of what is reported. As a control, the accuracy on all
pictures of another folder, those that were seen included, must not contain it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitkit.data.pictures import PictureRecord
from vitkit.data.source import read_source
from vitkit.evaluate import plots
from vitkit.evaluate.figures import figures
from vitkit.evaluate.metrics import evaluate
from vitkit.evaluate.unseen import find_seen, second_figure
from vitkit.train import run
from vitkit.weights import load

CLASSES, EACH, SIDE, COPIES, SEEDS = 5, 12, 64, 48, 20  # COPIES: pixels of those in the other folder
RECIPE: dict[str, Any] = {
    "epochs": 12,
    "batch_size": 14,
    "precision": "float32",
    "workers": 0,
    "crop_scale": (0.0, 0.0),
    "color_jitter": 0.0,
    "drop_path": 0.0,
    "label_smoothing": 0.0,
    "lr": 2e-3,
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
    going_on = {**RECIPE, "weights": str(folder / "first"), "method": "full", "head_start": False, "seed": seed + 100}
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


def main(seeds: int, say: Callable[[str], None] = print) -> dict[str, list[Interval]]:
    """All seeds; how often chance is in the interval, by way."""
    plots.save_figure = lambda _, path: path.write_bytes(b"")  # which takes half of the time
    every: dict[str, list[Interval]] = {}
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            for way, told in one_seed(Path(folder), seed).items():
                every.setdefault(way, []).append(told)
        print(f"seed {seed}: " + ", ".join(f"{own[-1][0]:.2f}" for own in every.values()), file=sys.stderr, flush=True)
    for way, outcomes in every.items():
        inside = sum(low <= 1 / CLASSES <= high for _, low, high in outcomes)
        mean = np.mean([accuracy for accuracy, _, _ in outcomes])
        say(f"{way:40} chance in the interval {inside:2} of {seeds} times; mean accuracy {mean:.3f}")
    return every


if __name__ == "__main__":
    rest = [argument for argument in sys.argv[1:] if argument != "--smoke"]
    main(1 if "--smoke" in sys.argv else int(rest[0]) if rest else SEEDS)
