"""`vitkit bench`: how fast a model runs on this machine, by each backend."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from vitkit.cli.arguments import Device, tell
from vitkit.cli.say import say
from vitkit.inference.backends.registry import BACKENDS, PRECISIONS
from vitkit.system.files import to_json
from vitkit.verbs import bench as verb


def bench(
    model: Annotated[
        str, typer.Argument(help="A model name (random weights), a run or model folder, or a checkpoint.")
    ] = "vit_small_patch16_224",
    batch_sizes: Annotated[str, typer.Option("--batch-sizes", help="Images at a time, with commas.")] = "1,8,32",
    backends: Annotated[
        str | None,
        typer.Option("--backends", help=f"With commas: {', '.join(BACKENDS)}; default: all that work."),
    ] = None,
    precisions: Annotated[
        str, typer.Option("--precisions", help=f"With commas: {', '.join(PRECISIONS[1:])}.")
    ] = "float32,bfloat16",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often each is timed, in turn.")] = 15,
    device: Device = "auto",
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
    from vitkit.cli.progress import Bar

    with Bar() as bar:
        found = verb.bench(
            model,
            batch_sizes=batch_sizes,
            backends=backends,
            precisions=precisions,
            rounds=rounds,
            device=device,
            out=out,
            force=force,
            note=tell,
            progress=bar,
        )
    if as_json:
        print(to_json(found.to_dict(), indent=2))
        return
    shown = found.lines()
    if sys.stdout.isatty():
        _print_table(found)
        shown = found.legend
    for line in shown:
        say(line)


def _print_table(found: verb.Benchmark) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=found.title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in found.headings:
        table.add_column(heading, justify="left" if heading == "backend" else "right", no_wrap=True)
    for cells in found.cells:
        table.add_row(*cells)
    Console().print(table)
