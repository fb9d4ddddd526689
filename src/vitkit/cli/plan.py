"""`vitkit plan`: what a training will take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from vitkit.cli.flags import with_flags_of
from vitkit.cli.say import show
from vitkit.experiments.training_plan import DECODE_RATE
from vitkit.experiments.training_plan import plan as make_plan
from vitkit.profiling.accelerators import accelerator_names
from vitkit.training.recipe import Recipe

if TYPE_CHECKING:  # choices are known when the table has been read
    AcceleratorName: TypeAlias = str
else:
    AcceleratorName = Literal[accelerator_names()]


@with_flags_of(Recipe, but=("data", "select_time"))
def plan(
    recipe: Annotated[
        str, typer.Argument(help="TOML file, name of a bundled recipe, or name of a model, planned from scratch.")
    ],
    images: Annotated[
        int | None, typer.Option("--images", min=1, help="Images to train on; by default those of the recipe's data.")
    ] = None,
    classes: Annotated[
        int | None, typer.Option("--classes", min=1, help="By default those of the data, or of the model's name.")
    ] = None,
    accelerator: Annotated[AcceleratorName, typer.Option("--accelerator", help="What computes.")] = "h100",
    utilisation: Annotated[
        float, typer.Option("--utilisation", help="Part of the accelerator's peak that is reached.")
    ] = 0.4,
    price: Annotated[float | None, typer.Option("--price", help="Of one device for an hour.")] = None,
    decode_rate: Annotated[
        float, typer.Option("--decode-rate", help="Images that one CPU core reads and augments in a second.")
    ] = DECODE_RATE,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
    flags: dict[str, Any] | None = None,
) -> None:
    """Steps, tokens, FLOPs, memory, time and cost of a training, before anything is allocated.

    Example: vitkit plan vit_large_patch16_224 --images 1281167 --epochs 300 --batch-size 4096 --devices 8
    """
    from vitkit.cli.progress import Bar

    asked: dict[str, Any] = {"accelerator": accelerator, "utilisation": utilisation, "decode_rate": decode_rate}
    with Bar() as bar:
        found = make_plan(recipe, images=images, classes=classes, price=price, **asked, progress=bar, **(flags or {}))
    show(found, as_json=as_json)
