"""`vitkit.info`: the configuration and cost of a model, and a report on the tensors of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitkit.errors import VitkitError
from vitkit.exporting.formats import is_exported
from vitkit.model.names import NetworkConfig, config_for, is_model_name, is_network_name
from vitkit.system.progress import Progress, silent
from vitkit.text.arguments import Between, check_arguments
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.data.preprocess import Preprocess
    from vitkit.model.build import LoadReport
    from vitkit.profiling.model_info import ModelInfo
    from vitkit.weights.loading import LoadPlan


@dataclass(frozen=True)
class ClassifierInfo:
    """The facts that a checkpoint or classifier contains in addition to its configuration.

    Attributes:
        classes: the names of the classes; empty if they are unknown.
        preprocess: the preprocessing of images.
        temperature: the temperature that divides the logits.
        provenance: the origin of the model: its data, recipe and versions, as far as they are recorded.
        report: the report on every tensor; None for a classifier that was not loaded from a checkpoint.
    """

    classes: tuple[str, ...]
    preprocess: Preprocess
    temperature: float
    provenance: dict[str, Any]
    report: LoadReport | None

    def to_dict(self) -> dict[str, Any]:
        """Return the facts in plain JSON types."""
        return {
            "classes": list(self.classes),
            "preprocess": self.preprocess.to_dict(),
            "temperature": self.temperature,
            "provenance": self.provenance,
            **({} if self.report is None else {"report": self.report.to_dict()}),
        }


@check_arguments
def info(
    model: str | Path | Classifier,
    *,
    shapes: bool = False,
    image_size: Annotated[int | None, Between(1)] = None,
    heads: Annotated[int | None, Between(1)] = None,
    allow_partial: bool = False,
    progress: Progress = silent,
) -> Result:
    """Show the size and cost of a model: configuration, parameters, GMACs, memory, and a report on a checkpoint.

    No weights are allocated. Only the names and shapes of a checkpoint's tensors are read.

        >>> import vitkit
        >>> cost = vitkit.info("vit_large_patch16_224").cost
        >>> cost.parameters, round(cost.gmacs, 1)  # 10^9 multiply-accumulates for an image
        (304326632, 61.6)

    On the command line: `vitkit info vit_base_patch16_224 --shapes`.

    Args:
        model: a model name, a run or model folder, a checkpoint of any published layout, or a published name. A
            classifier in memory is accepted, too.
        shapes: list the shape, parameters and cost of each stage of the model.
        image_size: another image size, in pixels.
        heads: the number of attention heads, if the checkpoint does not determine it.
        allow_partial: report on a checkpoint even if tensors are missing or left over.
        progress: called with the current task, the number of finished items and the total number of items.

    Returns:
        A result with the facts `name`, `cost` (configuration, parameters, multiply-accumulates and memory, see
        `ModelInfo`) and `origin` (what a checkpoint or classifier contains besides, see `ClassifierInfo`; None for a
        model name).

    Raises:
        VitkitError: there is no such model, or it does not support these options.
    """
    options: dict[str, Any] = {"image_size": image_size, "heads": heads}
    options = {name: value for name, value in options.items() if value is not None}
    from vitkit.profiling.model_info import describe

    if not isinstance(model, (str, Path)):
        if options:
            raise VitkitError(
                "verbs.model-in-memory",
                "the size and heads of a classifier in memory are fixed: leave such options out",
            )
        return _result("classifier", describe(model.model.config), _origin(model), shapes=shapes)
    name = str(model)
    if (is_model_name(name) or is_network_name(name)) and not Path(name).exists():
        from vitkit.model.build import config_of

        return _result(name, describe(config_of(name, **options)), None, shapes=shapes)
    if is_exported(name) and Path(name).is_file():
        raise VitkitError(
            "verbs.model-exported", f"{name} is an exported file: use the model folder that it was made from"
        )
    from vitkit.weights import inspect
    from vitkit.weights.catalog import tags_of

    if "/" not in name and "." not in name and not Path(name).exists() and not tags_of(name):
        config_for(name)  # probably a misspelt model name: raises an error that suggests similar ones
    plan = inspect(name, allow_partial=allow_partial, **options)
    return _result(name, describe(plan.config), _origin(plan), shapes=shapes)


def _result(name: str, cost: ModelInfo, origin: ClassifierInfo | None, *, shapes: bool) -> Result:
    mebibytes = {dtype: size / 2**20 for dtype, size in cost.weight_bytes.items()}
    activations = cost.activation_bytes / 2**20
    lines = [
        name,
        f"  parameters      {cost.parameters:,}",
        f"  GMACs           {cost.gmacs:.3f}   ({2 * cost.gmacs:.3f} GFLOPs, for one image)",
    ]
    if not isinstance(cost.config, NetworkConfig):
        executed = f"{cost.gmacs_executed:.3f}   (the last block computes only what the head reads)"
        lines.append(f"  GMACs executed  {executed}")
    lines += [
        f"  weights         {mebibytes['float32']:.1f} MiB in float32, {mebibytes['bfloat16']:.1f} in bfloat16",
        f"  activations     {activations:.1f} MiB kept for the backward pass, for one image in float32",
    ]
    if origin is not None and origin.report is not None:
        lines += ["", "weights", *(f"  {line}" for line in origin.report.lines())]
    lines += _field_lines("configuration", cost.config.to_dict())
    if origin is not None:
        lines += _field_lines("preprocess", origin.preprocess.to_dict())
        if origin.provenance:
            lines += _field_lines("provenance", origin.provenance)
        if origin.classes:
            more = f" ... and {len(origin.classes) - 20} more" if len(origin.classes) > 20 else ""
            lines += ["", f"classes ({len(origin.classes)})", f"  {', '.join(origin.classes[:20])}{more}"]
    if shapes:
        lines += ["", f"{'stage':28}  {'shape':>14}  {'times':>5}  {'parameters':>12}  {'MMACs':>10}"]
        for stage in cost.stages:
            shape = "x".join(map(str, stage.shape))
            lines.append(
                f"{stage.name:28}  {shape:>14}  {stage.times:>5}  {stage.parameters * stage.times:>12,}"
                f"  {stage.macs * stage.times / 1e6:>10,.1f}"
            )
    return Result(
        "info",
        lines,
        {"name": name, "cost": cost, "origin": origin},
        json={"name": name, **({} if origin is None else origin.to_dict()), **cost.to_dict()},
        summary=f"{name}, {cost.parameters:,} parameters, {cost.gmacs:.3f} GMACs",
    )


def _origin(source: LoadPlan | Classifier) -> ClassifierInfo:
    return ClassifierInfo(source.classes, source.preprocess, source.temperature, dict(source.provenance), source.report)


def _field_lines(title: str, fields: dict[str, Any]) -> list[str]:
    width = max(map(len, fields), default=0)
    lines = ["", title]
    for name, value in fields.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {item}" for key, item in value.items())
        lines.append(f"  {name:{width}}  {value}")
    return lines
