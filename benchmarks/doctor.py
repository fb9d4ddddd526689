"""Time of `vitkit doctor` beside decoding, and planted copies found: `python benchmarks/doctor.py FOLDER [ROUNDS]`.

FOLDER holds photographs in class folders. Timed in turn, in one process (A B C ... A B C ...): decoding every file once
in full on all cores, a first examination (nothing remembered) and a second one; and the two examinations as commands.
Planted: of 20 photographs each a byte-for-byte copy, a resized, a JPEG-q50 and a mirrored one, in the other split.
Results go to benchmarks/results.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from PIL import Image, ImageOps
from tables import save_table

from vitkit.data import Diagnosis, Preprocess, examine, read_source
from vitkit.data.decode import decode

VITKIT = str(Path(sys.executable).with_name("vitkit"))
PREPROCESS = Preprocess(size=(224, 224))
PHOTOGRAPHS = 20
COPIES: dict[str, Callable[[Image.Image], tuple[Image.Image, int]]] = {  # the picture and the JPEG quality
    "resized": lambda image: (image.resize((image.width // 2, image.height // 2), Image.Resampling.BICUBIC), 90),
    "q50": lambda image: (image, 50),
    "mirrored": lambda image: (ImageOps.mirror(image), 90),
}


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock time of the work."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def time_all(folder: Path, rounds: int) -> dict[str, float]:
    """Medians in seconds."""
    table = read_source(folder)
    files = [table.file(i) for i in range(len(table))]
    command = [VITKIT, "doctor", str(folder)]
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(os.cpu_count()) as pool:
            os.environ["VITKIT_CACHE"] = cache
            measured = {
                "decoding every file once": seconds(lambda: list(pool.map(decode, files))),
                "examination": seconds(lambda: examine(read_source(folder), PREPROCESS)),
                "examination again": seconds(lambda: examine(read_source(folder), PREPROCESS)),
            }
            os.environ["VITKIT_CACHE"] = f"{cache}/command"
            measured["vitkit doctor"] = seconds(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=False))
            measured["vitkit doctor again"] = seconds(
                lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
            )
        for name, value in measured.items():
            times.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in times.items()}


def plant(folder: Path, root: Path) -> dict[str, list[tuple[str, str]]]:
    """A copy of the folder as train/, with copies of some photographs in val/; the pairs of paths, by kind."""
    table = read_source(folder)
    shutil.copytree(folder, root / "train")
    pairs: dict[str, list[tuple[str, str]]] = {"exact": [], **{kind: [] for kind in COPIES}}
    for i in random.Random(0).sample(range(len(table)), PHOTOGRAPHS):
        original = Path(table.paths[i])
        (root / "val" / original.parent).mkdir(parents=True, exist_ok=True)
        for kind, found in pairs.items():
            copy = Path("val", original.parent, f"{original.stem}_{kind}.jpg")
            if kind == "exact":
                shutil.copyfile(table.file(i), root / copy)
            else:
                picture, quality = COPIES[kind](decode(table.file(i)))
                picture.save(root / copy, quality=quality)
            found.append((f"train/{original.as_posix()}", copy.as_posix()))
    return pairs


def count_found(diagnosis: Diagnosis, pairs: list[tuple[str, str]]) -> int:
    """How many of the pairs are said to be one picture."""
    twin = dict(zip(diagnosis.table.paths, diagnosis.twins, strict=True))
    return sum(twin[a] == twin[b] for a, b in pairs)


def main(folder: Path, rounds: int) -> None:
    """Measure, print and write the table."""
    times = time_all(folder, rounds)
    base = times["decoding every file once"]
    rows = [{"what": name, "value": round(value, 3), "ratio": round(value / base, 3)} for name, value in times.items()]
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["VITKIT_CACHE"] = f"{scratch}/cache"
        pairs = plant(folder, Path(scratch) / "data")
        diagnosis = examine(read_source(Path(scratch) / "data"))
    for kind, planted in pairs.items():
        found = count_found(diagnosis, planted)
        rows.append(
            {"what": f"planted, {kind}: found of {len(planted)}", "value": found, "ratio": found / len(planted)}
        )
    planted_paths = {path for planted in pairs.values() for pair in planted for path in pair}
    flagged = [
        [diagnosis.table.paths[i] for i in own.images if diagnosis.table.paths[i] not in planted_paths]
        for own in diagnosis.copies
    ]
    alarms, others = sum(map(len, flagged)), len(diagnosis.table) - len(planted_paths)
    rows.append({"what": f"other images flagged, of {others}", "value": alarms, "ratio": round(alarms / others, 5)})
    for row in rows:
        print(f"{row['what']:42} {row['value']:8}   {row['ratio']}")
    print("other images flagged:", [group for group in flagged if group])
    save_table("doctor", f"pillow{version('pillow')}", rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5)
