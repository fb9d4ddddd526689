"""`vitkit search`: the images that a text describes best."""

from __future__ import annotations

from typing import Annotated

import typer

from vitkit.cli.arguments import Device, tell
from vitkit.cli.say import say
from vitkit.verbs import search as verb


def search(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="CLIP or SigLIP with its text encoder: a folder, file or name.")
    ],
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", help="Images, folders (walked), or patterns.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is looked for.")],
    top: Annotated[int, typer.Option("--top", min=1, help="How many images to list.")] = 5,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images at a time.")] = 32,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """The images that a text describes best, by CLIP or SigLIP; as CSV.

    Example: vitkit search siglip2-folder photos 'a dog on a beach'
    """
    from vitkit.cli.progress import Bar
    from vitkit.system.files import to_json

    with Bar() as bar:
        found = verb.search(
            model, sources, text, top=top, batch_size=batch_size, device=device, note=tell, progress=bar
        )
    if as_json:
        print(to_json(found.to_dict()))
        return
    for line in found.lines():
        say(line)
