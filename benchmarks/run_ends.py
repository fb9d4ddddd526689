"""Seconds of a fine-tuning before its first step and after its last one, with the check of the data and the report.

    python benchmarks/run_ends.py PHOTOS WEIGHTS [--against SRC] [--rounds 3] [--epochs 1]

With --against, another version of vitkit (its folder `src`) does the same in turn. Each run starts with an empty cache.
The figures are processor time and wall-clock time; the ratios are of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

SRC = Path(__file__).parents[1] / "src"
PROGRAM = """
import json, sys, time
import vitkit

class Watch:
    def on_step_end(self, state):
        marks.append((time.process_time(), time.monotonic()))

marks = [(time.process_time(), time.monotonic())]
photos, weights, out, epochs = sys.argv[1:]
recipe = vitkit.Recipe(weights=weights, method="full", epochs=int(epochs), workers=0)
vitkit.train(photos, recipe, out=out, hooks=vitkit.Hooks(callbacks=[Watch()]))
end = time.process_time(), time.monotonic()
pairs = ((marks[0], marks[1]), (marks[-1], end))
print(json.dumps([[later - earlier for earlier, later in zip(*pair)] for pair in pairs]))
"""


def measure(source: Path, arguments: argparse.Namespace) -> list[list[float]]:
    """Processor and wall-clock seconds before the first step and after the last one."""
    with tempfile.TemporaryDirectory() as place:
        environment = os.environ | {"PYTHONPATH": str(source), "VITKIT_CACHE": str(Path(place, "cache"))}
        command = [sys.executable, "-c", PROGRAM, arguments.photos, arguments.weights, str(Path(place, "run"))]
        done = subprocess.run(
            [*command, str(arguments.epochs)], env=environment, capture_output=True, text=True, check=True
        )
    found: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos")
    parser.add_argument("weights")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    arguments = parser.parse_args()
    sources = {"this": SRC, **({} if arguments.against is None else {"against": arguments.against})}
    found: dict[str, list[list[list[float]]]] = {name: [] for name in sources}
    for number in range(arguments.rounds):
        for name, source in sources.items():
            found[name].append(measure(source, arguments))
            print(f"round {number + 1}, {name}: {found[name][-1]}", flush=True)
    for place, what in enumerate(("before the first step", "after the last step")):
        for clock, kind in enumerate(("processor", "wall-clock")):
            middle = {name: median(each[place][clock] for each in rounds) for name, rounds in found.items()}
            ratio = f", ratio {middle['this'] / middle['against']:.2f}" if "against" in middle else ""
            shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in middle.items())
            print(f"{what}, {kind} time: {shown}{ratio}")


if __name__ == "__main__":
    main()
