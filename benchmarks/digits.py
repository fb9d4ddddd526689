"""The digits recipe over seeds: `python benchmarks/digits.py [SEED ...]`. Results go to benchmarks/results."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tables import save_table

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
    save_table("digits", "float32", rows)
    return rows


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]] or [0, 1, 2])
