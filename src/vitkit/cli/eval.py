"""`vitkit eval`: how good a classifier is on labelled images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitkit.cli.arguments import (
    BackendName,
    DataRoot,
    Device,
    FolderLayout,
    Labels,
    MergeNumber,
    ModelSource,
    PlanName,
    PrecisionName,
    PreprocessText,
    tell,
)
from vitkit.cli.say import show
from vitkit.verbs import evaluate as verb


def evaluate(
    model: ModelSource,
    data: Annotated[str | None, typer.Argument(help="Other data than the run's own; classes go by name.")] = None,
    data_root: DataRoot = None,
    labels: Labels = None,
    split: Annotated[
        str | None, typer.Option("--split", help="train, val or test; by default test, else val, else all.")
    ] = None,
    layout: FolderLayout = "auto",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write report.html, evaluation.json and predictions.csv into this folder."),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            "--classes", help="The data's classes by name, with CLIP or SigLIP: 'daisy, rose', or a list's file."
        ),
    ] = None,
    templates: Annotated[
        list[str] | None, typer.Option("--template", help="With --classes: a sentence with {}; several are averaged.")
    ] = None,
    preprocess: PreprocessText = None,
    backend: BackendName = "auto",
    precision: PrecisionName = "auto",
    plan: PlanName = "auto",
    merge: MergeNumber = 0,
    device: Device = "auto",
    force: Annotated[bool, typer.Option("--force", help="Write over what is in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The numbers as JSON, accuracy (0-1) first.")] = False,
) -> None:
    """Accuracy and its kin, over all images and for each class.

    Example: vitkit eval runs/digits-1
    """
    from vitkit.cli.progress import Bar

    with Bar() as bar:
        found = verb.evaluate(
            model,
            data,
            data_root=data_root,
            labels=labels,
            split=split,
            layout=layout,
            out=out,
            classes=classes,
            templates=templates or (),
            preprocess=preprocess,
            backend=backend,
            precision=precision,
            plan=plan,
            merge=merge,
            device=device,
            force=force,
            note=tell,
            progress=bar,
        )
    show(found, as_json=as_json)
