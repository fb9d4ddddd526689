"""Draw the results of lab experiments in the style of the figures in the paper.

`pictures_of` draws the results in lab.json. `draw_lines` draws numbers from the paper for comparison.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from vitkit.reporting.comparison import (
    MARKERS,
    bars,
    by_compute,
    finish,
    learning_curves,
    logarithmic,
    new_axes,
    percent,
    styled,
)
from vitkit.reporting.plots import BLUE, GREY, ORANGE, in_legend
from vitkit.text.drawing import new_figure

Figures = Mapping[str, Any]
_WIDTH = 16  # characters of a line below the paper's figures
_ROW = 0.42  # inches of a variant in a picture of dots


def pictures_of(kind: str, figures: Figures, lines: Mapping[str, Sequence[str]]) -> dict[str, Callable[[], Figure]]:
    """Return drawing functions for the figures of an experiment.

    Args:
        kind: dots, curves, computation, few-shot or sizes.
        figures: the content of lab.json.
        lines: for `computation`, the labels of the variants that a line connects, by the name of the line.

    Returns:
        The function of each picture by its caption.
    """
    match kind:
        case "dots":
            return {"Accuracy of each variant": lambda: _dots(figures)}
        case "curves":
            return {"Validation accuracy by epoch": lambda: learning_curves(_as_models(figures["variants"]))}
        case "computation":
            return {"Accuracy by computation": lambda: _by_computation(figures["variants"], lines)}
        case "few-shot":
            return {"Accuracy by images per class": lambda: _few_shot(figures)}
        case "sizes":
            captions = {
                "Fine-tuned (Figure 3)": "fine_tuned",
                f"{figures['shots']} images per class (Figure 4)": "few_shot",
            }
            return {caption: partial(_by_size, figures, key) for caption, key in captions.items()}
    raise ValueError(kind)


def _dots(figures: Figures) -> Figure:
    """Draw the accuracy of each variant with its 95 % interval.

    If the paper reports figures, a second panel shows them.
    """
    variants = figures["variants"]
    published = [_number(variant["paper"]) for variant in variants]
    panels = 2 if any(value is not None for value in published) else 1
    drawn = new_figure(4.6 + 0.8 * (panels - 1), 1.1 + _ROW * len(variants))
    axes = drawn.subplots(1, panels, squeeze=False, sharey=True, width_ratios=(2, 1)[:panels])[0]
    places = range(len(variants))
    accuracies = [variant["accuracy"] for variant in variants]
    ends = np.array([variant["interval"] for variant in variants])  # (M, 2)
    spans = np.abs(ends.T - accuracies)
    axes[0].errorbar(accuracies, places, xerr=spans, fmt="o", color=BLUE, capsize=3, markersize=6)
    axes[0].axvline(figures["chance"], color=GREY, linewidth=0.8, linestyle=":")
    axes[0].set_xlabel("accuracy here, 95 % intervals\n(dotted: always the most frequent class)", fontsize=9)
    axes[0].xaxis.set_major_formatter(FuncFormatter(percent))
    axes[0].xaxis.set_major_locator(MaxNLocator(5))
    axes[0].set_yticks(places, [variant["label"] for variant in variants])
    axes[0].set_ylim(len(variants) - 0.5, -0.5)
    if panels == 2:
        there = [(value, place) for place, value in enumerate(published) if value is not None]
        axes[1].plot(*zip(*there, strict=True), "D", color=ORANGE, markersize=6)
        column = textwrap.fill(figures.get("column") or "accuracy, %", _WIDTH)
        axes[1].set_xlabel(f"in the paper:\n{column}", fontsize=9)
        axes[1].margins(x=0.25)
        axes[1].xaxis.set_major_locator(MaxNLocator(2))
    for axis in axes:
        _tidy(axis)
    return drawn


def _number(text: str | None) -> float | None:
    """Return the number at the beginning of a text from the paper; None if there is none."""
    match = None if text is None else re.match(r"\d+(\.\d+)?", text)
    return None if match is None else float(match[0])


def _tidy(axis: Axes) -> None:
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _as_models(variants: Sequence[Figures]) -> list[dict[str, Any]]:
    """Return variants in the form that the drawing functions of comparisons read."""
    return [_line(variant["label"], [variant]) for variant in variants]


def _line(name: str, variants: Sequence[Figures]) -> dict[str, Any]:
    """Return several variants as one model of a comparison, so that a line connects the variants.

    The position of a variant takes the place of a fraction of the data.
    """
    parts = [
        {"fraction": place, "accuracy": variant["accuracy"], "interval": variant["interval"]}
        for place, variant in enumerate(variants)
    ]
    runs = [{**run, "fraction": place} for place, variant in enumerate(variants) for run in variant["runs"]]
    return {"name": name, "by_fraction": parts, "runs": runs}


def _by_computation(variants: Sequence[Figures], lines: Mapping[str, Sequence[str]]) -> Figure:
    """Draw accuracy by the FLOPs of a training (Figures 5 and 8). Each entry of `lines` becomes a line."""
    by_label = {variant["label"]: variant for variant in variants}
    models = []
    for name, labels in lines.items():
        there = [by_label[label] for label in labels if label in by_label]
        if len(there) > 1:
            models.append(_line(name, there))
    return by_compute(models or _as_models(variants))


def _few_shot(figures: Figures) -> Figure:
    rows = figures["few_shot"]
    drawn, axis = new_axes([figures["model"]])
    style = styled([{}])[0][1]
    shots = [row["shots"] for row in rows]
    bars(axis, shots, [row["accuracy"] for row in rows], [row["interval"] for row in rows], style, figures["model"], 0)
    axis.axhline(figures["chance"], color=GREY, linewidth=0.8, linestyle=":", label="chance")
    logarithmic(axis, set(shots))
    return finish(drawn, axis, "training images per class", "accuracy on held-out images")


def _by_size(figures: Figures, key: str) -> Figure:
    """Draw accuracy by the number of images in the pre-training (Figures 3 and 4)."""
    drawn, axis = new_axes([model["name"] for model in figures["models"]])
    for place, (model, style) in enumerate(styled(figures["models"])):
        parts = model["by_size"]
        accuracies, intervals = ([part[key][name] for part in parts] for name in ("accuracy", "interval"))
        bars(axis, [part["images"] for part in parts], accuracies, intervals, style, model["name"], place)
    logarithmic(axis, {part["images"] for model in figures["models"] for part in model["by_size"]})
    return finish(drawn, axis, "pre-training images", "accuracy on held-out images")


def draw_lines(
    lines: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str, ticks: Mapping[str, float]
) -> Figure:
    """Draw numbers from the paper in the style of the other figures.

    Args:
        lines: points of x and percent, by the name of the line.
        x: the label of the logarithmic x axis.
        y: the label of the y axis.
        ticks: values of x that have a tick, by the label of the tick; empty for numeric labels.
    """
    drawn, axis = new_axes(list(lines))
    for place, (name, points) in enumerate(lines.items()):
        style = styled([{}] * (place + 1))[place][1]
        values = np.array(points) / (1, 100)  # (n, 2)
        axis.plot(*values.T, **style, marker=MARKERS[place % len(MARKERS)], markersize=5, label=in_legend(name))
    axis.set_xscale("log")
    if ticks:
        axis.set_xticks(list(ticks.values()), list(ticks))
        axis.xaxis.set_minor_locator(NullLocator())
    return finish(drawn, axis, x, y)
