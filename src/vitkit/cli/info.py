"""`vitkit info`: what a model is and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitkit.cli.say import say
from vitkit.errors import VitkitError
from vitkit.model.names import config_for, is_model_name
from vitkit.system.files import to_json
from vitkit.verbs.inputs import EXPORTED

if TYPE_CHECKING:
    from vitkit.profiling.model_info import ModelInfo
    from vitkit.weights.plan import Plan


def info(
    model: Annotated[str, typer.Argument(help="A model name, a model folder, or a checkpoint of any layout.")],
    shapes: Annotated[bool, typer.Option("--shapes", help="Walk an image through the model, stage by stage.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
    image_size: Annotated[int | None, typer.Option("--image-size", min=1, help="Another size, in pixels.")] = None,
    heads: Annotated[int | None, typer.Option("--heads", min=1, help="Where a checkpoint cannot tell.")] = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Report on a checkpoint that does not fit, too.")
    ] = False,
) -> None:
    """Configuration, exact parameter count, GMACs and memory of a model; of a checkpoint, what becomes of every tensor.

    Nothing is allocated, and of a checkpoint only names and shapes are read.

    Example: vitkit info vit_base_patch16_224 --shapes
    """
    options: dict[str, Any] = {"image_size": image_size, "heads": heads}
    options = {name: value for name, value in options.items() if value is not None}
    is_name = is_model_name(model) and not Path(model).exists()
    plan = None if is_name else _inspect(model, allow_partial=allow_partial, **options)
    config = config_for(model, **options) if plan is None else plan.config
    from vitkit.profiling.model_info import describe

    measured = describe(config)
    described = {} if plan is None else _describe(plan)
    if as_json:
        print(to_json({"name": model, **described, **measured.to_dict()}, indent=2))
        return
    _print_costs(model, measured)
    if plan is not None:
        say("\nweights")
        for line in plan.report.lines():
            say(f"  {line}")
    _print_fields("configuration", config.to_dict())
    for section in ("preprocess", "provenance"):
        if described.get(section):
            _print_fields(section, described[section])
    if described.get("classes"):
        say(f"\nclasses ({len(described['classes'])})\n  {_shorten(described['classes'])}")
    if shapes:
        _print_stages(measured)


def _inspect(source: str, **options: Any) -> Plan:
    if Path(source).suffix.lower() in EXPORTED and Path(source).is_file():
        raise VitkitError(f"{source} is an exported file: take the model folder that it was made from")
    if "/" not in source and "." not in source and not Path(source).exists():
        config_for(source)  # a misspelt name: says which ones are like it
    from vitkit.cli.progress import Bar
    from vitkit.weights import inspect

    with Bar() as bar:
        return inspect(source, progress=bar, **options)


def _describe(plan: Plan) -> dict[str, Any]:
    return {
        "classes": list(plan.classes),
        "preprocess": plan.preprocess.to_dict(),
        "temperature": plan.temperature,
        "provenance": plan.provenance,
        "report": plan.report.to_dict(),
    }


def _shorten(names: list[str], most: int = 20) -> str:
    return ", ".join(names[:most]) + (f" ... and {len(names) - most} more" if len(names) > most else "")


def _print_costs(name: str, measured: ModelInfo) -> None:
    mebibytes = {dtype: size / 2**20 for dtype, size in measured.weight_bytes.items()}
    say(name)
    say(f"  parameters      {measured.parameters:,}")
    say(f"  GMACs           {measured.gmacs:.3f}   ({2 * measured.gmacs:.3f} GFLOPs, for one image)")
    say(f"  GMACs executed  {measured.gmacs_executed:.3f}   (the last block works for the head alone)")
    say(f"  weights         {mebibytes['float32']:.1f} MiB in float32, {mebibytes['bfloat16']:.1f} in bfloat16")
    kept = measured.activation_bytes / 2**20
    say(f"  activations     {kept:.1f} MiB kept for the backward pass, for one image in float32")


def _print_fields(title: str, fields: dict[str, Any]) -> None:
    say(f"\n{title}")
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        text = ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else str(value)
        say(f"  {name:{width}}  {text}")


def _print_stages(measured: ModelInfo) -> None:
    say(f"\n{'stage':28}  {'shape':>14}  {'times':>5}  {'parameters':>12}  {'MMACs':>10}")
    for stage in measured.stages:
        shape = "x".join(map(str, stage.shape))
        say(
            f"{stage.name:28}  {shape:>14}  {stage.times:>5}  {stage.parameters * stage.times:>12,}"
            f"  {stage.macs * stage.times / 1e6:>10,.1f}"
        )
