"""`vitkit info`: what a model is and what it costs."""

from __future__ import annotations

from typing import Annotated

import typer

from vitkit.cli.arguments import PreprocessText
from vitkit.cli.say import show
from vitkit.verbs import info as verb


def info(
    model: Annotated[str, typer.Argument(help="A model name, a model folder, or a checkpoint of any layout.")],
    shapes: Annotated[bool, typer.Option("--shapes", help="Walk an image through the model, stage by stage.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
    image_size: Annotated[int | None, typer.Option("--image-size", min=1, help="Another size, in pixels.")] = None,
    heads: Annotated[int | None, typer.Option("--heads", min=1, help="Where a checkpoint cannot tell.")] = None,
    preprocess: PreprocessText = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Report on a checkpoint that does not fit, too.")
    ] = False,
) -> None:
    """Configuration, exact parameter count, GMACs and memory of a model; of a checkpoint, what becomes of every tensor.

    Nothing is allocated, and of a checkpoint only names and shapes are read.

    Example: vitkit info vit_base_patch16_224 --shapes
    """
    from vitkit.cli.progress import Bar

    with Bar() as bar:
        found = verb.info(
            model,
            shapes=shapes,
            image_size=image_size,
            heads=heads,
            preprocess=preprocess,
            allow_partial=allow_partial,
            progress=bar,
        )
    show(found, as_json=as_json)
