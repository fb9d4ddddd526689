"""Many photographs by several processes: `python benchmarks/fleet.py PHOTOGRAPHS [--images N] [--model NAME]`.

The photographs, scaled to 256 pixels and repeated up to the requested number, become shards, which a model with random
weights classifies: by one command, by processes of this machine, and by Ray on this machine. Then Ray again, with a
worker that is killed, and with two workers and then the command killed, which is repeated. Each must write what
the one command writes, byte by byte. `rate` is in images per second with the start of the program, and `share` that
rate compared with processes of this machine. The first row is Ray alone: the seconds until it has started, and the
memory of its processes while they are idle. Results go to benchmarks/results.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tables import save_table

import vitkit

_IDLE = "import ray, time; t = time.monotonic(); ray.init(log_to_driver=False, logging_level=40); "
_IDLE += "print(time.monotonic() - t, flush=True); time.sleep(60)"


def below(process: int) -> Iterator[int]:
    """Yield the processes that a process has started, and those that these have started."""
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from below(child)


def memory(processes: list[int]) -> float:
    """Return the memory of processes in MB, in which shared pages count once."""
    total = 0
    for process in processes:
        with suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def idle_ray() -> tuple[float, float]:
    """Start Ray, and return the seconds that this takes, and the memory of its processes."""
    with subprocess.Popen([sys.executable, "-c", _IDLE], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        seconds = float(driver.stdout.readline())
        time.sleep(5)
        used = memory(list(below(driver.pid)))
        driver.kill()
    return seconds, used


def write_photographs(source: Path, folder: Path, count: int) -> None:
    """Write JPEG files with a short side of 256 pixels."""
    files = sorted(source.rglob("*.jpg"))
    for i in range(count):
        file = files[i % len(files)]
        target = folder / file.parent.name / f"{i // len(files)}-{file.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(file) as image:
            scale = 256 / min(image.size)
            image.convert("RGB").resize([round(side * scale) for side in image.size]).save(target, quality=85)


def kill_worker(driver: subprocess.Popen[bytes], parts: Path, least: int = 2) -> bool:
    """Kill a worker of Ray once so many parts are complete, and return whether there was one."""
    if not has_written(driver, parts, least):
        return False
    for process in below(driver.pid):
        with suppress(OSError):
            if b"_Writer" in Path(f"/proc/{process}/cmdline").read_bytes():
                os.kill(process, signal.SIGKILL)
                return True
    return False


def kill_workers_and_driver(driver: subprocess.Popen[bytes], parts: Path) -> bool:
    """Kill two workers, one after the other, and then the command."""
    if not (kill_worker(driver, parts, 1) and kill_worker(driver, parts, 2) and has_written(driver, parts, 3)):
        return False
    driver.kill()
    return True


def has_written(driver: subprocess.Popen[bytes], parts: Path, least: int) -> bool:
    """Wait until so many parts are complete; return False if the command ends before."""
    while len(list(parts.glob("*.part"))) < least:
        if driver.poll() is not None:
            return False
        time.sleep(0.05)
    return True


def run(
    command: list[str], out: Path, disturb: Callable[[subprocess.Popen[bytes], Path], bool] | None = None
) -> tuple[float, int]:
    """Run a command until it succeeds, and return its seconds and the number of parts that a repetition has kept."""
    began, kept = time.monotonic(), 0
    with subprocess.Popen([*command, "-o", str(out)], stdout=subprocess.DEVNULL) as driver:
        if disturb is not None and not disturb(driver, out.with_name(f"{out.name}.parts")):
            raise SystemExit("the command ended before it could be disturbed: use more --images")
    if driver.returncode:
        kept = len(list(out.with_name(f"{out.name}.parts").glob("*.part")))
        subprocess.run([*command, "-o", str(out)], stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began, kept


def main() -> None:
    """Measure each way, and save the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--ways", default="", help="numbers of the ways to measure, such as 0,1,4; by default all")
    arguments = parser.parse_args()
    start, idle = idle_ray()
    rows: list[dict[str, Any]] = [{"way": "Ray, idle", "seconds": f"{start:.1f}", "rate": "", "share": ""}]
    rows[0] |= {"same": "", "kept_parts": "", "MB": f"{idle:.0f}", "images": "", "model": "", "workers": ""}
    print(rows[0], flush=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_photographs(arguments.photographs, folder / "photographs", arguments.images)
        vitkit.shard(folder / "photographs", folder / "shards", size=f"{max(1, arguments.images // 1000)}MB")
        torch.manual_seed(0)
        model = vitkit.create_model(arguments.model, num_classes=5)
        vitkit.Classifier(model, tuple("abcde"), vitkit.Preprocess(size=model.config.image_size)).save(folder / "model")
        command = [sys.executable, "-m", "vitkit", "predict", str(folder / "model"), str(folder / "shards")]
        command += [
            "--backend",
            "eager",
            "--precision",
            arguments.precision,
            "--plan",
            "plain",
            "--top",
            "5",
            "--quiet",
        ]
        workers = ["--workers", str(arguments.workers)]
        ways: dict[str, tuple[list[str], Any]] = {
            "one command": ([], None),
            "local": (["--cluster", "local", *workers], None),
            "ray": (["--cluster", "ray", *workers], None),
            "ray, a worker killed": (["--cluster", "ray", *workers], kill_worker),
            "ray, two workers and the command killed, repeated": (
                ["--cluster", "ray", *workers],
                kill_workers_and_driver,
            ),
        }
        if arguments.ways:
            chosen = [int(number) for number in arguments.ways.split(",")]
            ways = {way: each for number, (way, each) in enumerate(ways.items()) if number in chosen}
        rates: dict[str, float] = {}
        for number, (way, (flags, disturb)) in enumerate(ways.items()):
            seconds, kept = run([*command, *flags], folder / f"{number}.csv", disturb)
            rates[way] = arguments.images / seconds
            row = {"way": way, "seconds": f"{seconds:.1f}", "rate": f"{rates[way]:.1f}"}
            row["share"] = f"{rates[way] / rates['local']:.3f}" if "local" in rates else ""
            row["same"] = str((folder / f"{number}.csv").read_bytes() == (folder / "0.csv").read_bytes())
            row |= {"kept_parts": str(kept), "MB": ""}
            row |= {"images": str(arguments.images), "model": arguments.model, "workers": str(arguments.workers)}
            rows.append(row)
            print(row, flush=True)
    save_table("fleet", arguments.precision, rows)


if __name__ == "__main__":
    main()
