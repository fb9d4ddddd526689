"""`vitkit info`: what a model is and what it costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitkit.config import ViTConfig, config_for

if TYPE_CHECKING:
    from vitkit.info import ModelInfo


def info(
    model: Annotated[str, typer.Argument(help="A model name, or a model folder.")],
    shapes: Annotated[bool, typer.Option("--shapes", help="Walk an image through the model, stage by stage.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
) -> None:
    """Configuration, exact parameter count, GMACs and memory of a model; nothing is allocated.

    Example: vitkit info vit_base_patch16_224 --shapes
    """
    folder = Path(model)
    described = _describe_folder(folder) if folder.is_dir() else {}
    config = ViTConfig.from_dict(described["config"]) if described else config_for(model)
    from vitkit.info import describe

    measured = describe(config)
    if as_json:
        print(json.dumps({"name": model, **described, **measured.to_dict()}, indent=2, ensure_ascii=False))
        return
    _print_costs(model, measured)
    _print_fields("configuration", config.to_dict())
    for section in ("preprocess", "provenance"):
        if section in described:
            _print_fields(section, described[section])
    if described:
        print(f"\nclasses\n  {', '.join(described['classes'])}")
    if shapes:
        _print_stages(measured)


def _describe_folder(folder: Path) -> dict[str, Any]:
    from vitkit.classifier import read_description

    description = read_description(folder)
    return {key: description[key] for key in ("config", "classes", "preprocess", "temperature", "provenance")}


def _print_costs(name: str, measured: ModelInfo) -> None:
    mebibytes = {dtype: size / 2**20 for dtype, size in measured.weight_bytes.items()}
    print(name)
    print(f"  parameters      {measured.parameters:,}")
    print(f"  GMACs           {measured.gmacs:.3f}   ({2 * measured.gmacs:.3f} GFLOPs, for one image)")
    print(f"  GMACs executed  {measured.gmacs_executed:.3f}   (the last block works for the head alone)")
    print(f"  weights         {mebibytes['float32']:.1f} MiB in float32, {mebibytes['bfloat16']:.1f} in bfloat16")
    kept = measured.activation_bytes / 2**20
    print(f"  activations     {kept:.1f} MiB kept for the backward pass, for one image in float32")


def _print_fields(title: str, fields: dict[str, Any]) -> None:
    print(f"\n{title}")
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        text = ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else str(value)
        print(f"  {name:{width}}  {text}")


def _print_stages(measured: ModelInfo) -> None:
    print(f"\n{'stage':28}  {'shape':>14}  {'times':>5}  {'parameters':>12}  {'MMACs':>10}")
    for stage in measured.stages:
        shape = "x".join(map(str, stage.shape))
        print(
            f"{stage.name:28}  {shape:>14}  {stage.times:>5}  {stage.parameters * stage.times:>12,}"
            f"  {stage.macs * stage.times / 1e6:>10,.1f}"
        )
