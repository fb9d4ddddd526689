"""Do exported files predict as fast as earlier ones? `python benchmarks/files.py BEFORE AFTER [--rounds 15]`.

BEFORE and AFTER are folders with files of the same random weights (S16.xml, B16.xml, ...), which two commits have
written: `PYTHONPATH=COMMIT/src python benchmarks/files.py --write FOLDER`. Both files of a model take turns in one
process (A B A B ...). `ratio` is the median over rounds of the earlier file's processor time in that of the later one;
processor time counts all threads, and other processes take little of it. `itself` is the same ratio of the earlier file
to a second copy of itself, which shows the noise. `opening` is the wall-clock time from a file to its first logits.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from peers import MODELS
from tables import read_table, result_path, show, write_table

from vitkit.exporting import format_of
from vitkit.exporting.card import BLANK
from vitkit.exporting.formats import Storage
from vitkit.inference import processor
from vitkit.inference.backends import onnx, openvino
from vitkit.model import config_for
from vitkit.profiling import interleave, random_model, wall_seconds

OPENS = {".xml": openvino.from_file, ".onnx": onnx.from_file}
CARD = f'{{"checksum": "{BLANK}"}}'


def write(folder: Path, labels: list[str], suffixes: list[str]) -> None:
    """Write a model of each size, with random weights, and say how long it took."""
    for label in labels:
        model = random_model(config_for(MODELS[label]))
        for suffix in suffixes:
            out = folder / f"{label.replace('/', '')}{suffix}"
            form = format_of(out)
            took = wall_seconds(
                lambda form=form, model=model, out=out: form.save(form.convert(model, Storage()), out, CARD)
            )
            print(f"{out.name}: written in {took:.2f} s", flush=True)


def processor_seconds(work: Callable[[], object]) -> float:
    """The processor time that this process needs for some work."""
    began = time.process_time()
    work()
    return time.process_time() - began


def rows_of(before: Path, after: Path, batches: list[int], rounds: int) -> list[dict[str, Any]]:
    """Compare two files of one model: one row for each batch size."""
    opens = OPENS[before.suffix]
    image = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    opening = interleave({str(path): partial(_open, path, image) for path in (before, after)}, 5)
    runners = {"before": opens(before, "float32"), "after": opens(after, "float32"), "copy": opens(before, "float32")}
    rows = []
    for batch in batches:
        images = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(1))
        works = {name: partial(runner, images) for name, runner in runners.items()}
        times = interleave(works, rounds, stopwatch=processor_seconds)
        ours, earlier = times["after"], times["before"]
        ratio, itself = ours.speedup_over(earlier), times["copy"].speedup_over(earlier)
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
                "load": f"{os.getloadavg()[0]:.1f}",
                "openvino": version("openvino"),
                "onnxruntime": version("onnxruntime"),
                "processor": processor(),
            }
        )
        print(show(rows[-1]), flush=True)
    return rows


def _open(path: Path, image: torch.Tensor) -> None:
    OPENS[path.suffix](path, "float32")(image)


def main() -> None:
    """Measure, print, and add to the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="*", metavar="BEFORE AFTER")
    parser.add_argument("--write", type=Path, help="only write the files of both models to this folder")
    parser.add_argument("--models", default="S/16,B/16")
    parser.add_argument("--suffixes", default=".xml")
    parser.add_argument("--batches", default="8,1")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    labels, suffixes = options.models.split(","), options.suffixes.split(",")
    if options.write:
        write(options.write, labels, suffixes)
        return
    before, after = options.folders
    path = result_path("files", "float32")
    rows = read_table(path)
    for label in labels:
        for suffix in suffixes:
            name = f"{label.replace('/', '')}{suffix}"
            batches = [int(batch) for batch in options.batches.split(",")]
            rows += rows_of(before / name, after / name, batches, options.rounds)
            write_table(path, rows)
    print(path)


if __name__ == "__main__":
    main()
