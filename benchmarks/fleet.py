"""Many pictures by one process and by Ray on this machine: `python benchmarks/fleet.py [--images N] [--workers N]`.

The pictures are noise of 48 pixels, and the model is a micro ViT with random weights, so that reading and managing rows
count, and not the network. Ray computes them twice, the second time with a worker that is killed by SIGKILL while it
computes. `once` says whether each picture has exactly one row, and `difference` is the largest difference of a
probability from that of the one process. `first_MB` and `most_MB` are the memory of the command (without memory that it
shares with others) when the first file of rows appears, and the most from then on. `rate` is in images per second with
the start of the program and of Ray. Results go to benchmarks/results.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset
import torch
from PIL import Image
from tables import save_table

import vitkit


def below(process: int) -> Iterator[int]:
    """Yield the processes that a process has started, and those that these have started."""
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from below(child)


def own_memory(process: int) -> float:
    """Return the memory in MB that a process shares with no other."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("RssAnon:"))) / 1024
    return 0.0


def kill_worker(driver: int) -> bool:
    """Kill a worker of Ray that computes, and return whether there was one."""
    for process in below(driver):
        with suppress(OSError):
            if b"MapWorker" in Path(f"/proc/{process}/cmdline").read_bytes():
                os.kill(process, signal.SIGKILL)
                return True
    return False


def run(command: list[str], out: Path, *, kills: bool) -> tuple[float, list[float], bool]:
    """Run a command; return its seconds, its memory from the first file of rows on, and whether a worker was killed."""
    began, used, was_killed = time.monotonic(), list[float](), False
    with subprocess.Popen([*command, "-o", str(out)], stdout=subprocess.DEVNULL) as driver:
        while driver.poll() is None:
            if used or list(out.parent.glob(f".{out.name}.*.tmp/{out.name}/*.parquet")):
                used.append(own_memory(driver.pid))
                was_killed = was_killed or (kills and kill_worker(driver.pid))
            time.sleep(0.1)
    if driver.returncode:
        raise SystemExit(f"{command} has failed")
    if kills and not was_killed:
        raise SystemExit("the command ended before a worker could be killed: use more --images")
    return time.monotonic() - began, [memory for memory in used if memory], was_killed


def main() -> None:
    """Measure each way, and save the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "pictures").mkdir()
        draw = np.random.default_rng(0)
        for i in range(arguments.images):
            Image.fromarray(draw.integers(0, 256, (48, 48, 3), np.uint8)).save(folder / "pictures" / f"{i}.png")
        torch.manual_seed(0)
        model = vitkit.create_model("vit_micro_patch8_16", num_classes=3, image_size=32)
        vitkit.Classifier(model, tuple("abc"), vitkit.Preprocess(size=(32, 32))).save(folder / "model")
        command = [sys.executable, "-m", "vitkit", "predict", str(folder / "model"), str(folder / "pictures")]
        command += ["--backend", "eager", "--precision", "float32", "--quiet"]
        of_ray = ["--cluster", "ray", "--workers", str(arguments.workers)]
        seconds, _, _ = run(command, folder / "rows.csv", kills=False)
        with (folder / "rows.csv").open(encoding="utf-8", newline="") as file:
            expected = {row["path"]: float(row["confidence"]) for row in csv.DictReader(file)}
        about = {"images": arguments.images, "workers": arguments.workers, "ray": version("ray")}
        about |= {"pyarrow": version("pyarrow")}
        one = {"way": "one process", "seconds": f"{seconds:.1f}", "rate": f"{arguments.images / seconds:.0f}"}
        rows.append({**one, "once": "", "difference": "", "first_MB": "", "most_MB": "", **about})
        for way, kills in (("Ray", False), ("Ray, a worker killed", True)):
            out = folder / f"{way}.parquet"
            seconds, used, _ = run([*command, *of_ray], out, kills=kills)
            table = pyarrow.dataset.dataset(out).model_table(columns=["path", "confidence"]).to_pylist()
            row = {"way": way, "seconds": f"{seconds:.1f}", "rate": f"{arguments.images / seconds:.0f}"}
            row["once"] = str(sorted(found["path"] for found in table) == sorted(expected))
            difference = max(abs(found["confidence"] - expected[found["path"]]) for found in table)
            row |= {"difference": f"{difference:.1e}", "first_MB": f"{used[0]:.0f}", "most_MB": f"{max(used):.0f}"}
            rows.append({**row, **about})
            print(row, flush=True)
    save_table("fleet", "float32", rows)


if __name__ == "__main__":
    main()
