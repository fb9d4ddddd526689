"""`vitkit serve`: classifiers that other programs ask over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from vitkit.cli.arguments import BackendName, Device, PrecisionName, tell
from vitkit.cli.progress import Bar
from vitkit.cli.say import say
from vitkit.serving import serve as verb


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Run or model folders, checkpoints, exported files or published names; NAME=MODEL gives one a name.",
        ),
    ],
    host: Annotated[
        str, typer.Option("--host", help="Where to listen. What others can reach needs a token: one is made.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Of that address; 0 takes one that is free.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="VITKIT_TOKEN",
            show_envvar=True,
            help="Without which nothing is answered, in the header Authorization: Bearer.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="A further name it is called by, as a proxy or a container calls it."),
    ] = None,
    backend: BackendName = "auto",
    precision: PrecisionName = "auto",
    device: Device = "auto",
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Pictures at a time, at most; by default as suits the backend."),
    ] = None,
    max_wait: Annotated[
        float,
        typer.Option("--max-wait", help="Milliseconds that a picture waits for others, while a core is free."),
    ] = 5.0,
    queue: Annotated[
        int, typer.Option("--queue", min=1, help="Pictures that may wait; what is more is refused (503).")
    ] = 256,
    explain_queue: Annotated[
        int, typer.Option("--explain-queue", min=1, help="Pictures that may wait to be explained, likewise.")
    ] = 4,
    max_values: Annotated[
        int,
        typer.Option("--max-values", min=1, help="Numbers in an answer's features; what is more is refused (413)."),
    ] = 2_000_000,
) -> None:
    """Answer other programs over HTTP: /predict, /explain, /embed, /models, /health, /ready, /metrics, /docs.

    Pictures that come at a time are answered together. Ctrl-C, or SIGTERM, answers what was accepted, then ends.

    Example: vitkit serve runs/digits-1
    """
    with Bar() as bar:
        server = verb.serve(
            models,
            host=host,
            port=port,
            token=token,
            allow_host=allow_host or (),
            backend=backend,
            precision=precision,
            device=device,
            batch=batch,
            max_wait=max_wait,
            queue=queue,
            explain_queue=explain_queue,
            max_values=max_values,
            note=tell,
            progress=bar,
        )
    with server:
        for line in server.lines():
            say(line, flush=True)
        server.wait()
