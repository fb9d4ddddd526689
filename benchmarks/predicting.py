"""Predicting many images, and again after a crash: `python benchmarks/predicting.py [IMAGES]`.

`vitkit predict` classifies hard links of a few generated photographs with a random micro model, in a process whose
memory is watched: it should not grow with the number of images. A second process is killed (SIGKILL) half-way and gone
on with (--resume): every image must be there exactly once, as in the file of the first. Results go to
benchmarks/results.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tables import save_table

VITKIT = str(Path(sys.executable).with_name("vitkit"))
PHOTOGRAPHS, FOLDERS = 40, 20


def write_images(folder: Path, count: int) -> None:
    """So many files, of far fewer photographs."""
    import numpy as np
    from PIL import Image

    own = folder / "own"
    own.mkdir()
    for i in range(PHOTOGRAPHS):
        pixels = np.random.default_rng(i).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((96, 64)).save(own / f"{i}.jpg")
    for i in range(FOLDERS):
        (folder / "photos" / str(i)).mkdir(parents=True)
    for i in range(count):
        os.link(own / f"{i % PHOTOGRAPHS}.jpg", folder / "photos" / str(i % FOLDERS) / f"image{i}.jpg")


def write_model(folder: Path) -> None:
    """A random micro model of ten classes."""
    import torch

    from vitkit import Classifier, Preprocess, create_model

    torch.manual_seed(0)
    model = create_model("vit_micro_patch4_16", num_classes=10)
    torch.nn.init.normal_(model.head.weight)
    Classifier(model, tuple("abcdefghij"), Preprocess(size=(16, 16))).save(folder)


def start(folder: Path, out: Path, *flags: str) -> subprocess.Popen[bytes]:
    """`vitkit predict` in a process of its own."""
    command = [VITKIT, "predict", str(folder / "model"), str(folder / "photos"), "-o", str(out), *flags]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def watch(process: subprocess.Popen[bytes], out: Path) -> Iterator[tuple[int, int]]:
    """How many rows it has written and how many bytes of memory it holds, again and again until it ends."""
    partial, rows, read = out.with_name(f"{out.name}.partial"), -1, 0  # the first line is the header
    while process.poll() is None:
        if partial.exists():
            with partial.open("rb") as file:
                file.seek(read)
                new = file.read()
            rows, read = rows + new.count(b"\n"), read + len(new)
            resident = Path(f"/proc/{process.pid}/statm").read_text().split()[1]
            yield rows, int(resident) * os.sysconf("SC_PAGESIZE")
        time.sleep(0.02)


def measure(folder: Path, count: int) -> list[dict[str, object]]:
    """Memory at each fifth of the images."""
    out = folder / "whole.csv"
    process, started = start(folder, out), time.perf_counter()
    samples = [(rows, held, time.perf_counter() - started) for rows, held in watch(process, out) if held]
    assert process.returncode == 0
    marks = [next((s for s in samples if s[0] >= count * fifth / 5), samples[-1]) for fifth in range(1, 6)]
    return [
        {
            "images": rows,
            "seconds": f"{seconds:.1f}",
            "resident_mib": f"{held / 2**20:.1f}",
            "ratio_to_first_fifth": f"{held / marks[0][1]:.4f}",
        }
        for rows, held, seconds in marks
    ]


def kill_and_resume(folder: Path, count: int) -> int:
    """A file made in two goes; how many rows the first left."""
    out = folder / "resumed.csv"
    process = start(folder, out)
    rows = next(rows for rows, _ in watch(process, out) if rows >= count / 2)
    process.kill()
    process.wait()
    assert not out.exists()
    assert start(folder, out, "--resume").wait() == 0
    return rows


def largest_difference(a: Path, b: Path) -> float:
    """Between the confidences of two files, which must name the same images and classes in the same order."""
    largest = 0.0
    with a.open(newline="") as first, b.open(newline="") as second:
        for row, other in zip(csv.DictReader(first), csv.DictReader(second), strict=True):
            assert (row["path"], row["label"], row["error"]) == (other["path"], other["label"], other["error"])
            largest = max(largest, abs(float(row["confidence"]) - float(other["confidence"])))
    return largest


def check_once_each(folder: Path, out: Path) -> None:
    """Every image has one row."""
    with out.open(newline="") as file:
        paths = [row["path"] for row in csv.DictReader(file)]
    assert len(paths) == len(set(paths))
    assert set(paths) == {str(path) for path in (folder / "photos").rglob("*.jpg")}


def main(count: int) -> None:
    """Measure, kill, go on, compare, and write the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder, count)
        write_model(folder / "model")
        rows = measure(folder, count)
        for row in rows:
            print("{images:7} images  {seconds:>6} s  {resident_mib:>7} MiB  {ratio_to_first_fifth} x".format(**row))
        left = kill_and_resume(folder, count)
        check_once_each(folder, folder / "whole.csv")
        check_once_each(folder, folder / "resumed.csv")
        difference = largest_difference(folder / "whole.csv", folder / "resumed.csv")
    print(f"killed after {left} rows and gone on with: {count} images, each once; confidences within {difference:.6f}")
    ending = {"rows_when_killed": left, "largest_difference": f"{difference:.6f}"}
    save_table("predicting", "float32", [{**row, **ending} for row in rows])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
