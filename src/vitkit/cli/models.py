"""`vitkit models`: the names that can be built, and the published weights that can be loaded."""

from __future__ import annotations

from typing import Annotated

import typer

from vitkit.cli.say import say
from vitkit.system.files import to_json
from vitkit.verbs import models as verb


def models(
    pattern: Annotated[str, typer.Argument(help="Part of the name, or a pattern such as '*base*'.")] = "*",
    weights: Annotated[
        bool, typer.Option("--weights", help="Published weights instead: data, licence, cost, accuracy and its source.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list.")] = False,
) -> None:
    """List the models that can be built by name; with --weights, the published weights that load by name.

    Example: vitkit models base
    """
    found = verb.models(pattern, weights=weights)
    if as_json:
        print(to_json(next(iter(found.to_dict().values())), indent=2 if weights else None))
        return
    for line in found.lines():
        say(line)
