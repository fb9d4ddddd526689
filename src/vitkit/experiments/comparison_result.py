"""A comparison as it is shown: in lines, in a notebook, and as a table for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from vitkit.evaluation.headline import images_in_words
from vitkit.text.cells import harmless
from vitkit.text.words import aligned
from vitkit.verbs.result import Result

COMPARISON, TABLE, PAGE = "comparison.json", "comparison.csv", "comparison.html"
_TABLE_KEYS = (  # of a run, as comparison.csv has them
    *("seed", "fraction", "training_images", "accuracy", "loss", "ece", "epochs", "seconds", "train_images_per_s"),
    *("epochs_to_90", "seconds_to_90", "epochs_to_best", "seconds_to_best", "peak_memory", "training_flops", "folder"),
    *("split", "images", "caveats"),
)


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Several models trained alike and judged by the same images.

    Attributes:
        folder: with comparison.html, comparison.json, comparison.csv and the runs.
        figures: all that comparison.json holds.
    """

    folder: Path
    figures: dict[str, Any]

    @property
    def models(self) -> list[dict[str, Any]]:
        """Each model with its figures and its runs, in the order asked for."""
        return list(self.figures["models"])

    @property
    def pairs(self) -> list[dict[str, Any]]:
        """How every two models differ on all the data: difference (0-1), 95 % interval, p among all pairs, verdict."""
        return list(self.figures["pairs"])

    @property
    def report(self) -> Path:
        """The page that tells of it."""
        return self.folder / PAGE

    @property
    def verdicts(self) -> list[str]:
        """Of every two models, in words."""
        return [pair["verdict"] for pair in self.pairs]

    @property
    def summary(self) -> list[str]:
        """The best model with the accuracy to expect of it, and how far a seed moves a training, in words."""
        luck = self.figures["luck"]
        return [self.figures["best"]["sentence"], *([] if luck is None else [luck["sentence"]])]

    def to_dict(self) -> dict[str, Any]:
        """All figures, as comparison.json has them."""
        return self.figures

    def lines(self) -> list[str]:
        """The table, the verdicts, and where the rest is."""
        rows = [list(HEADINGS.values()), *map(cells, self.models)]
        images = images_in_words(self.figures["test_images"], self.figures["split"])
        judged = f"{images}, {len(self.figures['seeds'])} seeds"
        return [
            f"{len(self.models)} models on {self.figures['data']}: {judged}",
            *aligned(rows),
            "",
            *self.summary,
            *self.verdicts,
            *self.figures["findings"],
            f"page: {self.report}",
        ]

    def _repr_html_(self) -> str:
        from vitkit.text.html import table

        rows = [[escape(cell) for cell in cells(model)] for model in self.models]
        said = "".join(f"<p>{escape(line)}</p>" for line in [*self.summary, *self.verdicts, *self.figures["findings"]])
        return f"<p>{escape(self.lines()[0])}</p>{table(rows, list(HEADINGS.values()))}{said}"


HEADINGS = {
    "name": "model",
    "accuracy": "accuracy",
    "interval": "95 %",
    "ece": "calibration error",
    "loss": "log loss",
    "parameters": "parameters",
    "gmacs": "GMACs",
    "file_bytes": "MiB",
    "train_images_per_s": "train images/s",
    "predict_images_per_s": "predict images/s",
    "peak_memory": "peak MiB",
    "epochs_to_90": "epochs to 90 %",
    "seconds_to_90": "s to 90 %",
    "epochs_to_best": "epochs to best",
    "seconds_to_best": "s to best",
    "caveats": "caveats",
}


def cells(model: dict[str, Any]) -> list[str]:
    """A row of the table for people; a dash for what was not measured."""
    return [_cell(key, model) for key in HEADINGS]


def _cell(key: str, model: dict[str, Any]) -> str:
    from vitkit.text.words import interval_text

    value = model[key]
    if key == "caveats":
        return "; ".join(value or ()) or "-"
    if key in ("epochs_to_90", "seconds_to_90") and value is None and model["reached_90"]:
        runs = sum(run["fraction"] == model["by_fraction"][-1]["fraction"] for run in model["runs"])
        return f"{model['reached_90']} of {runs} runs"
    if value is None:
        return "-"
    if key == "name":
        return str(value)
    if key == "interval":
        return interval_text([100 * end for end in value], 1)
    return {
        "accuracy": f"{100 * value:.1f} %",
        "ece": f"{value:.3f}",
        "loss": f"{value:.3f}",
        "parameters": f"{value:,}",
        "file_bytes": f"{value / 2**20:.1f}",
        "peak_memory": f"{value / 2**20:.0f}",
    }.get(key, f"{value:,.0f}" if value >= 1000 else f"{value:.3g}")


def to_csv(models: Sequence[dict[str, Any]]) -> str:
    """A row for each run of each model; empty where something was not measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("model", *_TABLE_KEYS))
    for model in models:
        for run in model["runs"]:
            told = {**run, "caveats": "; ".join(run["caveats"])}
            row = [model["name"], *(told[key] for key in _TABLE_KEYS)]
            writer.writerow("" if cell is None else harmless(cell) if isinstance(cell, str) else cell for cell in row)
    return text.getvalue()
