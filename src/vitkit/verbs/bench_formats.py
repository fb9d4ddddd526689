"""`vitkit bench --export`: export a model to all formats, and compare the files with each other."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.exporting.formats import FORMATS, INT8
from vitkit.system.progress import Say, progress, receiver
from vitkit.text.cells import aligned
from vitkit.text.pages import table
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitkit.exporting import Exported

TABLE, PICTURE = "bench.csv", "bench.png"
COLUMNS = {  # keys of a row, with the heading and the format of the column
    "file": ("file", "{}"),
    "accuracy": ("accuracy", "{:.1%}"),
    "agreement": ("top-1", "{:.1%}"),
    "megabytes": ("MB", "{:.1f}"),
    "start_s": ("start", "{:.2f} s"),
    "batch": ("batch", "{}"),
    "images_per_s": ("images/s", "{}"),
    "quartiles": ("quartiles", "{}"),
}
_PRECISIONS = ("float32", INT8)
_LEGEND = (
    "top-1: images with the same class as the model in float32; start: opening the file and classifying one image. "
    "INT8 was tuned on these images: `vitkit export --precision int8` also prints its accuracy on test images"
)


def bench_formats(model: str | Path, batches: Sequence[int], rounds: int, out: Path | None, note: Say) -> Result:
    """Export a model to each format that works here, in float32 and INT8, and compare the files side by side.

    Args:
        model: a run or model folder, or a checkpoint.
        batches: the numbers of images that are computed at once.
        rounds: the number of timings of each file.
        out: the folder for a table and a picture; None for neither.
        note: called with the reason for each format that is left out.

    Raises:
        VitkitError: no format works here.
    """
    import torch

    from vitkit.profiling.speed import interleave

    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        exports = dict(_exports(model, Path(folder), missing))
        if not exports:
            raise VitkitError("verbs.format-unavailable", f"no format works here: {next(iter(missing.values()))}")
        for name, reason in missing.items():
            note(f"{name} is left out: {reason}")
        facts = {name: _facts(name, result) for name, result in exports.items()}
        opened = {name: _open(result.file, facts[name]) for name, result in exports.items()}
        rows, pixels = [], next(iter(opened.values())).preprocess
        for batch in batches:
            shape = (batch, len(pixels.mean), *pixels.size)
            images = torch.randn(shape, generator=torch.Generator().manual_seed(1)).numpy()
            times = interleave({name: partial(file.runner.answer, images) for name, file in opened.items()}, rounds)
            for name, timing in times.items():
                rate = timing.rate(batch)
                speed = {"images_per_s": rate.median, "images_per_s_q1": rate.low, "images_per_s_q3": rate.high}
                rows.append(facts[name] | {"batch": batch} | speed)
    compared_on = next(iter(exports.values())).compared_on
    title = f"{model}, exported to each format and compared on {compared_on}"
    cells, headings = list(map(_cells, rows)), [heading for heading, _ in COLUMNS.values()]
    if out is not None:
        write_results(out, rows, _chart(str(model), rows))
    written = [] if out is None else [f"{out / TABLE}, {out / PICTURE}"]
    return Result(
        "bench",
        [title, *aligned([headings, *cells]), _LEGEND, *written],
        {"model": str(model), "results": tuple(rows), "missing": missing, "compared_on": compared_on, "out": out},
        json={"model": str(model), "compared_on": compared_on, "results": rows, "missing": missing},
        rows=rows,
        pictures={"Exported files": lambda: _chart(str(model), rows)},
        html=lambda: f"<p>{escape(title)}</p>{table([list(map(escape, row)) for row in cells], headings)}",
    )


def _exports(model: str | Path, folder: Path, missing: dict[str, str]) -> Iterator[tuple[str, Result]]:
    """Yield the name and the result of each export; fill in the reasons for those that fail."""
    from vitkit.verbs.export import export

    wanted = [(form, precision) for form in FORMATS.values() if form.is_input for precision in _PRECISIONS]
    for done, (form, precision) in enumerate(wanted):
        name = f"{form.name} {precision}"
        progress(f"exporting {name}", done, len(wanted))
        place = folder / precision
        place.mkdir(exist_ok=True)
        try:
            yield (
                name,
                export(model, form.name, place / f"model{form.suffix}", precision=precision, progress=receiver()),
            )
        except VitkitError as error:
            missing[name] = str(error)


def _facts(name: str, result: Result) -> dict[str, Any]:
    outcome = result.outcome
    accuracy = None if outcome.accuracy is None else outcome.accuracy.after
    agreement = outcome.comparison.agreement if outcome.accuracy is None else outcome.accuracy.agreement
    return {"file": name, "accuracy": accuracy, "agreement": agreement, "megabytes": outcome.size / 1e6}


def _open(path: Path, facts: dict[str, Any]) -> Exported:
    """Open a file, and record how long this and the first image take."""
    import numpy as np

    from vitkit.exporting import load_exported

    begun = time.perf_counter()
    opened = load_exported(path)
    height, width = opened.preprocess.size
    opened.answer(np.zeros((1, len(opened.preprocess.mean), height, width), np.float32))
    facts["start_s"] = time.perf_counter() - begun
    return opened


def _cells(row: Mapping[str, Any]) -> list[str]:
    low, median, high = (short_rate(row[f"images_per_s{part}"]) for part in ("_q1", "", "_q3"))
    shown = dict(row) | {"images_per_s": median, "quartiles": f"{low}-{high}"}
    return ["" if shown[name] is None else form.format(shown[name]) for name, (_, form) in COLUMNS.items()]


def write_results(out: Path, rows: Sequence[Mapping[str, Any]], figure: Figure) -> None:
    """Write the rows as a table, and the figure as a picture, into a folder."""
    import csv

    from vitkit.reporting.plots import save_figure
    from vitkit.system.files import replacing

    out.mkdir(parents=True, exist_ok=True)
    with replacing(out / TABLE) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    save_figure(figure, out / PICTURE)


def short_rate(rate: float) -> str:
    """Return a speed with about three digits."""
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _chart(model: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw a bar for the speed of each file, annotated with its accuracy and size."""
    from vitkit.reporting.plots import BLUE, ORANGE
    from vitkit.text.pages import new_figure

    figure = new_figure(9, 1 + 0.3 * len(rows))
    axis = figure.subplots()
    ordered = sorted(rows, key=lambda row: row["images_per_s"])
    for y, row in enumerate(ordered):
        low, high = row["images_per_s_q1"], row["images_per_s_q3"]
        spread = [[max(row["images_per_s"] - low, 0)], [max(high - row["images_per_s"], 0)]]
        colour = ORANGE if row["file"].endswith(INT8) else BLUE
        axis.barh(
            y, row["images_per_s"], color=colour, xerr=spread, error_kw={"ecolor": "black", "capsize": 2, "lw": 1}
        )
        accuracy = "" if row["accuracy"] is None else f"{row['accuracy']:.1%}, "
        axis.annotate(
            f"  {accuracy}{row['megabytes']:.1f} MB", (max(high, row["images_per_s"]), y), va="center", fontsize=8
        )
    axis.set_yticks(range(len(ordered)), [f"{row['file']}, batch {row['batch']}" for row in ordered], fontsize=8)
    axis.margins(x=0.2)
    axis.set_xlabel("images per second")
    axis.set_title(model, fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    return figure
