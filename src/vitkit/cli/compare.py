"""`vitkit compare`: which of several models is the better one for these photographs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitkit.cli.flags import with_flags_of
from vitkit.cli.say import say, show
from vitkit.experiments.comparison_request import NOT_COMPARED
from vitkit.experiments.stress_kinds import STRESSES
from vitkit.training.recipe import Recipe


@with_flags_of(Recipe, but=NOT_COMPARED)
def compare(
    data: Annotated[
        str | None,
        typer.Argument(help="Folder of class folders, folder with train/ and val/, or a name such as digits."),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option("--models", help="Names as `vitkit train --model` takes them, NAME@WEIGHTS, or RECIPE.toml."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="TOML file, or the name of a bundled recipe, for all models.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Trainings of each model, from --seed on.")] = 3,
    budget: Annotated[
        str | None,
        typer.Option("--budget", help="Of each training: epochs=N, time=T (90s, 10m, 2h) or flops=F."),
    ] = None,
    fractions: Annotated[
        str, typer.Option("--fractions", help="Of the training images, as 0.1,0.3,1; the test images stay.")
    ] = "1",
    stress: Annotated[
        str,
        typer.Option("--stress", help=f"Ask of pictures made harder, too; with commas: {', '.join(STRESSES)}."),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the comparison; by default the next runs/compare-NAME-N."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the comparison in --out.")] = False,
    devices: Annotated[
        int,
        typer.Option(
            "--devices", min=1, help="Trainings at a time, each on a GPU of its own or its part of the cores."
        ),
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
    flags: dict[str, Any] | None = None,
) -> None:
    """Train several models alike, and say which is better on the same test images, and how surely.

    Example: vitkit compare digits --models vit_micro_patch4_16,vit_micro_r_s4_16 --epochs 2
    """
    import sys

    from vitkit.cli.progress import Bar
    from vitkit.experiments import compare as verb

    with Bar() as bar:
        found = verb.compare(
            data,
            models,
            recipe=recipe,
            seeds=seeds,
            budget=budget,
            fractions=fractions,
            stress=stress,
            out=out,
            resume=resume,
            devices=devices,
            say=(lambda line: say(line, file=sys.stderr)) if as_json else bar.say,
            progress=bar,
            **(flags or {}),
        )
    show(found, as_json=as_json)
