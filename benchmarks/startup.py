"""How long a user waits before anything happens: `python benchmarks/startup.py [ROUNDS] [--smoke]`.

Each round runs every command and `import torch` once, in turn, in a fresh process (A B C ... A B C ...); medians are
compared. Bytecode is kept, as it is where vitkit is installed, whatever the environment says. What is predicted with is
`digits`, trained for one epoch, and the files exported from it. Results go to benchmarks/results.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from tables import save_table

from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.model import VisionTransformer, ViTConfig

VITKIT = str(Path(sys.executable).with_name("vitkit"))
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def commands(folder: Path, *, smoke: bool) -> dict[str, list[str]]:
    """The commands to time, by name."""
    run, image = _micro(folder) if smoke else _digits(folder)
    exported = [folder / "model.onnx", folder / "model.xml"]
    for file in exported:
        subprocess.run([VITKIT, "export", str(run), "-o", str(file)], check=True, capture_output=True)
    return {
        "import torch": [sys.executable, "-c", "import torch"],
        "vitkit --help": [VITKIT, "--help"],
        "vitkit predict, one image": [VITKIT, "predict", str(run), image],
        **{f"vitkit predict FILE{own.suffix}, one image": [VITKIT, "predict", str(own), image] for own in exported},
        "vitkit info vit_huge_patch14_224": [VITKIT, "info", "vit_huge_patch14_224"],
        "vitkit models": [VITKIT, "models"],
    }


def _digits(folder: Path) -> tuple[Path, str]:
    """A run, and an image that it has not seen."""
    run = folder / "run"
    subprocess.run([VITKIT, "train", "digits", "--epochs", "1", "--out", str(run)], check=True, capture_output=True)
    held_out = [sys.executable, str(Path(__file__).parent.parent / "examples" / "held_out.py"), str(run), "1"]
    return run, subprocess.run(held_out, check=True, capture_output=True, text=True).stdout.strip()


def _micro(folder: Path) -> tuple[Path, str]:
    """A model that has learned nothing, and a grey image."""
    config = ViTConfig(image_size=8, patch_size=4, hidden_size=8, layers=1, heads=1, mlp_size=8, num_classes=2)
    Classifier(VisionTransformer(config), ("a", "b"), Preprocess(size=(8, 8))).save(folder / "model")
    Image.new("RGB", (8, 8), (99, 99, 99)).save(folder / "grey.png")
    return folder / "model", str(folder / "grey.png")


def seconds(command: list[str]) -> float:
    """Wall-clock time of a command in a fresh process."""
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT)
    return time.perf_counter() - started


def main(rounds: int, *, smoke: bool) -> None:
    """Time the commands and write the table."""
    with tempfile.TemporaryDirectory() as folder:
        timed = commands(Path(folder), smoke=smoke)
        for command in timed.values():  # once to warm the file cache
            seconds(command)
        times = {name: [] for name in timed}
        for _ in range(rounds):
            for name, command in timed.items():
                times[name].append(seconds(command))
    base = statistics.median(times["import torch"])
    rows = [
        {
            "command": name,
            "median_s": round(statistics.median(values), 3),
            "quartile_low_s": round(statistics.quantiles(values)[0], 3),
            "quartile_high_s": round(statistics.quantiles(values)[2], 3),
            "ratio_to_import_torch": round(statistics.median(values) / base, 3),
        }
        for name, values in times.items()
    ]
    for row in rows:
        print(f"{row['command']:34} {row['median_s']:7.3f} s   {row['ratio_to_import_torch']:6.3f} x import torch")
    if not smoke:
        save_table("startup", "float32", rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=11)
    parser.add_argument("--smoke", action="store_true", help="a micro model and two rounds, to see that all works")
    asked = parser.parse_args()
    main(2 if asked.smoke else asked.rounds, smoke=asked.smoke)
