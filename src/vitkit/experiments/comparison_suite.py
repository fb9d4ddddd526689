"""Compare models on several data sets, as in Table 2 of the paper.

For each data set there is an ordinary comparison in its own folder. A table contains the accuracy of each model on each
data set, with its 95 % interval. It also contains means over the data sets, mean ranks, and the cost of the trainings.
"""

from __future__ import annotations

import csv
import io
import os
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vitkit
from vitkit.errors import Interrupted, VitkitError
from vitkit.experiments.comparison_request import ExperimentFolder
from vitkit.profiling.accelerators import core_days
from vitkit.system.files import write_json, write_text
from vitkit.system.progress import Say
from vitkit.text.cells import aligned, harmless, plural, sentence
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAN, SUITE, TABLE, PAGE = "suite-plan.json", "suite.json", "suite.csv", "suite.html"
PLACE = ExperimentFolder(PLAN, "comparison")
_COMPARISON_PLAN = "plan.json"  # in the folder of each data set's comparison
_TESTED = (3, 5)  # minimum numbers of models and data sets for a test of ranks


@dataclass(frozen=True, repr=False)
class ComparisonSuite(Result):
    """The result of comparing models on several data sets.

    Attributes:
        folder: the folder of suite.html, suite.json, suite.csv, and a folder for each data set's comparison.
        figures: the content of suite.json.
    """

    folder: Path
    figures: dict[str, Any]

    @property
    def report(self) -> Path:
        """The path of the HTML page."""
        return self.folder / PAGE

    def to_dict(self) -> dict[str, Any]:
        """Return the content of suite.json."""
        return self.figures

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each model and data set; `low` and `high` are the ends of the accuracy's 95 % interval."""
        return [
            {"model": model["name"], "data": data, **_flat(model["by_data"].get(data))}
            for model in self.figures["models"]
            for data in self.figures["data"]
        ]

    def pictures(self) -> dict[str, Callable[[], Figure]]:
        """Return a function that plots the accuracy of each model on each data set; the key is its caption."""
        from vitkit.reporting.comparison import draw_suite

        return {"Accuracy on each data set": lambda: draw_suite(self.figures)}

    def lines(self) -> list[str]:
        """Return the lines for the terminal: table, summary, and path of the page."""
        models = plural(len(self.figures["models"]), "model", "models")
        seeds = plural(len(self.figures["seeds"]), "seed", "seeds")
        return [
            f"{models} on {len(self.figures['data'])} data sets, {seeds}",
            *aligned([headings(self.figures["data"]), *table_rows(self.figures)]),
            "",
            *self.figures["sentences"],
            f"page: {self.report}",
        ]

    def _repr_html_(self) -> str:
        from vitkit.text.pages import table

        rows = [[escape(cell) for cell in row] for row in table_rows(self.figures)]
        said = "".join(f"<p>{escape(line)}</p>" for line in self.figures["sentences"])
        return table(rows, list(map(escape, headings(self.figures["data"])))) + said


def _flat(cell: Mapping[str, Any] | None) -> dict[str, Any]:
    if cell is None:
        return {"accuracy": None, "low": None, "high": None, "rank": None}
    return {"accuracy": cell["accuracy"], "low": cell["interval"][0], "high": cell["interval"][1], "rank": cell["rank"]}


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
    say: Say,
    *,
    resume: bool,
) -> ComparisonSuite:
    """Compare models on several data sets.

    Args:
        data: the data sets; empty with `resume`.
        models: the names of the models; None with `resume`.
        options: the other arguments of `vitkit.compare`.
        out: the folder; by default the next runs/compare-all-N.
        compare: the function that compares on one data set.
        say: called with each line of output.
        resume: continue the comparison in `out`.

    Raises:
        VitkitError: a model cannot be trained on a data set, or `out` is in use or not empty. All data sets are checked
            before the first training.
        Interrupted: a signal stopped the comparison; `resume` continues it.
    """
    from vitkit.training.run_folder import new_run_folder

    with ExitStack() as hold:
        if resume:
            if data or models is not None:
                raise VitkitError("--resume uses the data and models of --out: leave them out")
            folder = PLACE.lock(out, hold)
            begun = PLACE.read(folder)
        else:
            begun = _planned(data, models, options, say)
            folder = new_run_folder("compare-all", hold) if out is None else PLACE.reserve(out, hold)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / PLAN, begun)
        try:
            results = {place: _one(place, folder, begun, compare, say) for place in range(len(begun["data"]))}
        except Interrupted:
            say(f"to continue: vitkit compare --resume --out {folder}")
            raise
        except (KeyError, TypeError) as error:
            raise PLACE.damaged(folder) from error
        return _conclude(begun, [result.figures for result in results.values()], folder)


def _planned(
    data: Sequence[str], models: str | Sequence[str] | None, options: Mapping[str, Any], say: Say
) -> dict[str, Any]:
    """Check all models on all data sets, print the costs of the trainings, and return the plan in JSON types."""
    from vitkit.experiments.comparison_plan import make_plan
    from vitkit.experiments.comparison_request import arguments_of, names_of
    from vitkit.verbs.inputs import check_data

    if models is None:
        raise VitkitError("no models: vitkit compare DATA DATA --models NAME,NAME")
    if len({os.path.realpath(source) for source in data}) < len(data):
        raise VitkitError("a data set is given twice: leave out one of them")
    settings = dict(options)
    shared = {name: settings.pop(name) for name in ("recipe", "seeds", "fractions", "budget", "stress")}
    settings.pop("devices")
    labels, costs = _labels(data), {}
    for source, label in zip(data, labels, strict=True):
        check_data(source)
        arguments = arguments_of(source, models, **shared)
        try:
            plan = make_plan(arguments, settings)
        except VitkitError as error:
            raise VitkitError(f"{source}: {error}") from error
        costs[label] = {name: [job.flops for job in plan.runs() if job.model == name] for name in plan.models}
    rows = [
        [name, *(_cost(costs[label].get(name, [])) for label in labels)]
        for name in dict.fromkeys(name for cells in costs.values() for name in cells)
    ]
    for line in aligned([["trainings, FLOPs", *labels], *rows]):
        say(line)
    return {
        "vitkit": vitkit.__version__,
        "data": list(data),
        "labels": labels,
        "models": names_of(models),
        "options": {**options, "recipe": None if options["recipe"] is None else str(options["recipe"])},
    }


def _labels(data: Sequence[str]) -> list[str]:
    """Return a short and unique name for each data set."""
    names = [Path(source).name or source for source in data]
    return [name if names.count(name) == 1 else f"{name} ({place + 1})" for place, name in enumerate(names)]


def _cost(flops: Sequence[float | None]) -> str:
    known = [value for value in flops if value is not None]
    if not flops:
        return "shared with another name"
    return f"{len(flops)}" if len(known) < len(flops) else f"{len(flops)}, {sum(known):.3g}"


def _one(place: int, folder: Path, begun: Mapping[str, Any], compare: Callable[..., Any], say: Say) -> Any:
    """Compare the models on one data set. If this comparison has been started before, resume it."""
    source, label = begun["data"][place], begun["labels"][place]
    below = folder / _folder_of(place, label)

    def tell(line: str) -> None:
        say(f"{label}: {line}")

    if (below / _COMPARISON_PLAN).is_file():
        return compare(resume=True, out=below, say=tell, devices=begun["options"]["devices"])
    options = {name: value for name, value in begun["options"].items() if value is not None}
    return compare(source, begun["models"], out=below, say=tell, **options)


def _folder_of(place: int, label: str) -> str:
    return f"{place + 1}-{re.sub(r'[^A-Za-z0-9._-]+', '-', label)}"


# --- The table --------------------------------------------------------------------------------------------


def _conclude(begun: Mapping[str, Any], contents: Sequence[Mapping[str, Any]], folder: Path) -> ComparisonSuite:
    figures = figures_of(begun["labels"], contents)
    folders = {label: _folder_of(place, label) for place, label in enumerate(begun["labels"])}
    figures = {"vitkit": vitkit.__version__, **figures, "folders": folders}
    result = ComparisonSuite(folder, figures)
    write_text(folder / TABLE, _to_csv(result.rows()))
    _write_page(result)
    write_json(folder / SUITE, figures)
    return result


def figures_of(labels: Sequence[str], contents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of each model, both on each data set and over all data sets.

    Args:
        labels: the names of the data sets.
        contents: the content of comparison.json for each data set.
    """
    from scipy.stats import rankdata

    names = list(dict.fromkeys(model["name"] for figures in contents for model in figures["models"]))
    by_name: dict[str, dict[str, Any]] = {name: {} for name in names}
    flops: dict[str, list[float | None]] = {name: [] for name in names}
    for label, figures in zip(labels, contents, strict=True):
        models = figures["models"]
        ranks = rankdata([-model["accuracy"] for model in models])
        for model, rank in zip(models, ranks.tolist(), strict=True):
            by_name[model["name"]][label] = {
                **{key: model[key] for key in ("accuracy", "interval")},
                "rank": rank,
                **_record(model["name"], figures["pairs"]),
            }
            flops[model["name"]] += [run["training_flops"] for run in model["runs"]]
    rows = []
    for name in names:
        cells = list(by_name[name].values())
        is_whole = len(cells) == len(labels)
        known = [value for value in flops[name] if value is not None]
        is_known = len(known) == len(flops[name]) > 0
        rows.append(
            {
                "name": name,
                "by_data": by_name[name],
                "mean": _mean(cells) if is_whole else None,
                "mean_rank": statistics.mean(cell["rank"] for cell in cells) if is_whole else None,
                "wins": sum(cell["wins"] for cell in cells),
                "losses": sum(cell["losses"] for cell in cells),
                "training_flops": statistics.mean(known) if is_known else None,
                "core_days": core_days(sum(known)) if is_known else None,
            }
        )
    seeds = contents[0]["seeds"]
    return {"data": list(labels), "seeds": seeds, "models": rows, "sentences": _sentences(labels, rows, len(seeds))}


def _record(name: str, pairs: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Count the models that a model is significantly better than (`wins`) and significantly worse than (`losses`)."""
    verdicts = [
        pair["better"]["recipe"] or pair["better"]["trained"] for pair in pairs if name in (pair["a"], pair["b"])
    ]
    return {"wins": verdicts.count(name), "losses": sum(each not in (name, None) for each in verdicts)}


def _mean(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean accuracy over the data sets, with a 95 % interval for the uncertainty from images and seeds.

    The interval is derived from the intervals of the N data sets (Zou and Donner 2008). The distance from the mean to
    the lower end is the square root of the sum of squares of the data sets' distances to their lower ends, divided by
    N. The distance to the upper end is computed separately in the same way, because the intervals are asymmetric.
    """
    mean = statistics.mean(cell["accuracy"] for cell in cells)
    below, above = (
        sum((cell["interval"][end] - cell["accuracy"]) ** 2 for cell in cells) ** 0.5 / len(cells) for end in (0, 1)
    )
    return {"accuracy": mean, "interval": [mean - below, mean + above]}


def _sentences(labels: Sequence[str], rows: Sequence[Mapping[str, Any]], seeds: int) -> list[str]:
    """Return sentences with the conclusions from the table and their limitations."""
    of = "as recipes if shown, otherwise as trained" if seeds > 1 else "as trained, with one seed"
    said = []
    for row in rows:
        if row["wins"] or row["losses"]:
            count = sum(data in other["by_data"] for data in row["by_data"] for other in rows if other is not row)
            said.append(
                f"{row['name']} is significantly better than another model in {row['wins']} and worse in "
                f"{row['losses']} of {count} comparisons ({of})"
            )
    if not said:
        said = [f"on none of these data sets is a model significantly better than another ({of})"]
    said.append("intervals are over the images and seeds of these data sets, and not over other data sets")
    ranked = [row for row in rows if row["mean_rank"] is not None]
    if len(ranked) < _TESTED[0] or len(labels) < _TESTED[1]:
        said.append(
            f"mean ranks are not tested: this requires {_TESTED[0]} models and {_TESTED[1]} data sets, "
            f"and there are {len(ranked)} and {len(labels)}"
        )
        return said
    from scipy.stats import friedmanchisquare

    ranks = [[row["by_data"][label]["rank"] for label in labels] for row in ranked]
    if all(row == ranks[0] for row in ranks):
        said.append("all models have the same ranks")
    else:
        p = float(friedmanchisquare(*ranks).pvalue)
        said.append(f"Friedman's test for different mean ranks on data sets of this kind: p = {p:.2g}")
    return said


def _to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    for row in rows:
        writer.writerow(
            "" if cell is None else harmless(cell) if isinstance(cell, str) else cell for cell in row.values()
        )
    return text.getvalue()


def _write_page(result: ComparisonSuite) -> None:
    from vitkit.reporting.comparison import draw_suite
    from vitkit.text.pages import figure, table, to_svg, wide, write_page

    figures = result.figures
    rows = []
    for name, *cells in table_rows(figures):
        accuracies = cells[: len(figures["data"]) + 1]  # those on each data set, and their mean
        accuracies = [each.replace(" %", "\N{NO-BREAK SPACE}%").replace(" (", "<br>(") for each in accuracies]
        accuracies = [each.replace(" to ", "\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}") for each in accuracies]
        rows.append([escape(name), *accuracies, *cells[len(accuracies) :]])
    linked = [
        f'<a href="{escape(figures["folders"][data])}/comparison.html">{escape(data)}</a>' for data in figures["data"]
    ]
    first, *rest = headings(figures["data"])
    body = [
        "<h1>Which model, over several data sets?</h1>",
        f"<p>{escape(sentence(result.lines()[0]))}</p>",
        figure("Accuracy on each data set, 95 % intervals", to_svg(draw_suite(figures)), "svg+xml"),
        wide(table(rows, [first, *linked, *map(escape, rest[len(linked) :])])),
        *(f"<p>{escape(sentence(line))}</p>" for line in figures["sentences"]),
    ]
    write_page(result.folder / PAGE, "Which model, over several data sets?", body)
