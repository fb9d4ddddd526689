"""The digits recipe over seeds: `python benchmarks/digits.py [SEED ...]`. Results go to benchmarks/results."""

from __future__ import annotations

import csv
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
VITKIT = str(Path(sys.executable).with_name("vitkit"))


def train_and_evaluate(seed: int, folder: Path) -> dict[str, object]:
    """One run through the command line, as a user makes it."""
    run = folder / f"seed-{seed}"
    started = time.perf_counter()
    subprocess.run([VITKIT, "train", "digits", "--seed", str(seed), "--out", str(run)], check=True)
    seconds = time.perf_counter() - started
    command = [VITKIT, "eval", str(run), "--json"]
    numbers = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"seed": seed, "test_accuracy": numbers["accuracy"], "images": numbers["images"], "seconds": round(seconds)}


def main(seeds: list[int]) -> list[dict[str, object]]:
    """Train, print, write."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [train_and_evaluate(seed, Path(folder)) for seed in seeds]
    mean = sum(float(str(row["test_accuracy"])) for row in rows) / len(rows)
    for row in rows:
        print(row)
    print(f"mean test accuracy {mean:.4f}")
    RESULTS.mkdir(exist_ok=True)
    cores = os.cpu_count()
    name = f"digits_{platform.machine()}-{cores}core_float32_torch{version('torch')}_{date.today():%Y%m%d}.csv"
    with (RESULTS / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return rows


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]] or [0, 1, 2])
