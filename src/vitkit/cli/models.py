"""`vitkit models`: the names that can be built."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from vitkit.errors import VitkitError
from vitkit.names import config_for, list_models


def models(
    pattern: Annotated[str, typer.Argument(help="Part of the name, or a pattern such as '*base*'.")] = "*",
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list of names.")] = False,
) -> None:
    """List the models that can be built by name.

    Example: vitkit models base
    """
    names = list_models(pattern)
    if not names:
        raise VitkitError(f"no model's name matches {pattern!r}; `vitkit models` lists all {len(list_models())}")
    if as_json:
        print(json.dumps(names))
        return
    width = max(map(len, names))
    print(f"{'name':{width}}  layers  hidden  heads  patches  classes")
    for name in names:
        c = config_for(name)
        grid = f"{c.grid[0]}x{c.grid[1]}"
        print(f"{name:{width}}  {c.layers:6}  {c.hidden_size:6}  {c.heads:5}  {grid:>7}  {c.num_classes:7}")
