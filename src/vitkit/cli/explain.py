"""`vitkit explain`: where in a photograph an answer comes from, and what a checkpoint is like inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitkit.cli.arguments import Device, ModelSource, PreprocessText, tell
from vitkit.cli.say import say
from vitkit.explanation.methods import by_layer
from vitkit.verbs import explain as verb


def explain(
    model: ModelSource,
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="SRC...", help="Images, folders (walked), or patterns.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write into this folder.")] = None,
    method: Annotated[verb.Method, typer.Option("--method", help="How to look inside.")] = "gradient",
    target: Annotated[
        str,
        typer.Option("--target", metavar="CLASS|top|N", help="The class to explain: by name, by number, or the top."),
    ] = "top",
    layer: Annotated[
        int | None, typer.Option("--layer", help=f"For {', '.join(by_layer())}: this layer; -1 is the last.")
    ] = None,
    anatomy: Annotated[
        bool, typer.Option("--anatomy", help="Filters, positions and attention distances, as in the paper.")
    ] = False,
    preprocess: PreprocessText = None,
    device: Device = "auto",
    force: Annotated[bool, typer.Option("--force", help="Write into --out though it is not empty.")] = False,
) -> None:
    """Pictures of what an answer rests on: maps upon each photograph, or with --anatomy the model's own figures.

    Example: vitkit explain runs/digits-1 photo.jpg -o explained
    """
    from vitkit.cli.progress import Bar

    with Bar() as bar:
        found = verb.explain(
            model,
            sources or (),
            out,
            method=method,
            target=target,
            layer=layer,
            anatomy=anatomy,
            preprocess=preprocess,
            device=device,
            force=force,
            note=tell,
            progress=bar,
        )
    for line in found.lines():
        say(line)
    if isinstance(found, verb.Explanations) and found.is_empty:
        raise typer.Exit(1)
