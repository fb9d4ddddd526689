"""Arguments that several verbs share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from vitkit.cli.say import say
from vitkit.data.layout import LayoutName
from vitkit.inference.backends.registry import PLANS, PRECISIONS, backend_names
from vitkit.system.environment import DeviceName
from vitkit.weights.formats.registry import pixel_owners

if TYPE_CHECKING:  # choices are known when the tables have been read
    Backend: TypeAlias = str
    Precision: TypeAlias = str
    Plan: TypeAlias = str
else:
    Backend, Precision, Plan = Literal[backend_names()], Literal[PRECISIONS], Literal[PLANS]
ModelSource = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Run or model folder, checkpoint of any published layout, exported file, or published name.",
    ),
]


BackendName = Annotated[
    Backend, typer.Option("--backend", help="What computes; auto: the fastest that is installed and worth its start.")
]
PrecisionName = Annotated[
    Precision, typer.Option("--precision", help="auto: bfloat16 where the hardware multiplies such numbers.")
]
Device = Annotated[
    DeviceName, typer.Option("--device", help="Where it is computed; auto: a CUDA GPU if there is one, else the CPU.")
]
DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", help="The folder that holds the run's images now, under these or other names."),
]
Labels = Annotated[
    Path | None,
    typer.Option("--labels", help="Label file (CSV: path, label), whose rows go before the data's own labels."),
]
PlanName = Annotated[
    Plan,
    typer.Option("--plan", help="How eager computes on a CPU; auto: the fastest, as measured here once."),
]
MergeNumber = Annotated[
    int,
    typer.Option(
        "--merge",
        min=0,
        help="Merge so many patches with others in every layer: quicker, a little less accurate (arXiv 2210.09461).",
    ),
]

PreprocessText = Annotated[
    str | None,
    typer.Option(
        "--preprocess",
        metavar="TEXT|FILE",
        help="How images are read, where the model does not say: resize=256,crop=224,interpolation=bilinear,mean=0.5,"
        f"std=0.5; whose weights they are ({', '.join(pixel_owners())}); or a JSON file that says it.",
    ),
]

FolderLayout = Annotated[
    LayoutName,
    typer.Option("--layout", help="Whether the folders in DATA are classes or splits; auto: told by their names."),
]


def tell(line: str) -> None:
    """A line beside the answers, on stderr."""
    say(f"note: {line}", file=sys.stderr)
