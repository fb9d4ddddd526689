"""`vitkit convert`: any published checkpoint into a model folder, and back out into the layouts of others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitkit.cli.arguments import ModelSource, PreprocessText
from vitkit.cli.say import say
from vitkit.text.cells import one_of
from vitkit.verbs import convert as verb
from vitkit.weights.formats.registry import file_suffixes, writable


def _told() -> str:
    own = [f"{name} ({form.tells})" if form.tells else name for name, form in writable().items()]
    return one_of(("folder (vitkit's own)", *own))


def convert(
    source: ModelSource,
    destination: Annotated[Path, typer.Argument(metavar="DST", help=f"Folder, or {one_of(file_suffixes())} file.")],
    to: Annotated[
        verb.Kind | None,
        typer.Option("--to", help=f"{_told()}; by default as DST ends."),
    ] = None,
    num_classes: Annotated[
        int | None, typer.Option("--num-classes", min=0, help="A new head, all zeros; 0: no head.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=1, help="Pixels; positions are resized as the source does.")
    ] = None,
    heads: Annotated[int | None, typer.Option("--heads", min=1, help="Where the checkpoint cannot tell.")] = None,
    preprocess: PreprocessText = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Write what fits, though tensors are missing or left over.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over DST.")] = False,
) -> None:
    """Convert a checkpoint, saying what became of every tensor; the result is read back and compared.

    Example: vitkit convert deit_tiny_patch16_224.pth models/deit-tiny
    """
    from vitkit.cli.progress import Bar

    with Bar() as bar:
        found = verb.convert(
            source,
            destination,
            to=to,
            num_classes=num_classes,
            image_size=image_size,
            heads=heads,
            preprocess=preprocess,
            allow_partial=allow_partial,
            force=force,
            progress=bar,
        )
    for line in found.lines():
        say(line)
