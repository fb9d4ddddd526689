"""`vitkit models`: the names that can be built, and the published weights that can be loaded."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vitkit.cli.say import say
from vitkit.errors import VitkitError
from vitkit.model.names import config_for, list_models
from vitkit.system.files import to_json


def models(
    pattern: Annotated[str, typer.Argument(help="Part of the name, or a pattern such as '*base*'.")] = "*",
    weights: Annotated[
        bool, typer.Option("--weights", help="Published weights instead: name, classes, accuracy, licence, paper.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list.")] = False,
) -> None:
    """List the models that can be built by name; with --weights, the published weights that load by name.

    Example: vitkit models base
    """
    if weights:
        _list_weights(pattern, as_json=as_json)
        return
    names = list_models(pattern)
    if not names:
        raise VitkitError(f"no model's name matches {pattern!r}; `vitkit models` lists all {len(list_models())}")
    if as_json:
        print(to_json(names))
        return
    width = max(map(len, names))
    say(f"{'name':{width}}  layers  hidden  heads  patches  classes")
    for name in names:
        c = config_for(name)
        grid = f"{c.grid[0]}x{c.grid[1]}"
        say(f"{name:{width}}  {c.layers:6}  {c.hidden_size:6}  {c.heads:5}  {grid:>7}  {c.num_classes:7}")


def _list_weights(pattern: str, *, as_json: bool) -> None:
    from vitkit.weights.catalog import CATALOG, Entry, search

    entries = search(pattern)
    if not entries:
        raise VitkitError(
            f"no published weights match {pattern!r}; `vitkit models --weights` lists all {len(CATALOG)}, and any "
            "OWNER/NAME of the Hugging Face hub may be tried"
        )

    def row(entry: Entry) -> dict[str, Any]:
        return {
            "name": entry.name,
            "pixels": entry.preprocess.size[0],
            "classes": entry.classes,
            "top1": entry.top1,
            "timm_pixels": None if entry.timm is None else "same" if entry.timm == entry.preprocess else "other",
            "licence": entry.licence,
            "paper": entry.paper,
            "where": entry.url or f"hub:{entry.hub}",
        }

    rows = [row(entry) for entry in entries]
    if as_json:
        print(to_json(rows, indent=2))
        return
    width = max(len(row["name"]) for row in rows)
    say(f"{'name':{width}}  pixels  timm's  classes      top-1  licence       arXiv")
    for r in rows:
        top1 = "" if r["top1"] is None else f"{r['top1']:.2f}"
        timms = r["timm_pixels"] or ""
        facts = f"{r['classes']:11}  {top1:>5}  {r['licence']:12}  {r['paper']}"
        say(f"{r['name']:{width}}  {r['pixels']:6}  {timms:6}  {facts}")
    others = sum(r["timm_pixels"] == "other" for r in rows)
    if others:
        say(f"{others} have other pixels here, their authors' own, than in timm: timm:NAME takes timm's")
