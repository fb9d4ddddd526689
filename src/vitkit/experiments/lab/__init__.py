"""Repeat the paper's ablations and measurements: this module defines the types of experiments and of their results.

An experiment answers a question. It either compares configurations (`Ablation`, `PretrainingSizes`) or measures a
quantity of a model (`Measurement`). Each experiment is a row of `ablations.EXPERIMENTS`. A result contains a table
with the paper's numbers next to the measured ones, remarks, and the differences from the paper's experiment. Importing
this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitkit.errors import VitkitError
from vitkit.model import ViTConfig, is_network_name
from vitkit.text import aligned, sentence
from vitkit.training import Recipe, flatten_fields
from vitkit.verbs import Result

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.figure import Figure

    from vitkit.experiments.comparison_images import Measured, Subject

PAPER = "arXiv 2010.11929"
# Fields for fine-tuning that differs from training from scratch only in the initial weights.
TUNING: dict[str, Any] = {"method": "full", "lp_ft": False, "patch_dropout": 0.0, "layer_decay": 1.0}


@dataclass(frozen=True)
class AblationVariant:
    """One of the configurations that an ablation trains."""

    label: str
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the recipe, where they differ from the base recipe
    paper: str | None = None  # the paper's number, as printed there
    factors: Mapping[str, float] = field(default_factory=dict)  # multiply numeric fields, such as lr and epochs
    after: str | None = None  # the label of an earlier variant, whose run with the same seed gives the initial weights
    pretraining: Mapping[str, Any] = field(default_factory=dict)  # its fields, if one comes before the training
    defaults: Mapping[str, Any] = field(default_factory=dict)  # in place of the defaults of the training method


def model_variant(label: str, paper: str | None = None, **fields: Any) -> AblationVariant:
    """Create a variant whose model differs from the base model in these fields."""
    return AblationVariant(label, {"model_fields": fields} if fields else {}, paper)


def variant_fields(base: Mapping[str, Any], shared: Mapping[str, Any], variant: AblationVariant) -> dict[str, Any]:
    """Return the recipe of one variant.

    `base` is the recipe that all variants share. It is an error if the experiment varies a field that the user has set
    (`shared`).
    """
    base_model = dict(base.get("model_fields") or {})
    if is_network_name(str(variant.fields.get("model", ""))):
        base_model = {}  # the network does not have the fields of a ViT
    varied = dict(variant.fields)
    varied_model = varied.pop("model_fields", {})
    set_by_user = flatten_fields(shared)
    conflicts = [f"model.{name}" for name in varied_model if name in (set_by_user.get("model_fields") or {})]
    # The user may set `model` and `image_size`, which choose the model that is varied.
    conflicts += sorted((varied.keys() & set_by_user.keys()) - {"model", "image_size"})
    if conflicts:
        raise VitkitError("experiments.field-varied", f"{conflicts[0]} is varied by this experiment: leave it out")
    fields = {**variant.defaults, **base, **varied, "model_fields": {**base_model, **varied_model}}
    for name, factor in variant.factors.items():
        value = fields.get(name, getattr(Recipe(), name))
        fields[name] = max(round(factor * value), 1) if isinstance(value, int) else factor * value
    return flatten_fields({name: value for name, value in fields.items() if value is not None and value != {}})


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper, which is redrawn next to the result of an experiment."""

    caption: str  # names the paper's figure and table
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]  # the points (x, percent) of each line, in the order of x
    ticks: Mapping[str, float] = field(default_factory=dict)  # positions on the x axis by label; empty: numeric labels


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A question, and the answer of the paper or of another source."""

    name: str
    question: str
    source: str  # the section of the paper, or the other article
    says: str  # the result that the source reports
    differs: str  # how the `small` preset differs from the source's experiment
    recipe: str | None = None  # the bundled recipe with the published hyper-parameters, for the `paper` preset
    picture: Literal["dots", "curves", "computation", "few-shot", "attention", "sizes", "none"] = "dots"
    drawn_lines: Mapping[str, Sequence[str]] = field(default_factory=dict)  # labels that a line of computation connects
    printed: PaperFigure | None = None


@dataclass(frozen=True, kw_only=True)
class Ablation(Experiment):
    """Variants that are trained in the same way with the same seeds, and tested on the same images."""

    variants: Callable[[ViTConfig], Sequence[AblationVariant]]  # from the base configuration
    against: str  # the label of the variant that the others are compared with
    better: tuple[str, ...] = ()  # labels of the variants that are better according to the source
    column: str = ""  # the heading of the column with the paper's numbers


@dataclass(frozen=True, kw_only=True)
class Measurement(Experiment):
    """A quantity that is measured on an existing model."""

    measure: Callable[[Subject], Measured]
    draw: Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Callable[[], Figure]]] | None = None  # from arrays


@dataclass(frozen=True, kw_only=True)
class PretrainingSizes(Experiment):
    """Pre-train models on subsets of one source of images, and fine-tune them on another source; see `data_size`."""


@dataclass(frozen=True, kw_only=True)
class Costs(Experiment):
    """Measure the speed of models on this machine, without images or training; see `cost`."""


LAB, PAGE = "lab.json", "lab.html"
FOLDER_PLACEHOLDER = "{folder}"  # in paths of weights in a plan, for the experiment's folder, which may be moved


def result_of(
    experiment: Experiment,
    figures: dict[str, Any],
    headings: Sequence[str],
    cells: Sequence[Sequence[str]],
    remarks: Sequence[str],
    folder: Path | None = None,
    arrays: Mapping[str, npt.NDArray[np.floating]] | None = None,
) -> Result:
    """Return the result of an experiment, as `vitkit.lab` describes it."""
    if isinstance(experiment, Measurement) and experiment.draw is not None:
        pictures = experiment.draw(figures, arrays or {})
    else:
        from vitkit.reporting import draw_lines, pictures_of_experiment

        pictures = pictures_of_experiment(experiment.picture, figures, experiment.drawn_lines)
        printed = experiment.printed
        if printed is not None:  # the paper's figure is redrawn, too
            pictures[printed.caption] = lambda: draw_lines(printed.lines, printed.x, printed.y, printed.ticks)
    source = f"the source ({experiment.source}): {experiment.says}"
    differs = f"what differs: {experiment.differs}"
    lines = [f"{experiment.name}: {experiment.question}", *aligned([headings, *cells]), "", *remarks, source]
    if figures.get("preset") != "paper":
        lines.append(differs)
    if folder is not None:
        lines.append(f"everything: {folder / LAB}, {folder / PAGE}")
    names = [heading or "variant" for heading in headings]
    return Result(
        "lab",
        lines,
        {
            "experiment": experiment,
            "figures": figures,
            "headings": tuple(headings),
            "cells": tuple(cells),
            "remarks": tuple(remarks),
            "folder": folder,
            "page": None if folder is None else folder / PAGE,
            "arrays": dict(arrays or {}),
        },
        json=figures,
        rows=[dict(zip(names, row, strict=True)) for row in cells],
        pictures=pictures,
        html=lambda: _page(experiment, figures["command"], headings, cells, [*remarks, source, differs], pictures),
    )


def _page(
    experiment: Experiment,
    command_line: str,
    headings: Sequence[str],
    cells: Sequence[Sequence[str]],
    notes: Sequence[str],
    pictures: Mapping[str, Callable[[], Figure]],
) -> str:
    """Return the HTML of the page about a result, with the first note as its verdict."""
    from vitkit.text import command, component, details, figure, panel, panels, table, to_svg, wide

    verdict, *others = notes
    rows = [[escape(cell) for cell in row] for row in cells]
    items = "".join(f"<li>{escape(sentence(note))}</li>" for note in others)
    drawn = [figure(caption, to_svg(draw()), "svg+xml") for caption, draw in pictures.items()]
    return "".join(
        [
            f"<h1>{escape(experiment.name)}</h1>",
            component("verdict", "note", sentence(verdict), beside=experiment.question),
            panel("What was measured", wide(table(rows, list(map(escape, headings))))),
            panels(*drawn, panel("What to know", f"<ul>{items}</ul>")),
            details("The command", command(command_line)),
        ]
    )


def table_of(ablation: Ablation, figures: dict[str, Any]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the headings and rows of an ablation's table."""
    headings = ["", "accuracy here", "95 %", f"difference from {ablation.against}", "parameters", "GMACs"]
    if ablation.column:
        headings.append(f"paper: {ablation.column}")
    differences = {
        pair["a"]: f"{100 * pair['difference']:+.1f} ({_span(pair['interval'])})" for pair in figures["pairs"]
    }
    rows = []
    for variant in figures["variants"]:
        row = [
            variant["label"],
            f"{100 * variant['accuracy']:.1f} %",
            _span(variant["interval"]),
            differences.get(variant["label"], ""),
            f"{variant['parameters']:,}",
            f"{variant['gmacs']:.3g}",
        ]
        if ablation.column:
            row.append(variant["paper"] or "-")
        rows.append(tuple(row))
    return tuple(headings), tuple(rows)


def outcome_of(pair: Mapping[str, Any], seeds: int) -> Literal[-1, 0, 1]:
    """Return 1 if the variant is better than the reference, -1 if it is worse, and 0 if this cannot be distinguished.

    The verdict, the summary and the claims of an experiment all follow this test. The p-values of a pair are adjusted
    for all pairs. With one seed, only these trained models are compared.
    """
    test = pair if seeds > 1 else pair["trained"]
    if test["p"] >= 0.05:
        return 0
    return 1 if pair["difference"] > 0 else -1


def summary_of(pairs: Sequence[Mapping[str, Any]], seeds: int) -> str:
    """Summarise in one sentence which variants are better or worse than the reference.

    With several seeds, the sentence is also about trainings with other seeds. With one seed, it is only about these
    trained models.
    """
    by_outcome: dict[int, list[str]] = {1: [], -1: [], 0: []}
    for pair in pairs:
        by_outcome[outcome_of(pair, seeds)].append(pair["a"])
    reference = quoted(pairs[0]["b"])
    parts = []
    for outcome, word in ((1, "better"), (-1, "worse")):
        labels = by_outcome[outcome]
        if labels:
            parts.append(f"{_enumerated(labels)} {'is' if len(labels) == 1 else 'are'} {word} than {reference}")
    if by_outcome[0]:
        parts.append(f"{_enumerated(by_outcome[0])} cannot be distinguished from {reference}")
    return f"{'also with other seeds' if seeds > 1 else 'as trained, with one seed'}: {'; '.join(parts)}"


def quoted(label: str) -> str:
    """Return a label as it appears in a sentence: in quotation marks if it has several words."""
    return f"“{label}”" if " " in label else label


def _enumerated(labels: Sequence[str]) -> str:
    *first, last = map(quoted, labels)
    return f"{', '.join(first)} and {last}" if first else last


def _span(interval: Sequence[float]) -> str:
    low, high = (100 * end for end in interval)
    return f"{low:.1f} to {high:.1f}"
