"""Pictures of a comparison, from the values of comparison.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter

from vitkit.reporting.plots import GREY, STYLES, in_legend

_SIZE, _ROW = (4.9, 3.5), 0.22  # inches: of a picture, and of a row of its legend
_LONG, _LONGEST = 22, 52  # characters of a name: with room for two in a row, with room for one
_GOAL = 0.9
_MARKERS = "osD^vP*X"
Model = Mapping[str, Any]


def learning_curves(models: Sequence[Model]) -> Figure:
    """Validation accuracy by epoch, on all the data: a thin line for each seed, a thick one for their mean."""
    figure, axis = _picture(models)
    for model, style in _styled(models):
        curves = [run["curve"] for run in _whole(model)]
        for curve in curves:
            axis.plot([epoch for epoch, _ in curve], [value for _, value in curve], **style, linewidth=0.7, alpha=0.45)
        shared = min(map(len, curves), default=0)
        if not shared:
            continue
        mean = [sum(curve[place][1] for curve in curves) / len(curves) for place in range(shared)]
        epochs = [epoch for epoch, _ in curves[0][:shared]]
        marker = "." if shared < 15 else ""
        axis.plot(epochs, mean, **style, linewidth=2, marker=marker, label=in_legend(model["name"], _LONGEST))
    axis.axhline(_GOAL, color=GREY, linewidth=0.8, linestyle=":")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _finish(figure, axis, "epoch", "validation accuracy")


def by_images(models: Sequence[Model]) -> Figure:
    """Accuracy by the number of training images, with 95 % intervals."""
    figure, axis = _picture(models)
    for place, (model, style) in enumerate(_styled(models)):
        images = {run["fraction"]: run["training_images"] for run in model["runs"]}
        _with_intervals(axis, model, [images[own["fraction"]] for own in model["by_fraction"]], style, place)
    _logarithmic(axis, {run["training_images"] for model in models for run in model["runs"]})
    return _finish(figure, axis, "training images", "accuracy on held-out images")


def by_compute(models: Sequence[Model]) -> Figure:
    """Accuracy by the operations of the training, with 95 % intervals: a point for each fraction of the data."""
    figure, axis = _picture(models)
    for place, (model, style) in enumerate(_styled(models)):
        spent: dict[float, list[float]] = {}
        for run in model["runs"]:
            spent.setdefault(run["fraction"], []).append(run["training_flops"] or 0.0)
        means = [sum(spent[own["fraction"]]) / len(spent[own["fraction"]]) for own in model["by_fraction"]]
        _with_intervals(axis, model, means, style, place)
    axis.set_xscale("log")
    return _finish(figure, axis, "FLOPs of a training", "accuracy on held-out images")


def by_strength(models: Sequence[Model], stress: Mapping[str, Any]) -> Figure:
    """Accuracy by how strongly the pictures were changed, with 95 % intervals.

    Args:
        models: in the order of the others' colours.
        stress: kind, unit, strengths, and of each model by name its accuracies and intervals.
    """
    figure, axis = _picture(models)
    for place, (model, style) in enumerate(_styled(models)):
        own = stress["models"][model["name"]]
        _bars(axis, stress["strengths"], own["accuracy"], own["interval"], style, model["name"], place)
    return _finish(figure, axis, stress["unit"], "accuracy on held-out images")


def _whole(model: Model) -> list[Mapping[str, Any]]:
    """The runs on all the data that have curves."""
    last = model["by_fraction"][-1]["fraction"]
    return [run for run in model["runs"] if run["fraction"] == last and run["curve"]]


def _styled(models: Sequence[Model]) -> list[tuple[Model, dict[str, Any]]]:
    """Each with its colour and line."""
    styles = [STYLES[place % len(STYLES)] for place in range(len(models))]
    return [(model, {"color": colour, "linestyle": line}) for model, (colour, line) in zip(models, styles, strict=True)]


def _with_intervals(axis: Axes, model: Model, x: Sequence[float], style: dict[str, Any], place: int) -> None:
    own = model["by_fraction"]
    accuracies, intervals = [each["accuracy"] for each in own], [each["interval"] for each in own]
    _bars(axis, x, accuracies, intervals, style, model["name"], place)


def _bars(
    axis: Axes,
    x: Sequence[float],
    y: Sequence[float],
    intervals: Sequence[Sequence[float]],
    style: dict[str, Any],
    name: str,
    place: int,
) -> None:
    below = [max(value - low, 0.0) for value, (low, _) in zip(y, intervals, strict=True)]
    above = [max(high - value, 0.0) for value, (_, high) in zip(y, intervals, strict=True)]
    marker = _MARKERS[place % len(_MARKERS)]
    axis.errorbar(
        x, y, yerr=[below, above], **style, label=in_legend(name, _LONGEST), marker=marker, capsize=3, markersize=5
    )


def _logarithmic(axis: Axes, values: set[int]) -> None:
    """A logarithmic axis that names the values that are there."""
    axis.set_xscale("log")
    axis.set_xticks(sorted(values))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _picture(models: Sequence[Model]) -> tuple[Figure, Axes]:
    """Room for the axes, and for a legend below them."""
    columns = 2 if max(len(model["name"]) for model in models) <= _LONG else 1
    figure = Figure(figsize=(_SIZE[0], _SIZE[1] + _ROW * -(-len(models) // columns)), layout="constrained")
    return figure, figure.subplots()


def _finish(figure: Figure, axis: Axes, x: str, y: str) -> Figure:
    axis.set(xlabel=x, ylabel=y)
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    names = axis.get_legend_handles_labels()[1]
    if names:
        columns = 2 if max(map(len, names)) <= _LONG else 1
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    return figure
