"""`vitkit pretrain`: from pictures without labels to an encoder that training starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitkit.cli.arguments import DataRoot
from vitkit.cli.flags import with_flags_of
from vitkit.training.pretraining.options import OF_LABELS, OtherDefaults, Pretraining
from vitkit.training.recipe import Recipe
from vitkit.verbs.pretrain import pretrain as run_pretraining


@with_flags_of(Pretraining, OtherDefaults, Recipe, but=("data", *OF_LABELS))
def pretrain(
    data: Annotated[
        str | None, typer.Argument(help="Folder of pictures, with class folders or without, or a name such as digits.")
    ] = None,
    recipe: Annotated[str | None, typer.Option("--recipe", help="TOML file of fields, which flags go before.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder; by default the next runs/NAME-OBJECTIVE-N.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over the run in --out.")] = False,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with this interrupted run.")] = None,
    data_root: DataRoot = None,
    flags: dict[str, Any] | None = None,
) -> None:
    """Pre-train a model on pictures without their labels; train --weights RUN goes on from it.

    Example: vitkit pretrain digits --model vit_micro_patch4_16 --objective mae
    """
    from vitkit.cli.progress import Bar

    places: dict[str, Any] = {"recipe": recipe, "out": out, "resume": resume, "data_root": data_root}
    with Bar() as bar:
        run_pretraining(data, **places, force=force, say=bar.say, progress=bar, **(flags or {}))
