"""`vitkit bench`: how fast a model runs on this machine, by each backend."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitkit.cli.say import say
from vitkit.errors import VitkitError
from vitkit.model.names import config_for, is_model_name
from vitkit.system.files import sole_in, to_json

if TYPE_CHECKING:
    from torch import Tensor

    from vitkit.model.vit import VisionTransformer
    from vitkit.profiling.speed import Opened

_RATIO = "times_eager_float32"
_TABLE, _PICTURE = "bench.csv", "bench.png"
_COLUMNS = {  # of a row: heading and form
    "name": ("backend", "{}"),
    "batch": ("batch", "{}"),
    "images_per_s": ("images/s", "{}"),
    "quartiles": ("quartiles", "{}"),
    _RATIO: ("ratio", "{:.2f}"),
    "share_of_ceiling": ("ceiling", "{:.0%}"),
    "largest_difference": ("drift", "{:.1e}"),
    "same_top1": ("top-1", "{:.1%}"),
    "memory_mib": ("MiB", "{:.0f}"),
}


def bench(
    model: Annotated[
        str, typer.Argument(help="A model name (random weights), a run or model folder, or a checkpoint.")
    ] = "vit_small_patch16_224",
    batch_sizes: Annotated[str, typer.Option("--batch-sizes", help="Images at a time, with commas.")] = "1,8,32",
    backends: Annotated[
        str | None,
        typer.Option("--backends", help="With commas: eager, compile, openvino, onnx; default: all that work."),
    ] = None,
    precisions: Annotated[
        str, typer.Option("--precisions", help="With commas: float32, bfloat16.")
    ] = "float32,bfloat16",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often each is timed, in turn.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A folder for the table (bench.csv) and a picture (bench.png).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over what is in --out.")] = False,
) -> None:
    """Images per second of each backend and precision, timed in turn: A B C ... A B C ...

    Beside each: its speed relative to eager float32; the share it reaches of the ceiling, which is the model's matrix
    products alone; how far its logits and first classes are from float32; the memory it took to open and run it.

    Example: vitkit bench vit_base_patch16_224 --batch-sizes 1,8
    """
    sizes = _numbers(batch_sizes)
    from vitkit.inference.backends.base import BACKENDS, PRECISIONS

    asked = None if backends is None else _choices("--backends", backends, BACKENDS)
    wanted = _choices("--precisions", precisions, PRECISIONS)
    from vitkit.cli.progress import Bar

    with _sole_out(out, force=force):
        built = _model(model)
        with Bar() as bar:
            found = _measure(built, sizes, asked, wanted, rounds, bar)
        for name, reason in found["missing"].items():
            say(f"note: {name} is left out: {reason}", file=sys.stderr)
        if out is not None:
            _write(out, model, found["results"])
    if as_json:
        print(to_json({"model": model, **found}, indent=2))
        return
    _print(model, found)
    if out is not None:
        say(f"{out / _TABLE}, {out / _PICTURE}")


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise VitkitError(f"--batch-sizes {text!r} must be whole numbers above 0 with commas between them, as 1,8,32")
    return sorted(set(map(int, parts)))


def _choices(flag: str, text: str, known: Sequence[str]) -> list[str]:
    parts, known = [part.strip() for part in text.split(",")], [name for name in known if name != "auto"]
    for part in parts:
        if part not in known:
            raise VitkitError(f"{flag} {part!r} is none of {', '.join(known)}")
    return list(dict.fromkeys(parts))


@contextmanager
def _sole_out(out: Path | None, *, force: bool) -> Iterator[None]:
    """Write into the folder as the only process that does; other files than a table may be in it."""
    if out is None:
        yield
        return
    if out.exists() and not out.is_dir():
        raise VitkitError(f"--out {out} is a file; name a folder")
    with sole_in(out):
        if not force and any((out / name).exists() for name in (_TABLE, _PICTURE)):
            raise VitkitError(f"--out {out} holds a table already: name another folder, or --force to write over it")
        yield


def _model(source: str) -> VisionTransformer:
    if is_model_name(source) and not Path(source).exists():
        from vitkit.profiling.speed import random_model

        return random_model(config_for(source))
    from vitkit.cli.arguments import load_model

    return load_model(source).model


def _measure(
    model: VisionTransformer,
    batches: Sequence[int],
    backends: list[str] | None,
    precisions: list[str],
    rounds: int,
    bar: Any,
) -> dict[str, Any]:
    import torch

    from vitkit.profiling.speed import compare, row

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # as backends choose
    opened = _open(model, backends, precisions, min(batches), bar)
    results = []
    for batch in batches:
        speeds = compare(model, opened.contenders, _images(model, batch), batch, rounds, bar, device)
        eager = next(speed for speed in speeds if (speed.name, speed.precision) == ("vitkit eager", "float32"))
        for contender, speed in zip(opened.contenders, speeds, strict=True):
            taken = opened.memory[contender.key]
            memory = None if taken is None else round(taken / 2**20)
            results.append(row(speed, {_RATIO: eager}) | {"memory_mib": memory})
    return {"machine": _machine(), "rounds": rounds, "results": results, "missing": dict(opened.missing)}


def _open(model: VisionTransformer, backends: list[str] | None, precisions: list[str], batch: int, bar: Any) -> Opened:
    """Those asked for, and eager float32 ahead of them: the others are measured by it."""
    from vitkit.inference.backends.base import BACKENDS
    from vitkit.profiling.speed import Opened, open_backends

    images = _images(model, batch)
    first = open_backends(model, [("eager", "float32")], images, bar)
    asked = backends or [name for name in BACKENDS if name != "auto"]
    wanted = [(backend, precision) for backend in asked for precision in precisions]
    rest = open_backends(model, [own for own in wanted if own != ("eager", "float32")], images, bar)
    if backends is not None and rest.missing:
        name, reason = next(iter(rest.missing.items()))
        raise VitkitError(f"--backends {name.split()[0]} does not work here: {reason}")
    return Opened([*first.contenders, *rest.contenders], {**first.memory, **rest.memory}, rest.missing)


def _images(model: VisionTransformer, batch: int) -> Tensor:
    """At least 16, in whole batches."""
    import torch

    config, count = model.config, batch * max(16 // batch, 1)
    shape = (count, config.in_channels, *config.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _machine() -> dict[str, Any]:
    import os
    import platform

    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    processor = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "gpu": gpu}
    return processor | {"threads": torch.get_num_threads(), "torch": torch.__version__}


def _write(out: Path, model: str, rows: list[dict[str, Any]]) -> None:
    import csv

    from vitkit.profiling.chart import chart
    from vitkit.reporting.plots import save_figure
    from vitkit.system.files import replacing

    out.mkdir(parents=True, exist_ok=True)
    with replacing(out / _TABLE) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    batches = dict.fromkeys(row["batch"] for row in rows)
    panels = {f"{model}, batch {batch}": [row for row in rows if row["batch"] == batch] for batch in batches}
    save_figure(chart(panels), out / _PICTURE)


def _print(model: str, found: dict[str, Any]) -> None:
    rows = [_cells(row) for row in found["results"]]
    machine = found["machine"]
    place = machine["gpu"] or f"{machine['processor']}, {machine['threads']} threads"
    title = f"{model} on {place}, torch {machine['torch']}, {found['rounds']} rounds"
    if sys.stdout.isatty():
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for heading, _ in _COLUMNS.values():
            table.add_column(heading, justify="left" if heading == "backend" else "right", no_wrap=True)
        for cells in rows:
            table.add_row(*cells)
        Console().print(table)
    else:
        lines = [[heading for heading, _ in _COLUMNS.values()], *rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        say(title)
        for line in lines:
            say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    say("ratio: to eager float32; ceiling: share of the speed of the matrix products alone; drift: from float32")
    ceilings = dict.fromkeys((row["precision"], row["batch"], row["ceiling_gflops"]) for row in found["results"])
    for precision, batch, rate in ceilings:
        say(f"ceiling of {precision} at batch {batch}: {rate:.4g} GFLOP/s in the model's matrix products")


def _cells(row: dict[str, Any]) -> list[str]:
    low, median, high = (_short(row[f"images_per_s{part}"]) for part in ("_q1", "", "_q3"))
    name = f"{row['name'].removeprefix('vitkit ')} {row['precision']}"
    row = row | {"name": name, "images_per_s": median, "quartiles": f"{low}-{high}"}
    return ["" if row[name] is None else form.format(row[name]) for name, (_, form) in _COLUMNS.items()]


def _short(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
