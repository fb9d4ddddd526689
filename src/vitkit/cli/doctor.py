"""`vitkit doctor`: what is wrong with a data set, before a second is spent on training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vitkit.cli.arguments import FolderLayout
from vitkit.cli.say import say
from vitkit.system.files import to_json
from vitkit.verbs.places import check_out, sole_out

if TYPE_CHECKING:
    from vitkit.data.doctor.examine import Diagnosis

_BAR = 40  # characters of the longest


def doctor(
    data: Annotated[str, typer.Argument(help="Folder, CSV file, or the name of a data set.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write an HTML page with pictures, too.")] = None,
    fit: Annotated[
        Literal["crop", "pad", "squash"],
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
    from vitkit.data.doctor.examine import examine
    from vitkit.data.preprocess import Preprocess
    from vitkit.data.sources import read_source

    with Bar() as bar:
        table = read_source(data, bar, layout)
        if out is not None:
            check_out(out, (".html",), map(str, table.folders))
        with sole_out(out, force=force):
            diagnosis = examine(table, Preprocess(size=(224, 224), fit=fit, crop_pct=crop_pct), bar)
            if out is not None:
                from vitkit.reporting.dataset_report import write_checkup

                write_checkup(out, diagnosis)
    if as_json:
        print(to_json(diagnosis.to_dict(), indent=2))
    else:
        _print(diagnosis)
        if out is not None:
            say(f"with pictures: {out}")
    if diagnosis.has_problems:
        raise typer.Exit(1)


def _print(diagnosis: Diagnosis) -> None:
    from vitkit.data.walk import natural

    table, found = diagnosis.table, diagnosis.to_dict()
    say(f"{table.name}: {len(table)} images in {len(table.classes)} classes, {table.root}")
    if table.layout:
        say(table.layout)
    counts = table.counts()
    width, most = max(map(len, counts)), max(counts.values())
    for name in sorted(counts, key=natural):
        say(f"  {name:{width}}  {counts[name]:6}  {'#' * max(1, round(_BAR * counts[name] / most))}")
    if found["splits"]:
        say("splits   " + ", ".join(f"{count} {name}" for name, count in found["splits"].items()))
    say("formats  " + ", ".join(f"{count} {name}" for name, count in found["formats"].items()))
    say("colours  " + ", ".join(f"{count} {name}" for name, count in found["modes"].items()))
    for name, what in (("width", "pixels"), ("height", "pixels"), ("aspect", "width / height")):
        own = found[name]
        say(f"{name:7}  {own['min']:g} to {own['max']:g}, median {own['median']:g} ({what})")
    for finding in diagnosis.findings:
        say(finding)
    if not diagnosis.findings:
        say("nothing wrong was found")
