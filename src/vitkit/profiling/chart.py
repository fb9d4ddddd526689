"""Bars of images a second, with the quartiles of the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitkit.reporting.plots import BLUE, GREY, ORANGE

_BAR, _HEAD = 0.24, 0.9  # inches


def chart(panels: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """A panel of horizontal bars for each title, from the rows of `vitkit.profiling.speed.row`.

    Blue is vitkit, orange the others, float32 hatched; a line through each bar's end spans the quartiles. A grey bar is
    the ceiling of a precision.
    """
    heights = [_HEAD + _BAR * (len(rows) + 2) for rows in panels.values()]
    figure = Figure(figsize=(9, sum(heights)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (title, rows) in zip(axes, panels.items(), strict=True):
        _panel(axis, title, rows)
    return figure


def _panel(axis: Axes, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    ceilings = {row["precision"]: row["images_per_s"] / row["share_of_ceiling"] for row in rows}
    bars = [(f"{row['name']} {row['precision']}", row) for row in rows]
    bars.sort(key=lambda bar: bar[1]["images_per_s"])
    for y, (_, row) in enumerate(bars):
        rate, low, high = (row[f"images_per_s{part}"] for part in ("", "_q1", "_q3"))
        axis.barh(
            y,
            rate,
            color=BLUE if row["name"].startswith("vitkit") else ORANGE,
            hatch="///" if row["precision"] == "float32" else "",
            edgecolor="white",
            xerr=[[max(rate - low, 0)], [max(high - rate, 0)]],
            error_kw={"ecolor": "black", "capsize": 2, "lw": 1},
        )
        axis.annotate(f" {rate:.4g}", (max(high, rate), y), va="center", fontsize=8)
    names = [name for name, _ in bars]
    for y, (precision, rate) in enumerate(sorted(ceilings.items(), key=lambda item: item[1]), start=len(bars)):
        axis.barh(y, rate, color=GREY, hatch="///" if precision == "float32" else "", edgecolor="white")
        axis.annotate(f" {rate:.4g}", (rate, y), va="center", fontsize=8)
        names.append(f"matrix products alone, {precision}")
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.margins(x=0.12)
    axis.set_xlabel("images a second")
    axis.set_title(title, fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
