"""`vitkit.bench`: measure the speed of a model on this machine with each backend, or as a file of each format."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitkit.errors import VitkitError
from vitkit.inference.backends.registry import BACKENDS, PRECISIONS, backend_names
from vitkit.model.names import is_model_name, is_network_name
from vitkit.system.environment import DeviceName
from vitkit.system.progress import Progress, Say, silent
from vitkit.text.arguments import Between, check_arguments
from vitkit.text.cells import aligned
from vitkit.verbs.bench_formats import bench_formats, table_cells
from vitkit.verbs.inputs import exclusive_out_folder, open_model, path_of
from vitkit.verbs.result import Notes, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from vitkit.classifier import Classifier
    from vitkit.model.build import Model


_RATIO = "times_eager_float32"
COLUMNS = {  # keys of a row, with the heading and the format of the column
    "name": ("backend", "{}"),
    "batch": ("batch", "{}"),
    "images_per_s": ("images/s", "{}"),
    "quartiles": ("quartiles", "{}"),
    _RATIO: ("ratio", "{:.2f}"),
    "largest_difference": ("drift", "{:.1e}"),
    "same_top1": ("top-1", "{:.1%}"),
}


@check_arguments
def bench(
    model: str | Path | Classifier = "vit_small_patch16_224",
    *,
    batch_sizes: str | int | Sequence[int] = "1,8,32",
    backends: Annotated[
        str | Sequence[str] | None, f"With commas: some of {', '.join(BACKENDS)}; by default all that work here."
    ] = None,
    precisions: Annotated[
        str | Sequence[str], f"With commas: some of {', '.join(PRECISIONS[1:])}."
    ] = "float32,bfloat16",
    rounds: Annotated[int, Between(1)] = 15,
    device: DeviceName = "auto",
    export: bool = False,
    out: Path | str | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> Result:
    """Measure the images per second of each backend and precision.

    Each round times all backends in turn. The table shows the speed relative to eager float32, the largest difference
    of the logits from float32, and the fraction of predictions that are the same as in float32.

        import vitkit

        benchmark = vitkit.bench("vit_micro_patch4_16", batch_sizes=[1, 8], backends=["eager"], rounds=3)
        print(benchmark.machine, benchmark.missing, benchmark.rows()[0])  # speeds in images per second

    On the command line: `vitkit bench vit_base_patch16_224 --batch-sizes 1,8`.

    Args:
        model: a model name (with random weights), a run or model folder, or a checkpoint. A classifier in memory is
            accepted, too.
        batch_sizes: the batch sizes, separated by commas. A list is accepted, too.
        backends: some of eager, compile, openvino and onnx; by default all that work on this machine.
        precisions: float32, bfloat16, or both.
        rounds: the number of timings of each backend.
        device: the device to compute on: `cpu`, `cuda`, `mps`, or `auto` for a CUDA GPU if there is one, else the CPU.
        export: export the model to each format instead, in float32 and in INT8, and compare the files: their accuracy,
            agreement with the model, size, start and speed on the CPU. INT8 requires a run with its photographs.
        out: write the table (bench.csv) and a picture of it (bench.png) into this folder.
        force: overwrite files in `out`.
        progress: called with the current task, the number of finished items and the total number of items.

    Returns:
        A result whose table has a row for each backend, precision and batch size. Its facts are `model` (the name or
        path), `machine` (processor, cores, gpu, threads and torch version), `rounds`, `results` (the rows), `missing`
        (the reason for each backend that was left out, by backend and precision, such as `onnx bfloat16`), `notes`
        (assumptions about the model, and the backends that were left out), and the parts of the printed lines: `title`,
        `headings` and `cells` of the table, and `legend`. With `export`, there is a row for each format and batch size,
        and the facts are `model`, `compared_on` (the images), `results` and `missing`.

    Raises:
        VitkitError: there is no such model, a requested backend does not work on this machine, or `out` contains
            files.
    """
    if isinstance(batch_sizes, str):
        text = batch_sizes
    else:
        text = ",".join(map(str, [batch_sizes] if isinstance(batch_sizes, int) else batch_sizes))
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise VitkitError(
            "verbs.option-invalid",
            f"--batch-sizes {text!r} must be whole numbers above 0, separated by commas, such as 1,8,32",
        )
    sizes = sorted(set(map(int, parts)))

    requested = None if backends is None else _split_choices("--backends", backends, backend_names())
    wanted = _split_choices("--precisions", precisions, PRECISIONS)
    folder = path_of(out)
    with exclusive_out_folder(folder, (), force=force):
        if not export:
            result = _bench_backends(model, requested, wanted, sizes, rounds, device)
        elif requested or wanted != ["float32", "bfloat16"] or device not in ("auto", "cpu"):
            raise VitkitError(
                "verbs.option-conflict", "--export compares files: leave out --backends, --precisions and --device"
            )
        else:
            result = bench_formats(model, sizes, rounds)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            result.save(folder / "bench.csv")
            result.save(folder / "bench.png")
    return result


def _bench_backends(
    model: str | Path | Classifier,
    backends: list[str] | None,
    precisions: list[str],
    sizes: list[int],
    rounds: int,
    device: str,
) -> Result:
    import torch

    from vitkit.model.build import config_of
    from vitkit.profiling.speed import random_model

    notes = Notes()
    name = str(model) if isinstance(model, (str, Path)) else "classifier"
    is_file = isinstance(model, (str, Path)) and Path(model).exists()
    if isinstance(model, (str, Path)) and not is_file and (is_model_name(name) or is_network_name(name)):
        network = random_model(config_of(name))
    else:
        network = open_model(model, notes, "cpu").model
    results, missing = _measure(network, backends, precisions, sizes, rounds, device, notes)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }
    hardware = machine["gpu"] or f"{machine['processor']}, {machine['threads']} threads"
    title = f"{name} on {hardware}, torch {machine['torch']}, {rounds} rounds"
    headings = [heading for heading, _ in COLUMNS.values()]
    cells: list[list[str]] = []
    panels: dict[str, list[dict[str, Any]]] = {}
    for row in results:
        backend = f"{row['name'].removeprefix('vitkit ')} {row['precision']}"
        cells.append(table_cells({**row, "name": backend}, COLUMNS))
        panels.setdefault(f"{name}, batch {row['batch']}", []).append(row)
    legend = ["ratio: to eager float32; drift: of the logits from float32"]
    facts = {"model": name, "machine": machine, "rounds": rounds, "results": tuple(results), "missing": missing}
    printed = {"title": title, "headings": headings, "cells": cells, "legend": legend}
    return Result(
        "bench",
        [title, *aligned([headings, *cells]), *legend],
        {**facts, "notes": tuple(notes.lines), **printed},
        json=facts,
        rows=results,
        pictures={"Images per second": lambda: chart(panels)},
    )


def _split_choices(flag: str, names: str | Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the choices from a list, or from text with commas between them, without repetitions."""
    parts = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
    known = [name for name in known if name != "auto"]
    for part in parts or [""]:  # an empty list raises an error, too
        if part not in known:
            raise VitkitError("verbs.option-invalid", f"{flag} {part!r} is none of {', '.join(known)}")
    return list(dict.fromkeys(parts))


def _measure(
    model: Model,
    backends: list[str] | None,
    precisions: list[str],
    sizes: list[int],
    rounds: int,
    device: str,
    note: Say,
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Time the requested backends, and eager float32 as the reference; return the rows, and why others are missing."""
    import torch

    from vitkit.profiling.speed import compare, open_backends, row
    from vitkit.system.environment import choose_device

    images = _images(model, min(sizes))
    baseline = ("eager", "float32")
    wanted = [(backend, precision) for backend in backends or BACKENDS for precision in precisions]
    reference, _ = open_backends(model, [baseline], images, device)
    others, missing = open_backends(model, [pair for pair in wanted if pair != baseline], images, device)
    if backends is not None and missing:
        name, reason = next(iter(missing.items()))
        raise VitkitError("verbs.backend-unavailable", f"--backends {name.split()[0]} does not work here: {reason}")
    for left_out, reason in missing.items():
        note(f"{left_out} is left out: {reason}")
    target = torch.device(choose_device(device))
    rows = []
    for batch in sizes:
        speeds = compare(model, [*reference, *others], _images(model, batch), batch, rounds, target)
        eager = next(speed for speed in speeds if (speed.name, speed.precision) == ("vitkit eager", "float32"))
        rows += [row(speed, {_RATIO: eager}) for speed in speeds]
    return rows, missing


def _images(model: Model, batch: int) -> Tensor:
    """Return random images (B, C, height, width): as many whole batches as fit into 16 images, but at least one."""
    import torch

    count = batch * max(16 // batch, 1)
    shape = (count, model.config.in_channels, *model.config.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


_BAR_HEIGHT, _TITLE_HEIGHT = 0.24, 0.9  # inches


def chart(panels: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draw bar charts of images per second, one panel for each title.

    Bars of vitkit's backends are blue, and bars of other libraries are orange. Bars of float32 are hatched. The line at
    the end of a bar extends from the first to the third quartile.

    Args:
        panels: a mapping from the title of each panel to its rows, which `vitkit.profiling.speed.row` returns.
    """
    from vitkit.reporting.plots import BLUE, ORANGE
    from vitkit.text.pages import new_figure

    heights = [_TITLE_HEIGHT + _BAR_HEIGHT * len(rows) for rows in panels.values()]
    figure = new_figure(9, sum(heights))
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (title, rows) in zip(axes, panels.items(), strict=True):
        ordered = sorted(rows, key=lambda row: row["images_per_s"])
        for y, row in enumerate(ordered):
            rate, low, high = row["images_per_s"], row["images_per_s_q1"], row["images_per_s_q3"]
            axis.barh(
                y,
                rate,
                color=BLUE if row["name"].startswith("vitkit") else ORANGE,
                hatch="///" if row["precision"] == "float32" else "",
                edgecolor="white",
                xerr=[[max(rate - low, 0)], [max(high - rate, 0)]],
                error_kw={"ecolor": "black", "capsize": 2, "lw": 1},
            )
            axis.annotate(f" {rate:.4g}", (max(high, rate), y), va="center", fontsize=8)
        axis.set_yticks(range(len(ordered)), [f"{row['name']} {row['precision']}" for row in ordered], fontsize=8)
        axis.margins(x=0.12)
        axis.set_xlabel("images per second")
        axis.set_title(title, fontsize=10, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    return figure
