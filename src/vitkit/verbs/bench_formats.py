"""`vitkit bench --export`: export a model to all formats, and compare the files with each other."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.exporting.formats import FORMATS, INT8
from vitkit.system.logger import log
from vitkit.system.progress import progress, receiver
from vitkit.text.cells import aligned
from vitkit.text.pages import table
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitkit.exporting import Exported

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


def bench_formats(model: object, batches: Sequence[int], rounds: int) -> Result:
    """Export a model to each format that works here, in float32 and INT8, and compare the files side by side.

    Args:
        model: a run or model folder, or a checkpoint.
        batches: the numbers of images that are computed at once.
        rounds: the number of timings of each file.

    Raises:
        VitkitError: `model` is not the path of one, or no format works here.
    """
    if not isinstance(model, (str, Path)) or not Path(model).exists():
        raise VitkitError(
            "verbs.model-not-file", "--export needs the path of a model: a run, a model folder or a checkpoint"
        )
    import numpy as np
    import torch

    from vitkit.exporting import load_exported
    from vitkit.profiling.speed import interleave
    from vitkit.verbs.export import export

    exports: dict[str, Result] = {}
    missing: dict[str, str] = {}  # the reason why an export failed, by name
    with tempfile.TemporaryDirectory() as folder:
        wanted = [(form, precision) for form in FORMATS.values() if form.is_input for precision in _PRECISIONS]
        for done, (form, precision) in enumerate(wanted):
            name = f"{form.name} {precision}"
            progress(f"exporting {name}", done, len(wanted))
            out_file = Path(folder) / precision / f"model{form.suffix}"
            out_file.parent.mkdir(exist_ok=True)
            try:
                exports[name] = export(model, form.name, out_file, precision=precision, progress=receiver())
            except VitkitError as error:
                missing[name] = str(error)
        if not exports:
            raise VitkitError("verbs.format-unavailable", f"no format works here: {next(iter(missing.values()))}")
        for name, reason in missing.items():
            log.warning("%s is left out: %s", name, reason)

        files: dict[str, Exported] = {}
        facts: dict[str, dict[str, Any]] = {}  # the cells of each file that are the same for all batch sizes
        for name, result in exports.items():
            outcome, accuracy = result.outcome, result.outcome.accuracy
            start = time.perf_counter()
            file = files[name] = load_exported(result.file)
            file.answer(np.zeros((1, len(file.preprocess.mean), *file.preprocess.size), np.float32))
            facts[name] = {
                "file": name,
                "accuracy": None if accuracy is None else accuracy.after,
                "agreement": outcome.comparison.agreement if accuracy is None else accuracy.agreement,
                "megabytes": outcome.size / 1e6,
                "start_s": time.perf_counter() - start,
            }
        preprocess = next(iter(files.values())).preprocess  # the same for all files
        rows = []
        for batch in batches:
            shape = (batch, len(preprocess.mean), *preprocess.size)
            images = torch.randn(shape, generator=torch.Generator().manual_seed(1)).numpy()
            times = interleave({name: partial(file.runner.compute, images) for name, file in files.items()}, rounds)
            for name, timing in times.items():
                rate = timing.rate(batch)
                speed = {"images_per_s": rate.median, "images_per_s_q1": rate.low, "images_per_s_q3": rate.high}
                rows.append({**facts[name], "batch": batch, **speed})

    compared_on = next(iter(exports.values())).compared_on
    title = f"{model}, exported to each format and compared on {compared_on}"
    headings = [heading for heading, _ in COLUMNS.values()]
    cells = [table_cells(row, COLUMNS) for row in rows]
    figures = {"model": str(model), "compared_on": compared_on, "results": rows, "missing": missing}
    return Result(
        "bench",
        [title, *aligned([headings, *cells]), _LEGEND],
        {**figures, "results": tuple(rows)},
        json=figures,
        rows=rows,
        pictures={"Exported files": lambda: _chart(str(model), rows)},
        html=lambda: f"<p>{escape(title)}</p>{table([list(map(escape, row)) for row in cells], headings)}",
    )


def table_cells(row: Mapping[str, Any], columns: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the cells of a row in these columns, as text. The speed is the median, followed by the quartiles."""
    rates = [row["images_per_s_q1"], row["images_per_s"], row["images_per_s_q3"]]
    low, median, high = (f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}" for rate in rates)
    values = {**row, "images_per_s": median, "quartiles": f"{low}-{high}"}
    return ["" if values[key] is None else form.format(values[key]) for key, (_, form) in columns.items()]


def _chart(model: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw a bar for the speed of each file, annotated with its accuracy and size."""
    from vitkit.reporting.plots import BLUE, ORANGE
    from vitkit.text.pages import new_figure

    figure = new_figure(9, 1 + 0.3 * len(rows))
    axis = figure.subplots()
    ordered = sorted(rows, key=lambda row: row["images_per_s"])
    for y, row in enumerate(ordered):
        rate, low, high = row["images_per_s"], row["images_per_s_q1"], row["images_per_s_q3"]
        spread = [[max(rate - low, 0)], [max(high - rate, 0)]]
        colour = ORANGE if row["file"].endswith(INT8) else BLUE
        axis.barh(y, rate, color=colour, xerr=spread, error_kw={"ecolor": "black", "capsize": 2, "lw": 1})
        text = f"{row['megabytes']:.1f} MB"
        if row["accuracy"] is not None:
            text = f"{row['accuracy']:.1%}, {text}"
        axis.annotate(f"  {text}", (max(high, rate), y), va="center", fontsize=8)
    axis.set_yticks(range(len(ordered)), [f"{row['file']}, batch {row['batch']}" for row in ordered], fontsize=8)
    axis.margins(x=0.2)
    axis.set_xlabel("images per second")
    axis.set_title(model, fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    return figure
