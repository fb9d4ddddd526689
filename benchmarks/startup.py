"""How long a user waits before anything happens, beside `import torch`: `python benchmarks/startup.py [ROUNDS]`.

Each round runs every command once, in turn, in a fresh process (A B C ... A B C ...); medians are compared. The predict
line needs a run folder: it trains `digits` for one epoch where there is none to use. Results go to benchmarks/results.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tables import save_table

VITKIT = str(Path(sys.executable).with_name("vitkit"))


def commands(folder: Path) -> dict[str, list[str]]:
    """The commands to time, by name."""
    run = folder / "run"
    subprocess.run([VITKIT, "train", "digits", "--epochs", "1", "--out", str(run)], check=True, capture_output=True)
    held_out = [sys.executable, str(Path(__file__).parent.parent / "examples" / "held_out.py"), str(run), "1"]
    image = subprocess.run(held_out, check=True, capture_output=True, text=True).stdout.strip()
    return {
        "import torch": [sys.executable, "-c", "import torch"],
        "vitkit --help": [VITKIT, "--help"],
        "vitkit predict, one image": [VITKIT, "predict", str(run), image],
        "vitkit info vit_huge_patch14_224": [VITKIT, "info", "vit_huge_patch14_224"],
        "vitkit models": [VITKIT, "models"],
    }


def seconds(command: list[str]) -> float:
    """Wall-clock time of a command in a fresh process."""
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def main(rounds: int) -> None:
    """Time the commands and write the table."""
    with tempfile.TemporaryDirectory() as folder:
        timed = commands(Path(folder))
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
    save_table("startup", "float32", rows)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 11)
