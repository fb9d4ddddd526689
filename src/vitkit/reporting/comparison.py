"""Write the page about a comparison, and draw the results of comparisons and lab experiments.

`write_comparison` writes one file that can be opened offline, with a table, verdicts and curves. All its numbers come
from comparison.json. `pictures_of_experiment` plots the results in lab.json in the style of the paper's figures, and
`draw_lines` plots numbers from the paper next to them.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator, StrMethodFormatter

from vitkit.data.storage import Place
from vitkit.evaluation.headline import images_in_words
from vitkit.reporting.plots import BLUE, GREY, ORANGE, STYLES, cell, legend_name, thumbnails
from vitkit.text.cells import interval_text, plural, sentence
from vitkit.text.pages import data_uri, from_template, new_figure, split_level, to_png, whole_numbers, write_page
from vitkit.text.verdict import Level, Verdict

_ABOUT = (
    "Accuracy, calibration error and log loss are means over seeds; the other figures are medians. Training speed "
    "includes validation. Prediction is timed for all models in turn, in one process, with the plain model in float32 "
    "and without reading files. A dash means not measured."
)

_TEMPLATE = Path(__file__).parent / "templates" / "comparison.html"
_MAX_PLAIN_NAME = 18  # characters of the longest name that is not replaced by a letter
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SIZE, _ROW = (4.9, 3.5), 0.22  # inches of a picture, and of a row of its legend
_MAX_IN_TWO_COLUMNS, _MAX_IN_ONE_COLUMN = 22, 52  # maximum length of a name in a legend with two columns, and with one
_BY_EPOCH, _BY_DATA, _BY_COMPUTATION = "Accuracy by epoch", "Accuracy by data", "Accuracy by computation"
_MARKERS = "osD^vP*X"
Model = Mapping[str, Any]


def write_comparison(
    path: Path, figures: Mapping[str, Any], headings: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Write the page about a comparison into the HTML file `path`.

    `figures` is the content of comparison.json. The table of models has these `headings`, and a row for each model.
    """
    models, best, luck = figures["models"], figures["best"], figures["luck"]
    names = [row[0] for row in rows]
    short_names = {name: name for name in names}
    if len(names) > 1 and max(map(len, names)) > _MAX_PLAIN_NAME:
        # One of them is too long for the head of a column, so all are replaced by letters: A to Z, then AA, BB …
        short_names = {name: _LETTERS[i % 26] * (1 + i // 26) for i, name in enumerate(names)}
    lines = []  # of the table; it has a column for each model, because there are more values than models
    for heading, *values in zip(headings[1:], *(row[1:] for row in rows), strict=True):
        is_measured = any(value != "-" for value in values)
        if is_measured and heading != "caveats":  # caveats are among the notes
            lines.append((heading, values))
    seeds = len(figures["seeds"])
    images = images_in_words(figures["test_images"], figures["split"])
    if figures.get("chosen_on"):
        images += f", which were used to choose {', '.join(figures['chosen_on'])}"
    chance = f"both the {seeds} seeds and the images" if seeds > 1 else "the images, with one seed"
    notes = [sentence(note) for note in figures["notes"]]
    notes += [f"{model['name']}: {'; '.join(model['caveats'])}." for model in models if model["caveats"]]
    runs = []
    for model in models:
        for run in model["runs"]:
            cells = [
                str(run["seed"]),
                str(run["training_images"]),
                f"{100 * run['accuracy']:.1f} %",
                "-" if run["loss"] is None else f"{run['loss']:.3f}",
                "-" if run["epochs"] is None else str(run["epochs"]),
                "-" if run["seconds"] is None else f"{run['seconds']:.0f}",
            ]
            runs.append({"folder": run["folder"], "name": model["name"], "cells": cells})
    body = from_template(
        _TEMPLATE,
        data=figures["data"],
        verdict=verdict_of_comparison(figures, short_names),
        figure=f"{100 * best['expected']:.1f} %",
        beside=_expected(best),
        legend=[(short, name) for name, short in short_names.items() if short != name],
        findings=[split_level(text) for text in figures["findings"]],
        names=list(short_names.values()),
        best=short_names[best["model"]],
        lines=lines,
        about=_ABOUT,
        verdicts=[sentence(pair["verdict"]) for pair in figures["pairs"]],
        luck="" if luck is None else sentence(luck["sentence"]),
        tests=(
            f"All models are evaluated on the same {images}. Intervals take into account {chance}. p is adjusted "
            "for all pairs with the same fraction of the data; below 0.05, two models can be distinguished. “As "
            "trained” compares only these trained models on other images of this kind, not what other seeds would give."
        ),
        pictures=_pictures(models),
        pairs=_pairs(figures["pairs_by_fraction"]),
        runs=runs,
        notes=notes,
    )
    write_page(path, f"Which model for {figures['data']}?", body)


def _expected(best: Mapping[str, Any]) -> str:
    # What the figure of the best model means, and why it is not the measured accuracy.
    rank = "the only model"
    if best["of"] > 1:
        rank = (
            f"the best of {best['of']}. Its measured accuracy of {100 * best['measured']:.1f} % is too optimistic, "
            "because it was selected on the same images"
        )
    bounds = interval_text([100 * end for end in best["interval"]], 1)
    return f"expected accuracy of {best['model']}, {rank} (95 %: {bounds})"


def write_trained_comparison(
    path: Path,
    figures: Mapping[str, Any],
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    sentences: Sequence[str],
    pictures: Sequence[tuple[Place, Sequence[str]]],
) -> None:
    """Write the page about finished runs that were compared as they are into the HTML file `path`.

    `figures` is the content of comparison.json. The table of models has these `heads` and `rows`, and `sentences` are
    about the pairs. `pictures` are photographs on which the runs differ, with the lines of their captions.
    """
    models, best = figures["models"], figures["best"]
    names = [model["name"] for model in models]
    slow, *_, quick = sorted(models, key=lambda model: model["predict_images_per_s"])
    ratio = quick["predict_images_per_s"] / slow["predict_images_per_s"]
    speed = "They classify about as many images a second."
    if ratio > 1.1:
        speed = f"{quick['name']} classifies {ratio:.1f} x as many images a second as {slow['name']}."
    shown = thumbnails([file for file, _ in pictures])
    body = from_template(
        _TEMPLATE.with_name("trained.html"),
        verdict=verdict_of_comparison(figures),
        figure=f"{100 * best['expected']:.1f} %",
        beside=_expected(best),
        findings=[split_level(text) for text in figures["findings"]],
        sentences=sentences,
        images=images_in_words(figures["test_images"], figures["split"]),
        speed=speed,
        rows=rows,
        heads=["", *heads[1:]],
        pictures=[cell(picture, lines) for picture, (_, lines) in zip(shown, pictures, strict=True)],
        classes=[[row["class"], str(row["images"]), *map(str, row["right"])] for row in figures["classes"]],
        class_heads=["class", "images", *(f"right: {name}" for name in names)],
        notes=[sentence(text) for text in figures["notes"]],
    )
    write_page(path, f"Which of {', '.join(names)}?", body)


def verdict_of_comparison(figures: Mapping[str, Any], short_names: Mapping[str, str] | None = None) -> Verdict:
    """Return which model to take; `figures` is the content of comparison.json.

    If `short_names` is given, it has the name to show for each model.
    """

    def shown(model: str) -> str:
        return model if short_names is None else short_names[model]

    best = figures["best"]["model"]
    name = shown(best)
    if not figures["pairs"]:
        return Verdict("note", f"{name} was compared with nothing")
    pairs = {  # with the best model, by the name of the other model
        pair["b"] if pair["a"] == best else pair["a"]: pair
        for pair in figures["pairs"]
        if best in (pair["a"], pair["b"])
    }
    alike = [
        shown(other)
        for other, pair in pairs.items()
        if best not in (pair["better"]["recipe"], pair["better"]["trained"])
    ]
    if alike:
        *others, last = alike
        text = f"{name} cannot be told apart from {last}: take the quicker of them, or more images"
        if others:
            names = f"{', '.join(others)} and {last}"
            text = f"{name} cannot be told apart from {names}: take the quickest of them, or more images"
        return Verdict("warning", text)
    level: Level = "warning" if figures.get("findings") or figures.get("chosen_on") else "good"
    are_finished_runs = figures.get("seeds") == []  # which are compared as they are, without other seeds
    is_as_trained = not are_finished_runs and any(pair["better"]["recipe"] != best for pair in pairs.values())
    if len(pairs) > 1:
        return Verdict(level, f"Take {name}: it is better than all others{', as trained' if is_as_trained else ''}")
    ((other, pair),) = pairs.items()
    points = f"{100 * abs(pair['difference']):.1f} points"
    return Verdict(level, f"{name} is better than {shown(other)}{', as trained,' if is_as_trained else ''} by {points}")


def _pairs(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    # The table of all pairs, which has a column for the fraction of the data if there are several.
    has_fractions = len({pair["fraction"] for pair in pairs}) > 1
    fraction_heads = ["fraction"] if has_fractions else []
    rows = []
    for pair in sorted(pairs, key=lambda pair: -pair["fraction"]):
        low, high = (100 * end for end in pair["interval"])
        low_trained, high_trained = (100 * end for end in pair["trained"]["interval"])
        row = [f"{pair['a']} minus {pair['b']}"]
        if has_fractions:
            row.append(f"{pair['fraction']:g}")
        row += [
            f"{100 * pair['difference']:+.1f}",
            f"{low:+.1f} to {high:+.1f}",
            f"{100 * pair['needed']:.1f}",
            f"{pair['p']:.3f}",
            f"{low_trained:+.1f} to {high_trained:+.1f}",
            f"{pair['trained']['p']:.3f}",
        ]
        rows.append(row)
    heads = ["difference in points", *fraction_heads, "", "95 %", "needed", "p", "as trained: 95 %", "p"]
    return {"rows": rows, "heads": heads}


def pictures_of(models: Sequence[Model]) -> dict[str, Callable[[], Figure]]:
    """Return functions that plot the accuracy by epoch, by amount of data and by computation; the keys are captions.

    Plots for which nothing was measured are omitted. `models` is an entry of comparison.json.
    """
    runs = [run for model in models for run in model["runs"]]
    pictures: dict[str, Callable[[], Figure]] = {}
    if any(run["curve"] for run in runs):
        pictures[_BY_EPOCH] = lambda: _learning_curves(models)
    if len(models[0]["by_fraction"]) > 1:
        pictures[_BY_DATA] = lambda: _by_images(models)
    if all(run["training_flops"] for run in runs):
        pictures[_BY_COMPUTATION] = lambda: by_compute(models)
    return pictures


def _pictures(models: Sequence[Model]) -> list[dict[str, str]]:
    """Draw the pictures, and return the caption, the address and a text about each one."""
    largest = models[0]["by_fraction"][-1]["fraction"]
    data = "all the data" if largest == 1 else f"{largest:g} of the training images"
    about_epochs = f"On validation images, trained on {data}. Thin lines are seeds, thick lines their means."
    about = {
        _BY_EPOCH: " ".join([about_epochs, *_epochs_to_same_accuracy(models)]),
        _BY_DATA: "With 95 % intervals. Larger subsets contain the smaller ones; all use the same evaluation images.",
        _BY_COMPUTATION: (
            "A training step counts as three forward passes of its images, or as one if only a head is trained."
        ),
    }
    return [
        {"caption": caption, "address": data_uri(to_png(draw()), "png"), "about": about[caption]}
        for caption, draw in pictures_of(models).items()
    ]


def _epochs_to_same_accuracy(models: Sequence[Model]) -> list[str]:
    """Say of each model but the best how many epochs it needs for its highest accuracy, and how many the best needs."""
    curves = {model["name"]: _mean_curve(_runs_on_most_data(model)) for model in models}
    curves = {name: curve for name, curve in curves.items() if curve}
    if not curves:
        return []
    best = max(curves, key=lambda name: max(curves[name].values()))
    sentences = []
    for name, curve in curves.items():
        if name == best:
            continue
        highest = max(curve.values())
        own_epoch = next(epoch for epoch, value in curve.items() if value == highest)
        epoch_of_best = next(epoch for epoch, value in curves[best].items() if value >= highest)
        reached = (
            f"{best} reaches {100 * highest:.1f} %, the best accuracy of {name}, after "
            f"{plural(epoch_of_best, 'epoch', 'epochs')}; {name} needs {plural(own_epoch, 'epoch', 'epochs')}"
        )
        sentences.append(sentence(reached))
    return sentences


def _mean_curve(runs: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    # The validation accuracy by epoch, averaged over seeds, for the epochs that all seeds reached.
    curves = [dict(run["curve"]) for run in runs]
    if not curves:
        return {}
    epochs = sorted(set.intersection(*map(set, curves)))
    return {epoch: sum(curve[epoch] for curve in curves) / len(curves) for epoch in epochs}


def _learning_curves(models: Sequence[Model]) -> Figure:
    # On the largest fraction of the data; thin lines are seeds, thick ones their mean.
    figure, axis = _empty_axes([model["name"] for model in models])
    highest = 0.0
    for number, model in enumerate(models):
        style = _line_style(number)
        runs = _runs_on_most_data(model)
        for run in runs:
            epochs, accuracies = zip(*run["curve"], strict=True)
            axis.plot(epochs, accuracies, **style, linewidth=0.7, alpha=0.45)
            highest = max(highest, *accuracies)
        mean = _mean_curve(runs)
        if mean:
            label = legend_name(model["name"], _MAX_IN_ONE_COLUMN)
            marker = "." if len(mean) < 15 else ""
            axis.plot(list(mean), list(mean.values()), **style, linewidth=2, marker=marker, label=label)
    if highest >= 0.9:
        axis.axhline(0.9, color=GREY, linewidth=0.8, linestyle=":", label=_percent(0.9))
    whole_numbers(axis.xaxis)
    return _label_axes(figure, axis, "epoch", "validation accuracy")


def _by_images(models: Sequence[Model]) -> Figure:
    figure, axis = _empty_axes([model["name"] for model in models])
    for number, model in enumerate(models):
        images = {run["fraction"]: run["training_images"] for run in model["runs"]}
        points = model["by_fraction"]
        _draw_line(axis, [images[point["fraction"]] for point in points], points, model["name"], number)
    _logarithmic(axis, {run["training_images"] for model in models for run in model["runs"]})
    return _label_axes(figure, axis, "training images", "accuracy on held-out images")


def by_compute(models: Sequence[Model]) -> Figure:
    """Plot accuracy by the FLOPs of the training, with a point and 95 % interval for each fraction of the data."""
    figure, axis = _empty_axes([model["name"] for model in models])
    for number, model in enumerate(models):
        means = []
        for part in model["by_fraction"]:
            flops = [run["training_flops"] or 0.0 for run in model["runs"] if run["fraction"] == part["fraction"]]
            means.append(sum(flops) / len(flops))  # over seeds
        _draw_line(axis, means, model["by_fraction"], model["name"], number)
    axis.set_xscale("log")
    ticks = np.geomspace(*axis.get_xlim(), 5)[1:-1].tolist()
    axis.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
    axis.xaxis.set_minor_formatter(NullFormatter())
    return _label_axes(figure, axis, "FLOPs of a training", "accuracy on held-out images")


def _runs_on_most_data(model: Model) -> list[Mapping[str, Any]]:
    # The runs with a learning curve on the largest fraction of the data, which is the last one.
    largest = model["by_fraction"][-1]["fraction"]
    return [run for run in model["runs"] if run["fraction"] == largest and run["curve"]]


def _line_style(number: int) -> dict[str, Any]:
    colour, line = STYLES[number % len(STYLES)]
    return {"color": colour, "linestyle": line}


def _draw_line(
    axis: Axes,
    x: Sequence[float],
    points: Sequence[Mapping[str, Any]],
    name: str,
    number: int,
) -> None:
    # A line through the accuracies of `points` with their 95 % intervals. Its number determines its style.
    y = [point["accuracy"] for point in points]
    below = [max(point["accuracy"] - point["interval"][0], 0.0) for point in points]
    above = [max(point["interval"][1] - point["accuracy"], 0.0) for point in points]
    marker = _MARKERS[number % len(_MARKERS)]
    style, label = _line_style(number), legend_name(name, _MAX_IN_ONE_COLUMN)
    axis.errorbar(x, y, yerr=[below, above], **style, label=label, marker=marker, capsize=3, markersize=5)


def _logarithmic(axis: Axes, values: set[int]) -> None:
    axis.set_xscale("log")
    axis.set_xticks(sorted(values))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _percent(value: float, _position: int | None = None) -> str:
    return f"{100 * value:.4g} %"


def _empty_axes(names: Sequence[str]) -> tuple[Figure, Axes]:
    columns = 2 if max(map(len, names)) <= _MAX_IN_TWO_COLUMNS else 1
    figure = new_figure(_SIZE[0], _SIZE[1] + _ROW * -(-len(names) // columns))
    return figure, figure.subplots()


def _label_axes(figure: Figure, axis: Axes, x: str, y: str) -> Figure:
    axis.set(xlabel=x, ylabel=y)
    axis.yaxis.set_major_formatter(FuncFormatter(_percent))
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    names = axis.get_legend_handles_labels()[1]
    if names:
        columns = 2 if max(map(len, names)) <= _MAX_IN_TWO_COLUMNS else 1
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    return figure


# --- Experiments of the lab -----------------------------------------------------------------------------------


def pictures_of_experiment(
    kind: str, figures: Mapping[str, Any], lines: Mapping[str, Sequence[str]]
) -> dict[str, Callable[[], Figure]]:
    """Return functions that plot the result of an experiment in lab.json, by caption.

    The kinds of plots are dots, curves, computation, few-shot, sizes and none. For `computation`, `lines` has the
    labels of the variants that each line connects, by the name of the line.
    """
    match kind:
        case "none":
            return {}
        case "dots":
            return {"Accuracy of each variant": lambda: _dots(figures)}
        case "curves":
            models = [_line(variant["label"], [variant]) for variant in figures["variants"]]
            return {"Validation accuracy by epoch": lambda: _learning_curves(models)}
        case "computation":  # Figures 5 and 8 of the paper
            models = _lines_through(figures["variants"], lines)
            return {"Accuracy by computation": lambda: by_compute(models)}
        case "few-shot":
            return {"Accuracy by images per class": lambda: _few_shot(figures)}
        case "sizes":
            return {
                "Fine-tuned (Figure 3)": partial(_by_size, figures, "fine_tuned"),
                f"{figures['shots']} images per class (Figure 4)": partial(_by_size, figures, "few_shot"),
            }
    raise ValueError(kind)


def _dots(figures: Mapping[str, Any]) -> Figure:
    # The accuracy of each variant with its 95 % interval, and in a second panel the paper's numbers, if any.
    variants = figures["variants"]
    published = []  # the paper's numbers with the rows of their variants
    for row, variant in enumerate(variants):
        number = re.match(r"\d+(\.\d+)?", variant["paper"] or "")
        if number is not None:
            published.append((float(number[0]), row))
    panels = 2 if published else 1
    drawn = new_figure(4.6 + 0.8 * (panels - 1), 1.1 + 0.42 * len(variants))
    axes = drawn.subplots(1, panels, squeeze=False, sharey=True, width_ratios=(2, 1)[:panels])[0]
    rows = range(len(variants))
    accuracies = [variant["accuracy"] for variant in variants]
    ends = np.array([variant["interval"] for variant in variants])  # (M, 2)
    distances = np.abs(ends.T - accuracies)  # below and above the accuracy
    axes[0].errorbar(accuracies, rows, xerr=distances, fmt="o", color=BLUE, capsize=3, markersize=6)
    axes[0].axvline(figures["chance"], color=GREY, linewidth=0.8, linestyle=":")
    axes[0].set_xlabel("accuracy here, 95 % intervals\n(dotted: always the most frequent class)", fontsize=9)
    axes[0].xaxis.set_major_formatter(FuncFormatter(_percent))
    axes[0].xaxis.set_major_locator(MaxNLocator(5))
    axes[0].set_yticks(rows, [variant["label"] for variant in variants])
    axes[0].set_ylim(len(variants) - 0.5, -0.5)
    if panels == 2:
        axes[1].plot(*zip(*published, strict=True), "D", color=ORANGE, markersize=6)
        column = textwrap.fill(figures.get("column") or "accuracy, %", 16)
        axes[1].set_xlabel(f"in the paper:\n{column}", fontsize=9)
        axes[1].margins(x=0.25)
        axes[1].xaxis.set_major_locator(MaxNLocator(2))
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return drawn


def _lines_through(variants: Sequence[Mapping[str, Any]], lines: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    # The lines with at least two of their variants; without such lines, a point for each variant.
    by_label = {variant["label"]: variant for variant in variants}
    drawn = []
    for name, labels in lines.items():
        connected = [by_label[label] for label in labels if label in by_label]
        if len(connected) > 1:
            drawn.append(_line(name, connected))
    return drawn or [_line(variant["label"], [variant]) for variant in variants]


def _line(name: str, variants: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    # Several variants become one model of a comparison, with their positions in place of fractions of the data.
    parts = [
        {"fraction": i, "accuracy": variant["accuracy"], "interval": variant["interval"]}
        for i, variant in enumerate(variants)
    ]
    runs = [{**run, "fraction": i} for i, variant in enumerate(variants) for run in variant["runs"]]
    return {"name": name, "by_fraction": parts, "runs": runs}


def _few_shot(figures: Mapping[str, Any]) -> Figure:
    rows = figures["few_shot"]
    drawn, axis = _empty_axes([figures["model"]])
    shots = [row["shots"] for row in rows]
    _draw_line(axis, shots, rows, figures["model"], number=0)
    axis.axhline(figures["chance"], color=GREY, linewidth=0.8, linestyle=":", label="chance")
    _logarithmic(axis, set(shots))
    return _label_axes(drawn, axis, "training images per class", "accuracy on held-out images")


def _by_size(figures: Mapping[str, Any], key: str) -> Figure:
    # Figures 3 and 4 of the paper.
    drawn, axis = _empty_axes([model["name"] for model in figures["models"]])
    for number, model in enumerate(figures["models"]):
        parts = model["by_size"]
        _draw_line(axis, [part["images"] for part in parts], [part[key] for part in parts], model["name"], number)
    _logarithmic(axis, {part["images"] for model in figures["models"] for part in model["by_size"]})
    return _label_axes(drawn, axis, "pre-training images", "accuracy on held-out images")


def draw_lines(
    lines: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str, ticks: Mapping[str, float]
) -> Figure:
    """Plot numbers from the paper, the points (x, percent) of each line by its name, like the other figures.

    The x axis is logarithmic. `ticks` are positions on it by their labels; empty for numeric labels.
    """
    drawn, axis = _empty_axes(list(lines))
    for number, (name, points) in enumerate(lines.items()):
        values = np.array(points) / (1, 100)  # (n, 2)
        style = {**_line_style(number), "marker": _MARKERS[number % len(_MARKERS)], "markersize": 5}
        axis.plot(*values.T, **style, label=legend_name(name))
    axis.set_xscale("log")
    if ticks:
        axis.set_xticks(list(ticks.values()), list(ticks))
        axis.xaxis.set_minor_locator(NullLocator())
    return _label_axes(drawn, axis, x, y)
