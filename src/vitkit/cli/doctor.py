"""`vitkit doctor`: what is wrong with a data set, before a second is spent on training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitkit.cli.arguments import DataRoot, FolderLayout, Labels
from vitkit.cli.say import show
from vitkit.verbs import doctor as verb


def doctor(
    data: Annotated[
        str, typer.Argument(help="Folder, CSV file, or the name of a data set; or a run's label_errors.csv.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write an HTML page with pictures, too.")] = None,
    labels: Labels = None,
    data_root: DataRoot = None,
    fit: Annotated[
        verb.Fit,
        typer.Option("--fit", help="How pictures will be fitted to the model's input."),
    ] = "crop",
    crop_pct: Annotated[float, typer.Option("--crop-pct", help="Part of the short side that the crop keeps.")] = 0.875,
    layout: FolderLayout = "auto",
    force: Annotated[bool, typer.Option("--force", help="Write over --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All that was found, as JSON.")] = False,
) -> None:
    """Look for what spoils training: broken files, copies across splits, copies with two labels, tiny classes.

    Every file is decoded once; files seen before are recognised by their content. Exits with 1 where a result could
    not be trusted: a picture that is in two splits, or has two labels.

    Example: vitkit doctor digits
    """
    from vitkit.cli.progress import Bar

    with Bar() as bar:
        found = verb.doctor(
            data,
            out,
            labels=labels,
            data_root=data_root,
            fit=fit,
            crop_pct=crop_pct,
            layout=layout,
            force=force,
            progress=bar,
        )
    show(found, as_json=as_json)
    if not found.is_trustworthy:
        raise typer.Exit(1)
