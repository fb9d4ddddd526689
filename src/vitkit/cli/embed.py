"""`vitkit embed`: what a model sees in images, as vectors; and the images that are most like one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitkit.cli.arguments import Device, Labels, ModelSource, PreprocessText, tell
from vitkit.cli.say import say
from vitkit.errors import VitkitError
from vitkit.verbs import embed as verb


def embed(
    model: ModelSource,
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", help="Images, folders (walked), or patterns.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this .npz file.")] = None,
    what: Annotated[
        verb.What,
        typer.Option("--what", help="What the head reads, the class token, the patches' mean, or every patch."),
    ] = "head",
    near: Annotated[Path | None, typer.Option("--near", help="List the images most like this one.")] = None,
    labels: Labels = None,
    top: Annotated[int, typer.Option("--top", min=1, help="With --near: how many.")] = 5,
    preprocess: PreprocessText = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images at a time.")] = 32,
    device: Device = "auto",
    force: Annotated[bool, typer.Option("--force", help="Write over --out.")] = False,
) -> None:
    """Features of each image, from the same pixels as predictions; an .npz file with paths, features and errors.

    Example: vitkit embed runs/digits-1 photos -o features.npz
    """
    from vitkit.cli.progress import Bar

    if out is None and near is None:
        raise VitkitError("say where to: --out FILE.npz; or what to look for: --near IMAGE")
    with Bar() as bar:
        found = verb.embed(
            model,
            sources,
            out=out,
            what=what,
            near=near,
            labels=labels,
            top=top,
            preprocess=preprocess,
            batch_size=batch_size,
            device=device,
            force=force,
            note=tell,
            progress=bar,
        )
    for line in found.lines():
        say(line)
