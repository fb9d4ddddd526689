"""`vitkit export`: a classifier as a file for another runtime."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from vitkit.cli.arguments import DataRoot, FolderLayout, ModelSource, PreprocessText, tell
from vitkit.cli.say import say, show
from vitkit.exporting.formats import suffixes
from vitkit.text.cells import one_of
from vitkit.verbs import export as verb


def export(
    model: ModelSource,
    to: Annotated[
        verb.Runtime | None,
        typer.Option("--to", help=f"The runtime it is for; by default as --out ends: {one_of(suffixes())}."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write to this file; by default named as the model, in this folder."),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Compare on images of this data; by default those of the run itself.")
    ] = None,
    layout: FolderLayout = "auto",
    data_root: DataRoot = None,
    image_size: Annotated[
        str | None,
        typer.Option("--image-size", metavar="H,W", help="Another size, in pixels; positions are resized."),
    ] = None,
    preprocess: PreprocessText = None,
    precision: Annotated[verb.Dtype, typer.Option("--precision", help="In which the weights are stored.")] = "float32",
    dynamic_batch: Annotated[
        bool, typer.Option("--dynamic-batch/--no-dynamic-batch", help="Any number of images at a time, or only one.")
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Write over --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Write a model for ONNX Runtime, OpenVINO or torch.export, with all that prediction needs inside.

    The file is read back by its runtime and compared with the model; where they differ, exit 1 and no file.

    Example: vitkit export runs/digits-1 --to onnx -o digits.onnx
    """
    from vitkit.cli.progress import Bar
    from vitkit.exporting.check import Refused

    with Bar() as bar:
        try:
            found = verb.export(
                model,
                to,
                out,
                data=data,
                layout=layout,
                data_root=data_root,
                image_size=image_size,
                preprocess=preprocess,
                precision=precision,
                dynamic_batch=dynamic_batch,
                force=force,
                note=tell,
                progress=bar,
            )
        except Refused as error:
            say(f"refused: {error}; nothing was written", file=sys.stderr)
            raise typer.Exit(1) from error
    show(found, as_json=as_json)
