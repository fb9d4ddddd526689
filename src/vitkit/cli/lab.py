"""`vitkit lab`: the paper's experiments, done again on one's own images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from vitkit.cli.flags import with_flags_of
from vitkit.cli.say import say, show
from vitkit.experiments.comparison_request import NOT_COMPARED
from vitkit.experiments.lab.ablations import names
from vitkit.experiments.lab.presets import Preset
from vitkit.training.recipe import Recipe

if TYPE_CHECKING:  # choices are known when the table has been read
    Name: TypeAlias = str
else:
    Name = Literal[names()]


@with_flags_of(Recipe, but=NOT_COMPARED)
def lab(
    name: Annotated[
        Name | None, typer.Argument(metavar="NAME", help=f"Of the experiment: {', '.join(names())}; none lists them.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Folder of class folders, or a name; by default digits.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Whose variants are trained, by name; or the model that is measured."),
    ] = None,
    preset: Annotated[
        Preset, typer.Option("--preset", help="Minutes on two cores, or the published hyper-parameters.")
    ] = "small",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Trainings of each variant, from --seed on.")] = 3,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the experiment; by default the next runs/lab-NAME-N.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the experiment in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
    flags: dict[str, Any] | None = None,
) -> None:
    """Do an experiment of the paper's again: train its variants alike and compare them, or measure a model.

    Example: vitkit lab position --epochs 5
    """
    import sys

    from vitkit.cli.progress import Bar
    from vitkit.experiments.lab.lab import lab as verb

    with Bar() as bar:
        found = verb(
            name,
            data,
            model=model,
            preset=preset,
            seeds=seeds,
            out=out,
            resume=resume,
            say=(lambda line: say(line, file=sys.stderr)) if as_json else bar.say,
            progress=bar,
            **(flags or {}),
        )
    show(found, as_json=as_json)
