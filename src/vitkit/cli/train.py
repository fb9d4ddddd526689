"""`vitkit train`: from a folder of photographs to a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitkit.cli.arguments import DataRoot
from vitkit.cli.flags import with_flags_of
from vitkit.training.recipe import Recipe
from vitkit.verbs.train import train as run_training


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

    places: dict[str, Any] = {"recipe": recipe, "out": out, "resume": resume, "data_root": data_root}
    with Bar() as bar:
        run_training(data, **places, force=force, say=bar.say, progress=bar, **(flags or {}))
