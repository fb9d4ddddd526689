"""Loading ViT-L/16 (304 M parameters) beside timm: `python benchmarks/loading.py [ROUNDS]`.

The same random weights lie in a safetensors file and in Google's npz layout. Each round loads each file once with
timm and once with vitkit, in turn, in a fresh process (A B A B ...), imports not counted; medians are compared. Memory
is the peak of the process above what it held before the load, less the model's own size. Results go to
benchmarks/results.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tables import save_table

NAME = "vit_large_patch16_224"

_MEASURE = """
import json, resource, sys, time
{imports}
import torch
def held():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before, started = held(), time.perf_counter()
model = {load}
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
size = sum(p.numel() * p.element_size() for p in model.parameters())
checksum = float(sum(p.double().sum() for p in model.parameters()))
print(json.dumps({{"seconds": seconds, "above": peak - before - size, "checksum": checksum}}))
"""


def programs(file: Path) -> dict[str, str]:
    """What each library runs for a file."""
    return {
        "timm": _MEASURE.format(
            imports="import timm", load=f"timm.create_model({NAME!r}, checkpoint_path={str(file)!r})"
        ),
        "vitkit": _MEASURE.format(imports="from vitkit.weights import load", load=f"load({str(file)!r}).model"),
    }


def write_files(folder: Path) -> list[Path]:
    """The same random model in both layouts."""
    import torch

    from vitkit import Classifier, Preprocess, create_model
    from vitkit.weights import write

    torch.manual_seed(0)
    model = create_model(NAME)
    torch.nn.init.normal_(model.head.weight)
    classifier = Classifier(model, tuple(map(str, range(1000))), Preprocess(size=(224, 224)))
    write(classifier, folder / "timm", "timm")
    write(classifier, folder / "large.npz", "npz")
    return [folder / "timm" / "model.safetensors", folder / "large.npz"]


def run(program: str) -> dict[str, float]:
    """One load in a fresh process."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(rounds: int) -> None:
    """Load, compare, and write the table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for file in write_files(Path(folder)):
            loads = programs(file)
            for program in loads.values():  # once to warm the file cache
                run(program)
            outcomes: dict[str, list[dict[str, float]]] = {name: [] for name in loads}
            for _ in range(rounds):
                for name, program in loads.items():
                    outcomes[name].append(run(program))
            assert len({round(outcome["checksum"], 3) for runs in outcomes.values() for outcome in runs}) == 1
            base = statistics.median(outcome["seconds"] for outcome in outcomes["timm"])
            for name, runs in outcomes.items():
                seconds = statistics.median(outcome["seconds"] for outcome in runs)
                rows.append(
                    {
                        "file": file.suffix[1:],
                        "library": name,
                        "seconds": f"{seconds:.2f}",
                        "times_timm": f"{seconds / base:.2f}",
                        "peak_above_model_per_file_size": f"{max(o['above'] for o in runs) / file.stat().st_size:.2f}",
                        "rounds": rounds,
                    }
                )
                print(rows[-1])
    save_table("loading", "float32", rows)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
