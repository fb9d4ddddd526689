"""`vitkit train`: from a folder of photographs to a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitkit.cli.arguments import DataRoot
from vitkit.cli.flags import with_flags_of
from vitkit.errors import VitkitError
from vitkit.training.recipe import Recipe, departures, resolve


@with_flags_of(Recipe, but=("data",))
def train(
    data: Annotated[
        str | None,
        typer.Argument(help="Folder of class folders, folder with train/ and val/, or a name such as digits."),
    ] = None,
    recipe: Annotated[str | None, typer.Option("--recipe", help="TOML file, or the name of a bundled recipe.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder; by default the next runs/NAME-N.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over the run in --out.")] = False,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with this interrupted run.")] = None,
    data_root: DataRoot = None,
    flags: dict[str, Any] | None = None,
) -> None:
    """Train a classifier on a folder of photographs, and report on it.

    Example: vitkit train digits
    """
    from vitkit.cli.progress import Bar

    flags = dict(flags or {})
    if resume is not None:
        if data is not None or recipe is not None or out is not None or force or flags:
            raise VitkitError("--resume takes everything from the run: leave out the data and the other flags")
        from vitkit.training import run

        with Bar() as bar:
            run.resume(resume, data_root, say=bar.say, progress=bar)
        return
    if data_root is not None:
        raise VitkitError("--data-root says where the images of a run are now: it goes with --resume")
    if data is not None:
        flags["data"] = data
    resolved, notes = resolve(flags, recipe), departures(flags, recipe)
    from vitkit.training import run

    with Bar() as bar:
        run.train(resolved, out, force=force, notes=notes, say=bar.say, progress=bar)
