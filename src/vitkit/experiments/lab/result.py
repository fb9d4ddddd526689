"""The result of an experiment: its table beside the paper's, its remarks, and how it differs from the paper's
experiment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from vitkit.evaluation.headline import images_in_words
from vitkit.experiments.lab.experiment import Ablation, Experiment
from vitkit.text.cells import aligned
from vitkit.verbs.result import Result

LAB, PAGE = "lab.json", "lab.html"


@dataclass(frozen=True, repr=False)
class LabResult(Result):
    """The result of an experiment.

    Attributes:
        experiment: which.
        figures: all that lab.json holds.
        headings, rows: the headings and the rows of its table.
        remarks: what the table says, a line each.
        folder: the folder of lab.json, the page and the runs; None if nothing was written.
    """

    experiment: Experiment
    figures: dict[str, Any]
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...]
    folder: Path | None = None

    @property
    def page(self) -> Path | None:
        """Return the path of the page; None if nothing was written."""
        return None if self.folder is None else self.folder / PAGE

    def to_dict(self) -> dict[str, Any]:
        """Return the content of lab.json."""
        return self.figures

    def lines(self) -> list[str]:
        """Return the question, the table, and the remarks."""
        experiment = self.experiment
        differs = [] if self.figures.get("preset") == "paper" else [f"what differs: {experiment.differs}"]
        where = [] if self.folder is None else [f"everything: {self.folder / LAB}, {self.folder / PAGE}"]
        return [
            f"{experiment.name}: {experiment.question}",
            *aligned([self.headings, *self.rows]),
            "",
            *self.remarks,
            f"the source ({experiment.source}): {experiment.says}",
            *differs,
            *where,
        ]

    def body(self) -> list[str]:
        """Return the body of the page as HTML."""
        from vitkit.text.html import table

        experiment = self.experiment
        said = [
            *self.remarks,
            f"The source ({experiment.source}): {experiment.says}.",
            f"What differs: {experiment.differs}.",
        ]
        rows = [[escape(cell) for cell in row] for row in self.rows]
        command = f"<p class='soft'>{escape(self.figures['command'])}</p>"
        head = [f"<h1>{escape(experiment.name)}</h1>", f"<p>{escape(experiment.question)}</p>", command]
        return [*head, table(rows, list(map(escape, self.headings))), *(f"<p>{escape(line)}</p>" for line in said)]

    def _repr_html_(self) -> str:
        return "".join(self.body())


def table_of(ablation: Ablation, figures: dict[str, Any]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the headings and rows of an ablation."""
    pairs = {pair["a"]: pair for pair in figures["pairs"]}
    headings = ["", "accuracy here", "95 %", f"less {ablation.against}", "parameters", "GMACs"]
    rows = []
    for variant in figures["variants"]:
        pair = pairs.get(variant["label"])
        row = [variant["label"], f"{100 * variant['accuracy']:.1f} %", _span(variant["interval"])]
        row += ["" if pair is None else f"{100 * pair['difference']:+.1f} ({_span(pair['interval'])})"]
        row += [f"{variant['parameters']:,}", f"{variant['gmacs']:.3g}"]
        rows.append(row + ([variant["paper"] or "-"] if ablation.column else []))
    return (*headings, *([f"paper: {ablation.column}"] if ablation.column else [])), tuple(map(tuple, rows))


def remarks_of(figures: dict[str, Any]) -> tuple[str, ...]:
    """Return verdicts and claims, one line each."""
    seeds, chance = len(figures["seeds"]), 100 * figures["chance"]
    images = images_in_words(figures["test_images"], figures["split"])
    judged = f"{images}, {seeds} seeds; the most frequent class alone: {chance:.1f} %"
    claims = [f"claim {claim['outcome']}: {claim['claim']}" for claim in figures["claims"]]
    return (judged, *figures["findings"], *(pair["verdict"] for pair in figures["pairs"]), *claims)


def _span(interval: Sequence[float]) -> str:
    low, high = (100 * end for end in interval)
    return f"{low:.1f} to {high:.1f}"
