"""Do exported files predict as fast as earlier ones? `python benchmarks/files.py --before FOLDER [--rounds 25]`.

FOLDER holds S16.xml, B16.xml (and .bin, or .onnx), which an earlier commit wrote from the same random weights:
`PYTHONPATH=EARLIER/src python benchmarks/files.py --write FOLDER`. Both files of a model take turns in one process
(A B A B ...). `ratio` is the median over rounds of the earlier file's time in that of the file that is written now;
`ratio_of_medians` and `ratio_of_fastest` compare the medians and the fastest rounds of each. `itself` is the ratio of
the earlier file to a second copy of itself, which shows the noise. `opening` is the time from a
file to its first logits.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from peers import MODELS
from tables import save_table, show

from vitkit.exporting import onnx_format, openvino_format
from vitkit.exporting.card import BLANK
from vitkit.inference import processor
from vitkit.inference.backends import onnx, openvino
from vitkit.model import config_for
from vitkit.profiling import interleave, on_cpu, random_model

OPENS = {".xml": openvino.from_file, ".onnx": onnx.from_file}
WRITES = {".xml": openvino_format.write, ".onnx": onnx_format.write}
CARD = f'{{"checksum": "{BLANK}"}}'
LABELS = ("S/16", "B/16")


def write(folder: Path, suffixes: list[str]) -> None:
    """Write a model of each size, with random weights, and say how long it took."""
    for label in LABELS:
        model = random_model(config_for(MODELS[label]))
        for suffix in suffixes:
            out = folder / f"{label.replace('/', '')}{suffix}"
            took = on_cpu(partial(WRITES[suffix], model, out, CARD, None, torch.float32))
            print(f"{out.name}: written in {took:.2f} s", flush=True)


def rows_of(before: Path, after: Path, batches: list[int], rounds: int) -> list[dict[str, Any]]:
    """Compare two files of one model: one row for each batch size."""
    opens = OPENS[before.suffix]
    image = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    opening = interleave(
        {str(path): lambda path=path: opens(path, "float32")(image) for path in (before, after)}, 7, long=0
    )
    runners = {"before": opens(before, "float32"), "after": opens(after, "float32"), "copy": opens(before, "float32")}
    rows = []
    for batch in batches:
        images = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(1))
        times = interleave({name: partial(runner, images) for name, runner in runners.items()}, rounds * 8 // batch)
        ours, earlier = times["after"], times["before"]
        ratio, itself = ours.times_as_fast_as(earlier), times["copy"].times_as_fast_as(earlier)
        rows.append(
            {
                "model": before.stem,
                "format": before.suffix[1:],
                "batch": batch,
                "ratio": f"{ratio.median:.3f}",
                "ratio_q1": f"{ratio.low:.3f}",
                "ratio_q3": f"{ratio.high:.3f}",
                "ratio_of_medians": f"{earlier.quartiles.median / ours.quartiles.median:.3f}",
                "ratio_of_fastest": f"{min(earlier.seconds) / min(ours.seconds):.3f}",
                "itself": f"{itself.median:.3f}",
                "rounds": len(ours.seconds),
                "seconds": f"{statistics.median(ours.seconds):.4f}",
                "opening_before": f"{opening[str(before)].quartiles.median:.2f}",
                "opening_after": f"{opening[str(after)].quartiles.median:.2f}",
                "difference": f"{(runners['before'](images) - runners['after'](images)).abs().max():.1e}",
                "load": f"{os.getloadavg()[0]:.1f}",
                "openvino": version("openvino"),
                "onnxruntime": version("onnxruntime"),
                "processor": processor(),
            }
        )
        print(show(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="only export the models to this folder")
    parser.add_argument("--before", type=Path, help="the folder of files to compare with")
    parser.add_argument("--suffixes", default=".xml")
    parser.add_argument("--batches", default="8,1")
    parser.add_argument("--rounds", type=int, default=25, help="for batches of 8; more for smaller ones")
    options = parser.parse_args()
    suffixes, batches = options.suffixes.split(","), [int(batch) for batch in options.batches.split(",")]
    if options.write:
        write(options.write, suffixes)
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), suffixes)
        for label in LABELS:
            for suffix in suffixes:
                name = f"{label.replace('/', '')}{suffix}"
                rows += rows_of(options.before / name, Path(folder, name), batches, options.rounds)
    save_table("files", "float32", rows)


if __name__ == "__main__":
    main()
