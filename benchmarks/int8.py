"""Speed of a file in INT8 beside NNCF on timm's export: `python benchmarks/int8.py [--models Ti/16,S/16] [--batch 8]`.

Everything takes its turn in one process, round after round: the file that vitkit exports, as `vitkit predict` opens it,
in INT8 and in float32, and timm's model with the same weights, exported to the same runtime, in float32 and quantised
by `nncf.quantize` as its documentation says for Transformers. The images that determine the ranges are random, because
only the speed is measured. `int8_times_timms_int8` is our speed divided by theirs. Results are added to those of the
same day in benchmarks/results.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peers import MODELS, build
from rivals import Setting, compile_openvino, onnx_file, open_onnx, openvino_graph
from tables import read_table, result_path, show, write_table
from torch import Tensor

from vitkit.exporting.card import BLANK
from vitkit.exporting.formats import FORMATS, INT8, Storage
from vitkit.exporting.quantization import first_and_last
from vitkit.inference.backends.graph_runner import import_without_telemetry
from vitkit.inference.backends.graphs import exportable_copy, quietly
from vitkit.profiling.speed import interleave
from vitkit.system.files import to_json

Run = Callable[[Tensor], Any]
CALIBRATED_ON = 16  # images


def ours(setting: Setting, to: str, *, is_int8: bool) -> Run:
    """Return the function of a file that vitkit exports."""
    form, path = FORMATS[to], setting.folder / f"{is_int8}{FORMATS[to].suffix}"
    images = torch.randn(CALIBRATED_ON, *setting.images.shape[1:]).numpy()
    keep = first_and_last(exportable_copy(setting.model))
    storage = Storage(INT8, images=images, keep=keep) if is_int8 else Storage("float32")
    form.save(form.convert(setting.model, storage), path, to_json({"checksum": BLANK}))
    runner, _ = form.open(path, "auto")
    return lambda batch: runner.compute(batch.numpy())


def timms(setting: Setting, to: str, *, is_int8: bool) -> Run:
    """Return the function of timm's export."""
    import onnx

    nncf = import_without_telemetry("nncf")
    graph = onnx.load(onnx_file(setting)) if to == "onnx" else openvino_graph(setting)
    if is_int8:
        images = list(torch.randn(CALIBRATED_ON, *setting.images.shape).numpy())
        name = graph.graph.input[0].name if to == "onnx" else None
        data = nncf.Dataset(images, (lambda image: {name: image}) if name else None)
        with quietly():
            graph = nncf.quantize(graph, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(images))
    return open_onnx(graph.SerializeToString()) if to == "onnx" else compile_openvino(graph, "float32")


def measure(label: str, to: str, batch: int, rounds: int) -> dict[str, Any]:
    """Time the four contenders of one model in one runtime."""
    model = build(label, MODELS[label])
    images = torch.randn(batch, 3, *model.config.image_size)
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(model, images, Path(folder))
        runs = {
            f"{whose.__name__} {'int8' if is_int8 else 'float32'}": whose(setting, to, is_int8=is_int8)
            for whose in (ours, timms)
            for is_int8 in (True, False)
        }
        times = interleave({name: partial(run, images) for name, run in runs.items()}, rounds)
    speeds = {name.replace(" ", "_"): timing.rate(batch).median for name, timing in times.items()}
    compared = {
        f"{kind}_times_{other.replace(' ', '_')}": times[f"ours {kind}"].speedup_over(times[other]).median
        for kind, other in (
            *(("int8", other) for other in ("timms int8", "timms float32", "ours float32")),
            ("float32", "timms float32"),
        )
    }
    return {"model": label, "runtime": to, "batch": batch, **speeds, **compared}


def main() -> None:
    """Measure all models in both runtimes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="Ti/16,S/16,B/16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    path = result_path("int8", "int8-float32")
    rows = {(row["model"], row["runtime"], row["batch"]): row for row in read_table(path)}
    for label in options.models.split(","):
        for to in ("openvino", "onnx"):
            row = measure(label, to, options.batch, options.rounds)
            rows[label, to, options.batch] = row
            write_table(path, list(rows.values()))
            print(show(row), flush=True)


if __name__ == "__main__":
    main()
