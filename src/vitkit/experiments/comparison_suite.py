"""Compare models on several data sets, as in Table 2 of the paper.

For each data set there is an ordinary comparison in its own folder. A table contains the accuracy of each model on each
data set, with its 95 % interval. It also contains means over the data sets, mean ranks, and the cost of the trainings.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from html import escape
from pathlib import Path
from typing import Any

import vitkit
from vitkit.errors import Interrupted, VitkitError
from vitkit.experiments.comparison_request import ExperimentFolder, recipe_of
from vitkit.system import labelled, log, read_json, write_json, write_text
from vitkit.text import Verdict, aligned, plural, sentence
from vitkit.verbs import Result, csv_table

PLAN, SUITE, TABLE, PAGE = "suite-plan.json", "suite.json", "suite.csv", "suite.html"
FOLDER = ExperimentFolder(PLAN, "comparison")
_MIN_MODELS, _MIN_DATA_SETS = 3, 5  # for a test of ranks


def headings(data: Sequence[str]) -> list[str]:
    """Return the headings of the table of results; `data` are the names of the data sets."""
    return ["model", *data, "mean", "mean rank", "FLOPs of a training", "TPUv3-core-days of all"]


def table_rows(figures: Mapping[str, Any]) -> list[list[str]]:
    """Return a row of text cells for each model, with a dash for each missing value."""
    rows = []
    for model in figures["models"]:
        cells = [_accuracy(model["by_data"].get(data)) for data in figures["data"]]
        rank = "-" if model["mean_rank"] is None else f"{model['mean_rank']:.2f}"
        flops, days = (
            "-" if value is None else f"{value:.3g}" for value in (model["training_flops"], model["core_days"])
        )
        rows.append([model["name"], *cells, _accuracy(model["mean"]), rank, flops, days])
    return rows


def _accuracy(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "-"
    low, high = (100 * end for end in cell["interval"])
    return f"{100 * cell['accuracy']:.1f} % ({low:.1f} to {high:.1f})"


# --- From the request to the result -----------------------------------------------------------------------


def is_suite(out: str | Path | None) -> bool:
    """Return whether a folder contains a comparison on several data sets."""
    return out is not None and (Path(out) / PLAN).is_file()


def suite(
    data: Sequence[str],
    models: str | Sequence[str] | None,
    options: Mapping[str, Any],
    out: str | Path | None,
    compare: Callable[..., Any],
    *,
    resume: bool,
) -> Result:
    """Compare models on several data sets, all of which are checked before the first training.

    `options` are the other arguments of `vitkit.compare`, and `compare` is the function that compares on one data set.
    With `resume`, `data` is empty and `models` is None.
    """
    from vitkit.training import new_run_folder

    with ExitStack() as locks:
        if resume:
            if data or models is not None:
                raise VitkitError(
                    "experiments.argument-changed", "--resume uses the data and models of --out: leave them out"
                )
            folder = FOLDER.lock(out, locks)
            plan = read_json(folder / PLAN)
        else:
            plan = _plan(data, models, options)
            folder = new_run_folder("compare-all", locks) if out is None else FOLDER.reserve(out, locks)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / PLAN, plan)
        try:
            labels, contents = plan["labels"], []
            folders = {
                label: f"{number}-{re.sub(r'[^A-Za-z0-9._-]+', '-', label)}" for number, label in enumerate(labels, 1)
            }
            fields = {name: value for name, value in plan["options"].items() if value is not None}
            recipe = fields.pop("recipe", None)
            names = ("seeds", "budget", "fractions", "stress", "devices")
            options = {name: fields.pop(name) for name in names if name in fields}
            for source, label in zip(plan["data"], labels, strict=True):
                subfolder = folder / folders[label]
                with labelled(label):
                    if (subfolder / "plan.json").is_file():
                        result = compare(resume=True, out=subfolder, devices=options["devices"])
                    else:
                        result = compare(source, plan["models"], recipe_of(recipe, fields), out=subfolder, **options)
                contents.append(result.figures)
        except Interrupted:
            log.info(f"to continue: vitkit compare --resume --out {folder}")
            raise
        figures = {"vitkit": vitkit.__version__, **figures_of(labels, contents), "folders": folders}
        result = _result(folder, figures)
        write_text(folder / TABLE, csv_table(result.rows(), end="\n"))
        _write_page(result)
        write_json(folder / SUITE, figures)
        return result


def _plan(data: Sequence[str], models: str | Sequence[str] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check all models on all data sets, print the costs of the trainings, and return the plan in JSON types."""
    from vitkit.experiments.comparison_plan import make_plan
    from vitkit.experiments.comparison_request import arguments_of, names_of
    from vitkit.training import prefix_errors
    from vitkit.verbs import check_data

    if models is None:
        raise VitkitError("experiments.argument-missing", "no models: vitkit compare DATA DATA --models NAME,NAME")
    if len({os.path.realpath(source) for source in data}) < len(data):
        raise VitkitError("experiments.data-twice", "a data set is given twice: leave out one of them")
    settings = dict(options)
    shared = {name: settings.pop(name) for name in ("recipe", "seeds", "fractions", "budget", "stress")}
    settings.pop("devices")
    names = [Path(source).name or source for source in data]
    labels = [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]
    costs: dict[str, list[str]] = {}  # by model, on each data set
    for source in data:
        check_data(source)
        with prefix_errors(source):
            plan = make_plan(arguments_of(source, models, **shared), settings)
        for name in plan.models:
            flops = [job.flops for job in plan.jobs if job.model == name]
            known = [value for value in flops if value is not None]
            total = f", {sum(known):.3g}" if len(known) == len(flops) else ""
            costs.setdefault(name, []).append(f"{len(flops)}{total}")
    for line in aligned([["trainings, FLOPs", *labels], *([name, *cells] for name, cells in costs.items())]):
        log.info(line)
    return {
        "vitkit": vitkit.__version__,
        "data": list(data),
        "labels": labels,
        "models": names_of(models),
        "options": dict(options),
    }


def _result(folder: Path, figures: dict[str, Any]) -> Result:
    from vitkit.reporting import draw_suite
    from vitkit.text import table

    rows = []
    for model, data in itertools.product(figures["models"], figures["data"]):
        missing = {"accuracy": None, "interval": (None, None), "rank": None}  # a model may have failed on this data
        cell = model["by_data"].get(data, missing)
        low, high = cell["interval"]
        row = {"model": model["name"], "data": data, "accuracy": cell["accuracy"], "low": low, "high": high}
        rows.append({**row, "rank": cell["rank"]})
    models = plural(len(figures["models"]), "model", "models")
    first = f"{models} on {len(figures['data'])} data sets, {plural(len(figures['seeds']), 'seed', 'seeds')}"
    shown = aligned([headings(figures["data"]), *table_rows(figures)])

    def html() -> str:
        body = [[escape(cell) for cell in row] for row in table_rows(figures)]
        paragraphs = "".join(f"<p>{escape(line)}</p>" for line in figures["sentences"])
        return table(body, list(map(escape, headings(figures["data"])))) + paragraphs

    return Result(
        "compare",
        [
            first,
            *shown,
            "",
            *figures["sentences"],
            f"{_verdict(figures['models']).sentence}.",
            f"page: {folder / PAGE}",
        ],
        {"folder": folder, "figures": figures, "report": folder / PAGE},
        json=figures,
        rows=rows,
        pictures={"Accuracy on each data set": lambda: draw_suite(figures)},
        html=html,
    )


# --- The table --------------------------------------------------------------------------------------------


def figures_of(labels: Sequence[str], contents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of each model, both on each data set and over all data sets.

    `labels` are the names of the data sets, and `contents` the content of comparison.json for each.
    """
    from scipy.stats import rankdata

    from vitkit.profiling import core_days  # imports torch

    names = list(dict.fromkeys(model["name"] for figures in contents for model in figures["models"]))
    by_name: dict[str, dict[str, Any]] = {name: {} for name in names}
    flops: dict[str, list[float | None]] = {name: [] for name in names}
    for label, figures in zip(labels, contents, strict=True):
        ranks = rankdata([-model["accuracy"] for model in figures["models"]]).tolist()
        for model, rank in zip(figures["models"], ranks, strict=True):
            name = model["name"]
            pairs = [pair["better"] for pair in figures["pairs"] if name in (pair["a"], pair["b"])]
            better = [pair["recipe"] or pair["trained"] for pair in pairs]  # names of models; None: not distinguished
            by_name[name][label] = {
                "accuracy": model["accuracy"],
                "interval": model["interval"],
                "rank": rank,
                "wins": better.count(name),
                "losses": sum(winner not in (name, None) for winner in better),
            }
            flops[name] += [run["training_flops"] for run in model["runs"]]
    rows = []
    for name in names:
        cells = list(by_name[name].values())
        is_whole = len(cells) == len(labels)
        known = [value for value in flops[name] if value is not None]
        is_known = len(known) == len(flops[name]) > 0
        mean = None
        if is_whole:
            # The interval for the uncertainty from images and seeds is derived from the intervals of the N data sets
            # (Zou and Donner 2008). The distance from the mean to the lower end is the square root of the sum of
            # squares of the data sets' distances to their lower ends, divided by N. The distance to the upper end is
            # computed separately in the same way, because the intervals are asymmetric.
            accuracy = statistics.mean(cell["accuracy"] for cell in cells)
            below, above = (
                sum((cell["interval"][end] - cell["accuracy"]) ** 2 for cell in cells) ** 0.5 / len(cells)
                for end in (0, 1)
            )
            mean = {"accuracy": accuracy, "interval": [accuracy - below, accuracy + above]}
        rows.append(
            {
                "name": name,
                "by_data": by_name[name],
                "mean": mean,
                "mean_rank": statistics.mean(cell["rank"] for cell in cells) if is_whole else None,
                "wins": sum(cell["wins"] for cell in cells),
                "losses": sum(cell["losses"] for cell in cells),
                "training_flops": statistics.mean(known) if is_known else None,
                "core_days": core_days(sum(known)) if is_known else None,
            }
        )
    seeds = contents[0]["seeds"]
    return {"data": list(labels), "seeds": seeds, "models": rows, "sentences": _sentences(labels, rows, len(seeds))}


def _sentences(labels: Sequence[str], rows: Sequence[Mapping[str, Any]], seeds: int) -> list[str]:
    basis = "as recipes if shown, otherwise as trained" if seeds > 1 else "as trained, with one seed"
    sentences = []
    for row in rows:
        if row["wins"] or row["losses"]:
            others = [other for other in rows if other is not row]
            count = sum(data in other["by_data"] for data in row["by_data"] for other in others)
            sentences.append(
                f"{row['name']} is significantly better than another model in {row['wins']} and worse in "
                f"{row['losses']} of {count} comparisons ({basis})"
            )
    if not sentences:
        sentences = [f"on none of these data sets is a model significantly better than another ({basis})"]
    sentences.append("intervals are over the images and seeds of these data sets, and not over other data sets")
    ranked = [row for row in rows if row["mean_rank"] is not None]
    if len(ranked) < _MIN_MODELS or len(labels) < _MIN_DATA_SETS:
        sentences.append(
            f"mean ranks are not tested: this requires {_MIN_MODELS} models and {_MIN_DATA_SETS} data sets, "
            f"and there are {len(ranked)} and {len(labels)}"
        )
        return sentences
    from scipy.stats import friedmanchisquare

    ranks = [[row["by_data"][label]["rank"] for label in labels] for row in ranked]
    if all(row == ranks[0] for row in ranks):
        sentences.append("all models have the same ranks")
    else:
        p = float(friedmanchisquare(*ranks).pvalue)
        sentences.append(f"Friedman's test for different mean ranks on data sets of this kind: p = {p:.2g}")
    return sentences


def _verdict(rows: Sequence[Mapping[str, Any]]) -> Verdict:
    best = max(rows, key=lambda row: row["wins"] - row["losses"])
    if not best["wins"]:
        return Verdict("note", "No model is significantly better than another: take the quickest")
    if best["losses"]:
        return Verdict("note", "Which model is better depends on the data")
    comparisons = plural(best["wins"], "comparison", "comparisons")
    return Verdict("good", f"Take {best['name']}: significantly better in {comparisons}, and worse in none")


def _write_page(result: Result) -> None:
    from vitkit.reporting import draw_suite
    from vitkit.text import component, figure, panel, table, to_svg, wide, write_page

    figures, title = result.figures, "Which model, over several data sets?"
    verdict = _verdict(figures["models"])
    space = "\N{NO-BREAK SPACE}"
    rows = []
    for name, *cells in table_rows(figures):
        count = len(figures["data"]) + 1  # of accuracies: one on each data set, and their mean
        accuracies = [
            cell.replace(" %", f"{space}%").replace(" (", "<br>(").replace(" to ", f"{space}to{space}")
            for cell in cells[:count]
        ]
        rows.append([escape(name), *accuracies, *cells[count:]])
    linked = [
        f'<a href="{escape(figures["folders"][data])}/comparison.html">{escape(data)}</a>' for data in figures["data"]
    ]
    first, *rest = headings(figures["data"])
    body = [
        f"<h1>{title}</h1>",
        component("verdict", verdict.level, verdict.sentence, "", sentence(result.lines()[0])),
        figure("Accuracy on each data set, 95 % intervals", to_svg(draw_suite(figures)), "svg+xml"),
        panel("The models", wide(table(rows, [first, *linked, *map(escape, rest[len(linked) :])]))),
        panel("Over all data sets", *(f"<p>{escape(sentence(line))}</p>" for line in figures["sentences"])),
    ]
    write_page(result.folder / PAGE, title, body)
