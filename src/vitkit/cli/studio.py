"""`vitkit studio`: the whole way in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitkit.cli.say import say


def studio(
    source: Annotated[
        Path | None,
        typer.Argument(help="Folder or archive of photographs, labelled or not, or a run; by default the newest."),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", help="The folder of run folders; by default the run's, else runs.")
    ] = None,
    labels: Annotated[Path | None, typer.Option("--labels", help="The label file; by default labels/NAME.csv.")] = None,
    weights: Annotated[
        list[str] | None, typer.Option("--weights", help="A file of weights, or a model, to begin from; several times.")
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Where to listen; other machines then need the link's token.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="By default 8420, or the next that is free.")
    ] = None,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Label, train, look and ship in a browser, on this machine. Needs: pip install 'vitkit\\[studio]'.

    Photographs are only read, labels are kept at once, and trainings go on when the page or the studio is closed.

    Example: vitkit studio PHOTOS
    """
    from vitkit.webapp.app import studio as run

    run(
        source,
        runs=runs,
        labels=labels,
        weights=weights,
        host=host,
        port=port,
        show=show,
        say=lambda line: say(line, flush=True),
    )
